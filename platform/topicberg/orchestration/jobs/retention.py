"""The job that forgets old runs and events: Dagster keeps every one of them, and its log, for ever.

Runs of checks, of maintenance and those that sensors ask for are many and soon of no interest; so
are the events of snapshots. A run that holds the newest materialization of an asset, or of a
partition of one, stays: it would look as if it had never been materialized.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg

from topicberg.dagster import BACKGROUND
from topicberg.errors import safe
from topicberg.orchestration.checks.adapter import COMPUTATION, REGISTRATION
from topicberg.settings import settings

FORGET = "forget_old_runs"
AT = "41 2 * * *"
BATCH = 200
ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_SOON = {"topicberg/kind": ["checks", "maintenance", "catalogs", REGISTRATION, COMPUTATION]}


@dg.op
def forget(context: dg.OpExecutionContext) -> int:
    """Delete the runs and events that are old enough. Returns how many runs there were."""
    # SQLAlchemy takes a fifth of the time to load the project, which nothing else in it needs.
    from topicberg.dagster.compatibility import degradation

    config, now, instance = settings(), datetime.now(UTC), context.instance
    keep = _newest_materializations(instance)
    forgotten, refused = 0, ""
    for tags, days in ((_SOON, config.keep_check_runs_days), ({}, config.keep_runs_days)):
        for run_id in list(_older(instance, tags, now - timedelta(days=days))):
            if run_id not in keep:
                try:
                    instance.compute_log_manager.delete_logs(prefix=[run_id])
                except Exception as error:  # the store is the deployment's own: S3, or any other
                    refused = str(safe(error))
                instance.delete_run(run_id)
                forgotten += 1
    context.log.info(f"{forgotten:,} runs are forgotten")
    if refused:
        context.log.warning(f"logs of forgotten runs could not be deleted: {refused}")
    try:
        from topicberg.dagster.events import forget_events
    except ImportError as error:
        effect = "events outside of runs and results of checks are kept for ever"
        context.log.warning(degradation(effect, error))
    else:
        before = now - timedelta(days=config.keep_check_runs_days)
        events = forget_events(instance.event_log_storage, before)
        context.log.info(f"{events:,} events outside runs and results of checks are forgotten")
    return forgotten


def _older(
    instance: dg.DagsterInstance, tags: dict[str, list[str]], before: datetime
) -> Iterator[str]:
    cursor: str | None = None
    chosen = dg.RunsFilter(statuses=ENDED, tags=tags, updated_before=before)
    while runs := instance.get_runs(chosen, cursor=cursor, limit=BATCH):
        yield from (run.run_id for run in runs)
        cursor = runs[-1].run_id


def _newest_materializations(instance: dg.DagsterInstance) -> set[str]:
    """The runs that materialized an asset, or a partition of one, last."""
    storage, kind = instance.event_log_storage, dg.DagsterEventType.ASSET_MATERIALIZATION
    runs: set[str] = set()
    for record in instance.get_asset_records():
        if newest := record.asset_entry.last_materialization:
            runs.add(newest.run_id)
        key = record.asset_entry.asset_key
        events = list(storage.get_latest_storage_id_by_partition(key, kind).values())
        for first in range(0, len(events), BATCH):
            chosen = dg.EventRecordsFilter(kind, key, storage_ids=events[first : first + BATCH])
            runs |= {found.run_id for found in storage.get_event_records(chosen)}
    return runs


@dg.job(
    name=FORGET,
    tags={"topicberg/kind": "maintenance", BACKGROUND: "true"},
    description="Deletes runs that are older than TOPICBERG_KEEP_RUNS_DAYS; those of checks, "
    "of maintenance and of sensors, results of checks and the events of snapshots after "
    "TOPICBERG_KEEP_CHECK_RUNS_DAYS. The newest materialization of every asset and partition and "
    "the newest result of every check stay.",
)
def forget_old_runs() -> None:
    forget()


def retention_schedule() -> dg.ScheduleDefinition:
    """Every night."""
    return dg.ScheduleDefinition(
        job=forget_old_runs,
        cron_schedule=AT,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
