"""Find the one record that fails a batch: smaller and smaller parts, committed as they succeed.

A batch that Spark cannot compute, though no service failed and no decoder found a reason, is read
again in parts. A part that succeeds is committed; of one that fails, the first half is next. So all
records before the failing one are in the table when it is found. This module reads and writes
nothing; :class:`topicberg.tableflow.engine.Ingestor` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topicberg.kafka.offsets import Offsets, Place, Ranges

ATTEMPTS = 2
"""How often one record has to fail by itself, each time followed by a proof that all else works."""


@dataclass
class Isolation:
    """The search for a failing record in a batch that ends at ``until``."""

    until: Offsets
    reason: str
    """Of the last failure."""
    failed: Ranges = field(default_factory=dict)
    """The smallest part that is known to fail."""
    step: int = 0
    """Offsets of each of its parts, which are read one after the other."""
    single_failures: int = 0
    """How many times in a row a part of one record has failed."""
    unchecked: bool = True
    """Since the last failure, it is not proven that the services work without this part."""

    def next_ends(self, held: Mapping[int, int], limit: int, parts: int = 2) -> Offsets | None:
        """Return the ends of the next part, or None if all of the batch is committed.

        :param held: the first offset of each partition that is not committed
        :param limit: the most offsets of a part
        :param parts: how many parts a part that failed is divided into
        """
        self.failed = _from(self.failed, held)
        rest = _from({p: (0, end) for p, end in self.until.items()}, held)
        if not rest:
            return None
        if self.failed:
            if not 0 < self.step < _size(self.failed):  # only the failing part is left
                self.step = max(1, _size(self.failed) // parts)
            part = _prefix(self.failed, self.step)
        else:
            self.single_failures = 0
            part = _prefix(rest, limit)
        return {**held, **{p: end for p, (_, end) in part.items()}}

    def fail(self, part: Ranges, reason: str, *, is_certain: bool = False) -> None:
        """Record that a part failed.

        :param is_certain: if it is one record, no second attempt is needed
        """
        failures = ATTEMPTS if is_certain else self.single_failures + 1
        self.single_failures = failures if _size(part) == 1 else 0
        self.failed, self.step, self.reason = part, 0, reason
        self.unchecked = _size(part) == 1

    @property
    def culprit(self) -> Place | None:
        """The record that failed by itself :data:`ATTEMPTS` times, if there is one."""
        if self.single_failures < ATTEMPTS:
            return None
        ((partition, (offset, _)),) = self.failed.items()
        return partition, offset


def _size(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges.values())


def _from(ranges: Ranges, held: Mapping[int, int]) -> Ranges:
    """Return the part of the ranges that is not yet held."""
    left = {p: (max(start, held.get(p, start)), end) for p, (start, end) in ranges.items()}
    return {p: (start, end) for p, (start, end) in left.items() if start < end}


def _prefix(ranges: Ranges, count: int) -> Ranges:
    """Return the first ``count`` offsets, one partition after the other."""
    found: Ranges = {}
    for partition, (start, end) in sorted(ranges.items()):
        if count <= 0:
            break
        found[partition] = start, min(end, start + count)
        count -= end - start
    return found
