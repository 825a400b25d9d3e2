"""Which keys in Kafka are a key: they are decoded as the engine decodes them, without Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.types import LongType, NestedField

from topicberg.formats.framing import wire_prefix
from topicberg.formats.subjects import RegisteredSchema, SchemaType, Subject
from topicberg.tableflow.erasure.key import Key
from topicberg.tableflow.erasure.records import KafkaKey, Matching, matching_keys
from topicberg.tableflow.layout.message_fields import KEY, VALUE, Layout, MessageField
from topicberg.topics import TopicSpec

AVRO: dict[str, Any] = {"type": "record", "name": "k", "fields": [{"name": "k", "type": "long"}]}
WIDER = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "int", "default": 0}]}
PROTO = 'syntax = "proto3"; message K {{ int64 k = 1; {} }}'
JSON: dict[str, Any] = {"type": "object", "title": "k", "properties": {"k": {"type": "integer"}}}


def keys_of(kind: SchemaType) -> tuple[str, str, list[bytes], list[bytes]]:
    """Two versions of a schema, payloads of a key with 3, and others."""
    match kind:
        case "AVRO":
            same, others = [b"\x06", b"\x06\x02"], [b"\x08", b"\x06\x02\x00", b""]
            return json.dumps(AVRO), json.dumps(WIDER), same, others
        case "JSON":
            newer = {**JSON, "properties": {**JSON["properties"], "more": {"type": "integer"}}}
            same, others = [b'{"k":3}', b'{ "k": 3, "more": 1 }'], [b'{"k":4}', b"{}", b"x"]
            return json.dumps(JSON), json.dumps(newer), same, others
        case _:
            same = [b"\0\x08\3", b"\0\x10\1\x08\2\x08\3"]
            return PROTO.format(""), PROTO.format("int32 more = 2;"), same, [b"\0\x08\4", b"\0\x08"]


def matching_of(layout: Layout, kind: SchemaType) -> Matching:
    key = {"format": kind.lower(), "file": "k"}
    spec = TopicSpec.model_validate(
        {"name": "t", "pipeline": "p", "key": key, "schema": {"format": "none"}}
    )
    wanted = Key.parse("t", [NestedField(1, "k", LongType(), required=False)], "3")
    endpoints: Any = SimpleNamespace(schema_registry_client=lambda: None)
    return matching_keys(spec, layout, wanted, endpoints)


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_matching_keys_are_those_of_the_same_value(kind: SchemaType) -> None:
    old, new, same, others = keys_of(kind)
    schemas = {
        number: RegisteredSchema(number, kind, text) for number, text in ((1, old), (2, new))
    }
    layout = Layout(
        MessageField(KEY, Subject("t-key", schemas, schemas[2])), MessageField(VALUE, None)
    )
    matching = matching_of(layout, kind)
    good = {KafkaKey(wire_prefix(1) + same[0]), KafkaKey(wire_prefix(2) + same[1])}
    bad = {KafkaKey(wire_prefix(number) + one) for number in (1, 2) for one in others}
    bad |= {KafkaKey(b"no schema"), KafkaKey(b"")}
    assert matching(good | bad) == good
    assert matching(bad) == set()


def test_matching_keys_with_a_header_have_its_schema() -> None:
    schema = RegisteredSchema(1, "AVRO", json.dumps(AVRO))
    layout = Layout(
        MessageField(KEY, Subject("t-key", {1: schema}, schema)), MessageField(VALUE, None)
    )
    header = b"\0" + (1).to_bytes(4, "big")
    same = KafkaKey(b"\x06", header)
    others = {KafkaKey(b"\x08", header), KafkaKey(b"\x06", b"?"), KafkaKey(b"\x06")}
    assert matching_of(layout, "AVRO")({same, *others}) == {same}
