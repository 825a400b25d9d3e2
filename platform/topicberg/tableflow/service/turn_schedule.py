"""What the polls see of one topic's log beyond its table, and when the next turn is due."""

from __future__ import annotations

import math
import time
import zlib

from topicberg.kafka.ends import Ends
from topicberg.kafka.offsets import Offsets
from topicberg.tableflow.service.status import OpenTransaction
from topicberg.topics import TopicSpec

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 15.0
OPEN_SECONDS = 10.0  # A transaction that has been open for less time is not reported.


class LogWatch:
    """In its methods, ``offsets`` are the first that the table lacks, by partition.

    What changes it is called with the lock of the topic's :class:`.StatusReport`; all else may be
    called without.
    """

    def __init__(self) -> None:
        self.ends: Ends | None = None  # The newest ends of the log; None: not known yet.
        self._exhausted: Ends | None = None  # The ends at which a turn found nothing to read.
        self._topic_id: str | None = None
        self._stuck: dict[int, tuple[int, float]] = {}
        """By partition: the offset behind which nothing can be read, and since when it is."""

    def note_turn(self, ends: Ends | None, *, is_exhausted: bool) -> None:
        """Note a turn that succeeded.

        :param ends: those that were known when it began
        :param is_exhausted: whether it found nothing to read
        """
        self._topic_id = ends.topic_id if ends else None
        self._exhausted = ends if is_exhausted else None

    def readable(self, offsets: Offsets) -> int:
        """Return how many records wait, as far as is known."""
        stable = self.ends.stable if self.ends and self.ends != self._exhausted else {}
        return sum(max(0, end - offsets.get(p, 0)) for p, end in stable.items())

    def has_changed(self, offsets: Offsets) -> bool:
        """Return whether the log is not the one that the table holds: a turn finds what it is."""
        ends = self.ends
        if ends is None or ends == self._exhausted:
            return False
        return self._is_other(ends) or any(ends.high.get(p, -1) < o for p, o in offsets.items())

    def _is_other(self, ends: Ends) -> bool:
        """Return whether the topic is not the one of the last turn that succeeded."""
        return self._topic_id is not None and ends.topic_id != self._topic_id

    def lag(self, offsets: Offsets) -> Offsets:
        """Return how many offsets of each partition the table lacks, readable or not."""
        high = self.ends.high if self.ends else {}
        held = {} if self.ends is None or self._is_other(self.ends) else offsets
        return {p: max(0, end - held.get(p, 0)) for p, end in high.items()}

    def open_transactions(
        self, known: dict[int, OpenTransaction]
    ) -> tuple[dict[int, OpenTransaction], Offsets]:
        """Return the known transactions that hold records back, and the new ones among them.

        New ones have been open for :data:`OPEN_SECONDS`.

        :param known: those that were reported, by partition
        """
        high, stable = (self.ends.high, self.ends.stable) if self.ends else ({}, {})
        stuck = {p: stable[p] for p, end in high.items() if stable.get(p, end) < end}
        now = time.monotonic()
        self._stuck = {
            p: self._stuck[p] if self.is_stuck(p, offset) else (offset, now)
            for p, offset in stuck.items()
        }
        transactions = {
            p: known[p] for p, o in stuck.items() if p in known and known[p].offset == o
        }
        return transactions, {
            p: offset
            for p, (offset, since) in self._stuck.items()
            if p not in transactions and now - since >= OPEN_SECONDS
        }

    def is_stuck(self, partition: int, offset: int) -> bool:
        """Return whether consumers can read up to this offset, and no further."""
        return self._stuck.get(partition, (None,))[0] == offset


class TurnSchedule:
    """All times are monotonic, in seconds."""

    def __init__(self, spec: TopicSpec, log: LogWatch) -> None:
        self._log = log
        self._interval = spec.tableflow.commit_interval_seconds
        self._phase = zlib.crc32(spec.name.encode()) / 1000  # It counts modulo the commit interval.
        self._backoff, self.is_woken = FIRST_BACKOFF_SECONDS, False
        """Whether the next turn is due now."""
        self.retry_at: float | None = 0.0  # When to try again; None: the last turn succeeded.
        self.committed_at = -math.inf  # When records were committed last.
        self.inspected_at = 0.0  # When the last turn ended.

    def succeed(self) -> None:
        """Note a turn that did not fail."""
        self.retry_at, self._backoff = None, FIRST_BACKOFF_SECONDS

    def postpone(self) -> None:
        """Try again after a wait that doubles each time."""
        self.retry_at = time.monotonic() + self._backoff
        self._backoff = min(self._backoff * 2, MAX_BACKOFF_SECONDS)

    def due_at(self, inspection_seconds: float, offsets: Offsets, full: int | None) -> float:
        """Return the time from which a turn is due.

        :param inspection_seconds: after which a topic without new records has a turn
        :param offsets: the first that the table lacks, by partition
        :param full: how many records are a full batch; None: not known before the first turn
        """
        if self.is_woken:
            return 0.0
        if self.retry_at is not None:
            return self.retry_at
        readable = self._log.readable(offsets)
        if full is None or readable >= full or self._log.has_changed(offsets):
            return self.inspected_at
        if not readable:
            return self.inspected_at + inspection_seconds
        return max(self._next_commit(), self.inspected_at)

    def _next_commit(self) -> float:
        """Return when records that are too few for a batch are committed: at most an interval after
        the last commit ended. Each topic has a phase of its own, to which its commits move: those
        of topics whose records arrived at the same time would otherwise be due at the same time for
        ever."""
        interval = self._interval
        if math.isinf(self.committed_at):
            return self.committed_at
        until_phase = (self._phase - self.committed_at) % interval
        is_far = until_phase >= interval / 2  # else two commits would be close to each other
        return self.committed_at + (until_phase if is_far else interval / 2)
