"""One sensor a topic: reports every new snapshot, and runs what is downstream of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
from dagster import AssetMaterialization, AssetObservation, DagsterRunStatus
from pyiceberg.exceptions import NoSuchTableError

from assets import TopicGraph
from assets.metadata import column_schema, snapshot_metadata
from assets.partitions import partition_key, time_partitions
from assets.tables import LakeTable, topic_table
from assets.topics import kafka_data_version, kafka_metadata
from jobs.snapshot_cursor import Cursor, Request, RunState, observe, request, settle
from resources import Lakehouse
from topicberg import kafka
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.snapshots import report, snapshots_since, touched_hours
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
        events: list[AssetMaterialization | AssetObservation] = []
        for snapshot in snapshots_since(iceberg, cursor.snapshot, BATCH):
            events.append(_materialization(table, iceberg, snapshot))
            hours = touched_hours(iceberg, snapshot, spec.event_time) if partitions else ()
            touched = {partition_key(partitions, hour) for hour in hours} if partitions else ()
            cursor = observe(cursor, snapshot.snapshot_id, touched)
        if events:
            events.append(_kafka_observation(spec, table, endpoints))
        waiting = cursor.pending or cursor.future
        existing = partitions.get_partition_keys() if partitions and waiting else []
        cursor, wanted = request(cursor, existing, table.name)
        if cursor == before:
            return dg.SkipReason("no new snapshot")
        return dg.SensorResult(
            run_requests=list(_run_requests(wanted, registrations, derived)) if wanted else [],
            asset_events=events,
            cursor=cursor.model_dump_json(),
        )

    return snapshots


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


def _materialization(table: LakeTable, iceberg: Table, snapshot: Snapshot) -> AssetMaterialization:
    facts = report(snapshot)
    schema = iceberg.schemas().get(snapshot.schema_id or 0, iceberg.schema())
    return AssetMaterialization(
        asset_key=table.key("iceberg"),
        description=f"snapshot {facts.snapshot_id}: {facts.operation}, "
        f"{facts.added_records:,} rows in, {facts.deleted_records:,} out",
        metadata={
            **snapshot_metadata(facts),
            "dagster/column_schema": column_schema(schema),
            "dagster/uri": iceberg.location(),
        },
        tags={"dagster/data_version": str(facts.snapshot_id)},
    )


def _kafka_observation(spec: TopicSpec, table: LakeTable, endpoints: Endpoints) -> AssetObservation:
    begin, end = (
        read(endpoints, spec.name) for read in (kafka.beginning_offsets, kafka.end_offsets)
    )
    return AssetObservation(
        asset_key=table.key("kafka"),
        metadata=kafka_metadata(begin, end),
        tags={"dagster/data_version": kafka_data_version(end).value},
    )
