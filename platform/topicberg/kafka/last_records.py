"""The last record of each partition that was read, by which a log is recognized.

A log that was put back or cut may grow again: its offsets then have other records. The epoch of the
leader that got a record never changes, so that a record which was sent again differs too.
"""

from __future__ import annotations

import zlib
from base64 import b85decode, b85encode
from typing import NamedTuple

import numpy as np

from topicberg.kafka.offsets import Offsets
from topicberg.kafka.records import Records


class LastRecord(NamedTuple):
    """A record of a partition, without its content."""

    offset: int
    time_ms: int
    epoch: int  # Of the leader that got it; -1: not known.
    checksum: int  # CRC-32 of key and value.

    def is_same(self, other: LastRecord) -> bool:
        """Return whether both are the same record of one log."""
        is_known = self.epoch >= 0 and other.epoch >= 0
        return self._replace(epoch=0) == other._replace(epoch=0) and (
            not is_known or self.epoch == other.epoch
        )

    def is_copy(self, other: LastRecord) -> bool:
        """Return whether both have the same time and content, at any offset of any log."""
        return (self.time_ms, self.checksum) == (other.time_ms, other.checksum)


LastRecords = dict[int, LastRecord]
"""Partition → its last record that was read; a partition without one is absent."""


def last_records(records: Records) -> LastRecords:
    """Return the last record of each partition."""
    partitions = records.partitions[: records.count]
    rows = np.full(int(partitions.max(initial=-1)) + 1, -1)
    rows[partitions] = np.arange(records.count)  # of a repeated partition, the last one is assigned
    return {int(p): _record(records, int(rows[p])) for p in np.flatnonzero(rows >= 0)}


def _record(records: Records, row: int) -> LastRecord:
    raw, epoch = records.raw(row), int(records.epochs[row])
    return LastRecord(raw["offset"], raw["timestamp_ms"], epoch, checksum(raw["key"], raw["value"]))


def checksum(key: bytes | None, value: bytes | None) -> int:
    """Return the checksum of a record's content: null and empty differ."""
    start = zlib.crc32(f"{-1 if key is None else len(key)} {value is None}".encode())
    return zlib.crc32(value or b"", zlib.crc32(key or b"", start))


def dump_last_records(records: LastRecords, ends: Offsets) -> str:
    """Return a text of few bytes for each partition; ``ends``: an offset after its record."""
    newest = max((record.time_ms for record in records.values()), default=0)
    rows = [
        (p - number, ends[p] - record.offset, newest - record.time_ms, *record[2:])
        for number, (p, record) in enumerate(sorted(records.items()))
    ]
    # Two times, which may be any, are further apart than 64 bits have.
    numbers = np.array(rows, object).reshape(-1, 5) % 2**64
    # The same byte of all rows together: most of them are equal.
    planes = numbers.astype("<u8").view(np.uint8).T.tobytes()
    return f"{newest} {b85encode(zlib.compress(planes, 9)).decode()}"


def parse_last_records(text: str | None, ends: Offsets) -> LastRecords:
    """Return what :func:`dump_last_records` made a text of; None: nothing is known."""
    if text is None:
        return {}
    newest, _, planes = text.partition(" ")
    columns = np.frombuffer(zlib.decompress(b85decode(planes)), np.uint8).reshape(40, -1)
    rows = np.ascontiguousarray(columns.T).view("<i8").tolist()
    # A negative age is one of more than 63 bits: no record is newer than the newest.
    return {
        p + number: LastRecord(ends[p + number] - distance, int(newest) - age % 2**64, epoch, crc)
        for number, (p, distance, age, epoch, crc) in enumerate(rows)
    }
