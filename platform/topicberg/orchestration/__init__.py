"""The asset graph of a project: factories of assets, checks, jobs, sensors and resources.

:func:`definitions` puts all of them together; a project that wants to choose, or to add, calls them
by name, as ``assets/``, ``jobs/`` and ``resources/`` of topicberg's own repository do, inside
:func:`build`.
"""

from __future__ import annotations

from topicberg.orchestration.assets import Lake, lake_assets
from topicberg.orchestration.checks.adapter import lake_checks
from topicberg.orchestration.jobs import lake_jobs, lake_schedules, lake_sensors
from topicberg.orchestration.loading import build, definitions
from topicberg.orchestration.resources import Lakehouse, Snowflake, Spark

__all__ = [
    "Lake",
    "Lakehouse",
    "Snowflake",
    "Spark",
    "build",
    "definitions",
    "lake_assets",
    "lake_checks",
    "lake_jobs",
    "lake_schedules",
    "lake_sensors",
]
