"""Upsert keys with a schema: a key is its decoded value, whatever bytes and partition it has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema
from kafka_topics import Row, Topic, avro, encode

from topicberg.formats.framing import wire_prefix
from topicberg.iceberg.maintenance import MaintenancePolicy, maintain
from topicberg.iceberg.summaries import KEY_DEFINITION, summary
from topicberg.tableflow.table.reread import reread
from topicberg.tableflow.upsert.key_hashing import KeyState
from topicberg.tableflow.upsert.keys import key_folder

pytestmark = pytest.mark.integration

COLOURS = ["red", "green"]


def key_schema(version: int) -> dict[str, Any]:
    """Versions by which equal keys have equal values, and other bytes."""
    id_: dict[str, Any] = {"name": "user", "type": "int"}
    colour = {"type": "enum", "name": "Colour", "symbols": [*COLOURS]}
    fields: list[dict[str, Any]] = [id_, {"name": "colour", "type": colour}]
    if version >= 1:
        id_["default"] = 0
    if version >= 2:
        id_["doc"] = "the user"
    if version >= 3:
        colour["symbols"] = [*COLOURS, "blue"]
    if version >= 4:
        id_["type"] = "long"
    if version >= 5:
        fields.insert(0, {"name": "region", "type": "string", "default": "eu"})
    if version >= 6:
        id_ |= {"name": "user_id", "aliases": ["user"]}
    return {"type": "record", "name": "Key", "fields": fields}


class Keyed:
    """A topic whose keys have many versions of a schema."""

    def __init__(self, topic: Topic, shared: bool) -> None:
        self.topic = topic
        field = "user" if shared else "id"
        self.value_schema = avro({"name": field, "type": "int"}, {"name": "note", "type": "string"})
        self.field = field
        self.value_prefix = wire_prefix(topic.register(self.value_schema))
        self.registry = topic.endpoints.schema_registry_client()
        self.registry.set_compatibility(topic.spec.key_subject, "NONE")
        self.keys: dict[int, tuple[bytes, Any]] = {}
        self.producer = Producer({**topic.endpoints.kafka_config(), "linger.ms": 20})

    def register(self, version: int) -> None:
        schema = key_schema(version)
        number = self.registry.register_schema(
            self.topic.spec.key_subject, Schema(json.dumps(schema), "AVRO")
        )
        self.keys[version] = wire_prefix(number), fastavro.parse_schema(schema)

    def send(self, version: int, user: int, colour: str, note: str | None) -> None:
        """To the partition that the bytes of the key are in."""
        if version not in self.keys:
            self.register(version)
        prefix, parsed = self.keys[version]
        row: Row = {"user": user, "user_id": user, "colour": colour, "region": "eu"}
        key = prefix + encode(parsed, row)
        parsed_value = fastavro.parse_schema(self.value_schema)
        body = {self.field: 1000 + user, "note": note}
        value = None if note is None else self.value_prefix + encode(parsed_value, body)
        self.producer.produce(self.topic.spec.name, value, key)

    def ingest(self) -> dict[int, str]:
        """Return the notes by user."""
        assert self.producer.flush(60) == 0
        self.topic.ingest()
        rows = self.topic.rows(self.field, "note")
        found = {row[self.field] - 1000: row["note"] for row in rows}
        assert len(found) == len(rows), "a key has two rows"
        return found


def test_a_new_version_of_the_key_is_the_same_key(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic(write_mode="upsert", key={"format": "avro", "file": "key.avsc"})
    keyed = Keyed(topic, shared=True)
    expected: dict[int, str] = {}
    for version in range(7):
        for user in (3, 4, 10 + version):
            keyed.send(version, user, "green", f"v{version}")
            expected[user] = f"v{version}"
        assert keyed.ingest() == expected, version
    folder = key_folder(topic.config.state_dir, topic.spec.name)
    keyed.send(0, 3, "green", None)  # by the oldest version
    del expected[3]
    shutil.rmtree(folder)
    assert keyed.ingest() == expected
    maintain(
        topic.spec, topic.endpoints, topic.config, MaintenancePolicy(compact_after=timedelta(0))
    )
    shutil.rmtree(folder)
    for version, user in ((2, 4), (6, 10), (0, 15)):
        keyed.send(version, user, "green", "late")
        expected[user] = "late"
    keyed.send(6, 4, "green", None)  # of one millisecond perhaps, and of another partition
    del expected[4]
    assert keyed.ingest() == expected
    state = KeyState.load(topic.table().properties)
    assert state is not None
    assert state.columns == ["region", "user_id", "colour"]
    assert state.rows_removed == 0


def test_keys_that_were_compared_by_bytes_become_one(
    make_topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary of the newest batch does not say which keys are equal."""
    topic = make_topic(write_mode="upsert", key={"format": "avro", "file": "key.avsc"})
    keyed = Keyed(topic, shared=False)
    keyed.register(0)
    keyed.send(0, 1, "red", "old")
    keyed.send(0, 2, "red", "stays")
    keyed.ingest()
    keyed.register(1)
    row = topic.rows()[0]
    assert row["user"] == 1
    table = topic.table()
    raw = keyed.keys[1][0] + bytes(row["$$raw-key"])[5:]
    newer = row | {"note": "new", "$$raw-key": raw, "$$offset": row["$$offset"] + 1_000}
    newer["$$timestamp"] += timedelta(seconds=1)
    newer["$$partition"] = (row["$$partition"] + 1) % 3
    import pyarrow as pa

    head = table.current_snapshot()
    assert head is not None
    batch = {key: text for key, text in summary(head).items() if key.startswith("topicberg.")}
    assert batch.pop(KEY_DEFINITION)
    arrow = pa.Table.from_pylist([newer], schema=table.schema().as_arrow())
    table.append(arrow, snapshot_properties=batch)
    shutil.rmtree(key_folder(topic.config.state_dir, topic.spec.name))
    keyed.send(1, 9, "red", "more")
    assert keyed.ingest() == {1: "new", 2: "stays", 9: "more"}
    state = KeyState.load(topic.table().properties)
    assert state is not None
    assert state.rows_removed == 1
    assert state.rebuilt_at_ms is not None
    assert reread(topic.spec, topic.table(), topic.endpoints, topic.config).rows == 0
