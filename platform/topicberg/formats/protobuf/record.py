"""The reference decoder of Protobuf: what a record is, in plain Python.

:func:`decoder` makes a function for each field of a message's plan, once; then these read a record.
They follow https://protobuf.dev/programming-guides/encoding: unknown fields are ignored, the last
value of a singular field wins, messages merge, a member of a oneof clears the others, repeated
scalars are packed or not. A closed enum's number without a name is an unknown field, as in
https://protobuf.dev/programming-guides/enum; in a map, so is the whole entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from topicberg.formats.contract import RecordDecoder
from topicberg.formats.protobuf import wire
from topicberg.formats.protobuf.wire import Message, WireField
from topicberg.formats.reasons import MalformedError, byte, field_at, place_at, shortened, shown

MAX_VALUES = 4_000_000
"""Values of a record: every second byte of it may be a row of a list."""
_MICROS = 1_000_000
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999, as the documentation of google.protobuf.Timestamp requires."""
_DAY_MICROS = 86_400 * _MICROS
_LONGEST_DECIMAL = 64
_TOO_LARGE = f"needs more than {wire.MAX_TEXT_BYTES // 2**20} MiB of memory"
_WIRE_TYPES = ("varint", "64-bit", "length-delimited", "group", "end of a group", "32-bit")
_STRUCTS = {
    "fixed32": struct.Struct("<I"),
    "sfixed32": struct.Struct("<i"),
    "float": struct.Struct("<f"),
    "fixed64": struct.Struct("<Q"),
    "sfixed64": struct.Struct("<q"),
    "double": struct.Struct("<d"),
}


class Occurrence(NamedTuple):
    """A field's value: the start of its tag, begin and stop of its content; a varint's number."""

    start: int
    begin: int
    stop: int
    number: int = 0


class _TooLargeError(Exception):
    """The texts that a record's values stand for need too much memory."""


class MessageRecord:
    """The bytes of a record, and how many more values and texts of the schema it may have."""

    __slots__ = ("data", "left", "text_left")

    def __init__(self, data: bytes) -> None:
        self.data, self.left, self.text_left = data, MAX_VALUES, wire.MAX_TEXT_BYTES

    def count(self, values: int) -> None:
        """:raises MalformedError: the record has too many values"""
        self.left -= values
        if self.left < 0:
            raise MalformedError(f"the record has more than {MAX_VALUES:,} values")

    def expand(self, size: int) -> None:
        """Count text that the record does not have itself: names of enums, and defaults."""
        self.text_left -= size
        if self.text_left < 0:
            raise _TooLargeError


Value = Callable[[MessageRecord, Occurrence], Any]
"""Reads a value. Raises MalformedError: the column cannot hold it."""
Values = Callable[[MessageRecord, Sequence[Occurrence]], Any]
"""Reads all occurrences of a field. Raises MalformedError."""
Row = tuple[dict[str, Any], bool]
"""The values of a message, by column; whether a closed enum had a number without a name."""
Pieces = Sequence[tuple[int, int]]  # Where a message begins and ends: several pieces are merged.


def decoder(
    plan: Message, prefixes: Sequence[bytes], other_message: Callable[[bytes], str]
) -> RecordDecoder:
    """Return the decoder of a message's records, which begin with one of some prefixes.

    :param other_message: returns the reason of a record with another prefix
    """
    read, longest_first = _message(plan, ""), sorted(prefixes, key=len, reverse=True)

    def decode(payload: bytes) -> dict[str, Any]:
        for prefix in longest_first:
            if payload.startswith(prefix):
                try:
                    return read(MessageRecord(payload), [(len(prefix), len(payload))])[0]
                except _TooLargeError:
                    raise MalformedError(f"the record {_TOO_LARGE}") from None
        raise MalformedError(other_message(payload))

    return decode


def _message(plan: Message, path: str) -> Callable[[MessageRecord, Pieces], Row]:
    fields = {field.number: field for field in plan.fields}
    usual = {field.number: wire.wire_type(field.kind) for field in plan.fields}
    columns = {
        field.number: (plan.names[field.column], _values(field, path))
        for field in plan.fields
        if field.column is not None
    }
    absent, text = dict[str, Any].fromkeys(plan.names), dict[int, int]()
    always = list[tuple[int, str, Values]]()
    for number, (name, values_of) in columns.items():
        field = fields[number]
        if field.message is not None and not field.repeated and field.absent:
            always.append((number, name, values_of))
        else:
            value = absent[name] = values_of(MessageRecord(b""), ())
            if isinstance(value, str | bytes):
                text[number] = len(value)
    all_text, required = sum(text.values()), [field for field in plan.fields if field.required]
    width = max(1, len(plan.names))

    def read(record: MessageRecord, pieces: Pieces) -> Row:
        record.count(width)
        by_number: dict[int, list[Occurrence]] = {}
        member_of: dict[int, int] = {}
        unknown: dict[int, int] = {}
        for position, stop in pieces:
            while position < stop:
                number, wire_type, occurrence, position = _occurrence(
                    record.data, position, stop, fields, path
                )
                if (expected := usual.get(number)) is None:
                    continue
                field, values = fields[number], [occurrence]
                if wire_type != expected:
                    if wire_type != wire.LENGTH or not wire.packable(field):
                        raise MalformedError(
                            f"{_label(field, path)}: wire type {_WIRE_TYPES[wire_type]} at "
                            f"{byte(occurrence.start)}, {_WIRE_TYPES[expected]} expected"
                        )
                    values = _unpacked(record, field, path, occurrence)
                if field.is_closed:
                    pairs = [(value, _signed(value.number, 32)) for value in values]
                    unknown.update((number, n) for _, n in pairs if n not in field.symbols)
                    values = [value for value, n in pairs if n in field.symbols]
                    if not values:
                        continue
                if field.oneof is not None:
                    if (other := member_of.get(field.oneof, number)) != number:
                        by_number.pop(other, None)
                    member_of[field.oneof] = number
                by_number.setdefault(number, []).extend(values)
        for field in required:
            if field.number not in by_number:
                problem = "the required field is missing"
                if field.number in unknown:
                    problem = f"its enum has no number {unknown[field.number]}"
                raise MalformedError(f"{_label(field, path)}: {problem}")
        # Only the fields that are there take time, however many the message has.
        row, number = dict[str, Any](), 0
        try:
            for number, occurrences in by_number.items():
                if number in columns:
                    name, values_of = columns[number]
                    row[name] = values_of(record, occurrences)
            for number, name, values_of in always:
                if number not in by_number:
                    row[name] = values_of(record, ())
        except _TooLargeError:
            if path:
                raise
            raise MalformedError(
                f"{_label(fields[number], path)}: its value {_TOO_LARGE}"
            ) from None
        if all_text:
            record.expand(all_text - sum(text.get(number, 0) for number in by_number))
        return absent | row, bool(unknown)

    return read


class _NoVarintError(Exception):
    """The argument is where there is none."""


def _occurrence(
    data: bytes, position: int, stop: int, fields: Mapping[int, WireField], path: str
) -> tuple[int, int, Occurrence, int]:
    """Return number and wire type of the field at ``position``, its content, and its end."""
    start, number = position, -1

    def label() -> str:
        if number < 0:
            return f"the tag of the field at {byte(start)}"
        name = f"field {path}{fields[number].name}" if number in fields else f"field {number}"
        return f"{name} at {byte(start)}"

    try:
        tag, position = _varint(data, position, stop)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or tag > wire.MAX_TAG:
            where = f"{byte(start)} is not the start of a field"
            raise MalformedError(f"{where}: field number {number}")
        match wire_type:
            case wire.VARINT:
                value, end = _varint(data, position, stop)
                return number, wire_type, Occurrence(start, position, end, value), end
            case wire.LENGTH:
                length, position = _varint(data, position, stop)
            case wire.FIXED32 | wire.FIXED64:
                length = 4 if wire_type == wire.FIXED32 else 8
            case wire.GROUP:
                if (ends := wire.group_end(data, position, stop, number)) is not None:
                    return number, wire_type, Occurrence(start, position, ends[0]), ends[1]
                raise MalformedError(f"{label()} is a group that does not end before {byte(stop)}")
            case wire.END_GROUP:
                raise MalformedError(f"{label()} ends a group that did not start")
            case _:
                problem = f"has the wire type {wire_type}, which does not exist"
                raise MalformedError(f"{label()} {problem}")
    except _NoVarintError as error:
        (position,) = error.args
        if stop - position >= wire.MAX_VARINT:
            problem = f"the varint at {byte(position)} has more than {wire.MAX_VARINT} bytes"
            raise MalformedError(problem) from None
        raise _cut(label(), stop, path) from None
    if position + length > stop:
        raise _cut(f"{label()}: {length} bytes expected, {stop - position} found", stop, path)
    return number, wire_type, Occurrence(start, position, position + length), position + length


def _varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """:raises _NoVarintError: there is none"""
    if position < stop and (number := data[position]) < 0x80:
        return number, position + 1
    if (varint := wire.varint(data, position, stop)) is None:
        raise _NoVarintError(position)
    return varint


def _cut(part: str, stop: int, path: str) -> MalformedError:
    return MalformedError(f"{place_at(path.removesuffix('.'))} ends at {byte(stop)}, within {part}")


def _label(field: WireField, path: str, kind: object = None) -> str:
    return field_at(f"{path}{field.name}", kind or field.kind)


def _unpacked(
    record: MessageRecord, field: WireField, path: str, packed: Occurrence
) -> list[Occurrence]:
    """Return the values of a packed field, as if they were not packed."""
    occurrences: list[Occurrence] = []
    position, stop, size = packed.begin, packed.stop, wire.FIXED.get(field.kind)
    while position < stop:
        value = (0, position + size) if size else wire.varint(record.data, position, stop)
        if value is None or value[1] > stop:
            where = f"packed values at {byte(packed.begin)}"
            raise MalformedError(f"{_label(field, path)}: {where} end within a value")
        occurrences.append(Occurrence(packed.start, position, value[1], value[0]))
        position = value[1]
    record.count(len(occurrences))
    return occurrences


def _values(field: WireField, path: str) -> Values:
    """Return what reads the column of a field."""
    if field.is_map:
        return _map(field, path)
    if field.repeated:
        element = _value(field, field.type.value_type, path)
        return lambda record, occurrences: [
            element(record, occurrence) for occurrence in occurrences
        ]
    if field.message is not None:
        return _singular_message(field, path)
    value = _value(field, field.type, path)
    absent = None if field.absent is None else stored(field.absent, field, field.type, path)

    def read(record: MessageRecord, occurrences: Sequence[Occurrence]) -> Any:
        if not occurrences:
            return absent
        if field.kind == "string":  # earlier values must be UTF-8, too
            for occurrence in occurrences[:-1]:
                value(record, occurrence)
        return value(record, occurrences[-1])

    return read


def _singular_message(field: WireField, path: str) -> Values:
    read, finish = _message(field.message, f"{path}{field.name}."), _finish(field, field.type, path)

    def values(record: MessageRecord, occurrences: Sequence[Occurrence]) -> Any:
        if not occurrences and not field.absent:
            return None
        row, _ = read(record, [(occurrence.begin, occurrence.stop) for occurrence in occurrences])
        return finish(row)

    return values


def _map(field: WireField, path: str) -> Values:
    read = _message(field.message, f"{path}{field.name}.")

    def values(record: MessageRecord, occurrences: Sequence[Occurrence]) -> list[tuple[Any, Any]]:
        entries: dict[Any, Any] = {}
        for occurrence in occurrences:
            row, is_unknown = read(record, [(occurrence.begin, occurrence.stop)])
            if not is_unknown:
                entries.pop(row["key"], None)
                entries[row["key"]] = row["value"]
        return list(entries.items())

    return values


def _value(field: WireField, column: pa.DataType, path: str) -> Value:
    """Return what reads one value of a field for a column, or for the elements of a list."""
    kind = field.kind
    if field.message is not None:
        read, finish = _message(field.message, f"{path}{field.name}."), _finish(field, column, path)
        return lambda record, occurrence: finish(
            read(record, [(occurrence.begin, occurrence.stop)])[0]
        )
    match kind:
        case "string" | "bytes":
            return _text(field, column, path)
        case "float" | "double":
            unpack = _STRUCTS[kind].unpack_from
            return lambda record, occurrence: unpack(record.data, occurrence.begin)[0]
        case "bool":
            return lambda _, occurrence: occurrence.number != 0
        case "enum":

            def symbol(record: MessageRecord, occurrence: Occurrence) -> str:
                number = _signed(occurrence.number, 32)
                name = field.symbols.get(number) or str(number)
                record.expand(len(name))
                return name

            return symbol
    to_column = _number(field, column, path)
    if kind in _STRUCTS:
        unpack = _STRUCTS[kind].unpack_from
        return lambda record, occurrence: to_column(unpack(record.data, occurrence.begin)[0])
    integer = _INTEGERS[kind]
    return lambda _, occurrence: to_column(integer(occurrence.number))


def _text(field: WireField, column: pa.DataType, path: str) -> Value:
    is_text, is_checked = pa.types.is_string(column), field.kind == "string"

    def read(record: MessageRecord, occurrence: Occurrence) -> str | bytes:
        content = record.data[occurrence.begin : occurrence.stop]
        if not is_text and not is_checked:
            return content
        try:
            text = content.decode()
        except UnicodeDecodeError:
            value = f"value {shown(content)} at {byte(occurrence.begin)}"
            raise MalformedError(f"{_label(field, path)}: {value} is not UTF-8") from None
        return text if is_text else content

    return read


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


_INTEGERS: dict[str, Callable[[int], int]] = {
    "int32": lambda number: _signed(number, 32),
    "int64": lambda number: _signed(number, 64),
    "uint32": lambda number: number & 0xFFFFFFFF,
    "uint64": lambda number: number,
    "sint32": lambda number: _zigzag(number & 0xFFFFFFFF),
    "sint64": _zigzag,
}


def _number(field: WireField, column: pa.DataType, path: str) -> Callable[[int], int]:
    """Return what turns an integer into the value of its column."""
    if pa.types.is_decimal(column):
        factor, limit = 10**column.scale, 10 ** (column.precision - column.scale)
        low, high = 1 - limit, limit - 1
    else:
        factor, limit = 1, 1 << (column.bit_width - 1)
        low, high = -limit, limit - 1

    def convert(number: int) -> int:
        if low <= number <= high:
            return int(number * factor)
        raise MalformedError(
            f"{_label(field, path)}: value {number} is out of range of its column ({column})"
        )

    return convert


def stored(value: Any, field: WireField, column: pa.DataType, path: str) -> Any:
    """Return a default as a stored value; see :data:`topicberg.formats.contract.RecordDecoder`."""
    if pa.types.is_string(column) and isinstance(value, bytes):
        return value.decode()
    if pa.types.is_binary(column) and isinstance(value, str):
        return value.encode()
    if pa.types.is_decimal(column):
        return _number(field, column, path)(int(value))
    return value


def _finish(field: WireField, column: pa.DataType, path: str) -> Callable[[dict[str, Any]], Any]:
    """Return what turns the fields of a message into the value of its column."""
    match field.special:
        case None:
            return lambda row: row
        case "wrapper":
            return lambda row: row["value"]
        case "empty":
            return lambda row: {**row, wire.PRESENT: True}
        case "decimal":
            return lambda row: _decimal(row, field, column, path)
        case "time":
            to_column = _number(field, column, path)
            return lambda row: to_column(_time(row, field, path))
        case "date":
            return lambda row: _date(row, field, path)
    return lambda row: _timestamp(row, field, path)


def _invalid(
    row: Mapping[str, Any], field: WireField, path: str, name: str, problem: str
) -> MalformedError:
    parts = ", ".join(f"{part}: {value}" for part, value in row.items())
    return MalformedError(f"{_label(field, path, name)}: value {parts} {problem}")


def _timestamp(row: Mapping[str, Any], field: WireField, path: str) -> int:
    seconds, nanos, problem = row["seconds"], row["nanos"], "is not between the years 1 and 9999"
    if not 0 <= nanos < 10**9:
        problem = "has nanos that are not between 0 and 999999999"
    elif _FIRST_SECOND <= seconds <= _LAST_SECOND:
        return int(seconds * _MICROS + nanos // 1000)
    raise _invalid(row, field, path, "google.protobuf.Timestamp", problem)


def _date(row: Mapping[str, Any], field: WireField, path: str) -> int:
    """Return the days since 1970; a date that lacks its year, month or day is malformed."""
    try:
        return (date(row["year"], row["month"], row["day"]) - date(1970, 1, 1)).days
    except (ValueError, OverflowError):
        raise _invalid(row, field, path, "google.type.Date", "is not a date") from None


def _time(row: Mapping[str, Any], field: WireField, path: str) -> int:
    """Return microseconds of the day; 24:00:00 and a leap second are times of a day."""
    hours, minutes, seconds, nanos = (row[n] for n in ("hours", "minutes", "seconds", "nanos"))
    total = ((hours * 60 + minutes) * 60 + seconds) * _MICROS + nanos // 1000
    is_one = 0 <= hours <= 24 and 0 <= minutes <= 59 and 0 <= seconds <= 60
    if is_one and 0 <= nanos < 10**9 and (hours < 24 or total <= _DAY_MICROS):
        return int(total)
    raise _invalid(row, field, path, "google.type.TimeOfDay", "is not a time of a day")


def _decimal(row: Mapping[str, Any], field: WireField, column: pa.DataType, path: str) -> int:
    """Return a big-endian unscaled value and its scale in the column's scale, if that is exact."""
    is_whole = pa.types.is_integer(column)  # a later version has whole numbers
    precision, scale = (38, 0) if is_whole else (column.precision, column.scale)
    unscaled, is_short = row["value"], len(row["value"]) <= _LONGEST_DECIMAL
    number = int.from_bytes(unscaled, "big", signed=True) if is_short else 0
    shift = scale - row["scale"] if number else 0
    if is_short and abs(shift) <= 100:
        scaled, rest = divmod(number * 10 ** max(shift, 0), 10 ** max(-shift, 0))
        limit = 1 << (column.bit_width - 1)
        fits = abs(scaled) < 10**precision and (not is_whole or -limit <= scaled < limit)
        if fits and not rest:
            return int(scaled)
    value = Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -row["scale"]))
    text = shortened(str(value) if is_short else f"of {len(unscaled)} bytes")
    if is_whole:
        label, problem = _label(field, path), f"is not a number of its column ({column})"
    else:
        label = _label(field, path, f"decimal({precision},{scale})")
        is_large = not is_short or value.adjusted() >= precision - scale
        problem = f"exceeds the {'precision' if is_large else 'scale'}"
    raise MalformedError(f"{label}: value {text} {problem}")
