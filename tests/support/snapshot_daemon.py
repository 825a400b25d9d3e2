"""Dagster's sensor daemon, one tick at a time, with the project's own sensor, jobs and storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from definitions import defs
from jobs.pipelines import EVERYTHING
from resources import RESOURCES


@dataclass
class Daemon:
    """Dagster's sensor daemon and run launcher, one tick at a time, in this process."""

    instance: dg.DagsterInstance
    sensor: dg.SensorDefinition
    cursor: str | None = None
    materialized: list[str] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    observed: list[dg.AssetObservation] = field(default_factory=list)
    runs: list[dg.ExecuteInProcessResult] = field(default_factory=list)

    def tick(self) -> Any:
        repository = defs.get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            repository_def=repository,
            resources={"lakehouse": RESOURCES["lakehouse"]},
        )
        tick = self.sensor.evaluate_tick(context)
        self.cursor = tick.cursor or self.cursor
        for event in tick.asset_events:
            self.instance.report_runless_asset_event(event)
            metadata: Mapping[str, Any] = event.metadata
            if isinstance(event, dg.AssetMaterialization):
                self.materialized.append(metadata["snapshot_id"].value)
                if "commit_lag_seconds" in metadata:  # compaction commits no record
                    self.lags.append(metadata["commit_lag_seconds"].value)
            elif isinstance(event, dg.AssetObservation):
                self.observed.append(event)
        for wanted in tick.run_requests or ():
            self.runs.append(self.launch(wanted))
        return tick

    def launch(self, wanted: dg.RunRequest) -> dg.ExecuteInProcessResult:
        return defs.resolve_job_def(EVERYTHING).execute_in_process(
            instance=self.instance,
            asset_selection=list(wanted.asset_selection or ()),
            tags={**wanted.tags, "dagster/run_key": str(wanted.run_key)},
            raise_on_error=True,
        )

    def settle(self) -> None:
        """Tick until nothing is left to do."""
        while not self.tick().skip_message:
            pass

    def lose_cursor(self) -> None:
        """What a reset of the sensor's cursor in the UI does."""
        self.cursor = None


@contextmanager
def snapshot_daemon(sensor: dg.SensorDefinition, folder: Path) -> Iterator[Daemon]:
    """A daemon whose instance has its storage in the folder."""
    storage = {
        "module": "topicberg.dagster.storage",
        "class": "SqliteStorage",
        "config": {"base_dir": str(folder)},
    }
    with dg.instance_for_test({"storage": {"custom": storage}}) as instance:
        yield Daemon(instance, sensor)
