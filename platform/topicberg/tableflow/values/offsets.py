"""Which records the next batch reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from topicberg.kafka.offsets import Offsets, PartitionOffset, Ranges


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
