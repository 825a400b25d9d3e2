"""Which records the next batch reads, and sets of offsets."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from topicberg.kafka.offsets import Offsets, PartitionOffset, Ranges

CHUNK = 1 << 16
_NOTHING = np.zeros(CHUNK // 8, np.uint8)
_Chunk = tuple[int, int]  # Partition, and offset divided by :data:`CHUNK`.


class OffsetSet:
    """Bits for offsets, in chunks: five million take less than a megabyte, in any pattern."""

    def __init__(self, chunks: Mapping[_Chunk, NDArray[np.uint8]] | None = None) -> None:
        self._chunks = {key: bits for key, bits in (chunks or {}).items() if bits.any()}

    @classmethod
    def of(cls, places: Iterable[PartitionOffset]) -> Self:
        offsets = cls()
        for place in places:
            offsets.add(place)
        return offsets

    def add(self, place: PartitionOffset) -> None:
        key, offset = (place[0], place[1] // CHUNK), place[1] % CHUNK
        if key not in self._chunks:
            self._chunks[key] = _NOTHING.copy()
        self._chunks[key][offset >> 3] |= 128 >> (offset & 7)

    def __contains__(self, place: PartitionOffset) -> bool:
        bits, offset = self._chunks.get((place[0], place[1] // CHUNK)), place[1] % CHUNK
        return bits is not None and bool(bits[offset >> 3] & (128 >> (offset & 7)))

    def __len__(self) -> int:
        return sum(int(np.bitwise_count(bits).sum()) for bits in self._chunks.values())

    def __iter__(self) -> Iterator[PartitionOffset]:
        """Yield them in order."""
        for (partition, number), bits in sorted(self._chunks.items(), key=lambda item: item[0]):
            offsets = number * CHUNK + np.flatnonzero(np.unpackbits(bits))
            yield from ((partition, offset) for offset in offsets.tolist())

    def __or__(self, other: OffsetSet) -> OffsetSet:
        keys, both = self._chunks.keys() | other._chunks.keys(), (self._chunks, other._chunks)
        return OffsetSet({k: np.bitwise_or(*(c.get(k, _NOTHING) for c in both)) for k in keys})

    def __sub__(self, other: OffsetSet) -> OffsetSet:
        removed = other._chunks
        return OffsetSet({k: b & ~removed.get(k, _NOTHING) for k, b in self._chunks.items()})

    def __and__(self, other: OffsetSet) -> OffsetSet:
        return self - (self - other)

    @property
    def chunks(self) -> int:
        """How many chunks it has, which decide how large it is."""
        return len(self._chunks)

    def first_chunk(self) -> OffsetSet:
        """Return the chunk with the lowest offsets of all partitions."""
        first = min(self._chunks, key=lambda key: key[::-1])
        return OffsetSet({first: self._chunks[first]})

    def among(self, partitions: NDArray[Any], offsets: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of some records are in the set."""
        is_in = np.zeros(len(offsets), np.bool_)
        for (partition, number), bits in self._chunks.items():
            rows = np.flatnonzero((partitions == partition) & (offsets // CHUNK == number))
            is_in[rows] = np.unpackbits(bits)[offsets[rows] % CHUNK]
        return is_in

    def without_chunks_before(self, ends: Mapping[int, int]) -> OffsetSet:
        """Return it without the chunks that end before these offsets."""
        kept = (k for k in self._chunks if (k[1] + 1) * CHUNK > ends.get(k[0], 0))
        return OffsetSet({key: self._chunks[key] for key in kept})

    def dump(self) -> dict[str, str]:
        """Return the offsets for :meth:`load`, as a JSON object."""
        return {
            f"{partition}.{number}": base64.b64encode(zlib.compress(bits.tobytes())).decode()
            for (partition, number), bits in self._chunks.items()
        }

    @classmethod
    def load(cls, dumped: Mapping[str, str]) -> Self:
        chunks = dict[_Chunk, NDArray[np.uint8]]()
        for key, text in dumped.items():
            partition, _, number = key.partition(".")
            packed = zlib.decompress(base64.b64decode(text))
            chunks[int(partition), int(number)] = np.frombuffer(packed, np.uint8).copy()
        return cls(chunks)


@dataclass(frozen=True)
class Batch:
    """Records of one commit: for each partition from ``start`` up to, not including, ``end``."""

    start: Offsets
    end: Offsets
    skipped: frozenset[PartitionOffset] = field(default=frozenset())
    """Records that are left out unread, each of them the first of its partition."""

    @property
    def records(self) -> int:
        """Number of offsets in the batch: at least the number of its records."""
        return sum(self.end[partition] - self.start[partition] for partition in self.end)

    @property
    def ranges(self) -> Ranges:
        """The offsets to read, by partition."""
        skipped = {p: sum(place[0] == p for place in self.skipped) for p in self.end}
        return {
            partition: (self.start[partition] + skipped[partition], self.end[partition])
            for partition in sorted(self.end)
            if self.end[partition] > self.start[partition] + skipped[partition]
        }

    def until(self, end: Mapping[int, int]) -> Batch:
        """Return the same batch with earlier ends."""
        ends = {**self.end, **end}
        return Batch(self.start, ends, frozenset(p for p in self.skipped if p[1] < ends[p[0]]))


def plan_batch(
    committed: Mapping[int, int],
    beginning: Mapping[int, int],
    latest: Mapping[int, int],
    max_records: int,
    skip: Collection[PartitionOffset] = (),
) -> Batch:
    """Return the next batch, from the committed offsets (or a new partition's beginning) to latest.

    A backlog of more than ``max_records`` is cut so that all partitions advance in proportion.

    :param skip: records to leave out. A batch ends before such a record, or begins with it, so
        that every partition is read in one piece.
    """
    start = {p: committed.get(p, beginning[p]) for p in latest}
    end, first = _cut(start, latest, max_records), dict(start)
    skipped: set[PartitionOffset] = set()
    for partition, offset in sorted(skip):
        if partition not in end or not start[partition] <= offset < end[partition]:
            continue
        if offset == first[partition]:
            skipped.add((partition, offset))
            first[partition] += 1
        else:
            end = {**end, partition: offset}
    return Batch(start, end, frozenset(skipped))


def end_before(ends: Offsets, partition: int, offset: int) -> None:
    """End a batch before an offset of a partition, if it does not end earlier."""
    ends[partition] = min(offset, ends.get(partition, offset))


def _cut(start: Offsets, latest: Mapping[int, int], max_records: int) -> Offsets:
    """Return ends that are at most ``max_records`` offsets after the starts, together."""
    backlog = sum(latest[p] - start[p] for p in latest)
    if backlog <= max_records:
        return dict(latest)
    # Integers: a float would be off by one beyond 2**53.
    end = {p: start[p] + (latest[p] - start[p]) * max_records // backlog for p in latest}
    if end == start:  # the limit is below the number of partitions: still make progress
        end[next(p for p in latest if latest[p] > start[p])] += 1
    return end
