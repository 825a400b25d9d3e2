"""Records of other subjects among a topic's own, and fields that key and value share."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import requests
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from kafka_topics import ORDER, Topic, avro

from topicberg.errors import TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg import summaries
from topicberg.tableflow.layout.writers import MISSING_SECONDS
from topicberg.tableflow.service.engine import Ingestor

pytestmark = pytest.mark.integration

FOREIGN: list[tuple[Any, bytes]] = [
    ({**ORDER, "name": "OrderDeleted"}, b"\x04\x02b"),
    ("string", b"\x02b"),
    (avro({"name": "next", "type": ["null", "Order"]}), b"\x00"),
    (avro({"name": "id", "type": "string"}), b"\x02b"),
    (avro({"name": "id", "type": {"type": "map", "values": "long"}}), b"\x00"),
]
"""Schemas of another subject, and a record that each one has written."""


def register(topic: Topic, schema: Any, kind: str = "AVRO") -> bytes:
    """Register a schema in another subject; the prefix of its records."""
    answer = requests.post(
        f"{topic.endpoints.schema_registry}/subjects/other-{uuid.uuid4().hex}/versions",
        json={"schema": json.dumps(schema), "schemaType": kind},
        timeout=30,
    )
    assert answer.ok, answer.text
    return wire_prefix(answer.json()["id"])


@pytest.fixture
def foreign(make_topic: Callable[..., Topic], request: pytest.FixtureRequest) -> Topic:
    """A topic with two good records, and foreign ones between them."""
    topic = make_topic(tableflow={"error_handling": {"mode": getattr(request, "param", "SKIP")}})
    topic.send(ORDER, [{"id": 1, "note": "a"}], partition=0)
    topic.send_raw([register(topic, schema) + record for schema, record in FOREIGN], partition=0)
    topic.send_raw(
        [register(topic, {"type": "object", "title": "Order", "properties": {}}, "JSON") + b"{}"]
    )
    topic.send(ORDER, [{"id": 2, "note": "b"}], partition=0)
    return topic


def test_foreign_types_skip_counts_them(foreign: Topic) -> None:
    foreign.ingest()
    assert [row["id"] for row in foreign.rows("id")] == [1, 2]
    assert int(foreign.table().properties[summaries.ROWS_SKIPPED]) == len(FOREIGN) + 1


@pytest.mark.parametrize("foreign", ["SUSPEND"], indirect=True)
def test_foreign_type_suspend_names_schema(foreign: Topic) -> None:
    with pytest.raises(TableflowError, match=r"names schema \d+, which "):
        foreign.ingest()


@pytest.mark.alone  # the next id of a schema is its own
def test_unknown_schema_registered_later_resumes(
    make_topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    schema = {**ORDER, "namespace": f"later{uuid.uuid4().hex[:6]}"}
    topic.send(schema, [{"id": 1, "note": "a"}])
    wider = {**schema, "fields": [*ORDER["fields"], {"name": "more", "type": "int"}]}
    number = int.from_bytes(register(topic, "int")[1:], "big") + 1  # the next id, most likely
    topic.send_raw([wire_prefix(number) + b"\x04\x02b\x0e"])
    ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
    try:
        with pytest.raises(TableflowError, match=f"names schema {number}, which the schema regis"):
            ingestor.step()
        while (found := int.from_bytes(register(topic, wider)[1:], "big")) < number:
            wider["doc"] = f"{found}"
        assert found == number
        foreign = ingestor._foreign["value"]
        clock = foreign._now
        monkeypatch.setattr(foreign, "_now", lambda: clock() + MISSING_SECONDS)
        assert ingestor.step().records == 2
    finally:
        ingestor.close()
    assert [row["id"] for row in topic.rows("id")] == [1, 2]


def test_protobuf_as_confluents_client_for_python_writes_it(
    make_topic: Callable[..., Topic],
) -> None:
    """It registers descriptors in Base64, and each import as a subject of its own."""
    topic = make_topic(schema={"format": "protobuf"}, key={"format": "none"})
    unique = f"m{uuid.uuid4().hex[:8]}"
    common = FileDescriptorProto(name=f"{unique}.proto", package=unique, syntax="proto3")
    common.message_type.add(name="Money").field.add(name="cents", number=1, type=3, label=1)
    file = FileDescriptorProto(
        name=f"{unique}/order.proto",
        package="shop",
        syntax="proto3",
        dependency=[common.name, TIMESTAMP.name],
    )
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    for number, (name, kind) in enumerate(
        [("paid", f".{unique}.Money"), ("at", ".google.protobuf.Timestamp")], 2
    ):
        order.field.add(name=name, number=number, type=11, type_name=kind, label=1)
    pool = DescriptorPool()
    pool.AddSerializedFile(TIMESTAMP.serialized_pb)
    pool.Add(common)
    pool.Add(file)
    message = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    registry = topic.endpoints.schema_registry_client()
    serialize = ProtobufSerializer(message, registry, {"use.deprecated.format": False})
    record = message(id=7)
    record.paid.cents = 995
    record.at.FromSeconds(1_700_000_000)
    context = SerializationContext(topic.spec.name, MessageField.VALUE)
    topic.send_raw([serialize(record, context)])
    topic.ingest()
    (row,) = topic.rows("id", "paid", "at")
    assert (row["id"], row["paid"]) == (7, {"cents": 995})
    assert row["at"] == datetime.fromtimestamp(1_700_000_000, UTC)
