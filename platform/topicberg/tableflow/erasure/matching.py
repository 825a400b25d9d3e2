"""Which rows of a file are to be erased: every row is read, whatever the statistics say."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField, StructType

from topicberg.errors import TopicbergError
from topicberg.iceberg.file_columns import missing_column, read_columns

_NAN = object()
ColumnPath = tuple[str, ...]  # The name of a column, then the names of fields inside it.
Condition = Mapping[ColumnPath, Sequence[Any]]
"""Column → the values of which a row has one; None is null. A row has one of each column."""


@dataclass(frozen=True)
class Rows:
    """The rows that meet one of the conditions."""

    schema: Schema  # Of the table.
    conditions: tuple[Condition, ...]

    def columns(self) -> set[str]:
        """Return the names of the columns that the conditions are about."""
        return {path[0] for condition in self.conditions for path in condition}

    def in_file(self, io: FileIO, path: str) -> NDArray[np.int64] | None:
        """Return the positions of the rows of a Parquet file, ascending; None: it is deleted.

        :raises TopicbergError: it cannot be read
        """
        positions = [np.empty(0, np.int64)]
        try:
            for batch, first in columns(io, path, self.schema, self.columns()):
                positions.append(first + np.flatnonzero(self.among(batch)))
        except FileNotFoundError:
            return None
        return np.concatenate(positions)

    def among(self, rows: pa.Table | pa.RecordBatch) -> NDArray[np.bool_]:
        """Return for each row, with some columns of the table, whether it is one of them."""
        arrow = schema_to_pyarrow(self.schema, include_field_ids=False)
        mask = np.zeros(rows.num_rows, np.bool_)
        for condition in self.conditions:
            met = np.ones(rows.num_rows, np.bool_)
            for path, values in condition.items():
                kind = reduce(lambda parent, name: parent.field(name).type, path, arrow)
                met &= _is_one_of(self._column(rows, path, kind).cast(kind), pa.array(values, kind))
            mask |= met
        return mask

    def _column(
        self, rows: pa.Table | pa.RecordBatch, path: ColumnPath, kind: pa.DataType
    ) -> pa.Array:
        """Return a column of rows, or a field in it: null, or its default, if they lack it."""
        if path[0] not in rows.schema.names:
            field, number = self.schema.find_field(path[0]), rows.num_rows
            return pa.nulls(number, kind) if len(path) > 1 else missing_column(field, number)
        column = rows.column(path[0])
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        for name in path[1:]:
            if name not in {field.name for field in column.type}:
                return pa.nulls(rows.num_rows, kind)
            column = pc.struct_field(column, name)
        return column


def columns(
    io: FileIO, path: str, schema: Schema, wanted: Collection[str]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield columns of a Parquet file, with the table's names, and the position of the first row.

    A column that the file does not have is left out. Position deletes have no rows of the table.

    :raises FileNotFoundError: there is no such file
    :raises TopicbergError: it cannot be read
    """
    try:
        for arrays, rows, first in read_columns(io, path, schema, wanted):
            yield pa.record_batch(arrays or {"": pa.nulls(rows)}), first
    except pa.ArrowInvalid as error:
        raise TopicbergError(
            f"{path} cannot be read as Parquet: {error}",
            hint="delete the file if no table has it, and run the command again",
        ) from error


def is_data(path: str) -> bool:
    """Return whether a file of a table's folder may have rows, by its name."""
    return not path.endswith(
        (".avro", ".json", ".puffin", ".stats", ".crc", ".text", ".txt", ".keys")
    )


def _is_one_of(column: pa.Array, values: pa.Array) -> NDArray[np.bool_]:
    """Return which values of a column are one of some; -0.0 is 0.0 and NaN is NaN, as in keys."""
    if not pa.types.is_nested(column.type):
        if pa.types.is_floating(column.type):
            zero = pa.scalar(0, column.type)
            column, values = pc.add(column, zero), pc.add(values, zero)  # a zero loses its sign
        is_in = pc.is_in(column, value_set=values)
        return np.asarray(is_in.to_numpy(zero_copy_only=False), np.bool_)
    comparable = [_comparable(value) for value in values.to_pylist()]
    return np.array([_comparable(value) in comparable for value in column.to_pylist()], np.bool_)


def _comparable(value: Any) -> Any:
    """Return a nested value whose NaN is equal to NaN."""
    match value:
        case dict():
            return {name: _comparable(item) for name, item in value.items()}
        case list() | tuple():
            return [_comparable(item) for item in value]
        case float() if math.isnan(value):
            return _NAN
    return value


def fields_in_structs(
    fields: Sequence[NestedField], path: ColumnPath = ()
) -> Iterator[tuple[ColumnPath, IcebergType]]:
    """Yield columns and the fields in their structs, but not those in lists and maps."""
    for field in fields:
        where = (*path, field.name)
        yield where, field.field_type
        if isinstance(field.field_type, StructType):
            yield from fields_in_structs(field.field_type.fields, where)


def find_column(schema: Schema, name: str) -> tuple[ColumnPath, IcebergType] | None:
    """Return the path and the type of a column, or of a field in a struct by ``a.b``.

    Iceberg does not allow a column ``a.b`` beside such a field.
    """
    fields = fields_in_structs(schema.fields)
    return next((field for field in fields if ".".join(field[0]) == name), None)
