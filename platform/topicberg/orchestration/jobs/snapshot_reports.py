"""The reports of a table's snapshots."""

from __future__ import annotations

from dagster import AssetMaterialization, AssetObservation
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg.snapshots import changes_rows, changes_since, report
from topicberg.orchestration.assets.metadata import (
    column_schema,
    commit_lag_metadata,
    skipped_metadata,
    snapshot_metadata,
)
from topicberg.orchestration.assets.registry import Table
from topicberg.transforms.target import head_id

Event = AssetMaterialization | AssetObservation
BATCH = 200
"""Snapshots that one tick reports at most; the next tick continues."""


def reports(
    origin: Table, iceberg: IcebergTable, reported: int | None
) -> tuple[list[Event], int | None]:
    """Return the reports of the next snapshots, and the snapshot up to which they are.

    :param reported: the last snapshot that was reported; None: none was
    """
    changes = changes_since(iceberg, reported)
    batch = changes.new[:BATCH]
    events = [
        _event(origin, iceberg, snapshot, gap=changes.gap and snapshot is batch[0])
        for snapshot in batch
    ]
    if len(batch) < len(changes.new):
        return events, batch[-1].snapshot_id
    return events, head_id(iceberg)


def _event(origin: Table, iceberg: IcebergTable, snapshot: Snapshot, *, gap: bool) -> Event:
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
