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
def _same(one, other, size):  # type: ignore[no-untyped-def]
    """Return whether bytes at two addresses are equal."""
    at = 0
    while size - at >= 8:
        if load_word(one + at) != load_word(other + at):
            return False
        at += 8
    while at < size:
        if load_byte(one + at) != load_byte(other + at):
            return False
        at += 1
    return True


@compiled
def _hash(at, size):  # type: ignore[no-untyped-def]
    found = np.uint64(size) ^ np.uint64(0x9E3779B97F4A7C15)
    end = at + size
    while end - at >= 8:
        found = (found ^ load_word(at)) * np.uint64(0xFF51AFD7ED558CCD)
        found ^= found >> np.uint64(32)
        at += 8
    while at < end:
        found = (found ^ np.uint64(load_byte(at))) * np.uint64(0xC4CEB9FE1A85EC53)
        found ^= found >> np.uint64(29)
        at += 1
    return found


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
        for one in range(first + 1, last):
            begin, size = _key(values, offsets, width, one)
            for other in range(first, one):
                at, length = _key(values, offsets, width, other)
                if length == size and _same(begin, at, size):
                    return True
        return False
    room = 32
    while room < 2 * (last - first):
        room *= 2
    table = np.full(room, -1, np.int64)
    left = _PROBES * (last - first)
    for one in range(first, last):
        begin, size = _key(values, offsets, width, one)
        place = np.int64(_hash(begin, size) & np.uint64(room - 1))
        while table[place] >= 0:
            at, length = _key(values, offsets, width, table[place])
            if length == size and _same(begin, at, size):
                return True
            left -= 1
            if left < 0:
                return True
            place = (place + 1) & (room - 1)
        table[place] = one
    return False
