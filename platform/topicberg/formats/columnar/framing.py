"""Brings arrays of records that are not in the wire format into it.

Their schemas are named by headers, or by nothing: see :mod:`topicberg.formats.framing`. It costs
nothing where all records are in the wire format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.columnar.memory import address, compiled, copy, load_int64
from topicberg.formats.framing import HEADERS, RecordFraming

_UNUSABLE = -1
"""Of a record whose header does not say what its schema is, or is missing."""
MAX_HEADER = 256
"""Bytes of a header that names a schema at most."""
MAX_DIFFERENT = 100
"""The most different headers of the records; others count as unusable here."""


class HeaderArrays(NamedTuple):
    """The headers of records.

    ``ends``: how many headers the records up to each one have, with a 0 before them.
    ``name_offsets``, ``value_offsets``: where each one begins, and where the last one ends.
    """

    names: NDArray[np.uint8]
    values: NDArray[np.uint8]
    ends: NDArray[np.int32]
    name_offsets: NDArray[np.int32]
    value_offsets: NDArray[np.int32]
    has_value: NDArray[np.uint8]


def in_wire_format(
    framing: RecordFraming,
    headers: HeaderArrays | None,
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    present: NDArray[np.uint8],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return keys or values in the wire format, and where each begins and the last one ends.

    A record with an unusable header, or without one that it needs, has no bytes, which no format
    decodes.

    :param headers: None: the records have none
    :param offsets: of the same records as ``present``, and where the last one ends
    """
    usual, found, rows = framing.usual_prefix, np.zeros(0, np.int64), np.zeros(0, np.int64)
    if headers is not None and framing.framing != "none":
        found, rows = schema_headers(headers, framing.side)
    if usual == b"" and not len(found):
        return data, offsets
    if len(offsets) != len(present) + 1:  # compiled code does not look
        raise ValueError(f"{len(offsets)} offsets of {len(present)} records")
    kinds = np.full(len(present), _UNUSABLE if usual is None else 0, np.int64)
    texts = [usual]
    if headers is not None and len(found):
        for text, members in _prefixes(headers, found, framing.prefix):
            kinds[rows[members]] = _UNUSABLE if text is None else len(texts)
            texts.append(text)
    whole = b"".join(text or b"" for text in texts)
    starts = np.cumsum([0, *(len(text or b"") for text in texts)], dtype=np.int64)
    size = int(offsets[-1] - offsets[0]) + len(present) * max(1, int(np.diff(starts).max()))
    into, ends = np.empty(size + 8, np.uint8), np.zeros(len(present) + 1, np.int64)
    prefix_bytes = np.frombuffer(whole + bytes(8), np.uint8).copy()
    _join(prefix_bytes, starts, kinds, present, data, offsets, into, ends)
    return into, ends


def schema_headers(headers: HeaderArrays, side: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the headers that say what the schemas of records are, and these records.

    Of several headers of a record, see :func:`topicberg.formats.framing.header_of`.
    """
    found = named_headers(headers, HEADERS[side].encode())
    rows = np.searchsorted(headers.ends[1:], found, side="right")
    counts = headers.has_value[found] == 1
    counts[:-1] &= rows[1:] != rows[:-1]
    return found[counts], rows[counts]


def named_headers(headers: HeaderArrays, name: bytes) -> NDArray[np.int64]:
    """Return the headers of a name, with a value or without one."""
    total = int(headers.ends[-1])
    begins = headers.name_offsets[: total + 1]
    found = np.flatnonzero(np.diff(begins) == len(name))
    found = found[headers.names[begins[found]] == name[0]]  # fewer whole names to compare
    if len(found):
        letters = headers.names[begins[found][:, None] + np.arange(len(name))]
        found = found[(letters == np.frombuffer(name, np.uint8)).all(axis=1)]
    return np.asarray(found, np.int64)


def _prefixes(
    headers: HeaderArrays, found: NDArray[np.int64], prefix: Callable[[bytes], bytes | None]
) -> list[tuple[bytes | None, NDArray[np.int64]]]:
    """Return the prefixes that equal headers say, and which of the headers they are.

    :param found: headers that name schemas: few different ones
    """
    begins, sizes = headers.value_offsets[found], np.diff(headers.value_offsets)[found]
    width = min(MAX_HEADER, int(sizes.max()))
    inside = np.arange(width)
    places = np.minimum(begins[:, None] + inside, len(headers.values) - 1)
    letters = np.where(inside < sizes[:, None], headers.values[places], 0)
    left = np.flatnonzero(sizes <= MAX_HEADER)
    parts: list[tuple[bytes | None, NDArray[np.int64]]] = [
        (None, np.flatnonzero(sizes > MAX_HEADER))
    ]
    while len(left) and len(parts) <= MAX_DIFFERENT:
        first = left[0]
        is_same = (sizes[left] == sizes[first]) & (letters[left] == letters[first]).all(axis=1)
        text = letters[first, : sizes[first]].astype(np.uint8).tobytes()
        parts.append((prefix(text), left[is_same]))
        left = left[~is_same]
    return [*parts, (None, left)]


@compiled
def _join(  # type: ignore[no-untyped-def]
    prefixes, starts, kinds, present, data, offsets, into, ends
):
    source, to, first = address(data), address(into), address(prefixes)
    offset_at, start_at = address(offsets), address(starts)
    at = np.int64(0)
    for record in range(len(kinds)):
        kind = kinds[record]
        begin = load_int64(offset_at + 8 * record)
        size = load_int64(offset_at + 8 * record + 8) - begin
        if present[record] and kind != _UNUSABLE:
            start = load_int64(start_at + 8 * kind)
            length = load_int64(start_at + 8 * kind + 8) - start
            copy(to + at, first + start, length)
            at += length
            copy(to + at, source + begin, size)
            at += size
        ends[record + 1] = at


def compile_framing() -> None:
    """Compile what brings records into the wire format."""
    none, byte = np.zeros(1, np.int64), np.zeros(8, np.uint8)
    ends = np.zeros(2, np.int64)
    _join(byte, ends, none, byte[:1], byte, ends, byte.copy(), ends.copy())
