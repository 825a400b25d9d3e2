"""What the comment of a column says about its values."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicberg.errors import TableflowError
from topicberg.formats.connect import with_connect_types
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.dispatch import format_of
from topicberg.formats.meanings import (
    JSON_TEXT,
    MICROS,
    MILLIS,
    NANOS,
    NULLS,
    Meaning,
    meaning_of,
    parts_of,
)
from topicberg.formats.meanings import with_meaning as commented
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import RegisteredSchema, SchemaType

UNITS = st.sampled_from([None, MILLIS, MICROS, NANOS, JSON_TEXT])
MILLIS_AVRO = {"type": "int", "logicalType": "time-millis"}
MICROS_AVRO = {"type": "long", "logicalType": "time-micros"}


def avro(name: str, kind: str) -> dict[str, str]:
    return {"type": kind, "connect.name": f"io.debezium.time.{name}"}


def titled(name: str, kind: str = "integer", **more: str) -> dict[str, str]:
    return {"type": kind, "title": f"io.debezium.time.{name}", **more}


def registered(number: int, kind: SchemaType, **fields: Any) -> RegisteredSchema:
    if kind == "AVRO":
        made = [{"name": name, "type": one} for name, one in fields.items()]
        text = json.dumps({"type": "record", "name": "R", "fields": made})
    else:
        text = json.dumps({"type": "object", "properties": fields})
    return RegisteredSchema(number, kind, text)


def comments(schema: RegisteredSchema) -> dict[str, str | None]:
    fields = format_of(schema).fields("s", schema, itertools.count(1))
    return {field.name: field.doc for field in fields}


@given(st.none() | st.text(), UNITS, UNITS)
def test_meaning_of_a_comment_is_the_one_that_it_was_given(
    doc: str | None, values: str | None, keys: str | None
) -> None:
    assert meaning_of(commented(doc, Meaning(values, keys))) == Meaning(values, keys)


@pytest.mark.parametrize("doc", [None, "", f"the {MILLIS}", f"{MILLIS}.", f"{JSON_TEXT}s"])
def test_meaning_of_a_description_is_none(doc: str | None) -> None:
    assert meaning_of(doc) == Meaning()


@pytest.mark.parametrize("doc", [MILLIS, f"start; {NANOS}", f"keys: {MICROS}", JSON_TEXT])
@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_description_that_ends_as_a_meaning_is_none(kind: SchemaType, doc: str) -> None:
    assert parts_of(commented(doc, Meaning())) == (f"{doc}.", Meaning())
    assert parts_of(commented(doc, Meaning(MICROS))) == (f"{doc}.", Meaning(MICROS))
    field = {"type": "string", "description": doc}
    if kind == "AVRO":
        text = {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": "long", "doc": doc}],
        }
        schema = RegisteredSchema(1, kind, json.dumps(text))
    else:
        schema = registered(1, kind, a=field)
    assert comments(schema) == {"a": f"{doc}."}


@pytest.mark.parametrize("has_connect_types", [False, True])
@pytest.mark.parametrize(
    ("kind", "field", "unit"),
    [
        ("AVRO", MILLIS_AVRO, MILLIS),
        ("AVRO", ["null", MICROS_AVRO], MICROS),
        ("AVRO", {"type": "array", "items": ["null", MILLIS_AVRO]}, MILLIS),
        ("AVRO", {"type": "map", "values": {"type": "array", "items": MICROS_AVRO}}, MICROS),
        ("AVRO", avro("Time", "int"), MILLIS),
        ("AVRO", avro("MicroTime", "long"), MICROS),
        ("AVRO", avro("NanoTime", "long"), NANOS),
        ("AVRO", {"type": "array", "items": avro("NanoTime", "long")}, NANOS),
        ("AVRO", ["string", MILLIS_AVRO], None),  # it is on the union's member
        ("AVRO", "long", None),
        ("JSON", {"type": "integer", "title": "org.apache.kafka.connect.data.Time"}, MILLIS),
        ("JSON", titled("Time", **{"connect.type": "int32"}), MILLIS),
        ("JSON", titled("MicroTime"), MICROS),
        ("JSON", titled("NanoTime"), NANOS),
        ("JSON", {"oneOf": [{"type": "null"}, titled("NanoTime")]}, NANOS),
        ("JSON", {"type": "array", "items": titled("MicroTime")}, MICROS),
        ("JSON", {"type": "object", "additionalProperties": titled("NanoTime")}, NANOS),
        ("JSON", titled("MicroTime", "string"), None),
        ("JSON", {}, JSON_TEXT),
        ("JSON", {"enum": ["a", 1]}, JSON_TEXT),
        ("JSON", {"enum": ["a", "b"]}, None),
        ("JSON", {"type": "array"}, JSON_TEXT),
        ("JSON", {"type": "array", "items": {}}, JSON_TEXT),
        ("JSON", {"type": "null"}, NULLS),
        ("JSON", {"type": "string"}, None),
    ],
)
def test_comment_of_a_column_has_its_unit(
    kind: SchemaType, field: Any, unit: str | None, has_connect_types: bool
) -> None:
    schema = registered(1, kind, a=field)
    schema = with_connect_types(schema) if has_connect_types else schema
    assert comments(schema) == {"a": unit}


def test_comment_of_a_map_has_the_units_of_keys_and_values() -> None:
    entry = {
        "type": "object",
        "properties": {"key": titled("NanoTime"), "value": titled("MicroTime")},
    }
    schema = registered(
        1, "JSON", a={"type": "array", "connect.type": "map", "items": entry, "description": "d"}
    )
    assert comments(schema) == {"a": f"d; keys: {NANOS}; {MICROS}"}


def test_comment_of_a_text_of_iso_time_has_its_unit_with_connect_types() -> None:
    schema = registered(1, "JSON", a=titled("IsoTime", "string"))
    assert comments(schema) == {"a": None}
    assert comments(with_connect_types(schema)) == {"a": MICROS}


def row(writer: RegisteredSchema, latest: RegisteredSchema, payload: bytes) -> dict[str, Any]:
    fields = format_of(latest).fields("s", latest, itertools.count(1))
    return format_of(writer).record_decoder(ResolvedSchema(writer, latest, fields))(payload)


@pytest.mark.parametrize(
    ("older", "newest"),
    [
        (titled("MicroTime"), titled("NanoTime")),
        (titled("Time", **{"connect.type": "int32"}), titled("MicroTime")),
        (titled("Time", **{"connect.type": "int32"}), titled("IsoTime", "string")),
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_json_record_with_another_unit_than_its_column_is_malformed(
    older: Any, newest: Any, depth: int
) -> None:
    value: Any = 5
    for _ in range(depth):
        older, newest = {"type": "array", "items": older}, {"type": "array", "items": newest}
        value = [value]
    v1, v2 = registered(1, "JSON", a=older), registered(2, "JSON", a=newest)
    v1, v2 = with_connect_types(v1), with_connect_types(v2)
    payload = json.dumps({"a": value}).encode()
    assert row(v1, v1, payload) == {"a": value}
    with pytest.raises(TableflowError, match="since midnight, its column in"):
        row(v1, v2, payload)


@pytest.mark.parametrize(
    "newest", [avro("NanoTime", "long"), MICROS_AVRO, avro("MicroTime", "long")]
)
@pytest.mark.parametrize("is_list", [False, True])
def test_avro_record_with_another_unit_than_its_column_is_malformed(
    newest: Any, is_list: bool
) -> None:
    older: Any = MILLIS_AVRO
    if is_list:
        older, newest = {"type": "array", "items": older}, {"type": "array", "items": newest}
    v1, v2 = registered(1, "AVRO", a=older), registered(2, "AVRO", a=newest)
    v1, v2 = with_connect_types(v1), with_connect_types(v2)
    payload = b"\x02\x0a\x00" if is_list else b"\x0a"
    assert row(v1, v1, payload) == {"a": [5] if is_list else 5}
    with pytest.raises(MalformedError, match="does not fit"):
        row(v1, v2, payload)


def test_avro_times_of_one_unit_share_a_column() -> None:
    v1 = with_connect_types(registered(1, "AVRO", a=MICROS_AVRO))
    v2 = with_connect_types(registered(2, "AVRO", a=avro("IsoTime", "string")))
    assert row(v1, v2, b"\x0a") == {"a": 5}


@pytest.mark.parametrize("wider", [{}, {"enum": ["a", "b", 1]}, {"type": ["object", "string"]}])
def test_text_of_an_older_version_is_json_text_in_a_column_of_json_text(wider: Any) -> None:
    v1, v2 = registered(1, "JSON", a={"type": "string"}), registered(2, "JSON", a=wider)
    if comments(v2) != {"a": JSON_TEXT}:  # a union: its members are columns
        assert row(v1, v2, b'{"a":"b"}')["a"]["connect_union_field_1"] == "b"
        return
    for text in ("b", 'say "hi"', "ä\n", ""):
        payload = json.dumps({"a": text}).encode()
        assert row(v1, v2, payload) == row(v2, v2, payload)
    with pytest.raises(MalformedError, match="a string expected"):
        row(v1, v2, b'{"a":1}')


def test_only_text_of_an_untyped_older_version_goes_to_a_column_of_text() -> None:
    v1, v2 = registered(1, "JSON", a={}), registered(2, "JSON", a={"type": "string"})
    assert row(v1, v2, b'{"a":"b"}') == {"a": "b"}
    assert row(v1, v2, b'{"a":null}') == row(v2, v2, b'{"a":null}')
    with pytest.raises(MalformedError):
        row(v1, v2, b'{"a":{"b":1}}')


def test_nulls_of_an_older_version_go_to_a_column_of_text() -> None:
    v1, v2 = registered(1, "JSON", a={"type": "null"}), registered(2, "JSON", a={"type": "string"})
    assert row(v1, v2, b'{"a":null}') == row(v2, v2, b'{"a":null}')
