"""How CPU time grows: ratios within one process, which hold on a slow and on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

_REPEATS = 5


def ratio(work: Callable[[], object], reference: Callable[[], object]) -> float:
    """How many times the CPU time of ``reference`` the ``work`` takes, each at its best. Both run
    once before, so that what is remembered is."""
    work(), reference()
    pairs = [(seconds(work), seconds(reference)) for _ in range(_REPEATS)]
    most, least = (min(column) for column in zip(*pairs, strict=True))
    return most / least


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began
