"""The job that checks every table, and its schedule."""

from __future__ import annotations

import dagster as dg

from topicberg.alerts.observation import CHECKS_REST
from topicberg.dagster import BACKGROUND
from topicberg.dagster.executor import EXECUTOR
from topicberg.orchestration.assets import Lake
from topicberg.orchestration.assets.run_kinds import KIND
from topicberg.orchestration.checks.catalogue import CheckKeys
from topicberg.orchestration.jobs.schedules import PROJECT, schedule_unless_busy

CHECK = "check_tables"


def check_job(lake: Lake) -> dg.UnresolvedAssetJobDefinition:
    """Every check that costs no computation: those of metadata, and the rules of the specs."""
    return dg.define_asset_job(
        CHECK,
        selection=dg.AssetSelection.checks(*CheckKeys(lake).all()),
        executor_def=EXECUTOR,
        description="Checks every table in every catalog: from metadata, manifests and counts. A "
        "check that fails says what is wrong, since when, and how to fix it.",
        tags={
            KIND: "checks",
            PROJECT: lake.config.prefix,
            "dagster/priority": "1",
            "dagster/max_runtime": "1800",
            BACKGROUND: "true",
        },
    )


def check_schedule() -> dg.ScheduleDefinition:
    """Every five minutes, or as often as a tenth of the time allows."""
    return schedule_unless_busy(CHECK, "*/5 * * * *", CHECKS_REST)
