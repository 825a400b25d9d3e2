"""What the engine writes of records in columns, by the order and the partitions of the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from confluent_kafka.schema_registry import Schema
from kafka_topics import encode
from memory_topic import MemoryTopic, memory_topic
from pyiceberg.transforms import IdentityTransform

from topicberg.formats.framing import wire_prefix

RECORD = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}


def item_topic(
    folder: Path, monkeypatch: pytest.MonkeyPatch, values: list[int], **spec: Any
) -> MemoryTopic:
    topic = memory_topic(folder, monkeypatch, schema={"format": "avro"}, **spec)
    text, parsed = json.dumps(RECORD), fastavro.parse_schema(json.loads(json.dumps(RECORD)))
    number = topic.registry.register_schema(topic.spec.value_subject, Schema(text, "AVRO"))
    for value in values:
        row = {"id": value, "name": f"n{value}"}
        topic.produce(0, None, wire_prefix(number) + encode(parsed, row))
    return topic


@pytest.mark.parametrize("partitioning", [[], ["bucket[2](name)"]])
def test_row_groups_are_in_the_order_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitioning: list[str]
) -> None:
    values = [5, -1, 9, 3, 7, 0]
    topic = item_topic(tmp_path, monkeypatch, values, table={"partitioning": partitioning})
    ingestor = topic.ingestor()
    table = ingestor.table()
    with table.update_sort_order() as order:
        order.desc("id", IdentityTransform())
    assert ingestor.step().rows == len(values)
    ingestor.close()
    assert sorted(row["id"] for row in topic.rows()) == sorted(values)
    for file in table.refresh().scan().plan_files():
        with table.io.new_input(file.file.file_path).open() as stream:
            written = pq.read_table(stream).column("id").to_pylist()
        assert written == sorted(written, reverse=True)
        assert not file.file.sort_order_id


def test_value_that_cannot_be_truncated_is_malformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = item_topic(
        tmp_path,
        monkeypatch,
        [5, -(2**63), -(2**63) + 8, 6],
        table={"partitioning": ["truncate[10](id)"]},
        tableflow={"error_handling": {"mode": "SKIP"}},
    )
    ingestor = topic.ingestor()
    done = ingestor.step()
    ingestor.close()
    assert done.rows_skipped == 1
    assert (done.records_read, done.records_skipped, done.rows) == (4, 1, 3)
    assert sorted(row["id"] for row in topic.rows()) == [-(2**63) + 8, 5, 6]
