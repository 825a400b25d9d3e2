"""Batches in other processes, and what is left of a batch that exhausts one."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from memory_topic import MemoryTopic, memory_topic

from topicberg.errors import TableflowError, TopicbergError
from topicberg.kafka.offsets import PartitionOffset
from topicberg.kafka.records import DamagedRecordsError
from topicberg.tableflow.batch.batch_plan import Commit
from topicberg.tableflow.decode import reading
from topicberg.tableflow.decode.processes import ProcessEndedError, Processes
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.service.record_search import ATTEMPTS
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


class Failing:
    """A process that some records exhaust, or end; or that fails at everything."""

    def __init__(
        self, bad: dict[PartitionOffset, type[Exception]], *, is_broken: bool = False
    ) -> None:
        self.bad, self.failures, self.is_broken = bad, 0, is_broken

    def check(self) -> None:
        if self.is_broken:
            raise TopicbergError("the processes of the engine cannot decode records")

    def ingest(
        self, plans: Any, parts: Any, check: Callable[[], None]
    ) -> list[reading.WrittenBatch]:
        (ranges,) = parts
        for (partition, offset), error in sorted(self.bad.items()):
            start, end = ranges.get(partition, (0, 0))
            if not start <= offset < end:
                continue
            self.failures += 1
            if error is DamagedRecordsError:
                raise DamagedRecordsError("the records cannot be read", partition, offset)
            raise error("it takes too much memory")
        return reading.ingest(plans, ranges, check)


def topic_of(folder: Path, patch: pytest.MonkeyPatch, mode: str, records: int) -> MemoryTopic:
    given = {"schema": {"format": "none"}, "tableflow": {"error_handling": {"mode": mode}}}
    topic = memory_topic(folder, patch, **given)
    for number in range(records):
        topic.produce(number % 2, b"k", b"%d" % number)
    return topic


def ingest_all(ingestor: Ingestor) -> Commit:
    while (done := ingestor.step()).records:
        pass
    return done


BAD: dict[PartitionOffset, type[Exception]] = {
    (0, 0): ExhaustedError,
    (0, 31): ProcessEndedError,
    (1, 7): DamagedRecordsError,
    (1, 49): ExhaustedError,
}


def test_record_that_exhausts_a_process_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(tmp_path, monkeypatch, "SKIP", 100)
    failing = Failing(BAD)
    topic.processes = failing
    ingestor = topic.ingestor()
    done = ingest_all(ingestor)
    ingestor.close()
    found = sorted(int(row["value"]) for row in topic.rows())
    left_out = {2 * offset + partition for partition, offset in BAD}
    assert found == [number for number in range(100) if number not in left_out]
    assert done.rows_skipped == len(BAD)
    # Each part that fails is divided by 16: of 100 records, twice.
    assert failing.failures <= len(BAD) * (ATTEMPTS + 2)


@pytest.mark.parametrize("error", [ExhaustedError, ProcessEndedError])
def test_no_record_is_blamed_for_processes_that_fail_at_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    topic = topic_of(tmp_path, monkeypatch, "SKIP", 40)
    failing = Failing({(p, n): error for p in range(2) for n in range(20)}, is_broken=True)
    topic.processes = failing
    ingestor = topic.ingestor()
    for _ in range(3):
        with pytest.raises(TopicbergError, match="cannot decode records"):
            ingest_all(ingestor)
    failing.bad.clear()
    assert ingest_all(ingestor).rows_skipped == 0
    ingestor.close()
    assert len(topic.rows()) == 40


def test_process_without_memory_is_said(processes: Processes) -> None:
    processes.check()
    poor = Processes(1, 2**46)
    with pytest.raises(TopicbergError, match="cannot decode records: decoding takes more than"):
        poor.check()
    poor.close()


def test_record_that_exhausts_a_process_suspends_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(tmp_path, monkeypatch, "SUSPEND", 40)
    topic.processes = Failing({(0, 9): ExhaustedError})
    ingestor = topic.ingestor()
    expected = "partition 0, offset 9: the record cannot be decoded: it takes too much memory"
    with pytest.raises(TableflowError, match=expected) as suspended:
        ingest_all(ingestor)
    assert "tableflow skip shop.customers 0 9" in (suspended.value.hint or "")
    ingestor.close()
    assert len(topic.rows()) < 40
