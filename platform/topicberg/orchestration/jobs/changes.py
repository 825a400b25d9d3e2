"""What changed since the last look at a watched table, and what has to be computed again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from dagster import AssetMaterialization, AssetObservation
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from topicberg.catalogs.glue import registered_state
from topicberg.iceberg.changes import Mark, expired_changes
from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours, common, union
from topicberg.iceberg.snapshots import affected_hours, changes_rows, changes_since, report
from topicberg.iceberg.tables import find_table
from topicberg.orchestration.assets.metadata import (
    column_schema,
    commit_lag_metadata,
    skipped_metadata,
    snapshot_metadata,
)
from topicberg.orchestration.assets.partitions import Span, partition_count, spans
from topicberg.orchestration.assets.registry import Table
from topicberg.orchestration.jobs.snapshot_cursor import (
    MAX_ATTEMPTS,
    MAX_RANGES,
    RunState,
    TableCursor,
    observe,
    observe_metadata,
    recall,
    request,
    settle,
)
from topicberg.orchestration.jobs.watches import TableWatch
from topicberg.transforms.unread import computable, held, unread

BATCH = 200
"""Snapshots that one tick reports at most; the next tick continues."""
BATCH_SECONDS = 10.0
"""So does one that takes longer: other tables are to be registered within their usual time."""
MANY_PARTITIONS = 48
"""Of more, those are requested that the derived tables have not read: reading what they have takes
longer than computing a few again."""


@dataclass(frozen=True)
class Tick:
    """What comes of a tick; ``runs``: the partitions that a run computes, by its key."""

    cursor: TableCursor
    events: list[AssetMaterialization | AssetObservation]
    runs: dict[str, tuple[Span, ...]]
    alone: bool = False
    """The run is for this table only: what failed for it would fail the others again and again."""


def advance(
    before: TableCursor,
    states: Mapping[str, RunState],
    iceberg: IcebergTable,
    watch: TableWatch,
    catalog: Catalog,
    joins: Set[tuple[Span, ...]] | None = None,
) -> Tick:
    """Do a tick, but for what concerns Dagster.

    :param states: of the runs that were requested, by their keys
    :param joins: runs of others that this one may be a part of, and it requests none besides. What
        failed joins none: others would fail with it again.
    """
    cursor, events = settle(before, states), list[AssetMaterialization | AssetObservation]()
    computed = before.request is not None and cursor.request is None and not cursor.failures
    if cursor.registration is None:  # else its checks would tell of an older snapshot
        cursor, events = _look(cursor, iceberg, watch, catalog)
        if watch.registrations:
            location = iceberg.metadata_location
            cursor = observe_metadata(cursor, before, location, registered_state(iceberg))
        else:
            cursor = cursor.replace(dirty=False)
    if computed:
        cursor = recall(cursor, _unread_hours(cursor, watch, catalog))
    now, alone = datetime.now(UTC), _fails_alone(cursor, before, states)

    def plan(hours: list[Hours]) -> tuple[list[Span], list[Hours]]:
        if watch.partitions is None:
            return [], []
        first = watch.first_hour(now)
        runs, left = spans(watch.partitions, hours, now, MAX_RANGES, first)
        partitions = sum(partition_count(watch.partitions, span) for span in runs)
        if partitions > MANY_PARTITIONS or (runs and cursor.failures):
            hours = common(hours, _all_unread_hours(watch, catalog))
            # All is computed that a run failed for: what follows from it may be missing.
            again = runs[-1:] if cursor.failures else []
            runs, left = spans(watch.partitions, hours, now, MAX_RANGES, first)
            runs = runs or again
        if joins is not None and runs and (alone or tuple(runs) not in joins):
            return [], hours
        return runs, left

    cursor, runs = request(cursor, plan, watch.name)
    return Tick(cursor, events, runs, alone)


def _fails_alone(cursor: TableCursor, before: TableCursor, states: Mapping[str, RunState]) -> bool:
    """Return whether a table shares no run, because the last one failed.

    A table is not to blame for a process that was killed, unless it was the last attempt but one.
    """
    ended = before.request.ranges if before.request else {}
    killed = bool(ended) and all(states[key] == "killed" for key in ended)
    return cursor.failures >= (MAX_ATTEMPTS - 1 if killed else 1)


def _look(
    cursor: TableCursor, iceberg: IcebergTable, watch: TableWatch, catalog: Catalog
) -> tuple[TableCursor, list[AssetMaterialization | AssetObservation]]:
    """Take note of everything that happened to ``main`` since the cursor."""
    begun, uuid = time.monotonic(), iceberg.metadata.table_uuid.hex

    def affected(snapshot: Snapshot, first: int = BEFORE_EVERYTHING) -> Iterator[Hours]:
        if watch.derived:
            for hours in affected_hours(iceberg, snapshot, watch.time):
                reached = watch.reached(hours, datetime.now(UTC))
                if in_time := Hours(max(reached.start, first), reached.stop):
                    yield in_time

    seen = cursor.seen
    if seen and seen.table == uuid:
        changes = changes_since(iceberg, seen.snapshot)
        unknown, new = changes.gap, [s for s in changes.new if _number(s) > seen.sequence]
    else:
        changes = changes_since(iceberg, None)
        unknown, new = True, changes.new
    if unknown:
        cursor = _observe_expired(cursor, iceberg, watch, catalog)
    elif changes.rolled_back:  # a rollback: what it removed must be computed again
        removed = [hours for snapshot in changes.rolled_back for hours in affected(snapshot)]
        cursor = observe(cursor, Mark.of(iceberg, iceberg.current_snapshot()), removed)
    events: list[AssetMaterialization | AssetObservation] = []
    for snapshot in new[:BATCH]:
        if watch.reported:
            gap = unknown and not events
            events.append(_event(watch.origin, iceberg, snapshot, gap=gap))
        first = watch.first_in_time(datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC))
        hours = affected(snapshot, first) if _number(snapshot) > cursor.ahead else ()
        cursor = observe(cursor, Mark.of(iceberg, snapshot), hours)
        if time.monotonic() - begun > BATCH_SECONDS:
            break
    return cursor, events


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _observe_expired(
    cursor: TableCursor, iceberg: IcebergTable, watch: TableWatch, catalog: Catalog
) -> TableCursor:
    """Take note of what snapshots may have changed that are expired, or that the cursor has lost.

    Where rows may be removed of any hour, that is every hour of which something is left: here, in
    the tables that are computed, or in their other sources.
    """
    head, hours = iceberg.current_snapshot(), list[Hours]()
    seen = Mark.of(iceberg, head)
    if watch.derived:
        now = datetime.now(UTC)
        expired = expired_changes(iceberg, watch.time, cursor.seen)
        hours += (watch.reached(change.hours, now) for change in expired.changes)
        if expired.everything:
            for plan in watch.plans:
                sources = plan.source_tables(partial(find_table, catalog))
                hours += held(find_table(catalog, plan.target), plan.target_time, sources)
            cursor = cursor.replace(ahead=seen.sequence, seen=seen)
            hours += _unread_hours(cursor, watch, catalog)
    return observe(cursor, seen, hours)


def _unread_hours(cursor: TableCursor, watch: TableWatch, catalog: Catalog) -> Iterator[Hours]:
    """Return what the tables themselves say that they have not read, up to the cursor.

    Normally there are none. But files hold hours that no tick has noticed as changed: those between
    two rows, for example, once their files are merged.
    """
    name, seen = ".".join(watch.origin.identifier), cursor.seen
    for plan in watch.plans:
        sources = plan.source_tables(partial(find_table, catalog))
        if name in sources:
            target = find_table(catalog, plan.target)
            first_hour = plan.first_hour(datetime.now(UTC))
            read = unread(target, plan.target_time, sources, first_hour)
            ranges = computable(read, first_hour)[name].unread
            known = (each for each in ranges if seen and each.sequence <= seen.sequence)
            yield from (Hours(each.start, each.stop) for each in known)


def _all_unread_hours(watch: TableWatch, catalog: Catalog) -> list[Hours]:
    """Return what the tables that are computed together have not read of any of their sources."""
    now, hours = datetime.now(UTC), list[Hours]()
    for plan in watch.plans:
        sources, first = plan.source_tables(partial(find_table, catalog)), plan.first_hour(now)
        read = unread(find_table(catalog, plan.target), plan.target_time, sources, first)
        for source in computable(read, first).values():
            hours += (Hours(each.start, each.stop) for each in source.unread)
    return union(hours)


def _event(
    origin: Table, iceberg: IcebergTable, snapshot: Snapshot, *, gap: bool
) -> AssetMaterialization | AssetObservation:
    """Return the report of a snapshot: of one that leaves the rows as they are, no materialization.

    What Dagster derives from materializations would take a table for fresh after maintenance.
    """
    lost = "; snapshots before it were expired before they were reported" if gap else ""
    facts = report(snapshot)
    schema = iceberg.schemas().get(snapshot.schema_id or 0, iceberg.schema())
    report_as = AssetMaterialization if changes_rows(snapshot) else AssetObservation
    return report_as(
        asset_key=origin.key("iceberg"),
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
