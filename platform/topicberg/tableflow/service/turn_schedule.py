"""When the next turn of one topic is due."""

from __future__ import annotations

import math
import time
import zlib

from topicberg.kafka.offsets import Offsets
from topicberg.tableflow.service.log_watch import LogWatch
from topicberg.topics import TopicSpec

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 15.0


class TurnSchedule:
    """All times are monotonic, in seconds."""

    def __init__(self, spec: TopicSpec, log: LogWatch) -> None:
        self._log = log
        self._interval = spec.tableflow.commit_interval_seconds
        self._phase = zlib.crc32(spec.name.encode()) / 1000
        """It counts modulo the commit interval."""
        self._backoff = FIRST_BACKOFF_SECONDS
        self.is_woken = False
        """Whether the next turn is due now."""
        self.retry_at: float | None = 0.0
        """When to try again; None: the last turn succeeded."""
        self.committed_at = -math.inf
        """When records were committed last."""
        self.inspected_at = 0.0
        """When the last turn ended."""

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
        if full is None or self._log.has_changed(offsets):
            return self.inspected_at
        if not (readable := self._log.readable(offsets)):
            return self.inspected_at + inspection_seconds
        if readable >= full:
            return self.inspected_at
        return max(self._next_commit(), self.inspected_at)

    def _next_commit(self) -> float:
        """Return when records that are too few for a batch are committed: at most an interval after
        the last commit ended.

        Each topic has a phase of its own, to which its commits move: those of topics whose records
        arrived at the same time would otherwise be due at the same time for ever.
        """
        interval = self._interval
        if math.isinf(self.committed_at):
            return self.committed_at
        until_phase = (self._phase - self.committed_at) % interval
        is_far = until_phase >= interval / 2  # else two commits would be close to each other
        return self.committed_at + (until_phase if is_far else interval / 2)
