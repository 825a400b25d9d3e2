"""Glue's types, and which tables are registered."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import boto3
import pytest
from moto import mock_aws
from pyiceberg.schema import Schema
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

from topicberg.catalogs.glue import hive_type, metadata_location, register
from topicberg.errors import TopicbergError


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


OURS = "s3://ours/demo_shop/v1/3f2a"


class Registered:
    """The table ``shop.orders`` in Glue, which points somewhere."""

    def __init__(self, pointer: str) -> None:
        self.client = boto3.client("glue", region_name="us-east-1")
        self.client.create_database(DatabaseInput={"Name": "shop"})
        parameters = {"table_type": "ICEBERG", "metadata_location": pointer}
        entry: Any = {"Name": "orders", "Parameters": parameters}
        self.client.create_table(DatabaseName="shop", TableInput=entry)

    @property
    def pointer(self) -> str | None:
        return metadata_location(self.client.get_table(DatabaseName="shop", Name="orders")["Table"])


class At:
    """A table at a location, with its last states."""

    def __init__(self, location: str, *states: str) -> None:
        self._location, self.metadata_location = location, f"{location}/metadata/9.metadata.json"
        log = [SimpleNamespace(metadata_file=state) for state in states]
        self.metadata = SimpleNamespace(metadata_log=log)

    def location(self) -> str:
        return self._location

    def refresh(self) -> None: ...

    def name(self) -> tuple[str, str]:
        return "shop", "orders"

    def schema(self) -> Schema:
        return Schema(NestedField(1, "n", LongType()))


@pytest.fixture
def glue() -> Iterator[None]:
    with mock_aws():
        yield


@pytest.mark.usefixtures("glue")
@pytest.mark.parametrize(
    ("location", "pointer"),
    [
        (OURS, f"{OURS}/metadata/1.metadata.json"),
        (OURS, "s3://ours/demo_shop/v1/91bc/metadata/7.metadata.json"),  # created again
        (OURS, "s3://before/demo_shop/v1/91bc/metadata/7.metadata.json"),  # in another bucket
        (OURS, "s3://ours/demo_shop/orders/metadata/7.metadata.json"),
        ("s3://lake/shop/orders-2", "s3://lake/shop/orders-1/metadata/7.metadata.json"),
        ("s3://one--table-s3", "s3://one--table-s3/metadata/7.metadata.json"),
        ("s3://lake/orders", "s3://lake/orders/metadata/7.metadata.json"),
    ],
)
def test_register_pointer_to_an_earlier_state_is_moved(location: str, pointer: str) -> None:
    registered, table = Registered(pointer), At(location)
    assert register(registered.client, cast("Any", table), "shop", "orders")
    assert registered.pointer == table.metadata_location


@pytest.mark.usefixtures("glue")
@pytest.mark.parametrize(
    ("location", "pointer"),
    [
        (OURS, "s3://finance/orders/metadata/42.metadata.json"),
        (OURS, "s3://ours/demo_shopping/v1/91bc/metadata/7.metadata.json"),
        ("s3://lake/orders", "s3://lake/orders2/metadata/7.metadata.json"),
        ("s3://one--table-s3", "s3://two--table-s3/metadata/7.metadata.json"),
    ],
)
def test_register_pointer_to_another_table_is_refused(location: str, pointer: str) -> None:
    registered, table = Registered(pointer), At(location)
    with pytest.raises(TopicbergError, match=f"points to {pointer}.*it is another table"):
        register(registered.client, cast("Any", table), "shop", "orders")
    assert registered.pointer == pointer


@pytest.mark.usefixtures("glue")
def test_register_pointer_in_the_log_is_moved_wherever_it_is() -> None:
    pointer = "s3://moved/elsewhere/metadata/42.metadata.json"
    registered, table = Registered(pointer), At(OURS, pointer)
    assert register(registered.client, cast("Any", table), "shop", "orders")
