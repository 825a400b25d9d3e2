"""Names of partition fields in manifests, and of columns in Parquet files and in their table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from topicberg import query
from topicberg.endpoints import Endpoints
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.names import (
    find_unreadable_partition,
    name_in_files,
    partition_field_name,
    schema_in_files,
    shared_full_name,
)
from topicberg.iceberg.position_deletes import FileRows, read_rows
from topicberg.iceberg.readers import DUCKDB, EVERY
from topicberg.iceberg.table import partition_spec
from topicberg.settings import Settings
from topicberg.tableflow.erasure.matching import Rows
from topicberg.tableflow.layout.message_fields import sameness, twins
from topicberg.topics.spec import parse_partition_field

_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ = """
import json, sys
import duckdb
from topicberg.query import load_extensions
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
load_extensions(connection)
for location in sys.argv[1:]:
    rows = connection.execute("SELECT * FROM iceberg_scan(?) ORDER BY 2", [location]).fetchall()
    print(json.dumps(rows), flush=True)
"""
NAMES = (
    *("größe", "имя", "한글", "𐐀", "²", "a😀", "a b", "a.b", "1a", "$$x", "a(b)", 'a"b', "a\nb"),
    *("`a`", "ts_hour", "a'b", "é".encode().decode("latin-1")),
)


def partitioned(catalog: SqlCatalog, name: str, column: str) -> Table:
    """Return a table that is partitioned by a column, as topicberg creates it, with two rows."""
    schema = Schema(NestedField(1, column, StringType()), NestedField(2, "n", LongType()))
    field = parse_partition_field("`" + column.replace("`", "``") + "`")
    assert field.column == column
    spec = partition_spec(schema, [field])
    table = catalog.create_table(("shop", name), schema, partition_spec=spec)
    table.append(pa.table({column: ["x", "ü"], "n": [1, 2]}))
    return table


def test_partition_columns_of_any_name_are_read_by_duckdb(catalog: SqlCatalog) -> None:
    """In a process of its own: DuckDB ends it at a name that is not valid in Avro."""
    tables = [partitioned(catalog, f"t{n}", column) for n, column in enumerate(NAMES)]
    command = [sys.executable, "-c", _READ, *(table.metadata_location for table in tables)]
    read = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    assert read.stdout.splitlines() == ['[["x", 1], ["\\u00fc", 2]]'] * len(NAMES)
    for table in tables:
        assert table.scan().to_arrow().num_rows == 2


@given(
    st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True),
    st.sampled_from(["identity", "hour", "bucket[4]"]),
)
def test_partition_fields_of_any_columns_have_distinct_avro_names(
    columns: list[str], transform: str
) -> None:
    columns = [column for column in columns if not re.search(r"[\ud800-\udfff]", column)]
    fields = (NestedField(n, c, TimestamptzType()) for n, c in enumerate(columns, 1))
    schema = Schema(*fields)
    texts = [f"{transform}(`{column.replace('`', '``')}`)" for column in columns]
    spec = partition_spec(schema, [parse_partition_field(text) for text in texts])
    names = [name_in_files(field.name) for field in spec.fields]
    assert all(_AVRO_NAME.fullmatch(name) for name in names)
    assert len(set(names)) == len(columns)
    for field in spec.fields:
        sources = {column for column in columns if column == field.name}
        assert sources <= {schema.find_column_name(field.source_id)}
    assert find_unreadable_partition([spec]) is None


def test_partition_field_name_of_ascii_stays() -> None:
    """Names of tables that exist, and what Spark and PyIceberg would choose."""
    assert partition_field_name("side", "", ["price"]) == "side"
    assert partition_field_name("$$timestamp", "hour", ["$$timestamp"]) == "$$timestamp_hour"
    assert partition_field_name("ts", "hour", ["ts", "ts_hour"]) == "ts_hour_2"
    assert partition_field_name("größe", "", ["n"]) == "gr_xF6_xDFe"
    assert partition_field_name("größe", "", ["gr_xF6_xDFe"]) == "gr_xF6_xDFe_2"


def test_query_of_a_table_with_an_old_partition_name_is_refused(catalog: SqlCatalog) -> None:
    """Such tables exist; DuckDB would end this process, so the query names another engine."""
    schema = Schema(NestedField(1, "größe", StringType()), NestedField(2, "n", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "größe"))
    table = catalog.create_table(("shop", "orders"), schema, partition_spec=spec)
    table.append(pa.table({"größe": ["x"], "n": [1]}))
    endpoints = cast("Endpoints", SimpleNamespace(catalog=lambda _: catalog))
    with pytest.raises(query.QueryError, match=r"shop\.orders has the partition field größe"):
        query.run_query("SELECT * FROM orders", "duckdb", endpoints, Settings())
    reasons = {reader: reader.reason(table) for reader in EVERY}
    assert [reader for reader, reason in reasons.items() if reason] == [DUCKDB]


@given(st.text(min_size=1, max_size=6))
def test_schema_in_files_has_the_names_of_java(name: str) -> None:
    """PyIceberg's own function keeps letters outside of the BMP, and digits such as ``²``."""
    inner = StructType(NestedField(2, name, LongType()))
    (field,) = schema_in_files(Schema(NestedField(1, name, inner))).fields
    assert isinstance(field.field_type, StructType)
    assert [field.name, field.field_type.fields[0].name] == [name_in_files(name)] * 2


def test_twins_are_found_of_names_that_files_do_not_tell_apart() -> None:
    """Spark fails at them when it writes: "Duplicate key a_x20b"."""
    spaced, escaped = (
        NestedField(n, name, StringType()) for n, name in enumerate(("a b", "a_x20b"))
    )
    assert [*twins((), [spaced, escaped])] == [("a_x20b", "a b")]
    assert [*twins([spaced], [spaced, escaped])] == [("a_x20b", "a b")]
    assert sameness("a_x20b", "a b") == "are both a_x20b in Parquet files"
    assert "case" in sameness("A", "a")


PARTS = st.sampled_from(["a", "b", "a.b", "a.element", "a.key", "b.value", "element.a", "a.b.a"])


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> IcebergType:
    kind = draw(st.sampled_from(["int", "struct", "list", "map"] if depth else ["int"]))
    if kind == "struct":
        return draw(structs(depth - 1))
    inner = draw(kinds(depth - 1)) if depth else IntegerType()
    if kind == "list":
        return ListType(1, inner, element_required=False)
    if kind == "map":
        return MapType(1, StringType(), 2, inner, value_required=False)
    return IntegerType()


@st.composite
def structs(draw: st.DrawFn, depth: int = 2) -> StructType:
    names = draw(st.lists(PARTS, unique=True, min_size=1, max_size=4))
    return StructType(*(NestedField(1, name, draw(kinds(depth)), required=False) for name in names))


@given(structs())
def test_shared_full_name_is_found_where_iceberg_has_no_schema(struct: StructType) -> None:
    try:
        is_schema = bool(assign_fresh_schema_ids(Schema(*struct.fields)).column_names)
    except ValueError:
        is_schema = False
    assert (shared_full_name(struct) is None) == is_schema


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
        assert rows.in_file(table.io, task.file.file_path).tolist() == [2]
