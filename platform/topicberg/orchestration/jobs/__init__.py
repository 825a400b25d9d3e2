"""What runs the graph: jobs, schedules and sensors."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.jobs import alerts, catalogs, pipelines, retention, sensors, table_jobs
from topicberg.orchestration.jobs.schedules import schedule_unless_busy


def lake_jobs(lake: Lake) -> Iterator[dg.JobDefinition | dg.UnresolvedAssetJobDefinition]:
    """Return what users and the schedules run."""
    yield from pipelines.pipeline_jobs(lake)  # each pipeline as a whole, and everything
    yield table_jobs.check_job(lake)
    yield table_jobs.maintenance_job(lake)


def lake_schedules(lake: Lake) -> Iterator[dg.ScheduleDefinition]:
    """Return what is done by the clock."""
    yield table_jobs.check_schedule()  # every five minutes
    # Every quarter of an hour, as often as compaction is due.
    yield schedule_unless_busy(table_jobs.MAINTAIN, "*/15 * * * *")
    yield retention.retention_schedule(lake)  # forgets old runs


def lake_sensors(lake: Lake) -> Iterator[dg.SensorDefinition]:
    """Return what is done when something happens."""
    yield sensors.snapshot_sensor(lake)  # registers snapshots, and computes what follows from them
    yield catalogs.catalog_sensor(lake)  # repairs Glue and Snowflake
    yield alerts.alert_sensor(lake.problem)
    if lake.config.deployment == "local":
        yield alerts.engine_sensor()
