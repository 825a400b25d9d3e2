"""Batches with records that exhaust a process: which rows the table has afterwards."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import numpy as np
import psutil
import pytest
from confluent_kafka.schema_registry import Schema
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka_topics import encode
from memory_topic import MemoryTopic, mock_registry, serve

from topicberg.errors import TableflowError, TopicbergError
from topicberg.formats.framing import wire_prefix
from topicberg.kafka.offsets import PartitionOffset, Ranges
from topicberg.kafka.records import DamagedRecordsError
from topicberg.tableflow.batch import sizing
from topicberg.tableflow.decode import processes as decoding
from topicberg.tableflow.decode import reading
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.decode.processes import ProcessEndedError, Processes
from topicberg.tableflow.service.record_search import MOST_BLAMED
from topicberg.tableflow.values import skips
from topicberg.tableflow.values.memory import ExhaustedError, limited
from topicberg.topics import TopicSpec

KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
VALUE = {"type": "record", "name": "Item", "fields": [{"name": "name", "type": "string"}]}

Change = tuple[int, int, bool]
"""Partition, key, and whether it is a tombstone."""


class Exhausted:
    """A process that some records exhaust, alone or by their number."""

    def __init__(self, bad: dict[PartitionOffset, type[Exception]], most: int = 10**9) -> None:
        self.bad, self.most, self.failures = bad, most, 0

    def check(self) -> None: ...

    def ingest(
        self, plans: Sequence[ReadPlan], parts: Sequence[Ranges], check: Callable[[], None]
    ) -> list[reading.WrittenBatch]:
        (ranges,) = parts
        for (partition, offset), error in sorted(self.bad.items()):
            start, end = ranges.get(partition, (0, 0))
            if start <= offset < end:
                self.failures += 1
                raise error("it takes too much memory")
        if sum(end - start for start, end in ranges.values()) > self.most:
            raise ExhaustedError("they take too much memory")
        return reading.ingest(plans, ranges, check)


class ItemTopic(MemoryTopic):
    """Items by their id."""

    def __init__(self, spec: TopicSpec, folder: Path, registry: Any) -> None:
        super().__init__(spec, folder, registry)
        schemas = (f"{self.spec.name}-key", KEY), (self.spec.value_subject, VALUE)
        self.encoders = [
            partial(_encoded, self.registry.register_schema(subject, Schema(text, "AVRO")), parsed)
            for subject, schema in schemas
            for text, parsed in [(json.dumps(schema), fastavro.parse_schema({**schema}))]
        ]
        self.partitions |= {partition: [] for partition in range(3)}
        self.added = 0

    def add(self, partition: int, key: int, *, is_tombstone: bool, time_ms: int) -> None:
        encode_key, encode_value = self.encoders
        value = None if is_tombstone else encode_value({"name": f"n{self.added}"})
        self.produce(partition, encode_key({"id": key}), value, time_ms=time_ms)
        self.added += 1


def _encoded(number: int, parsed: Any, row: dict[str, Any]) -> bytes:
    return wire_prefix(number) + encode(parsed, row)


def item_topic(
    folder: Path, patch: pytest.MonkeyPatch, changes: list[Change], most: int = 10**6
) -> ItemTopic:
    """Return a topic whose records are in the order of time, each in its partition.

    :param most: the most records of a batch
    """
    given = {
        "name": "shop.items",
        "pipeline": "shop",
        "external": True,
        "schema": {"format": "avro"},
        "key": {"format": "avro"},
        "write_mode": "upsert",
        "tableflow": {"error_handling": {"mode": "SKIP"}},
    }
    topic = ItemTopic(TopicSpec.model_validate(given), folder, mock_registry(folder))
    serve(topic, patch)
    patch.setitem(sizing.MAX_RECORDS, "upsert", most)
    start_ms = int(time.time() * 1000) - len(changes)
    for number, (partition, key, is_tombstone) in enumerate(changes):
        topic.add(partition, key, is_tombstone=is_tombstone, time_ms=start_ms + number)
    return topic


def newest(changes: list[Change], left_out: set[PartitionOffset]) -> dict[int, str]:
    """Return key → name of the rows that a table without these records has."""
    found: dict[int, str] = {}
    ends: dict[int, int] = {}
    for number, (partition, key, is_tombstone) in enumerate(changes):
        offset = ends[partition] = ends.get(partition, -1) + 1
        if (partition, offset) in left_out:
            continue
        if is_tombstone:
            found.pop(key, None)
        else:
            found[key] = f"n{number}"
    return found


def ingested(
    folder: Path, changes: list[Change], process: Any, most: int = 10**6
) -> tuple[dict[int, str], int]:
    """Return the rows of a topic's table, and how many records were left out."""
    with pytest.MonkeyPatch.context() as patch:
        topic = item_topic(folder, patch, changes, most)
        topic.processes = process
        ingestor = topic.ingestor()
        for _ in range(1000):
            try:
                if not (done := ingestor.step()).backlog:
                    break
            except TopicbergError as error:  # others have their turn, then the search continues
                if "engine continues" not in (error.hint or ""):
                    raise
        ingestor.close()
        rows = topic.rows()
    assert len(rows) == len({row["id"] for row in rows})
    return {row["id"]: row["name"] for row in rows}, done.rows_skipped


changes_of_keys = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.booleans()), min_size=1, max_size=60
)
bad_places = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 25)),
    st.sampled_from([ExhaustedError, ProcessEndedError]),
    max_size=4,
)


@settings(max_examples=10)
@example([(0, 1, False), (1, 1, True), (1, 2, False), (1, 3, False)], {}, 10**6, 2)
@example([(0, 1, False), (1, 1, True), (1, 2, False), (1, 3, False)], {}, 3, 10**9)
@given(changes_of_keys, bad_places, st.sampled_from([3, 20, 10**6]), st.sampled_from([2, 7, 10**9]))
def test_newest_record_of_a_key_wins_beside_records_that_exhaust_a_process(
    changes: list[Change], bad: dict[PartitionOffset, type[Exception]], most: int, fitting: int
) -> None:
    with TemporaryDirectory() as folder:
        found, skipped = ingested(Path(folder), changes, Exhausted(bad, fitting), most)
    sizes = {p: sum(change[0] == p for change in changes) for p in range(3)}
    left_out = {(p, offset) for p, offset in bad if offset < sizes[p]}
    assert found == newest(changes, left_out)
    assert skipped == len(left_out)


def test_tombstone_waits_for_the_older_rows_of_other_partitions(tmp_path: Path) -> None:
    changes = [(0, 3, False), (1, 1, False), (1, 9, False), (0, 1, True), (1, 2, False)]
    found, skipped = ingested(tmp_path, changes, Exhausted({(1, 1): ExhaustedError}))
    assert found == {2: "n4", 3: "n0"}
    assert skipped == 1


def test_record_that_is_known_to_fail_is_not_read_again(tmp_path: Path) -> None:
    """Also if the limit of a batch rounds its partition down, and it is the oldest."""
    changes = [(0, 1, False), (1, 2, False), (1, 3, False), (1, 4, False)]
    process = Exhausted({(0, 0): ExhaustedError})
    with pytest.MonkeyPatch.context() as patch:
        topic = item_topic(tmp_path, patch, changes, 3)
        topic.processes = process
        ingestor = topic.ingestor()
        skips.note_failing(ingestor.table(), 0, (0, 0), "it takes too much memory")
        while (done := ingestor.step()).backlog:
            pass
        ingestor.close()
        found = {row["id"]: row["name"] for row in topic.rows()}
    assert found == {2: "n1", 3: "n2", 4: "n3"}
    assert done.rows_skipped == 1
    assert process.failures == 0


def test_equal_times_are_read_by_partition(tmp_path: Path) -> None:
    """A batch that ends within them would else read a later partition before an earlier one."""
    with pytest.MonkeyPatch.context() as patch:
        topic = item_topic(tmp_path, patch, [], 2)
        for number in range(12):
            topic.add(number % 3, number % 2, is_tombstone=number == 11, time_ms=1_790_000_000_000)
        ingestor = topic.ingestor()
        while ingestor.step().backlog:
            pass
        ingestor.close()
        found = {row["id"]: row["name"] for row in topic.rows()}
    assert found == {0: "n8"}  # the last record of id 1 is the tombstone of the last partition


def test_no_record_is_blamed_if_all_fail(tmp_path: Path) -> None:
    """Though a process could take the memory that is checked."""
    with pytest.raises(TopicbergError, match="can decode none of its records: tried 6"):
        ingested(tmp_path, [(0, 1, False)] * 12, Exhausted({}, 0))


def test_records_that_fail_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ingested(tmp_path, [(0, 1, False), (0, 2, False)], Exhausted({(0, 1): ExhaustedError}))
    expected = "partition 0, offset 1: the record fails by itself: it takes too much memory"
    assert [line for line in caplog.messages if expected in line]


def test_more_failing_records_than_one_search_finds(tmp_path: Path) -> None:
    changes = [(0, number, False) for number in range(5 * MOST_BLAMED)]
    bad = {(0, number): ExhaustedError for number in range(5, 4 * MOST_BLAMED + 3)}
    found, skipped = ingested(tmp_path, changes, Exhausted({**bad}))
    assert sorted(found) == [number for number in range(len(changes)) if (0, number) not in bad]
    assert skipped == len(bad)


def test_batch_that_cannot_be_read_at_any_size_is_an_error(tmp_path: Path) -> None:
    class Broken(Exhausted):
        def check(self) -> None:
            raise TopicbergError("the processes of the engine cannot decode records")

    with pytest.raises(TopicbergError, match="cannot decode records"):
        ingested(tmp_path, [(0, 1, False)] * 5, Broken({}, 0))


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


@pytest.mark.parametrize("size", [1, 4 * MEGABYTE], ids=["waits", "sends"])
def test_process_that_a_signal_stops_is_replaced(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """It is no sign of a bad record: none of the batch is searched for."""
    with pytest.raises(AttributeError):
        ingest(processes, 7)
    monkeypatch.setattr(decoding, "STILL_SECONDS", 1.0)
    children = psutil.Process().children()
    before = [one for one in children if "decoding_process" in " ".join(one.cmdline())]
    for one in before:
        one.suspend()
    with pytest.raises(TopicbergError, match="that decodes the records stood still") as failed:
        ingest(processes, b"7" * size)
    assert not isinstance(failed.value, ExhaustedError)
    assert not all(one.is_running() for one in before)
    monkeypatch.undo()
    with pytest.raises(AttributeError, match="'int' object has no attribute 'target'"):
        ingest(processes, 7)


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
