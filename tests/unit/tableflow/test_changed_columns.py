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
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.schema import Schema as Columns
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType

from topicberg.errors import TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.tableflow.erasure.key import Key
from topicberg.tableflow.erasure.rows import KeyRows, topic_targets
from topicberg.tableflow.layout.waiting import (
    IDENTITY_COLUMNS,
    changed_identity,
    check_table,
    note_identity,
)
from topicberg.tableflow.service.ingestion import Ingestion

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


def upserts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    """Return an upsert topic with two keys."""
    topic = memory_topic(folder, monkeypatch, schema={"format": "text"}, write_mode="upsert")
    topic.endpoints.kafka_bootstrap = "broker:9092"
    topic.produce(0, b"k", b"old")
    topic.produce(0, b"other", b"x")
    return topic


def change(topic: MemoryTopic, name: str, new_name: str | None) -> None:
    """Rename a column, or drop it."""
    with table_of(topic).update_schema() as update:
        if new_name is None:
            update.delete_column(name)
        else:
            update.rename_column(name, new_name)


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("new_name", ["raw", None])
@pytest.mark.parametrize("column", ["$$raw-key", "$$partition"])
def test_step_after_an_identity_column_changed_suspends_the_topic(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    new_name: str | None,
    restarts: bool,
) -> None:
    topic = upserts(tmp_path, monkeypatch)
    ingestion = started(topic)
    change(topic, column, new_name)
    topic.produce(0, b"k", b"new")
    topic.produce(0, b"other", None)
    ingestion = started(topic) if restarts else ingestion
    ingestion.turn()
    status = ingestion.report.status
    assert status.suspended
    assert f"the column {column} of its table identifies rows, and was " in str(
        status.error_message
    )
    assert len(topic.rows()) == 2
    with pytest.raises(TableflowError, match="identifies rows"):
        check_table(table_of(topic), topic.spec)
    if new_name is not None:
        assert f"rename the column raw back to {column}" in str(status.error_message)
        change(topic, new_name, column)
        ingestion.turn()
        assert not ingestion.report.status.suspended
        assert [row["value"] for row in topic.rows()] == ["new"]


def test_step_on_a_table_without_noted_columns_notes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone removed the property."""
    topic = upserts(tmp_path, monkeypatch)
    started(topic)
    noted = table_of(topic).properties[IDENTITY_COLUMNS]
    with table_of(topic).transaction() as transaction:
        transaction.remove_properties(IDENTITY_COLUMNS)
    assert not started(topic).report.status.suspended
    assert table_of(topic).properties[IDENTITY_COLUMNS] == noted


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"id": "x"}', "[" * 100_000])
def test_unreadable_ids_are_noted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    topic = upserts(tmp_path, monkeypatch)
    started(topic)
    noted = table_of(topic).properties[IDENTITY_COLUMNS]
    with table_of(topic).transaction() as transaction:
        transaction.set_properties({IDENTITY_COLUMNS: text})
    assert not started(topic).report.status.suspended
    assert table_of(topic).properties[IDENTITY_COLUMNS] == noted


@pytest.mark.parametrize("new_name", ["customer", None])
def test_forget_of_a_key_whose_column_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_name: str | None
) -> None:
    """An append table goes on: only the rows of before would not be found."""
    topic = memory_topic(tmp_path, monkeypatch, schema={"format": "text"})
    topic.endpoints.kafka_bootstrap = "broker:9092"
    topic.produce(0, b"k", b"old")
    ingestion = started(topic)
    change(topic, "key", new_name)
    topic.produce(0, b"k", b"new")
    for _ in range(2):
        ingestion.turn()
        ingestion = started(topic)
    assert not ingestion.report.status.suspended
    assert len(topic.rows()) == 2
    fields = [field for field in table_of(topic).schema().fields if field.name == "key"]
    key = Key.parse(topic.spec.name, fields, "k")
    target = topic_targets(topic.spec, topic.config, key)[0]
    with pytest.raises(TableflowError, match="the rows of before would not be found") as refused:
        KeyRows(topic.spec, key, topic.catalog, is_raw=True).of_table(target)
    assert f"also {new_name}" in str(refused.value) or new_name is None
    by_value = KeyRows(topic.spec, Key.parse("t", fields, "k"), topic.catalog, where="key")
    assert by_value.of_table(target) is not None


def test_changed_identity_sees_fields_in_key_columns(tmp_path: Path) -> None:
    catalog = InMemoryCatalog("test", warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    inside = StructType(NestedField(3, "a", LongType()), NestedField(4, "b", LongType()))
    listed = ListType(6, StructType(NestedField(7, "c", StringType())))
    table = catalog.create_table(
        "n.t", Columns(NestedField(1, "k", inside), NestedField(2, "l", listed))
    )
    columns = ["k", "l"]
    note_identity(table, columns)
    with table.update_schema() as update:
        update.rename_column("k.a", "z").delete_column("l.c")
        update.add_column(("l", "d"), StringType())
    assert dict(changed_identity(table)) == {"k.a": "k.z", "l.element.c": None}
    assert dict(changed_identity(table, ["k"])) == {"k.a": "k.z"}
    note_identity(table, columns)
    assert len(dict(changed_identity(table, columns))) == 2, "what was noted stays"
