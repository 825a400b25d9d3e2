"""Defaults of Avro fields as stored values of their columns."""

from __future__ import annotations

import io
import itertools
import json
from decimal import Context, Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as T

from topicberg.formats import avro
from topicberg.formats.avro.defaults import default
from topicberg.formats.avro.schema import parse_record
from topicberg.formats.connect import with_connect_types
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import RegisteredSchema

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
ITEM = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "int", "default": 7}]}
ITEM_COLUMN = T.StructType(
    T.NestedField(1, "n", T.IntegerType(), required=False),
    T.NestedField(2, "old", T.StringType(), required=False),
)
UNION_COLUMN = T.StructType(
    T.NestedField(1, "member0", T.IntegerType(), required=False),
    T.NestedField(2, "member1", T.StringType(), required=False),
)


def stored(kind: Any, value: str, column: T.IcebergType) -> Any:
    """The stored value of a default in JSON."""
    field = f'{{"name": "f", "type": {json.dumps(kind)}, "default": {value}}}'
    text = f'{{"type": "record", "name": "R", "fields": [{field}]}}'
    return default(parse_record("s", RegisteredSchema(1, "AVRO", text)).fields[0], column)


@pytest.mark.parametrize(
    ("kind", "value", "column", "expected"),
    [
        (PRICE, r'"\u0001"', T.DecimalType(4, 2), 1),
        (PRICE, r'"\u0064"', T.DecimalType(4, 0), 1),
        (PRICE, r'"\u00ff"', T.DecimalType(6, 3), -10),
        ("int", "5", T.IntegerType(), 5),
        ("int", "5", T.DoubleType(), 5.0),
        ("float", "0.1", T.FloatType(), 0.10000000149011612),
        ("float", "1e300", T.FloatType(), float("inf")),
        ("double", '"-Infinity"', T.DoubleType(), float("-inf")),
        ("bytes", r'"\u00c3\u00a9"', T.StringType(), "\u00e9"),
        ("bytes", r'"\u00ff"', T.BinaryType(), b"\xff"),
        ({"type": "int", "logicalType": "date"}, "-1", T.DateType(), -1),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2", T.TimestamptzType(), 2_000),
        ({"type": "array", "items": "int"}, "[1, 1.5]", T.ListType(1, T.IntegerType()), [1, None]),
        (
            {"type": "map", "values": "int"},
            '{"a": 1}',
            T.MapType(1, T.StringType(), 2, T.IntegerType()),
            [("a", 1)],
        ),
        (ITEM, "{}", ITEM_COLUMN, {"n": 7, "old": None}),
        (["int", "string"], '"a"', UNION_COLUMN, {"member0": None, "member1": "a"}),
        (["null", "int"], "null", T.IntegerType(), None),
        (
            {"type": "bytes", "logicalType": "topicberg.decimal", "scale": 2},
            r'"\u0005"',
            T.StringType(),
            "0.05",
        ),
    ],
)
def test_default_is_a_stored_value(
    kind: Any, value: str, column: T.IcebergType, expected: Any
) -> None:
    assert stored(kind, value, column) == expected


@pytest.mark.parametrize(
    ("kind", "value", "column"),
    [
        (PRICE, r'"\u0001\u00e2\u0040"', T.DecimalType(4, 2)),
        (PRICE, r'"\u0027\u0010"', T.DecimalType(3, 2)),
        (PRICE, r'"\u0001"', T.DecimalType(4, 1)),
        ("int", "1e999", T.IntegerType()),
        ("int", "NaN", T.IntegerType()),
        ("int", "1.5", T.IntegerType()),
        ("long", "1e19", T.LongType()),
        ({"type": "int", "logicalType": "date"}, "-1e999", T.DateType()),
        ("bytes", r'"\u00ff"', T.StringType()),
    ],
)
def test_default_that_its_column_cannot_hold_is_null(
    kind: Any, value: str, column: T.IcebergType
) -> None:
    assert stored(kind, value, column) is None


VARIABLE = {
    "type": "record",
    "name": "V",
    "connect.name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "ZonedTimestamp": ("string", st.just("1970-01-01T01:00:00.0000019+01:00")),
    "IsoTimestamp": ("string", st.just("1969-12-31T23:59:59.5Z")),
    "IsoDate": ("string", st.dates().map(lambda day: f"{day}Z")),
    "IsoTime": ("string", st.times().map(lambda time: f"{time.isoformat()}Z")),
    "NanoTimestamp": ("long", st.integers(-(2**63), 2**63 - 1)),
    "MicroTimestamp": ("long", st.integers(-(2**40), 2**40)),
    "Timestamp": ("long", st.integers(-(2**40), 2**40)),
    "Date": ("int", st.integers(-1000, 1000)),
    "Time": ("int", st.integers(0, 86_399_999)),
    "MicroTime": ("long", st.integers(0, 86_399_999_999)),
    "NanoTime": ("long", st.integers(0, 86_399_999_999_999)),
}
WITH_TYPES = [
    *(
        ({"type": kind, "connect.name": f"io.debezium.time.{name}"}, values)
        for name, (kind, values) in DEFAULTS.items()
    ),
    (AMOUNT, st.binary(min_size=1, max_size=20)),
    (VARIABLE, st.tuples(st.integers(-30, 30), st.binary(min_size=1))),
]


@pytest.mark.parametrize(("kind", "values"), WITH_TYPES, ids=str)
@pytest.mark.parametrize("is_optional", [False, True])
@given(data=st.data())
def test_default_of_a_debezium_type_is_the_value_of_a_record(
    kind: Any, values: Any, is_optional: bool, data: st.DataObject
) -> None:
    """The default that a record lacks, and the same value in a record, are equal in the table."""
    value = given = data.draw(values)
    if isinstance(value, bytes):
        given = value.decode("latin-1")
    elif isinstance(value, tuple):
        value = {"scale": value[0], "value": value[1]}
        given = {"scale": given[0], "value": given[1].decode("latin-1")}
    own: Any = [kind, "null"] if is_optional else kind
    fields = [{"name": "f", "type": own, "default": given}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    newest = with_connect_types(RegisteredSchema(2, "AVRO", text))
    oldest = RegisteredSchema(1, "AVRO", '{"type": "record", "name": "R", "fields": []}')
    columns, encoded = avro.fields("s", newest, itertools.count(1)), io.BytesIO()
    fastavro.schemaless_writer(encoded, json.loads(text), {"f": _as_bytes(kind, value)})
    try:
        expected = avro.record_decoder(ResolvedSchema(newest, newest, columns))(encoded.getvalue())
    except MalformedError:
        expected = {"f": None}
    assert avro.record_decoder(ResolvedSchema(oldest, newest, columns))(b"") in (
        expected,
        {} if expected == {"f": None} else expected,
    )


def _as_bytes(kind: Any, value: Any) -> Any:
    """Return a value as fastavro encodes it."""
    if kind is AMOUNT:
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-2, Context(prec=10**6))
    return value


@pytest.mark.parametrize(
    ("logical", "kind", "value", "column"),
    [
        ("zoned-timestamp", "string", '"1970-01-01"', T.TimestamptzType()),
        ("zoned-timestamp", "string", '"1970-01-01T00:00:00Z"', T.LongType()),
        ("iso-date", "string", "5", T.DateType()),
        ("iso-time", "string", '"24:00:00Z"', T.LongType()),
        ("nano-timestamp", "long", '"5"', T.TimestampType()),
        ("nano-timestamp", "long", "true", T.TimestampType()),
        ("nano-timestamp", "long", "1e30", T.TimestampType()),
        ("nano-timestamp", "long", str(2**63 - 1), T.TimestampType()),
        ("decimal", "bytes", '""', T.StringType()),
        ("decimal", "bytes", '"\u0100"', T.StringType()),
    ],
)
def test_default_of_a_debezium_type_that_is_invalid_is_null(
    logical: str, kind: str, value: str, column: T.IcebergType
) -> None:
    assert stored({"type": kind, "logicalType": f"topicberg.{logical}"}, value, column) is None
