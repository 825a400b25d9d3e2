"""Every component of the stack fails in turn, in four ways, and some of them in pairs.

While two topics fill, a fault holds for 15 seconds and is lifted; nothing else is done. Then
both tables must hold every record once, in Iceberg and in Snowflake, and the engine must have no
complaint left. With TOPICBERG_TEST_DRILL_RESULTS=<file>, each drill adds a line of JSON there, of
which ``tests/drills/table.py`` makes the table in docs/contributing/drills.md.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import psutil
import pytest
from faults import FAULTS, INGESTION, note
from load import Load, paused_load

from topicberg.clients.confluent import Api
from topicberg.endpoints import Endpoints
from topicberg.settings import settings
from topicberg.tableflow.service.status import read_status
from topicberg_local import stack as local_stack

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HOLD_SECONDS = 15.0
RECOVERY_SECONDS = 300.0
COMPONENTS = (*INGESTION, "snowflake", "confluent")
PUBLISHERS = ("aws", "snowflake")
"""Nothing but the step from the Iceberg table to Snowflake asks these."""

Faults = tuple[tuple[str, str], ...]
SINGLE: list[Faults] = [
    ((component, fault),)
    for component in COMPONENTS
    for fault in FAULTS
    if (component, fault) != ("tableflow", "lying")  # nobody asks the engine
]
PAIRS: list[Faults] = [
    (("kafka", "killed"), ("s3", "stopped")),
    (("iceberg_rest", "killed"), ("spark", "killed")),
    (("tableflow", "killed"), ("iceberg_rest", "stopped")),
    (("schema_registry", "lying"), ("kafka", "killed")),
    (("s3", "full"), ("spark", "killed")),
    (("aws", "full"), ("snowflake", "killed")),
]


@dataclass
class Watch(threading.Thread):
    """What a user would see meanwhile: states of `topicberg status`, messages of the engine."""

    load: Load
    components: tuple[str, ...]
    states: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        while not self._over.wait(0.3):
            for topic in self.load.topics:
                self.note(read_status(self.load.config, topic).error_message)
            for service in local_stack.status(self.load.config):
                if service.name in self.components:
                    self.states.add(service.state)

    def note(self, message: str | None) -> None:
        if message and message not in self.messages:
            self.messages.append(message)

    def close(self) -> None:
        self._over.set()
        self.join()


def ask(component: str, load: Load) -> None:
    """One use of a component that the engine does not need."""
    if component in PUBLISHERS:
        load.to_snowflake()
    elif component == "confluent":
        endpoints = load.endpoints
        assert endpoints.confluent_api_key
        assert endpoints.confluent_api_secret
        api = Api(endpoints.confluent, endpoints.confluent_api_key, endpoints.confluent_api_secret)
        for environment in api.pages("/org/v2/environments"):
            assert environment["id"]


@pytest.fixture(scope="module")
def load(stack: Endpoints) -> Iterator[Load]:
    with paused_load(stack, "drill", rate=400) as load:
        yield load


def _name(faults: Faults) -> str:
    return "+".join(f"{component}-{fault}" for component, fault in faults)


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="limits of others: Linux alone")
@pytest.mark.parametrize("faults", [*SINGLE, *PAIRS], ids=_name)
def test_fault(load: Load, faults: Faults) -> None:
    components = tuple(component for component, _ in faults)
    watch = Watch(load, components)
    watch.start()
    load.go()
    time.sleep(2)
    asking = [threading.Thread(target=_ask, args=(name, load, watch)) for name in components]
    with ExitStack() as lifted:
        for component, fault in faults:
            lifted.enter_context(FAULTS[fault](component))
        for thread in asking:
            thread.start()
        time.sleep(HOLD_SECONDS)
    began = time.monotonic()
    while not all(service.running for service in local_stack.status(settings())):
        assert time.monotonic() - began < RECOVERY_SECONDS, local_stack.status(settings())
        time.sleep(0.5)
    load.pause()
    assert load.caught_up(RECOVERY_SECONDS)
    while any(_complains(load, topic) for topic in load.topics):
        assert time.monotonic() - began < RECOVERY_SECONDS, watch.messages
        time.sleep(0.5)
    for thread in asking:
        thread.join(RECOVERY_SECONDS)
        assert not thread.is_alive()
    seconds = time.monotonic() - began
    watch.close()
    lost, twice = load.lost_and_twice()
    _record(faults, watch, seconds, lost, twice)
    assert (lost, twice) == (0, 0)
    assert load.to_snowflake() == load.sent
    for message in watch.messages:  # whatever it was, in one line that is no stack trace
        assert len(message) < 600
        assert "\tat " not in message


def _ask(component: str, load: Load, watch: Watch) -> None:
    try:
        ask(component, load)
    except Exception as error:
        watch.note(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _complains(load: Load, topic: str) -> bool:
    status = read_status(load.config, topic)
    return bool(status.phase != "RUNNING" or status.error_message)


def _record(faults: Faults, watch: Watch, seconds: float, lost: int, twice: int) -> None:
    folder = str(settings().state_dir)
    note(
        faults=faults,
        states=sorted(watch.states - {"running"}),
        messages=[re.sub(r"\s+", " ", text.replace(folder, "…")) for text in watch.messages],
        seconds=round(seconds, 1),
        lost=lost,
        twice=twice,
    )
