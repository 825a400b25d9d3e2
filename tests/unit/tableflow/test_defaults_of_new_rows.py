"""Columns that users add with a default: new rows have it, as no record has the column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema
from format_versions import allow_version_3, upgrade
from kafka_topics import encode
from memory_topic import MemoryTopic, memory_topic
from pyiceberg.types import StringType

from topicberg.formats.framing import wire_prefix

ITEM = {"type": "record", "name": "Item", "fields": [{"name": "id", "type": "long"}]}


def add_region(topic: MemoryTopic) -> None:
    table = upgrade(
        topic.catalog, topic.catalog.load_table(topic.spec.table_identifier(topic.config))
    )
    with table.update_schema() as update:
        update.add_column("region", StringType(), default_value="eu")


@pytest.mark.parametrize("form", ["text", "avro"])
def test_rows_of_a_column_that_no_schema_has_have_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    allow_version_3(monkeypatch)
    topic = memory_topic(tmp_path, monkeypatch, schema={"format": form})

    def produce(id: int) -> None:
        value = str(id).encode()
        if form == "avro":
            registered = Schema(json.dumps(ITEM), "AVRO")
            number = topic.registry.register_schema(topic.spec.value_subject, registered)
            parsed: Any = fastavro.parse_schema(ITEM)
            value = wire_prefix(number) + encode(parsed, {"id": id})
        topic.produce(0, None, value)

    produce(1)
    ingestor = topic.ingestor()
    assert ingestor.step().records
    add_region(topic)
    produce(2)
    assert ingestor.step().records
    assert [row["region"] for row in topic.rows()] == ["eu", "eu"]
    table = topic.catalog.load_table(topic.spec.table_identifier(topic.config))
    assert {row["region"] for row in table.scan("region = 'eu'").to_arrow().to_pylist()} == {"eu"}
