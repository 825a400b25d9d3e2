"""Reads records in Avro's binary encoding by programs.

Source: Avro's specification, "Binary Encoding".
"""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.decimals import (
    MAX_BYTES,
    MAX_DIGITS,
    MAX_ZEROS,
    reaches,
    rescale,
    store_decimal,
    unscaled,
    write_decimal,
)
from topicberg.formats.columnar.memory import (
    compiled,
    get,
    load_byte,
    load_float,
    load_int32,
    load_int64,
    put,
    store_byte,
    store_double,
    store_float,
    store_int32,
    store_int64,
)
from topicberg.formats.columnar.program import MAX_NESTED, WIDTH, AvroOp, Store
from topicberg.formats.columnar.records import (
    append,
    append_text,
    end_value,
    is_utf8,
    may_repeat,
    varint,
)
from topicberg.formats.columnar.times import Moment, moment
from topicberg.formats.connect import INFINITE_NANOS

_BYTES = 8 * WIDTH  # Of an instruction.
_TEXT_STORE = int(Store.TEXT)
_LEAST, _MOST = INFINITE_NANOS


@compiled
def _number(position, end):  # type: ignore[no-untyped-def]
    """Return a zig-zag number of up to 64 bits, and the address after it, or -1."""
    bits, position = varint(position, end)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1)), position


@compiled
def _sized(position, end):  # type: ignore[no-untyped-def]
    """Return where bytes after their length begin and end, or -1 twice."""
    size, position = _number(position, end)
    if position < 0 or size < 0 or size > end - position:
        return -1, -1
    return position, position + size


def words(_: int) -> int:
    """Return how many words of memory :func:`record` works in."""
    return 2 * MAX_NESTED + MAX_DIGITS // 8


@compiled
def record(position, end, pc, program, columns, ending, work):  # type: ignore[no-untyped-def]
    """Read a record by its instructions; the tuples are addresses of arrays.

    :param work: the address of the memory that :func:`words` says
    :returns: whether it is accepted
    """
    instructions, targets, _, _ = program
    values, valids, used, counts, text_rooms, item_rooms = columns
    offs = ending[2]
    arrays, depth = work, 0  # an array has its items left and instruction
    digits = work + 8 * 2 * MAX_NESTED
    while True:
        instruction = instructions + _BYTES * pc
        op, slot, domain = get(instruction, 0), get(instruction, 1), get(instruction, 2)
        a, b = get(instruction, 3), get(instruction, 4)
        pc += 1
        row, target = get(counts, domain), np.int64(0)
        if slot >= 0:
            target = get(values, slot)
            store_byte(get(valids, slot) + row, np.uint8(1))
        if op == AvroOp.TEXT:
            position, till = _sized(position, end)
            if position < 0 or not append(position, till - position, slot, columns):
                return False
            if a and not is_utf8(position, till):
                return False
            position = till
        elif op == AvroOp.INT:
            number, position = _number(position, end)
            if position < 0 or number < a or number > b:
                return False
            store_int32(target + 4 * row, np.int32(number))
        elif op == AvroOp.LONG:
            number, position = _number(position, end)
            if position < 0 or number < a or number > b:
                return False
            store_int64(target + 8 * row, number * get(instruction, 5))
        elif op == AvroOp.UNION:
            number, position = _number(position, end)
            if position < 0 or number < 0 or number >= a:
                return False
            pc = get(targets, b + number)
        elif op == AvroOp.JUMP:
            pc = a
        elif op == AvroOp.DOUBLE:
            if end - position < 8:
                return False
            store_int64(target + 8 * row, load_int64(position))
            position += 8
        elif op in (AvroOp.NEAREST_FLOAT, AvroOp.NEAREST_DOUBLE):
            number, position = _number(position, end)
            if position < 0 or number < a or number > b:
                return False
            if op == AvroOp.NEAREST_FLOAT:
                store_float(target + 4 * row, np.float32(number))
            else:
                store_double(target + 8 * row, np.float64(number))
        elif op == AvroOp.ENUM:
            number, position = _number(position, end)
            if position < 0 or number < 0 or number >= a:
                return False
            if not append_text(b + number, slot, program, columns):
                return False
        elif op in (AvroOp.FLOAT, AvroOp.WIDER):
            if end - position < 4:
                return False
            if op == AvroOp.FLOAT:
                store_int32(target + 4 * row, load_int32(position))
            else:
                store_double(target + 8 * row, np.float64(load_float(position)))
            position += 4
        elif op == AvroOp.BOOLEAN:
            if position >= end or load_byte(position) > 1:
                return False
            store_byte(target + row, load_byte(position))
            position += 1
        elif op == AvroOp.END:
            return position == end
        elif op == AvroOp.PRESENT:
            pass
        elif op == AvroOp.FIXED:
            if a > end - position or not append(position, a, slot, columns):
                return False
            position += a
        elif op in (AvroOp.ARRAY, AvroOp.ITEM):
            if op == AvroOp.ARRAY:
                if depth == MAX_NESTED:
                    return False
                put(arrays, 2 * depth, 0)
                put(arrays, 2 * depth + 1, instruction)
                depth += 1
            elif domain > 0:
                end_value(domain, *ending)
            left, array = get(arrays, 2 * depth - 2), get(arrays, 2 * depth - 1)
            if left == 0:
                left, position = _number(position, end)
                if position >= 0 and left < 0:
                    _, position = _number(position, end)  # the number of bytes is not used
                    left = -left
                # Every item has a byte at least: see topicberg.formats.avro.schema.
                if position < 0 or left < 0 or left > end - position:
                    return False
                items = get(array, 3)
                if items > 0 and get(counts, items) + left > get(item_rooms, items):
                    return False
            if left == 0:
                depth -= 1
                pc = get(array, 5)
            else:
                put(arrays, 2 * depth - 2, left - 1)
                pc = get(array, 4)
        elif op == AvroOp.DECIMAL:
            position, till = (position, position + a) if a >= 0 else _sized(position, end)
            size = till - position
            if position < 0 or till > end or size < 1 or size > MAX_BYTES:
                return False
            high, low = unscaled(position, size)
            position = till
            if reaches(high, low, b, np.uint64(get(instruction, 5))):
                return False
            store_decimal(target + 16 * row, high, low)
        elif op in (AvroOp.SKIP_NUMBER, AvroOp.SKIP_TEXT):
            skipped = _number(position, end) if op == AvroOp.SKIP_NUMBER else _sized(position, end)
            position = skipped[1]
            if position < 0:
                return False
        elif op == AvroOp.SKIP_BYTES:
            if a > end - position:
                return False
            position += a
        elif op == AvroOp.NUMBER:
            target += a * row
            if a == 1:
                store_byte(target, np.uint8(b))
            elif a == 4:
                store_int32(target, np.int32(b))
            else:
                store_int64(target, b)
                if a == 16:
                    store_int64(target + 8, get(instruction, 5))
        elif op == AvroOp.CONSTANT:
            if not append_text(a, slot, program, columns):
                return False
        elif op == AvroOp.VALUE:
            if row >= get(item_rooms, domain):
                return False
            end_value(domain, *ending)
        elif op == AvroOp.UNIQUE:
            begin = load_int32(get(offs, slot) + 4 * row)
            if may_repeat(get(values, b), get(offs, b), _TEXT_STORE, begin, get(counts, a)):
                return False
        elif op == AvroOp.RESCALE:
            if not rescale(target + 16 * row, a):
                return False
        elif op == AvroOp.MOMENT:
            position, till = _sized(position, end)
            if position < 0:
                return False
            number, position = moment(position, till, a)
            if position != till:
                return False
            if a == Moment.DAY:
                store_int32(target + 4 * row, np.int32(number))
            else:
                store_int64(target + 8 * row, number)
        elif op == AvroOp.NANOS:
            number, position = _number(position, end)
            if position < 0 or number in (_LEAST, _MOST):
                return False
            store_int64(target + 8 * row, number // 1_000)
        elif op == AvroOp.DECIMAL_TEXT:
            scale = a
            if b == 1:
                scale, position = _number(position, end)
                if position < 0:
                    return False
            position, till = _sized(position, end)
            size = till - position
            if position < 0 or size < 1 or size > MAX_BYTES:
                return False
            high, low = unscaled(position, size)
            position = till
            if b == 2:
                scale, position = _number(position, end)
            if position < 0 or scale < -MAX_ZEROS or scale > MAX_ZEROS:
                return False
            begin, room = get(used, slot), get(text_rooms, slot) - get(used, slot)
            size = write_decimal(high, low, scale, target + begin, room, digits)
            if size < 0:
                return False
            put(used, slot, begin + size)
        else:
            return False
