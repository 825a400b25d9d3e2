"""Columns of data files as columns of their table, whose names differ at any depth.

A name in a file is escaped (:mod:`topicberg.iceberg.names`), or was the field's name when the file
was written: ids say which field is which. Arrow's cast looks up the fields of structs by name, and
fills those that it does not find with null.

A field that a file does not have is null, or has the default of when it was added.

Source: Iceberg spec, "Column Projection" and "Default values".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import NestedField, StructType

from topicberg.iceberg.files import field_id, names_by_id, names_in_file

DELETE_FIELDS = {"file_path": 2147483546, "pos": 2147483545}
"""Column of a position delete file → its id, which the Iceberg spec reserves."""
_ROWS_AT_ONCE = 200_000
_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)


def read_columns(
    io: FileIO, path: str, schema: Schema, names: Collection[str]
) -> Iterator[tuple[dict[str, pa.Array], int, int]]:
    """Yield columns of some rows of a Parquet file, how many these are, and where they begin.

    Columns that the file does not have are left out. A position delete file has no rows of a table;
    it is known by its ids, as a table may have columns with the same names.

    :param names: of columns of the table
    :raises FileNotFoundError: there is no such file
    :raises ArrowInvalid: it is not Parquet
    """
    with io.new_input(path).open() as stream:
        parquet, first = pq.ParquetFile(stream), 0
        arrow = parquet.schema_arrow
        if names_by_id(arrow).keys() >= set(DELETE_FIELDS.values()):
            return
        names_in_parquet = names_in_file(
            arrow, {schema.find_field(name).field_id: name for name in names}
        )
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=list(names_in_parquet)):
            columns = {
                name: with_names_of(schema, batch.column(inside), arrow.field(inside))
                for inside, name in names_in_parquet.items()
            }
            yield columns, batch.num_rows, first
            first += batch.num_rows


def with_names_of(schema: Schema, column: _Column, field: pa.Field) -> _Column:
    """Return a column whose nested fields have the names that they have in their table now.

    Fields that the table does not have any more have names that no field has. Fields of structs
    that the file does not have are added if they have a default.

    :param field: of the file
    """
    fields = index_by_id(schema)

    def renamed(kind: pa.DataType) -> pa.DataType:
        return _with_fields(kind, [named(nested) for nested in _fields_of(kind)])

    def named(nested: pa.Field) -> pa.Field:
        inner, number = nested.with_type(renamed(nested.type)), field_id(nested)
        name = fields[number].name if number in fields else f"\x1f{number}"
        return inner if number is None else inner.with_name(name)

    column = retyped(column, renamed(field.type))
    number = field_id(field)
    kind = fields[number].field_type if number in fields else None
    return _with_defaults(column, kind) if isinstance(kind, StructType) else column


def missing_column(field: NestedField, rows: int) -> pa.Array:
    """Return what rows have in a column that their file does not have."""
    return constant(field.initial_default, _arrow_type(field), rows)


def unwritten_column(field: NestedField, rows: int) -> pa.Array:
    """Return what new rows have in a column for which nothing has a value."""
    return constant(field.write_default, _arrow_type(field), rows)


def constant(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """Return an array of one value; None is null."""
    if value is None:
        return pa.nulls(rows, kind)
    value = value.bytes if isinstance(value, UUID) else value
    return pa.repeat(pa.scalar(value, kind), rows)


def _arrow_type(field: NestedField) -> pa.DataType:
    return schema_to_pyarrow(Schema(field), include_field_ids=False).field(0).type


def _has_defaults(kind: StructType) -> bool:
    return any(
        field.initial_default is not None
        or (isinstance(field.field_type, StructType) and _has_defaults(field.field_type))
        for field in kind.fields
    )


def _with_defaults(column: _Column, kind: StructType) -> _Column:
    """Return structs with the fields that they lack and that have a default."""
    if not _has_defaults(kind):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_with_defaults(chunk, kind) for chunk in column.chunks])
    arrays: dict[str, Any] = {f.name: column.field(place) for place, f in enumerate(column.type)}
    for field in kind.fields:
        if field.name not in arrays and field.initial_default is not None:
            arrays[field.name] = missing_column(field, len(column))
        elif field.name in arrays and isinstance(field.field_type, StructType):
            arrays[field.name] = _with_defaults(arrays[field.name], field.field_type)
    return pa.StructArray.from_arrays([*arrays.values()], names=[*arrays], mask=column.is_null())


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array with the type of a column of a file, whose fields are in the same places."""
    if array.type == kind:
        return array
    named = _named_like(array.type, kind)
    array = retyped(array, named)
    return array if named == kind else array.cast(kind)


def _named_like(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type with the fields of another one of the same structure."""
    pairs = zip(_fields_of(kind), _fields_of(other), strict=True)
    fields = [like.with_type(_named_like(array.type, like.type)) for array, like in pairs]
    return _with_fields(kind, fields)


def _fields_of(kind: pa.DataType) -> list[pa.Field]:
    match kind:
        case pa.StructType():
            return list(kind)
        case pa.MapType():
            return [kind.key_field, kind.item_field]
        case pa.ListType() | pa.LargeListType():
            return [kind.value_field]
    return []


def _with_fields(kind: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    match kind:
        case pa.StructType():
            return pa.struct(fields)
        case pa.MapType():
            return pa.map_(*fields)
        case pa.ListType():
            return pa.list_(*fields)
    return pa.large_list(*fields) if pa.types.is_large_list(kind) else kind


def retyped(column: _Column, kind: pa.DataType) -> _Column:
    """Return a column with a type of the same layout, whose fields have other names."""
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([retyped(chunk, kind) for chunk in column.chunks], kind)
    return pa.array(_Retyped(column, kind))


@dataclass(frozen=True)
class _Retyped:
    """An array with another type of the same layout; see Arrow's "PyCapsule Interface".
    ``Array.view`` gives a slice of structs with a field of nulls a field of another length."""

    array: pa.Array
    kind: pa.DataType

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.kind.__arrow_c_schema__(), self.array.__arrow_c_array__()[1]
