"""What the sensors cost while nothing happens: CPU time of Dagster's processes, by `dagster dev`.

    python tests/benchmarks/idle.py [seconds]

needs a running stack to which nothing is produced (``TOPICBERG_STATE_DIR``). The code server is
where sensors are evaluated; the daemon asks it to. Good is: both together at most 5 % of a core.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "support"))

from dagster_dev import Dagster, dagster_dev

from topicberg.settings import settings

ALLOWED = 0.05
QUIET_SECONDS = 60
PARTS = {"api grpc": "code server", "dagster._daemon": "daemon"}


def cpu_seconds(dagster: Dagster) -> dict[str, float]:
    """Part → seconds of computing so far."""
    found = dict.fromkeys(PARTS.values(), 0.0)
    for process in dagster.process.children(recursive=True):
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        for mark, part in PARTS.items():
            if mark in command:
                found[part] += times.user + times.system
    return found


def wait_until_quiet(dagster: Dagster) -> None:
    """Until no run was under way for a while."""
    quiet_since = time.monotonic()
    while time.monotonic() < quiet_since + QUIET_SECONDS or not all(cpu_seconds(dagster).values()):
        if dagster.runs():
            quiet_since = time.monotonic()
        time.sleep(1)


def main(seconds: float) -> bool:
    with dagster_dev(settings()) as dagster:
        wait_until_quiet(dagster)
        before, began = cpu_seconds(dagster), time.monotonic()
        time.sleep(seconds)
        after, took = cpu_seconds(dagster), time.monotonic() - began
    shares = {part: (after[part] - before[part]) / took for part in after}
    shown = Table("process", "share of a core")
    for part, share in shares.items():
        shown.add_row(part, f"{share:.1%}")
    Console().print(shown)
    return sum(shares.values()) <= ALLOWED


if __name__ == "__main__":
    sys.exit(not main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0))
