"""Rows of a topic for the tests of a project: objects and arrays are columns as in its table."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import StructType

from topicberg.errors import TopicbergError
from topicberg.testing import topic_frame
from topicberg.topics import TopicSpec

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "buyer",
            "type": {
                "type": "record",
                "name": "Buyer",
                "fields": [
                    {"name": "name", "type": "string"},
                    {"name": "tags", "type": {"type": "array", "items": "string"}},
                ],
            },
        },
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": "string"}],
                },
            },
        },
        {"name": "prices", "type": {"type": "map", "values": "double"}},
    ],
}


class LocalSpark:
    """Converts rows as Spark Connect's client does."""

    def createDataFrame(self, rows: list[Any], schema: StructType) -> pa.Table:
        return LocalDataToArrowConversion.convert(rows, schema, use_large_var_types=False)


@pytest.fixture
def orders(tmp_path: Path) -> TopicSpec:
    file = tmp_path / "orders.avsc"
    file.write_text(json.dumps(SCHEMA))
    document = {"name": "orders", "pipeline": "shop"}
    return TopicSpec.model_validate({**document, "schema": {"format": "avro", "file": str(file)}})


def frame(spec: TopicSpec, *records: dict[str, Any]) -> list[dict[str, Any]]:
    spark: Any = LocalSpark()
    table: Any = topic_frame(spark, spec, records)
    return list(table.to_pylist())


def test_topic_frame_of_objects_and_arrays_has_their_values(orders: TopicSpec) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    record = {
        "id": 1,
        "buyer": {"name": "Ann", "tags": ["new", "eu"]},
        "lines": [{"sku": "a"}, {}],
        "prices": {"a": 0.1},
        "$$timestamp": at,
    }
    first, second = frame(orders, record, {})
    assert first["buyer"] == {"name": "Ann", "tags": ["new", "eu"]}
    assert first["lines"] == [{"sku": "a"}, {"sku": None}]
    assert first["prices"] in ([("a", 0.1)], {"a": 0.1})
    assert first["$$timestamp"] == at
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ({"idd": 1}, "idd"),
        ({"buyer": {"nam": "Ann"}}, "buyer.nam"),
        ({"lines": [{"sku": "a"}, {"skus": "a"}]}, "lines.skus"),
    ],
)
def test_topic_frame_of_an_unknown_field_names_it(
    orders: TopicSpec, record: dict[str, Any], path: str
) -> None:
    with pytest.raises(TopicbergError, match=f"no column {path}"):
        frame(orders, record)


@pytest.mark.parametrize("value", ["2026-11-29T10:00:00Z", "yesterday"])
def test_topic_frame_with_text_for_a_time_names_the_column(orders: TopicSpec, value: str) -> None:
    spark: Any = LocalSpark()
    records = [{"id": 1, "$$timestamp": value}]
    with pytest.raises(TopicbergError, match=r"column \$\$timestamp is a timestamp") as raised:
        topic_frame(spark, orders, records)
    assert value in raised.value.message
    assert raised.value.hint == "give values of that type; a time is a datetime with a time zone"
