"""The job that checks every table, and its schedule."""

from __future__ import annotations

import dagster as dg

from assets import Lake
from assets.checks import table_checks
from resources import Lakehouse
from topicberg.errors import TopicbergError

CHECK = "check_tables"
UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def check_job(lake: Lake) -> dg.UnresolvedAssetJobDefinition:
    """Every check that costs no computation: those of metadata, and the rules of the specs."""
    keys = [
        dg.AssetCheckKey(table.key(system), check.name)
        for table, system, checks in table_checks(lake)
        for check in checks
    ]
    return dg.define_asset_job(
        CHECK,
        selection=dg.AssetSelection.checks(*keys),
        description="Checks every table in every catalog: from metadata, manifests and counts. A "
        "check that fails says what is wrong, since when, and how to mend it.",
        tags={"topicberg/kind": "checks", "dagster/priority": "1", "dagster/max_runtime": "1800"},
    )


def check_schedule() -> dg.ScheduleDefinition:
    """Every five minutes."""

    @dg.schedule(
        name=f"{CHECK}_schedule",
        job_name=CHECK,
        cron_schedule="*/5 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def schedule(
        context: dg.ScheduleEvaluationContext, lakehouse: Lakehouse
    ) -> dg.RunRequest | dg.SkipReason:
        return request_unless_busy(context, lakehouse, CHECK)

    return schedule


def request_unless_busy(
    context: dg.ScheduleEvaluationContext, lakehouse: Lakehouse, job: str
) -> dg.RunRequest | dg.SkipReason:
    """A run of the job, if the deployment is there and the last run has ended."""
    try:
        lakehouse.peek()
    except TopicbergError as error:
        return dg.SkipReason(str(error))
    runs = context.instance.get_runs(dg.RunsFilter(job_name=job, statuses=UNFINISHED), limit=1)
    if runs:
        return dg.SkipReason(f"run {runs[0].run_id} is still under way")
    return dg.RunRequest()
