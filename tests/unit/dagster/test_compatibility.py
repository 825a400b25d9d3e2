"""A Dagster without a private part: what topicberg falls back to, and what it refuses."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster_webserver.graphql import GraphQLServer
from dagster_webserver.webserver import DagsterWebserver
from sqlalchemy import text
from starlette.applications import Starlette

from topicberg.dagster import compatibility, webserver
from topicberg.dagster.compatibility import require_attributes, require_parameters
from topicberg.dagster.home import dagster_home
from topicberg.errors import TopicbergError
from topicberg.orchestration.jobs.retention import retention_job
from topicberg.settings import Settings
from topicberg_local import peers
from topicberg_local.dagster import launcher, sqlite, storage


@pytest.fixture(autouse=True)
def newly_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No warning is logged yet, and no web server guarded."""
    for name in ("build_middleware", "create_asgi_app"):
        monkeypatch.setattr(DagsterWebserver, name, getattr(DagsterWebserver, name))
    monkeypatch.setattr(compatibility, "_logged", set())
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")  # the guard changes it
    storage._guard_once.cache_clear()
    yield
    storage._guard_once.cache_clear()


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Of whom each web server would be guarded."""
    found: list[object] = []
    monkeypatch.setattr(webserver, "guard_webservers", lambda _config, is_own: found.append(is_own))
    return found


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == compatibility.__name__ and record.levelno == logging.WARNING
    ]


def test_storage_without_private_part_uses_dagsters_with_one_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    guarded: list[object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    @dg.asset
    def orders() -> None: ...

    monkeypatch.setattr(sqlite, "open_storages", _missing)
    home = dagster_home(Settings(state_dir=tmp_path))
    for _ in range(2):
        with dg.DagsterInstance.from_config(str(home)) as instance:
            assert dg.materialize([orders], instance=instance).success
            assert type(instance.event_log_storage) is SqliteEventLogStorage
            instance.optimize_for_webserver(15_000, 3600, 20)
    (warning,) = _warnings(caplog)
    assert warning.startswith(f"Dagster {dg.__version__} differs from the versions")
    assert "every event opens its database" in warning
    assert "Something has no part" in warning
    assert guarded == [peers.own_client()]
    monkeypatch.undo()
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert len(instance.get_runs()) == 2


def _missing(_folder: Path) -> None:
    raise ImportError("Something has no part")


def test_launcher_without_private_part_is_dagsters_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "topicberg_local.dagster.forking", None)
        importlib.reload(launcher)
    try:
        config = {"run_launcher": {"module": launcher.__name__, "class": "ForkingRunLauncher"}}
        with dg.instance_for_test(config) as instance:
            assert type(instance.run_launcher) is dg.DefaultRunLauncher
    finally:
        importlib.reload(launcher)
    (warning,) = _warnings(caplog)
    assert "every run imports its libraries again" in warning
    assert launcher.ForkingRunLauncher.__module__ == "topicberg_local.dagster.forking"


def test_retention_with_other_tables_of_dagster_deletes_runs_and_warns(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with dg.instance_for_test() as instance:
        storage: Any = instance.event_log_storage
        with storage.index_connection() as connection:
            connection.execute(text("ALTER TABLE asset_event_tags RENAME event_id TO event"))
        assert retention_job(()).execute_in_process(instance=instance).success
    warning = capfd.readouterr().err
    assert "results of checks are kept for ever (table asset_event_tags has no event_id)" in warning


def test_missing_attribute_is_an_import_error() -> None:
    require_attributes(SqliteEventLogStorage, "path_for_shard")
    with pytest.raises(ImportError, match="SqliteEventLogStorage has no path_of_shard"):
        require_attributes(SqliteEventLogStorage, "path_for_shard", "path_of_shard")
    with pytest.raises(ImportError, match="SimpleNamespace has no lock"):
        require_attributes(SimpleNamespace(), "lock")


def test_function_with_other_parameters_is_an_import_error() -> None:
    def connect(base: str, name: str = "") -> None: ...

    require_parameters(connect, 2)
    with pytest.raises(ImportError, match="connect: too many positional arguments"):
        require_parameters(connect, 3)


@pytest.mark.parametrize(
    ("owner", "name"), [(DagsterWebserver, "build_middleware"), (GraphQLServer, "create_asgi_app")]
)
def test_web_server_that_cannot_be_guarded_does_not_start(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.undo()  # what the fixture has set on the class below
    with monkeypatch.context() as patch:
        for each in (DagsterWebserver, GraphQLServer):
            if name in vars(each):
                patch.delattr(each, name)
        with pytest.raises(webserver.UnguardedWebServerError, match=f"has no attribute '{name}'"):
            webserver.guard_webservers(Settings())
        for start in (storage._guard, webserver.main):
            with pytest.raises(SystemExit, match="error: Dagster's web server is not started"):
                start()
    assert hasattr(owner, name)


def test_application_without_the_guard_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DagsterWebserver, "create_asgi_app", lambda _server, **_: Starlette())
    webserver.guard_webservers(Settings())
    with pytest.raises(webserver.UnguardedWebServerError, match="has no middleware of topicberg"):
        DagsterWebserver.create_asgi_app(None)  # type: ignore[arg-type]


def test_process_that_has_imported_the_web_server_is_guarded(
    tmp_path: Path, guarded: list[object]
) -> None:
    with dg.DagsterInstance.from_config(str(dagster_home(Settings(state_dir=tmp_path)))):
        assert "dagster_webserver.webserver" in sys.modules
    assert guarded == [peers.own_client()]


@pytest.mark.parametrize("name", ["storage", "launcher"])
def test_path_of_an_older_dagster_yaml_names_the_one_of_today(name: str) -> None:
    module = importlib.import_module(f"topicberg.dagster.{name}")
    with pytest.raises(TopicbergError, match=f"topicberg_local.dagster.{name}"):
        module.SqliteStorage  # noqa: B018
