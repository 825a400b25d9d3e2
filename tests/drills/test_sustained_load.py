"""Load for long, and a drill every minute: nothing lost, no process grows, the folder is bounded.

Three minutes and 1,000 records a second for each of two topics by default; for the long drill
TOPICBERG_TEST_LOAD_MINUTES=60 and TOPICBERG_TEST_LOAD_RATE=<half of what ingest.py measures>.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from faults import FAULTS, INGESTION
from load import Load
from rich.console import Console

from topicberg.endpoints import Endpoints
from topicberg.settings import settings
from topicberg_local import stack as local_stack

MINUTES = float(os.environ.get("TOPICBERG_TEST_LOAD_MINUTES", 3))
RATE = int(os.environ.get("TOPICBERG_TEST_LOAD_RATE", 1000))
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(int(MINUTES * 60 + 1200)),
]

HOLD_SECONDS = 5.0
MEBIBYTE = 1024 * 1024
GROWTH, SLACK = 1.2, 64 * MEBIBYTE
"""A process may be so much larger in the last third than in the second; Java may fill its heap."""
ENOUGH = 5
"""Samples of a third from which on that is compared."""
KEPT = ("kafka", "s3")
"""Folders of what the topics and tables hold: they grow with the records."""
BESIDE_DATA = 1024 * MEBIBYTE
"""All other folders together: logs that rotate, temporary files, state."""


def resident() -> dict[str, int]:
    """Service → bytes of memory of its processes."""
    found: dict[str, int] = defaultdict(int)
    for service in local_stack.status(settings()):
        with suppress(psutil.Error):
            process = psutil.Process(service.pid)
            for one in (process, *process.children(recursive=True)):
                with suppress(psutil.Error):
                    found[service.name] += one.memory_info().rss
    return dict(found)


def beside_data(folder: Path) -> int:
    """Bytes in the state directory that are no records."""
    size = 0
    for parent, folders, names in os.walk(folder):  # unlike rglob, it lets folders go meanwhile
        if parent == str(folder):
            folders[:] = [name for name in folders if name not in KEPT]
        for name in names:
            with suppress(OSError):
                size += Path(parent, name).stat().st_size
    return size


def heap(folder: Path) -> int:
    """Bytes that a service of Java's may take for its objects; 0: it is another one."""
    arguments = folder / "java.args"
    found = re.search(r"-Xmx(\d+)([mg])", arguments.read_text()) if arguments.exists() else None
    return int(found[1]) * (MEBIBYTE if found[2] == "m" else 1024 * MEBIBYTE) if found else 0


def test_an_hour(stack: Endpoints) -> None:
    config, rng, console = settings(), random.Random(7), Console(width=300)
    load = Load(stack, "hour", rate=RATE)
    load.start()
    load.go()
    memory: list[dict[str, int]] = []
    sizes: list[int] = []
    begun = time.monotonic()
    until = begun + MINUTES * 60
    while time.monotonic() < until:
        component = rng.choice(INGESTION)
        with FAULTS[rng.choice(("killed", "stopped", "full"))](component):
            time.sleep(HOLD_SECONDS)
        time.sleep(60 - HOLD_SECONDS)
        memory.append(resident())
        sizes.append(beside_data(config.state_dir))
        used = ", ".join(f"{name} {size // MEBIBYTE}" for name, size in memory[-1].items())
        beside = sizes[-1] // MEBIBYTE
        console.print(f"{len(sizes)} min, {load.sent} records, {beside} beside data; MiB: {used}")
    load.pause()
    produced = time.monotonic()
    rate = 2 * load.sent / (produced - begun)
    local_stack.up(config)
    assert load.caught_up(600)
    late = time.monotonic() - produced
    console.print(f"{rate:.0f} records/s to both topics; all in the tables {late:.0f} s later")
    load.close()
    assert load.lost_and_twice() == (0, 0)
    assert max(sizes) < BESIDE_DATA
    if (third := len(memory) // 3) >= ENOUGH:
        for name in memory[-1]:
            middle, last = (
                max(sample.get(name, 0) for sample in part)
                for part in (memory[third : 2 * third], memory[2 * third :])
            )
            allowed = GROWTH * max(middle, heap(config.state_dir / name)) + SLACK
            assert last <= allowed, f"{name}: {middle} → {last} bytes"
    time.sleep(3)  # the engine has let go of both
    for topic in load.topics:
        load.table(topic).catalog.purge_table((config.cluster_id, topic))
