"""Spark's Python daemon, but one that ends when it had no worker for a while.

Spark starts a daemon for every session that computes in Python (Protobuf is decoded there), and
ends it only with itself: a server of many sessions fills the memory with them, at 50 MB each. A
daemon that is gone is started again when its session needs one.

A worker has a limit of memory: a record that needs more fails it, and not the machine.
"""

from __future__ import annotations

import os
import resource
import runpy
import signal
from types import FrameType

import psutil

LOOK_SECONDS = 20.0
LOOKS = 3
"""So often in a row there was no worker; Spark ends a worker that is idle for a minute."""
MIN_MEMORY, MAX_MEMORY = 3 * 2**30, 8 * 2**30
"""Bytes of a worker: a quarter of the machine's, in these bounds."""


class _Idle:
    def __init__(self) -> None:
        self.process = psutil.Process()
        self.looks = 0

    def look(self, _signal: int, _frame: FrameType | None) -> None:
        self.looks = 0 if self.process.children() else self.looks + 1
        if self.looks >= LOOKS:
            os._exit(0)


def limit_memory() -> None:
    """Let this process, and those that it starts, have so much memory and no more."""
    wanted = min(MAX_MEMORY, max(MIN_MEMORY, psutil.virtual_memory().total // 4))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))


def main(look_seconds: float = LOOK_SECONDS) -> None:
    """Be Spark's daemon; ends the process."""
    limit_memory()
    # Workers are forks, which do not inherit the timer.
    signal.signal(signal.SIGALRM, _Idle().look)
    signal.setitimer(signal.ITIMER_REAL, look_seconds, look_seconds)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
