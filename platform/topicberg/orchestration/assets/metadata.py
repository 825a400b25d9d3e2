"""What the Dagster UI shows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

import pyarrow as pa
from dagster import (
    AssetKey,
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableColumnDep,
    TableColumnLineage,
    TableSchema,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.charts import markdown_table
from topicberg.documents import address_of
from topicberg.iceberg.snapshots import SnapshotReport, changed_files, oldest_record, report
from topicberg.iceberg.summaries import END_OFFSETS, KAFKA_TIMES, ROWS_SKIPPED, ancestry, summary
from topicberg.security.text import markdown_lines
from topicberg.topics.spec import metadata_description

SAMPLE_ROWS, SAMPLED_SNAPSHOTS = 10, 20


def documentation(page: str) -> dict[str, MetadataValue[Any]]:
    """Return metadata that leads to a page of ``docs/``, such as ``tableflow.md``.

    To ``TOPICBERG_DOCS_URL`` if it is set, else to topicberg's web server.
    """
    address = address_of(page)
    return {"documentation": _link(address)} if address is not None else {}


@lru_cache
def _link(address: str) -> MetadataValue[Any]:
    """Return the same object for every asset of a fleet."""
    return MetadataValue.url(address)


def column_schema(schema: Schema) -> TableSchema:
    """Return the columns with their Iceberg types and descriptions."""
    return TableSchema(
        columns=[
            TableColumn(
                name=field.name,
                type=str(field.field_type),
                description=markdown_lines(field.doc)
                if field.doc
                else metadata_description(field.name),
                constraints=TableColumnConstraints(nullable=not field.required),
            )
            for field in schema.fields
        ]
    )


def column_lineage(
    assets: Mapping[str, AssetKey], columns: Mapping[str, tuple[str, ...]], default: Iterable[str]
) -> TableColumnLineage:
    """Which columns of its sources each column was computed from.

    :param assets: source → its asset
    :param columns: column → ``column`` of every source in ``default``, or ``source.column``
    """

    def dependencies(origin: str) -> Iterator[TableColumnDep]:
        source, _, column = origin.rpartition(".")
        for name in [source] if source in assets else default:
            yield TableColumnDep(assets[name], column if source in assets else origin)

    return TableColumnLineage(
        deps_by_column={
            column: [dep for origin in origins for dep in dependencies(origin)]
            for column, origins in columns.items()
        }
    )


def copied_columns(origin: AssetKey, columns: Mapping[str, str]) -> TableColumnLineage:
    """Columns that are those of another asset: column → its column there."""
    return TableColumnLineage(
        deps_by_column={
            column: [TableColumnDep(origin, original)] for column, original in columns.items()
        }
    )


def snapshot_metadata(snapshot: SnapshotReport) -> dict[str, Any]:
    """A snapshot in numbers."""
    return {
        "snapshot_id": MetadataValue.text(str(snapshot.snapshot_id)),
        "operation": snapshot.operation,
        "committed_at": MetadataValue.timestamp(snapshot.committed_at),
        "rows_added": snapshot.added_records,
        "rows_deleted": snapshot.deleted_records,
        "files_added": snapshot.added_files,
        "files": snapshot.total_files,
        "bytes_added": snapshot.added_bytes,
        "bytes": snapshot.total_bytes,
        "dagster/row_count": snapshot.total_records,
        **({"read_by": snapshot.reader} if snapshot.reader else {}),
        **(
            {"end_offsets": MetadataValue.json({str(p): o for p, o in ends.items()})}
            if (ends := snapshot.end_offsets)
            else {}
        ),
    }


def skipped_metadata(table: Table) -> dict[str, int]:
    """Records of its topic that are not in the table because they could not be decoded, and those
    that have Kafka's time because their event time could not be used.
    """
    names = {"rows_skipped": ROWS_SKIPPED, "event_times_from_kafka": KAFKA_TIMES}
    found = {name: table.properties.get(key) for name, key in names.items()}
    return {name: int(number) for name, number in found.items() if number is not None}


def commit_lag_metadata(table: Table, snapshot: Snapshot, timestamp: str) -> dict[str, float]:
    """Seconds from the arrival of the snapshot's oldest record in Kafka to its commit.

    :param timestamp: the table's column with Kafka's timestamps
    """
    oldest = oldest_record(table, snapshot, timestamp)
    if oldest is None or END_OFFSETS not in summary(snapshot):
        return {}
    return {"commit_lag_seconds": round(snapshot.timestamp_ms / 1000 - oldest.timestamp(), 3)}


def table_metadata(table: Table, *, sample: bool = True) -> dict[str, Any]:
    """The table as it is: columns, location, newest snapshot, a few rows."""
    head = table.current_snapshot()
    metadata: dict[str, Any] = {
        "dagster/column_schema": column_schema(table.schema()),
        "dagster/table_name": ".".join(table.name()),
        "dagster/uri": table.location(),
        "metadata_location": table.metadata_location,
        "dagster/row_count": 0,
        **skipped_metadata(table),
    }
    if head:
        metadata |= snapshot_metadata(report(head))
        if sample and (rows := newest_rows(table, SAMPLE_ROWS)) is not None:
            metadata["sample"] = MetadataValue.md(markdown_table(rows))
    return metadata


def newest_rows(table: Table, limit: int) -> pa.Table | None:
    """Return a few rows of the newest file, without planning a scan of the table."""
    from pyiceberg.io.pyarrow import ArrowScan

    removed: set[str] = set()
    for snapshot in islice(ancestry(table), SAMPLED_SNAPSHOTS):
        files = list(changed_files(table, snapshot))
        removed |= {file.file_path for file, added in files if not added}
        for file, added in files:
            if added and file.content == DataFileContent.DATA and file.file_path not in removed:
                row_filter = AlwaysTrue()
                scan = ArrowScan(table.metadata, table.io, table.schema(), row_filter, limit=limit)
                return scan.to_table([FileScanTask(file)])
    return None
