"""Batches with records that exhaust a process: which rows the table has afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_topics import encode
from memory_topic import MemoryTopic, memory_topic

from topicberg.errors import TopicbergError
from topicberg.formats.framing import wire_prefix
from topicberg.kafka.offsets import Place, Ranges
from topicberg.tableflow import engine, reading
from topicberg.tableflow.isolation import MOST_BLAMED
from topicberg.tableflow.memory import ExhaustedError
from topicberg.tableflow.plan import Plan
from topicberg.tableflow.processes import ProcessEndedError

KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
VALUE = {"type": "record", "name": "Item", "fields": [{"name": "name", "type": "string"}]}

Change = tuple[int, int, bool]
"""Partition, key, and whether it is a tombstone."""


class Exhausted:
    """A process that some records exhaust, alone or by their number."""

    def __init__(self, bad: dict[Place, type[Exception]], most: int = 10**9) -> None:
        self.bad, self.most = bad, most

    def check(self) -> None: ...

    def ingest(self, plan: Plan, ranges: Ranges, check: Callable[[], None]) -> reading.Written:
        for (partition, offset), error in sorted(self.bad.items()):
            start, end = ranges.get(partition, (0, 0))
            if start <= offset < end:
                raise error("it takes too much memory")
        if sum(end - start for start, end in ranges.values()) > self.most:
            raise ExhaustedError("they take too much memory")
        return reading.ingest(plan, ranges, check)


def item_topic(folder: Path, patch: pytest.MonkeyPatch, changes: list[Change]) -> MemoryTopic:
    """Return a topic whose records are in the order of time, each in its partition."""
    topic = memory_topic(
        folder,
        patch,
        schema={"format": "avro"},
        key={"format": "avro"},
        write_mode="upsert",
        tableflow={"error_handling": {"mode": "SKIP"}},
    )
    parsed = [fastavro.parse_schema(json.loads(json.dumps(schema))) for schema in (KEY, VALUE)]
    subjects = f"{topic.spec.name}-key", topic.spec.value_subject
    ids = [
        topic.registry.register_schema(subject, Schema(json.dumps(schema), "AVRO"))
        for subject, schema in zip(subjects, (KEY, VALUE), strict=True)
    ]
    for partition in range(3):
        topic.partitions[partition] = []
    start_ms = int(time.time() * 1000) - len(changes)
    for number, (partition, key, is_tombstone) in enumerate(changes):
        value = wire_prefix(ids[1]) + encode(parsed[1], {"name": f"n{number}"})
        own = wire_prefix(ids[0]) + encode(parsed[0], {"id": key})
        given = None if is_tombstone else value
        topic.produce(partition, own, given, time_ms=start_ms + number)
    return topic


def newest(changes: list[Change], left_out: set[Place]) -> dict[int, str]:
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
        topic = item_topic(folder, patch, changes)
        patch.setattr(engine, "shared", lambda *_: process)
        patch.setitem(engine.MAX_RECORDS, "upsert", most)
        ingestor = topic.ingestor()
        for _ in range(1000):
            if not (done := ingestor.step()).backlog:
                break
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


@settings(max_examples=25, deadline=None)
@given(changes_of_keys, bad_places, st.sampled_from([3, 20, 10**6]), st.sampled_from([2, 7, 10**9]))
def test_newest_record_of_a_key_wins_beside_records_that_exhaust_a_process(
    changes: list[Change], bad: dict[Place, type[Exception]], most: int, fitting: int
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


def test_more_failing_records_than_one_search_finds(tmp_path: Path) -> None:
    changes = [(0, number, False) for number in range(MOST_BLAMED + 30)]
    bad = {(0, number): ExhaustedError for number in range(5, MOST_BLAMED + 20)}
    found, skipped = ingested(tmp_path, changes, Exhausted({**bad}))
    assert sorted(found) == [number for number in range(len(changes)) if (0, number) not in bad]
    assert skipped == len(bad)


def test_batch_that_cannot_be_read_at_any_size_is_an_error(tmp_path: Path) -> None:
    class Broken(Exhausted):
        def check(self) -> None:
            raise TopicbergError("the processes of the engine cannot decode records")

    with pytest.raises(TopicbergError, match="cannot decode records"):
        ingested(tmp_path, [(0, 1, False)] * 5, Broken({}, 0))
