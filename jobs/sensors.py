"""Sensors on snapshots: what a new snapshot of a table touched is computed again downstream.

One sensor a topic reports every snapshot of its table, and requests one run for the touched
partitions of everything that follows from them alone. A derived table with a lookback follows from
more: it has a sensor of its own on its source, which also requests the partitions after those that
were touched, as far as the lookback reaches. So has one with a lookup, for everything after them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING

import dagster as dg
from dagster import AssetMaterialization, AssetObservation, DagsterRunStatus
from pyiceberg.exceptions import NoSuchTableError

from assets.checks import run_checks
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
from topicberg.derived import FOREVER
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.snapshots import Hours, changes_since, report, touched_hours
from topicberg.tableflow.wait import held_offsets

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

INTERVAL_SECONDS, LOOKING_BACK_SECONDS = 5, 60
"""A tick costs Dagster some 50 ms, whatever it finds. Who waits for a topic's table waits for the
first; the second is for what is computed beyond the touched hours.
"""
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
    """Unpartitioned assets, requested after every snapshot."""
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

    def reached(self, hours: Hours, now: datetime) -> Hours:
        """A touched hour range with what looks back at it."""
        this_hour = int(now.timestamp()) // 3600
        if self.reach == FOREVER:
            return Hours(hours.start, max(hours.stop, this_hour + 1))
        return Hours(hours.start, hours.stop + ceil(self.reach / timedelta(hours=1)))


def watches(lake: Lake) -> Iterator[Watch]:
    """What there is to watch: every topic's table, and the sources of tables with a lookback."""
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
            registration_checks=tuple(run_checks(lake, registered)),
            derived_checks=tuple(run_checks(lake, [each.name for each in downstream])),
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
                derived_checks=tuple(run_checks(lake, [each.name for each in downstream])),
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
    what = (
        "Reports every snapshot of it as a materialization, and requests"
        if watch.reported
        else "Requests"
    )

    @dg.sensor(
        name=watch.name,
        target=dg.AssetSelection.assets(*watch.registrations, *watch.derived)
        | dg.AssetSelection.checks(*watch.registration_checks, *watch.derived_checks),
        minimum_interval_seconds=INTERVAL_SECONDS if watch.reported else LOOKING_BACK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Watches `{name}`. {what} one run for the partitions that new snapshots "
        "touched.",
    )
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
        runs = _runs(context.instance, before.request)
        cursor = settle(before, _states(runs))
        cursor, events = _look(cursor, iceberg, watch, partitions)
        if watch.registrations:
            cursor = observe_metadata(cursor, before, iceberg.metadata_location)
        if events and (observation := _kafka_observation(context, watch, endpoints, iceberg)):
            events.append(observation)
        if not watch.registrations:  # a snapshot that touched nothing asks for nothing
            cursor = cursor.model_copy(update={"dirty": False})
        waiting = cursor.pending or cursor.future
        existing = existing_keys(partitions, datetime.now(UTC)) if partitions and waiting else []
        cursor, wanted = request(cursor, existing, watch.name)
        if watch.registrations and wanted is None:
            beside = _states(_runs(context.instance, cursor.registration))
            cursor, wanted = register(cursor, beside, watch.name, _running_seconds(runs))
        if cursor == before:
            return dg.SkipReason(_idle(cursor))
        return dg.SensorResult(
            run_requests=list(_run_requests(wanted, watch)) if wanted else [],
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
        return partition_keys(partitions, (watch.reached(each, now) for each in hours), now)

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
    if cursor.failures >= MAX_ATTEMPTS:
        return (
            f"{MAX_ATTEMPTS} runs for snapshot {cursor.snapshot} failed (see the runs tagged "
            f"topicberg/snapshot={cursor.snapshot}); mend the cause, the next snapshot or a "
            "materialization by hand goes on"
        )
    return "a run is under way" if cursor.request else "no new snapshot"


def _runs(instance: dg.DagsterInstance, wanted: Request | None) -> dict[str, dg.RunRecord | None]:
    """Run key → its run; None: it was never launched."""
    runs: dict[str, dg.RunRecord | None] = {}
    for key in wanted.ranges if wanted else ():
        found = instance.get_run_records(dg.RunsFilter(tags={"dagster/run_key": key}), limit=1)
        runs[key] = found[0] if found else None
    return runs


def _states(runs: dict[str, dg.RunRecord | None]) -> dict[str, RunState]:
    """Run key → how that run is."""
    return {
        key: _FINISHED.get(run.dagster_run.status, "active") if run else "missing"
        for key, run in runs.items()
    }


def _running_seconds(runs: dict[str, dg.RunRecord | None]) -> float:
    """For how long the first of the runs has been running; 0: none has left the queue."""
    begun = [run.start_time for run in runs.values() if run and run.start_time]
    return time.time() - min(begun) if begun else 0.0


def _run_requests(wanted: Request, watch: Watch) -> Iterator[dg.RunRequest]:
    """A run for each range; without partitions (compaction, say) only the registrations."""
    for key, partitions in wanted.ranges.items():
        tags = {"topicberg/kind": "snapshots", "topicberg/snapshot": str(wanted.snapshot)}
        if partitions:
            tags |= {RANGE_START: partitions[0], RANGE_END: partitions[-1]}
        selection = [*watch.registrations, *(watch.derived if partitions else ())]
        checks = [*watch.registration_checks, *(watch.derived_checks if partitions else ())]
        if selection:
            yield dg.RunRequest(
                run_key=key, asset_selection=selection, asset_check_keys=checks, tags=tags
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
