"""Schemas that Kafka Connect's JsonConverter writes into records."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from topicberg.errors import TableflowError
from topicberg.formats import json as json_format
from topicberg.formats.connect import with_connect_types
from topicberg.formats.json.connect import has_schema, json_schema, opening
from topicberg.formats.subjects import RegisteredSchema

TYPES = [
    ({"type": "int16"}, "int"),
    ({"type": "int64"}, "long"),
    ({"type": "float"}, "float"),
    ({"type": "double"}, "double"),
    ({"type": "boolean"}, "boolean"),
    ({"type": "bytes"}, "binary"),
    ({"type": "int32", "name": "io.debezium.time.Date"}, "date"),
    ({"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, "timestamp"),
    ({"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}, "timestamptz"),
    ({"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, "timestamptz"),
    ({"type": "string", "name": "io.debezium.time.IsoDate"}, "date"),
    ({"type": "int64", "name": "io.debezium.time.MicroTime"}, "long"),
    ({"type": "string", "name": "io.debezium.data.Json"}, "string"),
    (
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "9"},
        },
        "decimal(9, 2)",
    ),
    *(
        (
            {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": scale, "connect.decimal.precision": "3"},
            },
            expected,
        )
        for scale, expected in (("5", "decimal(5, 5)"), ("39", "string"))
    ),
    (
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
        },
        "string",
    ),
    ({"type": "array", "items": {"type": "int32"}}, "list<int>"),
    (
        {"type": "map", "keys": {"type": "string"}, "values": {"type": "boolean"}},
        "map<string, boolean>",
    ),
    ({"type": "map", "keys": {"type": "int32"}, "values": {"type": "string"}}, "string"),
]


@pytest.mark.parametrize(("schema", "expected"), TYPES)
def test_json_schema_of_connect_has_the_type(schema: dict[str, Any], expected: str) -> None:
    row = {"type": "struct", "fields": [{**schema, "field": "a"}, {"type": "string", "field": "b"}]}
    registered = with_connect_types(RegisteredSchema(1, "JSON", json_schema(row)))
    found = json_format.fields("s", registered, iter(range(1, 99)))
    assert [field.name for field in found] == ["a", "b"]
    assert str(found[0].field_type) == expected


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "any"}, {"type": "struct"}, {"type": "struct", "fields": [1]}, {"type": "array"}],
)
def test_json_schema_of_another_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(TableflowError, match="the schema of the record"):
        json_schema(schema)


def test_json_schema_of_any_depth_is_read_or_refused() -> None:
    """Reading a schema and writing it may differ by a few in the depth that they reach."""
    for depth in range(500, 1_100):
        parameters = '{"a":' * depth + "1" + "}" * depth
        text = f'{{"schema":{{"type":"int32","parameters":{parameters}}},"payload":1}}'
        found = opening(text.encode())
        if found is not None and found.schema is not None:
            with suppress(TableflowError):
                json_schema(found.schema)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"schema":{"type":"int32"},"payload":1}', b'{"schema":{"type":"int32"},"payload":'),
        (b' { "schema" : null , "payload" : {}}', b' { "schema" : null , "payload" : '),
        (b'{"schema":"public","id":1}', None),
        (b'{"schema":{},"id":1}', None),
        (b'{"before":null}', None),
        (b"", None),
        (b"\xff", None),
        (b'{"schema":' + b"[" * 100_000, None),
    ],
)
def test_opening_is_the_text_before_the_payload(raw: bytes, text: bytes | None) -> None:
    found = opening(raw)
    assert (found.text if found else None) == text
    assert has_schema(raw) or text is None


@pytest.mark.parametrize(
    ("raw", "around"),
    [
        (
            b'{"payload":{"a":"}"},"schema":{"type":"int32"}}',
            (b'{"payload":', b',"schema":{"type":"int32"}}'),
        ),
        (
            b' { "payload" : [1] , "schema" : null } ',
            (b' { "payload" : ', b' , "schema" : null } '),
        ),
        (b'{"payload":1,"payload":2,"schema":{}}', None),
        (b'{"payload":1,"schema":{},"more":2}', None),
        (b'{"payload":1,"schema":"public"}', None),
        (b'{"payload":{"schema":{}}}', None),
        (b'{"payload":{"a":1},"schema":{}', None),
        (b'{"payload":', None),
    ],
)
def test_opening_of_a_payload_before_its_schema_is_the_text_around_it(
    raw: bytes, around: tuple[bytes, bytes] | None
) -> None:
    """As TiCDC writes them: https://docs.pingcap.com/tidb/stable/ticdc-debezium."""
    found = opening(raw)
    assert (None if found is None else (found.text, found.rest)) == around


def test_opening_of_no_schema_has_none() -> None:
    assert opening(json.dumps({"schema": None, "payload": {"a": 1}}).encode()).schema is None
