"""Whether the keys of a map differ, for compiled code."""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.memory import compiled, load_byte, load_int32, load_word
from topicberg.formats.columnar.program import Store

_FEW = 16
"""Keys of which each one is compared with each other one."""
_PROBES = 8
"""Comparisons for a key on average: more of them are refused, as keys may be chosen to collide."""
_TEXT = int(Store.TEXT)


@compiled
def same(begin, other, size):  # type: ignore[no-untyped-def]
    """Return whether bytes at two addresses are equal."""
    offset = 0
    while size - offset >= 8:
        if load_word(begin + offset) != load_word(other + offset):
            return False
        offset += 8
    while offset < size:
        if load_byte(begin + offset) != load_byte(other + offset):
            return False
        offset += 1
    return True


@compiled
def _hash(position, size):  # type: ignore[no-untyped-def]
    digest = np.uint64(size) ^ np.uint64(0x9E3779B97F4A7C15)
    end = position + size
    while end - position >= 8:
        digest = (digest ^ load_word(position)) * np.uint64(0xFF51AFD7ED558CCD)
        digest ^= digest >> np.uint64(32)
        position += 8
    while position < end:
        digest = (digest ^ np.uint64(load_byte(position))) * np.uint64(0xC4CEB9FE1A85EC53)
        digest ^= digest >> np.uint64(29)
        position += 1
    return digest


@compiled
def _key(values, offsets, width, number):  # type: ignore[no-untyped-def]
    """Return where a key is, and how many bytes it has."""
    if width != _TEXT:
        return values + width * number, width
    begin = np.int64(load_int32(offsets + 4 * number))
    return values + begin, load_int32(offsets + 4 * number + 4) - begin


@compiled
def may_repeat(values, offsets, width, first, last):  # type: ignore[no-untyped-def]
    """Return whether two of some keys are equal; also if it takes too long to find out.

    :param values, offsets: addresses of the buffers of a slot
    :param width: bytes of a key, or ``Store.TEXT``
    :param first, last: the first key, and the one after the last
    """
    if last - first <= _FEW:
        for number in range(first + 1, last):
            begin, size = _key(values, offsets, width, number)
            for other in range(first, number):
                other_begin, length = _key(values, offsets, width, other)
                if length == size and same(begin, other_begin, size):
                    return True
        return False
    room = 32
    while room < 2 * (last - first):
        room *= 2
    table = np.full(room, -1, np.int64)
    left = _PROBES * (last - first)
    for number in range(first, last):
        begin, size = _key(values, offsets, width, number)
        place = np.int64(_hash(begin, size) & np.uint64(room - 1))
        while table[place] >= 0:
            other_begin, length = _key(values, offsets, width, table[place])
            if length == size and same(begin, other_begin, size):
                return True
            left -= 1
            if left < 0:
                return True
            place = (place + 1) & (room - 1)
        table[place] = number
    return False
