"""What runs the graph: jobs, schedules and sensors."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from topicberg.orchestration import (
    Lake,
    alert_sensor,
    catalog_sensor,
    check_job,
    check_schedule,
    engine_sensor,
    maintenance_job,
    maintenance_schedule,
    pipeline_jobs,
    retention_schedule,
    rotation_schedule,
    snapshot_sensor,
)


def jobs(lake: Lake) -> Iterator[dg.JobDefinition | dg.UnresolvedAssetJobDefinition]:
    """To run by hand, and by the schedules."""
    yield from pipeline_jobs(lake)  # each pipeline as a whole, and everything
    yield check_job(lake)
    yield maintenance_job(lake)


def schedules(lake: Lake) -> Iterator[dg.ScheduleDefinition]:
    """What is done by the clock."""
    yield check_schedule()  # every five minutes
    yield maintenance_schedule()  # compaction and expiry, where they are due
    yield retention_schedule(lake)  # forgets old runs
    yield rotation_schedule(lake.config)  # of keys


def sensors(lake: Lake) -> Iterator[dg.SensorDefinition]:
    """What is done when something happens."""
    yield snapshot_sensor(lake)  # registers new snapshots, and computes what follows from them
    yield catalog_sensor(lake)  # repairs Glue and Snowflake
    yield alert_sensor(lake.problem)
    if lake.config.deployment == "local":
        yield engine_sensor()
