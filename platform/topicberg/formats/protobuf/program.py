"""The program that decodes Protobuf records by their plan; see :mod:`topicberg.formats.columnar`.

It has the result of :mod:`.record`, which decodes what it refuses, such as groups.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from pyiceberg import types as T

from topicberg.formats.columnar.program import Encoding, ProgramCode, ProtobufOp, Slot, Slots, Store
from topicberg.formats.protobuf.record import MAX_VALUES, stored
from topicberg.formats.protobuf.wire import (
    FIXED,
    MAX_TEXT_BYTES,
    PRESENT,
    Message,
    WireField,
    packable,
    wire_type,
)

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
_UNSIGNED = ("uint64", "fixed64")
_DIGITS, _LONGEST_NUMBER = 20, 11
"""Of the largest number of 64 bits, and of an enum's number as text."""
_LENGTH = 2
_MAX_BYTES = 1024 * 1024
_WHOLE_DIGITS = 38  # Of a decimal that becomes a whole number.


def emit_record(
    code: ProgramCode, message: Message, prefixes: Sequence[bytes], slots: Slots, columns: int
) -> None:
    """Append the instructions that read a record.

    :param prefixes: the message indexes that name the message
    :param columns: places at every depth; a record of empty messages fills all of them
    """
    limits, texts = len(code.targets), len(code.texts)
    code.targets += [0, 0]
    start = code.emit(ProtobufOp.RECORD, None, code.text(prefixes), len(prefixes), limits)
    _message(code, message, None, slots)
    # A larger record is perhaps malformed: see the limits of the reference decoder.
    longest, added = max(_LONGEST_NUMBER, *map(len, code.texts[texts:])), code.instructions[start:]
    defaults = (code.texts[text] for op, _, _, _, text, _ in added if op == ProtobufOp.DEFAULT_TEXT)
    expanded = max(1, sum(map(len, defaults)))
    most = (MAX_VALUES - 2 * _MAX_BYTES) // max(1, columns)
    code.targets[limits] = min(_MAX_BYTES, MAX_TEXT_BYTES // 2 // longest)
    code.targets[limits + 1] = max(1, min(most, MAX_TEXT_BYTES // 2 // expanded))


def _message(
    code: ProgramCode, message: Message, place: Slot | None, slots: Slots, *, is_empty: bool = False
) -> None:
    start = code.emit(ProtobufOp.MESSAGE, place, 0, 0, 0)
    entries: list[list[int]] = []
    final: list[int] = []
    if is_empty:  # no field has this number, so it is always marked
        final.append(code.emit(ProtobufOp.DEFAULT_NUMBER, slots[PRESENT], _number(code), 1, 1))
    oneofs: dict[int, int] = {}
    for field in message.fields:
        number, oneof = _number(code), -1
        if field.oneof is not None:
            oneof = oneofs[field.oneof] if field.oneof in oneofs else _number(code)
            oneofs[field.oneof] = oneof
        target = _target(message, field, slots)
        final += _final(code, field, number, target)
        for wire, instruction in _field(code, field, target):
            seen = -1 if field.repeated else number
            entries.append([field.number << 3 | wire, instruction, seen, oneof])
    first = len(code.targets)
    code.targets += [value for entry in entries for value in entry]
    code.instructions[start][3:] = [first, len(entries), len(code.targets)]
    code.targets += [len(final), *final]


def _target(message: Message, field: WireField, slots: Slots) -> Slot | None:
    return None if field.column is None else slots[message.names[field.column]]


def _number(code: ProgramCode) -> int:
    """Return a number that no other field or oneof has."""
    code.targets.append(0)
    return len(code.targets) - 1


def _field(code: ProgramCode, field: WireField, place: Slot | None) -> list[tuple[int, int]]:
    """Append the instructions of a field; return them, each with the wire type that it is for."""
    wire = wire_type(field.kind)
    # If a closed enum does not have the number, the field is missing.
    is_skipped = place is None and not (field.is_closed and field.required)
    if is_skipped or field.kind == "group":
        sizes = {wire: 0} | ({_LENGTH: FIXED.get(field.kind, 1)} if packable(field) else {})
        return [(kind, code.emit(ProtobufOp.SKIP, None, size)) for kind, size in sizes.items()]
    if place is None:
        return []
    if not field.repeated:
        return [(wire, _value(code, field, place))]
    if field.is_map:
        entry = code.at
        _message(code, field.message, None, place.by_name)
        return [(wire, code.emit(ProtobufOp.ITEM, place, place.items, entry))]
    value = _value(code, field, place.inside[0])
    instructions = [(wire, code.emit(ProtobufOp.ITEM, place, place.items, value))]
    if packable(field):
        instructions.append((_LENGTH, code.emit(ProtobufOp.PACKED, place, place.items, value)))
    return instructions


def _value(code: ProgramCode, field: WireField, place: Slot) -> int:
    """Append the instructions of one value; return the first of them."""
    kind, column, start = field.kind, place.column, code.at
    if field.message is not None:
        _of_message(code, field, place)
    elif kind in ("string", "bytes"):
        code.emit(ProtobufOp.TEXT, place, int(kind == "string" or isinstance(column, T.StringType)))
    elif kind == "enum":
        symbols = sorted(field.symbols.items())
        texts = code.text([name.encode() for _, name in symbols])
        code.emit(ProtobufOp.ENUM, place, len(symbols), len(code.targets), int(field.is_closed))
        for number, (value, _) in enumerate(symbols, texts):
            code.targets += [value, number]
    elif kind == "float" and isinstance(column, T.DoubleType):
        code.emit(ProtobufOp.WIDER, place)
    elif isinstance(column, _NUMBERS[kind][1]) and (
        not isinstance(column, T.DecimalType) or (column.scale == 0 and column.precision >= _DIGITS)
    ):
        code.emit(ProtobufOp.NUMBER, place, _NUMBERS[kind][0], int(place.store))
    else:
        converted = _converted(code, place, is_unsigned=kind in _UNSIGNED)
        code.emit(ProtobufOp.CONVERTED, place, _NUMBERS[kind][0], converted)
    return start


def _converted(code: ProgramCode, place: Slot, *, is_unsigned: bool = False) -> int:
    """Append the targets of a number that becomes the value of a column of another type."""
    column = place.column
    if isinstance(column, T.DecimalType):
        zeros, most = column.scale, 10 ** (column.precision - column.scale) - 1
        least = -most
    else:
        zeros, most = 0, 2 ** (8 * int(place.store) - 1) - 1
        least = -most - 1
    if is_unsigned:
        least, most = 0, min(most, 2**64 - 1)
        most -= 2**64 if most >= 2**63 else 0  # the bits stay the same
    else:
        least, most = max(least, -(2**63)), min(most, 2**63 - 1)
    code.targets += [least, most, zeros, int(place.store), int(is_unsigned)]
    return len(code.targets) - 5


def _of_message(code: ProgramCode, field: WireField, place: Slot) -> None:
    match field.special:
        case "timestamp":
            code.emit(ProtobufOp.TIMESTAMP, place)
        case "date":
            code.emit(ProtobufOp.DATE, place)
        case "time":
            code.emit(ProtobufOp.TIME, place, 0, _converted(code, place))
        case "decimal":
            digits, scale = _WHOLE_DIGITS, 0
            if isinstance(place.column, T.DecimalType):
                digits, scale = place.column.precision, place.column.scale
            code.emit(ProtobufOp.DECIMAL, place, digits, scale, int(place.store))
        case "wrapper":  # its only field is the column
            _message(code, field.message, None, {field.message.names[0]: place})
        case special:
            _message(code, field.message, place, place.by_name, is_empty=special == "empty")


def _final(code: ProgramCode, field: WireField, number: int, place: Slot | None) -> list[int]:
    """Append what a message without the field, or what is around it, does at its end; return it."""
    if field.required:
        return [code.emit(ProtobufOp.REQUIRED, None, number)]
    if place is None:
        return []
    if field.is_map:
        keys = place.inside[0]
        code.targets += [place.items, keys.slot, int(keys.store)]
        return [code.emit(ProtobufOp.MAP, place, number, len(code.targets) - 3)]
    if field.repeated:
        return [code.emit(ProtobufOp.PRESENT, place, number)]
    if field.absent is None:
        return []
    if field.message is not None:
        return _empty_message(code, field, number, place)
    return [_default(code, stored(field.absent, field, field.type, ""), number, place)]


def _empty_message(code: ProgramCode, field: WireField, number: int, place: Slot) -> list[int]:
    """Append what fills the place of a message that has no field; return the instructions."""
    message = field.message
    match field.special:
        case "timestamp" | "time" | "decimal":
            return [_default(code, 0, number, place)]
        case "date":  # a date without a year is malformed
            return [code.emit(ProtobufOp.REQUIRED, None, number)]
        case "wrapper":
            final, slots = [], {message.names[0]: place}
        case special:
            final, slots = [code.emit(ProtobufOp.PRESENT, place, number)], place.by_name
            if special == "empty":
                final.append(_default(code, True, number, slots[PRESENT]))
    for inner in message.fields:
        final += _final(code, inner, number, _target(message, inner, slots))
    return final


def _default(code: ProgramCode, value: Any, number: int, place: Slot) -> int:
    """Append what fills a place with a stored value; return the instruction."""
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        return code.emit(ProtobufOp.DEFAULT_TEXT, place, number, code.text([text]))
    if isinstance(place.column, T.FloatType):
        (bits,) = struct.unpack("<i", struct.pack("<f", value))
    elif isinstance(place.column, T.DoubleType):
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
    elif place.store is Store.INT128:
        code.targets += struct.unpack("<qq", value.to_bytes(16, "little", signed=True))
        bits = len(code.targets) - 2
    else:
        bits = int(value)
    return code.emit(ProtobufOp.DEFAULT_NUMBER, place, number, bits, int(place.store))
