"""Sensors on snapshots: what a new snapshot of a table touched is computed again downstream.

One sensor a topic reports every snapshot of its table, and requests two runs: one that registers
the table, and one for the affected partitions of everything that follows from them alone. A derived
table with a lookback follows from more: it has a sensor of its own on its source, which also
requests the partitions after those that were touched, as far as the lookback reaches. So has one
with a lookup, for everything after them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
from dagster import AssetMaterialization, AssetObservation, DagsterRunStatus
from pyiceberg.exceptions import NoSuchTableError

from assets.checks import COMPUTATION, REGISTRATION, CheckKeys
from assets.derived import DerivedTable, derivation
from assets.lake import Lake, Origin
from assets.metadata import (
    column_schema,
    commit_lag_metadata,
    skipped_metadata,
    snapshot_metadata,
)
from assets.partitions import (
    RANGE_END,
    RANGE_START,
    Span,
    TimePartitions,
    spans,
    time_partitions,
)
from assets.tables import CATALOGS, kafka_key
from assets.topics import consumer_lag_metadata, kafka_data_version, kafka_metadata
from jobs.schedules import skip_if_unavailable
from jobs.snapshot_cursor import (
    ANY_TABLE,
    MAX_ATTEMPTS,
    MAX_RANGES,
    Cursor,
    Request,
    RunState,
    observe,
    observe_metadata,
    recall,
    register,
    request,
    settle,
)
from resources import Lakehouse
from topicberg import kafka
from topicberg.catalogs.glue import registered_state
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.iceberg.changes import Mark, expired_changes
from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.iceberg.snapshots import affected_hours, changes_since, held_hours, report
from topicberg.settings import Settings
from topicberg.tableflow.wait import held_offsets
from topicberg.transforms.derived import Derivation
from topicberg.transforms.unread import SourceTable, unread
from topicberg.transforms.windows import FOREVER, reached

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

INTERVAL_SECONDS, LOOKING_BACK_SECONDS = 5, 60
"""A tick costs Dagster some 50 ms, whatever it finds. Who waits for a topic's table waits for the
first; the second is for what is computed beyond the touched hours.
"""
BATCH = 200
"""Snapshots that one tick reports at most; the next tick goes on."""
BATCH_SECONDS = 20.0
"""So does one that takes longer. Dagster gives a tick a minute, and then keeps nothing of it."""
_FINISHED: dict[DagsterRunStatus, RunState] = {
    DagsterRunStatus.SUCCESS: "succeeded",
    DagsterRunStatus.FAILURE: "failed",
    DagsterRunStatus.CANCELED: "failed",
    DagsterRunStatus.NOT_STARTED: "missing",
}


@dataclass(frozen=True)
class Watch:
    """A table whose snapshots are watched, and what is requested when they touch partitions."""

    name: str
    origin: Origin
    registrations: tuple[dg.AssetKey, ...]
    """Unpartitioned assets, requested after every snapshot, in a run of their own: catalogs do not
    wait for computations."""
    derived: tuple[dg.AssetKey, ...]
    partitions: TimePartitions | None = None
    """Those of what is derived."""
    registration_checks: tuple[dg.AssetCheckKey, ...] = ()
    derived_checks: tuple[dg.AssetCheckKey, ...] = ()
    """Checks of the run; a blocking one that fails stops what is downstream of it."""
    reach: timedelta = timedelta()
    """How far beyond a touched hour partitions are requested."""
    reported: bool = True
    """Its snapshots become materializations: nothing else reports those of a topic's table."""
    plans: tuple[Derivation, ...] = ()
    """How the tables that are computed come from their sources."""

    def first_hour(self, now: datetime) -> int:
        """Return the first hour that may be computed again."""
        return max((plan.first_hour(now) for plan in self.plans), default=BEFORE_EVERYTHING)


def watches(lake: Lake) -> Iterator[Watch]:
    """What there is to watch: every topic's table, and the sources of tables with a lookback."""
    checks = CheckKeys(lake)

    def of_computation(source: str, tables: Iterable[DerivedTable]) -> tuple[dg.AssetCheckKey, ...]:
        """What is wrong with the source keeps the tables from being computed."""
        names = [table.name for table in tables]
        return (*(checks.blocking(source) if names else ()), *checks.of_runs(names))

    for table in lake.tables:
        if not table.has_snapshot_sensor or table.source is None:
            continue
        downstream = lake.downstream(table.source)
        if not table.reported and not downstream:
            continue
        registered = [
            each
            for each in lake.tables
            if table.reported and each.requested_with_topic and each.root.name == table.root.name
        ]
        yield Watch(
            name=f"{table.name}_snapshots",
            origin=lake.origin(table.source),
            registrations=tuple(
                each.key(system) for each in registered for system in each.requested_with_topic
            ),
            derived=_assets(lake, downstream),
            registration_checks=tuple(checks.of_runs([each.name for each in registered])),
            derived_checks=of_computation(table.name, downstream),
            partitions=time_partitions(table.root) if downstream else None,
            reported=table.reported,
            plans=tuple(derivation(each, lake) for each in downstream),
        )
    for derived in lake.derived:
        root = lake.root(derived)
        reach = derived.lookback_of(root)
        back = {source: ("lookback", reach) for source in derived.sources if reach}
        # A row of a lookup may count for any time: all that came after it.
        back |= dict.fromkeys(derived.lookups, ("lookup", FOREVER))
        for source, (why, reach) in back.items():
            downstream = [derived, *lake.downstream(derived.name)]
            several = f"_of_{source}" if len(back) > 1 else ""
            yield Watch(
                name=re.sub(r"[.-]", "_", f"{derived.name}_{why}{several}"),
                origin=lake.origin(source),
                registrations=(),
                derived=_assets(lake, downstream),
                derived_checks=of_computation(lake.origin(source).table.name, downstream),
                partitions=time_partitions(root),
                reach=reach or timedelta(),
                reported=False,
                plans=tuple(derivation(each, lake) for each in downstream),
            )


def _assets(lake: Lake, tables: Iterable[DerivedTable]) -> tuple[dg.AssetKey, ...]:
    """What is computed from a change: the tables in every catalog, and their topics."""
    keys: list[dg.AssetKey] = []
    for derived in tables:
        keys += [lake.table(derived).key(system) for system in CATALOGS]
        keys += [kafka_key(spec) for spec in lake.published(derived)]
    return tuple(keys)


def snapshot_sensors(lake: Lake) -> Iterator[dg.SensorDefinition]:
    for watch in watches(lake):
        yield _sensor(watch, lake.config)


def _sensor(watch: Watch, config: Settings) -> dg.SensorDefinition:
    table = watch.origin.table
    name = ".".join(table.identifier)
    requests = ["one that registers it"] if watch.registrations else []
    requests += ["one for the partitions that new snapshots touched"] if watch.derived else []
    reports = "Reports every snapshot of it as a materialization. " if watch.reported else ""

    @dg.sensor(
        name=watch.name,
        target=dg.AssetSelection.assets(*watch.registrations, *watch.derived)
        | dg.AssetSelection.checks(*watch.registration_checks, *watch.derived_checks),
        minimum_interval_seconds=INTERVAL_SECONDS if watch.reported else LOOKING_BACK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Watches `{name}`. {reports}Requests runs: {', '.join(requests)}.",
    )
    @skip_if_unavailable
    def snapshots(
        context: dg.SensorEvaluationContext, lakehouse: Lakehouse
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            endpoints = lakehouse.peek()
            catalog = endpoints.catalog(config)
            iceberg = catalog.load_table(table.identifier)
        except NoSuchTableError:
            return dg.SkipReason(f"{name} does not exist yet")
        except (TopicbergError, OSError) as error:
            return dg.SkipReason(str(error))
        before = Cursor.parse(context.cursor)
        states = _run_states(context.instance, before)
        found = advance(before, states, iceberg, watch, catalog)
        events = found.events
        if events and (observation := _kafka_observation(context, watch, endpoints, iceberg)):
            events.append(observation)
        if found.cursor == before:
            return dg.SkipReason(_idle(found.cursor))
        return dg.SensorResult(
            run_requests=[
                *(_registrations(found.registration, watch) if found.registration else ()),
                *(_computations(found.computation, found.runs, watch) if found.computation else ()),
            ],
            asset_events=events,
            cursor=found.cursor.model_dump_json(),
        )

    return snapshots


@dataclass(frozen=True)
class Tick:
    """What comes of a tick; ``runs``: those of the computation, in the order of its keys."""

    cursor: Cursor
    events: list[AssetMaterialization | AssetObservation]
    registration: Request | None
    computation: Request | None
    runs: list[Span]


def advance(
    before: Cursor, states: Mapping[str, RunState], iceberg: Table, watch: Watch, catalog: Catalog
) -> Tick:
    """Do a tick, but for what concerns Dagster.

    :param states: of the runs that were requested, by their keys
    """
    cursor, events = settle(before, states), list[AssetMaterialization | AssetObservation]()
    computed = before.request is not None and cursor.request is None and not cursor.failures
    if cursor.registration is None:  # else its checks would tell of an older snapshot
        cursor, events = _look(cursor, iceberg, watch, catalog)
        if watch.registrations:
            location = iceberg.metadata_location
            cursor = observe_metadata(cursor, before, location, registered_state(iceberg))
        else:
            cursor = cursor.model_copy(update={"dirty": False})
    if computed:
        cursor = recall(cursor, _unread_hours(cursor, watch, catalog))
    now = datetime.now(UTC)

    def plan(hours: list[Hours]) -> tuple[list[Span], list[Hours]]:
        if watch.partitions is None:
            return [], []
        return spans(watch.partitions, hours, now, MAX_RANGES, watch.first_hour(now))

    cursor, computation, runs = request(cursor, plan, watch.name)
    cursor, registration = register(cursor, watch.name)
    return Tick(cursor, events, registration, computation, runs)


def _look(
    cursor: Cursor, iceberg: Table, watch: Watch, catalog: Catalog
) -> tuple[Cursor, list[AssetMaterialization | AssetObservation]]:
    """Take note of everything that happened to ``main`` since the cursor."""
    begun, uuid = time.monotonic(), iceberg.metadata.table_uuid.hex

    def touched(snapshot: Snapshot) -> Iterator[Hours]:
        if watch.derived:
            for hours in affected_hours(iceberg, snapshot, watch.origin.time):
                yield reached(hours, watch.reach, datetime.now(UTC))

    seen = cursor.seen
    if seen and seen.table in (uuid, ANY_TABLE):
        changes = changes_since(iceberg, seen.snapshot)
        unknown, new = changes.gap, [s for s in changes.new if _number(s) > seen.sequence]
    else:
        changes = changes_since(iceberg, None)
        unknown, new = True, changes.new
    if unknown:
        cursor = _observe_expired(cursor, iceberg, watch, catalog)
    elif changes.rolled_back:  # a rollback: what it removed must be computed again
        removed = [hours for snapshot in changes.rolled_back for hours in touched(snapshot)]
        cursor = observe(cursor, Mark.of(iceberg, iceberg.current_snapshot()), removed)
    events: list[AssetMaterialization | AssetObservation] = []
    for snapshot in new[:BATCH]:
        if watch.reported:
            gap = unknown and not events
            events.append(_materialization(watch.origin, iceberg, snapshot, gap=gap))
        hours = touched(snapshot) if _number(snapshot) > cursor.ahead else ()
        cursor = observe(cursor, Mark.of(iceberg, snapshot), hours)
        if time.monotonic() - begun > BATCH_SECONDS:
            break
    return cursor, events


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _observe_expired(cursor: Cursor, iceberg: Table, watch: Watch, catalog: Catalog) -> Cursor:
    """Take note of what snapshots may have changed that are expired, or that the cursor has lost.

    Where rows may be removed of any hour, that is every hour of which something is left: here, in
    the tables that are computed, or in their other sources.
    """
    head, hours = iceberg.current_snapshot(), list[Hours]()
    seen = Mark.of(iceberg, head)
    if watch.derived:
        now = datetime.now(UTC)
        expired = expired_changes(iceberg, watch.origin.time, cursor.seen)
        hours += (reached(change.hours, watch.reach, now) for change in expired.changes)
        if expired.everything:
            for plan in watch.plans:
                for table, column in _tables(plan, catalog):
                    hours += held_hours(table, column)
            cursor = cursor.model_copy(update={"ahead": seen.sequence, "seen": seen})
            hours += _unread_hours(cursor, watch, catalog)
    return observe(cursor, seen, hours)


def _unread_hours(cursor: Cursor, watch: Watch, catalog: Catalog) -> Iterator[Hours]:
    """Return what the tables themselves say that they have not read, up to the cursor.

    Normally there are none. But files hold hours that no tick has noticed as changed: those between
    two rows, for example, once their files are merged.
    """
    name, seen = ".".join(watch.origin.table.identifier), cursor.seen
    for plan in watch.plans:
        tables = {table.name(): table for table, _ in _tables(plan, catalog)}
        sources = {
            source.name: SourceTable(tables[source.table], source.time, plan.reach(source))
            for source in plan.sources
            if source.time and source.table in tables
        }
        if name in sources:
            found = unread(tables.get(plan.target), plan.target_time, sources)[name].unread
            known = (each for each in found if seen and each.sequence <= seen.sequence)
            yield from (Hours(each.start, each.stop) for each in known)


def _tables(plan: Derivation, catalog: Catalog) -> Iterator[tuple[Table, str]]:
    """Return a derived table and its sources, as far as they exist, with their event times."""
    names = [(plan.target, plan.target_time)]
    names += [(source.table, source.time) for source in plan.sources if source.time]
    for identifier, column in names:
        with suppress(NoSuchTableError):
            yield catalog.load_table(identifier), column


def _idle(cursor: Cursor) -> str:
    if max(cursor.failures, cursor.registration_failures) >= MAX_ATTEMPTS:
        return (
            f"{MAX_ATTEMPTS} runs for snapshot {cursor.snapshot} failed (see the runs tagged "
            f"topicberg/snapshot={cursor.snapshot}); fix the cause, the next snapshot or a "
            "manual materialization resumes it"
        )
    return "a run is under way" if cursor.request or cursor.registration else "no new snapshot"


def _run_states(instance: dg.DagsterInstance, cursor: Cursor) -> dict[str, RunState]:
    """Run key → how that run is."""
    states: dict[str, RunState] = {}
    for wanted in (cursor.request, cursor.registration):
        for key in wanted.ranges if wanted else ():
            runs = instance.get_runs(dg.RunsFilter(tags={"dagster/run_key": key}), limit=1)
            states[key] = _FINISHED.get(runs[0].status, "active") if runs else "missing"
    return states


def _tags(kind: str, wanted: Request, priority: int) -> dict[str, str]:
    return {
        "topicberg/kind": kind,
        "topicberg/snapshot": str(wanted.snapshot),
        "dagster/priority": str(priority),
    }


def _registrations(wanted: Request, watch: Watch) -> Iterator[dg.RunRequest]:
    for key in wanted.ranges:
        yield dg.RunRequest(
            run_key=key,
            asset_selection=watch.registrations,
            asset_check_keys=watch.registration_checks,
            tags=_tags(REGISTRATION, wanted, 2),
        )


def _computations(wanted: Request, runs: Sequence[Span], watch: Watch) -> Iterator[dg.RunRequest]:
    """A run for each range."""
    for key, run in zip(wanted.ranges, runs, strict=True):
        span = {RANGE_START: run.first, RANGE_END: run.last}
        yield dg.RunRequest(
            run_key=key,
            asset_selection=watch.derived,
            asset_check_keys=watch.derived_checks,
            tags=_tags(COMPUTATION, wanted, 1 if watch.reported else 0) | span,
        )


def _materialization(
    origin: Origin, iceberg: Table, snapshot: Snapshot, *, gap: bool
) -> AssetMaterialization:
    lost = "; snapshots before it were expired before they were reported" if gap else ""
    facts = report(snapshot)
    schema = iceberg.schemas().get(snapshot.schema_id or 0, iceberg.schema())
    return AssetMaterialization(
        asset_key=origin.table.key("iceberg"),
        description=f"snapshot {facts.snapshot_id}: {facts.operation}, "
        f"{facts.added_records:,} rows in, {facts.deleted_records:,} out{lost}",
        metadata={
            **snapshot_metadata(facts),
            **commit_lag_metadata(iceberg, snapshot, origin.root.metadata_column("timestamp")),
            **skipped_metadata(iceberg),
            "dagster/column_schema": column_schema(schema),
            "dagster/uri": iceberg.location(),
        },
        tags={"dagster/data_version": str(facts.snapshot_id)},
    )


def _kafka_observation(
    context: dg.SensorEvaluationContext, watch: Watch, endpoints: Endpoints, iceberg: Table
) -> AssetObservation | None:
    """Where the topic is, and how far behind its table; None while Kafka does not answer."""
    topic = watch.origin.root.name
    try:
        begin = kafka.beginning_offsets(endpoints, topic)
        end = kafka.end_offsets(endpoints, topic)
        held = held_offsets(iceberg, watch.origin.root, endpoints, end)
    except TopicbergError as error:
        context.log.warning(str(error))
        return None
    return AssetObservation(
        asset_key=kafka_key(watch.origin.root),
        metadata={**kafka_metadata(begin, end), **consumer_lag_metadata(held, begin, end)},
        tags={"dagster/data_version": kafka_data_version(end).value},
    )
