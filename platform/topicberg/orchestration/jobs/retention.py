"""The job that forgets old runs and events: Dagster keeps every one of them, and its log, for ever.

Runs of checks, of maintenance and those that sensors ask for are many and soon of no interest; so
are the events of snapshots. A run that holds the newest materialization of an asset, or of a
partition of one, stays: it would look as if it had never been materialized.

An instance may have other code locations, and the code location may have other assets: what is not
known to be topicberg's stays.
"""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg

from topicberg.dagster import BACKGROUND, compatibility, executor
from topicberg.dagster.runs import assets_of_run, location_of_run
from topicberg.errors import safe
from topicberg.orchestration.assets.alerts import alerts_key
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.tables import COMPUTATION, KIND, REGISTRATION, kafka_key
from topicberg.orchestration.catalogs.catalog import systems
from topicberg.settings import settings

FORGET, AT = "forget_old_runs", "41 2 * * *"
BATCH = 200
ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_SOON = {KIND: ["checks", "maintenance", "catalogs", REGISTRATION, COMPUTATION]}


def retention_job(assets: Collection[dg.AssetKey]) -> dg.JobDefinition:
    """:param assets: those of topicberg"""

    @dg.op(description="Deletes the runs and events that are old enough.")
    def forget(context: dg.OpExecutionContext) -> int:
        return _forget(context, frozenset(assets))

    @dg.job(
        name=FORGET,
        tags={KIND: "maintenance", BACKGROUND: "true"},
        executor_def=executor.EXECUTOR,
        description="Deletes runs of topicberg that are older than TOPICBERG_KEEP_RUNS_DAYS; those "
        "of checks, of maintenance and of sensors, results of checks and the events of snapshots "
        "after TOPICBERG_KEEP_CHECK_RUNS_DAYS. The newest materialization of every asset and "
        "partition and the newest result of every check stay, and so does what other jobs and "
        "code locations have.",
    )
    def forget_old_runs() -> None:
        forget()

    return forget_old_runs


def _forget(context: dg.OpExecutionContext, keys: frozenset[dg.AssetKey]) -> int:
    """Delete the runs and events that are old enough. Returns how many runs there were."""
    config, now, instance = settings(), datetime.now(UTC), context.instance
    if not hasattr(instance.event_log_storage, "index_connection"):  # its events are in no tables
        refusal = NotImplementedError("it deletes runs and events by its own settings")
        context.log.warning(compatibility.degradation("nothing is forgotten", refusal))
        return 0
    old: dict[str, frozenset[dg.AssetKey]] = {}
    for tags, days in ((_SOON, config.keep_check_runs_days), ({}, config.keep_runs_days)):
        old |= _own_runs(instance, tags, now - timedelta(days=days), context.run, keys)
    keep = _newest_materializations(instance, keys.union(*old.values()))
    forgotten, refused = 0, ""
    for run_id in old.keys() - keep:
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
        # SQLAlchemy takes a fifth of the time to load the project, which nothing else in it needs.
        from topicberg.dagster.events import forget_events

        before = now - timedelta(days=config.keep_check_runs_days)
        events = forget_events(instance.event_log_storage, before, keys)
        context.log.info(f"{events:,} events outside runs and results of checks are forgotten")
    except ImportError as error:
        effect = "events outside of runs and results of checks are kept for ever"
        context.log.warning(compatibility.degradation(effect, error))
    return forgotten


def _own_runs(
    instance: dg.DagsterInstance,
    tags: dict[str, list[str]],
    before: datetime,
    own: dg.DagsterRun,
    keys: frozenset[dg.AssetKey],
) -> dict[str, frozenset[dg.AssetKey]]:
    """Return the runs of topicberg that ended before a time, with the assets that they selected.
    Those of another code location of which all assets are among these are of this one, when it had
    another name."""
    location, runs = location_of_run(own), dict[str, frozenset[dg.AssetKey]]()
    for run in _older(instance, tags, before):
        of_run, is_topicbergs = location_of_run(run), KIND in run.tags
        if of_run not in (location, None) and not is_topicbergs:
            continue
        selected = frozenset(run.asset_selection or ())
        selected |= {check.asset_key for check in run.asset_check_selection or ()}
        is_own = of_run == location and is_topicbergs
        if not (is_own or selected):
            planned = {dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED}
            selected = assets_of_run(instance, run.run_id, planned)
        if is_own or (selected and selected <= keys):
            runs[run.run_id] = selected
    return runs


def _older(
    instance: dg.DagsterInstance, tags: dict[str, list[str]], before: datetime
) -> Iterator[dg.DagsterRun]:
    cursor: str | None = None
    chosen = dg.RunsFilter(statuses=ENDED, tags=tags, updated_before=before)
    while runs := instance.get_runs(chosen, cursor=cursor, limit=BATCH):
        yield from runs
        cursor = runs[-1].run_id


def _newest_materializations(
    instance: dg.DagsterInstance, keys: Collection[dg.AssetKey]
) -> set[str]:
    """Return the runs that materialized one of the assets, or a partition of one, last."""
    storage, kind = instance.event_log_storage, dg.DagsterEventType.ASSET_MATERIALIZATION
    runs: set[str] = set()
    for record in instance.get_asset_records(list(keys)):
        newest, key = record.asset_entry.last_materialization, record.asset_entry.asset_key
        runs |= {newest.run_id} if newest else set()
        events = list(storage.get_latest_storage_id_by_partition(key, kind).values())
        for first in range(0, len(events), BATCH):
            chosen = dg.EventRecordsFilter(kind, key, storage_ids=events[first : first + BATCH])
            runs |= {event.run_id for event in storage.get_event_records(chosen)}
    return runs


def retention_schedule(lake: Lake) -> dg.ScheduleDefinition:
    """Every night."""
    assets = {
        alerts_key(lake.config),
        *(table.key(system) for table in lake.tables for system in systems()),
        *map(kafka_key, lake.topics),
        *(key for added in lake.additions for key in added.resolve_all_asset_keys()),
    }
    return dg.ScheduleDefinition(
        job=retention_job(assets),
        cron_schedule=AT,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
