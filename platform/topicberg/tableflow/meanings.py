"""What the values of a table's columns mean, when the schema changes.

A column keeps the unit of its times, and is either text or JSON text: of two rows with the same
value, nothing else would say what each one means. See :mod:`topicberg.formats.meanings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyiceberg.types import (
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from topicberg.formats.meanings import Meaning, meaning_of, with_meaning

HAS_MEANINGS = "topicberg.has-meanings"
"""Property of a table: its comments have always said what its columns mean."""


class _Place(NamedTuple):
    """Values of a column: the field's own, the innermost items or values, or the keys of a map."""

    path: str
    kind: IcebergType
    meaning: str | None


def followed(
    existing: StructType,
    new: StructType,
    older: Sequence[StructType] = (),
    *,
    is_documented: bool,
    path: str = "",
) -> StructType:
    """Return the columns of a new schema, whose comments keep what those of the table say.

    :param older: the columns of older versions of the schema: they say what the values of a table
        mean that is not documented
    :param is_documented: whether the table has :data:`HAS_MEANINGS`
    :raises ValueError: a column would have values of different meanings
    """
    by_name = {field.name: field for field in existing.fields}
    fields = []
    for field in new.fields:
        column = by_name.get(field.name)
        if column is None:
            fields.append(field)
            continue
        where = f"{path}.{field.name}" if path else field.name
        versions = [struct.field_by_name(field.name) for struct in older]
        others = [version for version in versions if version is not None]
        for suffix, place_of in (("", _values), (".key", _keys)):
            before, now = (place_of(each, where + suffix) for each in (column, field))
            if before is not None and now is not None:
                _check(
                    before,
                    now,
                    [place for other in others if (place := place_of(other, "")) is not None],
                    is_documented=is_documented,
                )
        inside = _inside(
            column.field_type,
            field.field_type,
            [other.field_type for other in others],
            is_documented=is_documented,
            path=where,
        )
        doc = field.doc and with_meaning(field.doc, _lost(column, field))
        fields.append(NestedField(field.field_id, field.name, inside, field.required, doc))
    return StructType(*fields)


def _lost(column: NestedField, field: NestedField) -> Meaning:
    """Return what the comment of a column says of its values, and the new comment does not."""
    before, now = meaning_of(column.doc), meaning_of(field.doc)
    return Meaning(
        None if now.values else before.values, None if now.keys or now.values else before.keys
    )


def _inside(
    column: IcebergType,
    new: IcebergType,
    older: Sequence[IcebergType],
    *,
    is_documented: bool,
    path: str,
) -> IcebergType:
    """Return a new type whose inner fields keep the comments of the column's."""
    rest: dict[str, Any] = {"is_documented": is_documented, "path": path}
    match column, new:
        case StructType(), StructType():
            structs = [other for other in older if isinstance(other, StructType)]
            return followed(column, new, structs, **rest)
        case ListType(), ListType():
            items = [other.element_type for other in older if isinstance(other, ListType)]
            rest["path"] += ".element"
            element = _inside(column.element_type, new.element_type, items, **rest)
            return ListType(new.element_id, element, new.element_required)
        case MapType(), MapType():
            values = [other.value_type for other in older if isinstance(other, MapType)]
            rest["path"] += ".value"
            value = _inside(column.value_type, new.value_type, values, **rest)
            return MapType(new.key_id, new.key_type, new.value_id, value, new.value_required)
    return new


def _check(before: _Place, now: _Place, older: Sequence[_Place], *, is_documented: bool) -> None:
    """:raises ValueError: values would have another meaning than those that the column has"""
    if before.meaning and now.meaning and before.meaning != now.meaning:
        raise _differs(now.path, before, now)
    if {type(before.kind), type(now.kind)} <= {IntegerType, LongType}:
        widens = isinstance(before.kind, IntegerType) and isinstance(now.kind, LongType)
        if widens and before.meaning != now.meaning:
            raise _differs(now.path, before, now)
        if before.meaning is None and now.meaning is not None and not is_documented:
            for other in older:
                if other.meaning not in (None, now.meaning):
                    raise _differs(now.path, other, now)
    elif isinstance(before.kind, StringType) and isinstance(now.kind, StringType):
        if (is_documented or before.meaning) and before.meaning != now.meaning:
            raise _differs(now.path, before, now)
        for other in () if is_documented else older:
            is_text = isinstance(other.kind, StringType) and before.meaning is None
            if is_text and other.meaning != now.meaning:
                raise _differs(now.path, other, now)


def _differs(path: str, before: _Place, now: _Place) -> ValueError:
    preposition = "in " if before.meaning and not isinstance(before.kind, StringType) else ""
    return ValueError(
        f"the column {path} is {preposition}{_described(before)}, the schema has {_described(now)}"
    )


def _described(place: _Place) -> str:
    if place.meaning is not None:
        return place.meaning
    return "text" if isinstance(place.kind, StringType) else "a number without a unit"


def _values(field: NestedField, path: str) -> _Place:
    kind = field.field_type
    while isinstance(kind, ListType | MapType):
        kind = kind.element_type if isinstance(kind, ListType) else kind.value_type
    return _Place(path, kind, meaning_of(field.doc).values)


def _keys(field: NestedField, path: str) -> _Place | None:
    """Return the keys of the outermost map of a field."""
    kind = field.field_type
    while isinstance(kind, ListType):
        kind = kind.element_type
    if not isinstance(kind, MapType):
        return None
    return _Place(path, kind.key_type, meaning_of(field.doc).keys)
