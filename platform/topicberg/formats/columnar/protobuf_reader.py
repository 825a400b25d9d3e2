"""Executes programs for records of Protobuf.

It reads the bytes once, from left to right, expecting the fields in the order of the schema. What
is unusual ends it, and Spark's path decides: a field that is not repeated but occurs twice, several
members of a oneof, a group, a number of an enum without a name. Unknown fields are skipped.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.columnar.memory import (
    address,
    compiled,
    copy,
    get,
    load_byte,
    load_float,
    load_int32,
    load_int64,
    put,
    store_byte,
    store_double,
    store_int32,
    store_int64,
)
from topicberg.formats.columnar.program import WIDTH, Encoding, ProtobufOp
from topicberg.formats.columnar.records import (
    WIRE_BYTES,
    end_value,
    schema_of,
    start_of,
    tables,
)

MAX_DEPTH = 64
"""Messages in each other."""
_BYTES = 8 * WIDTH
"""Of an instruction."""
_LEVEL = 5
"""Numbers of an open message: instruction, end, number, domain of the items or -1, next field."""
_FIELD = 4
_, _MESSAGE, _ITEM, _PACKED, _SKIP, _NUMBER, _WIDER = (int(ProtobufOp(n)) for n in range(7))
_TEXT, _ENUM, _TIMESTAMP, _LIST, _REQUIRED = (int(ProtobufOp(n)) for n in range(7, 12))
_DEFAULT_NUMBER = int(ProtobufOp.DEFAULT_NUMBER)
_INT32, _UINT32, _SINT32, _INT64, _SINT64, _BOOL = (int(Encoding(n)) for n in range(6))
_FIXED32, _SFIXED32 = int(Encoding.FIXED32), int(Encoding.SFIXED32)
_VARINT, _WIRE_64, _LENGTH, _WIRE_32 = 0, 1, 2, 5
_MAX_TAG = 2**32 - 1
_STEPS, _STEPS_OF_A_BYTE = 16_384, 64
"""The fields that a record's fields are compared with, at most."""
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799


def execute(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    present: NDArray[np.uint8],
    instructions: NDArray[np.int64],
    targets: NDArray[np.int64],
    *rest: Any,
) -> int:
    """Decode records; see :func:`topicberg.formats.columnar.decoding.decode`."""
    stack = np.zeros(_LEVEL * MAX_DEPTH, np.int64)
    seen = np.zeros(len(targets), np.int64)  # the last message that had a field or a oneof
    work = stack, seen
    done: int = _execute(data, offsets, present, instructions, targets, *rest, *work)
    return done


@compiled
def _execute(  # type: ignore[no-untyped-def]
    data,
    offsets,
    present,
    instructions,
    targets,
    text_offsets,
    texts,
    writers,
    addresses,
    used,
    counts,
    rooms,
    starts,
    ends,
    first,
    stack,
    seen,
):
    base = address(data)
    messages = np.int64(0)
    number, start = np.int64(-1), np.int64(-1)
    program = address(instructions), address(targets), address(text_offsets), address(texts)
    columns, ending = tables(addresses, used, counts, rooms, starts, ends)
    work = address(stack), address(seen)
    records = min(len(offsets) - 1, first + rooms[1, 0] - counts[0])
    for record in range(first, records):
        if present[record]:
            at, end = offsets[record], offsets[record + 1]
            found = schema_of(data, at, end)
            if found != number:
                number, start = found, start_of(writers, found)
            if number < 0 or start < 0:
                return record
            at, end = base + at + WIRE_BYTES, base + end
            at = _message_at(at, end, start, program)
            if at < 0:
                return record
            messages = _record(at, end, start + 1, program, columns, ending, work, messages)
            if messages < 0:
                return record
        end_value(0, *ending)
    return records


@compiled
def _message_at(at, end, start, program):  # type: ignore[no-untyped-def]
    """Return the address after the message indexes that name the table's message, or -1."""
    instructions, _, names, texts = program
    it = instructions + _BYTES * start
    if end - at > get(it, 5):
        return -1
    for text in range(get(it, 3), get(it, 3) + get(it, 4)):
        begin, size = get(names, text), get(names, text + 1) - get(names, text)
        is_same = end - at >= size
        for place in range(size):
            is_same = is_same and load_byte(at + place) == load_byte(texts + begin + place)
        if is_same:
            return at + size
    return -1


@compiled
def _varint(at, end):  # type: ignore[no-untyped-def]
    """Return a number of up to 64 bits, and the address after it, or -1."""
    if at >= end:
        return np.uint64(0), -1
    byte = load_byte(at)
    bits = np.uint64(byte & 0x7F)
    at += 1
    shift = np.uint64(7)
    while byte >= 0x80:
        if at >= end:
            return bits, -1
        byte = load_byte(at)
        at += 1
        if shift == 63 and byte > 1:
            return bits, -1
        bits |= np.uint64(byte & 0x7F) << shift
        shift += np.uint64(7)
    return bits, at


@compiled
def _sized(at, end):  # type: ignore[no-untyped-def]
    """Return where a value with a length begins and ends, or -1 twice."""
    size, at = _varint(at, end)
    if at < 0 or size > np.uint64(end - at):
        return -1, -1
    return at, at + np.int64(size)


@compiled
def _skipped(at, end, wire):  # type: ignore[no-untyped-def]
    """Return the address after a value, or -1."""
    if wire == _VARINT:
        _, at = _varint(at, end)
    elif wire == _LENGTH:
        _, at = _sized(at, end)
    elif wire == _WIRE_64:
        at += 8
    elif wire == _WIRE_32:
        at += 4
    else:
        return -1
    return at if at <= end else -1


@compiled
def _record(at, end, pc, program, columns, ending, work, messages):  # type: ignore[no-untyped-def]
    """Read a record's message. The tuples are addresses of arrays.

    :param messages: how many there were; each has a number
    :returns: how many messages there were, or -1
    """
    instructions, targets, _, _ = program
    _, valids, _, counts, _, item_rooms = columns
    stack, seen = work
    steps = _STEPS + _STEPS_OF_A_BYTE * (end - at)
    it, items, level = instructions + _BYTES * pc, np.int64(-1), stack
    depth, this, following = 0, messages + 1, 0
    messages += 1
    while True:
        # The end of messages.
        while at == end:
            if not _ended(targets + 8 * get(it, 5), this, program, columns, seen):
                return -1
            if items >= 0:
                end_value(items, *ending)
            if depth == 0:
                return messages
            depth -= 1
            level = stack + 8 * _LEVEL * depth
            it, end, this = get(level, 0), get(level, 1), get(level, 2)
            items, following = get(level, 3), get(level, 4)
        # A field.
        tag, at = _varint(at, end)
        if at < 0 or tag < 8 or tag > _MAX_TAG:
            return -1
        fields, count = targets + 8 * get(it, 3), get(it, 4)
        place, taken = _field(fields, count, np.int64(tag), following)
        steps -= 1 + taken
        if place < 0 or steps < 0:
            return -1
        if place == count:
            at = _skipped(at, end, np.int64(tag) & 7)
            if at < 0:
                return -1
            continue
        field = fields + 8 * _FIELD * place
        value, number, oneof = instructions + _BYTES * get(field, 1), get(field, 2), get(field, 3)
        following = place
        if number >= 0:
            if get(seen, number) == this or (oneof >= 0 and get(seen, oneof) == this):
                return -1
            put(seen, number, this)
            if oneof >= 0:
                put(seen, oneof, this)
            following = (place + 1) % count
        op, inner = get(value, 0), np.int64(-1)
        if op == _SKIP:
            at = _skipped(at, end, np.int64(tag) & 7)
        elif op == _PACKED:
            at = _packed(at, end, value, program, columns, ending)
        else:
            if op == _ITEM:
                inner = get(value, 3)
                if get(counts, inner) >= get(item_rooms, inner):
                    return -1
                value = instructions + _BYTES * get(value, 4)
            if get(value, 0) == _MESSAGE:
                at, till = _sized(at, end)
                if at < 0 or depth == MAX_DEPTH:
                    return -1
                put(level, 0, it)
                put(level, 1, end)
                put(level, 2, this)
                put(level, 3, items)
                put(level, 4, following)
                depth += 1
                level = stack + 8 * _LEVEL * depth
                messages += 1
                it, end, this, items, following = value, till, messages, inner, 0
                if get(it, 1) >= 0:
                    store_byte(get(valids, get(it, 1)) + get(counts, get(it, 2)), np.uint8(1))
                continue
            at = _scalar(at, end, value, program, columns)
            if at >= 0 and inner >= 0:
                end_value(inner, *ending)
        if at < 0:
            return -1


@compiled
def _field(fields, count, tag, guess):  # type: ignore[no-untyped-def]
    """Find the field of a tag.

    :returns: its place, the count for an unknown one, or -1: a field of that number has another
        wire type; how many were compared
    """
    place = guess
    is_known = False
    for step in range(count):
        other = get(fields, _FIELD * place)
        if other == tag:
            return place, step
        is_known = is_known or other >> 3 == tag >> 3
        place = place + 1 if place + 1 < count else 0
    return (-1 if is_known else count), count


@compiled
def _packed(at, end, it, program, columns, ending):  # type: ignore[no-untyped-def]
    """Read packed values; return the address after them, or -1."""
    _, _, _, counts, _, item_rooms = columns
    items, value = get(it, 3), program[0] + _BYTES * get(it, 4)
    at, till = _sized(at, end)
    if at < 0:
        return -1
    while at < till:
        if get(counts, items) >= get(item_rooms, items):
            return -1
        at = _scalar(at, till, value, program, columns)
        if at < 0:
            return -1
        end_value(items, *ending)
    return at


@compiled
def _scalar(at, end, it, program, columns):  # type: ignore[no-untyped-def]
    """Read a value that is not a message, by an instruction; return the address after it, or -1."""
    values, valids, used, counts, text_rooms, _ = columns
    op, slot, row = get(it, 0), get(it, 1), get(counts, get(it, 2))
    a, b = get(it, 3), get(it, 4)
    target = get(values, slot)
    store_byte(get(valids, slot) + row, np.uint8(1))
    if op == _TEXT:
        at, till = _sized(at, end)
        if at < 0 or till - at > get(text_rooms, slot) - get(used, slot):
            return -1
        copy(target + get(used, slot), at, till - at)
        put(used, slot, get(used, slot) + till - at)
        return till
    if op == _NUMBER:
        found, at = _number(at, end, a)
        if at >= 0:
            _store(target, row, found, b)
        return at
    if op == _ENUM:
        found, at = _number(at, end, _INT32)
        text = _symbol(program[1] + 8 * b, a, found)
        if at < 0 or text < 0 or not _copied(text, slot, program, columns):
            return -1
        return at
    if op == _WIDER:
        if end - at < 4:
            return -1
        store_double(target + 8 * row, np.float64(load_float(at)))
        return at + 4
    if op == _TIMESTAMP:
        at, till = _sized(at, end)
        if at < 0:
            return -1
        micros, is_one = _timestamp(at, till)
        store_int64(target + 8 * row, micros)
        return till if is_one else -1
    return -1


@compiled
def _number(at, end, encoding):  # type: ignore[no-untyped-def]
    """Return a number, and the address after it, or -1."""
    if encoding >= _FIXED32:
        size = 4 if encoding <= _SFIXED32 else 8
        if end - at < size:
            return np.int64(0), -1
        if size == 8:
            return load_int64(at), at + 8
        found = np.int64(load_int32(at))
        return (found & _MAX_TAG if encoding == _FIXED32 else found), at + 4
    bits, at = _varint(at, end)
    found = np.int64(bits)
    if encoding == _INT32:
        found = np.int64(np.int32(found))
    elif encoding == _UINT32:
        found &= _MAX_TAG
    elif encoding == _SINT32:
        found &= _MAX_TAG
        found = (found >> 1) ^ -(found & 1)
    elif encoding == _SINT64:
        found = np.int64(bits >> np.uint64(1)) ^ -(found & 1)
    elif encoding == _BOOL:
        found = np.int64(bits != 0)
    return found, at


@compiled
def _store(target, row, found, width):  # type: ignore[no-untyped-def]
    """Write a value of a column; 16 bytes: of a decimal that is not negative."""
    if width == 4:
        store_int32(target + 4 * row, np.int32(found))
    elif width == 8:
        store_int64(target + 8 * row, found)
    elif width == 1:
        store_byte(target + row, np.uint8(found))
    else:
        store_int64(target + 16 * row, found)
        store_int64(target + 16 * row + 8, np.int64(0))


@compiled
def _symbol(pairs, count, number):  # type: ignore[no-untyped-def]
    """Return the text of an enum's number, or -1."""
    if 0 <= number < count and get(pairs, 2 * number) == number:
        return get(pairs, 2 * number + 1)
    for place in range(count):
        if get(pairs, 2 * place) == number:
            return get(pairs, 2 * place + 1)
    return np.int64(-1)


@compiled
def _copied(text, slot, program, columns):  # type: ignore[no-untyped-def]
    """Append a constant text to a column, and return whether there was room."""
    _, _, names, texts = program
    values, _, used, _, text_rooms, _ = columns
    begin, size = get(names, text), get(names, text + 1) - get(names, text)
    if size > get(text_rooms, slot) - get(used, slot):
        return False
    copy(get(values, slot) + get(used, slot), texts + begin, size)
    put(used, slot, get(used, slot) + size)
    return True


@compiled
def _timestamp(at, end):  # type: ignore[no-untyped-def]
    """Return a message ``google.protobuf.Timestamp`` in microseconds, and whether it is one."""
    seconds, nanos = np.int64(0), np.int64(0)
    last = np.int64(0)
    while at < end:
        tag, at = _varint(at, end)
        field = np.int64(tag) >> 3
        if at < 0 or np.int64(tag) & 7 != _VARINT or field <= last or field > 2:
            return seconds, False
        last = field
        if field == 1:
            seconds, at = _number(at, end, _INT64)
        else:
            nanos, at = _number(at, end, _INT32)
        if at < 0:
            return seconds, False
    is_one = _FIRST_SECOND <= seconds <= _LAST_SECOND and 0 <= nanos <= 999_999_999
    return (seconds * 1_000_000 + nanos // 1000 if is_one else np.int64(0)), is_one


@compiled
def _ended(targets, this, program, columns, seen):  # type: ignore[no-untyped-def]
    """Fill what a message does not have; return whether it is complete.

    :param targets: how many instructions there are, and these
    """
    values, valids, _, counts, _, _ = columns
    for place in range(1, get(targets, 0) + 1):
        it = program[0] + _BYTES * get(targets, place)
        op, slot, row = get(it, 0), get(it, 1), get(counts, get(it, 2))
        if op != _LIST and get(seen, get(it, 3)) == this:
            continue
        if op == _REQUIRED:
            return False
        store_byte(get(valids, slot) + row, np.uint8(1))
        if op == _DEFAULT_NUMBER:
            _store(get(values, slot), row, get(it, 4), get(it, 5))
        elif op != _LIST and not _copied(get(it, 4), slot, program, columns):
            return False
    return True
