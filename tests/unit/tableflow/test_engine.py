"""Steps of the engine before a topic's first record, without Kafka and Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_topic import MemoryTopic, memory_topic
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, NestedField

from topicberg.errors import TableflowError
from topicberg.iceberg.summaries import END_OFFSETS, TOPIC_ID
from topicberg.kafka.offsets import Offsets, dump_offsets
from topicberg.kafka.topics import TopicLog
from topicberg.tableflow.batch.batch_plan import adopt_start, first_offsets
from topicberg.tableflow.values.commit import Committed


def topic_at(
    folder: Path, patch: pytest.MonkeyPatch, position: str | int, records: int
) -> MemoryTopic:
    """Return a topic whose first three records are gone, and whose table begins somewhere."""
    tableflow = {"start_position": position}
    topic = memory_topic(folder, patch, schema={"format": "none"}, tableflow=tableflow)
    for number in range(records):
        topic.produce(0, None, b"%d" % number, time_ms=100 * number)
    topic.beginning = {0: 3}
    return topic


def test_start_at_the_latest_is_that_of_the_first_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_at(tmp_path, monkeypatch, "latest", 7)
    ingestor = topic.ingestor()
    assert ingestor.step().end_offsets == {0: 7}
    topic.produce(0, None, b"7")
    topic.produce(0, None, b"8")
    topic.beginning = {0: 8}
    with pytest.raises(TableflowError, match="the next record is 7, the first one kept is 8"):
        ingestor.step()
    topic.beginning = {0: 3}
    assert ingestor.step().rows == 2


@pytest.mark.parametrize(("position", "rows"), [("latest", 3), (400, 2)])
def test_topic_created_again_before_its_first_commit_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: str | int, rows: int
) -> None:
    topic = topic_at(tmp_path, monkeypatch, position, 4)
    ingestor = topic.ingestor()
    assert ingestor.step().end_offsets == {0: 4}
    topic.topic_id, topic.beginning = "new", {}
    del topic.partitions[0][3:]
    topic.produce(0, None, b"new", time_ms=500)
    topic.produce(0, None, b"new", time_ms=600)
    assert ingestor.step().rows == (5 if position == "latest" else rows)


@pytest.mark.parametrize("began", ["latest", "earliest"])
def test_history_begins_where_the_topics_table_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    topic = topic_at(tmp_path, monkeypatch, "latest", 7)
    ingestor = topic.ingestor()
    own = ingestor.table()
    history = topic.catalog.create_table((own.name()[-2], "history"), own.schema())

    def first(table: Table, beginning: int, end: int) -> Offsets:
        log = TopicLog("memory", {0: beginning}, {0: end})
        return first_offsets(topic.spec, topic.endpoints, table, Committed(), log)

    if began == "latest":
        assert first(own, 3, 7) == {0: 7}
    else:
        own.append(
            own.schema().as_arrow().empty_table(),
            snapshot_properties={END_OFFSETS: dump_offsets({0: 7}), TOPIC_ID: "memory"},
        )
    for _ in range(2):
        adopt_start(history, own)
    assert first(history, 3, 50) == ({0: 7} if began == "latest" else {})
    expected = {0: 9} if began == "latest" else {}
    assert first(history, 9, 50) == expected, "what Kafka still has"


def test_step_beside_another_engine_that_adds_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_at(tmp_path, monkeypatch, "earliest", 0)
    partition = NestedField(1, "$$partition", IntegerType(), required=False)
    identifier = topic.spec.table_identifier(topic.config)
    topic.catalog.create_namespace_if_not_exists(identifier[0])
    topic.catalog.create_table(identifier, Schema(partition))
    two = topic.ingestor()
    one = topic.interrupted(two.table)
    assert one.step().records == 0
    assert "value" in one.table().schema().column_names
