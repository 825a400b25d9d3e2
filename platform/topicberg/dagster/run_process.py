"""The process that executes a run, if it was forked on this machine."""

from __future__ import annotations

from contextlib import suppress

import psutil
from dagster import DagsterRun

PROCESS = ".dagster/process"
"""Hidden tag of a run: its process and the process's start, because a pid may be used again."""
_FROZEN = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def process_of(run: DagsterRun) -> psutil.Process | None:
    """Return the process that executes a run; None if it has ended, or has not begun."""
    pid, _, began = run.tags.get(PROCESS, "").partition(":")
    with suppress(psutil.NoSuchProcess, ValueError):
        process = psutil.Process(int(pid))
        ended = process.status() == psutil.STATUS_ZOMBIE
        if process.create_time() == float(began) and not ended:
            return process
    return None


def frozen_process(run: DagsterRun) -> int | None:
    """Return the id of a run's process that is stopped (SIGSTOP); None: none of them is."""
    process = process_of(run)
    if process is None:
        return None
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            if each.status() in _FROZEN:
                return int(each.pid)
    return None
