"""Dagster's sensor daemon, one tick at a time, with the project's own sensor, jobs and storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from definitions import defs
from topicberg.errors import TopicbergError
from topicberg.kafka import topics as kafka
from topicberg.orchestration.jobs.pipelines import EVERYTHING
from topicberg.orchestration.resources import RESOURCES
from topicberg.orchestration.resources.lakehouse import Lakehouse
from topicberg.settings import Settings


def serve_catalog(monkeypatch: pytest.MonkeyPatch, catalog: Any) -> None:
    """Let the sensor find its tables in a catalog, beside a Kafka that does not answer."""

    class Deployment:
        def catalog(self, _: Settings) -> Any:
            return catalog

    def silent(_: Any, topic: str) -> None:
        raise TopicbergError(f"Kafka has no {topic} in this test")

    monkeypatch.setattr(Lakehouse, "peek", lambda _: Deployment())
    monkeypatch.setattr(kafka, "beginning_offsets", silent)


def execute_requested(
    job: dg.JobDefinition,
    request: dg.RunRequest,
    *,
    instance: dg.DagsterInstance,
    raise_on_error: bool,
) -> dg.ExecuteInProcessResult:
    """Execute what a sensor requested: assets, without their checks, or checks only."""
    assets, checks = [*(request.asset_selection or ())], {*(request.asset_check_keys or ())}
    if not assets and checks:
        job = job.get_subset(asset_check_selection=checks)
    return job.execute_in_process(
        instance=instance,
        asset_selection=assets or None,
        tags={**request.tags, "dagster/run_key": str(request.run_key)},
        raise_on_error=raise_on_error,
    )


@dataclass
class Daemon:
    """Dagster's sensor daemon and run launcher, one tick at a time, in this process."""

    instance: dg.DagsterInstance
    sensor: dg.SensorDefinition
    cursor: str | None = None
    materialized: list[str] = field(default_factory=list)
    registered: list[dg.AssetKey] = field(default_factory=list)
    """What ticks registered in Glue and Snowflake."""
    lags: list[float] = field(default_factory=list)
    observed: list[dg.AssetObservation] = field(default_factory=list)
    runs: list[dg.ExecuteInProcessResult] = field(default_factory=list)

    def tick(self) -> Any:
        repository = defs.get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            repository_def=repository,
            resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
        )
        tick = self.sensor.evaluate_tick(context)
        self.cursor = tick.cursor or self.cursor
        for event in tick.asset_events:
            self.instance.report_runless_asset_event(event)
            metadata: Mapping[str, Any] = event.metadata
            if event.asset_key.path[0] != "iceberg" and isinstance(event, dg.AssetMaterialization):
                self.registered.append(event.asset_key)
            elif isinstance(event, dg.AssetMaterialization):
                self.materialized.append(metadata["snapshot_id"].value)
                if "commit_lag_seconds" in metadata:  # compaction commits no record
                    self.lags.append(metadata["commit_lag_seconds"].value)
            elif isinstance(event, dg.AssetObservation):
                self.observed.append(event)
        for wanted in tick.run_requests or ():
            self.runs.append(self.launch(wanted))
        return tick

    def launch(self, wanted: dg.RunRequest) -> dg.ExecuteInProcessResult:
        job = defs.resolve_job_def(EVERYTHING)
        return execute_requested(job, wanted, instance=self.instance, raise_on_error=True)

    def settle(self) -> None:
        """Tick until nothing is left to do."""
        while not self.tick().skip_message:
            pass


@contextmanager
def snapshot_daemon(sensor: dg.SensorDefinition, folder: Path) -> Iterator[Daemon]:
    """A daemon whose instance has its storage in the folder."""
    storage = {
        "module": "topicberg_local.dagster.storage",
        "class": "SqliteStorage",
        "config": {"base_dir": str(folder)},
    }
    with dg.instance_for_test({"storage": {"custom": storage}}) as instance:
        yield Daemon(instance, sensor)
