"""Batches in other processes, and what is left of a batch that exhausts one."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from topicberg.errors import TableflowError, TopicbergError
from topicberg.kafka.records import DamagedRecordsError
from topicberg.tableflow.decode import reading
from topicberg.tableflow.decode.processes import ProcessEndedError, Processes
from topicberg.tableflow.values.memory import ExhaustedError, limited

MEGABYTE = 1024**2


class Call:
    """Something that a process calls when it gets it."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    found = Processes(1, 512 * MEGABYTE)
    yield found
    found.close()


def ingest(processes: Processes, plan: Any, check: Callable[[], None] = lambda: None) -> None:
    processes.ingest([plan], [{}], check)


def test_process_that_ends_is_replaced(processes: Processes) -> None:
    with pytest.raises(ProcessEndedError, match=f"ended by signal {signal.SIGKILL}"):
        ingest(processes, Call(os.kill, Call(os.getpid), signal.SIGKILL))
    with pytest.raises(AttributeError, match="'int' object has no attribute 'target'"):
        ingest(processes, 7)


def test_abandoned_batch_ends_its_process(processes: Processes) -> None:
    deadline = time.monotonic() + 1

    def check() -> None:
        if time.monotonic() > deadline:
            raise TopicbergError("abandoned")

    def children() -> set[int]:
        return {one.pid for one in psutil.Process().children()}

    with pytest.raises(AttributeError):
        ingest(processes, 7)
    before = children()
    with pytest.raises(TopicbergError, match="abandoned"):
        ingest(processes, Call(time.sleep, 600), check)
    assert before - children(), "the process sleeps on"


def test_engine_with_very_many_connections_has_processes() -> None:
    """A descriptor beyond 1,023 is one that select refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    processes, held = Processes(1, 512 * MEGABYTE), [os.dup(0)]
    try:
        while held[-1] < 1100:
            held.append(os.dup(0))
        with pytest.raises(AttributeError, match="'int' object has no attribute 'target'"):
            ingest(processes, 7)
    finally:
        for descriptor in held:
            os.close(descriptor)
        processes.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_memory_has_a_limit_while_a_batch_is_decoded() -> None:
    """Of address space: nothing has to be used."""
    with pytest.raises(ExhaustedError, match="more than 512 MB of memory"), limited(512 * MEGABYTE):
        np.empty(8_000 * MEGABYTE, np.uint8)
    with limited(512 * MEGABYTE):
        np.empty(300 * MEGABYTE, np.uint8)
    np.empty(8_000 * MEGABYTE, np.uint8)


@pytest.mark.parametrize(
    "error",
    [
        TopicbergError("no", hint="say yes"),
        TableflowError("no", hint="say yes"),
        DamagedRecordsError("no", 1, 2),
        ExhaustedError("no"),
        OSError(28, "No space left on device"),
    ],
)
def test_errors_are_the_same_in_the_other_process(error: Exception) -> None:
    class Plan:
        def __getattr__(self, _: str) -> Any:
            raise error

    plan: Any = Plan()
    found = pickle.loads(pickle.dumps(reading.outcome([plan], {}, 512 * MEGABYTE)))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_process_without_memory_is_said(processes: Processes) -> None:
    processes.check()
    poor = Processes(1, 2**46)
    with pytest.raises(TopicbergError, match="cannot decode records: decoding takes more than"):
        poor.check()
    poor.close()
