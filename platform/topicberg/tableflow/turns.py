"""Turns at Spark: the topics of an engine share it, but one that it may die of has it to itself.

When Spark ends, the jobs of all topics fail, and none of them can tell whose record was the reason.
So each topic's next attempt is made while no other one runs: if Spark ends again, it is known why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PATIENCE_SECONDS = 120.0
"""A topic waits so long for the others, and then goes on beside them."""


@dataclass(eq=False)
class Turn:
    """``is_alone``: no other topic has used Spark since the turn began."""

    is_alone: bool


class Turns:
    """The turns of one engine's topics."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._changed = threading.Condition()
        self._running: set[Turn] = set()
        self._first: Turn | None = None
        """The one that has Spark to itself, or waits for that."""

    @contextmanager
    def take(self, *, alone: bool) -> Iterator[Turn]:
        """Wait for a turn."""
        turn = Turn(alone)
        deadline = time.monotonic() + self._patience
        with self._changed:
            self._changed.wait_for(lambda: self._first is None, self._patience)
            if self._first is not None:  # it takes too long
                self._first.is_alone = turn.is_alone = False
            elif alone:
                self._first = turn
                left = max(0.0, deadline - time.monotonic())
                turn.is_alone = self._changed.wait_for(lambda: not self._running, left)
            self._running.add(turn)
        try:
            yield turn
        finally:
            with self._changed:
                self._running.discard(turn)
                if self._first is turn:
                    self._first = None
                self._changed.notify_all()
