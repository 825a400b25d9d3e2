"""How many records the next batch may have, learnt from the batches before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pydantic import BaseModel, ValidationError
from pyiceberg.partitioning import PartitionSpec

MIN_RATIO = 1 / 8
"""The least bytes of files for a byte in Kafka: the next records may compress less well."""
SMALL_RECORDS, SMALL_BYTES = 100_000, 64 * 1024 * 1024
"""Up to this size, one task (and so one file) is faster than one for every partition."""
FILE_RECORDS = 500_000
"""Of a large batch, about as many are read and written by one task, into a file."""
LEARNT_BYTES = 1_000_000
"""Files of fewer bytes are mostly metadata, so nothing is learnt from them."""


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
        if learnt is None:
            return size
        try:
            known = Learnt.model_validate_json(learnt)
        except ValidationError:  # of another version
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
        :param is_compressed: whether the batch is only written to files; else a part of it is held
            in memory as it is
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
