"""How far the next batch reads: what the log has, and what batches before it allow and teach."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pydantic import BaseModel, ValidationError
from pyiceberg.partitioning import PartitionSpec

from topicberg.endpoints import Endpoints
from topicberg.kafka.consumer import record_bytes
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.kafka.topics import TopicLog
from topicberg.tableflow.values.offsets import Batch, plan_batch
from topicberg.topics import TopicSpec

MIN_RATIO = 1 / 8
"""The least bytes of files for a byte in Kafka: the next records may compress less well."""
SMALL_RECORDS, SMALL_BYTES = 100_000, 64 * 1024 * 1024
"""Up to this size, one task (and so one file) is faster than one for every partition."""
FILE_RECORDS = 500_000
"""Of a large batch, about as many are read and written by one task, into a file."""
LEARNT_BYTES = 1_000_000
"""Files of fewer bytes are mostly metadata, so nothing is learnt from them."""
MAX_RECORDS: dict[str, int] = {"append": 5_000_000, "upsert": 3_000_000}
"""The most records of a batch, by write mode: the keys of an upsert are held in memory."""
BatchPart = tuple[Offsets, Offsets]
"""Of a batch that failed: where the part begins that is read next, and where it ends."""
SAMPLED_RECORDS = 1_000
"""The size of larger batches is sampled before they are read."""


class Learnt(BaseModel):
    """What a table's snapshot summary keeps for the next engine."""

    limit: int
    """The number of records that fits the disks."""
    ratio: float
    """Bytes of the table's files for a byte in Kafka."""


@dataclass(frozen=True)
class BatchSize:
    """Limits of a batch."""

    most: int
    """Records at most, whatever was learnt."""
    max_bytes: int
    """Bytes of the files of a commit."""
    limit: int
    """The number of records allowed after earlier failures."""
    ratio: float = 1.0
    """Bytes of files for a byte of Kafka; 1 before anything is learnt."""

    @classmethod
    def of(cls, most: int, max_bytes: int, learnt: str | None = None) -> BatchSize:
        """:param learnt: what :meth:`dump` returned for the newest batch"""
        size = cls(most, max_bytes, most)
        try:
            known = Learnt.model_validate_json(learnt or "")
        except ValidationError:  # there is none, or of another version
            return size
        return replace(size, limit=max(1, min(known.limit, most)), ratio=known.ratio)

    def dump(self) -> str:
        return Learnt(limit=self.limit, ratio=round(self.ratio, 4)).model_dump_json()

    def fit(
        self, sizes: Sequence[float], offsets: int, *, is_compressed: bool = True
    ) -> tuple[int, float | None]:
        """Return how many of the next records make a batch, and their average size.

        :param sizes: sizes of records at evenly spaced offsets of a range, from first to last
        :param offsets: the number of offsets in that range
        :param is_compressed: False: a part of the batch is held in memory as it is
        """
        if len(sizes) < 2:
            return min(self.limit, offsets), None
        room = self.max_bytes / max(self.ratio, MIN_RATIO if is_compressed else 1)
        count = size = 0.0
        for part in map(max, pairwise(sizes)):
            records = min(offsets / (len(sizes) - 1), (room - size) / max(part, 1))
            count, size = count + records, size + records * part
        fitting = max(1, min(self.limit, offsets, int(count + 0.5)))
        return fitting, size / count if count else max(sizes)

    def committed(self, records: int, record_bytes: float | None, written: int) -> BatchSize:
        """Return the limits after a commit of so many records into ``written`` bytes of files."""
        ratio = self.ratio
        if record_bytes and written >= LEARNT_BYTES:
            ratio = written / (records * record_bytes)
        return replace(self, limit=min(2 * self.limit, self.most), ratio=ratio)

    def out_of_space(self, records: int, record_bytes: float | None) -> BatchSize:
        """Return the limits after a batch that filled a disk."""
        half = max(small(record_bytes) // 100, records // 2, 1)
        return replace(self, limit=min(self.limit, half))

    def exhausted(self, records: int) -> BatchSize:
        """Return the limits after a batch that took too much memory, other than its parts."""
        return replace(self, limit=max(1, min(self.limit, records) // 2))


def usual_tasks(spec: PartitionSpec) -> int:
    """Return how many usual tasks one is that writes into a table: one that writes files for each
    partition has more records."""
    return 1 if spec.is_unpartitioned() else 2


def small(record_bytes: float | None) -> int:
    """Return how many records make a small batch."""
    return max(1, min(SMALL_RECORDS, int(SMALL_BYTES / (record_bytes or 1))))


class BatchLimits:
    """Where the batches of one topic end."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints) -> None:
        self._spec, self._endpoints = spec, endpoints
        self.size = BatchSize.of(MAX_RECORDS[spec.write_mode], spec.tableflow.commit_max_bytes)
        self._has_learnt = False
        self._ends: dict[int, int] = {}
        """Where batches of an attempt have to end, by partition: see :class:`BatchCutError`; and
        how far a search has read."""

    def begin_attempt(self) -> None:
        """Allow batches up to the end of the log again."""
        self._ends = {}

    def learn(self, learnt: str | None) -> None:
        """Start from what :meth:`.BatchSize.dump` returned before; only the first call does."""
        if not self._has_learnt:
            self.size = BatchSize.of(self.size.most, self.size.max_bytes, learnt)
            self._has_learnt = True

    def end_at(self, ends: Mapping[int, int]) -> None:
        """Let the batches of this attempt end earlier; each is smaller than the one before."""
        self._ends |= {p: min(end, self._ends.get(p, end)) for p, end in ends.items()}

    def next_batch(
        self, offsets: Offsets, log: TopicLog, skip: set[PartitionOffset], part: BatchPart | None
    ) -> tuple[Batch, float | None]:
        """Return the next batch, or its part, without ``skip``, and the size of its records."""
        beginning, cut = log.beginning, self._ends
        start = {p: offsets.get(p, beginning[p]) for p in log.end}
        latest = {p: min(end, max(start[p], cut.get(p, end))) for p, end in log.end.items()}
        if part is not None:
            first = {p: min(part[0].get(p, start[p]), latest[p]) for p in latest}
            ends = first | {p: min(e, latest[p]) for p, e in part[1].items()}
            return plan_batch(first, beginning, ends, sys.maxsize, skip), None
        batch = plan_batch(offsets, beginning, latest, self.size.limit, skip)
        if batch.records <= SAMPLED_RECORDS:
            return batch, None
        sizes = record_bytes(self._endpoints, self._spec.name, batch.ranges)
        only_files = self._spec.changelog is None  # the keys of changes are read into this process
        fitting, size = self.size.fit(sizes, batch.records, is_compressed=only_files)
        return plan_batch(offsets, beginning, batch.end, fitting, skip), size
