"""Processes of this machine: known by their id and start, as ids are used again, or by a mark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psutil


def running(pid: int, started: float) -> psutil.Process | None:
    """Return the process if it still runs, and never another one with its id; ``started``: in
    seconds since 1970, as psutil reports it."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # it ended, and who started it did not look
            return None
        return process if abs(process.create_time() - started) < 1 else None
    except psutil.NoSuchProcess:
        return None


def marked(variable: str) -> Iterator[tuple[psutil.Process, str]]:
    """Yield each process that has this variable in its environment, and the variable's value."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError, LookupError):
            yield process, process.environ()[variable]
