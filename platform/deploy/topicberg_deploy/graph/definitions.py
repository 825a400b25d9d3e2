"""What this package adds to the graph: the platform as assets, and the rotation of its keys."""

from __future__ import annotations

import dagster as dg

from topicberg.orchestration import Lake
from topicberg_deploy.graph.assets import platform_assets
from topicberg_deploy.graph.rotation import rotation_schedule


def definitions(lake: Lake) -> dg.Definitions:
    """Return the assets of the platform, and the schedule that rotates its keys."""
    return dg.Definitions(
        assets=platform_assets(lake.config, lake.topics), schedules=[rotation_schedule(lake.config)]
    )
