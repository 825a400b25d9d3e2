"""Columns of format version 3 that were added with a default: older files lack them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from format_versions import allow_version_3, upgrade
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, NestedField, StringType, StructType

from topicberg.errors import TableflowError
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.delta.schema import definition
from topicberg.iceberg.file_columns import missing_column
from topicberg.iceberg.files import live_files
from topicberg.iceberg.position_deletes import FileRows, read_rows
from topicberg.tableflow.erasure.locations import find
from topicberg.tableflow.erasure.matching import Rows

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "order", StructType(NestedField(3, "n", LongType())), required=False),
)
ORDERS = [{"n": 1}, None, {"n": 3}]


@pytest.fixture
def table(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table with a file of before ``region``, ``order.kind`` and ``order.size`` were added."""
    allow_version_3(monkeypatch)
    table = upgrade(catalog, catalog.create_table("shop.orders", SCHEMA))
    orders = pa.array(ORDERS, pa.struct([("n", pa.int64())]))
    with DataFileWriter(WriteTarget.of(table), table.io) as writer:
        writer.write({"id": pa.array([1, 2, 3]), "order": orders})
    change = SnapshotChange(table, Operation.APPEND)
    change.add(writer.files)
    change.commit()
    with table.refresh().update_schema() as update:
        update.add_column("region", StringType(), default_value="eu")
        update.add_column(("order", "kind"), StringType(), default_value="web")
        update.add_column(("order", "size"), LongType())
    return table.refresh()


@pytest.mark.parametrize(
    ("path", "value", "count"),
    [
        (("region",), "eu", 3),
        (("region",), None, 0),
        (("order", "kind"), "web", 2),
        (("order", "kind"), None, 1),
        (("order", "size"), 7, 0),
        (("order", "size"), None, 3),
        (("order",), {"n": 3, "kind": "web", "size": None}, 1),
    ],
)
def test_rows_to_erase_have_the_defaults_of_columns_that_their_file_lacks(
    table: Table, path: tuple[str, ...], value: Any, count: int
) -> None:
    rows = Rows(table.schema(), ({path: (value,)},))
    assert find(table, rows).rows == count
    assert find(table, rows).holders == bool(count)


def test_read_rows_of_a_file_without_a_column_have_its_default(table: Table) -> None:
    (file,) = live_files(table)
    rows = FileRows(file, np.array([0, 1], np.uint32))
    assert read_rows(table, rows, ["region", "order"]).to_pylist() == [
        {"region": "eu", "order": {"n": 1, "kind": "web", "size": None}},
        {"region": "eu", "order": None},
    ]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", True, True),
        ("int", 3, 3),
        ("double", 1.5, 1.5),
        ("decimal(9, 2)", "14.20", Decimal("14.20")),
        ("date", "2007-12-03", date(2007, 12, 3)),
        (
            "timestamptz",
            "2007-12-03T22:31:08.123456+00:00",
            datetime(2007, 12, 3, 22, 31, 8, 123456, UTC),
        ),
        (
            "uuid",
            "eb26bdb1-a1d8-4aa6-990e-da940875492c",
            UUID("eb26bdb1-a1d8-4aa6-990e-da940875492c").bytes,
        ),
        ("fixed[3]", "000102", b"\x00\x01\x02"),
        ("binary", "0102ff", b"\x01\x02\xff"),
    ],
)
def test_missing_column_of_every_type_has_its_default(kind: str, text: Any, value: Any) -> None:
    field = {"id": 1, "name": "a", "required": False, "type": kind, "initial-default": text}
    schema = Schema.model_validate_json(
        json.dumps({"type": "struct", "schema-id": 0, "fields": [field]})
    )
    found = missing_column(schema.fields[0], 2).to_pylist()
    assert [each.bytes if isinstance(each, UUID) else each for each in found] == [value] * 2


def test_delta_log_of_a_column_with_a_default_is_refused(table: Table, tmp_path: Path) -> None:
    with pytest.raises(TableflowError, match=r"column (region|order\.kind) was added with a def"):
        definition(table, 1)
