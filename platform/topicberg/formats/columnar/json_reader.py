"""Executes programs for records of JSON.

It reads the bytes once, from left to right. What is not strictly JSON ends it, as does what is
unusual: a repeated property, an escape in the name of one, a whole number that is written as
``1.0``, a number with more than 19 digits, half of a surrogate pair, a negative zero. Spark's path
then decides. Properties that the schema does not declare are checked and skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.columnar import json_numbers as numbers
from topicberg.formats.columnar.json_text import (
    WORD,
    at_byte,
    base64,
    is_word,
    passed,
    skipped,
    space,
    text,
    time,
)
from topicberg.formats.columnar.memory import (
    address,
    compiled,
    get,
    load_byte,
    load_int64,
    load_word,
    put,
    store_byte,
    store_double,
    store_float,
    store_int32,
    store_int64,
)
from topicberg.formats.columnar.program import WIDTH, JsonOp
from topicberg.formats.columnar.records import (
    WIRE_BYTES,
    end_value,
    schema_of,
    start_of,
    tables,
)

_BYTES = 8 * WIDTH
"""Of an instruction."""
MAX_DEPTH = 64
"""Arrays and objects in each other."""
MAX_BYTES = 8 * 1024 * 1024
"""Of a record; beyond it, Spark has limits of its own."""
_OBJECT, _ARRAY, _TEXT, _LONG, _INT, _BOOLEAN, _DOUBLE = (int(JsonOp(n)) for n in range(7))
_FLOAT, _WIDER, _WHOLE_DOUBLE = (int(JsonOp(n)) for n in range(7, 10))
_BINARY, _DECIMAL, _TIME = (int(JsonOp(n)) for n in range(11, 14))
_DECIMAL_BYTES = 16
_STEPS, _STEPS_OF_A_BYTE = 16_384, 64
"""The names that a record's names are compared with, at most."""


def execute(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    present: NDArray[np.uint8],
    instructions: NDArray[np.int64],
    targets: NDArray[np.int64],
    *rest: Any,
) -> int:
    """Decode records; see :func:`topicberg.formats.columnar.decoding.decode`."""
    stack = np.zeros(3 * MAX_DEPTH, np.int64)  # instruction, number of the object, last property
    seen = np.zeros(len(targets), np.int64)  # the number of the last object that had a property
    after = np.zeros(len(targets), np.int64)  # the property that followed another one last time
    work = stack, seen, after
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
    after,
):
    base = address(data)
    objects = np.int64(0)
    number, start = np.int64(-1), np.int64(-1)
    program = address(instructions), address(targets), address(text_offsets), address(texts)
    columns, ending = tables(addresses, used, counts, rooms, starts, ends)
    work = address(stack), address(seen), address(after)
    records = min(len(offsets) - 1, first + rooms[1, 0] - counts[0])
    for record in range(first, records):
        if present[record]:
            at, end = offsets[record], offsets[record + 1]
            found = schema_of(data, at, end)
            if found != number:
                number, start = found, start_of(writers, found)
            if number < 0 or start < 0 or end - at > MAX_BYTES:
                return record
            end += base
            at, objects = _record(
                base + at + WIRE_BYTES, end, start, program, columns, ending, work, objects
            )
            if at < 0 or space(at, end) != end:
                return record
        end_value(0, *ending)
    return records


@compiled
def _record(at, end, start, program, columns, ending, work, objects):  # type: ignore[no-untyped-def]
    """Read a record's value by an instruction. The tuples are addresses of arrays.

    :param objects: how many there were; each has a number
    :returns: the address after it, or -1, and how many objects there were
    """
    instructions, targets, names, texts = program
    _, valids, _, counts, _, item_rooms = columns
    stack, seen, after = work
    steps = _STEPS + _STEPS_OF_A_BYTE * (end - at)
    depth, pc = 0, start
    while True:
        # A value, by an instruction.
        it = instructions + _BYTES * pc
        at = space(at, end)
        byte = at_byte(at, end)
        has_content = False
        if pc < 0:  # it is not declared
            at = skipped(at, end)
        elif byte == 110:
            # The record itself is not null.
            is_null = get(it, 1) >= 0 and is_word(at, end, b"null")
            at = at + 4 if is_null else -1
        elif get(it, 0) > _ARRAY:
            at = _scalar(at, end, it, columns)
        else:
            slot, is_array = get(it, 1), get(it, 0) == _ARRAY
            if byte != (91 if is_array else 123) or depth == MAX_DEPTH:
                return -1, objects
            if slot >= 0:
                store_byte(get(valids, slot) + get(counts, get(it, 2)), np.uint8(1))
            at = space(at + 1, end)
            has_content = at_byte(at, end) != byte + 2
            if has_content:
                objects += 1
                put(stack, 3 * depth, it)
                put(stack, 3 * depth + 1, objects)
                put(stack, 3 * depth + 2, get(it, 4))  # the beginning of the object
                depth += 1
            else:
                at += 1
        if at < 0:
            return -1, objects
        # What follows a value: a comma, or the end of arrays and objects.
        while not has_content:
            if depth == 0:
                return at, objects
            at = space(at, end)
            byte = at_byte(at, end)
            container = get(stack, 3 * depth - 3)
            is_array = get(container, 0) == _ARRAY
            if is_array:
                end_value(get(container, 3), *ending)
            if byte == 44:
                at = space(at + 1, end)
                has_content = True
            elif byte == (93 if is_array else 125):
                at += 1
                depth -= 1
            else:
                return -1, objects
        # What an array or an object continues with: an item, or a name.
        container = get(stack, 3 * depth - 3)
        if get(container, 0) == _ARRAY:
            items = get(container, 3)
            if get(counts, items) >= get(item_rooms, items):
                return -1, objects
            pc = get(container, 4)
            continue
        if at_byte(at, end) != 34:
            return -1, objects
        first, count = get(container, 3), get(container, 4)
        this, last = get(stack, 3 * depth - 2), get(stack, 3 * depth - 1)
        offsets = names + 8 * get(container, 5)
        guess = get(after, first + last)
        name, at, taken = _property(at + 1, end, texts, offsets, count, guess, last + 1)
        steps -= taken
        if at < 0 or steps < 0:
            return -1, objects
        if name < count:
            if get(seen, first + name) == this:  # it is repeated
                return -1, objects
            put(seen, first + name, this)
            put(after, first + last, name)
            put(stack, 3 * depth - 1, name)
        pc = get(targets, first + name)
        at = space(at, end)
        if at_byte(at, end) != 58:
            return -1, objects
        at += 1


@compiled
def _property(at, end, texts, offsets, count, guess, following):  # type: ignore[no-untyped-def]
    """Find the property that has a name of the record.

    :param at: what follows the first quotation mark
    :param offsets: the address of where each property's name begins, and where the last one ends
    :param guess: the property that is expected
    :param following: the one to try next; the others follow
    :returns: the number of the property, or how many there are; the address after the name, or
        -1; how many names were compared
    """
    number = guess
    for step in range(count + 1):
        begin = load_int64(offsets + 8 * number)
        size = load_int64(offsets + 8 * number + 8) - begin
        if at + size < end and load_byte(at + size) == 34 and _is_equal(at, texts + begin, size):
            return number, at + size + 1, step
        number = following if step == 0 else number + 1
        if number >= count:
            number = 0
    return count, passed(at, end, False), count


@compiled
def _is_equal(one, other, size):  # type: ignore[no-untyped-def]
    """Compare bytes of memory; up to eight more than ``size`` are read."""
    place = 0
    while place + WORD <= size:
        if load_word(one + place) != load_word(other + place):
            return False
        place += WORD
    if place == size:
        return True
    unlike = load_word(one + place) ^ load_word(other + place)
    return unlike << np.uint64(8 * (WORD + place - size)) == 0


@compiled
def _scalar(at, end, it, columns):  # type: ignore[no-untyped-def]
    """Read a value that is neither null, nor an array, nor an object, by an instruction.

    :returns: the address after it, or -1
    """
    values, valids, used, counts, text_rooms, _ = columns
    op, slot, row = get(it, 0), get(it, 1), get(counts, get(it, 2))
    low, high = get(it, 3), get(it, 4)
    target = get(values, slot)
    store_byte(get(valids, slot) + row, np.uint8(1))
    if op in (_TEXT, _BINARY):
        # A text is not longer than the rest of the record.
        size = get(used, slot)
        if end - at > get(text_rooms, slot) - size:
            return -1
        target += size
        stop, at = text(at, end, target) if op == _TEXT else base64(at, end, target)
        put(used, slot, size + stop - target)
    elif op == _LONG:
        found, at = numbers.whole(at, end, low, high)
        store_int64(target + 8 * row, found * get(it, 5))
    elif op == _INT:
        found, at = numbers.whole(at, end, low, high)
        store_int32(target + 4 * row, np.int32(found))
    elif op == _DOUBLE:
        wide, at = numbers.double(at, end)
        store_double(target + 8 * row, wide)
    elif op == _BOOLEAN:
        is_true = is_word(at, end, b"true")
        store_byte(target + row, np.uint8(is_true))
        if is_true:
            at += 4
        else:
            at = at + 5 if is_word(at, end, b"false") else -1
    elif op == _TIME:
        found, at = time(at, end)
        store_int64(target + 8 * row, found)
    elif op == _DECIMAL:
        at = _decimal(at, end, low, high, np.uint64(get(it, 5)), target + 16 * row)
    elif op in (_FLOAT, _WIDER):
        wide, at = numbers.double(at, end)
        narrow, is_sure = numbers.as_float(wide)
        if op == _FLOAT:
            store_float(target + 4 * row, narrow)
        else:
            store_double(target + 8 * row, np.float64(narrow))
        at = at if is_sure else -1
    elif op == _WHOLE_DOUBLE:
        found, at = numbers.whole(at, end, low, high)
        store_double(target + 8 * row, np.float64(found))
    else:  # _WHOLE_FLOAT
        found, at = numbers.whole(at, end, low, high)
        store_float(target + 4 * row, np.float32(found))
    return at


@compiled
def _decimal(at, end, scale, most, limit, target):  # type: ignore[no-untyped-def]
    """Read a number, or base64 of its unscaled bytes; return the address after it, or -1.

    :param most: with ``limit`` the upper and lower half of the least value that is too large
    """
    if at_byte(at, end) == 34:
        if end - at > 2 * _DECIMAL_BYTES:
            end = at + 2 * _DECIMAL_BYTES  # more do not fit
        stop, at = base64(at, end, target)  # a row more has room
        size = stop - target
        if at < 0 or size < 1 or size > _DECIMAL_BYTES:
            return -1
        high = np.int64(-1) if load_byte(target) >= 0x80 else np.int64(0)
        low = np.uint64(high)
        for place in range(size):
            high = high << 8 | np.int64(low >> np.uint64(56))
            low = low << np.uint64(8) | np.uint64(load_byte(target + place))
    else:
        high, low, at = numbers.scaled(at, end, scale)
        if at < 0:
            return -1
    # The absolute value, to compare it with the limit.
    above, below = (high, low) if high >= 0 else numbers.negate(high, low)
    if above < 0 or above > most or (above == most and below >= limit):
        return -1
    store_int64(target, np.int64(low))
    store_int64(target + 8, high)
    return at
