"""Data files without some of their rows.

Source: Iceberg spec, "Row Lineage": a row that is moved to another file keeps its id.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from topicberg.errors import TopicbergError
from topicberg.iceberg import data_files, manifests
from topicberg.iceberg.files import may_delete, names_by_id

ROWS_AT_ONCE = 200_000
_LINEAGE = {"_row_id": 2147483540, "_last_updated_sequence_number": 2147483539}  # Reserved ids.


def is_parquet(file: DataFile) -> bool:
    """Return whether a data or delete file is Parquet; deletion vectors are not."""
    return bool(file.file_format == FileFormat.PARQUET)


def check_format(table: Table, file: DataFile) -> None:
    """Check that the rows of a file can be read; raise a TopicbergError if not."""
    if not is_parquet(file) and file.file_format != FileFormat.PUFFIN:
        raise TopicbergError(
            f"table {'.'.join(table.name())}: the file {file.file_path} is "
            f"{file.file_format.value}, and rows can be erased from Parquet only",
            hint="rewrite the table's files as Parquet, and run the command again",
        )


def check_rewritable(table: Table, files: Iterable[DataFile]) -> None:
    """Check that rows can be erased from the files of a snapshot.

    :raises TopicbergError: a file is not Parquet, or deletes rows by their values; or no file may
        be deleted
    """
    if not may_delete(table):
        raise TopicbergError(
            f"table {'.'.join(table.name())}: its property gc.enabled is false, so its files may "
            "not be deleted",
            hint="set gc.enabled to true if no other table, and no branch of the catalog, has its "
            "files; then run the command again",
        )
    for file in files:
        check_format(table, file)
        if file.content == DataFileContent.EQUALITY_DELETES:
            raise TopicbergError(
                f"table {'.'.join(table.name())}: {file.file_path} is an equality delete, and rows "
                "cannot be erased from files that have some",
                hint="rewrite the table's files without deletes (rewrite_data_files with "
                "delete-file-threshold 1), and run the command again",
            )


def rewritten(table: Table, entry: ManifestEntry, dropped: NDArray[np.int64]) -> DataFile | None:
    """Write a data file again without some rows; return it, or None if no row is left.

    Columns, types and order are those of the file, and so is its partition.

    :param entry: of a manifest that was read with the ids of its first rows
    :param dropped: positions, ascending
    """
    file = entry.data_file
    if len(dropped) >= file.record_count:
        return None
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-erased.parquet")
    with table.io.new_input(file.file_path).open() as source:
        parquet, first = pq.ParquetFile(source), 0
        arrow = _with_lineage(parquet.schema_arrow.empty_table(), entry, 0).schema
        with (
            table.io.new_output(path).create() as target,
            pq.ParquetWriter(
                target,
                arrow.remove_metadata(),
                compression=data_files.compression(table.properties),
                store_schema=False,
                store_decimal_as_integer=True,  # as the Iceberg specification requires
            ) as writer,
        ):
            for batch in parquet.iter_batches(ROWS_AT_ONCE):
                rows = _with_lineage(pa.Table.from_batches([batch]), entry, first)
                stays = ~np.isin(np.arange(first, first + len(rows)), dropped)
                first += len(rows)
                if stays.any():
                    writer.write_table(rows.filter(pa.array(stays)))
    return _described(table, file, path, writer.writer.metadata, arrow)


def _with_lineage(rows: pa.Table, entry: ManifestEntry, position: int) -> pa.Table:
    """Return rows, the first of which has a position, with their ids and when they were written."""
    if (first := manifests.first_row_id(entry.data_file)) is None:
        return rows
    ids = pa.array(np.arange(len(rows)) + (first + position), pa.int64())
    written = pa.repeat(pa.scalar(entry.sequence_number, pa.int64()), len(rows))
    for (name, number), values in zip(_LINEAGE.items(), (ids, written), strict=True):
        field = pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})
        if (column := names_by_id(rows.schema).get(number)) is not None:
            place = rows.schema.get_field_index(column)
            rows = rows.set_column(place, field, pc.coalesce(rows.column(place), values))
        elif name not in rows.schema.names:
            rows = rows.append_column(field, values)
    return rows


def _described(
    table: Table, file: DataFile, path: str, metadata: pq.FileMetaData, arrow: object
) -> DataFile:
    """Return a written file with its statistics, in place of another one."""
    inside = pyarrow_to_schema(arrow)
    # The table's properties name its columns; the file may have other names and narrower types.
    names = {field.field_id: field.name for field in table.schema().fields}
    nullable = Schema(
        *(
            NestedField(f.field_id, names.get(f.field_id, f.name), f.field_type, required=False)
            for f in inside.fields
        )
    )
    plan = compute_statistics_plan(nullable, table.properties)
    paths = parquet_path_to_id_mapping(inside)
    size, order = len(table.io.new_input(path)), file.sort_order_id
    return data_files.described(
        path, size, file.spec_id, file.partition, metadata, plan, paths, sort_order_id=order
    )
