"""Types of Kafka Connect and Debezium become the columns' types, by the captured schemas."""

from __future__ import annotations

import itertools
import json

import pytest
import reasons
from debezium import captured, schemas
from decoders import Decoders

from topicberg.formats import avro
from topicberg.formats.connect import with_connect_types
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.envelope import AFTER, changed_columns
from topicberg.formats.framing import WIRE_BYTES
from topicberg.formats.subjects import RegisteredSchema

CUSTOMERS, ISO_CUSTOMERS = 11, 9
EXPECTED = {
    "id": "long",
    "name": "string",
    "st": "string",
    "n": "decimal(12, 4)",
    "nfree": "string",
    "nint": "decimal(38, 0)",
    "nbig": "string",
    "m": "string",
    "ts": "timestamp",
    "ts3": "timestamp",
    "tstz": "timestamptz",
    "d": "date",
    "t": "long",
    "t3": "int",
    "ttz": "string",
    "iv": "long",
    "u": "string",
    "j": "string",
    "b": "binary",
    "bi": "boolean",
    "bv": "binary",
}
EXPECTED_ISO = {"ts": "timestamp", "ts3": "timestamp", "d": "date", "t": "long", "iv": "string"}


def registered(number: int) -> RegisteredSchema:
    return with_connect_types(RegisteredSchema(number, "AVRO", json.dumps(schemas()[number])))


def columns(number: int) -> dict[str, str]:
    found = changed_columns("s", avro.fields("s", registered(number), itertools.count(1)), "rows")
    return {field.name: str(field.field_type) for field in found}


@pytest.mark.parametrize(
    ("number", "expected"), [(CUSTOMERS, EXPECTED), (ISO_CUSTOMERS, EXPECTED_ISO)]
)
def test_connect_types_captured_schema_gives_columns(number: int, expected: dict[str, str]) -> None:
    found = columns(number)
    assert {name: found[name] for name in expected} == expected


def test_connect_types_other_schema_is_unchanged() -> None:
    text = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}'
    schema = RegisteredSchema(1, "AVRO", text)
    assert json.loads(with_connect_types(schema).text) == json.loads(text)


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (38, 2, "decimal(38, 2)"),
        (39, 2, "string"),
        (3, 5, "decimal(5, 5)"),
        (3, 39, "string"),
        (10, 2046, "string"),
    ],
)
def test_connect_types_decimal_of_any_scale_has_a_column(
    precision: int, scale: int, expected: str
) -> None:
    """PostgreSQL has more digits behind the point than digits, or less than none (2046)."""
    number = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    text = {"type": "record", "name": "r", "fields": [{"name": "a", "type": number}]}
    schema = with_connect_types(RegisteredSchema(1, "AVRO", json.dumps(text)))
    (field,) = avro.fields("s", schema, itertools.count(1))
    assert str(field.field_type) == expected


@pytest.mark.parametrize(
    ("row_id", "reason"),
    [
        (
            3,
            "field after.ts (timestamp): value 9223372036854775807 (local-timestamp-micros) is not "
            "of the years 1 to 9999",
        ),
        (4, "field after.d (date): value -735160 is not a day of the years 1 to 9999"),
    ],
)
def test_connect_types_infinite_value_names_the_field(row_id: int, reason: str) -> None:
    record = next(
        one
        for one in captured("davro.shop.customers")
        if one.envelope and (one.envelope["after"] or {}).get("id") == row_id
    )
    assert record.value is not None
    schema = registered(CUSTOMERS)
    fields = avro.fields("s", schema, itertools.count(1))
    only_after = [field for field in fields if field.name == AFTER]
    payload, pairing = record.value[WIRE_BYTES:], ResolvedSchema(schema, schema, only_after)
    assert reasons.reason(avro, payload, pairing) == reason
    assert Decoders(avro, pairing).decoded([payload]) == [None]
