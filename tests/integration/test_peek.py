"""``topicberg peek``: the newest records of a topic, good and malformed ones."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from kafka_topics import Topic

from topicberg.endpoints import Endpoints
from topicberg.errors import SpecError
from topicberg.formats.framing import wire_prefix
from topicberg.kafka import topics as kafka
from topicberg.peek import PeekedRecord, newest
from topicberg.settings import settings
from topicberg.topics import TopicSpec

pytestmark = pytest.mark.integration

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


PROTO = """syntax = "proto3";
message Line { string sku = 1; int64 pieces = 2; }
message Order { int64 id = 1; repeated Line lines = 2; }
"""


@pytest.fixture
def topic(stack: Endpoints) -> Iterator[Topic]:
    """A topic without a spec file."""
    name, admin = f"peek-{uuid.uuid4().hex[:8]}", stack.kafka_admin()
    admin.create_topics([NewTopic(name, 2)])[name].result(30)
    document = {"name": name, "pipeline": "shop", "schema": {"format": "avro", "file": "x.avsc"}}
    yield Topic(stack, TopicSpec.model_validate(document))
    admin.delete_topics([name])[name].result(30)
    for subject in stack.schema_registry_client().get_subjects():
        if subject.startswith(f"{name}-"):
            stack.schema_registry_client().delete_subject(subject)


def peek(topic: Topic, number: int = 10) -> list[PeekedRecord]:
    return newest(topic.spec.name, number, topic.endpoints, settings())


def registered(topic: Topic, schema: Any, kind: str, half: str = "value") -> bytes:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    registry = topic.endpoints.schema_registry_client()
    return wire_prefix(registry.register_schema(f"{topic.spec.name}-{half}", Schema(text, kind)))


def test_peek_json_shows_values_of_columns_and_wrapped_keys(topic: Topic) -> None:
    schema = {"type": "object", "properties": {"price": {"type": "number"}}}
    value = registered(topic, schema, "JSON")
    key = registered(topic, {"$schema": DRAFT_7, "type": "string"}, "JSON", "key")
    bodies = [b'{"price": 0.1}', b'{"price": 1.23456789012345678901}', b'{"price": "x"}', b"{"]
    topic.send_raw(
        [value + body for body in bodies],
        key=lambda number: key + f'"k{number}"'.encode(),
        partition=0,
        timestamp=lambda number: 1_000 + number,
    )
    good, exact, text, cut = peek(topic)
    assert (good.key, good.value) == ({"key": "k0"}, {"price": 0.1})
    assert exact.value == {"price": 1.2345678901234567}  # the column's
    assert "field price (double)" in (text.problem or "")
    assert cut.problem is not None


def test_peek_protobuf_shows_nested_messages(topic: Topic) -> None:
    prefix = registered(topic, PROTO, "PROTOBUF")
    order, line = b"\x02\x02" + b"\x08\x07" + b"\x12\x05\x0a\x01a\x10\x02", b"\x00" + b"\x0a\x01a"
    topic.send_raw(
        [prefix + line, prefix + order], partition=0, timestamp=lambda number: 1_000 + number
    )
    first, other = peek(topic)
    assert (first.value, first.problem) == ({"sku": "a", "pieces": 0}, None)
    assert "the record is a Order" in (other.problem or "")


def test_peek_without_a_schema_shows_text_and_bytes(topic: Topic) -> None:
    topic.send_raw(
        [b'{"a": 1}', b"\x1b[2J", b"\xff\x00"], partition=0, timestamp=lambda n: 1_000 + n
    )
    assert [record.value for record in peek(topic)] == ['{"a": 1}', "0x1b5b324a", "0xff00"]


def test_peek_refuses_unknown_topics_and_numbers(topic: Topic) -> None:
    with pytest.raises(kafka.NoSuchTopicError):
        newest("no-such-topic", 1, topic.endpoints, settings())
    with pytest.raises(SpecError, match="from 1 to 1,000"):
        peek(topic, 0)
    assert peek(topic) == []
