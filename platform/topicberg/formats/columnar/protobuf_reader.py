"""Reads records of Protobuf by programs.

It reads the bytes once, from left to right, expecting the fields in the order of the schema. What
is unusual ends it, and the reference decoder reads the record: a field that is not repeated but
occurs twice, several members of a oneof, a key of a map that occurs twice, a group, a number of a
closed enum without a name. Unknown fields are skipped.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.decimals import (
    MAX_BYTES,
    POWERS_HIGH,
    POWERS_LOW,
    reaches,
    rescaled,
    store_decimal,
    unscaled,
)
from topicberg.formats.columnar.memory import (
    compiled,
    get,
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
    append,
    append_text,
    end_value,
    is_utf8,
    may_repeat,
    same,
    varint,
)
from topicberg.formats.columnar.times import days_of

MAX_DEPTH = 64  # Messages in each other.
_BYTES = 8 * WIDTH  # Of an instruction.
_LEVEL = 5
"""Numbers of an open message: instruction, end, number, domain of the items or -1, next field."""
_FIELD = 4
_INT32, _INT64 = int(Encoding.INT32), int(Encoding.INT64)  # As arguments of compiled code.
_VARINT, _WIRE_64, _LENGTH, _WIRE_32 = 0, 1, 2, 5
_MAX_TAG = 2**32 - 1
_STEPS, _STEPS_OF_A_BYTE = 16_384, 64
"""The fields that a record's fields are compared with, at most."""
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
_MICROS, _DAY_MICROS = 1_000_000, 86_400_000_000
_MAX_ZEROS = len(POWERS_HIGH) - 1
_ONE_BYTE = np.uint8(1)


def words(targets: int) -> int:
    """Return how many words of memory :func:`record` works in, all 0 before the first record."""
    return _LEVEL * MAX_DEPTH + targets


@compiled
def record(position, end, start, program, columns, ending, work, messages):  # type: ignore[no-untyped-def]
    """Read a record by its first instruction; the tuples are addresses of arrays.

    :param work: the address of the memory that :func:`words` says
    :param messages: how many there were in other records; each has a number
    :returns: how many messages there were, or -1: it is refused
    """
    position = _message_at(position, end, start, program)
    if position < 0:
        return -1
    after = _message(position, end, start + 1, program, columns, ending, work, messages)
    most = get(program[1], get(program[0] + _BYTES * start, 5) + 1)
    return after if after - messages <= most else -1


@compiled
def _message_at(position, end, start, program):  # type: ignore[no-untyped-def]
    """Return the address after the message indexes that name the table's message, or -1."""
    instructions, targets, names, texts = program
    instruction = instructions + _BYTES * start
    if end - position > get(targets, get(instruction, 5)):
        return -1
    for text in range(get(instruction, 3), get(instruction, 3) + get(instruction, 4)):
        begin, size = get(names, text), get(names, text + 1) - get(names, text)
        if end - position >= size and same(position, texts + begin, size):
            return position + size
    return -1


@compiled
def _sized(position, end):  # type: ignore[no-untyped-def]
    """Return where a value with a length begins and ends, or -1 twice."""
    size, position = varint(position, end)
    if position < 0 or size > np.uint64(end - position):
        return -1, -1
    return position, position + np.int64(size)


@compiled
def _skipped(position, end, wire):  # type: ignore[no-untyped-def]
    """Return the address after a value, or -1."""
    if wire == _VARINT:
        return varint(position, end)[1]
    if wire == _LENGTH:
        return _sized(position, end)[1]
    position += 8 if wire == _WIRE_64 else 4
    return position if position <= end and wire in (_WIRE_64, _WIRE_32) else -1


@compiled
def _skipped_packed(position, end, size):  # type: ignore[no-untyped-def]
    """Return the address after packed values, or -1; ``size`` 1: they are varints."""
    position, till = _sized(position, end)
    if position < 0 or (till - position) % size:
        return -1
    while size == 1 and 0 <= position < till:
        _, position = varint(position, till)
    return -1 if position < 0 else till


@compiled
def _message(position, end, pc, program, columns, ending, work, messages):  # type: ignore[no-untyped-def]
    """Read a record's message; see :func:`record`."""
    instructions, targets, _, _ = program
    _, valids, _, counts, _, item_rooms = columns
    stack = work
    seen = stack + 8 * _LEVEL * MAX_DEPTH  # the last message that had a field or a oneof
    steps = _STEPS + _STEPS_OF_A_BYTE * (end - position)
    instruction, items, level = instructions + _BYTES * pc, np.int64(-1), stack
    depth, this, following = 0, messages + 1, 0
    messages += 1
    while True:
        # Messages that end here are complete.
        while position == end:
            if not _ended(targets + 8 * get(instruction, 5), this, program, columns, ending, seen):
                return -1
            if items >= 0:
                end_value(items, *ending)
            if depth == 0:
                return messages
            depth -= 1
            level = stack + 8 * _LEVEL * depth
            instruction, end, this = get(level, 0), get(level, 1), get(level, 2)
            items, following = get(level, 3), get(level, 4)
        # The next bytes are a field.
        tag, position = varint(position, end)
        if position < 0 or tag < 8 or tag > _MAX_TAG:
            return -1
        fields, count = targets + 8 * get(instruction, 3), get(instruction, 4)
        place, taken = _field(fields, count, np.int64(tag), following)
        steps -= 1 + taken
        if place < 0 or steps < 0:
            return -1
        if place == count:
            position = _skipped(position, end, np.int64(tag) & 7)
            if position < 0:
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
        if op == ProtobufOp.SKIP and get(value, 3):
            position = _skipped_packed(position, end, get(value, 3))
        elif op == ProtobufOp.SKIP:
            position = _skipped(position, end, np.int64(tag) & 7)
        elif op == ProtobufOp.PACKED:
            position = _packed(position, end, value, program, columns, ending)
        else:
            if op == ProtobufOp.ITEM:
                inner = get(value, 3)
                if get(counts, inner) >= get(item_rooms, inner):
                    return -1
                value = instructions + _BYTES * get(value, 4)
            if get(value, 0) == ProtobufOp.MESSAGE:
                position, till = _sized(position, end)
                if position < 0 or depth == MAX_DEPTH:
                    return -1
                put(level, 0, instruction)
                put(level, 1, end)
                put(level, 2, this)
                put(level, 3, items)
                put(level, 4, following)
                depth += 1
                level = stack + 8 * _LEVEL * depth
                messages += 1
                instruction, end, this, items, following = value, till, messages, inner, 0
                if get(instruction, 1) >= 0:
                    store_byte(
                        get(valids, get(instruction, 1)) + get(counts, get(instruction, 2)),
                        _ONE_BYTE,
                    )
                continue
            position = _scalar(position, end, value, program, columns)
            if position >= 0 and inner >= 0:
                end_value(inner, *ending)
        if position < 0:
            return -1


@compiled
def _field(fields, count, tag, guess):  # type: ignore[no-untyped-def]
    """Find the field of a tag.

    :returns: its place, the count for an unknown one, or -1: a field of that number has another
        wire type; how many were compared
    """
    place, is_known = guess, False
    for step in range(count):
        other = get(fields, _FIELD * place)
        if other == tag:
            return place, step
        is_known = is_known or other >> 3 == tag >> 3
        place = place + 1 if place + 1 < count else 0
    return (-1 if is_known else count), count


@compiled
def _packed(position, end, instruction, program, columns, ending):  # type: ignore[no-untyped-def]
    """Read packed values; return the address after them, or -1."""
    _, _, _, counts, _, item_rooms = columns
    items, value = get(instruction, 3), program[0] + _BYTES * get(instruction, 4)
    position, till = _sized(position, end)
    if position < 0:
        return -1
    while position < till:
        if get(counts, items) >= get(item_rooms, items):
            return -1
        position = _scalar(position, till, value, program, columns)
        if position < 0:
            return -1
        end_value(items, *ending)
    return position


@compiled
def _scalar(position, end, instruction, program, columns):  # type: ignore[no-untyped-def]
    """Read a value that is not a message, by an instruction; return the address after it, or -1."""
    values, valids, _, counts, _, _ = columns
    op, slot, row = get(instruction, 0), get(instruction, 1), get(counts, get(instruction, 2))
    a, b = get(instruction, 3), get(instruction, 4)
    target, is_one = get(values, slot), False
    store_byte(get(valids, slot) + row, _ONE_BYTE)
    if op == ProtobufOp.TEXT:
        position, till = _sized(position, end)
        if position < 0 or not append(position, till - position, slot, columns):
            return -1
        return till if not a or is_utf8(position, till) else -1
    if op == ProtobufOp.NUMBER:
        number, position = _number(position, end, a)
        if position >= 0:
            _store(target, row, number, b)
        return position
    if op == ProtobufOp.CONVERTED:
        number, position = _number(position, end, a)
        is_one = position >= 0 and _convert(target, row, number, program[1] + 8 * b)
        return position if is_one else -1
    if op == ProtobufOp.ENUM:
        number, position = _number(position, end, _INT32)
        text = _symbol(program[1] + 8 * b, a, number) if position >= 0 else np.int64(-1)
        if text >= 0:
            is_one = append_text(text, slot, program, columns)
        elif position >= 0 and not get(instruction, 5):
            is_one = _digits(number, slot, columns)
        return position if is_one else -1
    if op == ProtobufOp.WIDER:
        if end - position < 4:
            return -1
        store_double(target + 8 * row, np.float64(load_float(position)))
        return position + 4
    position, till = _sized(position, end)  # a length comes before a message
    if position < 0:
        return -1
    if op == ProtobufOp.TIMESTAMP:
        micros, is_one = _timestamp(position, till)
        store_int64(target + 8 * row, micros)
    elif op == ProtobufOp.DATE:
        days, is_one = _date(position, till)
        store_int32(target + 4 * row, np.int32(days))
    elif op == ProtobufOp.TIME:
        micros, is_one = _time(position, till)
        is_one = is_one and _convert(target, row, micros, program[1] + 8 * b)
    elif op == ProtobufOp.DECIMAL:
        high, low, is_one = _decimal(position, till, a, b)
        is_one = is_one and _store_decimal(target, row, high, low, get(instruction, 5))
    return till if is_one else -1


@compiled
def _number(position, end, encoding):  # type: ignore[no-untyped-def]
    """Return a number, and the address after it, or -1."""
    if encoding >= Encoding.FIXED32:
        size = 4 if encoding <= Encoding.SFIXED32 else 8
        if end - position < size:
            return np.int64(0), -1
        if size == 8:
            return load_int64(position), position + 8
        number = np.int64(load_int32(position))
        return (number & _MAX_TAG if encoding == Encoding.FIXED32 else number), position + 4
    bits, position = varint(position, end)
    number = np.int64(bits)
    if encoding == Encoding.INT32:
        number = np.int64(np.int32(number))
    elif encoding == Encoding.UINT32:
        number &= _MAX_TAG
    elif encoding == Encoding.SINT32:
        number = ((number & _MAX_TAG) >> 1) ^ -(number & 1)
    elif encoding == Encoding.SINT64:
        number = np.int64(bits >> np.uint64(1)) ^ -(number & 1)
    elif encoding == Encoding.BOOL:
        number = np.int64(bits != 0)
    return number, position


@compiled
def _store(target, row, number, width):  # type: ignore[no-untyped-def]
    """Write a value of a column; 16 bytes: of a decimal that is not negative."""
    if width == 4:
        store_int32(target + 4 * row, np.int32(number))
    elif width == 8:
        store_int64(target + 8 * row, number)
    elif width == 1:
        store_byte(target + row, np.uint8(number))
    else:
        store_decimal(target + 16 * row, np.int64(0), number)


@compiled
def _convert(target, row, number, limits):  # type: ignore[no-untyped-def]
    """Write a number by the targets of :attr:`ProtobufOp.CONVERTED`; return whether it fits."""
    least, most, width, is_unsigned = get(limits, 0), get(limits, 1), get(limits, 3), get(limits, 4)
    is_large = np.uint64(number) > np.uint64(most) if is_unsigned else number > most
    if is_large or (number < least and not is_unsigned):
        return False
    if width < 16:
        _store(target, row, number, width)
        return True
    high = np.int64(-1) if number < 0 and not is_unsigned else np.int64(0)
    high, low, _ = rescaled(high, np.uint64(number), get(limits, 2))
    store_decimal(target + 16 * row, high, low)
    return True


@compiled
def _store_decimal(target, row, high, low, width):  # type: ignore[no-untyped-def]
    """Write a decimal, or a whole number, as the value of a column; return whether it has it."""
    number = np.int64(low)
    if width == 16:
        store_decimal(target + 16 * row, high, low)
    elif high != (-1 if number < 0 else 0) or (width == 4 and number != _int32(number)):
        return False
    else:
        _store(target, row, number, width)
    return True


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
def _digits(number, slot, columns):  # type: ignore[no-untyped-def]
    """Append a number as text to a column, and return whether there was room."""
    values, _, used, _, text_rooms, _ = columns
    rest, sign = abs(number), np.int64(number < 0)
    size = sign + 1
    while rest >= 10:
        rest //= 10
        size += 1
    if size > get(text_rooms, slot) - get(used, slot):
        return False
    begin, rest = get(values, slot) + get(used, slot), abs(number)
    store_byte(begin, np.uint8(45))  # a digit replaces it, unless the number is negative
    for place in range(begin + size - 1, begin + sign - 1, -1):
        store_byte(place, np.uint8(48 + rest % 10))
        rest //= 10
    put(used, slot, get(used, slot) + size)
    return True


@compiled
def _parts(position, end, most):  # type: ignore[no-untyped-def]
    """Return the first four fields of a message, and whether they are numbers in order."""
    first, second, third, fourth = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    last = np.int64(0)
    while position < end:
        tag, position = varint(position, end)
        field = np.int64(tag) >> 3
        if position < 0 or np.int64(tag) & 7 != _VARINT or field <= last or field > most:
            return first, second, third, fourth, False
        last = field
        number, position = _number(position, end, _INT64)
        if position < 0:
            return first, second, third, fourth, False
        first = number if field == 1 else first
        second = number if field == 2 else second
        third = number if field == 3 else third
        fourth = number if field == 4 else fourth
    return first, second, third, fourth, True


@compiled
def _int32(number):  # type: ignore[no-untyped-def]
    return np.int64(np.int32(number))


@compiled
def _timestamp(position, end):  # type: ignore[no-untyped-def]
    """Return a message ``google.protobuf.Timestamp`` in microseconds, and whether it is one."""
    seconds, nanos, _, _, is_one = _parts(position, end, 2)
    is_one &= _FIRST_SECOND <= seconds <= _LAST_SECOND and 0 <= _int32(nanos) <= 999_999_999
    return (seconds * _MICROS + _int32(nanos) // 1000 if is_one else np.int64(0)), is_one


@compiled
def _date(position, end):  # type: ignore[no-untyped-def]
    """Return a message ``google.type.Date`` in days, and whether it is one."""
    year, month, day, _, is_one = _parts(position, end, 3)
    days, is_day = days_of(_int32(year), _int32(month), _int32(day))
    return days, is_one and is_day


@compiled
def _time(position, end):  # type: ignore[no-untyped-def]
    """Return a message ``google.type.TimeOfDay`` in microseconds, and whether it is one."""
    hours, minutes, seconds, nanos, is_one = _parts(position, end, 4)
    hours, minutes, seconds, nanos = _int32(hours), _int32(minutes), _int32(seconds), _int32(nanos)
    micros = ((hours * 60 + minutes) * 60 + seconds) * _MICROS + nanos // 1000
    is_one &= 0 <= hours <= 24 and 0 <= minutes <= 59 and 0 <= seconds <= 60
    is_one &= 0 <= nanos <= 999_999_999 and (hours < 24 or micros <= _DAY_MICROS)
    return micros, is_one


@compiled
def _decimal(position, end, precision, scale):  # type: ignore[no-untyped-def]
    """Return a message ``confluent.type.Decimal`` in a column's scale: halves, whether it fits."""
    content, till, field_scale = position, position, np.int64(0)
    last, none = np.int64(0), (np.int64(0), np.uint64(0), False)
    while position < end:
        tag, position = varint(position, end)
        field, wire = np.int64(tag) >> 3, np.int64(tag) & 7
        if position < 0 or field <= last or field > 3:
            return none
        last = field
        if wire != (_LENGTH if field == 1 else _VARINT):
            return none
        if field == 1:
            content, till = _sized(position, end)
            position = till
        else:
            number, position = _number(position, end, _INT64)
            field_scale = _int32(number) if field == 3 else field_scale
        if position < 0:
            return none
    if till - content > MAX_BYTES:
        return none
    high, low = unscaled(content, till - content) if till > content else (none[0], none[1])
    if high == 0 and low == 0:
        return high, low, True
    zeros = scale - field_scale
    digits = precision - max(zeros, 0)
    if zeros < -_MAX_ZEROS or digits < 0:
        return none
    if zeros > 0 and reaches(high, low, POWERS_HIGH[digits], POWERS_LOW[digits]):
        return none
    high, low, is_exact = rescaled(high, low, zeros)
    is_large = reaches(high, low, POWERS_HIGH[precision], POWERS_LOW[precision])
    return high, low, is_exact and not is_large


@compiled
def _ended(targets, this, program, columns, ending, seen):  # type: ignore[no-untyped-def]
    """Fill what a message does not have, by some instructions; return whether it is complete."""
    values, valids, _, counts, _, _ = columns
    for place in range(1, get(targets, 0) + 1):
        instruction = program[0] + _BYTES * get(targets, place)
        op, slot, row = get(instruction, 0), get(instruction, 1), get(counts, get(instruction, 2))
        if get(seen, get(instruction, 3)) == this:
            continue
        if op == ProtobufOp.REQUIRED:
            return False
        store_byte(get(valids, slot) + row, _ONE_BYTE)
        target, width, bits = get(values, slot), get(instruction, 5), get(instruction, 4)
        if op == ProtobufOp.DEFAULT_NUMBER and width == 16:
            low, high = get(program[1], bits), get(program[1], bits + 1)
            store_decimal(target + 16 * row, high, low)
        elif op == ProtobufOp.DEFAULT_NUMBER:
            _store(target, row, bits, width)
        elif op == ProtobufOp.MAP:
            entries = program[1] + 8 * get(instruction, 4)
            first, last = load_int32(get(ending[2], slot) + 4 * row), get(counts, get(entries, 0))
            keys, width = get(entries, 1), get(entries, 2)
            if last - first > 1 and may_repeat(
                get(values, keys), get(ending[2], keys), width, first, last
            ):
                return False
        elif op == ProtobufOp.DEFAULT_TEXT and not append_text(bits, slot, program, columns):
            return False
    return True
