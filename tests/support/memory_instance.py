"""A Dagster instance whose storage is memory: a run costs a quarter of what it does with files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._core.instance import InstanceType
from dagster._core.launcher.sync_in_memory_run_launcher import SyncInMemoryRunLauncher
from dagster._core.run_coordinator import DefaultRunCoordinator
from dagster._core.storage.event_log import EventLogStorage, InMemoryEventLogStorage
from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager
from dagster._core.storage.root import TemporaryLocalArtifactStorage
from dagster._core.storage.runs import InMemoryRunStorage
from dagster._core.storage.schedules.schema import ScheduleStorageSqlMetadata
from dagster._core.storage.schedules.sql_schedule_storage import SqlScheduleStorage
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool


class MemoryScheduleStorage(SqlScheduleStorage):
    """Schedules and sensors, which Dagster's own instance in memory does not have."""

    def __init__(self) -> None:
        given: dict[str, Any] = {"check_same_thread": False}
        self._engine = create_engine("sqlite://", poolclass=StaticPool, connect_args=given)
        ScheduleStorageSqlMetadata.create_all(self._engine)
        self.migrate()

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection

    def upgrade(self) -> None:
        pass

    def dispose(self) -> None:
        self._engine.dispose()


@contextmanager
def memory_instance(events: EventLogStorage | None = None) -> Iterator[dg.DagsterInstance]:
    """An instance that is gone afterwards, for runs in this process."""
    with dg.DagsterInstance(
        instance_type=InstanceType.EPHEMERAL,
        local_artifact_storage=TemporaryLocalArtifactStorage(),  # type: ignore[no-untyped-call]
        run_storage=InMemoryRunStorage(),
        event_storage=events or InMemoryEventLogStorage(),
        schedule_storage=MemoryScheduleStorage(),
        compute_log_manager=NoOpComputeLogManager(),
        run_coordinator=DefaultRunCoordinator(),
        run_launcher=SyncInMemoryRunLauncher(),
    ) as instance:
        yield instance
