"""Sensors on snapshots: what a new snapshot of a table touched is computed again downstream.

One sensor a topic reports every snapshot of its table, and requests two runs: one that registers
the table, and one for the touched partitions of everything that follows from them alone. A derived
table with a lookback follows from more: it has a sensor of its own on its source, which also
requests the partitions after those that were touched, as far as the lookback reaches. So has one
with a lookup, for everything after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
from dagster import AssetMaterialization, AssetObservation, DagsterRunStatus
from pyiceberg.exceptions import NoSuchTableError

from assets.checks import CheckKeys
from assets.derived import DerivedTable
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
    TimePartitions,
    existing_keys,
    partition_keys,
    time_partitions,
)
from assets.tables import CATALOGS, history_lake_table, kafka_key, upsert_view_table
from assets.topics import consumer_lag_metadata, kafka_data_version, kafka_metadata
from jobs.schedules import unless_silent
from jobs.snapshot_cursor import (
    MAX_ATTEMPTS,
    Cursor,
    Request,
    RunState,
    observe,
    observe_metadata,
    register,
    request,
    settle,
)
from resources import Lakehouse
from topicberg import kafka
from topicberg.derived import FOREVER, reached
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.snapshots import changes_since, report, touched_hours
from topicberg.tableflow.wait import held_offsets

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

INTERVAL_SECONDS, LOOKING_BACK_SECONDS = 5, 60
"""A tick costs Dagster some 50 ms, whatever it finds. Who waits for a topic's table waits for the
first; the second is for what is computed beyond the touched hours.
"""
REGISTRATION, COMPUTATION = "registration", "computation"
"""Kinds of runs (the tag topicberg/kind) that sensors ask for."""
BATCH = 200
"""Snapshots that one tick reports at most; the next tick goes on."""
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


def watches(lake: Lake) -> Iterator[Watch]:
    """What there is to watch: every topic's table, and the sources of tables with a lookback."""
    checks = CheckKeys(lake)

    def of_computation(source: str, tables: Iterable[DerivedTable]) -> tuple[dg.AssetCheckKey, ...]:
        """What is wrong with the source keeps the tables from being computed."""
        names = [table.name for table in tables]
        return (*(checks.blocking(source) if names else ()), *checks.of_runs(names))

    for name, spec in lake.materialized.items():
        origin = lake.origin(name)
        keys = [origin.table.key("glue"), origin.table.key("snowflake")]
        registered, downstream = [spec.table_name], lake.downstream(name)
        if spec.history:
            history = history_lake_table(spec)
            registered.append(history.name)
            keys += [history.key(system) for system in CATALOGS]
        for view in spec.upsert_views:
            registered.append(view)
            keys += [upsert_view_table(spec, view).key(system) for system in CATALOGS]
        yield Watch(
            name=f"{spec.table_name}_snapshots",
            origin=origin,
            registrations=tuple(keys),
            derived=_assets(lake, downstream),
            registration_checks=tuple(checks.of_runs(registered)),
            derived_checks=of_computation(spec.table_name, downstream),
            partitions=time_partitions(spec) if downstream else None,
        )
    for table in lake.derived:
        reach = table.lookback_of(lake.root(table))
        back = {source: ("lookback", reach) for source in table.sources if reach}
        # Nobody knows for how long a row of a lookup counts: all that came after it.
        back |= dict.fromkeys(table.lookups, ("lookup", FOREVER))
        for source, (why, reach) in back.items():
            downstream = [table, *lake.downstream(table.name)]
            several = f"_of_{source}" if len(back) > 1 else ""
            yield Watch(
                name=re.sub(r"[.-]", "_", f"{table.name}_{why}{several}"),
                origin=lake.origin(source),
                registrations=(),
                derived=_assets(lake, downstream),
                derived_checks=of_computation(lake.origin(source).table.name, downstream),
                partitions=time_partitions(lake.root(table)),
                reach=reach or timedelta(),
                reported=False,
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
    table, partitions = watch.origin.table, watch.partitions
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
    @unless_silent
    def snapshots(
        context: dg.SensorEvaluationContext, lakehouse: Lakehouse
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            endpoints = lakehouse.peek()
            iceberg = endpoints.catalog(config).load_table(table.identifier)
        except NoSuchTableError:
            return dg.SkipReason(f"{name} does not exist yet")
        except (TopicbergError, OSError) as error:
            return dg.SkipReason(str(error))
        before = Cursor.parse(context.cursor)
        cursor = settle(before, _run_states(context.instance, before))
        events: list[AssetMaterialization | AssetObservation] = []
        if cursor.registration is None:  # else its checks would tell of an older snapshot
            cursor, events = _look(cursor, iceberg, watch, partitions)
            if watch.registrations:
                cursor = observe_metadata(cursor, before, iceberg.metadata_location)
            else:
                cursor = cursor.model_copy(update={"dirty": False})
        if events and (observation := _kafka_observation(context, watch, endpoints, iceberg)):
            events.append(observation)
        waiting = cursor.pending or cursor.future
        existing = existing_keys(partitions, datetime.now(UTC)) if partitions and waiting else []
        cursor, computation = request(cursor, existing, watch.name)
        cursor, registration = register(cursor, watch.name)
        if cursor == before:
            return dg.SkipReason(_idle(cursor))
        return dg.SensorResult(
            run_requests=[
                *(_registrations(registration, watch) if registration else ()),
                *(_computations(computation, watch) if computation else ()),
            ],
            asset_events=events,
            cursor=cursor.model_dump_json(),
        )

    return snapshots


def _look(
    cursor: Cursor, iceberg: Table, watch: Watch, partitions: TimePartitions | None
) -> tuple[Cursor, list[AssetMaterialization | AssetObservation]]:
    """Take note of everything that happened to ``main`` since the cursor."""
    now = datetime.now(UTC)

    def touched(snapshot: Snapshot) -> set[str]:
        if partitions is None:
            return set()
        hours = touched_hours(iceberg, snapshot, watch.origin.time)
        return partition_keys(partitions, (reached(each, watch.reach, now) for each in hours), now)

    changes = changes_since(iceberg, cursor.snapshot)
    head = iceberg.current_snapshot()
    if changes.undone and head is not None:  # a rollback: what is gone must be computed again
        gone = {key for snapshot in changes.undone for key in touched(snapshot)}
        cursor = observe(cursor, head.snapshot_id, gone)
    events: list[AssetMaterialization | AssetObservation] = []
    for snapshot in changes.new[:BATCH]:
        gap = changes.gap and not events
        if watch.reported:
            events.append(_materialization(watch.origin, iceberg, snapshot, gap=gap))
        cursor = observe(cursor, snapshot.snapshot_id, touched(snapshot))
    return cursor, events


def _idle(cursor: Cursor) -> str:
    if max(cursor.failures, cursor.registration_failures) >= MAX_ATTEMPTS:
        return (
            f"{MAX_ATTEMPTS} runs for snapshot {cursor.snapshot} failed (see the runs tagged "
            f"topicberg/snapshot={cursor.snapshot}); mend the cause, the next snapshot or a "
            "materialization by hand goes on"
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


def _computations(wanted: Request, watch: Watch) -> Iterator[dg.RunRequest]:
    """A run for each range."""
    for key, partitions in wanted.ranges.items():
        span = {RANGE_START: partitions[0], RANGE_END: partitions[-1]}
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
