"""Spark's Python daemon, but one that ends when it had no worker for a while.

Spark starts a daemon for every session that computes in Python (Protobuf is decoded there), and
ends it only with itself: a server of many sessions fills the memory with them, at 50 MB each. A
daemon that is gone is started again when its session needs one.
"""

from __future__ import annotations

import os
import runpy
import signal
from types import FrameType

import psutil

LOOK_SECONDS = 20.0
LOOKS = 3
"""So often in a row there was no worker; Spark ends a worker that is idle for a minute."""


class _Idle:
    def __init__(self) -> None:
        self.process = psutil.Process()
        self.looks = 0

    def look(self, _signal: int, _frame: FrameType | None) -> None:
        self.looks = 0 if self.process.children() else self.looks + 1
        if self.looks >= LOOKS:
            os._exit(0)


def main(look_seconds: float = LOOK_SECONDS) -> None:
    """Be Spark's daemon; ends the process."""
    # Workers are forks, which do not inherit the timer.
    signal.signal(signal.SIGALRM, _Idle().look)
    signal.setitimer(signal.ITIMER_REAL, look_seconds, look_seconds)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
