"""Data files without some of their rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from topicberg.errors import TopicbergError
from topicberg.iceberg.data_files import compression, described
from topicberg.iceberg.erasure.matching import ROWS_AT_ONCE
from topicberg.iceberg.erasure.proof import check_format


def check_rewritable(table: Table, files: Iterable[DataFile]) -> None:
    """Check that rows can be erased from the files of a snapshot.

    :raises TopicbergError: a file is not Parquet, or deletes rows by their values
    """
    for file in files:
        check_format(table, file)
        if file.content == DataFileContent.EQUALITY_DELETES:
            raise TopicbergError(
                f"table {'.'.join(table.name())}: {file.file_path} is an equality delete, and rows "
                "cannot be erased from files that have some",
                hint="rewrite the table's files without deletes (rewrite_data_files with "
                "delete-file-threshold 1), and run the command again",
            )


def rewritten(table: Table, file: DataFile, dropped: NDArray[np.int64]) -> DataFile | None:
    """Write a data file again without some rows; return it, or None if no row is left.

    Columns, types and order are those of the file, and so is its partition.

    :param dropped: positions, ascending
    """
    if len(dropped) >= file.record_count:
        return None
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-erased.parquet")
    with table.io.new_input(file.file_path).open() as source:
        parquet, first = pq.ParquetFile(source), 0
        with (
            table.io.new_output(path).create() as target,
            pq.ParquetWriter(
                target,
                parquet.schema_arrow.remove_metadata(),
                compression=compression(table.properties),
                store_schema=False,
                store_decimal_as_integer=True,  # as the Iceberg specification requires
            ) as writer,
        ):
            for batch in parquet.iter_batches(ROWS_AT_ONCE):
                stays = ~np.isin(np.arange(first, first + batch.num_rows), dropped)
                first += batch.num_rows
                if stays.any():
                    writer.write_batch(batch.filter(pa.array(stays)))
        arrow = parquet.schema_arrow
    return _described(table, file, path, writer.writer.metadata, arrow)


def _described(
    table: Table, file: DataFile, path: str, metadata: pq.FileMetaData, arrow: object
) -> DataFile:
    """Return a written file with its statistics, in place of another one."""
    inside = pyarrow_to_schema(arrow)
    # The table's properties name its columns; the file may have other names and narrower types.
    names = {field.field_id: field.name for field in table.schema().fields}
    own = Schema(
        *(
            NestedField(f.field_id, names.get(f.field_id, f.name), f.field_type, required=False)
            for f in inside.fields
        )
    )
    plan, paths = compute_statistics_plan(own, table.properties), parquet_path_to_id_mapping(inside)
    size, order = len(table.io.new_input(path)), file.sort_order_id
    return described(
        path, size, file.spec_id, file.partition, metadata, plan, paths, sort_order_id=order
    )
