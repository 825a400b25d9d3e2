"""Find the records that fail a batch: smaller and smaller parts are read, and none is committed.

A batch that cannot be computed, though no service failed and no decoder found a reason, is read
again in parts. After a part that succeeds comes the one behind it; of one that fails, the first
piece is next, until it is one record. When all of the batch was read, it is read again and
committed, without the records that were found: parts are not in the order of time, in which keys of
several partitions have to be committed. This module reads and writes nothing:
:class:`topicberg.tableflow.service.record_search.RecordSearch` has it, and
:class:`topicberg.tableflow.service.engine.Ingestor` reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topicberg.kafka.offsets import Offsets, PartitionOffset, Ranges

ATTEMPTS = 2
"""How often one record has to fail by itself."""
MOST_BLAMED = 30
"""After so many records, the search ends; what was read up to there is committed first."""
MOST_CONTROLS = 6
"""Records that are tried before one is blamed, while none was decoded."""
GROWTH = 4
"""How much larger the next part is than one that succeeded, behind a record that was found."""


@dataclass
class Isolation:
    """The search for failing records in a batch from ``start`` to ``until``."""

    start: Offsets
    """Where the part that is left begins."""
    until: Offsets
    reason: str = ""
    """Why the batch failed."""
    failed: Ranges = field(default_factory=dict)
    """The smallest part that is known to fail."""
    of_spark: bool = False
    """Spark failed at the batch, and perhaps at no record."""
    is_proven: bool = False
    """Records can be decoded."""
    step: int = 0
    """Offsets of each of its pieces, which are read one after the other."""
    single_failures: int = 0
    """How many times in a row a part of one record has failed."""
    blamed: int = 0
    """How many records were found."""
    size: int | None = None
    """Offsets of the next part behind a record that was found: others may be near."""
    records: int = 0
    """Offsets of the whole batch."""

    def __post_init__(self) -> None:
        self.records = _size(self.rest)

    @property
    def rest(self) -> Ranges:
        """What is still to be read."""
        if self.blamed >= MOST_BLAMED:
            return {}
        return _from({p: (0, end) for p, end in self.until.items()}, self.start)

    def next_ends(self, limit: int, parts: int = 2) -> Offsets:
        """Return the ends of the next part.

        :param limit: the most offsets of a part
        :param parts: how many pieces a part that failed is divided into
        """
        self.failed = _from(self.failed, self.start)
        if self.failed:
            if not 0 < self.step < _size(self.failed):  # only the failing piece is left
                self.step = max(1, _size(self.failed) // parts)
            part = _prefix(self.failed, self.step)
        else:
            part = _prefix(self.rest, min(limit, self.size or limit))
        return {**self.start, **{p: end for p, (_, end) in part.items()}}

    def succeed(self, ends: Offsets) -> None:
        """Record that everything before these offsets can be read."""
        self._go_on(ends)
        self.is_proven = True
        if self.size is not None:
            self.size *= GROWTH

    def _go_on(self, ends: Offsets) -> None:
        self.start = {p: max(start, ends.get(p, start)) for p, start in self.start.items()}
        self.single_failures = 0

    def fail(self, part: Ranges, *, is_certain: bool = False) -> None:
        """Record that a part failed.

        :param is_certain: if it is one record, no second attempt is needed
        """
        failures = ATTEMPTS if is_certain else self.single_failures + 1
        self.single_failures = failures if _size(part) == 1 else 0
        self.failed, self.step = part, 0

    @property
    def culprit(self) -> PartitionOffset | None:
        """The record that failed by itself :data:`ATTEMPTS` times, if there is one."""
        if self.single_failures < ATTEMPTS:
            return None
        ((partition, (offset, _)),) = self.failed.items()
        return partition, offset

    def blame(self, culprit: PartitionOffset) -> None:
        """Go on behind a record that was found."""
        partition, offset = culprit
        self._go_on({partition: offset + 1})
        self.blamed += 1
        self.size = GROWTH

    def controls(self, culprit: PartitionOffset) -> list[PartitionOffset]:
        """Return other records, here and there, of which one should be decoded."""
        found = [
            (p, start + (end - 1 - start) * spot // (MOST_CONTROLS - 1))
            for spot in reversed(range(MOST_CONTROLS))
            for p, (start, end) in sorted(self.rest.items())
        ]
        return list(dict.fromkeys(place for place in found if place != culprit))[:MOST_CONTROLS]


def _size(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges.values())


def _from(ranges: Ranges, first: Offsets) -> Ranges:
    """Return what the ranges have from these offsets on."""
    left = {p: (max(start, first.get(p, start)), end) for p, (start, end) in ranges.items()}
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
