"""Processes of this machine: those that run, known by id and start, and what this one keeps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


def running(pid: int, started: float) -> psutil.Process | None:
    """Return the process if it still runs, and never another one with its id.

    Ids are used again.

    :param started: in seconds since 1970, as psutil reports it
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # it ended, and who started it did not look
            return None
        return process if abs(process.create_time() - started) < 1 else None
    except psutil.NoSuchProcess:
        return None


@contextmanager
def lasting() -> Iterator[None]:
    """Import or make what this process keeps, and never look for garbage in it.

    Looking for it is a fifth of the time of importing, again so much at the end of the process, and
    makes forks copy what they only read.

    Source: Python, ``gc.freeze``.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        gc.freeze()
