"""Protobuf: the table's types, and what decodes its records.

Types are those of "Protobuf schema type mapping" in Confluent's "Schemas with Tableflow". Details
that it leaves open:

* ``google.type.TimeOfDay`` is a long, microseconds of the day: Spark reads no ``time`` columns.
* Wrappers are nullable columns of the wrapped type. ``google.protobuf.Any`` and ``Duration`` are
  structs of their fields. A message without fields is a struct of the field ``is_present``, which
  is true: Parquet has no empty struct, and a later version may give it fields.
* ``confluent.type.Decimal`` needs the parameters ``precision`` and ``scale`` of its
  ``(confluent.field_meta)``.
* The members of a oneof are columns; all but one are null.
* A field that a record lacks is null if the schema distinguishes "not set" from the default
  (proto3's ``optional``, proto2, messages), else the default. proto2's declared default is always
  used.
* An enum number without a name stays a number: the text ``7``, as in Protobuf's JSON. In a closed
  enum (proto2, editions' ``enum_type = CLOSED``) it is an unknown field.
* Extensions and unknown fields are ignored. A field of another wire type than the schema's, a
  missing ``required`` field, text that is not UTF-8, and a date or time that does not exist make
  the record malformed.

A topic has one message type: the file's first one, or the one of the spec. A record of another type
of the same file is malformed.

Fields are matched by number: the value of a field that the latest schema renames is in the column
of the latest name. A field that it dropped, or whose number it uses for another type, is in the
column of its own name; if there is none, or it has another field's values, the writer's records are
malformed. So is a record with a number out of its column's range, where versions differ in the
range. Columns that a record's schema does not have are null.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats import limits
from topicberg.formats.columnar.program import ProgramCode, Shape, Slots
from topicberg.formats.contract import RecordDecoder, ResolvedSchema
from topicberg.formats.protobuf import record, wire
from topicberg.formats.protobuf.columns import message_fields
from topicberg.formats.protobuf.program import emit_record
from topicberg.formats.protobuf.resolution import FieldMisfitError, absent_of_message, message_plan
from topicberg.formats.protobuf.schema import (
    file_of,
    glue_index,
    glue_messages,
    index_prefixes,
    indexes_of,
    root_message,
    same_message,
    target_message,
)
from topicberg.formats.reasons import byte, shown
from topicberg.formats.subjects import RegisteredSchema

_MAX_INDEXES = 100


def fields(
    where: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[T.NestedField]:
    """Return the columns of a message; see :class:`..contract.Format`."""
    return message_fields(where, root_message(where, schema, message), limits.bounded(where, ids))


def identity(schema: RegisteredSchema, message: str | None = None) -> str | None:
    """Return the full name of the message; see :class:`..contract.Format`."""
    return str(target_message(schema, message).full_name)


def written(
    writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
) -> frozenset[str]:
    """Return the columns that the writer has a field for; see :class:`..contract.Format`."""
    target, where = target_message(latest, message), writer.label
    source = same_message(where, file_of(where, writer), target)
    message_fields(where, source, limits.bounded(where, itertools.count(1)))
    names = {field.number: field.name for field in target.fields}
    return frozenset(names.get(field.number, field.name) for field in source.fields)


def is_union(schema: RegisteredSchema) -> bool:
    """Return False: a topic has one message type; see :class:`..contract.Format`."""
    return False


def as_record(schema: RegisteredSchema, name: str) -> RegisteredSchema:
    """Return the schema: Protobuf has only messages; see :class:`..contract.Format`."""
    return schema


def check_file(where: str, schema: RegisteredSchema) -> None:
    """Accept the file: :func:`fields` has protoc check it; see :class:`..contract.Format`."""


def filled(resolved_schema: ResolvedSchema) -> frozenset[str]:
    """Return the columns that a writer fills; see :class:`topicberg.formats.contract.Format`. A
    field whose values do not fit the column of the renamed one fills that of its own name."""
    # This checks that the schema can become a table.
    written(resolved_schema.writer, resolved_schema.latest, resolved_schema.message)
    columns, plan, _ = reader(resolved_schema)
    return frozenset(
        columns[field.column].name for field in plan.fields if field.column is not None
    )


def program(code: ProgramCode, slots: Slots, resolved_schema: ResolvedSchema) -> None:
    """Append a program that decodes records; see :class:`..contract.Format`."""
    columns, plan, prefixes = reader(resolved_schema)
    emit_record(code, plan, prefixes, slots, len(Shape(columns).all))


@lru_cache(maxsize=256)
def record_decoder(resolved_schema: ResolvedSchema) -> RecordDecoder:
    """Return the reference decoder; see :class:`..contract.Format`."""
    _, plan, prefixes = reader(resolved_schema)
    return record.decoder(plan, prefixes, lambda payload: _other_message(payload, resolved_schema))


def _other_message(payload: bytes, resolved_schema: ResolvedSchema) -> str:
    """Return the reason for message indexes that do not name the table's message."""
    expected = target_message(resolved_schema.latest, resolved_schema.message).full_name
    indexes = "index" if resolved_schema.writer.has_glue_index else "indexes"
    if (record_message := message_of_record(payload, resolved_schema.writer)) is None:
        return (
            f"the record has no message {indexes} at {byte(0)}, before its message {expected}: "
            f"{shown(payload[:8])}"
        )
    label = f"message {indexes} {record_message.indexes}"
    if record_message.message is None:
        return f"{label}: the schema has no such message"
    if record_message.message.full_name == expected:
        verb = "is" if resolved_schema.writer.has_glue_index else "are"
        return f"{label} {verb} encoded in more bytes than necessary"
    return (
        f"{label}: the record is a {record_message.message.full_name}, "
        f"the table's message is {expected}"
    )


class RecordMessage(NamedTuple):
    """The message that a record names (None: the schema has none), and where it begins."""

    indexes: list[int] | int
    message: Any
    begin: int


def message_of_record(payload: bytes, writer: RegisteredSchema) -> RecordMessage | None:
    """Return the message that a record of a schema begins with, or None if it names none."""
    file = file_of("the schema", writer)
    if writer.has_glue_index:
        if (varint := wire.varint(payload, 0, len(payload))) is None:
            return None
        messages, (index, begin) = glue_messages(file), varint
        return RecordMessage(index, messages[index] if index < len(messages) else None, begin)
    if (read := indexes_of_record(payload)) is None:
        return None
    indexes, begin = read
    message, types = None, list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(types):
            return RecordMessage(indexes, None, begin)
        message, types = types[index], types[index].nested_types
    return RecordMessage(indexes, message, begin)


def indexes_of_record(payload: bytes) -> tuple[list[int], int] | None:
    """Return Confluent's message indexes before a record, and where they end; None: it has none."""
    numbers, position = list[int](), 0
    while not numbers or len(numbers) <= numbers[0] < _MAX_INDEXES:
        if (varint := wire.varint(payload, position, len(payload))) is None:
            return None
        number, position = varint
        numbers.append((number >> 1) ^ -(number & 1))
    count, *indexes = numbers
    return (indexes or [0], position) if len(indexes) == count else None


@lru_cache(maxsize=256)
def message_indexes(schema: RegisteredSchema, message: str | None) -> bytes:
    """Return the bytes of the indexes of a message (None: the file's first) before its records."""
    return index_prefixes(indexes_of(target_message(schema, message)))[0]


def reader(
    resolved_schema: ResolvedSchema,
) -> tuple[list[T.NestedField], wire.Message, tuple[bytes, ...]]:
    """Return the columns that a writer's records fill, how, and the indexes that they begin with.

    :raises TableflowError: the writer's schema lacks the message, or does not fit the columns
    """
    where = resolved_schema.writer.label
    target = target_message(resolved_schema.latest, resolved_schema.message)
    source = same_message(where, file_of(where, resolved_schema.writer), target)
    names = {field.name for message in (source, target) for field in message.fields}
    # The table has columns of the key, too.
    columns = [field for field in resolved_schema.fields if field.name in names]
    try:
        plan = message_plan(source, target, columns)
    except FieldMisfitError as misfit:
        raise TableflowError(
            f"{where}: field {misfit.field} {misfit}",
            hint="register a compatible version, or disable Tableflow for the topic and enable it "
            "again, which creates a new table",
        ) from None
    is_glue = resolved_schema.writer.has_glue_index
    return columns, plan, (glue_index(source),) if is_glue else index_prefixes(indexes_of(source))


def absent_values(schema: RegisteredSchema, message: str | None) -> dict[str, Any]:
    """Return the values of fields that are never null, which a message without the field has. Those
    of the fields of messages are in a dictionary of their own."""
    return absent_of_message(target_message(schema, message))
