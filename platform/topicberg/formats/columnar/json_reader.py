"""Reads records of JSON by programs.

It reads the bytes once, from left to right; only an object that may be one of several kinds, or
must be all of one, is read twice. What is not strictly JSON ends it, as does what is unusual: a
repeated property, a number with more than 19 digits, half of a surrogate pair, a negative zero, a
value that is not the first member of a union of its JSON type, or that the first one of several
does not declare. The reference decoder then reads the record. Properties that the schema does not
declare are checked and skipped.
"""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar import json_numbers as numbers
from topicberg.formats.columnar.decimals import reaches, rescale, rescaled, store_decimal, unscaled
from topicberg.formats.columnar.json_text import (
    as_it_stands,
    at_byte,
    base64,
    byte_values,
    colon,
    constant,
    is_word,
    passed,
    skipped,
    space,
    text,
    time,
    token,
    word_at,
)
from topicberg.formats.columnar.memory import (
    WORD,
    compiled,
    get,
    load_byte,
    load_int32,
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
from topicberg.formats.columnar.records import end_value, may_repeat, same
from topicberg.formats.limits import MAX_NAME

_BYTES = 8 * WIDTH  # Of an instruction.
MAX_DEPTH = 64  # Arrays and objects in each other.
MAX_BYTES = 8 * 1024 * 1024  # Of a record; beyond it, Spark has limits of its own.
_DECIMAL_BYTES = 16
_STEPS, _STEPS_OF_A_BYTE = 16_384, 64  # The names that a record's names are compared with, at most.
_SCRATCH = 4096
_KEPT = 64  # The most properties of a record that are kept though they are not declared.
_LONGEST_NAME = 12 * MAX_NAME
"""Bytes of a name whose characters are all written as pairs of escapes."""
_TYPES = byte_values(b'"tf{[', (0, 2, 2, 3, 4), 1)
"""Which type a value has that begins with a byte; see ``JsonOp.UNION``."""
_WHOLE = (JsonOp.LONG, JsonOp.INT, JsonOp.WHOLE_DECIMAL, JsonOp.WHOLE_DOUBLE, JsonOp.WHOLE_FLOAT)


def words(targets: int) -> int:
    """Return how many words of memory :func:`record` works in, all 0 before the first record."""
    return 3 * MAX_DEPTH + 2 * targets + _SCRATCH // 8 + 2 * _KEPT


@compiled
def record(position, end, start, program, columns, ending, work, target_count, objects):  # type: ignore[no-untyped-def]
    """Read a record by its first instruction; the tuples are addresses of arrays.

    :param work: the address of the memory that :func:`words` says
    :param target_count: how many targets the program has
    :param objects: how many there were in other records; each has a number
    :returns: how many objects there were, or -1: it is refused
    """
    if end - position > MAX_BYTES:
        return -1
    instructions, targets, names, texts = program
    values, valids, used, counts, _, item_rooms = columns
    stack = work  # of each object: its instruction, its number, its last property
    seen = stack + 8 * 3 * MAX_DEPTH  # the number of the last object that had a property
    after = seen + 8 * target_count  # the property that followed another one last time
    scratch, steps = after + 8 * target_count, _STEPS + _STEPS_OF_A_BYTE * (end - position)
    depth, pc = 0, start
    opening, kept = position, np.int64(0)  # of the last name; the properties that are not declared
    while True:
        # An instruction reads one value.
        instruction, has_content = instructions + _BYTES * pc, False
        position, byte = token(position, end)
        if pc == -1:  # the schema does not declare the field
            position = skipped(position, end)
        elif pc == -3:
            slot = _kept_slot(instructions, targets, start)
            position = _keep(opening, position, end, slot, columns, scratch, kept)
            kept += 1
        elif pc < 0:
            position = -1
        elif byte == 110:
            # The record itself is not null.
            is_null = get(instruction, 1) >= 0 and is_word(position, end, b"null")
            position = position + 4 if is_null else -1
        elif get(instruction, 0) > JsonOp.CHOICE:
            position = _scalar(position, end, instruction, columns, targets, scratch)
        elif get(instruction, 0) >= JsonOp.UNION:
            if get(instruction, 0) == JsonOp.UNION:
                pc = get(targets, get(instruction, 3) + np.int64(_TYPES[byte]))
                if get(instruction, 1) >= 0:
                    store_byte(
                        get(valids, get(instruction, 1)) + get(counts, get(instruction, 2)),
                        np.uint8(1),
                    )
            else:
                pc, steps = _chosen(
                    position, end, instruction, targets, names, texts, scratch, steps
                )
            if pc < 0:
                return -1
            continue
        else:
            slot, is_array = get(instruction, 1), get(instruction, 0) & 1 == 1
            if byte != (91 if is_array else 123) or depth == MAX_DEPTH:
                return -1
            if slot >= 0:
                store_byte(get(valids, slot) + get(counts, get(instruction, 2)), np.uint8(1))
            position = space(position + 1, end)
            has_content = at_byte(position, end) != byte + 2
            if has_content:
                objects += 1
                put(stack, 3 * depth, instruction)
                put(stack, 3 * depth + 1, objects)
                put(stack, 3 * depth + 2, get(instruction, 4))  # where the object begins
                depth += 1
            else:
                position += 1
        if position < 0:
            return -1
        # What follows a value: a comma, or the end of arrays and objects.
        while not has_content:
            if depth == 0:
                if kept:
                    slot = _kept_slot(instructions, targets, start)
                    store_byte(get(values, slot) + get(used, slot), np.uint8(125))
                    put(used, slot, get(used, slot) + 1)
                return objects if space(position, end) == end else -1
            position, byte = token(position, end)
            container = get(stack, 3 * depth - 3)
            op = get(container, 0)
            if op != JsonOp.OBJECT:
                items = get(container, 3)
                if op == JsonOp.ENTRIES and not load_byte(
                    get(valids, get(container, 4)) + get(counts, items)
                ):
                    return -1  # the entry has no key
                end_value(items, *ending)
            if byte == 44:
                position, has_content = space(position + 1, end), True
            elif byte == (93 if op & 1 == 1 else 125):
                position += 1
                depth -= 1
                if op >= JsonOp.MAP and _has_repeated(container, columns, ending):
                    return -1
            else:
                return -1
        # What an array or an object continues with: an item, or a name.
        container = get(stack, 3 * depth - 3)
        if get(container, 0) != JsonOp.OBJECT:
            items = get(container, 3)
            if get(counts, items) >= get(item_rooms, items):
                return -1
            pc = (container - instructions) // _BYTES + 1
            if get(container, 0) == JsonOp.MAP:
                position = colon(
                    _scalar(position, end, container + _BYTES, columns, targets, scratch), end
                )
                pc += 1
                if position < 0:
                    return -1
            continue
        if at_byte(position, end) != 34:
            return -1
        first, count = get(container, 3), get(container, 4)
        this, last = get(stack, 3 * depth - 2), get(stack, 3 * depth - 1)
        offsets, guess = names + 8 * get(container, 5), get(after, first + last)
        opening = position
        name, position, taken = _property(
            position + 1, end, texts, offsets, count, guess, last + 1, scratch
        )
        steps -= taken
        if position < 0 or steps < 0:
            return -1
        if name < count:
            if get(seen, first + name) == this:  # the object repeats the name
                return -1
            put(seen, first + name, this)
            put(after, first + last, name)
            put(stack, 3 * depth - 1, name)
        pc = get(targets, first + name)
        position = colon(position, end)
        if position < 0:
            return -1


@compiled
def _kept_slot(instructions, targets, start):  # type: ignore[no-untyped-def]
    """Return where a record's properties go that are not declared."""
    instruction = instructions + _BYTES * start
    return get(targets, get(instruction, 3) + get(instruction, 4) + 1)


@compiled
def _keep(opening, position, end, slot, columns, scratch, kept):  # type: ignore[no-untyped-def]
    """Append a property, by the addresses of its name and value, to those that are not declared.

    :param kept: how many of them the record had before
    :returns: the address after the value, or -1
    """
    values, valids, used, counts, text_rooms, _ = columns
    size, room = get(used, slot), get(text_rooms, slot)
    if kept == _KEPT or end - opening + 2 * WORD > room - size:
        return -1
    names, begin = scratch + _SCRATCH, get(values, slot) + size + 1
    store_byte(get(valids, slot) + get(counts, 0), np.uint8(1))
    store_byte(begin - 1, np.uint8(44 if kept else 123))
    target, _ = as_it_stands(opening, end, begin)
    length = target - begin
    for place in range(begin, target):
        if load_byte(place) == 92:  # another text may be the same name
            return -1
    for number in range(kept):
        if get(names, 2 * number + 1) == length and same(get(names, 2 * number), begin, length):
            return -1  # the object repeats the name
    put(names, 2 * kept, begin)
    put(names, 2 * kept + 1, length)
    store_byte(target, np.uint8(58))
    target, position = as_it_stands(position, end, target + 1)
    put(used, slot, target - get(values, slot))
    return position


@compiled
def _chosen(position, end, instruction, targets, names, texts, scratch, steps):  # type: ignore[no-untyped-def]
    """Find the kind of object that a value is: the first one whose properties and texts it has.

    It must declare all properties of the object, unless no other kind has those that are required.

    :returns: the instruction of the kind, or -1, and the steps that are left
    """
    first, count = get(instruction, 3), get(instruction, 4)
    offsets, kinds = names + 8 * get(instruction, 5), get(targets, first)
    unknown = first + 1 + 2 * kinds
    rows, accepted = unknown + 2, (np.int64(1) << kinds) - 1
    declared, seen, last = accepted, np.int64(0), np.int64(-1)
    position, byte = token(position + 1, end)
    has_more = byte != 125
    while has_more:
        if byte != 34:
            return -1, steps
        guess = last + 1 if last + 1 < count else 0
        name, position, taken = _property(
            position + 1, end, texts, offsets, count, guess, guess + 1, scratch
        )
        position = colon(position, end)
        steps -= taken
        if position < 0 or steps < 0:
            return -1, steps
        position, byte = token(position, end)
        if name < count:
            last = name
            if seen >> name & 1:
                return -1, steps
            seen |= np.int64(1) << name
            row = rows + 5 * name
            declared &= get(targets, row)
            constants = get(targets, row + 4)
            if constants and byte != 110:  # null is accepted, as everywhere
                mask = get(targets, row + 2)
                if byte == 34:
                    mask = _mask_of(position + 1, end, targets, row, names, texts)
                    if mask < 0:
                        return -1, steps
                    steps -= constants
                accepted &= mask
        else:
            declared &= get(targets, unknown)
        position = skipped(position, end)
        if position < 0:
            return -1, steps
        position, byte = token(position, end)
        has_more = byte == 44
        if has_more:
            position, byte = token(position + 1, end)
        elif byte != 125:
            return -1, steps
    for name in range(count):
        if not seen >> name & 1:
            accepted &= ~get(targets, rows + 5 * name + 1)
    is_sole = accepted & (accepted - 1) == 0
    if accepted & declared:
        accepted &= declared
    elif get(targets, unknown + 1) or not is_sole:
        return -1, steps
    instruction_of = first + 1 if is_sole else first + 1 + kinds
    for kind in range(kinds):
        if accepted >> kind & 1:
            return get(targets, instruction_of + kind), steps
    return -1, steps


@compiled
def _mask_of(position, end, targets, row, names, texts):  # type: ignore[no-untyped-def]
    """Return which kinds of objects may have a text; -1: it has escapes, or does not end."""
    start, count = get(targets, row + 3), get(targets, row + 4)
    for number in range(start, start + 2 * count, 2):
        offset = names + 8 * get(targets, number)
        begin = load_int64(offset)
        size = load_int64(offset + 8) - begin
        if (
            position + size < end
            and load_byte(position + size) == 34
            and _is_equal(position, end, texts + begin, size)
        ):
            return get(targets, number + 1)
    return get(targets, row + 2) if passed(position, end, False) >= 0 else -1


@compiled
def _has_repeated(container, columns, ending):  # type: ignore[no-untyped-def]
    """Return whether two keys of a map that ends may be equal."""
    values, _, _, counts, _, _ = columns
    offs = ending[2]
    begin = load_int32(get(offs, get(container, 1)) + 4 * get(counts, get(container, 2)))
    last, key = get(counts, get(container, 3)), get(container, 4)
    return may_repeat(get(values, key), get(offs, key), get(container, 5), begin, last)


@compiled
def _property(position, end, texts, offsets, count, guess, following, scratch):  # type: ignore[no-untyped-def]
    """Find the property that has a name of the record, whose first character is at a position.

    :param offsets: the address of where each property's name begins, and where the last one ends
    :param guess, following: the property that is expected, and the one to try next
    :param scratch: where a name can be written without its escapes
    :returns: the number of the property, or how many there are; the address after the name, or
        -1; how many names were compared
    """
    number = guess
    for step in range(count + 1 if count else 0):
        begin = load_int64(offsets + 8 * number)
        size = load_int64(offsets + 8 * number + 8) - begin
        if (
            position + size < end
            and load_byte(position + size) == 34
            and _is_equal(position, end, texts + begin, size)
        ):
            return number, position + size + 1, step
        number = following if step == 0 else number + 1
        number = number if number < count else 0
    after = passed(position, end, False)
    has_escapes = after < 0
    if has_escapes:
        after = passed(position, end, True)
    if not has_escapes or after < 0 or after - position > _LONGEST_NAME:
        return count, after, count
    stop, _ = text(position - 1, after, scratch)
    for number in range(count):
        offset = offsets + 8 * (count + number)
        begin = load_int64(offset)
        if load_int64(offset + 8) - begin == stop - scratch and _is_equal(
            scratch, stop, texts + begin, stop - scratch
        ):
            return number, after, 2 * count
    return count, after, 2 * count


@compiled
def _is_equal(position, end, text, size):  # type: ignore[no-untyped-def]
    """Return whether a text of the program is at an address; eight bytes behind it are read too."""
    place = 0
    while place + WORD <= size:
        if load_word(position + place) != load_word(text + place):
            return False
        place += WORD
    if place == size:
        return True
    unlike = word_at(position + place, end) ^ load_word(text + place)
    return unlike << np.uint64(8 * (WORD + place - size)) == 0


@compiled
def _scalar(position, end, instruction, columns, targets, scratch):  # type: ignore[no-untyped-def]
    """Read a value that is no null, array or object; return the address after it, or -1."""
    values, valids, used, counts, text_rooms, _ = columns
    if get(instruction, 0) == JsonOp.EMPTY:
        if at_byte(position, end) == 34 and at_byte(position + 1, end) == 34:
            return position + 2
        instruction += _BYTES
    is_quoted = get(instruction, 0) == JsonOp.QUOTED and at_byte(position, end) == 34
    position += np.int64(is_quoted)
    instruction += _BYTES if get(instruction, 0) == JsonOp.QUOTED else 0
    op, slot, row = get(instruction, 0), get(instruction, 1), get(counts, get(instruction, 2))
    low, high = get(instruction, 3), get(instruction, 4)
    target = get(values, slot)
    store_byte(get(valids, slot) + row, np.uint8(1))
    if op in (JsonOp.TEXT, JsonOp.BINARY, JsonOp.JSON):
        # A text is not longer than the rest of the record.
        size = get(used, slot)
        if end - position > get(text_rooms, slot) - size:
            return -1
        target += size
        if op == JsonOp.TEXT:
            stop, position = text(position, end, target)
        elif op == JsonOp.BINARY:
            stop, position = base64(position, end, target)
        else:
            byte = at_byte(position, end)
            if low & (1 if byte == 123 else 2 if byte == 91 else 4) == 0:
                return -1
            stop, position = as_it_stands(position, end, target)
        put(used, slot, size + stop - target)
    elif op in _WHOLE:
        value, position = numbers.whole(position, end, low, high)
        if op == JsonOp.LONG:
            store_int64(target + 8 * row, value * get(instruction, 5))
        elif op == JsonOp.INT:
            store_int32(target + 4 * row, np.int32(value))
        elif op == JsonOp.WHOLE_DOUBLE:
            store_double(target + 8 * row, np.float64(value))
        elif op == JsonOp.WHOLE_FLOAT:
            store_float(target + 4 * row, np.float32(value))
        else:
            store_decimal(target + 16 * row, np.int64(-1 if value < 0 else 0), value)
            position = position if rescale(target + 16 * row, get(instruction, 5)) else -1
    elif op == JsonOp.DOUBLE:
        wide, position = numbers.double(position, end)
        store_double(target + 8 * row, wide)
    elif op == JsonOp.BOOLEAN:  # null does not come here
        store_byte(target + row, np.uint8(at_byte(position, end) == 116))
        position = constant(position, end)
    elif op == JsonOp.TIME:
        value, position = time(position, end)
        store_int64(target + 8 * row, value)
    elif op == JsonOp.DECIMAL:
        position = _decimal(position, end, targets + 8 * low, target + 16 * row)
    else:  # JsonOp.FLOAT or JsonOp.WIDER
        wide, position = numbers.double(position, end)
        narrow, is_sure = numbers.as_float(wide)
        if op == JsonOp.FLOAT:
            store_float(target + 4 * row, narrow)
        else:
            store_double(target + 8 * row, np.float64(narrow))
        position = position if is_sure else -1
    if is_quoted and position >= 0:
        return position + 1 if at_byte(position, end) == 34 else -1
    return position


@compiled
def _decimal(position, end, kind, target):  # type: ignore[no-untyped-def]
    """Read a number, or base64, by the targets of ``JsonOp.DECIMAL``.

    :returns: the address after it, or -1
    """
    own_scale, scale, zeros = get(kind, 0), get(kind, 1), get(kind, 2)
    most, limit = get(kind, 3), np.uint64(get(kind, 4))
    if at_byte(position, end) == 34:
        if get(kind, 5):
            return -1
        if end - position > 2 * _DECIMAL_BYTES:
            end = position + 2 * _DECIMAL_BYTES  # more do not fit
        stop, position = base64(position, end, target)  # a row more has room
        size = stop - target
        if position < 0 or size < 1 or size > _DECIMAL_BYTES:
            return -1
        high, low = unscaled(target, size)
        if own_scale > scale:
            high, low, is_exact = rescaled(high, low, scale - own_scale)
            if not is_exact:
                return -1
    else:
        high, low, position = numbers.scaled(position, end, scale)
        if position < 0:
            return -1
    if reaches(high, low, most, limit):
        return -1
    store_decimal(target, high, low)
    return position if zeros == 0 or rescale(target, zeros) else -1
