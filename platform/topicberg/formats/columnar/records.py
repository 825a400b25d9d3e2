"""What the readers of all formats share, for compiled code that executes programs."""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.memory import (
    address,
    compiled,
    copy,
    get,
    load_byte,
    load_int32,
    put,
    store_byte,
    store_int32,
)
from topicberg.formats.framing import WIRE_BYTES


@compiled
def schema_of(data, position, end):  # type: ignore[no-untyped-def]
    """Return the id of the schema that a record begins with, or -1."""
    if end - position < WIRE_BYTES or data[position] != 0:
        return np.int64(-1)
    return (
        (np.int64(data[position + 1]) << 24)
        | (np.int64(data[position + 2]) << 16)
        | (np.int64(data[position + 3]) << 8)
        | np.int64(data[position + 4])
    )


@compiled
def start_of(writers, number):  # type: ignore[no-untyped-def]
    """Return the first instruction for a schema, or -1; the writers are ordered by their ids."""
    low, high = 0, len(writers)
    while low < high:
        middle = (low + high) // 2
        if writers[middle, 0] < number:
            low = middle + 1
        else:
            high = middle
    if low < len(writers) and writers[low, 0] == number:
        return writers[low, 1]
    return np.int64(-1)


@compiled
def tables(addresses, used, counts, rooms, starts, ends):  # type: ignore[no-untyped-def]
    """Return where the tables of :class:`..columns.Buffers` are.

    :returns: of values, validity, bytes and values so far, and the most of both; what
        :func:`end_value` takes
    """
    used_at, counts_at = address(used), address(counts)
    columns = (
        address(addresses[0]),
        address(addresses[1]),
        used_at,
        counts_at,
        address(rooms[0]),
        address(rooms[1]),
    )
    return columns, (address(starts), address(ends), address(addresses[2]), used_at, counts_at)


@compiled
def end_value(domain, starts, ends, offs, used, counts):  # type: ignore[no-untyped-def]
    """End a value of a domain: write where its texts and lists end.

    All but the domain are addresses of arrays.
    """
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

    :param places: slot, domain, whether it has offsets (1: of bytes, 2: of the values of another
        domain), and that domain; each list before what it contains
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
    is_full = counts[0] >= rooms[1, 0]
    for slot in range(len(used)):
        is_full |= 2 * used[slot] > rooms[0, slot]
    for domain in range(1, len(counts)):
        is_full |= 2 * counts[domain] > rooms[1, domain]
    return is_full
