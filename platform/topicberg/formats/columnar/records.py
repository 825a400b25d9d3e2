"""The beginning and the end of a record, for compiled code that executes programs."""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.memory import address, compiled, get, put, store_int32

WIRE_BYTES = 5


@compiled
def schema_of(data, at, end):  # type: ignore[no-untyped-def]
    """Return the id of the schema that a record begins with, or -1."""
    if end - at < WIRE_BYTES or data[at] != 0:
        return np.int64(-1)
    return (
        (np.int64(data[at + 1]) << 24)
        | (np.int64(data[at + 2]) << 16)
        | (np.int64(data[at + 3]) << 8)
        | np.int64(data[at + 4])
    )


@compiled
def start_of(writers, number):  # type: ignore[no-untyped-def]
    """Return the first instruction for a schema, or -1."""
    found = np.int64(-1)
    for writer in range(len(writers)):
        if writers[writer, 0] == number:
            found = writers[writer, 1]
    return found


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
