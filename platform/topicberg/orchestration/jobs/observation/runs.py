"""The runs: those that ended, that wait and that are in progress; and what requests them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster_shared.error import SerializableErrorInfo

from topicberg.alerts import observation
from topicberg.alerts.alert import AlertState
from topicberg.dagster.runs import (
    assets_of_run,
    frozen_process,
    loading_process,
    location_of_automation,
    location_of_run,
    location_tags,
    partitions_of_run,
    run_kind,
)
from topicberg.endpoints import is_stopped
from topicberg.orchestration.assets.partitions import SCATTERED, requested_ranges
from topicberg.orchestration.assets.tables import COMPUTATION, KIND
from topicberg.orchestration.jobs import table_jobs, watches
from topicberg.orchestration.jobs.schedules import duration, schedule_name
from topicberg.settings import Settings

MAX_ACTIVE = 50  # Runs in progress that are looked at, the oldest first.
MAX_RUNS = 200  # How many ended runs one tick reads; the next tick continues there.
MAX_LEFT = 50  # Partitions that a failed run has left, of which an alert remembers each.
UNLOADED_SECONDS = 600
"""After so long without a tick of its snapshot sensor, a code location counts as removed: Dagster
remembers the sensors of those that were renamed."""
DEFAULT_INTERVAL_SECONDS = 30  # Dagster's, of a sensor that has none.
_TICKS = 10  # How many ticks are read to find the last one that ended: few can be in progress.
EVERYTHING_BEFORE = "0"  # Begins the range of the first partition: sorts before all keys.
_KILLED = " was terminated by signal "  # Dagster's text.
_SCHEDULE = schedule_name(table_jobs.CHECK)
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
) -> tuple[list[observation.EndedRun], float]:
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
    runs: list[observation.EndedRun] = []
    for record in (r for r in records if _is_own(instance, repository, location, r.dagster_run)):
        unresolved |= record.dagster_run.status == dg.DagsterRunStatus.FAILURE
        if unresolved:  # else it succeeded, and its events need not be read
            runs.append(_ended_run(instance, repository, record, now))
    return runs, max((each.update_timestamp.timestamp() for each in records), default=began)


def materialized_at(instance: dg.DagsterInstance, state: AlertState) -> dict[str, datetime]:
    """Return when the assets that failed runs have left were materialized last."""
    names = {asset for work in state.pending if not work.partitions for asset in work.assets}
    keys = [dg.AssetKey.from_user_string(name) for name in sorted(names)]
    entries = (record.asset_entry for record in instance.get_asset_records(keys)) if keys else ()
    return {
        entry.asset_key.to_user_string(): datetime.fromtimestamp(
            entry.last_materialization.timestamp, UTC
        )
        for entry in entries
        if entry.last_materialization is not None
    }


def check_runs(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    config: Settings,
    location: str | None,
) -> observation.CheckRuns:
    """Return when the checks were evaluated last, and whether they should be."""
    ended = dg.RunsFilter(
        job_name=table_jobs.CHECK, tags=location_tags(location), statuses=_ENDED_RUNS
    )
    newest = next(iter(instance.get_run_records(ended, limit=1)), None)
    return observation.CheckRuns(
        job=table_jobs.CHECK,
        schedule=_SCHEDULE,
        scheduled=repository.has_schedule_def(_SCHEDULE),
        stack_stopped=is_stopped(config),
        ended_at=newest.update_timestamp if newest else None,
        took=duration(newest) if newest else timedelta(),
    )


def queued_runs(
    instance: dg.DagsterInstance, location: str | None
) -> observation.QueuedRuns | None:
    """Return the runs of the code location that wait in the queue; None: there are none."""
    queued = dg.RunsFilter(tags=location_tags(location), statuses=[dg.DagsterRunStatus.QUEUED])
    for oldest in instance.get_run_records(queued, limit=1, ascending=True):
        run, count = oldest.dagster_run, instance.get_runs_count(queued)
        return observation.QueuedRuns(count, run.run_id, run_kind(run), oldest.create_timestamp)
    return None


def active_runs(instance: dg.DagsterInstance) -> Iterator[observation.ActiveRun]:
    """Yield the oldest runs in progress, of every code location: they share the slots."""
    active = dg.RunsFilter(statuses=_ACTIVE_RUNS)
    for record in instance.get_run_records(active, limit=MAX_ACTIVE, ascending=True):
        run, began = record.dagster_run, record.start_time
        yield observation.ActiveRun(
            id=run.run_id,
            kind=run_kind(run),
            since=datetime.fromtimestamp(began, UTC) if began else record.create_timestamp,
            assets=tuple(sorted(key.to_user_string() for key in run.asset_selection or ())),
            frozen=frozen_process(instance, run),
            loading=loading_process(instance, run),
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
) -> observation.EndedRun:
    run, kinds = record.dagster_run, dg.DagsterEventType
    succeeded = run.status == dg.DagsterRunStatus.SUCCESS
    planned = _assets_of(instance, run, {kinds.ASSET_MATERIALIZATION_PLANNED})
    materialized, partitions = planned, _covered(repository, run, planned)
    left = partitions
    if not succeeded:
        events = {kinds.ASSET_MATERIALIZATION, kinds.ASSET_OBSERVATION}
        steps = {event.step_key for event in _events(instance, run.run_id, kinds.STEP_FAILURE)}
        # A step that failed has materialized some of its partitions at most.
        failed = {asset for asset in planned if asset.replace("/", "__") in steps}
        materialized = planned & _assets_of(instance, run, events) - failed
        left = _left(instance, run, planned - materialized, partitions)
    ended, errors = record.end_time, () if succeeded else tuple(_errors(instance, run.run_id))
    return observation.EndedRun(
        id=run.run_id,
        kind=run_kind(run),
        succeeded=succeeded,
        retried=run.tags.get("dagster/will_retry") == "true" or _is_requested_again(run, errors),
        ended_at=datetime.fromtimestamp(ended, UTC) if ended else now,
        planned=planned,
        materialized=materialized,
        partitions=partitions,
        left=left,
        errors=errors,
    )


def _is_requested_again(run: dg.DagsterRun, errors: tuple[observation.StepError, ...]) -> bool:
    """Return whether a process was killed, at the first attempt to compute tables: the sensor that
    requested the run does not take that for a fault of these."""
    is_killed = any(_KILLED in text for error in errors for text in error.chain[:1])
    is_first = run.parent_run_id is None and run.tags.get(watches.ATTEMPT) == "0"
    return is_killed and is_first and run.tags.get(KIND) == COMPUTATION


def _left(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    assets: frozenset[str],
    partitions: tuple[tuple[str, str], ...],
) -> tuple[tuple[str, str], ...]:
    """Return the partitions that a failed run has left of these assets; all of its own if many."""
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
    """Return first and last partition of each range of a run, as keys that sort as text. The first
    one has everything before it, also what was one when its spec had an earlier start."""
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
    return frozenset(key.to_user_string() for key in assets_of_run(instance, run.run_id, events))


def _errors(instance: dg.DagsterInstance, run_id: str) -> Iterator[observation.StepError]:
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
            yield observation.StepError((f"dagster.RunFailure: {event.message}",))


def _events(
    instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType
) -> list[dg.DagsterEvent]:
    records = instance.get_records_for_run(run_id, of_type=kind, limit=20).records
    events = (record.event_log_entry.dagster_event for record in records)
    return [event for event in events if event is not None]


def step_error(error: SerializableErrorInfo) -> observation.StepError:
    """Return the messages of an error and of its causes."""
    chain, each = [error.message], error.cause
    while each:
        chain.append(each.message)
        each = each.cause
    return observation.StepError(
        tuple(chain), of_blocking_check=error.cls_name == "DagsterAssetCheckFailedError"
    )


def automations(
    instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, location: str | None
) -> Iterator[observation.Automation]:
    """Yield sensors and schedules; Dagster also stores those of topics that are deleted."""
    sensors = {each.name: each for each in repository.sensor_defs}
    schedules = {each.name: each for each in repository.schedule_defs}
    definition: dg.SensorDefinition | dg.ScheduleDefinition | None
    for state in instance.all_instigator_state():
        is_schedule, name = state.instigator_type.value == "SCHEDULE", state.instigator_name
        definition = schedules.get(name) if is_schedule else sensors.get(name)
        if definition is None or location not in (None, location_of_automation(state)):
            continue
        ticks = instance.get_ticks(
            state.instigator_origin_id, state.selector_id, limit=_TICKS if state.is_running else 1
        )
        ended = (tick for tick in ticks if tick.status.value != "STARTED" and state.is_running)
        last = next(ended, None)
        failed = last if last and last.status.value == "FAILURE" else None
        yield observation.Automation(
            name=name,
            kind="schedule" if is_schedule else "sensor",
            running=state.is_running,
            is_on_by_default=definition.default_status.value == "RUNNING",
            ticked_at=datetime.fromtimestamp(ticks[0].timestamp, UTC) if ticks else None,
            interval=timedelta(
                seconds=definition.minimum_interval_seconds or DEFAULT_INTERVAL_SECONDS
            )
            if isinstance(definition, dg.SensorDefinition)
            else None,
            in_progress=bool(ticks) and ticks[0].status.value == "STARTED",
            failed_at=datetime.fromtimestamp(failed.timestamp, UTC) if failed else None,
            error=step_error(last.error) if last and last.error else None,
            skip_reason=last.skip_reason if last else None,
        )


def shared_tables(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    location: str | None,
    now: datetime,
) -> Iterator[observation.SharedTables]:
    """Yield what the snapshot sensors of other code locations watch as well."""
    own = {
        key.path[1]: key.to_user_string()
        for key in repository.asset_graph.get_all_asset_keys()
        if key.path[0] == "iceberg" and len(key.path) == 2
    }
    for state in instance.all_instigator_state():
        other = location_of_automation(state)
        if location in (None, other) or state.instigator_name != watches.SENSOR:
            continue
        ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
        if not ticks or now.timestamp() - ticks[0].timestamp > UNLOADED_SECONDS:
            continue
        if names := watches.Cursor.parse(getattr(state.instigator_data, "cursor", None)).states(
            own
        ):
            yield observation.SharedTables(other, tuple(sorted(own[name] for name in names)))
