"""Columns of data files as columns of their table, whose names differ at any depth.

A name in a file is escaped (:mod:`topicberg.iceberg.names`), or was the field's name when the file
was written: ids say which field is which. Arrow's cast looks up the fields of structs by name, and
fills those that it does not find with null.

Source: Iceberg spec, "Column Projection".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import NestedField

_ID = b"PARQUET:field_id"
_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)


def names_by_id(arrow: pa.Schema) -> dict[int, str]:
    """Return the ids of the columns of a file, and their names in it."""
    return {number: one.name for one in arrow if (number := _id(one)) is not None}


class TableColumns:
    """Columns of data files with the names that the fields have in their table now."""

    def __init__(self, schema: Schema) -> None:
        """:param schema: of the table"""
        self._fields = index_by_id(schema)
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
        self._types = {one.field_id: arrow.field(one.name).type for one in schema.fields}

    def renamed(self, column: _Column, field: pa.Field) -> _Column:
        """Return a column whose nested fields have the table's names.

        Fields that the table does not have any more have names that no field has.

        :param field: of the file
        """
        return retyped(column, self._renamed(field.type))

    def of_table(self, column: _Column, field: pa.Field) -> _Column:
        """Return a column with the type that it has in the table.

        :param field: of the file, with the id of one of the table's columns
        """
        number = _id(field)
        assert number is not None  # noqa: S101  see above
        return self.renamed(column, field).cast(self._types[number])

    def _renamed(self, kind: pa.DataType) -> pa.DataType:
        return _with_fields(kind, [self._field(one) for one in _fields_of(kind)])

    def _field(self, field: pa.Field) -> pa.Field:
        number = _id(field)
        found = field.with_type(self._renamed(field.type))
        return found if number is None else found.with_name(_name(self._fields, number))


def _name(fields: Mapping[int, NestedField], number: int) -> str:
    field = fields.get(number)
    return f"\x1f{number}" if field is None else field.name


def _id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(_ID)
    return None if found is None else int(found)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array with the type of a column of a file, whose fields are in the same places."""
    if array.type == kind:
        return array
    named = _named_like(array.type, kind)
    array = retyped(array, named)
    return array if named == kind else array.cast(kind)


def _named_like(own: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type with the fields of another one of the same structure."""
    pairs = zip(_fields_of(own), _fields_of(other), strict=True)
    return _with_fields(
        own, [like.with_type(_named_like(one.type, like.type)) for one, like in pairs]
    )


def _fields_of(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(place) for place in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    return []


def _with_fields(kind: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(*fields)
    if pa.types.is_list(kind):
        return pa.list_(*fields)
    if pa.types.is_large_list(kind):
        return pa.large_list(*fields)
    return kind


def retyped(column: _Column, kind: pa.DataType) -> _Column:
    """Return a column with a type of the same layout, whose fields have other names."""
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([retyped(one, kind) for one in column.chunks], kind)
    return pa.array(_Retyped(column, kind))


@dataclass(frozen=True)
class _Retyped:
    """An array with another type of the same layout; see Arrow's "PyCapsule Interface"."""

    array: pa.Array
    kind: pa.DataType

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.kind.__arrow_c_schema__(), self.array.__arrow_c_array__()[1]
