"""Keys in the headers of changes of the primary key, as any producer may write them."""

from __future__ import annotations

import base64
import itertools
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from topicberg.formats.connect import with_connect_types
from topicberg.formats.dispatch import as_record, format_of
from topicberg.formats.subjects import RegisteredSchema, SchemaType, Subject
from topicberg.tableflow.changelog.old_keys import OldKeys
from topicberg.tableflow.layout.message_fields import MessageField

TIME, DATA = "io.debezium.time.", "io.debezium.data."
CONNECT = "org.apache.kafka.connect.data."
AT = datetime(2023, 11, 14, 22, 13, 20, 123456)
MICROS = (AT - datetime(1970, 1, 1)) // timedelta(microseconds=1)
RAW = base64.b64encode(b"09").decode()
UNSCALED = base64.b64encode((125).to_bytes(2, "big")).decode()
SCALED = {"scale": 2, "value": UNSCALED}
PRECISE = {"connect.decimal.precision": "10", "scale": "2"}


def text_of(kind: SchemaType, *fields: tuple[str, Any]) -> str:
    match kind:
        case "AVRO":
            made = [{"name": name, "type": one} for name, one in fields]
            return json.dumps({"type": "record", "name": "K", "fields": made})
        case "JSON":
            return json.dumps({"type": "object", "properties": dict(fields)})
    body = " ".join(f"{one} {name} = {n};" for n, (name, one) in enumerate(fields, 1))
    return f'syntax = "proto3"; message K {{ {body} }}'


def reader(kind: SchemaType, *versions: str) -> OldKeys:
    made = [RegisteredSchema(n, kind, text) for n, text in enumerate(versions, 1)]
    schemas = {one.schema_id: as_record(with_connect_types(one), "key") for one in made}
    latest = schemas[len(versions)]
    fields = format_of(latest).fields("s", latest, itertools.count(1))
    arrow = schema_to_pyarrow(Schema(*fields), include_field_ids=False)
    types = [field.type for field in arrow]
    return OldKeys.of(MessageField("key", Subject("s", schemas, latest)), fields, types)


def avro(kind: str, connect_name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.name": connect_name, **more}


def titled(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "title": name, **more}


VALUES: list[tuple[str, str, Any, Any]] = [
    ("int", "Date", 19_675, date(2023, 11, 14)),
    ("long", "Timestamp", MICROS // 1000, AT.replace(microsecond=123_000)),
    ("long", "MicroTimestamp", MICROS, AT),
    ("long", "NanoTimestamp", MICROS * 1000 + 7, AT),
    ("string", "ZonedTimestamp", "2023-11-14T23:13:20.123456+01:00", AT.replace(tzinfo=UTC)),
    ("string", "IsoTimestamp", "2023-11-14T22:13:20.123456Z", AT),
    ("string", "IsoDate", "2023-11-14Z", date(2023, 11, 14)),
    ("string", "IsoTime", "00:00:01Z", 1_000_000),
    ("int", "Time", 5, 5),
    ("long", "MicroTime", 5, 5),
    ("long", "NanoTime", 5, 5),
]
_JSON_TYPES = {"int": "integer", "long": "integer", "string": "string"}


@pytest.mark.parametrize(("kind", "name", "value", "expected"), VALUES)
@pytest.mark.parametrize("schema_type", ["AVRO", "JSON"])
def test_old_key_of_debezium_types_is_that_of_the_column(
    schema_type: SchemaType, kind: str, name: str, value: Any, expected: Any
) -> None:
    field = (
        avro(kind, TIME + name)
        if schema_type == "AVRO"
        else titled(
            _JSON_TYPES[kind], TIME + name, **({"connect.type": "int32"} if kind == "int" else {})
        )
    )
    keys = reader(
        schema_type,
        text_of(
            schema_type,
            ("id", field),
            ("n", "int" if schema_type == "AVRO" else {"type": "integer"}),
        ),
    )
    assert keys.read(json.dumps({"id": value, "n": 1})) == (expected, 1)
    assert keys.read(json.dumps({"schema": None, "payload": {"id": value, "n": 1}})) == (
        expected,
        1,
    )


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
VARIABLE = avro(
    "record",
    f"{DATA}VariableScaleDecimal",
    name="V",
    fields=[{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
)


@pytest.mark.parametrize(
    ("schema_type", "field", "value", "expected"),
    [
        ("AVRO", DECIMAL, 1.25, Decimal("1.25")),
        ("AVRO", DECIMAL, UNSCALED, Decimal("1.25")),
        ("AVRO", {**DECIMAL, "precision": 40}, UNSCALED, "1.25"),
        ("AVRO", VARIABLE, SCALED, "1.25"),
        ("AVRO", "bytes", RAW, b"09"),
        ("AVRO", ["null", "string"], "a", "a"),
        ("AVRO", {"type": "string", "logicalType": "uuid"}, "a", "a"),
        ("AVRO", {"type": "enum", "name": "E", "symbols": ["a"]}, "a", "a"),
        ("AVRO", "boolean", True, True),
        ("AVRO", "double", 0.5, 0.5),
        (
            "JSON",
            titled("number", f"{CONNECT}Decimal", **{"connect.parameters": PRECISE}),
            1.25,
            Decimal("1.25"),
        ),
        (
            "JSON",
            titled("number", f"{CONNECT}Decimal", **{"connect.parameters": PRECISE}),
            UNSCALED,
            Decimal("1.25"),
        ),
        ("JSON", titled("number", f"{CONNECT}Decimal"), UNSCALED, "125"),
        ("JSON", titled("object", f"{DATA}VariableScaleDecimal"), SCALED, "1.25"),
        ("JSON", {"type": "string", "connect.type": "bytes"}, RAW, b"09"),
        ("JSON", {"type": "string"}, RAW, RAW),
        ("PROTOBUF", "int64", 7, 7),
        ("PROTOBUF", "bytes", RAW, b"09"),
        ("PROTOBUF", "string", "a", "a"),
        ("PROTOBUF", "bool", False, False),
    ],
)
def test_old_key_is_that_of_the_column(
    schema_type: SchemaType, field: Any, value: Any, expected: Any
) -> None:
    keys = reader(schema_type, text_of(schema_type, ("id", field)))
    assert keys.read(json.dumps({"id": value})) == (expected,)


def test_old_key_with_a_decimal_of_many_digits_is_exact() -> None:
    keys = reader("AVRO", text_of("AVRO", ("id", {**DECIMAL, "precision": 38, "scale": 2})))
    digits = "123456789012345678901234567890.12"
    assert keys.read(f'{{"id": {digits}}}') == (Decimal(digits),)


def test_old_key_with_its_own_schema_is_read_by_it() -> None:
    """The versions of the key's schema differ, so only the schema says what it is."""
    millis = text_of("AVRO", ("id", avro("long", f"{TIME}Timestamp")))
    keys = reader("AVRO", millis, text_of("AVRO", ("id", avro("long", f"{TIME}MicroTimestamp"))))
    own = {
        "type": "struct",
        "fields": [{"field": "id", "type": "int64", "name": f"{TIME}Timestamp"}],
    }
    text = json.dumps({"schema": own, "payload": {"id": MICROS // 1000}})
    assert keys.read(text) == (AT.replace(microsecond=123_000),)
    assert keys.read(json.dumps({"id": MICROS})) is None


def test_old_key_with_another_unit_than_its_column_is_none() -> None:
    keys = reader("AVRO", text_of("AVRO", ("id", avro("long", f"{TIME}MicroTime"))))
    own = {
        "type": "struct",
        "fields": [{"field": "id", "type": "int64", "name": f"{TIME}NanoTime"}],
    }
    assert keys.read(json.dumps({"schema": own, "payload": {"id": 5}})) is None


def test_old_key_of_a_version_that_widens_is_read() -> None:
    keys = reader("AVRO", text_of("AVRO", ("id", "int")), text_of("AVRO", ("id", "long")))
    assert keys.read('{"id": 7}') == (7,)


@pytest.mark.parametrize("text", ['{"id": 7}', '{"schema": {}, "payload": {"id": 7}}'])
def test_old_key_of_a_whole_number_is_read(text: str) -> None:
    assert reader("AVRO", text_of("AVRO", ("id", "long"))).read(text) == (7,)


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "[]", "{}", '{"id": "x"}', '{"id": {}}', '{"id": null}', '{"id": 2023-11-14}'),
        *(f'{{"id": {10**30}}}', "[" * 10_000, '{"id": 1.5}', '{"schema": {}, "payload": 7}'),
    ],
)
def test_old_key_that_cannot_be_read_is_none(text: str) -> None:
    assert reader("AVRO", text_of("AVRO", ("id", "long"))).read(text) is None


@pytest.mark.parametrize("name", ["NanoTimestamp", "MicroTimestamp", "Timestamp"])
@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**63])
def test_old_key_with_a_time_beyond_all_years_does_not_fail(name: str, value: int) -> None:
    keys = reader("AVRO", text_of("AVRO", ("id", avro("long", TIME + name))))
    read = keys.read(json.dumps({"id": value}))
    assert read is None or name == "NanoTimestamp"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.sampled_from([*VALUES, ("bytes", "", None, None), ("boolean", "", None, None)]),
    JSON,
    st.none() | JSON,
)
def test_old_key_of_any_header_does_not_fail(kind: Any, value: Any, schema: Any) -> None:
    field = avro(kind[0], TIME + kind[1]) if kind[1] else kind[0]
    keys = reader("AVRO", text_of("AVRO", ("id", field)))
    for text in ({"id": value}, value, {"schema": schema, "payload": {"id": value}}):
        keys.read(json.dumps(text))
