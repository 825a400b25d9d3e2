"""Defaults of Avro fields as stored values of their columns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg import types as T

from topicberg.formats.avro.defaults import default
from topicberg.formats.avro.schema import parse_record
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
