"""What the polls see of one topic's log, compared with what its table holds."""

from __future__ import annotations

import time

from topicberg.kafka.ends import Ends
from topicberg.kafka.offsets import Offsets
from topicberg.tableflow.service.status import OpenTransaction

OPEN_SECONDS = 10.0
"""A transaction that has been open for less time is not reported."""


class LogWatch:
    """In its methods, ``offsets`` are the first that the table lacks, by partition.

    What changes it is called with the lock of the topic's :class:`.StatusReport`; all else may be
    called without.
    """

    def __init__(self) -> None:
        self.ends: Ends | None = None
        """The newest ends of the log; None: not known yet."""
        self._exhausted: Ends | None = None
        """The ends at which a turn found nothing to read."""
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
        ends = self.ends
        if ends is None or ends == self._exhausted:
            return 0
        return sum(max(0, end - offsets.get(p, 0)) for p, end in ends.stable.items())

    def has_changed(self, offsets: Offsets) -> bool:
        """Return whether the log is not the one that the table holds: a turn finds what it is."""
        ends = self.ends
        if ends is None or ends == self._exhausted:
            return False
        if self._topic_id is not None and ends.topic_id != self._topic_id:
            return True
        return any(ends.high.get(p, -1) < offset for p, offset in offsets.items())

    def lag(self, offsets: Offsets) -> Offsets:
        """Return how many offsets of each partition the table lacks, readable or not."""
        high = self.ends.high if self.ends else {}
        return {p: max(0, end - offsets.get(p, 0)) for p, end in high.items()}

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
        new = {
            p: offset
            for p, (offset, since) in self._stuck.items()
            if p not in transactions and now - since >= OPEN_SECONDS
        }
        return transactions, new

    def is_stuck(self, partition: int, offset: int) -> bool:
        """Return whether consumers can read up to this offset, and no further."""
        return self._stuck.get(partition, (None,))[0] == offset
