"""Records whose schemas are named by headers, made of records with a prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

import numpy as np

from topicberg.kafka.records import Records

NAMES = {"key": "__key_schema_id", "value": "__value_schema_id"}
RecordHeaders = list[tuple[str, bytes | None]]


def guid_of(schema_id: int) -> UUID:
    """The GUID that a registry of a test gives the schema of an id."""
    return UUID(bytes=hashlib.sha256(str(schema_id).encode()).digest()[:16])


def moved(wire: bytes, kind: str, *, guid: UUID | None = None) -> tuple[bytes, bytes] | None:
    """Return the payload and the header of a record in the wire format; None: it has no prefix."""
    if len(wire) < 5 or wire[0] != 0:
        return None
    head, payload = wire[:5], wire[5:]
    if guid is not None:
        head = b"\x01" + guid.bytes
    end = _indexes_end(payload) if kind == "PROTOBUF" else 0
    return None if end is None else (payload[end:], head + payload[:end])


def _indexes_end(payload: bytes) -> int | None:
    """Where Protobuf's message indexes end: a count, and so many numbers."""
    at, left = 0, -1
    while left != 0:
        number = shift = 0
        while True:
            if at == len(payload) or shift > 28:
                return None
            byte = payload[at]
            at, number, shift = at + 1, number | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        if left < 0 and (number & 1 or number > 60 or shift > 7):
            return None
        left = number // 2 if left < 0 else left - 1
    return at


def fetched(
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    headers: Sequence[RecordHeaders] | None = None,
) -> Records:
    """Records as librdkafka's messages become them; the offset is the place in the list.

    :param pairs: keys and values
    """
    size = sum(len(one or b"") for pair in pairs for one in pair)
    size += sum(4 * len(name) + len(text or b"") for some in headers or () for name, text in some)
    # More room than there are records, and what earlier ones left in it.
    records = Records(len(pairs) + 2, max(64 * 1024, size))
    for stale in (records.key_offsets, records.value_offsets, records.header_ends):
        stale[len(pairs) + 1 :] = 1
    for number, (key, value) in enumerate(pairs):
        for data, offsets, present, one in (
            (records.keys, records.key_offsets, records.has_key, key),
            (records.values, records.value_offsets, records.has_value, value),
        ):
            begin, stop = int(offsets[number]), int(offsets[number]) + len(one or b"")
            data[begin:stop] = np.frombuffer(one or b"", np.uint8)
            offsets[number + 1], present[number] = stop, one is not None
        records.offsets[number] = number
        records.header_ends[number + 1] = records.header_ends[number]
        for name, text in headers[number] if headers else ():
            _add_header(records, number, name.encode(errors="surrogateescape"), text)
    records.times[:], records.time_types[:] = 1_700_000_000_000, 1
    records.count = len(pairs)
    return records


def _add_header(records: Records, number: int, name: bytes, text: bytes | None) -> None:
    at = records.header_ends[number + 1]
    for row, (shift, one) in enumerate(((0, name), (records.size, text or b""))):
        begin = int(records.header_offsets[row, at])
        stop = begin + len(one)
        records.headers[shift + begin : shift + stop] = np.frombuffer(one, np.uint8)
        records.header_offsets[row, at + 1] = stop
    records.has_header_value[at] = text is not None
    records.header_ends[number + 1] = at + 1
