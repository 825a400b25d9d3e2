"""Topics whose schemas are in AWS Glue: the emulator's registry, and AWS's client for Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from aws_schema_registry import DataAndSchema, SchemaRegistryClient
from aws_schema_registry.avro import AvroSchema
from aws_schema_registry.serde import KafkaSerializer
from debezium import ENVELOPE, KEY_SCHEMAS
from glue_records import glue_record
from kafka_topics import Topic, avro
from pyiceberg.types import LongType, NestedField

from topicberg import peek
from topicberg.endpoints.schemas import schema_readers
from topicberg.errors import UnreachableError
from topicberg.settings import Settings
from topicberg.tableflow.erasure.key import Key
from topicberg.tableflow.erasure.records import matching_keys, records_of, write_tombstones
from topicberg.tableflow.layout.layout import read_layout
from topicberg.tableflow.table.reread import reread

pytestmark = pytest.mark.integration

Make = Callable[..., Topic]
FIRST = avro({"name": "id", "type": "long"})
SECOND = avro(
    {"name": "note", "type": ["null", "string"], "default": None}, {"name": "id", "type": "long"}
)
KEY = {"type": "record", "name": "K", "fields": [{"name": "k", "type": "long"}]}
WIDER_KEY = {**KEY, "fields": [*KEY["fields"], {"name": "more", "type": "int", "default": 0}]}
LOG = {"error_handling": {"mode": "LOG"}}


class Producer:
    """AWS's client for Python, which registers the schemas of what it writes."""

    def __init__(self, topic: Topic, name: str) -> None:
        self.topic, self.name = topic, name
        client = SchemaRegistryClient(topic.endpoints.boto3("glue"))
        self._serializer = KafkaSerializer(
            client, compatibility_mode="NONE", schema_naming_strategy=lambda *_: name
        )

    def record(self, schema: Any, row: Any) -> bytes:
        data = DataAndSchema(row, AvroSchema(schema))
        found: bytes = self._serializer.serialize(self.topic.spec.name, data)
        return found


def version_of(record: bytes) -> UUID:
    return UUID(bytes=record[2:18])


def packed(record: bytes) -> bytes:
    """The same record, compressed."""
    return glue_record(version_of(record), record[18:], is_compressed=True)


def glue(name: str | None = None) -> dict[str, Any]:
    return {"format": "avro", "framing": "glue", **({} if name is None else {"subject": name})}


@pytest.fixture
def make(own_project: Settings, make_topic: Make) -> Make:
    """Topics of a project of their own, with a spec file."""

    def made(**fields: Any) -> Topic:
        topic = make_topic(**fields)
        document = topic.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        path = own_project.topics_dir / f"{topic.spec.name}.yaml"
        path.write_text(yaml.safe_dump(document))
        return topic

    return made


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_table_follows_the_versions_that_records_name(make: Make, engine: str) -> None:
    topic = make(schema=glue(), tableflow={**LOG, "engine": engine})
    producer = Producer(topic, topic.spec.name)
    old = [producer.record(FIRST, {"id": number}) for number in range(200)]
    topic.send_raw([packed(one) if place % 2 else one for place, one in enumerate(old)])
    assert topic.ingest() == 200
    new = producer.record(SECOND, {"id": 200, "note": "a"})
    lost, broken = glue_record(uuid4(), b"\2"), packed(old[0])[:-2]
    topic.send_raw([new, lost, broken, old[0]], partition=0)
    topic.ingest()
    rows = topic.rows("id", "note")
    assert sorted(row["id"] for row in rows) == [0, *range(201)]
    assert [row["note"] for row in rows if row["note"]] == ["a"]
    shown = peek.newest(topic.spec.name, 4, topic.endpoints, topic.config)
    by_offset = sorted((one for one in shown if one.partition == 0), key=lambda one: one.offset)
    first, second, third, last = by_offset[-4:]
    assert (first.problem, first.schema_id) == (None, str(version_of(new)))
    assert first.value == {"id": 200, "note": "a"}
    assert "which AWS Glue Schema Registry does not have" in (second.problem or "")
    assert third.problem == "the payload of the value is only a part of zlib's data"
    assert last.value == {"id": 0}


def test_glue_that_does_not_answer_loses_nothing(make_topic: Make) -> None:
    topic = make_topic(schema=glue(), tableflow={"error_handling": {"mode": "SKIP"}})
    topic.send_raw([Producer(topic, topic.spec.name).record(FIRST, {"id": 1})])
    there = topic.endpoints
    topic.endpoints = there.model_copy(update={"aws": "http://127.0.0.1:9"})
    with pytest.raises(UnreachableError, match=r"AWS Glue Schema Registry .* does not answer"):
        topic.ingest()
    topic.endpoints = there
    assert (topic.ingest(), topic.rows("id")) == (1, [{"id": 1}])


def test_keys_of_glue_are_upserted_reread_and_forgotten(make_topic: Make) -> None:
    made = make_topic()
    name = f"{made.spec.name}-key"
    topic = make_topic(
        schema=glue(),
        key=glue(name),
        write_mode="upsert",
        topic_config={"cleanup.policy": "compact"},
    )
    values, keys = Producer(topic, topic.spec.name), Producer(topic, name)
    old = [keys.record(KEY, {"k": number}) for number in range(4)]
    wider = keys.record(WIDER_KEY, {"k": 1, "more": 0})
    rows = [values.record(FIRST, {"id": number}) for number in range(8)]
    topic.send_raw(rows[:4], key=lambda place: old[place], partition=0)
    topic.ingest()
    topic.send_raw(rows[4:6], key=lambda place: [packed(old[0]), wider][place], partition=0)
    topic.send_raw([None], key=lambda _: packed(old[3]), partition=0)
    topic.ingest()
    assert [(row["k"], row["id"]) for row in topic.rows("k", "id")] == [(0, 4), (1, 5), (2, 2)]
    assert topic.table().properties["topicberg.key-framing"] == "glue"
    assert reread(topic.spec, topic.table(), topic.endpoints, topic.config).rows == 0

    layout = read_layout(topic.spec, schema_readers(topic.endpoints, topic.config))
    wanted = Key.parse(topic.spec.name, [NestedField(1, "k", LongType(), required=False)], "1")
    matching = matching_keys(topic.spec, layout, wanted, topic.endpoints)
    found = records_of(topic.endpoints, topic.spec.name, matching)
    assert {key for key, _ in found.newest} == {old[1], wider}
    assert write_tombstones(topic.endpoints, found) == 2
    topic.ingest()
    assert [row["k"] for row in topic.rows("k")] == [0, 2]


def change(op: str, before: Any, after: Any, lsn: int) -> dict[str, Any]:
    source = {"ts_ms": lsn, "snapshot": "false", "ts_us": None, "txId": 1, "lsn": lsn}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": lsn}


def test_changes_in_glue_become_current_rows(make_topic: Make) -> None:
    made = make_topic()
    name = f"{made.spec.name}-key"
    topic = make_topic(
        schema=glue(), key=glue(name), changelog={"format": "debezium"}, write_mode="upsert"
    )
    values, keys = Producer(topic, topic.spec.name), Producer(topic, name)
    rows = [{"id": number, "v": number, "big": "b"} for number in range(3)]
    changes = [change("c", None, row, place) for place, row in enumerate(rows, start=1)]
    changes += [change("u", rows[0], {**rows[0], "v": 9}, 4), change("d", rows[1], None, 5)]
    sent = [packed(values.record(ENVELOPE, one)) for one in changes]
    of_keys = [keys.record(KEY_SCHEMAS[1], {"id": one}) for one in (0, 1, 2, 0, 1)]
    topic.send_raw(sent, key=lambda place: of_keys[place], partition=0)
    topic.ingest()
    assert [(row["id"], row["v"]) for row in topic.rows("id", "v")] == [(0, 9), (2, 2)]
