"""Columns of a topic's table that another user drops or renames while its engine runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema
from kafka_topics import encode
from memory_topic import MemoryTopic, memory_topic
from pyiceberg.table import Table

from topicberg.formats.framing import wire_prefix
from topicberg.tableflow.ingestion import Ingestion

ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}


def started(topic: MemoryTopic) -> Ingestion:
    """Return the ingestion of an engine that just started, after its first turn."""
    unused: Any = None
    ingestion = Ingestion(topic.spec, topic.endpoints, topic.config, unused)
    ingestion.turn()
    return ingestion


def table_of(topic: MemoryTopic) -> Table:
    return topic.catalog.load_table(topic.spec.table_identifier(topic.config))


def test_step_after_a_column_was_dropped_adds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = memory_topic(tmp_path, monkeypatch, schema={"format": "avro"})
    topic.endpoints.kafka_bootstrap = "broker:9092"
    registered = Schema(json.dumps(ITEM), "AVRO")
    number = topic.registry.register_schema(topic.spec.value_subject, registered)
    parsed = fastavro.parse_schema(ITEM)

    def produce(id: int) -> None:
        value = encode(parsed, {"id": id, "name": f"n{id}"})
        topic.produce(0, None, wire_prefix(number) + value)

    produce(1)
    ingestion = started(topic)
    with table_of(topic).update_schema() as update:
        update.delete_column("name")
    for id in (2, 3):
        produce(id)
        ingestion.turn()
    names = {row["id"]: row["name"] for row in topic.rows()}
    assert ingestion.report.status.error_message is None
    assert names == {1: None, 2: "n2", 3: "n3"}
