"""The columns of a message, as the package says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats import limits
from topicberg.formats.protobuf import wire

SCALARS: dict[str, Callable[[], T.IcebergType]] = {
    "double": T.DoubleType,
    "float": T.FloatType,
    "bool": T.BooleanType,
    "bytes": T.BinaryType,
    **dict.fromkeys(("string", "enum"), T.StringType),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), T.IntegerType),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), T.LongType),
    **dict.fromkeys(("uint64", "fixed64"), lambda: T.DecimalType(20, 0)),
}
_WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_DECIMAL = "confluent.type.Decimal"
_SPECIAL: dict[str, tuple[str, Callable[[], T.IcebergType]]] = {
    "google.protobuf.Timestamp": ("timestamp", T.TimestamptzType),
    "google.type.Date": ("date", T.DateType),
    "google.type.TimeOfDay": ("time", T.LongType),
    **{f"google.protobuf.{name}Value": ("wrapper", SCALARS[name.lower()]) for name in _WRAPPED},
}
"""Well-known messages, but for :data:`_DECIMAL`: the kind, and the column."""


def message_fields(
    where: str, message: Any, ids: Iterator[int], above: tuple[str, ...] = ()
) -> list[T.NestedField]:
    """Return the columns of a message (a descriptor); ``above``: the messages that contain it."""
    inside = (*above, message.full_name)
    limits.check_depth(where, len(inside))
    for field in message.fields:
        limits.check_name(where, field.name)
    return [
        T.NestedField(next(ids), f.name, _column_type(where, f, ids, inside), required=False)
        for f in message.fields
    ]


def _column_type(
    where: str, field: Any, ids: Iterator[int], above: tuple[str, ...]
) -> T.IcebergType:
    """Return the type of a field's column."""
    if is_map(field):
        key, value = field.message_type.fields
        key_id, key_type, value_id = next(ids), SCALARS[kind_of(key)](), next(ids)
        return T.MapType(key_id, key_type, value_id, value_type(where, value, ids, above), False)
    if field.is_repeated:
        return T.ListType(next(ids), value_type(where, field, ids, above), False)
    return value_type(where, field, ids, above)


def value_type(where: str, field: Any, ids: Iterator[int], above: tuple[str, ...]) -> T.IcebergType:
    if (message := field.message_type) is None:
        return SCALARS[kind_of(field)]()
    if special_kind(where, message) == "decimal":
        return _decimal(where, field)
    if message.full_name in _SPECIAL:
        return _SPECIAL[message.full_name][1]()
    if message.full_name in above:
        raise TableflowError(
            f"{where}: field {field.full_name} refers to {message.full_name}, which contains it",
            hint="break the cycle: a recursive schema cannot become a table",
        )
    inner = message_fields(where, message, ids, above)
    marked = () if inner else (T.NestedField(next(ids), wire.PRESENT, T.BooleanType(), False),)
    return T.StructType(*inner, *marked)


def special_kind(where: str, message: Any) -> str | None:
    """Return the kind of a well-known message, which must have its fields; None: it is another."""
    name = message.full_name
    if name not in _SPECIAL and name != _DECIMAL:
        return None
    if _layout(message) != _layout(known_message(name)):
        raise TableflowError(
            f"{where}: {name} is not defined as in its library",
            hint="import the library's file, or give the message a name of your own",
        )
    return "decimal" if name == _DECIMAL else _SPECIAL[name][0]


@cache
def known_message(name: str) -> Any:
    """Return the descriptor of a well-known message, as its library defines it."""
    from confluent_kafka.schema_registry.confluent.type import decimal_pb2
    from google.protobuf import timestamp_pb2, wrappers_pb2
    from google.type import date_pb2, timeofday_pb2

    files = (timestamp_pb2, wrappers_pb2, date_pb2, timeofday_pb2, decimal_pb2)
    messages: Any = (m for f in files for m in f.DESCRIPTOR.message_types_by_name.values())
    return next(message for message in messages if message.full_name == name)


def _layout(message: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (field.number, field.name, field.type, field.is_repeated, field.has_presence)
        for field in message.fields
    )


def _decimal(where: str, field: Any) -> T.DecimalType:
    from confluent_kafka.schema_registry.confluent import meta_pb2

    owner = field.containing_type
    if owner.GetOptions().map_entry:  # a map's options are on the field of the map's type
        field = next(f for f in owner.containing_type.fields if f.message_type is owner)
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


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def kind_of(field: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()
