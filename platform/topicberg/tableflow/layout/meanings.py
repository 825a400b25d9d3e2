"""What the values of a table's columns mean, also when the schema changes.

A column keeps the unit of its times, and is either text or JSON text: of two rows with the same
value, nothing else would say what each one means. See :mod:`topicberg.formats.meanings`. A table's
property has it by field id; its comments show it, and anyone may edit them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from pyiceberg import types as T
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table

from topicberg.formats.meanings import NULLS, Meaning, meaning_of, parts_of, with_meaning

MEANINGS = "topicberg.meanings"
"""Property of a table, in JSON. ``meanings``: field id → meaning, of the fields whose values have
one. ``last_id``: the highest field id when they were noted."""


class Noted(NamedTuple):
    """What is noted of the fields with ids up to ``last_id``."""

    meanings: Mapping[int, Meaning] = MappingProxyType({})
    last_id: int = 0

    def comment(self, field: T.NestedField) -> str | None:
        """Return the meaning of a field; its comment has that of one that is not noted."""
        own = meaning_of(field.doc) if field.field_id > self.last_id else Meaning()
        return with_meaning(None, self.meanings.get(field.field_id, own))


class _Place(NamedTuple):
    """Values of a column: the field's own, the innermost items or values, or the keys of a map."""

    path: str
    kind: T.IcebergType
    meaning: str | None


def noted(table: Table) -> Noted:
    """Return what is noted: nothing if someone made it unreadable."""
    try:
        contents = json.loads(table.properties[MEANINGS])
        last_id = int(contents["last_id"])
        parts = {int(number): parts_of(text) for number, text in contents["meanings"].items()}
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return Noted()
    if any(description or not any(meaning) for description, meaning in parts.values()):
        return Noted()
    return Noted({number: meaning for number, (_, meaning) in parts.items()}, last_id)


def columns_of(table: Table) -> tuple[T.NestedField, ...]:
    """Return the columns of a table, whose comments are their meanings."""
    return with_noted(table.schema().as_struct(), noted(table)).fields


def with_noted(columns: T.StructType, own: Noted) -> T.StructType:
    """Return the columns of a table with their meanings as comments."""
    return _with_comments(columns, [], lambda field, *_: own.comment(field))


def property_of(
    schema: Schema, last_id: int, columns: T.StructType, before: Noted
) -> dict[str, str]:
    """Return the property of a table.

    :param last_id: the highest id that the table has given to a field
    :param columns: those of the topic's schema, see :func:`followed`
    :param before: what was noted, also of columns that the topic's schema does not have
    """

    def comment(field: T.NestedField, versions: _Versions, _: str) -> str | None:
        (column,) = versions
        return with_meaning(None, meaning_of(column.doc)) if column else before.comment(field)

    fields = index_by_id(Schema(*_with_comments(schema.as_struct(), [columns], comment).fields))
    meanings = {str(number): field.doc for number, field in sorted(fields.items()) if field.doc}
    return {MEANINGS: json.dumps({"last_id": last_id, "meanings": meanings})}


def shown(columns: T.StructType, table: T.StructType) -> T.StructType:
    """Return the columns of a schema with the comments for a table that has other columns.

    A column of a field without a description keeps its comment, which someone may have written.
    """

    def comment(field: T.NestedField, versions: _Versions, _: str) -> str | None:
        (column,) = versions
        description, meaning = parts_of(field.doc)
        if description is None and column is not None and column.doc:
            return None
        if meaning.values == NULLS:
            meaning = meaning._replace(values=None)
        return with_meaning(description, meaning)

    return _with_comments(columns, [table], comment)


def with_older(new: T.StructType, older: Sequence[T.StructType]) -> T.StructType:
    """Return columns; one of nulls means what a text of an older version (newest first) does."""

    def comment(field: T.NestedField, versions: _Versions, _: str) -> str | None:
        description, meaning = parts_of(field.doc)
        if meaning.values != NULLS:
            return field.doc
        places = (_values(version, "") for version in versions if version is not None)
        texts = (place.meaning for place in places if isinstance(place.kind, T.StringType))
        values = next((text for text in texts if text != NULLS), NULLS)
        return with_meaning(description, meaning._replace(values=values))

    return _with_comments(new, older, comment)


def followed(existing: T.StructType, new: T.StructType) -> T.StructType:
    """Return a new schema's columns with the existing meanings; ValueError: one would change."""

    def comment(field: T.NestedField, versions: _Versions, path: str) -> str | None:
        (column,) = versions
        if column is None:
            return field.doc
        for suffix, place_of in (("", _values), (".key", _keys)):
            before, now = (place_of(each, path + suffix) for each in (column, field))
            if before is not None and now is not None:
                _check(before, now)
        description, now_means = parts_of(field.doc)
        means = meaning_of(column.doc)
        values = now_means.values or means.values
        if now_means.values == NULLS:
            values = means.values
        elif means.values == NULLS:
            values = now_means.values
        return with_meaning(description, Meaning(values, now_means.keys or means.keys))

    return _with_comments(new, [existing], comment)


def without_comments(kind: T.IcebergType) -> T.IcebergType:
    """Return a type whose fields have no comments, at every depth."""
    return _inside(kind, [], lambda *_: None, "")


_Versions: TypeAlias = Sequence[T.NestedField | None]
"""The same field in other columns; None: they do not have it."""
_Comment: TypeAlias = Callable[[T.NestedField, _Versions, str], str | None]
"""Returns the comment of a field: of the field, of it in other columns, and of its path."""


def _with_comments(
    columns: T.StructType, others: Sequence[T.IcebergType | None], comment: _Comment, path: str = ""
) -> T.StructType:
    """Return columns with other comments, at every depth; other columns may lack their fields."""
    by_name = [
        {field.name: field for field in other.fields} if isinstance(other, T.StructType) else {}
        for other in others
    ]
    fields = []
    for field in columns.fields:
        where = f"{path}.{field.name}" if path else field.name
        versions = [fields_of.get(field.name) for fields_of in by_name]
        doc = comment(field, versions, where)
        kinds = [version and version.field_type for version in versions]
        kind = _inside(field.field_type, kinds, comment, where)
        fields.append(field.model_copy(update={"doc": doc, "field_type": kind}))
    return T.StructType(*fields)


def _inside(
    kind: T.IcebergType, others: Sequence[T.IcebergType | None], comment: _Comment, path: str
) -> T.IcebergType:
    match kind:
        case T.StructType():
            return _with_comments(kind, others, comment, path)
        case T.ListType():
            items = [getattr(other, "element_type", None) for other in others]
            element = _inside(kind.element_type, items, comment, f"{path}.element")
            return T.ListType(kind.element_id, element, kind.element_required)
        case T.MapType():
            values = [getattr(other, "value_type", None) for other in others]
            value = _inside(kind.value_type, values, comment, f"{path}.value")
            return T.MapType(kind.key_id, kind.key_type, kind.value_id, value, kind.value_required)
    return kind


def _check(before: _Place, now: _Place) -> None:
    """:raises ValueError: values would have another meaning than those that the column has"""
    if before.meaning == now.meaning or NULLS in (before.meaning, now.meaning):
        return
    widens = isinstance(before.kind, T.IntegerType) and isinstance(now.kind, T.LongType)
    are_texts = isinstance(before.kind, T.StringType) and isinstance(now.kind, T.StringType)
    if (before.meaning and now.meaning) or widens or are_texts:
        preposition = "in " if before.meaning and not isinstance(before.kind, T.StringType) else ""
        raise ValueError(
            f"the column {now.path} is {preposition}{_described(before)}, the schema has "
            f"{_described(now)}"
        )


def _described(place: _Place) -> str:
    unit = "text" if isinstance(place.kind, T.StringType) else "a number without a unit"
    return unit if place.meaning is None else place.meaning


def _values(field: T.NestedField, path: str) -> _Place:
    kind = field.field_type
    while isinstance(kind, T.ListType | T.MapType):
        kind = kind.element_type if isinstance(kind, T.ListType) else kind.value_type
    return _Place(path, kind, meaning_of(field.doc).values)


def _keys(field: T.NestedField, path: str) -> _Place | None:
    """Return the keys of the outermost map of a field."""
    kind = field.field_type
    while isinstance(kind, T.ListType):
        kind = kind.element_type
    means = meaning_of(field.doc).keys
    return _Place(path, kind.key_type, means) if isinstance(kind, T.MapType) else None
