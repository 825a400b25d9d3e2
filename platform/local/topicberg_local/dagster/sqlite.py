"""Dagster's SQLite storage with persistent connections, for the local deployment.

Dagster opens its databases for every event, up to four times, and closing the last connection to a
database makes SQLite write a checkpoint. Every tick of a sensor opens the whole instance, and
compares the revisions of its tables with a folder of Python files. Here a process does both once
for each database: a run over 240 partitions that computes nothing takes 2.4 seconds of CPU instead
of 7.9, opening the instance 3 milliseconds instead of 140. And the database of a run, which Dagster
only empties, is deleted with the run. Files and tables are Dagster's own; in production they are in
Postgres.

Source: SQLite, "Write-Ahead Logging" (checkpoints; ``synchronous=NORMAL`` keeps everything except,
after a power failure, the last moments).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.schedules import SqliteScheduleStorage
from dagster._core.storage.sqlite import create_db_conn_string
from dagster._serdes import ConfigurableClassData
from sqlalchemy import Connection, Engine, create_engine, event

from topicberg.dagster.compatibility import require_attributes, require_parameters

TIMEOUT_SECONDS = 30
"""For which a writer waits for another one: as long as in Dagster."""
KEPT = 16
"""Databases that stay open: every run has one, and few are read at the same time."""


class _Engines:
    """Connection string → engine with its pool; the least recently used one is closed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Engine] = OrderedDict()
        self._lock = Lock()

    def get(self, url: str) -> Engine:
        with self._lock:
            engine = self._kept.pop(url, None) or _engine(url)
            self._kept[url] = engine
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)[1].dispose()
            return engine

    def close(self, url: str) -> None:
        with self._lock:
            if engine := self._kept.pop(url, None):
                engine.dispose()


_ENGINES = _Engines()
_READY: set[str] = set()
"""Databases that this process has found to have the current tables."""


def _engine(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": TIMEOUT_SECONDS}, max_overflow=-1)
    pragma = "PRAGMA synchronous=NORMAL"
    event.listen(engine, "connect", lambda connection, _: connection.execute(pragma))
    return engine


class _EventLogStorage(SqliteEventLogStorage):
    supports_asset_checks = True
    """As of every database since Dagster 1.5. Dagster opens it at each event of a check to see it:
    the checks of 200 topics take 29 seconds of CPU with that, 24 without."""

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        with self._db_lock:
            url = self.conn_string_for_shard(shard)
            engine = _ENGINES.get(url)
            if url not in _READY:
                self._initdb(engine)
                _READY.add(url)
            with engine.begin() as connection:
                yield connection

    def delete_events(self, run_id: str) -> None:
        super().delete_events(run_id)
        url = self.conn_string_for_shard(run_id)
        _ENGINES.close(url)
        _READY.discard(url)
        for suffix in ("", "-wal", "-shm"):
            Path(self.path_for_shard(run_id) + suffix).unlink(missing_ok=True)


class _OneDatabase:
    """The common part of the storages of runs and of schedules."""

    _database: ClassVar[str]
    _conn_string: str

    @classmethod
    def from_local(cls, base_dir: str, inst_data: ConfigurableClassData | None = None) -> Any:
        url = create_db_conn_string(base_dir, cls._database)
        if url in _READY:
            return cls(url, inst_data)  # type: ignore[call-arg]
        storage = super().from_local(base_dir, inst_data)  # type: ignore[misc]
        _READY.add(url)
        return storage

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with _ENGINES.get(self._conn_string).begin() as connection:
            yield connection


class _RunStorage(_OneDatabase, SqliteRunStorage):
    _database = "runs"


class _ScheduleStorage(_OneDatabase, SqliteScheduleStorage):
    _database = "schedules"

    def _has_instigators_table(self, conn: Connection) -> bool:
        """Return True, as for every database since Dagster 0.14: it checks four times a tick."""
        return True


def open_storages(folder: Path) -> tuple[_RunStorage, _EventLogStorage, _ScheduleStorage]:
    """Return the storages of runs, events and schedules; raises ImportError: another Dagster."""
    events = _EventLogStorage(str(folder / "history" / "runs"))
    require_attributes(events, "_db_lock")
    runs = _RunStorage.from_local(str(folder / "history"))
    schedules = _ScheduleStorage.from_local(str(folder / "schedules"))
    return runs, events, schedules


# What is overridden, or used of the classes, and may have other names in another Dagster.
_OF_EVENTS = ("_connect", "_initdb", "conn_string_for_shard", "path_for_shard", "delete_events")
require_attributes(SqliteEventLogStorage, *_OF_EVENTS)
require_attributes(SqliteRunStorage, "from_local", "connect")
require_attributes(SqliteScheduleStorage, "from_local", "connect", "_has_instigators_table")
require_parameters(SqliteRunStorage, 2)
require_parameters(SqliteScheduleStorage, 2)
require_parameters(create_db_conn_string, 2)
