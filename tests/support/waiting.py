"""Waiting for what comes by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found | None], patience: float = 180, pause: float = 0.5
) -> Found:
    """Return the first true result, checked every ``pause`` seconds for ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {patience:.0f} s in vain"
        time.sleep(pause)
    return found
