"""Brings arrays of records that are not in the wire format into it.

Their schemas are named by headers, by AWS Glue's prefix, or by nothing: see
:mod:`topicberg.formats.framing`. It costs nothing where all records are in the wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.columnar.memory import address, compiled, copy, load_int64
from topicberg.formats.framing import (
    GLUE_BYTES,
    GLUE_PLAIN,
    GLUE_VERSION,
    GLUE_ZLIB,
    HEADERS,
    RecordFraming,
    UncompressedError,
    decompressed,
    wire_prefix,
)

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
_UNUSABLE = -1  # Of a record that does not say what its schema is here.
MAX_HEADER = 256  # Bytes of a header that names a schema at most.
MAX_DIFFERENT = 100
"""The most different headers, or versions, of the records; others count as unusable here."""
MAX_DECOMPRESSED = 64 * 1024 * 1024
"""Bytes of all payloads together that are decompressed here; others count as unusable."""


class HeaderArrays(NamedTuple):
    """The headers of records.

    ``ends``: how many headers the records up to each one have, with a 0 before them.
    ``name_offsets``, ``value_offsets``: where each one begins, and where the last one ends.
    """

    names: Bytes
    values: Bytes
    ends: NDArray[np.int32]
    name_offsets: NDArray[np.int32]
    value_offsets: NDArray[np.int32]
    has_value: Bytes


def in_wire_format(
    framing: RecordFraming,
    headers: HeaderArrays | None,
    data: Bytes,
    offsets: Numbers,
    present: Bytes,
) -> tuple[Bytes, Numbers]:
    """Return keys or values in the wire format, and where each begins and the last one ends.

    A record that does not say what its schema is, or not by few different names, has no bytes,
    which no format decodes.
    """
    if framing.framing == "glue":
        return _of_versions(framing, data, offsets, present)
    usual, indexes, rows = framing.usual_prefix, np.zeros(0, np.int64), np.zeros(0, np.int64)
    if headers is not None and framing.has_headers:
        indexes, rows = schema_headers(headers, framing.side)
    if usual == b"" and not len(indexes):
        return data, offsets
    kinds, texts = np.full(len(present), _UNUSABLE if usual is None else 0, np.int64), [usual]
    if headers is not None and len(indexes):
        for text, members in _prefixes(headers, indexes, framing.prefix):
            kinds[rows[members]] = _UNUSABLE if text is None else len(texts)
            texts.append(text)
    return _joined(texts, kinds, present, data, offsets[:-1], np.diff(offsets))


def held_in_wire_format(
    framing: RecordFraming, data: Bytes, offsets: Numbers, present: Bytes
) -> tuple[Bytes, Numbers]:
    """Return what tables hold of keys or values in the wire format; see :func:`in_wire_format`."""
    if framing.framing != "glue":
        return data, offsets
    return _of_versions(framing, data, offsets, present)


def _joined(
    texts: list[bytes | None],
    kinds: Numbers,
    present: Bytes,
    data: Bytes,
    begins: Numbers,
    sizes: Numbers,
) -> tuple[Bytes, Numbers]:
    """Return records with their prefixes, and where each begins and the last one ends.

    :param kinds: which of the prefixes (``texts``) each record has, or that it has no bytes
    """
    if not len(begins) == len(sizes) == len(kinds) == len(present):  # compiled code does not look
        raise ValueError(f"{len(begins) + 1} offsets of {len(present)} records")
    whole = b"".join(text or b"" for text in texts)
    starts = np.cumsum([0, *(len(text or b"") for text in texts)], dtype=np.int64)
    size = int(sizes.sum()) + len(present) * max(1, int(np.diff(starts).max()))
    into, ends = np.empty(size + 8, np.uint8), np.zeros(len(present) + 1, np.int64)
    prefix_bytes = np.frombuffer(whole + bytes(8), np.uint8).copy()
    _join(prefix_bytes, starts, kinds, present, data, begins, sizes, into, ends)
    return into, ends


def _of_versions(
    framing: RecordFraming, data: Bytes, offsets: Numbers, present: Bytes
) -> tuple[Bytes, Numbers]:
    """Return records with AWS Glue's prefix in the wire format; see :func:`in_wire_format`."""
    if len(offsets) != len(present) + 1:
        raise ValueError(f"{len(offsets)} offsets of {len(present)} records")
    begins, sizes = offsets[:-1].copy(), np.diff(offsets)
    kinds = np.full(len(present), _UNUSABLE, np.int64)
    rows = np.flatnonzero((present == 1) & (sizes >= GLUE_BYTES))
    rows = rows[data[begins[rows]] == GLUE_VERSION]
    rows = rows[np.isin(data[begins[rows] + 1], (GLUE_PLAIN, GLUE_ZLIB))]
    names = data[begins[rows][:, None] + np.arange(2, GLUE_BYTES)]
    texts: list[bytes | None] = [b""]
    for text, members in _equal(np.ascontiguousarray(names).view(np.uint64).reshape(-1, 2)):
        number = framing.guids.get(UUID(bytes=text))
        if number is not None:
            kinds[rows[members]] = len(texts)
            texts.append(wire_prefix(number))
    begins, sizes = begins + GLUE_BYTES, sizes - GLUE_BYTES
    packed = np.flatnonzero(kinds != _UNUSABLE)
    packed = packed[data[begins[packed] - (GLUE_BYTES - 1)] == GLUE_ZLIB]
    if len(packed):
        data = _decompressed(packed, kinds, data, begins, sizes)
    sizes[kinds == _UNUSABLE] = 0
    return _joined(texts, kinds, present, data, begins, sizes)


def _decompressed(
    rows: NDArray[np.intp], kinds: Numbers, data: Bytes, begins: Numbers, sizes: Numbers
) -> Bytes:
    """Return the bytes of records and, after them, the decompressed payloads of some. Their begins
    and sizes are updated; what cannot be decompressed here becomes unusable."""
    parts, end, left = [data], len(data), MAX_DECOMPRESSED
    for row in rows.tolist():
        begin = int(begins[row])
        try:
            payload = decompressed(data[begin : begin + int(sizes[row])].tobytes(), left)
        except UncompressedError:
            kinds[row] = _UNUSABLE
            continue
        begins[row], sizes[row] = end, len(payload)
        parts.append(np.frombuffer(payload, np.uint8))
        end, left = end + len(payload), left - len(payload)
    return np.concatenate(parts)


def schema_headers(headers: HeaderArrays, side: str) -> tuple[Numbers, Numbers]:
    """Return the headers that name the schemas of records, the last of each record, and its row."""
    indexes = named_headers(headers, HEADERS[side].encode())
    rows = np.searchsorted(headers.ends[1:], indexes, side="right")
    counts = headers.has_value[indexes] == 1
    counts[:-1] &= rows[1:] != rows[:-1]
    return indexes[counts], rows[counts]


def named_headers(headers: HeaderArrays, name: bytes) -> Numbers:
    """Return the headers of a name, with a value or without one."""
    begins = headers.name_offsets[: int(headers.ends[-1]) + 1]
    indexes = np.flatnonzero(np.diff(begins) == len(name))
    # The first letters come first, so that fewer whole names are compared.
    indexes = indexes[headers.names[begins[indexes]] == name[0]]
    if len(indexes):
        letters = headers.names[begins[indexes][:, None] + np.arange(len(name))]
        indexes = indexes[(letters == np.frombuffer(name, np.uint8)).all(axis=1)]
    return np.asarray(indexes, np.int64)


def _prefixes(
    headers: HeaderArrays, indexes: Numbers, prefix: Callable[[bytes], bytes | None]
) -> list[tuple[bytes | None, Numbers]]:
    """Return the prefixes that a few different headers say, and which of the headers they are."""
    begins, sizes = headers.value_offsets[indexes], np.diff(headers.value_offsets)[indexes]
    inside = np.arange(min(MAX_HEADER, int(sizes.max())))
    places = np.minimum(begins[:, None] + inside, len(headers.values) - 1)
    letters = np.where(inside < sizes[:, None], headers.values[places], 0)
    rest = np.flatnonzero(sizes <= MAX_HEADER)
    parts: list[tuple[bytes | None, Numbers]] = [(None, np.flatnonzero(sizes > MAX_HEADER))]
    columns = np.column_stack([letters[rest], sizes[rest] & 0xFF, sizes[rest] >> 8])
    for text, members in _equal(columns.astype(np.uint8)):
        parts.append((prefix(text[: text[-2] | text[-1] << 8]), rest[members]))
    listed = np.concatenate([members for _, members in parts])
    return [*parts, (None, np.setdiff1d(np.arange(len(indexes)), listed))]


def _equal(names: NDArray[np.generic]) -> Iterator[tuple[bytes, Numbers]]:
    """Yield up to :data:`MAX_DIFFERENT` different rows of an array, and where each of them is."""
    left = np.arange(len(names))
    for _ in range(MAX_DIFFERENT):
        if not len(left):
            return
        first = names[left[0]]
        is_same = (names[left] == first).all(axis=1)
        yield first.tobytes(), left[is_same]
        left = left[~is_same]


@compiled
def _join(  # type: ignore[no-untyped-def]
    prefixes, starts, kinds, present, data, begins, sizes, into, ends
):
    source, to, first = address(data), address(into), address(prefixes)
    begin_at, size_at, start_at = address(begins), address(sizes), address(starts)
    position = np.int64(0)
    for record in range(len(kinds)):
        kind = kinds[record]
        if present[record] and kind != _UNUSABLE:
            start = load_int64(start_at + 8 * kind)
            length = load_int64(start_at + 8 * kind + 8) - start
            copy(to + position, first + start, length)
            position += length
            size = load_int64(size_at + 8 * record)
            copy(to + position, source + load_int64(begin_at + 8 * record), size)
            position += size
        ends[record + 1] = position


def compile_framing() -> None:
    """Compile what brings records into the wire format."""
    none, byte = np.zeros(1, np.int64), np.zeros(8, np.uint8)
    starts, ends = np.zeros(2, np.int64), np.zeros(2, np.int64)
    _join(byte, starts, none, byte[:1], byte, none, none, byte.copy(), ends)
