"""Columns of files have the names that the fields have in their table now, at every depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.file_rows import read_rows
from topicberg.iceberg.position_deletes import FileRows
from topicberg.tableflow.erasure.matching import Rows

INNER = StructType(
    NestedField(20, "user-id", LongType(), required=False),
    NestedField(21, "it's", StringType(), required=False),
)
SCHEMA = Schema(
    NestedField(1, "a b", INNER, required=False),
    NestedField(2, "l", ListType(3, INNER, element_required=False), required=False),
    NestedField(4, "m", MapType(5, StringType(), 6, INNER, value_required=False), required=False),
)
ROWS: list[dict[str, Any]] = [
    {
        "a b": {"user-id": n, "it's": f"x{n}"},
        "l": [{"user-id": n, "it's": None}, None],
        "m": [("k", {"user-id": None, "it's": "y"})],
    }
    for n in range(4)
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with a file of topicberg and one of PyIceberg, with the rows in both."""
    catalog = InMemoryCatalog("test", warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", SCHEMA)
    arrow = pa.Table.from_pylist(
        ROWS, schema=schema_to_pyarrow(table.schema(), include_field_ids=False)
    )
    with DataFileWriter(WriteTarget.of(table), table.io) as writer:
        writer.write({name: arrow.column(name).combine_chunks() for name in arrow.column_names})
    change = SnapshotChange(table, Operation.APPEND)
    change.add(writer.files)
    change.commit()
    table.refresh().append(arrow)
    return table


def all_rows(table: Table) -> list[Any]:
    """Return what each file has, in every column of the table."""
    names = [field.name for field in table.schema().fields]
    files = [task.file for task in table.scan().plan_files()]
    assert len(files) == 2
    return [
        read_rows(table, FileRows(file, np.arange(4, dtype=np.uint32)), names).to_pylist()
        for file in files
    ]


def test_rows_are_read_as_they_were_written(table: Table) -> None:
    assert all_rows(table) == [ROWS, ROWS]


def test_ids_say_which_field_is_which(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column(("a b", "user-id"), "number")
        update.delete_column(("a b", "it's"))
    with table.update_schema() as update:
        update.add_column(("a b", "it's"), StringType())
    expected = [{**row, "a b": {"number": row["a b"]["user-id"], "it's": None}} for row in ROWS]
    assert all_rows(table.refresh()) == [expected, expected]


@pytest.mark.parametrize(
    "condition",
    [
        {("a b",): [{"user-id": 2, "it's": "x2"}]},
        {("a b", "user-id"): [2]},
        {("l",): [[{"user-id": 2, "it's": None}, None]]},
    ],
)
def test_values_in_nested_fields_of_any_name_are_found(table: Table, condition: Any) -> None:
    rows = Rows(table.schema(), (condition,))
    for task in table.scan().plan_files():
        found = rows.in_file(table.io, task.file.file_path)
        assert found.tolist() == [2]
