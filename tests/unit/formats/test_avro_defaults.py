"""Defaults of Avro fields as constants of their columns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.types import DateType, DecimalType, IcebergType, IntegerType, LongType, StringType

from topicberg.formats.avro_defaults import default
from topicberg.formats.avro_schema import parse_record
from topicberg.formats.subjects import RegisteredSchema

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


def constant(kind: Any, value: str, column: IcebergType) -> str | None:
    """The constant of a default in JSON."""
    field = f'{{"name": "f", "type": {json.dumps(kind)}, "default": {value}}}'
    text = f'{{"type": "record", "name": "R", "fields": [{field}]}}'
    return default(parse_record("s", RegisteredSchema(1, "AVRO", text)).fields[0], column)


def test_default_is_a_constant_of_its_column() -> None:
    assert constant(PRICE, r'"\u0001"', DecimalType(4, 2)) == "CAST('0.01' AS decimal(4,2))"
    assert constant(PRICE, r'"\u0064"', DecimalType(4, 0)) == "CAST('1.00' AS decimal(4,0))"
    assert constant("int", "5", IntegerType()) == "CAST(5L AS int)"
    assert constant("bytes", r'"\u00c3\u00a9"', StringType()) == "CAST(X'c3a9' AS string)"


@pytest.mark.parametrize(
    ("kind", "value", "column"),
    [
        (PRICE, r'"\u0001\u00e2\u0040"', DecimalType(4, 2)),
        (PRICE, r'"\u0027\u0010"', DecimalType(3, 2)),
        (PRICE, r'"\u0001"', DecimalType(4, 1)),
        ("int", "1e999", IntegerType()),
        ("int", "NaN", IntegerType()),
        ("int", "1.5", IntegerType()),
        ("long", "1e19", LongType()),
        ({"type": "int", "logicalType": "date"}, "-1e999", DateType()),
        ("bytes", r'"\u00ff"', StringType()),
    ],
)
def test_default_that_its_column_cannot_hold_is_null(
    kind: Any, value: str, column: IcebergType
) -> None:
    assert constant(kind, value, column) is None
