"""Spark's Python daemon, which ends here if it had no worker for a while.

Spark starts a daemon for every session that computes in Python (Protobuf is decoded there), and
ends it only with itself: a server of many sessions fills the memory with them, at 50 MB each. If a
session needs a daemon that has ended, Spark starts it again.

Workers have a memory limit: a record that needs more fails its worker, not the machine.
"""

from __future__ import annotations

import os
import resource
import runpy
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

from topicberg.garbage import no_search

LOOK_SECONDS, LOOKS = 20.0, 3
"""Checks in a row without a worker; Spark ends a worker that is idle for a minute."""
MIN_MEMORY, MAX_MEMORY = 3 * 2**30, 8 * 2**30
"""Memory of a worker in bytes: a quarter of the machine's, within these bounds."""


class _Idle:
    def __init__(self) -> None:
        self.process = psutil.Process()
        self.looks = 0

    def look(self, _signal: int, _frame: FrameType | None) -> None:
        self.looks = 0 if self.process.children() else self.looks + 1
        if self.looks >= LOOKS:
            os._exit(0)


def limit_memory() -> None:
    """Limit the memory of this process, and of those that it starts."""
    limit = min(MAX_MEMORY, max(MIN_MEMORY, psutil.virtual_memory().total // 4))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or limit < most:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def preload() -> None:
    """Import what tasks need, which each worker would do otherwise: workers are forks."""
    with suppress(Exception), no_search():  # a worker reports it
        import topicberg.tableflow.decode.processes  # noqa: F401
        from topicberg.tableflow.values.compiling import wait_ready

        wait_ready()


def drop_archives() -> None:
    """Take Spark's own archives from the path: their Python modules are installed.

    Before each task, a worker lets all importers forget what they know
    (``importlib.invalidate_caches``). Those of archives read the whole directory again, in Python:
    for Spark's two archives and a jar, a sixth of the time of a task that ingests 500,000 records.
    """
    home = Path(os.environ.get("SPARK_HOME", os.devnull))
    for path in [path for path in sys.path if home in Path(path).parents and Path(path).is_file()]:
        sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)


def main(look_seconds: float = LOOK_SECONDS) -> None:
    """Run Spark's daemon; ends the process."""
    limit_memory()
    drop_archives()
    preload()
    # Workers are forks, and do not inherit the timer.
    signal.signal(signal.SIGALRM, _Idle().look)
    signal.setitimer(signal.ITIMER_REAL, look_seconds, look_seconds)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
