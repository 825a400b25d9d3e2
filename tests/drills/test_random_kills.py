"""Services of the stack are killed -9 at random while two topics fill: nothing lost, nothing twice.

Half a minute by default; TOPICBERG_TEST_KILL_MINUTES=30 for the long drill.
"""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta

import psutil
import pytest
from faults import INGESTION
from load import Load

from topicberg.endpoints import Endpoints
from topicberg.iceberg.maintenance import MaintenancePolicy, maintain_table
from topicberg.iceberg.maintenance.orphans import remove_orphans
from topicberg.settings import settings
from topicberg_local import stack as local_stack

MINUTES = float(os.environ.get("TOPICBERG_TEST_KILL_MINUTES", 0.5))
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(int(MINUTES * 60 + 900)),
]


def test_random_kills(stack: Endpoints) -> None:
    config = settings()
    load = Load(stack, "kills")
    load.start()
    load.go()
    rng = random.Random(5)
    killed: list[str] = []
    until = time.monotonic() + MINUTES * 60
    while time.monotonic() < until:
        time.sleep(rng.uniform(3, 40))  # shorter, and nothing is ever under way to be hit
        name = rng.choice(INGESTION)
        running = {s.name: s.pid for s in local_stack.status(config) if s.running}
        if pid := running.get(name):
            psutil.Process(pid).kill()
            killed.append(name)
    load.pause()
    local_stack.up(config)  # waits until everything serves again
    assert load.caught_up(600), killed
    load.close()
    assert load.lost_and_twice() == (0, 0), killed
    time.sleep(3)  # the engine has let go of both
    at_once = timedelta(0)
    for name in load.topics:
        table = load.table(name)
        policy = MaintenancePolicy(staged_age=at_once, orphan_age=at_once, daily=at_once)
        maintain_table(table, stack, policy)
        assert remove_orphans(table.refresh(), at_once) == 0
        table.catalog.purge_table(table.name())
