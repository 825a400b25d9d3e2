"""Find the one record that fails a batch: smaller and smaller parts, committed as they succeed.

A batch that Spark cannot compute, for a reason that is known neither of a service nor of a decoder,
is read again in parts. A part that succeeds is committed, of one that fails the first half is next.
So all records before the failing one are in the table when it is found. Nothing here reads or
writes; :class:`topicberg.tableflow.engine.Ingestor` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topicberg.kafka.offsets import Offsets, Place, Ranges

ATTEMPTS = 2
"""Failures of one record by itself, each followed by a proof that all else works."""


@dataclass
class Isolation:
    """The search for a failing record in a batch that ends at ``until``."""

    until: Offsets
    reason: str
    """Of the last failure."""
    failed: Ranges = field(default_factory=dict)
    """The smallest part that is known to fail."""
    step: int = 0
    """Offsets of the parts of it that are read one after the other."""
    alone: int = 0
    """How many times in a row the last record that is left failed by itself."""
    is_damaged: bool = False
    """The client cannot read the part either."""
    unchecked: bool = True
    """Nothing has shown, since the last failure, that the services work without this part."""

    def next_ends(self, held: Mapping[int, int], limit: int, parts: int = 2) -> Offsets | None:
        """Return the ends of the next part; None: all of the batch is committed.

        :param held: the first offset of each partition that is not committed
        :param limit: offsets of a part at most
        :param parts: how many are made of a part that failed
        """
        self.failed = _from(self.failed, held)
        rest = _from({p: (0, end) for p, end in self.until.items()}, held)
        if not rest:
            return None
        if self.failed:
            if not 0 < self.step < _size(self.failed):  # all that is left is one part: it fails
                self.step = max(1, _size(self.failed) // parts)
            part = _prefix(self.failed, self.step)
        else:
            self.alone = 0
            part = _prefix(rest, limit)
        return {**held, **{p: end for p, (_, end) in part.items()}}

    def fail(self, part: Ranges, reason: str) -> None:
        """Note that a part failed."""
        self.alone = self.alone + 1 if _size(part) == 1 else 0
        self.failed, self.step, self.reason = part, 0, reason
        self.unchecked = _size(part) == 1

    @property
    def culprit(self) -> Place | None:
        """The record that failed by itself often enough."""
        if self.alone < ATTEMPTS:
            return None
        ((partition, (offset, _)),) = self.failed.items()
        return partition, offset


def _size(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges.values())


def _from(ranges: Ranges, held: Mapping[int, int]) -> Ranges:
    """What is left of ranges after ``held``."""
    left = {p: (max(start, held.get(p, start)), end) for p, (start, end) in ranges.items()}
    return {p: (start, end) for p, (start, end) in left.items() if start < end}


def _prefix(ranges: Ranges, count: int) -> Ranges:
    """The first ``count`` offsets, one partition after the other."""
    found: Ranges = {}
    for partition, (start, end) in sorted(ranges.items()):
        if count <= 0:
            break
        found[partition] = start, min(end, start + count)
        count -= end - start
    return found
