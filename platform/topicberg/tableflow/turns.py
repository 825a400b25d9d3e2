"""Turns at Spark: topics share it, but one that may exhaust its memory gets it exclusively.

When Spark ends, the jobs of all topics fail, and no topic can tell whose record was the reason. So
each topic's next attempt runs while no other one does: if Spark ends again, the reason is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PATIENCE_SECONDS = 120.0
"""How long a topic waits for the others before it runs beside them."""


@dataclass(eq=False)
class Turn:
    """``is_exclusive``: no other topic has used Spark since the turn began."""

    is_exclusive: bool


class Turns:
    """The turns of one engine's topics."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._changed = threading.Condition()
        self._running: set[Turn] = set()
        self._first: Turn | None = None
        """The turn that has Spark exclusively, or waits for that."""

    @contextmanager
    def take(self, *, exclusive: bool) -> Iterator[Turn]:
        """Wait for a turn."""
        turn = Turn(exclusive)
        deadline = time.monotonic() + self._patience
        with self._changed:
            self._changed.wait_for(lambda: self._first is None, self._patience)
            if self._first is not None:  # the wait timed out
                self._first.is_exclusive = turn.is_exclusive = False
            elif exclusive:
                self._first = turn
                left = max(0.0, deadline - time.monotonic())
                turn.is_exclusive = self._changed.wait_for(lambda: not self._running, left)
            self._running.add(turn)
        try:
            yield turn
        finally:
            with self._changed:
                self._running.discard(turn)
                if self._first is turn:
                    self._first = None
                self._changed.notify_all()
