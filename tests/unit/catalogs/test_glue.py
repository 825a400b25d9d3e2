"""Glue's types and request bodies."""

from __future__ import annotations

import pytest
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from topicberg.catalogs.glue import hive_type


@pytest.mark.parametrize(
    ("iceberg", "hive"),
    [
        (IntegerType(), "int"),
        (LongType(), "bigint"),
        (BinaryType(), "binary"),
        (FixedType(4), "binary"),
        (UUIDType(), "string"),
        (TimestamptzType(), "timestamp"),
        (DecimalType(10, 2), "decimal(10,2)"),
        (ListType(1, StringType()), "array<string>"),
        (MapType(1, StringType(), 2, LongType()), "map<string,bigint>"),
        (
            StructType(
                NestedField(1, "a", IntegerType()), NestedField(2, "b", ListType(3, LongType()))
            ),
            "struct<a:int,b:array<bigint>>",
        ),
    ],
)
def test_hive_types(iceberg: IcebergType, hive: str) -> None:
    assert hive_type(iceberg) == hive
