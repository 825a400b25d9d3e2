"""Columns of data files as columns of their table, whose names differ at any depth.

A name in a file is escaped (:mod:`topicberg.iceberg.names`), or was the field's name when the file
was written: ids say which field is which. Arrow's cast looks up the fields of structs by name, and
fills those that it does not find with null.

Source: Iceberg spec, "Column Projection".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyiceberg.schema import Schema, index_by_id

from topicberg.iceberg.files import field_id

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)


def with_names_of(schema: Schema, column: _Column, field: pa.Field) -> _Column:
    """Return a column whose nested fields have the names that they have in their table now.

    Fields that the table does not have any more have names that no field has.

    :param field: of the file
    """
    fields = index_by_id(schema)

    def renamed(kind: pa.DataType) -> pa.DataType:
        return _with_fields(kind, [named(nested) for nested in _fields_of(kind)])

    def named(nested: pa.Field) -> pa.Field:
        own, number = nested.with_type(renamed(nested.type)), field_id(nested)
        if number is None:
            return own
        return own.with_name(fields[number].name if number in fields else f"\x1f{number}")

    return retyped(column, renamed(field.type))


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
