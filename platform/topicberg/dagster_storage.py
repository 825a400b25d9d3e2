"""Dagster's SQLite storage with connections that are kept, for the local deployment.

Dagster opens its databases anew for every event, up to four times, and whoever closes the last
connection to one of them makes SQLite write a checkpoint. A run over a month of hours plans and
reports thousands of partitions: with kept connections it spends a fifth of the time on them. Files
and tables are Dagster's own; in production they are in Postgres.

Source: SQLite, "Write-Ahead Logging" (checkpoints; what ``synchronous=NORMAL`` keeps: everything
but, after a power cut, the last moments).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Self

from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.schedules import SqliteScheduleStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData
from sqlalchemy import Connection, Engine, create_engine, event

KEPT = 8
"""Databases that stay open: every run has one, and few are looked at at the same time."""


class _Engines:
    """Connection string → engine, which pools; the one not used for longest is closed."""

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

    def dispose(self) -> None:
        with self._lock:
            while self._kept:
                self._kept.popitem()[1].dispose()


def _engine(url: str) -> Engine:
    timeout = {"timeout": SQLITE_BUSY_TIMEOUT_SECONDS}
    engine = create_engine(url, connect_args=timeout, max_overflow=-1)
    event.listen(engine, "connect", _prepare)
    return engine


def _prepare(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")


class _EventLogStorage(SqliteEventLogStorage):
    def __init__(self, base_dir: str) -> None:
        self._engines = _Engines()
        super().__init__(base_dir)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        with self._db_lock:
            engine = self._engines.get(self.conn_string_for_shard(shard))
            if shard not in self._initialized_dbs:
                self._initdb(engine)
                self._initialized_dbs.add(shard)
            with engine.begin() as connection:
                yield connection

    def dispose(self) -> None:
        super().dispose()
        self._engines.dispose()


class _OneDatabase:
    """What storages of runs, schedules and sensors have in common."""

    _conn_string: str

    @cached_property
    def _engine(self) -> Engine:
        return _engine(self._conn_string)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection

    def dispose(self) -> None:
        self._engine.dispose()


class _RunStorage(_OneDatabase, SqliteRunStorage):
    pass


class _ScheduleStorage(_OneDatabase, SqliteScheduleStorage):
    pass


class SqliteStorage(DagsterSqliteStorage):
    """Runs, events, schedules and sensors, in the files that Dagster's own storage would use."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(base_dir, inst_data)
        folder = Path(base_dir)
        self._run_storage = _RunStorage.from_local(str(folder / "history"))
        self._event_log_storage = _EventLogStorage(str(folder / "history" / "runs"))
        self._schedule_storage = _ScheduleStorage.from_local(str(folder / "schedules"))

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        return cls.from_local(inst_data=inst_data, **config_value)
