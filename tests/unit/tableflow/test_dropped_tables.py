"""A topic whose table someone dropped: a new one never lacks rows in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_topic import MemoryTopic, memory_topic, text_topic

from topicberg.tableflow.service import control
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.topics.discovery import FoundSchema, FoundTopic

FOUND = FoundTopic(partitions=1, value=FoundSchema(format="avro", version=1))


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    return text_topic(tmp_path, monkeypatch)


def started(topic: MemoryTopic) -> Ingestion:
    """Return the ingestion of an engine that just started, after its first turn."""
    unused: Any = None
    one = Ingestion(topic.spec, topic.endpoints, topic.config, unused)
    one.turn()
    return one


def drop(topic: MemoryTopic) -> None:
    topic.catalog.drop_table(topic.spec.table_identifier(topic.config))


def delete_records(topic: MemoryTopic, before: int) -> None:
    """Let Kafka's retention pass."""
    topic.beginning = {0: before}


def values(topic: MemoryTopic) -> list[str]:
    return sorted(row["value"] for row in topic.rows())


@pytest.mark.parametrize("restarts", [True, False])
def test_table_that_cannot_come_back_whole_suspends_its_topic(
    topic: MemoryTopic, restarts: bool
) -> None:
    one = started(topic)
    assert values(topic) == ["a", "b"]
    drop(topic)
    delete_records(topic, 1)
    topic.produce(0, None, b"c")
    one = started(topic) if restarts else one
    one.turn()
    one.turn()
    status = one.report.status
    assert status.suspended
    assert "does not exist or is empty, and topicberg did not drop it" in str(status.error_message)
    assert "before offset 1 of partition 0" in str(status.error_message)
    assert "--drop-table" in str(status.error_message)
    assert not topic.catalog.table_exists(topic.spec.table_identifier(topic.config))


def test_an_empty_table_in_its_place_is_not_filled(topic: MemoryTopic) -> None:
    started(topic)
    drop(topic)
    topic.ingestor().table()  # as Dagster's asset does
    delete_records(topic, 1)
    assert started(topic).report.status.suspended


def test_idle_topic_whose_records_are_gone_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a table without rows: no record was ever read."""
    idle = memory_topic(tmp_path, monkeypatch, schema={"format": "text"})
    for _ in range(9):
        idle.produce(0, None, b"gone")
    delete_records(idle, 9)
    for _ in range(2):
        assert started(idle).report.status.phase == "RUNNING"


def test_table_is_made_again_while_kafka_has_everything(topic: MemoryTopic) -> None:
    started(topic)
    drop(topic)
    assert started(topic).report.status.phase == "RUNNING"
    assert values(topic) == ["a", "b"]


def test_table_that_topicberg_dropped_begins_again(topic: MemoryTopic) -> None:
    one = started(topic)
    control.enable(topic.config, topic.spec.name, discovered=FOUND, command=True)
    control.disable(topic.config, topic.spec.name)
    drop(topic)
    control.table_dropped(topic.config, topic.spec.name)
    control.enable(topic.config, topic.spec.name, discovered=FOUND, command=True)
    delete_records(topic, 1)
    one.turn()  # the engine did not notice
    one.turn()
    assert one.report.status.phase == "RUNNING"
    assert values(topic) == ["b"]
    drop(topic)
    delete_records(topic, 2)
    topic.produce(0, None, b"c")
    assert started(topic).report.status.suspended, "later, by someone else"
