"""Iceberg tables of format version 3 in PyIceberg's SQL catalog, which writes only version 2."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2, TableMetadataV3
from pyiceberg.table.snapshots import Operation

from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.hours import FileHours
from topicberg.iceberg.manifests import new_file
from topicberg.iceberg.position_deletes import FileRows
from topicberg.iceberg.snapshots import changed_files
from topicberg.iceberg.summaries import LAST_RECORDS, operation_of, summary
from topicberg.query import load_extensions
from topicberg.tableflow.values.commit import add_files


def allow_version_3(patch: pytest.MonkeyPatch) -> None:
    """Let the SQL catalog store metadata of version 3: PyIceberg only refuses to serialize it."""
    patch.setattr(TableMetadataV3, "model_dump_json", TableMetadataV2.model_dump_json)


def upgrade(catalog: SqlCatalog, table: Table) -> Table:
    """Return the table after its upgrade to version 3, as a REST catalog does it."""
    place = Path(urlsplit(table.metadata_location).path)
    document = json.loads(place.read_text()) | {"format-version": 3, "next-row-id": 0}
    entry = {"metadata-file": table.metadata_location, "timestamp-ms": document["last-updated-ms"]}
    document["metadata-log"] = [*document["metadata-log"], entry]
    upgraded = place.with_name(f"99999-{uuid.uuid4()}.metadata.json")
    upgraded.write_text(json.dumps(document))
    catalog.drop_table(table.name())
    return catalog.register_table(table.name(), f"file://{upgraded}")


def data_files(table: Table, rows: pa.Table) -> list[DataFile]:
    """Return data files that are written, and not yet part of the table."""
    if not rows.num_rows:
        return []
    names = [field.name for field in DATA_FILE_TYPE[2].fields]
    found = []
    for file in _dataframe_to_data_files(table.metadata, rows, table.io):
        fields = {name: file[place] for place, name in enumerate(names)}
        found.append(new_file(table.spec().spec_id, **fields))
    return found


def written(table: Table, rows: pa.Table) -> list[DataFile]:
    """Return data files that the engine has written, and not committed."""
    with DataFileWriter(WriteTarget.of(table), table.io) as writer:
        for batch in rows.cast(table.schema().as_arrow()).to_batches():
            writer.write(dict(zip(batch.schema.names, batch.columns, strict=True)))
    return list(writer.files)


def assert_summary_has_hours(table: Table, column: str) -> None:
    """Assert that the summary of the newest batch has the hours that its files say."""
    head = table.current_snapshot()
    if head is None or operation_of(head) == Operation.REPLACE or LAST_RECORDS not in summary(head):
        return
    file_hours, files = FileHours(table, column), [file for file, _ in changed_files(table, head)]
    assert file_hours.summarized(head) == file_hours.of_all(files, head)
    assert not any(name.startswith("partitions.") for name in summary(head))


def append(table: Table, rows: pa.Table) -> None:
    """Append rows to a table of any version."""
    change = SnapshotChange(table, Operation.APPEND)
    change.add(data_files(table, rows))
    change.commit()


def replace(table: Table, replaced: Sequence[FileRows], rows: pa.Table) -> None:
    """Delete rows, and add others, in one snapshot, as a batch does."""
    head = table.current_snapshot()
    add_files(table, head.snapshot_id if head else None, data_files(table, rows), replaced, {})


def overwrite(
    table: Table,
    rows: pa.Table,
    removed: Iterable[DataFile],
    operation: Operation = Operation.OVERWRITE,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Replace data files, and leave what is deleted of them, as some writers do."""
    change = SnapshotChange(table, operation, properties=properties)
    change.remove(removed)
    change.add(data_files(table, rows))
    change.commit()


def duckdb_rows(table: Table, columns: str) -> list[tuple[Any, ...]]:
    """Return what DuckDB reads of a table in local files, without a catalog."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_extensions(connection)
        place = urlsplit(table.metadata_location).path
        return connection.execute(f"SELECT {columns} FROM iceberg_scan('{place}')").fetchall()
