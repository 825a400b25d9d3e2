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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa
from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats import limits
from topicberg.formats.columnar.columns import arrow_type
from topicberg.formats.columnar.program import Code, Place, Shape
from topicberg.formats.contract import Pairing, RecordDecoder
from topicberg.formats.protobuf import protoc, record, wire
from topicberg.formats.protobuf.program import emit_record
from topicberg.formats.reasons import byte, shown
from topicberg.formats.subjects import RegisteredSchema

_SCALARS: dict[str, Callable[[], T.IcebergType]] = {
    "double": T.DoubleType,
    "float": T.FloatType,
    "int32": T.IntegerType,
    "sint32": T.IntegerType,
    "sfixed32": T.IntegerType,
    "int64": T.LongType,
    "sint64": T.LongType,
    "sfixed64": T.LongType,
    "uint32": T.LongType,
    "fixed32": T.LongType,
    "uint64": lambda: T.DecimalType(20, 0),
    "fixed64": lambda: T.DecimalType(20, 0),
    "bool": T.BooleanType,
    "string": T.StringType,
    "bytes": T.BinaryType,
    "enum": T.StringType,
}
_WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_DECIMAL = "confluent.type.Decimal"
_SPECIAL: dict[str, tuple[str, Callable[[], T.IcebergType]]] = {
    "google.protobuf.Timestamp": ("timestamp", T.TimestamptzType),
    "google.type.Date": ("date", T.DateType),
    "google.type.TimeOfDay": ("time", T.LongType),
    **{f"google.protobuf.{name}Value": ("wrapper", _SCALARS[name.lower()]) for name in _WRAPPED},
}
"""Well-known messages, but for :data:`_DECIMAL`: the kind, and the column."""
_WHOLE = (T.IntegerType, T.LongType, T.DecimalType)
_TEXT = {"string", "bytes"}
_FILE = "schema.proto"
_MAX_INDEXES = 100


def fields(
    subject: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[T.NestedField]:
    """Return the columns of a message; see :class:`topicberg.formats.Format`."""
    where = f"subject {subject}"
    return message_fields(where, _root(where, schema, message), limits.bounded(where, ids))


def identity(schema: RegisteredSchema, message: str | None = None) -> str | None:
    """Return the full name of the message; see :class:`topicberg.formats.Format`."""
    name: str = _target(schema, message).full_name
    return name


def written(
    writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
) -> frozenset[str]:
    """Return the columns that the writer has a field for; see :class:`..formats.Format`.

    :raises TableflowError: the writer's schema lacks the message, or it cannot become a table
    """
    target = _target(latest, message)
    where = f"schema {writer.schema_id}"
    source = _same_message(where, _file(where, writer), target)
    message_fields(where, source, limits.bounded(where, itertools.count(1)))
    names = {field.number: field.name for field in target.fields}
    return frozenset(names.get(field.number, field.name) for field in source.fields)


def file_fields(name: str, text: str, message: str | None) -> list[T.NestedField]:
    """Return the columns of a message in a file that is not registered yet.

    :raises TableflowError: protoc refuses it, it has no such message, or it cannot become a table
    """
    schema = RegisteredSchema(schema_id=0, schema_type="PROTOBUF", text=text)
    return message_fields(
        name, _root(name, schema, message), limits.bounded(name, itertools.count(1))
    )


def filled(pairing: Pairing) -> frozenset[str]:
    """Return the columns that a writer fills; see :class:`topicberg.formats.Format`.

    A field whose values do not fit the column of the renamed one fills that of its own name.

    :raises TableflowError: as :func:`written` and :func:`reader`
    """
    written(pairing.writer, pairing.latest, pairing.message)  # it can become a table
    own, plan, _ = reader(pairing)
    return frozenset(own[field.column].name for field in plan.fields if field.column is not None)


def program(code: Code, places: Mapping[str, Place], pairing: Pairing) -> None:
    """Append a program that decodes records; see :class:`topicberg.formats.Format`."""
    own, plan, prefixes = reader(pairing)
    emit_record(code, plan, prefixes, places, len(Shape(own).all))


@lru_cache(maxsize=256)
def record_decoder(pairing: Pairing) -> RecordDecoder:
    """Return the reference decoder; see :class:`topicberg.formats.Format`."""
    _, plan, prefixes = reader(pairing)
    return record.decoder(plan, prefixes, lambda payload: _other_message(payload, pairing))


def _other_message(payload: bytes, pairing: Pairing) -> str:
    """Return the reason for message indexes that do not name the table's message."""
    expected = _target(pairing.latest, pairing.message).full_name
    indexes = _indexes(payload)
    if indexes is None:
        return (
            f"the record has no message indexes at {byte(0)}, before its message {expected}: "
            f"{shown(payload[:8])}"
        )
    types: Any = list(_file("the schema", pairing.writer).message_types_by_name.values())
    named = None
    for index in indexes:
        if not 0 <= index < len(types):
            return f"message indexes {indexes}: the schema has no such message"
        named, types = types[index], types[index].nested_types
    assert named is not None  # noqa: S101  there is at least one index
    if named.full_name == expected:
        return f"message indexes {indexes} are encoded in more bytes than necessary"
    return (
        f"message indexes {indexes}: the record is a {named.full_name}, "
        f"the table's message is {expected}"
    )


def _indexes(payload: bytes) -> list[int] | None:
    """Return the message indexes that a record begins with, or None if it does not."""
    numbers: list[int] = []
    at = 0
    while len(numbers) < 1 or (len(numbers) <= numbers[0] < _MAX_INDEXES):
        found = wire.varint(payload, at, len(payload))
        if found is None:
            return None
        numbers.append((found[0] >> 1) ^ -(found[0] & 1))
        at = found[1]
    count, *indexes = numbers
    if count == 0:
        return [0]
    return indexes if len(indexes) == count else None


@lru_cache(maxsize=256)
def message_indexes(schema: RegisteredSchema, message: str | None) -> bytes:
    """Return the message indexes of records of one message type, as the wire format has them.

    :param message: the message type; None: the file's first one
    :raises TableflowError: there is no such message
    """
    return _prefixes(_path(_target(schema, message)))[0]


def reader(
    pairing: Pairing,
) -> tuple[list[T.NestedField], wire.Message, tuple[bytes, ...]]:
    """Return how a writer's records are read.

    :returns: the columns that they fill, how, and the message indexes that they begin with
    :raises TableflowError: the writer's schema lacks the message, or does not fit the columns
    """
    where = f"schema {pairing.writer.schema_id}"
    target = _target(pairing.latest, pairing.message)
    source = _same_message(where, _file(where, pairing.writer), target)
    names = {field.name for one in (source, target) for field in one.fields}
    own = [
        field for field in pairing.fields if field.name in names
    ]  # the table has other columns, too
    try:
        plan = _message(source, target, own)
    except _MisfitError as misfit:
        raise TableflowError(
            f"{where}: field {misfit.field} {misfit}",
            hint="register a compatible version, or disable Tableflow for the topic and enable it "
            "again, which creates a new table",
        ) from None
    return own, plan, _prefixes(_path(source))


# --- the schema ---


def _file(where: str, schema: RegisteredSchema) -> Any:
    limits.check_size(where, schema)
    names = {name for name, _ in schema.references}
    file = next(name for name in (_FILE, f"topicberg/{_FILE}") if name not in names)
    try:
        return protoc.compiled(file, schema.text, schema.references)
    except TableflowError as error:
        raise TableflowError(f"{where} is not Protobuf: {error.message}", hint=error.hint) from None


def _root(where: str, schema: RegisteredSchema, message: str | None) -> Any:
    """Return the descriptor of the message that defines the table."""
    file = _file(where, schema)
    types = list(file.message_types_by_name.values())
    if not types:
        raise TableflowError(
            f"{where} defines no message", hint="define a message: its fields become columns"
        )
    if message is None:
        return types[0]
    found = _named(file, message.removeprefix(f"{file.package}."))
    if found is None:
        names = ", ".join(one.name for one in types)
        raise TableflowError(f"{where} has no message {message}; there are {names}")
    return found


def _target(schema: RegisteredSchema, message: str | None) -> Any:
    return _root(f"schema {schema.schema_id}", schema, message)


def _named(file: Any, name: str) -> Any:
    """Return a message by its name in the file (``Outer.Inner``), or None."""
    first, *inner = name.split(".")
    found = file.message_types_by_name.get(first)
    for part in inner:
        found = found and found.nested_types_by_name.get(part)
    return found


def _same_message(where: str, file: Any, message: Any) -> Any:
    """Return the message of that name in another version of the file, or the renamed message.

    A renamed message is the one in the same place, if each of the two names is in only one of the
    versions: a message that both versions have was moved, and is another type.

    :raises TableflowError: there is neither
    """
    name = message.full_name.removeprefix(f"{message.file.package}.")
    if found := _named(file, name):
        return found
    types: Any = list(file.message_types_by_name.values())
    found = None
    for index in _path(message):
        found = types[index] if index < len(types) else None
        if found is None:
            break
        types = found.nested_types
    if found is None or _named(message.file, found.full_name.removeprefix(f"{file.package}.")):
        raise TableflowError(
            f"{where} has no message {name}",
            hint="name the topic's message type in its spec, or produce with a schema that has it",
        )
    return found


def _path(message: Any) -> list[int]:
    """Return the message indexes: the message's place in its parent, after the parent's indexes."""
    path: list[int] = []
    while message is not None:
        around = message.containing_type
        beside = (
            message.file.message_types_by_name.values() if around is None else (around.nested_types)
        )
        path.insert(0, [one.full_name for one in beside].index(message.full_name))
        message = around
    return path


def _prefixes(path: list[int]) -> tuple[bytes, ...]:
    """Return the encodings of message indexes: zig-zag varints after their count; [0] also as 0."""

    def varint(number: int) -> bytes:
        rest, encoded = number * 2, bytearray()
        while rest > 0x7F:
            encoded.append(rest & 0x7F | 0x80)
            rest >>= 7
        return bytes([*encoded, rest])

    full = b"".join(varint(number) for number in (len(path), *path))
    return (b"\x00", full) if path == [0] else (full,)


# --- the columns ---


def message_fields(
    where: str, message: Any, ids: Iterator[int], above: tuple[str, ...] = ()
) -> list[T.NestedField]:
    """Return the columns of a message (a descriptor); ``above``: the messages that contain it."""
    inside = (*above, message.full_name)
    limits.check_depth(where, len(inside))
    columns = []
    for field in message.fields:
        limits.check_name(where, field.name)
        number = next(ids)
        kind = _column_type(where, field, ids, inside)
        columns.append(T.NestedField(number, field.name, kind, required=False))
    return columns


def _column_type(
    where: str, field: Any, ids: Iterator[int], above: tuple[str, ...]
) -> T.IcebergType:
    """Return the type of a field's column."""
    if _is_map(field):
        key, value = field.message_type.fields
        key_id, value_id = next(ids), next(ids)
        key_type = _SCALARS[_kind(key)]()
        value_type = _value_type(where, value, ids, above)
        return T.MapType(key_id, key_type, value_id, value_type, value_required=False)
    if field.is_repeated:
        element_id = next(ids)
        element = _value_type(where, field, ids, above)
        return T.ListType(element_id, element, element_required=False)
    return _value_type(where, field, ids, above)


def _value_type(
    where: str, field: Any, ids: Iterator[int], above: tuple[str, ...]
) -> T.IcebergType:
    message = field.message_type
    if message is None:
        return _SCALARS[_kind(field)]()
    if _special(where, message) == "decimal":
        return _decimal(where, field)
    if message.full_name in _SPECIAL:
        return _SPECIAL[message.full_name][1]()
    if message.full_name in above:
        raise TableflowError(
            f"{where}: field {field.full_name} refers to {message.full_name}, which contains it",
            hint="break the cycle: a recursive schema cannot become a table",
        )
    inner = message_fields(where, message, ids, above)
    if not inner:
        inner = [T.NestedField(next(ids), wire.PRESENT, T.BooleanType(), required=False)]
    return T.StructType(*inner)


def _special(where: str, message: Any) -> str | None:
    """Return the kind of a well-known message; None: it is another one.

    :raises TableflowError: it has the name of a well-known message, but other fields
    """
    name = message.full_name
    if name not in _SPECIAL and name != _DECIMAL:
        return None
    if _layout(message) != _layout(_known(name)):
        raise TableflowError(
            f"{where}: {name} is not defined as in its library",
            hint="import the library's file, or give the message a name of your own",
        )
    return "decimal" if name == _DECIMAL else _SPECIAL[name][0]


@cache
def _known(name: str) -> Any:
    """Return the descriptor of a well-known message, as its library defines it."""
    from google.protobuf import descriptor_pool, timestamp_pb2, wrappers_pb2
    from google.type import date_pb2, timeofday_pb2

    if name == _DECIMAL:
        pool = descriptor_pool.DescriptorPool()
        pool.Add(protoc.decimal_file())
        return pool.FindMessageTypeByName(name)
    files = (timestamp_pb2, wrappers_pb2, date_pb2, timeofday_pb2)
    messages: Any = (m for f in files for m in f.DESCRIPTOR.message_types_by_name.values())
    return next(one for one in messages if one.full_name == name)


def _layout(message: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (one.number, one.name, one.type, one.is_repeated, one.has_presence)
        for one in message.fields
    )


def _decimal(where: str, field: Any) -> T.DecimalType:
    from confluent_kafka.schema_registry.confluent import meta_pb2

    owner = field.containing_type
    if owner.GetOptions().map_entry:  # a map's options are on the field of the map's type
        owner_fields = owner.containing_type.fields
        field = next(one for one in owner_fields if one.message_type is owner)
    params = field.GetOptions().Extensions[meta_pb2.field_meta].params  # type: ignore[attr-defined]
    try:
        precision, scale = int(params["precision"]), int(params["scale"] or 0)
    except ValueError:
        precision, scale = 0, 0
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise TableflowError(
            f"{where}: field {field.full_name} is a decimal without a precision from 1 to 38 and "
            "a scale up to it",
            hint='declare (confluent.field_meta) = {params: [{key: "precision", value: "10"}, '
            '{key: "scale", value: "2"}]}',
        )
    return T.DecimalType(precision, scale)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _kind(field: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    name: str = FieldDescriptorProto.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


# --- how records are read ---


class _MisfitError(Exception):
    """A field's values cannot be in this column."""

    def __init__(self, field: Any, problem: str) -> None:
        super().__init__(problem)
        self.field: str = field.full_name
        self.message = field.containing_type

    def of_inner(self, field: Any) -> _MisfitError:
        """Return the problem as that of the user's field, not of a message that stands for it."""
        if self.message is not field.message_type:
            return self
        part = self.field.rpartition(".")[2]
        return _MisfitError(field, f"has a {part} that {self}" if _is_map(field) else str(self))


def _message(source: Any, target: Any, columns: Sequence[T.NestedField]) -> wire.Message:
    """Return how the writer's message becomes these columns.

    :param target: the latest schema's message, which names the fields; None: it has none
    :raises _MisfitError: a field's values fit no column, or its column has another field's values
    """
    places = {column.name: place for place, column in enumerate(columns)}
    latest = {} if target is None else target.fields_by_number
    namesakes = {} if target is None else target.fields_by_name
    taken: set[str] = set()
    read: list[wire.Field] = []
    rest: list[Any] = []
    for field in source.fields:
        twin = latest.get(field.number)
        if twin is None or twin.name not in places:
            rest.append(field)
            continue
        try:
            read.append(_field(field, twin, columns[places[twin.name]], places[twin.name]))
            taken.add(twin.name)
        except _MisfitError:
            if twin.name == field.name or field.name not in places:
                raise
            rest.append(field)
    for field in rest:
        if field.name in taken:
            raise _MisfitError(field, "has no column: its name is that of a later field")
        place = places.get(field.name)
        column = None if place is None else columns[place]
        # The fields inside are named as in the latest field of that name, whatever its number is.
        read.append(_field(field, namesakes.get(field.name), column, place))
    return wire.Message(
        fields=tuple(read),
        names=tuple(column.name for column in columns),
        types=tuple(arrow_type(column.field_type) for column in columns),
    )


def _field(field: Any, twin: Any, column: T.NestedField | None, place: int | None) -> wire.Field:
    oneof = field.containing_oneof
    facts: dict[str, Any] = {
        "name": field.name,
        "number": field.number,
        "kind": _kind(field),
        "column": place,
        "repeated": field.is_repeated,
        "required": field.is_required,
        "oneof": None if oneof is None else oneof.index,
        "symbols": _symbols(field),
        "is_closed": field.enum_type is not None and field.enum_type.is_closed,
    }
    if column is None:
        return wire.Field(type=None, **facts)
    kind = column.field_type
    if _is_map(field):
        if not isinstance(kind, T.MapType):
            raise _MisfitError(field, f"is a map, its column a {kind}")
        entry = [
            T.NestedField(kind.key_id, "key", kind.key_type, required=False),
            T.NestedField(kind.value_id, "value", kind.value_type, required=False),
        ]
        twin_entry = twin.message_type if twin is not None and _is_map(twin) else None
        try:
            inner = _message(field.message_type, twin_entry, entry)
        except _MisfitError as misfit:
            raise misfit.of_inner(field) from None
        return wire.Field(type=arrow_type(kind), is_map=True, message=inner, **facts)
    element = kind
    if field.is_repeated:
        if not isinstance(kind, T.ListType):
            raise _MisfitError(field, f"is repeated, its column a {kind}")
        element = kind.element_type
    message, special = None, None
    if field.message_type is not None:
        message, special = _inner(field, twin, element)
    else:
        _check_fits(field, _SCALARS[facts["kind"]](), element)
    absent = _absent(field)
    if field.message_type is None and absent is not None:
        try:
            pa.scalar(absent, arrow_type(element))
        except (pa.ArrowException, OverflowError, UnicodeDecodeError):
            raise _MisfitError(
                field, f"has a default that its column, a {kind}, cannot hold"
            ) from None
    return wire.Field(
        type=arrow_type(kind), message=message, special=special, absent=absent, **facts
    )


def _inner(field: Any, twin: Any, column: T.IcebergType) -> tuple[wire.Message, str | None]:
    """Return how a message's values are read, and the kind of a well-known message."""
    inner = field.message_type
    special = _special("the writer's schema", inner)
    if special == "wrapper":
        own = [T.NestedField(1, "value", column, required=False)]
        try:
            return _message(inner, None, own), special
        except _MisfitError as misfit:
            raise misfit.of_inner(field) from None
    if special is not None:
        natural = _value_type("the writer's schema", field, itertools.count(1), ())
        _check_fits(field, natural, column)
        parts = {one.name: one for one in message_fields("", inner, itertools.count(1))}
        names = (
            ("value", "scale") if special == "decimal" else _known(inner.full_name).fields_by_name
        )
        return _message(inner, None, [parts[name] for name in names]), special
    if not isinstance(column, T.StructType):
        raise _MisfitError(field, f"is a message, its column a {column}")
    twin_message = None if twin is None else twin.message_type
    is_marked = not inner.fields and any(one.name == wire.PRESENT for one in column.fields)
    return _message(inner, twin_message, column.fields), "empty" if is_marked else None


def _check_fits(field: Any, natural: T.IcebergType, column: T.IcebergType) -> None:
    """Check that the column can hold such values: all of them, or those that it holds exactly.

    Integers can go to each other's columns and to decimals, decimals to decimals, and text to bytes
    and back; a value that the column does not hold exactly makes its record malformed.
    """
    whole = isinstance(natural, _WHOLE) and getattr(natural, "scale", 0) == 0
    fits = natural == column or (
        (whole and isinstance(column, _WHOLE))
        or (isinstance(natural, T.DecimalType) and isinstance(column, T.DecimalType))
        or (isinstance(natural, T.FloatType) and isinstance(column, T.DoubleType))
        or (_kind(field) in _TEXT and isinstance(column, T.StringType | T.BinaryType))
    )
    if not fits:
        raise _MisfitError(field, f"is a {natural}, its column a {column}")


def _symbols(field: Any) -> dict[int, str] | None:
    if field.enum_type is None:
        return None
    values = reversed(list(field.enum_type.values))  # the first of several names is used
    return {value.number: value.name for value in values}


def _absent(field: Any) -> Any:
    """Return the value in a record that lacks the field; None: null."""
    in_map = field.containing_type.GetOptions().map_entry
    if field.is_repeated or (field.has_presence and not field.has_default_value and not in_map):
        return None
    if field.message_type is not None:
        return True
    if field.enum_type is not None:
        return _symbols(field)[field.default_value]  # type: ignore[index]
    return field.default_value


def absent_values(schema: RegisteredSchema, message: str | None) -> dict[str, Any]:
    """Return the values of fields that are never null, which a message without the field has.

    Those of the fields of messages are in a dictionary of their own.
    """
    return _absent_values(_target(schema, message))


def _absent_values(message: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in message.fields:
        if field.is_repeated:
            continue
        if field.message_type is None:
            values[field.name] = _absent(field)
        elif _special("the key's schema", field.message_type) is None:
            values[field.name] = _absent_values(field.message_type)
    return values
