"""Some rows of a data file, by their positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from topicberg.iceberg.file_columns import missing_column, with_names_of
from topicberg.iceberg.files import names_by_id
from topicberg.iceberg.position_deletes import FileRows


def column_types(table: Table, names: Sequence[str]) -> list[pa.DataType]:
    """Return the Arrow types of columns of a table."""
    arrow = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return [arrow.field(name).type for name in names]


def read_rows(table: Table, rows: FileRows, names: Sequence[str]) -> pa.Table:
    """Return columns of some rows of a data file, with the types of the table."""
    types = column_types(table, names)
    fields = [table.schema().find_field(name) for name in names]
    with table.io.new_input(rows.file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        arrow = parquet.schema_arrow
        known = names_by_id(arrow)
        arrow_rows = _rows_at(
            parquet, rows.positions, [known[f.field_id] for f in fields if f.field_id in known]
        )
    columns = []
    for field, kind in zip(fields, types, strict=True):
        if (name := known.get(field.field_id)) is not None:
            column = with_names_of(table.schema(), arrow_rows.column(name), arrow.field(name))
            columns.append(column.cast(kind))
        else:
            columns.append(pa.chunked_array([missing_column(field, len(rows.positions))]))
    return pa.table(columns, names=list(names))


def _rows_at(parquet: Any, positions: NDArray[np.uint32], columns: Sequence[str]) -> pa.Table:
    """Return some rows of a file, given by ascending positions; reads only their row groups."""
    parts, first = [], 0
    for group in range(parquet.num_row_groups):
        last = first + parquet.metadata.row_group(group).num_rows
        inside = positions[(positions >= first) & (positions < last)]
        if len(inside):
            part = parquet.read_row_group(group, columns=list(columns))
            parts.append(part.take(pa.array(inside - first)))
        first = last
    return pa.concat_tables(parts)
