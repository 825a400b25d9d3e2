"""Any JSON value as text in one form, as :mod:`topicberg.formats.json.syntax` has it."""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.json_numbers import number
from topicberg.formats.columnar.json_text import (
    MAX_SKIPPED,
    at_byte,
    colon,
    constant,
    has_special,
    space,
    text,
)
from topicberg.formats.columnar.memory import compiled, copy, get, load_byte, put, store_byte

_MEMBERS = 256
"""Of all objects in each other."""
_MOST_SORTED = 64
"""Members of one object that are not in order."""
SCRATCH_WORDS = 2 * _MEMBERS + MAX_SKIPPED + 1
_EXCEPT = 0xEE
"""From this byte on, the order of UTF-8 is not that of UTF-16."""


@compiled
def any_value(position, end, target, limit, scratch):  # type: ignore[no-untyped-def]
    """Write a value as text without white space to an address, the members of objects in order.

    The text is not longer than the value. It is refused if it is unusual: a repeated name, a
    number with an exponent or of more than 19 digits, a text that is written with escapes.

    :param limit: where the room for texts ends, which sorting needs some of
    :param scratch: the address of ``SCRATCH_WORDS`` words
    :returns: the address after the text, and the address after the value, or -1
    """
    bases = scratch + 8 * 2 * _MEMBERS  # of each depth: the first of its members
    depth, kinds, used = 0, np.uint64(0), np.int64(0)
    while True:
        position = space(position, end)
        byte = at_byte(position, end)
        if byte == 123 or byte == 91:
            if depth == MAX_SKIPPED:
                return target, -1
            depth += 1
            kinds = kinds << np.uint64(1) | np.uint64(byte == 123)
            store_byte(target, byte)
            target += 1
            put(bases, depth, used)
            position = space(position + 1, end)
            if at_byte(position, end) != byte + 2:  # it is not empty
                if byte == 123:
                    target, position, used = _name(position, end, target, scratch, used)
                    if position < 0:
                        return target, -1
                continue
            store_byte(target, np.uint8(byte + 2))
            target += 1
            position += 1
            depth -= 1
            kinds >>= np.uint64(1)
        elif byte == 34:
            target, position = _string(position, end, target)
        elif byte == 116 or byte == 102 or byte == 110:
            begin, position = position, constant(position, end)
            if position >= 0:
                copy(target, begin, position - begin)
                target += position - begin
        else:
            target, position = _number(position, end, target)
        if position < 0:
            return target, -1
        while depth > 0:
            position = space(position, end)
            byte = at_byte(position, end)
            is_object = kinds & np.uint64(1) == 1
            if byte == 44:
                store_byte(target, byte)
                target += 1
                position = space(position + 1, end)
                if is_object:
                    target, position, used = _name(position, end, target, scratch, used)
                    if position < 0:
                        return target, -1
                break
            if byte != (125 if is_object else 93):
                return target, -1
            if is_object:
                first = get(bases, depth)
                if not _sorted(scratch, first, used, target, limit):
                    return target, -1
                used = first
            store_byte(target, byte)
            target += 1
            position += 1
            depth -= 1
            kinds >>= np.uint64(1)
        else:
            return target, position


@compiled
def _name(position, end, target, scratch, used):  # type: ignore[no-untyped-def]
    """Copy a name and its colon; note where the member begins."""
    if used == _MEMBERS:
        return target, -1, used
    put(scratch, used, target)
    target, position = _string(position, end, target)
    position = colon(position, end)
    if position < 0:
        return target, -1, used
    store_byte(target, np.uint8(58))
    return target + 1, position, used + 1


@compiled
def _string(position, end, target):  # type: ignore[no-untyped-def]
    begin = target + 1
    stop, after = text(position, end, begin)
    # Each escape is longer than what it stands for.
    if after < 0 or (stop - begin != after - position - 2 and has_special(begin, stop)):
        return target, -1
    store_byte(target, np.uint8(34))
    store_byte(stop, np.uint8(34))
    return stop + 1, after


@compiled
def _number(position, end, target):  # type: ignore[no-untyped-def]
    negative, digits, places, _, after = number(position, end)
    if after < 0 or (negative and digits == 0):
        return target, -1
    stop = after
    for place in range(position, after):
        if (load_byte(place) | 32) == 101:
            return target, -1
    if places > 0:
        while load_byte(stop - 1) == 48:
            stop -= 1
        if load_byte(stop - 1) == 46:
            stop -= 1
    copy(target, position, stop - position)
    return target + stop - position, after


@compiled
def _before(name, other):  # type: ignore[no-untyped-def]
    """Return whether one name comes before another one; -1: it is not known, or they are equal."""
    place = 1
    while True:
        here, there = load_byte(name + place), load_byte(other + place)
        if here != there:
            break
        if here == 34:
            return -1
        place += 1
    if here == 34 or there == 34:
        return 1 if here == 34 else 0
    if here >= _EXCEPT and there >= _EXCEPT:
        return -1
    return 1 if here < there else 0


@compiled
def _sorted(starts, first, last, target, limit):  # type: ignore[no-untyped-def]
    """Sort the members of an object that ends at an address, and say whether that was possible."""
    is_ordered = True
    for member in range(first, last - 1):
        order = _before(get(starts, member), get(starts, member + 1))
        if order < 0:
            return False
        is_ordered &= order == 1
    if is_ordered:
        return True
    begin = get(starts, first)
    size = target - begin
    if last - first > _MOST_SORTED or limit - target < size:
        return False
    lengths = starts + 8 * _MEMBERS
    for member in range(first, last):
        stop = get(starts, member + 1) - 1 if member + 1 < last else target
        put(lengths, member, stop - get(starts, member))
    for member in range(first + 1, last):
        start, length = get(starts, member), get(lengths, member)
        place = member
        while place > first:
            order = _before(start, get(starts, place - 1))
            if order < 0:
                return False
            if order == 0:
                break
            put(starts, place, get(starts, place - 1))
            put(lengths, place, get(lengths, place - 1))
            place -= 1
        put(starts, place, start)
        put(lengths, place, length)
    copy(target, begin, size)
    position = begin
    for member in range(first, last):
        copy(position, target + get(starts, member) - begin, get(lengths, member))
        position += get(lengths, member)
        if member + 1 < last:
            store_byte(position, np.uint8(44))
            position += 1
    return True
