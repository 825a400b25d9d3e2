"""Executes programs for records in Avro's binary encoding.

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
    unscaled,
    write_decimal,
)
from topicberg.formats.columnar.maps import may_repeat
from topicberg.formats.columnar.memory import (
    address,
    compiled,
    copy,
    load_int32,
    load_int64,
    store_byte,
    store_int32,
    store_int64,
)
from topicberg.formats.columnar.program import MAX_NESTED, AvroOp, Store
from topicberg.formats.columnar.records import (
    WIRE_BYTES,
    end_value,
    schema_of,
    start_of,
    tables,
)
from topicberg.formats.columnar.times import Moment, moment
from topicberg.formats.columnar.utf8 import is_utf8
from topicberg.formats.connect_values import INFINITE_NANOS

_END, _FAIL, _JUMP, _UNION, _PRESENT = (int(AvroOp(n)) for n in range(5))
_LONG, _INT, _BOOLEAN, _FLOAT, _DOUBLE = (int(AvroOp(n)) for n in range(5, 10))
_WIDER, _NEAREST_FLOAT, _NEAREST_DOUBLE = (int(AvroOp(n)) for n in range(10, 13))
_TEXT, _FIXED, _ENUM, _DECIMAL, _ARRAY, _ITEM = (int(AvroOp(n)) for n in range(13, 19))
_SKIP_NUMBER, _SKIP_TEXT, _SKIP_BYTES, _UNIQUE = (int(AvroOp(n)) for n in range(19, 23))
_RESCALE, _NUMBER, _CONSTANT, _VALUE = (int(AvroOp(n)) for n in range(23, 27))
_NANOS, _MOMENT, _DECIMAL_TEXT = (int(AvroOp(n)) for n in range(27, 30))
_DAY, _TEXT_STORE = int(Moment.DAY), int(Store.TEXT)
_LEAST, _MOST = INFINITE_NANOS


@compiled
def _varint(data, position, end):  # type: ignore[no-untyped-def]
    """Return a zig-zag varint of at most 64 bits and the position after it, or -1."""
    if position >= end:
        return np.int64(0), np.int64(-1)
    byte = data[position]
    position += 1
    if byte < 0x80:
        return np.int64(byte >> 1) ^ -np.int64(byte & 1), position
    bits = np.uint64(byte & 0x7F)
    shift = np.uint64(7)
    while True:
        if position >= end:
            return np.int64(0), np.int64(-1)
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            return np.int64(0), np.int64(-1)
        bits |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += np.uint64(7)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1)), position


def words(_: int) -> int:
    """Return how many words of memory :func:`execute` works in, all 0 when it is called."""
    return 2 * MAX_NESTED


@compiled
def execute(  # type: ignore[no-untyped-def]
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
    work,
):
    """Decode records; see :func:`topicberg.formats.columnar.decoding.decode`."""
    base = address(data)
    text_base = address(texts)
    values, valids, offs = addresses[0], addresses[1], addresses[2]
    text_rooms, item_rooms = rooms[0], rooms[1]
    _, ending = tables(addresses, used, counts, rooms, starts, ends)
    arrays = work.reshape((MAX_NESTED, 2))  # items left, instruction
    digits = np.zeros(MAX_DIGITS, np.uint8)
    last_id, last_start = np.int64(-1), np.int64(-1)
    records = min(len(offsets) - 1, first + item_rooms[0] - counts[0])
    for record in range(first, records):
        position, end = offsets[record], offsets[record + 1]
        if present[record]:
            number = schema_of(data, position, end)
            if number != last_id:
                last_id, last_start = number, start_of(writers, number)
            if number < 0 or last_start < 0:
                return record
            position += WIRE_BYTES
            pc = last_start
            depth = 0
            while True:
                op = instructions[pc, 0]
                slot = instructions[pc, 1]
                domain = instructions[pc, 2]
                a, b = instructions[pc, 3], instructions[pc, 4]
                pc += 1
                if op == _TEXT:
                    size, position = _varint(data, position, end)
                    if position < 0 or size < 0 or size > end - position:
                        return record
                    if used[slot] + size > text_rooms[slot]:
                        return record
                    if a and not is_utf8(base + position, base + position + size):
                        return record
                    copy(values[slot] + used[slot], base + position, size)
                    used[slot] += size
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                    position += size
                elif op == _INT:
                    integer, position = _varint(data, position, end)
                    if position < 0 or integer < a or integer > b:
                        return record
                    store_int32(values[slot] + 4 * counts[domain], np.int32(integer))
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                elif op == _LONG:
                    integer, position = _varint(data, position, end)
                    if position < 0 or integer < a or integer > b:
                        return record
                    store_int64(
                        values[slot] + 8 * counts[domain], integer * instructions[pc - 1, 5]
                    )
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                elif op == _UNION:
                    integer, position = _varint(data, position, end)
                    if position < 0 or integer < 0 or integer >= a:
                        return record
                    pc = targets[b + integer]
                elif op == _JUMP:
                    pc = a
                elif op == _DOUBLE:
                    if end - position < 8:
                        return record
                    store_int64(values[slot] + 8 * counts[domain], load_int64(base + position))
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                    position += 8
                elif op == _BOOLEAN:
                    if position >= end or data[position] > 1:
                        return record
                    store_byte(values[slot] + counts[domain], data[position])
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                    position += 1
                elif op == _END:
                    if position != end:
                        return record
                    break
                elif op == _FLOAT:
                    if end - position < 4:
                        return record
                    store_int32(values[slot] + 4 * counts[domain], load_int32(base + position))
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                    position += 4
                elif op == _PRESENT:
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                elif op == _ENUM:
                    integer, position = _varint(data, position, end)
                    if position < 0 or integer < 0 or integer >= a:
                        return record
                    symbol = text_offsets[b + integer]
                    size = text_offsets[b + integer + 1] - symbol
                    if used[slot] + size > text_rooms[slot]:
                        return record
                    copy(values[slot] + used[slot], text_base + symbol, size)
                    used[slot] += size
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                elif op == _FIXED:
                    if a > end - position or used[slot] + a > text_rooms[slot]:
                        return record
                    copy(values[slot] + used[slot], base + position, a)
                    used[slot] += a
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                    position += a
                elif op in (_ARRAY, _ITEM):
                    if op == _ARRAY:
                        if depth == MAX_NESTED:
                            return record
                        if slot >= 0:
                            store_byte(valids[slot] + counts[domain], np.uint8(1))
                        arrays[depth, 0], arrays[depth, 1] = 0, pc - 1
                        depth += 1
                    elif domain > 0:
                        end_value(domain, *ending)
                    array = arrays[depth - 1, 1]
                    if arrays[depth - 1, 0] == 0:
                        integer, position = _varint(data, position, end)
                        if position >= 0 and integer < 0:
                            _, position = _varint(data, position, end)  # of bytes
                            integer = -integer
                        # Every item has a byte at least: see topicberg.formats.avro.reading.
                        if position < 0 or integer < 0 or integer > end - position:
                            return record
                        items = instructions[array, 3]
                        if items > 0 and counts[items] + integer > item_rooms[items]:
                            return record
                        arrays[depth - 1, 0] = integer
                    if arrays[depth - 1, 0] == 0:
                        depth -= 1
                        pc = instructions[array, 5]
                    else:
                        arrays[depth - 1, 0] -= 1
                        pc = instructions[array, 4]
                elif op == _WIDER:
                    if end - position < 4:
                        return record
                    bits = load_int32(base + position)
                    wide = np.float64(np.array([bits], np.int32).view(np.float32)[0])
                    store_int64(
                        values[slot] + 8 * counts[domain],
                        np.array([wide], np.float64).view(np.int64)[0],
                    )
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                    position += 4
                elif op in (_NEAREST_FLOAT, _NEAREST_DOUBLE):
                    integer, position = _varint(data, position, end)
                    if position < 0 or integer < a or integer > b:
                        return record
                    if op == _NEAREST_FLOAT:
                        near = np.array([integer], np.int64).astype(np.float32).view(np.int32)[0]
                        store_int32(values[slot] + 4 * counts[domain], near)
                    else:
                        close = np.array([integer], np.int64).astype(np.float64).view(np.int64)[0]
                        store_int64(values[slot] + 8 * counts[domain], close)
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                elif op == _DECIMAL:
                    size = a
                    if a < 0:
                        size, position = _varint(data, position, end)
                    if position < 0 or size < 1 or size > 16 or size > end - position:
                        return record
                    high, low = unscaled(base + position, size)
                    position += size
                    if reaches(high, low, b, np.uint64(instructions[pc - 1, 5])):
                        return record
                    store_int64(values[slot] + 16 * counts[domain], np.int64(low))
                    store_int64(values[slot] + 16 * counts[domain] + 8, high)
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                elif op == _SKIP_NUMBER:
                    integer, position = _varint(data, position, end)
                    if position < 0:
                        return record
                elif op == _SKIP_TEXT:
                    size, position = _varint(data, position, end)
                    if position < 0 or size < 0 or size > end - position:
                        return record
                    position += size
                elif op == _SKIP_BYTES:
                    if a > end - position:
                        return record
                    position += a
                elif op == _NUMBER:
                    target = values[slot] + a * counts[domain]
                    if a == 1:
                        store_byte(target, np.uint8(b))
                    elif a == 4:
                        store_int32(target, np.int32(b))
                    else:
                        store_int64(target, b)
                        if a == 16:
                            store_int64(target + 8, instructions[pc - 1, 5])
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                elif op == _CONSTANT:
                    begin = text_offsets[a]
                    size = text_offsets[a + 1] - begin
                    if used[slot] + size > text_rooms[slot]:
                        return record
                    copy(values[slot] + used[slot], text_base + begin, size)
                    used[slot] += size
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                elif op == _VALUE:
                    if counts[domain] >= item_rooms[domain]:
                        return record
                    end_value(domain, *ending)
                elif op == _UNIQUE:
                    begin = load_int32(offs[slot] + 4 * counts[domain])
                    if may_repeat(values[b], offs[b], _TEXT_STORE, begin, counts[a]):
                        return record
                elif op == _RESCALE:
                    if not rescale(values[slot] + 16 * counts[domain], a):
                        return record
                elif op == _MOMENT:
                    size, position = _varint(data, position, end)
                    if position < 0 or size < 0 or size > end - position:
                        return record
                    integer, is_valid = moment(base + position, base + position + size, a)
                    if not is_valid:
                        return record
                    if a == _DAY:
                        store_int32(values[slot] + 4 * counts[domain], np.int32(integer))
                    else:
                        store_int64(values[slot] + 8 * counts[domain], integer)
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                    position += size
                elif op == _NANOS:
                    integer, position = _varint(data, position, end)
                    if position < 0 or integer in (_LEAST, _MOST):
                        return record
                    store_int64(values[slot] + 8 * counts[domain], integer // 1_000)
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                elif op == _DECIMAL_TEXT:
                    scale = a
                    if b == 1:
                        scale, position = _varint(data, position, end)
                        if position < 0:
                            return record
                    size, position = _varint(data, position, end)
                    if position < 0 or size < 1 or size > MAX_BYTES or size > end - position:
                        return record
                    high, low = unscaled(base + position, size)
                    position += size
                    if b == 2:
                        scale, position = _varint(data, position, end)
                        if position < 0:
                            return record
                    if scale < -MAX_ZEROS or scale > MAX_ZEROS:
                        return record
                    room = text_rooms[slot] - used[slot]
                    size = write_decimal(high, low, scale, values[slot] + used[slot], room, digits)
                    if size < 0:
                        return record
                    used[slot] += size
                    store_byte(valids[slot] + counts[domain], np.uint8(1))
                else:
                    return record
        end_value(0, *ending)
    return records
