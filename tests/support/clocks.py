"""Time that passes only when a test says so."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest


class Clock:
    """What ``time.time`` and ``time.monotonic`` return until the test ends."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        now: float | None = None,
        of: Iterable[str] = ("time", "monotonic"),
    ) -> None:
        self.now = time.time() if now is None else now
        for name in of:
            patch.setattr(time, name, lambda: self.now)

    @property
    def now_ms(self) -> int:
        return int(self.now * 1000)
