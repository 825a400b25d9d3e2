"""What runs the graph: jobs, schedules and sensors; what is added here, the graph has as well."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from topicberg.orchestration import Lake, lake_jobs, lake_schedules, lake_sensors


def jobs(lake: Lake) -> Iterator[dg.JobDefinition | dg.UnresolvedAssetJobDefinition]:
    """What users and the schedules run."""
    yield from lake_jobs(lake)


def schedules(lake: Lake) -> Iterator[dg.ScheduleDefinition]:
    """What is done by the clock."""
    yield from lake_schedules(lake)


def sensors(lake: Lake) -> Iterator[dg.SensorDefinition]:
    """What is done when something happens."""
    yield from lake_sensors(lake)
