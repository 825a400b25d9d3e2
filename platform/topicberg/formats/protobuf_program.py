"""The program that decodes Protobuf records by their plan; see :mod:`topicberg.formats.columnar`.

It has the result of :mod:`.protobuf_wire`, which decodes what has no program: maps, groups, dates,
times, decimals, and columns of another type than a field's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from pyiceberg import types as T

from topicberg.formats.columnar.program import (
    Code,
    Encoding,
    NotCoveredError,
    Place,
    ProtobufOp,
    Store,
)
from topicberg.formats.protobuf_wire import PART_MEMORY, Field, Message, _packable, _wire_type

_NUMBERS: dict[str, tuple[Encoding, tuple[type[T.IcebergType], ...]]] = {
    "int32": (Encoding.INT32, (T.IntegerType, T.LongType)),
    "sint32": (Encoding.SINT32, (T.IntegerType, T.LongType)),
    "sfixed32": (Encoding.SFIXED32, (T.IntegerType, T.LongType)),
    "uint32": (Encoding.UINT32, (T.LongType,)),
    "fixed32": (Encoding.FIXED32, (T.LongType,)),
    "int64": (Encoding.INT64, (T.LongType,)),
    "sint64": (Encoding.SINT64, (T.LongType,)),
    "sfixed64": (Encoding.FIXED64, (T.LongType,)),
    "uint64": (Encoding.INT64, (T.DecimalType,)),
    "fixed64": (Encoding.FIXED64, (T.DecimalType,)),
    "bool": (Encoding.BOOL, (T.BooleanType,)),
    "float": (Encoding.SFIXED32, (T.FloatType,)),
    "double": (Encoding.FIXED64, (T.DoubleType,)),
}
"""Kind → encoding, and the columns that hold every value."""
_TEXTS: dict[str, tuple[type[T.IcebergType], ...]] = {
    "string": (T.StringType,),
    "bytes": (T.BinaryType, T.StringType),
}
_DIGITS = 20
"""Of the largest number of 64 bits."""
_LENGTH = 2
_VALUE_BYTES = 16
"""The most of a value in memory, without text."""
_MAX_BYTES = 1024 * 1024


def emit_record(
    code: Code,
    message: Message,
    prefixes: Sequence[bytes],
    places: Mapping[str, Place],
    columns: int,
) -> None:
    """Append the instructions that read a record.

    :param prefixes: the message indexes that name the message
    :param columns: places at every depth; a record of empty messages fills all of them
    :raises NotCoveredError: there are none
    """
    # Beyond PART_MEMORY, the record is malformed: every second byte may be a row of a list.
    most = min(_MAX_BYTES, PART_MEMORY // (_VALUE_BYTES * max(1, columns)))
    code.emit(ProtobufOp.RECORD, None, code.text(prefixes), len(prefixes), most)
    _message(code, message, None, places)


def _message(
    code: Code, message: Message, place: Place | None, places: Mapping[str, Place]
) -> None:
    at = code.emit(ProtobufOp.MESSAGE, place, 0, 0, 0)
    entries: list[list[int]] = []
    final: list[int] = []
    oneofs: dict[int, int] = {}
    for field in message.fields:
        number = oneof = -1
        if not field.repeated:
            number = _number(code)
        if field.oneof is not None:
            oneof = oneofs.setdefault(field.oneof, -1)
            if oneof < 0:
                oneof = oneofs[field.oneof] = _number(code)
        target = None if field.column is None else places[message.names[field.column]]
        final += _final(code, field, number, target)
        for wire, instruction in _field(code, field, target):
            entries.append([field.number << 3 | wire, instruction, number, oneof])
    first = len(code.targets)
    code.targets += [value for entry in entries for value in entry]
    code.instructions[at][3:] = [first, len(entries), len(code.targets)]
    code.targets += [len(final), *final]


def _number(code: Code) -> int:
    """Return a number that no other field or oneof has."""
    code.targets.append(0)
    return len(code.targets) - 1


def _field(code: Code, field: Field, place: Place | None) -> list[tuple[int, int]]:
    """Append the instructions of a field; return them, each with the wire type that it is for."""
    wire = _wire_type(field.kind)
    if field.kind == "group" or field.is_map:
        raise NotCoveredError(f"the field {field.name} is a map or a group")
    if place is None:
        skip = code.emit(ProtobufOp.SKIP, None)
        return [(wire, skip), *([(_LENGTH, skip)] if _packable(field) else [])]
    if not field.repeated:
        return [(wire, _value(code, field, place))]
    if not isinstance(place.column, T.ListType) or field.is_closed:
        raise NotCoveredError(f"the field {field.name} is repeated")
    value = _value(code, field, place.inside[0])
    found = [(wire, code.emit(ProtobufOp.ITEM, place, place.items, value))]
    if _packable(field):
        found.append((_LENGTH, code.emit(ProtobufOp.PACKED, place, place.items, value)))
    return found


def _value(code: Code, field: Field, place: Place) -> int:
    """Append the instructions of one value; return the first of them."""
    kind, column, at = field.kind, place.column, code.at
    if field.message is not None:
        _of_message(code, field, field.message, place)
    elif kind in _TEXTS and isinstance(column, _TEXTS[kind]):
        code.emit(ProtobufOp.TEXT, place)
    elif kind == "enum" and isinstance(column, T.StringType):
        symbols = sorted((field.symbols or {}).items())
        texts = code.text([name.encode() for _, name in symbols])
        code.emit(ProtobufOp.ENUM, place, len(symbols), len(code.targets))
        for number, (value, _) in enumerate(symbols):
            code.targets += [value, texts + number]
    elif kind == "float" and isinstance(column, T.DoubleType):
        code.emit(ProtobufOp.WIDER, place)
    elif kind in _NUMBERS and isinstance(column, _NUMBERS[kind][1]) and _is_wide(column):
        code.emit(ProtobufOp.NUMBER, place, _NUMBERS[kind][0], int(place.store))
    else:
        raise NotCoveredError(f"the field {field.name} is a {kind}, its column a {column}")
    return at


def _is_wide(column: T.IcebergType) -> bool:
    if not isinstance(column, T.DecimalType):
        return True
    return column.scale == 0 and column.precision >= _DIGITS


def _of_message(code: Code, field: Field, message: Message, place: Place) -> None:
    match field.special:
        case None if isinstance(place.column, T.StructType) and message.fields:
            _message(code, message, place, {inner.name: inner for inner in place.inside})
        case "timestamp" if isinstance(place.column, T.TimestamptzType):
            code.emit(ProtobufOp.TIMESTAMP, place)
        case "wrapper":  # its only field is the column
            _message(code, message, None, {message.names[0]: place})
        case _:
            raise NotCoveredError(f"the field {field.name} is a {field.special or 'message'}")


def _final(code: Code, field: Field, number: int, place: Place | None) -> list[int]:
    """Append what is done at the end of a message without the field; return the instructions."""
    if field.required:
        return [code.emit(ProtobufOp.REQUIRED, None, number)]
    if place is None:
        return []
    if field.repeated:
        return [code.emit(ProtobufOp.LIST, place)]
    value = field.absent
    if value is None:
        return []
    if field.message is not None:
        raise NotCoveredError(f"the field {field.name} is never null")
    if place.store is Store.TEXT:
        text = value if isinstance(value, bytes) else str(value).encode()
        return [code.emit(ProtobufOp.DEFAULT_TEXT, place, number, code.text([text]))]
    if place.store is Store.INT128 and not 0 <= value < 2**63:
        raise NotCoveredError(f"the field {field.name} has the default {value}")
    if isinstance(place.column, T.FloatType):
        (bits,) = struct.unpack("<i", struct.pack("<f", value))
    elif isinstance(place.column, T.DoubleType):
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
    else:
        bits = int(value)
    return [code.emit(ProtobufOp.DEFAULT_NUMBER, place, number, bits, int(place.store))]
