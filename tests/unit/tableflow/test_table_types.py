"""How the columns of an existing table follow a schema: as Iceberg's specification allows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
)
from specs import minimal

from topicberg.errors import TableflowError, TopicbergError
from topicberg.tableflow.table.table import _evolve
from topicberg.topics import TopicSpec
from topicberg.transforms.target import ensure_table

DECIMAL = DecimalType(10, 2)


SPEC = TopicSpec.model_validate(minimal())


def of(kind: IcebergType) -> Schema:
    return Schema(NestedField(1, "d", kind, required=False))


def nested(kind: IcebergType) -> IcebergType:
    inner = ListType(4, kind, element_required=False)
    fields = StructType(NestedField(5, "x", inner, required=False))
    return MapType(2, StringType(), 3, fields, value_required=False)


@pytest.mark.parametrize("wrap", [lambda kind: kind, nested])
@pytest.mark.parametrize("new", [(12, 3), (10, 3), (12, 0), (8, 1), (38, 10)])
def test_decimal_of_another_scale_is_refused(
    catalog: SqlCatalog, new: tuple[int, int], wrap: type
) -> None:
    """PyIceberg gives the column the new scale, if it has as many digits or more."""
    table = catalog.create_table(("shop", "prices"), of(wrap(DECIMAL)))
    with pytest.raises(TableflowError, match="the scale of a column cannot change"):
        _evolve(table, SPEC, of(wrap(DecimalType(*new))), ())
    assert str(table.refresh().schema().find_type("d")) == str(
        catalog.create_table(("shop", "same"), of(wrap(DECIMAL))).schema().find_type("d")
    )


@pytest.mark.parametrize(("new", "column"), [((12, 2), (12, 2)), ((8, 2), (10, 2))])
def test_decimal_of_the_same_scale_only_widens(
    catalog: SqlCatalog, new: tuple[int, int], column: tuple[int, int]
) -> None:
    table = catalog.create_table(("shop", "prices"), of(DECIMAL))
    _evolve(table, SPEC, of(DecimalType(*new)), ())
    assert table.schema().find_type("d") == DecimalType(*column)


@pytest.mark.parametrize("new", [pa.decimal128(12, 3), pa.binary()])
def test_derived_table_refuses_what_iceberg_forbids(catalog: SqlCatalog, new: pa.DataType) -> None:
    old = pa.string() if new == pa.binary() else pa.decimal128(10, 2)
    catalog.create_table(("shop", "totals"), pa.schema([("d", old)]))
    with pytest.raises(TopicbergError, match="column d"):
        ensure_table(catalog, ("shop", "totals"), pa.schema([("d", new)]), None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "topics restore-schema trades"),
        ({"external": True, "schema": {"format": "avro"}}, "let the owner of the topic's schemas"),
        (
            {
                "external": True,
                "schema": {"format": "json", "file": "s.json", "framing": "none"},
                "key": {"format": "string"},
            },
            "change s.json back",
        ),
    ],
    ids=["own", "external", "plain"],
)
def test_evolve_hint_names_what_the_topic_allows(
    catalog: SqlCatalog, given: dict[str, Any], expected: str
) -> None:
    table = catalog.create_table(("shop", "prices"), of(DECIMAL))
    spec = TopicSpec.model_validate(minimal(**given))
    with pytest.raises(TableflowError) as refused:
        _evolve(table, spec, of(DecimalType(12, 3)), ())
    assert expected in (refused.value.hint or "")
    assert ("restore-schema" in (refused.value.hint or "")) == (not given)
