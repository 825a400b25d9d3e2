"""What the readers of all formats share, for compiled code that executes programs."""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.memory import (
    WORD,
    address,
    compiled,
    copy,
    get,
    load_byte,
    load_int32,
    load_word,
    put,
    store_byte,
    store_int32,
)
from topicberg.formats.columnar.program import Store
from topicberg.formats.framing import WIRE_BYTES

_TOPS = np.uint64(0x8080808080808080)  # The highest bit of each byte: ASCII has none.
_FEW = 16  # Keys of which each one is compared with each other one.
_PROBES = 8
"""Comparisons for a key on average: more of them are refused, as keys may be chosen to collide."""
_TEXT = int(Store.TEXT)


@compiled
def schema_of(data, position, end):  # type: ignore[no-untyped-def]
    """Return the id of the schema that a record begins with, or -1."""
    if end - position < WIRE_BYTES or data[position] != 0:
        return np.int64(-1)
    number = np.int64(data[position + 1]) << 24 | np.int64(data[position + 2]) << 16
    return number | np.int64(data[position + 3]) << 8 | np.int64(data[position + 4])


@compiled
def start_of(writers, number):  # type: ignore[no-untyped-def]
    """Return the first instruction for a schema, or -1; the writers are ordered by their ids."""
    row = np.searchsorted(writers[:, 0], number)
    return writers[row, 1] if row < len(writers) and writers[row, 0] == number else np.int64(-1)


@compiled
def tables(addresses, used, counts, rooms, starts, ends):  # type: ignore[no-untyped-def]
    """Return the addresses of the tables of :attr:`..columns.Buffers.tables`.

    :returns: of values, validity, bytes and values so far, and the most of both; what
        :func:`end_value` takes
    """
    values, valids, offsets = address(addresses[0]), address(addresses[1]), address(addresses[2])
    used_at, counts_at = address(used), address(counts)
    columns = values, valids, used_at, counts_at, address(rooms[0]), address(rooms[1])
    return columns, (address(starts), address(ends), offsets, used_at, counts_at)


@compiled
def end_value(domain, starts, ends, offs, used, counts):  # type: ignore[no-untyped-def]
    """End a value of a domain: write where its texts and lists end, into arrays at addresses."""
    place = get(counts, domain)
    for row in range(get(starts, domain), get(starts, domain + 1)):
        varying, items = get(ends, 2 * row), get(ends, 2 * row + 1)
        till = get(used, varying) if items < 0 else get(counts, items)
        store_int32(get(offs, varying) + 4 * (place + 1), np.int32(till))
    put(counts, domain, place + 1)


@compiled
def append(source, size, slot, columns):  # type: ignore[no-untyped-def]
    """Append bytes at an address to the texts of a slot; return whether there was room."""
    values, _, used, _, text_rooms, _ = columns
    begin = get(used, slot)
    if size > get(text_rooms, slot) - begin:
        return False
    copy(get(values, slot) + begin, source, size)
    put(used, slot, begin + size)
    return True


@compiled
def append_text(text, slot, program, columns):  # type: ignore[no-untyped-def]
    """Append a constant text of a program to the texts of a slot; return whether there was room."""
    _, _, offsets, texts = program
    begin = get(offsets, text)
    return append(texts + begin, get(offsets, text + 1) - begin, slot, columns)


@compiled
def varint(position, end):  # type: ignore[no-untyped-def]
    """Return a number of up to 64 bits at an address, and the address after it, or -1."""
    if position >= end:
        return np.uint64(0), -1
    byte = load_byte(position)
    bits = np.uint64(byte & 0x7F)
    position += 1
    shift = np.uint64(7)
    while byte >= 0x80:
        if position >= end:
            return bits, -1
        byte = load_byte(position)
        position += 1
        if shift == 63 and byte > 1:
            return bits, -1
        bits |= np.uint64(byte & 0x7F) << shift
        shift += np.uint64(7)
    return bits, position


@compiled
def undo(places, addresses, used, counts):  # type: ignore[no-untyped-def]
    """Restore the buffers to the end of the last record, as offsets tell it.

    :param places: slot, domain, whether it has offsets (1: of bytes, 2: of values), and the domain
        of these; each list before what it contains
    """
    before = counts.copy()
    for number in range(len(places)):
        slot, domain, kind, items = places[number]
        count = counts[domain]
        for row in range(count, before[domain] + 1):
            store_byte(addresses[1, slot] + row, np.uint8(0))
        if kind == 1:
            used[slot] = load_int32(addresses[2, slot] + 4 * count)
        elif kind == 2:
            counts[items] = load_int32(addresses[2, slot] + 4 * count)


@compiled
def is_nearly_full(used, counts, rooms):  # type: ignore[no-untyped-def]
    """Return whether there is no room for a record, or half of the room for its parts is used."""
    texts, parts = rooms[0, : len(used)], rooms[1, 1 : len(counts)]
    return counts[0] >= rooms[1, 0] or (2 * used > texts).any() or (2 * counts[1:] > parts).any()


@compiled
def is_utf8(position, end):  # type: ignore[no-untyped-def]
    """Return whether the bytes between two addresses are UTF-8 (table 3-7 of Unicode)."""
    while position < end:
        if position + WORD <= end and load_word(position) & _TOPS == 0:
            position += WORD
            continue
        byte = load_byte(position)
        position += 1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if end - position < more or not low <= load_byte(position) <= high:
            return False
        for place in range(position + 1, position + more):
            if not 0x80 <= load_byte(place) <= 0xBF:
                return False
        position += more
    return True


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
    digest, end = np.uint64(size) ^ np.uint64(0x9E3779B97F4A7C15), position + size
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
    """Return whether two keys from the first up to the last may be equal: it may take too long.

    :param width: bytes of a key, or ``Store.TEXT``
    """
    if last - first <= _FEW:
        for number in range(first + 1, last):
            begin, size = _key(values, offsets, width, number)
            for other in range(first, number):
                other_begin, length = _key(values, offsets, width, other)
                if length == size and same(begin, other_begin, size):
                    return True
        return False
    room, left = 32, _PROBES * (last - first)
    while room < 2 * (last - first):
        room *= 2
    table = np.full(room, -1, np.int64)
    for number in range(first, last):
        begin, size = _key(values, offsets, width, number)
        place = np.int64(_hash(begin, size) & np.uint64(room - 1))
        while table[place] >= 0:
            other_begin, length = _key(values, offsets, width, table[place])
            left -= 1
            if left < 0 or (length == size and same(begin, other_begin, size)):
                return True
            place = (place + 1) & (room - 1)
        table[place] = number
    return False
