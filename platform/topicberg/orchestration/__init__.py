"""The asset graph of a project: factories of assets, checks, jobs, sensors and resources.

:func:`definitions` puts all of them together; a project that wants to choose calls them by name, as
``assets/``, ``jobs/`` and ``resources/`` of topicberg's own repository do, inside :func:`build`.
"""

from __future__ import annotations

from topicberg.orchestration.assets import (
    Lake,
    alerts_asset,
    derived_assets,
    published_assets,
    topic_assets,
)
from topicberg.orchestration.assets.platform import platform_assets
from topicberg.orchestration.checks.adapter import lake_checks as table_checks
from topicberg.orchestration.jobs import (
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
from topicberg.orchestration.loading import build, definitions
from topicberg.orchestration.resources import Lakehouse, Snowflake, Spark

__all__ = [
    "Lake",
    "Lakehouse",
    "Snowflake",
    "Spark",
    "alert_sensor",
    "alerts_asset",
    "build",
    "catalog_sensor",
    "check_job",
    "check_schedule",
    "definitions",
    "derived_assets",
    "engine_sensor",
    "maintenance_job",
    "maintenance_schedule",
    "pipeline_jobs",
    "platform_assets",
    "published_assets",
    "retention_schedule",
    "rotation_schedule",
    "snapshot_sensor",
    "table_checks",
    "topic_assets",
]
