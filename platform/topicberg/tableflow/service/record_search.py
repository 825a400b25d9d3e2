"""Find the records that fail a batch: smaller and smaller parts are read, and none is committed.

A batch that cannot be computed, though no service failed and no decoder found a reason, is read
again in parts. After a part that succeeds comes the one behind it; of one that fails, the first
piece is next, until it is one record. When all of the batch was read, it is read again and
committed, without the records that were found: parts are not in the order of time, in which keys of
several partitions have to be committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from topicberg.errors import TopicbergError
from topicberg.iceberg.files import discard
from topicberg.kafka.offsets import Offsets, PartitionOffset, Ranges
from topicberg.kafka.records import DamagedRecordsError
from topicberg.tableflow.batch.batch_plan import BatchPlan
from topicberg.tableflow.batch.sizing import SMALL_RECORDS
from topicberg.tableflow.decode.processes import Processes
from topicberg.tableflow.decode.reading import WrittenBatch
from topicberg.tableflow.values import skips
from topicberg.tableflow.values.memory import ExhaustedError
from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

ATTEMPTS = 2  # How often one record has to fail by itself.
MOST_BLAMED = 30  # After so many records, the search ends; what was read before is committed first.
MOST_CONTROLS = 6  # Records that are tried before one is blamed, while none was decoded.
GROWTH = 4  # How much larger than one that succeeded the next part is, behind a found record.
PARTS = 16  # Pieces into which a part that failed is divided.
MOST_SEARCHES = 3  # Searches of an attempt: then the topic gives way to others, and continues.
CONTROLS = 3  # Other records that fail as well before it is said that all do.
Read = Callable[[BatchPlan, Ranges], list[WrittenBatch]]


@dataclass
class Isolation:
    """The search for failing records in a batch from ``start`` to ``until``."""

    start: Offsets  # Where the part that is left begins.
    until: Offsets
    reason: str = ""  # Why the batch failed.
    failed: Ranges = field(default_factory=dict)  # The smallest part that is known to fail.
    of_spark: bool = False  # Spark failed at the batch, and perhaps at no record.
    is_proven: bool = False  # Records can be decoded.
    step: int = 0  # Offsets of each of its pieces, which are read one after the other.
    single_failures: int = 0  # How many times in a row a part of one record has failed.
    blamed: int = 0  # How many records were found.
    size: int | None = None  # Of the next part behind a record that was found: others may be near.
    records: int = 0  # Offsets of the whole batch.

    def __post_init__(self) -> None:
        self.records = _size(self.rest)

    @property
    def rest(self) -> Ranges:
        """What is still to be read."""
        until = self.until if self.blamed < MOST_BLAMED else {}
        return _from({p: (0, end) for p, end in until.items()}, self.start)

    def next_ends(self, limit: int = SMALL_RECORDS, parts: int = PARTS) -> Offsets:
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
        """Record that a part failed; ``is_certain``: one record needs no second attempt."""
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
        """Continue behind a record that was found."""
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
    first = Ranges()
    for partition, (start, end) in sorted(ranges.items()):
        if count > 0:
            first[partition] = start, min(end, start + count)
        count -= end - start
    return first


class RecordSearch:
    """One search after the other."""

    def __init__(self, spec: TopicSpec, processes: Processes) -> None:
        self._spec, self._processes = spec, processes
        self.isolation: Isolation | None = None
        """One that found no record stays until the batch is committed."""
        self._begun = 0  # Searches of this attempt.

    def begin_attempt(self) -> None:
        self.isolation, self._begun = None, 0

    @property
    def active(self) -> Isolation | None:
        """The search while it continues."""
        return self.isolation if self.isolation is not None and self.isolation.rest else None

    def failed(
        self, plan: BatchPlan, reason: str, read: Read, *, is_certain: bool
    ) -> Isolation | None:
        """Begin, or go on, to search for the records at which a batch fails.

        :param read: reads other records, to see whether any can be decoded
        :param is_certain: whether it fails at that record at each attempt
        :returns: the search, if it has found a record
        :raises TopicbergError: processes fail whatever they read
        """
        short_reason = reason.removeprefix(f"topic {self._spec.name}: ")
        if (search := self.active) is None:
            self._begun += 1
            if self._begun > MOST_SEARCHES:  # others have a turn before it continues
                hint = "records that fail are still searched; the engine continues"
                raise TopicbergError(reason, hint=hint)
            of_spark, batch = plan.reader == "spark", plan.batch
            search = Isolation(batch.start, batch.end, short_reason, of_spark=of_spark)
            self.isolation = search
        if plan.reader == "process":
            search.fail(plan.batch.ranges, is_certain=is_certain)
        if (culprit := search.culprit) is None:
            return None
        self._prove(plan, search, culprit, read)  # else no record is to blame
        message = "topic %s, partition %d, offset %d: the record fails by itself: %s"
        logger.warning(message, self._spec.name, *culprit, short_reason)
        for into in plan.tables:
            skips.note_failing(into.table, into.committed.log, culprit, short_reason)
        search.blame(culprit)
        if self._spec.tableflow.error_handling.mode == "SUSPEND":  # it stops here anyway
            search.until = search.start
        return search

    def _prove(
        self, plan: BatchPlan, search: Isolation, culprit: PartitionOffset, read: Read
    ) -> None:
        """Check that processes decode other records, or raise: they fail whatever they read."""
        self._processes.check()
        failures = 0
        for partition, offset in search.controls(culprit) if not search.is_proven else ():
            try:
                written = read(plan, {partition: (offset, offset + 1)})
            except (ExhaustedError, DamagedRecordsError):
                failures += 1
                continue
            discard_written(plan, written)
            search.is_proven = True
            return
        if failures >= CONTROLS:
            raise TopicbergError(
                f"topic {self._spec.name}: the processes of the engine can decode none of its "
                f"records: tried {failures + 1} of them",
                hint="give them more memory, see TOPICBERG_ENGINE_PROCESS_MEMORY_MB; the engine "
                "tries again",
            )


def discard_written(plan: BatchPlan, written: Iterable[WrittenBatch]) -> None:
    """Delete the data files of a batch, or of a part of one, for each of its tables."""
    for into, part in zip(plan.tables, written, strict=True):
        discard(into.table.io, part.files)
