"""What runs the graph: jobs, schedules and sensors."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.jobs.alerts import alert_sensor
from topicberg.orchestration.jobs.catalogs import catalog_sensor
from topicberg.orchestration.jobs.checks import check_job, check_schedule
from topicberg.orchestration.jobs.engine import engine_sensor
from topicberg.orchestration.jobs.maintenance import maintenance_job, maintenance_schedule
from topicberg.orchestration.jobs.pipelines import pipeline_jobs
from topicberg.orchestration.jobs.retention import retention_schedule
from topicberg.orchestration.jobs.sensors import snapshot_sensor


def lake_jobs(lake: Lake) -> Iterator[dg.JobDefinition | dg.UnresolvedAssetJobDefinition]:
    """Return what users and the schedules run."""
    yield from pipeline_jobs(lake)  # each pipeline as a whole, and everything
    yield check_job(lake)
    yield maintenance_job(lake)


def lake_schedules(lake: Lake) -> Iterator[dg.ScheduleDefinition]:
    """Return what is done by the clock."""
    yield check_schedule()  # every five minutes
    yield maintenance_schedule()  # compaction and expiry, where they are due
    yield retention_schedule(lake)  # forgets old runs


def lake_sensors(lake: Lake) -> Iterator[dg.SensorDefinition]:
    """Return what is done when something happens."""
    yield snapshot_sensor(lake)  # registers new snapshots, and computes what follows from them
    yield catalog_sensor(lake)  # repairs Glue and Snowflake
    yield alert_sensor(lake.problem)
    if lake.config.deployment == "local":
        yield engine_sensor()
