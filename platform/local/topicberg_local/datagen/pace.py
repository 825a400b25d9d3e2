"""A steady pace for a producer."""

from __future__ import annotations

import time
from collections.abc import Callable

TICK_SECONDS = 0.01
MAX_BACKLOG_SECONDS = 0.1
BATCH = 1000
"""Records allowed at once when there is no limit."""


class Pace:
    """Allows ``rate`` records a second, evenly; 0: as many as possible.

    At most a tenth of a second of lost time (a busy machine, a full queue) is made up for: a stall
    is never followed by a burst.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._last = clock()
        self._allowance = 0.0

    def allowed(self) -> int:
        """Return how many records are due now; they count as sent."""
        if not self.rate:
            return BATCH
        now = self._clock()
        backlog = self.rate * MAX_BACKLOG_SECONDS
        self._allowance += (now - self._last) * self.rate
        self._last = now
        if self._allowance >= backlog + 1:  # a stall; below it, no fraction of a record is lost
            self._allowance = max(1, int(backlog))
        due = int(self._allowance)
        self._allowance -= due
        return due

    def pause(self) -> float:
        """Return the seconds to wait before the next call."""
        if not self.rate:
            return 0.0
        return max(TICK_SECONDS, (1 - self._allowance) / self.rate)
