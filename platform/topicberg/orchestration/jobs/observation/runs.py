"""The runs: those that ended, that wait and that are in progress, and those of the checks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from topicberg.alerts.observation import ActiveRun, CheckRuns, EndedRun, QueuedRuns, StepError
from topicberg.dagster.locations import location_of_run, location_tags
from topicberg.dagster.run_assets import assets_of_run, partitions_of_run, run_kind
from topicberg.dagster.run_process import frozen_process
from topicberg.endpoints import runtime_file
from topicberg.orchestration.assets.partitions import SCATTERED, requested_ranges
from topicberg.orchestration.jobs.checks import CHECK
from topicberg.orchestration.jobs.schedules import duration, schedule_name
from topicberg.settings import Settings

if TYPE_CHECKING:
    from dagster_shared.error import SerializableErrorInfo

    from topicberg.alerts.alert import AlertState

MAX_ACTIVE = 50
"""Runs in progress that are looked at, the oldest first."""
MAX_RUNS = 200
"""How many ended runs one tick reads; the next tick continues there."""
MAX_LEFT = 50
"""Partitions that a failed run has left, of which an alert remembers each."""
EVERYTHING_BEFORE = "0"
"""Begins the range of a run that computes the first partition: sorts before all keys."""
_SCHEDULE = schedule_name(CHECK)
_BLOCKED = "DagsterAssetCheckFailedError"
_ACTIVE_RUNS = [
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_ENDED_RUNS = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]


def ended_runs(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    location: str | None,
    state: AlertState,
    now: datetime,
) -> tuple[list[EndedRun], float]:
    """Return the runs that ended since the last evaluation, and until when they were read."""
    # Runs that end in the future are of a clock that was wrong: those of now are not to be missed.
    began = min(state.runs_until or now.timestamp(), now.timestamp())
    records = instance.get_run_records(
        dg.RunsFilter(
            statuses=_ENDED_RUNS,
            updated_after=datetime.fromtimestamp(began, UTC),
            updated_before=now,
        ),
        limit=MAX_RUNS,
        order_by="update_timestamp",
        ascending=True,
    )
    unresolved = bool(state.pending) or any(key.startswith("run ") for key in state.alerts)
    runs: list[EndedRun] = []
    for record in records:
        if not _is_own(instance, repository, location, record.dagster_run):
            continue
        unresolved |= record.dagster_run.status == dg.DagsterRunStatus.FAILURE
        if unresolved:  # else it succeeded, and its events need not be read
            runs.append(_ended_run(instance, repository, record, now))
    until = max((each.update_timestamp.timestamp() for each in records), default=began)
    return runs, until


def materialized_at(instance: dg.DagsterInstance, state: AlertState) -> dict[str, datetime]:
    """Return when the assets that failed runs have left were materialized last."""
    names = {asset for work in state.pending if not work.partitions for asset in work.assets}
    keys = [dg.AssetKey.from_user_string(name) for name in sorted(names)]
    times: dict[str, datetime] = {}
    for record in instance.get_asset_records(keys) if keys else ():
        if (last := record.asset_entry.last_materialization) is not None:
            name = record.asset_entry.asset_key.to_user_string()
            times[name] = datetime.fromtimestamp(last.timestamp, UTC)
    return times


def check_runs(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    config: Settings,
    location: str | None,
) -> CheckRuns:
    """Return when the checks were evaluated last, and whether they should be."""
    tags = location_tags(location)
    ended = dg.RunsFilter(job_name=CHECK, tags=tags, statuses=_ENDED_RUNS)
    newest = next(iter(instance.get_run_records(ended, limit=1)), None)
    return CheckRuns(
        job=CHECK,
        schedule=_SCHEDULE,
        scheduled=repository.has_schedule_def(_SCHEDULE),
        stack_stopped=config.deployment == "local" and not runtime_file(config).exists(),
        ended_at=newest.update_timestamp if newest else None,
        took=duration(newest) if newest else timedelta(),
    )


def queued_runs(instance: dg.DagsterInstance, location: str | None) -> QueuedRuns | None:
    """Return the runs of the code location that wait in the queue; None: there are none."""
    tags = location_tags(location)
    queued = dg.RunsFilter(tags=tags, statuses=[dg.DagsterRunStatus.QUEUED])
    oldest = instance.get_run_records(queued, limit=1, ascending=True)
    if not oldest:
        return None
    run = oldest[0].dagster_run
    return QueuedRuns(
        count=instance.get_runs_count(queued),
        oldest=run.run_id,
        oldest_kind=run_kind(run),
        since=oldest[0].create_timestamp,
    )


def active_runs(instance: dg.DagsterInstance) -> Iterator[ActiveRun]:
    """Yield the oldest runs in progress, of every code location: they share the slots."""
    records = instance.get_run_records(
        dg.RunsFilter(statuses=_ACTIVE_RUNS), limit=MAX_ACTIVE, ascending=True
    )
    for record in records:
        run, began = record.dagster_run, record.start_time
        yield ActiveRun(
            id=run.run_id,
            kind=run_kind(run),
            since=datetime.fromtimestamp(began, UTC) if began else record.create_timestamp,
            assets=tuple(sorted(key.to_user_string() for key in run.asset_selection or ())),
            frozen=frozen_process(instance, run),
        )


def _is_own(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    location: str | None,
    run: dg.DagsterRun,
) -> bool:
    """Return whether a run is of the code location, or of a command that has run its assets."""
    run_location = location_of_run(run)
    if run_location is None and location is not None:
        planned = _assets_of(instance, run, {dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED})
        own = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
        return bool(planned) and planned <= own
    return location in (None, run_location)


def _ended_run(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    record: dg.RunRecord,
    now: datetime,
) -> EndedRun:
    run, kinds = record.dagster_run, dg.DagsterEventType
    succeeded = run.status == dg.DagsterRunStatus.SUCCESS
    planned = _assets_of(instance, run, {kinds.ASSET_MATERIALIZATION_PLANNED})
    materialized, partitions = planned, _covered(repository, run, planned)
    left = partitions
    if not succeeded:
        events = {kinds.ASSET_MATERIALIZATION, kinds.ASSET_OBSERVATION}
        failures = _events(instance, run.run_id, kinds.STEP_FAILURE)
        # A step that failed has materialized some of its partitions at most.
        failed = {
            asset
            for asset in planned
            if asset.replace("/", "__") in {event.step_key for event in failures}
        }
        materialized = planned & _assets_of(instance, run, events) - failed
        left = _left(instance, run, planned - materialized, partitions)
    ended = record.end_time
    return EndedRun(
        id=run.run_id,
        kind=run_kind(run),
        succeeded=succeeded,
        retried=run.tags.get("dagster/will_retry") == "true",
        ended_at=datetime.fromtimestamp(ended, UTC) if ended else now,
        planned=planned,
        materialized=materialized,
        partitions=partitions,
        left=left,
        errors=() if succeeded else tuple(_errors(instance, run.run_id)),
    )


def _left(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    assets: frozenset[str],
    partitions: tuple[tuple[str, str], ...],
) -> tuple[tuple[str, str], ...]:
    """Return the partitions of a failed run that it has not materialized, if they are few.

    :param assets: those that it has left
    :param partitions: all that it has
    """
    kinds, is_scattered = dg.DagsterEventType, SCATTERED in run.tags
    planned = partitions_of_run(instance, run.run_id, {kinds.ASSET_MATERIALIZATION_PLANNED})
    done = partitions_of_run(instance, run.run_id, {kinds.ASSET_MATERIALIZATION})
    single = {first for first, last in partitions if first == last}
    left = set[tuple[str, str]](each for each in partitions if is_scattered and each[0] != each[1])
    for key, keys in planned.items():
        if key.to_user_string() in assets and None not in keys:
            wanted = single if is_scattered else keys
            left |= {(each, each) for each in wanted - done.get(key, set()) if each}
    return tuple(sorted(left)) if 0 < len(left) <= MAX_LEFT else partitions


def _covered(
    repository: dg.RepositoryDefinition, run: dg.DagsterRun, assets: frozenset[str]
) -> tuple[tuple[str, str], ...]:
    """Return the partitions of a run: first and last of each range, as keys that sort as text.

    The first partition of a table has everything before it, also the partitions that the table
    had before ``derived_partitions.start`` became later.
    """
    ranges = requested_ranges(run.tags)
    graph = repository.asset_graph
    keys = map(dg.AssetKey.from_user_string, assets if ranges else ())
    kinds = (graph.get(key).partitions_def for key in keys if graph.has(key))
    times = (each for each in kinds if isinstance(each, dg.TimeWindowPartitionsDefinition))
    begins = {each.start.strftime(each.fmt) for each in times}
    return tuple((EVERYTHING_BEFORE if key in begins else key, last) for key, last in ranges)


def _assets_of(
    instance: dg.DagsterInstance, run: dg.DagsterRun, events: set[dg.DagsterEventType]
) -> frozenset[str]:
    keys = assets_of_run(instance, run.run_id, events)
    return frozenset(key.to_user_string() for key in keys)


def _errors(instance: dg.DagsterInstance, run_id: str) -> Iterator[StepError]:
    """Yield the errors of a run's steps; if there are none, why the run failed."""
    steps = [
        step_error(event.step_failure_data.error)
        for event in _events(instance, run_id, dg.DagsterEventType.STEP_FAILURE)
        if event.step_failure_data.error
    ]
    yield from steps
    for event in () if steps else _events(instance, run_id, dg.DagsterEventType.RUN_FAILURE):
        error = event.job_failure_data.error if event.event_specific_data else None
        if error is not None:
            yield step_error(error)
        elif event.message:
            yield StepError((f"dagster.RunFailure: {event.message}",))


def _events(
    instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType
) -> list[dg.DagsterEvent]:
    records = instance.get_records_for_run(run_id, of_type=kind, limit=20).records
    events = (record.event_log_entry.dagster_event for record in records)
    return [event for event in events if event is not None]


def step_error(error: SerializableErrorInfo) -> StepError:
    """Return the messages of an error and of its causes."""
    chain, each = [error.message], error.cause
    while each:
        chain.append(each.message)
        each = each.cause
    return StepError(tuple(chain), of_blocking_check=error.cls_name == _BLOCKED)
