"""Why a Protobuf record is malformed: the first field that the decoder refuses, and its reason.

Called for malformed records only, one at a time: it walks the bytes as
:mod:`topicberg.formats.protobuf_wire` does, and checks with it whether a field can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import compress
from typing import Any

import pyarrow as pa

from topicberg.formats import protobuf_wire as wire
from topicberg.formats.reasons import MalformedError, byte, field_at, shortened, shown

_WIRE_TYPES = ("varint", "64-bit", "length-delimited", "group", "end of a group", "32-bit")
_SPECIAL = {
    "timestamp": ("google.protobuf.Timestamp", "is not between the years 1 and 9999"),
    "date": ("google.type.Date", "is not a date"),
    "time": ("google.type.TimeOfDay", "is not a time of a day"),
}

_LONGEST_DECIMAL = 64


@dataclass(frozen=True)
class _Found:
    """An occurrence of a field: ``start`` of its tag, ``begin`` and ``stop`` of its content."""

    wire_type: int
    start: int
    begin: int
    stop: int
    end: int


def reason(payload: bytes, begin: int, message: wire.Message) -> str | None:
    """Return why the record is malformed, or None if it is not.

    :param begin: where the message begins, after the message indexes
    """
    try:
        _check(payload, [(begin, len(payload))], message, "")
    except MalformedError as malformed:
        return str(malformed)
    return None


def _check(
    payload: bytes, pieces: Sequence[tuple[int, int]], message: wire.Message, path: str
) -> None:
    """Raise the reason if a message cannot be read.

    :param pieces: where it begins and ends: several pieces are merged
    """
    known = {field.number: field for field in message.fields}
    found: dict[int, list[_Found]] = {number: [] for number in known}
    last: dict[int, int] = {}  # of each oneof
    unknown: dict[int, int] = {}  # numbers that a closed enum does not have
    for begin, stop in pieces:
        at = begin
        while at < stop:
            number, one = _occurrence(payload, at, stop, known, path)
            at = one.end
            if number not in known:
                continue
            _check_wire_type(known[number], one, path)
            if known[number].is_closed and one.wire_type == wire._VARINT:
                symbol = _enum_number(payload, one)
                if symbol not in (known[number].symbols or {}):  # an unknown field
                    unknown[number] = symbol
                    continue
            oneof = known[number].oneof
            if oneof is not None:  # a member of a oneof clears the others
                if (other := last.get(oneof, number)) != number:
                    found[other] = []
                last[oneof] = number
            found[number].append(one)
    for number, field in known.items():
        if field.required and not found[number]:
            problem = "the required field is missing"
            if number in unknown:
                problem = f"its enum has no number {unknown[number]}"
            raise MalformedError(f"{_label(field, path)}: {problem}")
        # The value of a map's entry is read even if it is absent, which is an empty message.
        is_read = found[number] or (field.message is not None and field.absent)
        if field.column is not None and is_read:
            _check_field(payload, field, found[number], path)


def _occurrence(
    payload: bytes, at: int, stop: int, known: dict[int, wire.Field], path: str
) -> tuple[int, _Found]:
    """Return the field that starts at ``at``."""

    def cut(what: str) -> MalformedError:
        whole = "the record" if not path else f"field {path.removesuffix('.')}"
        return MalformedError(f"{whole} ends at {byte(stop)}, within {what}")

    tag = wire._varint(payload, at, stop)
    if tag is None:
        raise _long_varint(payload, at, stop) or cut(f"the tag of the field at {byte(at)}")
    number, wire_type, begin = tag[0] >> 3, tag[0] & 7, tag[1]
    name = f"field {path}{known[number].name}" if number in known else f"field {number}"
    what = f"{name} at {byte(at)}"
    if number == 0 or tag[0] > wire._MAX_TAG:
        raise MalformedError(f"{byte(at)} is not the start of a field: field number {number}")
    if wire_type > wire._FIXED32:
        raise MalformedError(f"{what} has the wire type {wire_type}, which does not exist")
    if wire_type == wire._END_GROUP:
        raise MalformedError(f"{what} ends a group that did not start")
    if wire_type == wire._GROUP:
        ends = wire._group_end(payload, begin, stop, number)
        if ends is None:
            raise MalformedError(f"{what} is a group that does not end before {byte(stop)}")
        return number, _Found(wire_type, at, begin, *ends)
    if wire_type in (wire._VARINT, wire._LENGTH):
        value = wire._varint(payload, begin, stop)
        if value is None:
            raise _long_varint(payload, begin, stop) or cut(what)
        if wire_type == wire._VARINT:
            return number, _Found(wire_type, at, begin, value[1], value[1])
        length, begin = value
    else:
        length = 8 if wire_type == wire._FIXED64 else 4
    if begin + length > stop:
        raise cut(f"{what}: {length} bytes expected, {stop - begin} found")
    return number, _Found(wire_type, at, begin, begin + length, begin + length)


def _long_varint(payload: bytes, at: int, stop: int) -> MalformedError | None:
    if stop - at < wire._MAX_VARINT:
        return None
    return MalformedError(f"the varint at {byte(at)} has more than {wire._MAX_VARINT} bytes")


def _label(field: wire.Field, path: str, kind: object = None) -> str:
    return field_at(f"{path}{field.name}", kind or field.kind)


def _check_wire_type(field: wire.Field, found: _Found, path: str) -> None:
    expected = wire._wire_type(field.kind)
    packed = wire._packable(field) and found.wire_type == wire._LENGTH
    if found.wire_type != expected and not packed:
        raise MalformedError(
            f"{_label(field, path)}: wire type {_WIRE_TYPES[found.wire_type]} at "
            f"{byte(found.start)}, {_WIRE_TYPES[expected]} expected"
        )


def _check_field(payload: bytes, field: wire.Field, found: Sequence[_Found], path: str) -> None:
    """Raise the reason if a field's values cannot be in its column."""
    values = list(found)
    if not field.repeated and field.message is None and field.kind != "string":
        values = values[-1:]
    if _decoded(payload, field, values) is not None:
        return
    while (field.repeated or field.kind == "string") and len(values) > 1:
        first, second = values[: len(values) // 2], values[len(values) // 2 :]
        values = second if _decoded(payload, field, first) is not None else first
    if _decoded(payload, field, values) is not None:  # none of them is malformed by itself
        raise _too_large(field, path)
    if field.message is None:
        raise _scalar(payload, field, values[0], path)
    pieces = [(one.begin, one.stop) for one in values]
    _check(payload, pieces, field.message, f"{path}{field.name}.")
    if field.special is None:
        raise _too_large(field, path)
    raise _special(payload, field, values, path)


def _too_large(field: wire.Field, path: str) -> MalformedError:
    size = wire.PART_MEMORY // 2**20
    return MalformedError(f"{_label(field, path)}: its value needs more than {size} MiB of memory")


def _decoded(payload: bytes, field: wire.Field, found: Sequence[_Found]) -> dict[str, Any] | None:
    """Return the decoder's result for one field, or None if it refuses the field."""
    single = wire.Message((replace(field, column=0, oneof=None),), ("value",), (field.type,))
    data = b"\x00" + b"".join(payload[one.start : one.end] for one in found)
    rows = wire.decode(pa.array([data], pa.binary()), single, (b"\x00",), "fits")
    if not rows.field("fits")[0].as_py():
        return None
    row: dict[str, Any] = rows[0].as_py()
    return row


def _enum_number(payload: bytes, found: _Found) -> int:
    """Return the number of an enum: the varint's low 32 bits, signed."""
    value = wire._varint(payload, found.begin, found.stop)
    assert value is not None  # noqa: S101  it was read before
    return ((value[0] & 2**32 - 1) ^ 2**31) - 2**31


def _element(field: wire.Field) -> pa.DataType:
    return field.type.value_type if field.repeated and not field.is_map else field.type


def _special(
    payload: bytes, field: wire.Field, found: Sequence[_Found], path: str
) -> MalformedError:
    """Return the reason of a well-known message with an invalid value, such as 30 February."""
    assert field.message is not None  # noqa: S101  the caller's condition
    content = b"\x00" + b"".join(payload[one.begin : one.stop] for one in found)
    batch = pa.array([content], pa.binary())
    row = wire.decode(batch, field.message, (b"\x00",), "fits")[0].as_py()
    if field.special == "decimal":
        kind = _element(field)
        value = _decimal(row["value"], row["scale"])
        text = f"of {len(row['value'])} bytes" if value is None else str(value)
        if pa.types.is_integer(kind):
            return MalformedError(
                f"{_label(field, path)}: value {shortened(text)} is not a number of its column "
                f"({kind})"
            )
        whole = value is None or value.adjusted() >= kind.precision - kind.scale
        what = "precision" if whole else "scale"
        return MalformedError(
            f"{_label(field, path, f'decimal({kind.precision},{kind.scale})')}: "
            f"value {shortened(text)} exceeds the {what}"
        )
    name, problem = _SPECIAL[field.special or ""]
    if field.special == "timestamp" and not 0 <= int(row["nanos"] or 0) < 10**9:
        problem = "has nanos that are not between 0 and 999999999"
    parts = ", ".join(f"{part}: {row[part]}" for part in field.message.names)
    return MalformedError(f"{_label(field, path, name)}: value {parts} {problem}")


def _decimal(unscaled: bytes, scale: int) -> Decimal | None:
    """Return the decimal, or None if it is too long for any column."""
    if len(unscaled) > _LONGEST_DECIMAL:
        return None
    number = int.from_bytes(unscaled, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _scalar(payload: bytes, field: wire.Field, found: _Found, path: str) -> MalformedError:
    content = payload[found.begin : found.stop]
    where = f"at {byte(found.begin)}"
    if field.kind in ("string", "bytes"):
        return MalformedError(f"{_label(field, path)}: value {shown(content)} {where} is not UTF-8")
    column = _element(field)
    natural = pa.uint64() if field.kind in ("uint64", "fixed64") else pa.int64()
    kind = pa.list_(natural) if field.repeated else natural
    row = None
    if field.kind == "enum" and _decoded(payload, replace(field, kind="int32", type=kind), [found]):
        return _too_large(field, path)
    if pa.types.is_integer(column) or pa.types.is_decimal(column):
        row = _decoded(payload, replace(field, type=kind), [found])
    if row is None:
        return MalformedError(f"{_label(field, path)}: packed values {where} end within a value")
    numbers = row["value"] if field.repeated else [row["value"]]
    number = next(compress(numbers, wire._outside(column, numbers)))
    return MalformedError(
        f"{_label(field, path)}: value {number} is out of range of its column ({column})"
    )
