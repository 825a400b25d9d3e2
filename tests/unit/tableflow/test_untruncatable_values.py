"""Values that a table partitioned by ``truncate`` has no partition for."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import IntegerType, NestedField, StructType

from topicberg.iceberg.data_files import WriteTarget
from topicberg.tableflow.decode.columns import untruncatable

LOWEST = -(2**31)
SCHEMA = Schema(
    NestedField(1, "id", IntegerType(), required=False),
    NestedField(2, "order", StructType(NestedField(3, "id", IntegerType())), required=False),
)
IDS = pa.array([5, LOWEST, None], pa.int32())


def target(field_id: int) -> WriteTarget:
    field = PartitionField(field_id, 1000, TruncateTransform(10), "part")
    return WriteTarget("file:///t", SCHEMA, PartitionSpec(field), {})


def test_untruncatable_value_of_a_column_is_named() -> None:
    (reason,) = untruncatable(target(1), {"id": IDS}).items()
    assert reason[0] == 1
    assert "truncate[10] of id, and a value below -2147483640 is rounded down" in reason[1]


def test_untruncatable_value_of_a_nested_field_is_named() -> None:
    orders = pa.StructArray.from_arrays([IDS], names=["id"])
    columns = {"id": pa.array([1, 2, 3], pa.int32()), "order": orders}
    (reason,) = untruncatable(target(3), columns).items()
    assert reason[0] == 1
    assert "truncate[10] of order.id" in reason[1]


def test_untruncatable_values_of_a_missing_column_are_none() -> None:
    assert untruncatable(target(3), {"id": IDS}) == {}
