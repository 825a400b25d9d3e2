"""Processes of this machine that are known by their id and start: ids are used again."""

from __future__ import annotations

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
