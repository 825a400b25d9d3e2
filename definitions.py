"""The code location that ``workspace.yaml`` names: the whole platform, put together."""

from __future__ import annotations

import dagster as dg

from assets import assets, checks
from jobs import jobs, schedules, sensors
from resources import RESOURCES
from topicberg.orchestration import Lake, build


def platform(lake: Lake) -> dg.Definitions:
    """What is left out of ``assets`` has no checks, jobs and sensors either."""
    graph = list(assets(lake))
    lake = lake.within(graph)
    return dg.Definitions(
        assets=graph,
        asset_checks=list(checks(lake)),
        jobs=list(jobs(lake)),
        schedules=list(schedules(lake)),
        sensors=list(sensors(lake)),
        resources=RESOURCES,
        # Every run is a process of its own already; a process a step would cost seconds each.
        executor=dg.in_process_executor,
    )


defs = build(platform)
