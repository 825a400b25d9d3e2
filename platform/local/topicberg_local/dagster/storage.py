"""The storage that ``dagster.yaml`` names, of the local deployment: Dagster's own files in SQLite.

Its connections stay open (:mod:`topicberg_local.dagster.sqlite`), unless Dagster is one in which
that is not possible. And it puts the guard before every web server that opens it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData

from topicberg.dagster.compatibility import warn_degraded
from topicberg.errors import TopicbergError


class SqliteStorage(DagsterSqliteStorage):
    """Runs, events, schedules and sensors, in the files that Dagster's own storage would use."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        try:
            from topicberg_local.dagster.sqlite import open_storages

            storages = open_storages(Path(base_dir))
        except ImportError as error:
            warn_degraded("every event opens its database, and every tick all of them", error)
            super().__init__(base_dir, inst_data)
        else:
            self.base_dir = base_dir
            self._inst_data = inst_data
            self._run_storage, self._event_log_storage, self._schedule_storage = storages
            # Skip the class in between, which opens Dagster's own storages.
            super(DagsterSqliteStorage, self).__init__()  # type: ignore[no-untyped-call]
        # Dagster calls this before it starts a web server. Should it no longer, a web server is
        # also known by what it has imported.
        self._run_storage.optimize_for_webserver = _guard  # type: ignore[method-assign]
        if "dagster_webserver.webserver" in sys.modules:
            _guard()

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        return cls.from_local(inst_data=inst_data, **config_value)


def _guard(*_options: object, **_named: object) -> None:
    """Guard the web server that this process starts; without a guard, the process ends."""
    try:
        _guard_once()
    except TopicbergError as error:
        raise SystemExit(f"error: {error}") from None


@cache
def _guard_once() -> None:
    from topicberg.dagster.webserver import guard_webservers
    from topicberg.settings import settings
    from topicberg_local import peers

    guard_webservers(settings(), peers.own_client())
