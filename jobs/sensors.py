"""One sensor a topic: reports every new snapshot, and runs what is downstream of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg
from dagster import AssetMaterialization, AssetObservation, DagsterRunStatus
from pyiceberg.exceptions import NoSuchTableError

from assets import TopicGraph
from assets.metadata import column_schema, snapshot_metadata
from assets.partitions import TimePartitions, partition_keys, time_partitions
from assets.tables import LakeTable, topic_table
from assets.topics import kafka_data_version, kafka_metadata
from jobs.snapshot_cursor import MAX_ATTEMPTS, Cursor, Request, RunState, observe, request, settle
from resources import Lakehouse
from topicberg import kafka
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.snapshots import changes_since, report, touched_hours
from topicberg.topics import TopicSpec

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

INTERVAL_SECONDS = 5
BATCH = 200
"""Snapshots that one tick reports at most; the next tick goes on."""
_RANGE_START, _RANGE_END = (
    "dagster/asset_partition_range_start",
    "dagster/asset_partition_range_end",
)
_FINISHED: dict[DagsterRunStatus, RunState] = {
    DagsterRunStatus.SUCCESS: "succeeded",
    DagsterRunStatus.FAILURE: "failed",
    DagsterRunStatus.CANCELED: "failed",
    DagsterRunStatus.NOT_STARTED: "missing",
}


def snapshot_sensor(graph: TopicGraph, config: Settings) -> dg.SensorDefinition:
    """The sensor ``<topic>_snapshots``."""
    spec, table = graph.spec, topic_table(graph.spec, config)
    partitions = time_partitions(spec) if graph.derived else None
    registrations = [table.key("glue"), table.key("snowflake")]
    derived = [
        lake_table.key(system)
        for lake_table in graph.tables(config)[1:]
        for system in ("iceberg", "glue", "snowflake")
    ]

    @dg.sensor(
        name=f"{spec.asset_name}_snapshots",
        target=dg.AssetSelection.assets(*registrations, *derived),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports every snapshot of `{'.'.join(table.identifier)}` as a "
        "materialization, and requests one run for the partitions that new snapshots touched.",
    )
    def snapshots(
        context: dg.SensorEvaluationContext, lakehouse: Lakehouse
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            endpoints = lakehouse.peek()
            iceberg = endpoints.catalog(config).load_table(table.identifier)
        except NoSuchTableError:
            return dg.SkipReason(f"{'.'.join(table.identifier)} does not exist yet")
        except (TopicbergError, OSError) as error:
            return dg.SkipReason(str(error))
        before = Cursor.parse(context.cursor)
        cursor = settle(before, _run_states(context.instance, before.request))
        cursor, events = _look(cursor, iceberg, table, spec, partitions)
        if events and (observation := _kafka_observation(context, spec, table, endpoints)):
            events.append(observation)
        waiting = cursor.pending or cursor.future
        existing = partitions.get_partition_keys() if partitions and waiting else []
        cursor, wanted = request(cursor, existing, table.name)
        if cursor == before:
            return dg.SkipReason(_idle(cursor))
        return dg.SensorResult(
            run_requests=list(_run_requests(wanted, registrations, derived)) if wanted else [],
            asset_events=events,
            cursor=cursor.model_dump_json(),
        )

    return snapshots


def _look(
    cursor: Cursor,
    iceberg: Table,
    table: LakeTable,
    spec: TopicSpec,
    partitions: TimePartitions | None,
) -> tuple[Cursor, list[AssetMaterialization | AssetObservation]]:
    """Take note of everything that happened to ``main`` since the cursor."""

    def touched(snapshot: Snapshot) -> set[str]:
        if partitions is None:
            return set()
        hours = touched_hours(iceberg, snapshot, spec.event_time)
        return partition_keys(partitions, hours, datetime.now(UTC))

    changes = changes_since(iceberg, cursor.snapshot)
    head = iceberg.current_snapshot()
    if changes.undone and head is not None:  # a rollback: what is gone must be computed again
        gone = {key for snapshot in changes.undone for key in touched(snapshot)}
        cursor = observe(cursor, head.snapshot_id, gone)
    events: list[AssetMaterialization | AssetObservation] = []
    for snapshot in changes.new[:BATCH]:
        gap = changes.gap and not events
        events.append(_materialization(table, iceberg, snapshot, gap=gap))
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


def _run_states(instance: dg.DagsterInstance, wanted: Request | None) -> dict[str, RunState]:
    """Run key → how that run is."""
    states: dict[str, RunState] = {}
    for key in wanted.ranges if wanted else ():
        runs = instance.get_runs(dg.RunsFilter(tags={"dagster/run_key": key}), limit=1)
        states[key] = _FINISHED.get(runs[0].status, "active") if runs else "missing"
    return states


def _run_requests(
    wanted: Request, registrations: list[dg.AssetKey], derived: list[dg.AssetKey]
) -> Iterator[dg.RunRequest]:
    """A run for each range; without partitions (compaction, say) only the registrations."""
    for key, partitions in wanted.ranges.items():
        tags = {"topicberg/snapshot": str(wanted.snapshot)}
        if partitions:
            tags |= {_RANGE_START: partitions[0], _RANGE_END: partitions[-1]}
        selection = [*registrations, *derived] if partitions else registrations
        yield dg.RunRequest(run_key=key, asset_selection=selection, tags=tags)


def _materialization(
    table: LakeTable, iceberg: Table, snapshot: Snapshot, *, gap: bool
) -> AssetMaterialization:
    lost = "; snapshots before it were expired before they were reported" if gap else ""
    facts = report(snapshot)
    schema = iceberg.schemas().get(snapshot.schema_id or 0, iceberg.schema())
    return AssetMaterialization(
        asset_key=table.key("iceberg"),
        description=f"snapshot {facts.snapshot_id}: {facts.operation}, "
        f"{facts.added_records:,} rows in, {facts.deleted_records:,} out{lost}",
        metadata={
            **snapshot_metadata(facts),
            "dagster/column_schema": column_schema(schema),
            "dagster/uri": iceberg.location(),
        },
        tags={"dagster/data_version": str(facts.snapshot_id)},
    )


def _kafka_observation(
    context: dg.SensorEvaluationContext, spec: TopicSpec, table: LakeTable, endpoints: Endpoints
) -> AssetObservation | None:
    """Where the topic is now; None while Kafka does not answer."""
    try:
        begin = kafka.beginning_offsets(endpoints, spec.name)
        end = kafka.end_offsets(endpoints, spec.name)
    except TopicbergError as error:
        context.log.warning(str(error))
        return None
    return AssetObservation(
        asset_key=table.key("kafka"),
        metadata=kafka_metadata(begin, end),
        tags={"dagster/data_version": kafka_data_version(end).value},
    )
