"""Records whose headers name their schemas, as Confluent's serializers since 8.0 write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import fastavro
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext
from confluent_registry import Registry, running, with_registry
from header_framing import NAMES
from kafka_topics import ORDER, Topic, avro, encode
from pyiceberg.types import LongType, NestedField

from topicberg.endpoints.schemas import schema_readers
from topicberg.errors import TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.peek import PeekedRecord, newest
from topicberg.tableflow.erasure.key import Key
from topicberg.tableflow.erasure.records import matching_keys, records_of, write_tombstones
from topicberg.tableflow.layout.layout import read_layout
from topicberg.tableflow.rejected.deadletters import DeadLetters

pytestmark = pytest.mark.integration

VALUE = NAMES["value"]
Make = Callable[..., Topic]


@pytest.fixture
def registry() -> Iterator[tuple[Registry, str]]:
    held = Registry(next_ids={".": 175})
    with running(held) as url:
        yield held, url


@pytest.fixture
def make(make_topic: Make, registry: tuple[Registry, str]) -> Make:
    """Topics of a registry with GUIDs and contexts."""

    def of_registry(**fields: Any) -> Topic:
        topic = make_topic(**fields)
        topic.endpoints = with_registry(topic.endpoints, registry[1])
        return topic

    return of_registry


def client(topic: Topic) -> SchemaRegistryClient:
    return topic.endpoints.schema_registry_client()


def always(key: bytes) -> Callable[[int], bytes]:
    return lambda _: key


def registered(topic: Topic, text: Any, kind: str = "AVRO", side: str = "value") -> SchemaId:
    """Register a version; return its id and GUID."""
    text = text if isinstance(text, str) else json.dumps(text)
    subject = topic.spec.value_subject if side == "value" else topic.spec.key_subject
    registry = client(topic)
    registry.register_schema(subject, Schema(text, kind))
    found = registry.get_latest_version(subject)
    return SchemaId(kind, found.schema_id, found.guid)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_keys_and_values_of_confluents_serializers_are_rows(make: Make, kind: str) -> None:
    topic = make(
        key={"format": kind.lower(), "file": "k"},
        schema={"format": kind.lower(), "file": "v"},
        tableflow={"error_handling": {"mode": "SUSPEND"}},
    )

    def schema(*names: str) -> str:
        if kind == "AVRO":
            fields = [{"name": name, "type": ["null", "long"], "default": None} for name in names]
            return json.dumps({"type": "record", "name": "R", "fields": fields})
        properties = {name: {"type": "integer"} for name in names}
        return json.dumps({"title": "R", "type": "object", "properties": properties})

    name, serializer = topic.spec.name, AvroSerializer if kind == "AVRO" else JSONSerializer
    config = {"schema.id.serializer": header_schema_id_serializer}
    rows = []
    for number, fields in enumerate((("n",), ("n", "m"), ("n",))):
        headers: Any = [("trace", b"1")]
        parts = []
        for side, value in (
            (MessageField.KEY, {"id": number}),
            (MessageField.VALUE, dict.fromkeys(fields, number)),
        ):
            of_side: Any = serializer(
                *((client(topic), schema(*value)) if kind == "AVRO" else (schema(*value),)),
                *(() if kind == "AVRO" else (client(topic),)),
                conf=config,
            )
            parts.append(of_side(value, SerializationContext(name, side, headers)))
        assert [header for header, _ in headers] == ["trace", NAMES["key"], VALUE]
        topic.send_raw([parts[1]], key=always(parts[0]), headers=headers)
        rows.append({"id": number, "n": number, "m": number if "m" in fields else None})
    topic.ingest()
    assert topic.rows("id", "n", "m") == rows
    shown = newest_of(topic)
    assert [(one.key, one.problem) for one in shown] == [({"id": n}, None) for n in range(3)]
    assert [one.value["n"] for one in shown] == [0, 1, 2]


def newest_of(topic: Topic) -> list[PeekedRecord]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topicberg.peek.find_topic", lambda *_: topic.spec)
        return newest(topic.spec.name, 20, topic.endpoints, topic.config)


def test_header_that_cannot_be_resolved_is_the_reason_of_a_dead_letter(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"dead_{uuid4().hex[:8]}"
    topic = make(
        key={"format": "avro", "file": "k"},
        tableflow={"error_handling": {"mode": "LOG", "target": target}},
    )
    key = registered(topic, avro({"name": "k", "type": "long"}), side="key")
    version = registered(topic, ORDER)
    raw, guid = encode(fastavro.parse_schema(ORDER), {"id": 1, "note": "a"}), UUID(int=5)
    bad = [b"", b"\x07", wire_prefix(9_999), b"\x01" + guid.bytes, version.id_to_bytes() + b"\0"]
    good_key = (NAMES["key"], key.guid_to_bytes())
    for header in bad:
        topic.send_raw([raw], key=always(b"\x02"), headers=[good_key, (VALUE, header)])
    good_value = (VALUE, version.guid_to_bytes())
    for header in (b"\x07", b"\x01" + guid.bytes):
        topic.send_raw([raw], key=always(b"\x02"), headers=[(NAMES["key"], header), good_value])
    topic.send_raw([raw], key=always(b"\x02"), headers=[good_key, good_value])
    logged: list[str] = []
    monkeypatch.setattr(
        DeadLetters,
        "write",
        lambda _, table, topic_id, held, malformed: logged.extend(
            one["reason"] for one in malformed
        ),
    )
    topic.ingest()
    assert topic.rows("k", "id") == [{"k": 1, "id": 1}]
    of_value, of_key = f"the value's header {VALUE}", f"the key's header {NAMES['key']}"
    shape = "is neither 0 and a schema id of 4 bytes nor 1 and a schema GUID of 16 bytes: it is"
    missing = "which the schema registry does not have"
    assert sorted(logged) == sorted(
        [
            f"{of_value} {shape} empty",
            f"{of_value} {shape} 1 bytes that begin with 07",
            f"{of_value} names schema 9999, {missing}",
            f"{of_value} names schema GUID {guid}, {missing}",
            f"{of_value} has the bytes 00 after the schema, of type AVRO",
            f"{of_key} {shape} 1 bytes that begin with 07",
            f"{of_key} names schema GUID {guid}, {missing}",
        ]
    )
    assert sorted(one.problem for one in newest_of(topic) if one.problem) == sorted(logged)


def test_guid_and_id_of_another_subject_are_resolved_in_the_context(make: Make) -> None:
    """The same id is another schema in the default context: 2.5 would become 0.25."""
    topic = make(tableflow={"error_handling": {"mode": "SUSPEND"}})
    topic.respec(schema={"format": "avro", "file": "v", "subject": f":.eu:{topic.spec.name}-value"})
    registry = client(topic)

    def order(scale: int, *more: str) -> Schema:
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}
        others = [{"name": name, "type": "int"} for name in more]
        return Schema(json.dumps(avro({"name": "price", "type": decimal}, *others)), "AVRO")

    for number in range(175, 178):  # ids of both contexts
        registry.register_schema("other", order(2, f"x{number}"))
    registry.register_schema(":.eu:first", Schema('"int"', "AVRO"))
    held = client(topic).register_schema(topic.spec.value_subject, order(1))
    other = registry.register_schema(":.eu:other", order(1, "more"))
    guid = UUID(registry.get_latest_version(":.eu:other").guid)
    assert other == held + 1
    foreign = b"\x02\x19\x02"  # 2.5, 1
    in_default = registry.register_schema("same", order(1, "more"))
    assert in_default != other
    topic.send_raw([wire_prefix(held) + b"\x02\x19", wire_prefix(other) + foreign])
    for header in (wire_prefix(other), b"\x01" + guid.bytes):
        topic.send_raw([foreign], headers=[(VALUE, header)])
    topic.ingest()
    assert [row["price"] for row in topic.rows("price")] == [Decimal("2.5")] * 4
    topic.send_raw([wire_prefix(in_default) + foreign])
    why = f"names schema {in_default}, which the schema registry does not have in the context .eu"
    with pytest.raises(TableflowError, match=why):
        topic.ingest()


def test_tombstones_of_a_forgotten_key_name_its_schema(make: Make) -> None:
    topic = make(
        topic_config={"cleanup.policy": "compact"},
        key={"format": "avro", "file": "k"},
        write_mode="upsert",
    )
    first = registered(topic, avro({"name": "k", "type": "long"}), side="key")
    second = registered(
        topic,
        avro({"name": "k", "type": "long"}, {"name": "more", "type": "int", "default": 0}),
        side="key",
    )
    version = registered(topic, ORDER)
    raw = encode(fastavro.parse_schema(ORDER), {"id": 1, "note": "a"})
    for key, schema in [(b"\x06", first), (b"\x06\x02", second), (b"\x08", first)]:
        headers = [(NAMES["key"], schema.guid_to_bytes()), (VALUE, version.guid_to_bytes())]
        topic.send_raw([raw], key=always(key), headers=headers)
    topic.ingest()
    assert [row["k"] for row in topic.rows("k")] == [3, 3, 4]
    layout = read_layout(topic.spec, schema_readers(topic.endpoints, registry=client(topic)))
    wanted = Key.parse(topic.spec.name, [NestedField(1, "k", LongType(), required=False)], "3")
    matching = matching_keys(topic.spec, layout, wanted, topic.endpoints)
    found = records_of(topic.endpoints, topic.spec.name, matching)
    assert {key for key, _ in found.newest} == {b"\x06", b"\x06\x02"}
    assert write_tombstones(topic.endpoints, found) == 2
    topic.ingest()
    assert [row["k"] for row in topic.rows("k")] == [4]
