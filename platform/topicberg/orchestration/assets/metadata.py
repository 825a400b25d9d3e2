"""What the Dagster UI shows of a table."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

import dagster as dg
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.charts import markdown_table
from topicberg.documents import address_of
from topicberg.iceberg import snapshots, summaries
from topicberg.security.text import markdown_lines
from topicberg.topics.spec import metadata_description

SAMPLE_ROWS, SAMPLED_SNAPSHOTS = 10, 20


def documentation(page: str) -> dict[str, dg.MetadataValue[Any]]:
    """Return metadata that leads to a page of ``docs/``, such as ``tableflow.md``."""
    address = address_of(page)
    return {"documentation": _link(address)} if address is not None else {}


@lru_cache
def _link(address: str) -> dg.MetadataValue[Any]:
    """Return the same object for every asset of a fleet."""
    return dg.MetadataValue.url(address)


def column_schema(schema: Schema) -> dg.TableSchema:
    """Return the columns with their Iceberg types and descriptions."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=field.name,
                type=str(field.field_type),
                description=markdown_lines(field.doc)
                if field.doc
                else metadata_description(field.name),
                constraints=dg.TableColumnConstraints(nullable=not field.required),
            )
            for field in schema.fields
        ]
    )


def column_lineage(
    assets: Mapping[str, dg.AssetKey],
    columns: Mapping[str, tuple[str, ...]],
    default: Iterable[str],
) -> dg.TableColumnLineage:
    """Which columns of its sources each column was computed from.

    :param assets: source → its asset
    :param columns: column → ``column`` of every source in ``default``, or ``source.column``
    """
    return dg.TableColumnLineage(
        deps_by_column={
            column: [
                dg.TableColumnDep(assets[source], name)
                for source, name in source_columns(origins, assets, default)
            ]
            for column, origins in columns.items()
        }
    )


def source_columns(
    origins: Iterable[str], sources: Container[str], default: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield source and column of each origin, which is given as in :func:`column_lineage`."""
    for origin in origins:
        source, _, column = origin.rpartition(".")
        if source in sources:
            yield source, column
        else:
            yield from ((name, origin) for name in default)


def copied_columns(origin: dg.AssetKey, columns: Mapping[str, str]) -> dg.TableColumnLineage:
    """Columns that are those of another asset: column → its column there."""
    return dg.TableColumnLineage(
        deps_by_column={
            column: [dg.TableColumnDep(origin, original)] for column, original in columns.items()
        }
    )


def snapshot_metadata(snapshot: snapshots.SnapshotReport) -> dict[str, Any]:
    """A snapshot in numbers."""
    return {
        "snapshot_id": dg.MetadataValue.text(str(snapshot.snapshot_id)),
        "operation": snapshot.operation,
        "committed_at": dg.MetadataValue.timestamp(snapshot.committed_at),
        "rows_added": snapshot.added_records,
        "rows_deleted": snapshot.deleted_records,
        "files_added": snapshot.added_files,
        "files": snapshot.total_files,
        "bytes_added": snapshot.added_bytes,
        "bytes": snapshot.total_bytes,
        "dagster/row_count": snapshot.total_records,
        **({"read_by": snapshot.reader} if snapshot.reader else {}),
        **(
            {"end_offsets": dg.MetadataValue.json({str(p): o for p, o in ends.items()})}
            if (ends := snapshot.end_offsets)
            else {}
        ),
    }


def skipped_metadata(table: Table) -> dict[str, int]:
    """How many records are not in the table, or have Kafka's time, as they are malformed."""
    names = {
        "rows_skipped": summaries.ROWS_SKIPPED,
        "event_times_from_kafka": summaries.KAFKA_TIMES,
    }
    counters = table.properties
    return {name: int(counters[key]) for name, key in names.items() if key in counters}


def commit_lag_metadata(table: Table, snapshot: Snapshot, timestamp: str) -> dict[str, float]:
    """Seconds from the arrival of the oldest record in Kafka, by its column, to the commit."""
    oldest = snapshots.oldest_record(table, snapshot, timestamp)
    if oldest is None or summaries.END_OFFSETS not in summaries.summary(snapshot):
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
        metadata |= snapshot_metadata(snapshots.report(head))
        if sample and (rows := newest_rows(table, SAMPLE_ROWS)) is not None:
            metadata["sample"] = dg.MetadataValue.md(markdown_table(rows))
    return metadata


def newest_rows(table: Table, limit: int) -> pa.Table | None:
    """Return a few rows of the newest file, without planning a scan of the table."""
    from pyiceberg.io.pyarrow import ArrowScan

    removed: set[str] = set()
    for snapshot in islice(summaries.ancestry(table), SAMPLED_SNAPSHOTS):
        files = list(snapshots.changed_files(table, snapshot))
        removed |= {file.file_path for file, added in files if not added}
        for file, added in files:
            if added and file.content == DataFileContent.DATA and file.file_path not in removed:
                return ArrowScan(
                    table.metadata, table.io, table.schema(), AlwaysTrue(), limit=limit
                ).to_table([FileScanTask(file)])
    return None
