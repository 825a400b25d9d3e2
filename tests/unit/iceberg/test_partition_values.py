"""Partition values of doubles: exact when manifests are written again, and corrected by bounds."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from format_versions import allow_version_3, duckdb_rows, upgrade
from hypothesis import given
from hypothesis import strategies as st
from partition_matrix import Case
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType

from topicberg.checks.table import check_partition_values, check_readable_by
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.files import exact_partition, live_files
from topicberg.iceberg.manifests import new_file, set_partition
from topicberg.iceberg.position_deletes import FileRows, delete_rows, misplaced_files, trim_deletes
from topicberg.iceberg.readers import DUCKDB, PYICEBERG, READ_ALL_FILES, SNOWFLAKE

ROUNDED = float(np.float32(0.1))
VALUES = [0.1, 0.1 + 1e-12, ROUNDED, 1e300, 0.0, math.nan, None]
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "x"))


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """A table of two rows for each value, and two of another one."""
    schema: Schema = Case(DoubleType(), "identity", []).schema
    table = catalog.create_table("shop.doubles", schema, partition_spec=SPEC)
    values = [*VALUES, 7.0] * 2
    columns = {"id": pa.array(range(len(values)), pa.int32()), "x": pa.array(values, pa.float64())}
    with DataFileWriter(WriteTarget.of(table), table.io) as writer:
        writer.write(columns)
    change = SnapshotChange(table, Operation.APPEND)
    change.add(writer.files)
    change.commit()
    return table.refresh()


def files(table: Table, content: DataFileContent = DataFileContent.DATA) -> list[DataFile]:
    return [file for file in live_files(table.refresh()) if file.content == content]


def partitions(found: list[DataFile]) -> list[str]:
    return sorted(repr(file.partition[0]) for file in found)


def rows(table: Table) -> list[Any]:
    return sorted(duckdb_rows(table.refresh(), "id, CAST(x AS VARCHAR)"))


def rewritten_by_pyiceberg(table: Table) -> Table:
    """Delete the rows of 7.0 with PyIceberg, which writes the other files into a new manifest."""
    table.delete(EqualTo(term="x", value=7.0))
    return table.refresh()


def test_manifest_that_is_written_again_keeps_doubles(table: Table) -> None:
    change = SnapshotChange(table, Operation.DELETE)
    change.remove(file for file in files(table) if file.partition[0] == 7.0)
    change.commit()
    assert partitions(files(table)) == sorted(map(repr, VALUES))
    assert misplaced_files(table) == 0


def test_values_that_pyiceberg_rounded_are_corrected_by_the_bounds(table: Table) -> None:
    before = {file.file_path: file for file in files(rewritten_by_pyiceberg(table))}
    expected = rows(table)
    assert partitions([*before.values()]).count(repr(ROUNDED)) == 3
    found = check_partition_values(table, "orders")
    assert (found.passed, found.facts["misplaced_files"]) == (False, 3)
    assert "`topicberg tableflow maintain orders`" in str(found.remediation)
    assert trim_deletes(table) == 0
    assert partitions(files(table)) == sorted(map(repr, VALUES))
    assert (misplaced_files(table), rows(table)) == (0, expected)
    assert check_partition_values(table, "orders").passed
    assert {file.file_path for file in files(table)} == before.keys()
    head = table.current_snapshot()
    trim_deletes(table)
    assert table.refresh().current_snapshot() == head


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_in_a_rounded_partition_are_moved_to_that_of_their_rows(
    version: int, table: Table, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version > 2:
        allow_version_3(monkeypatch)
        table = upgrade(catalog, table)
    deleted = [FileRows(file, np.array([1], np.uint32)) for file in files(table)]
    for each in deleted:  # as PyIceberg reads it
        value = each.file.partition[0]
        with np.errstate(over="ignore"):
            rounded = value if value is None else float(np.float32(value))
        set_partition(each.file, Record(rounded))
    delete_rows(table, deleted, {}, ())
    of_data = partitions(files(table))
    wrong = files(table, DataFileContent.POSITION_DELETES)
    assert partitions(wrong) != of_data
    assert misplaced_files(table) == (2 if version == 2 else 3)
    trim_deletes(table)
    assert partitions(files(table, DataFileContent.POSITION_DELETES)) == of_data
    assert misplaced_files(table.refresh()) == 0
    assert [number for number, _ in rows(table)] == sorted(range(len(of_data)))


def test_readable_by_names_readers_that_miss_rows_of_partitions(table: Table) -> None:
    found = check_readable_by(table, (PYICEBERG, DUCKDB, SNOWFLAKE))
    assert found.what == (
        "the table is not read completely by PyIceberg (up to 0.12, its conditions miss rows with "
        "doubles that are no floats: the table is partitioned by identity of a double), DuckDB (up "
        "to 1.5.5, its conditions miss rows with NaN: the table is partitioned by identity of a "
        "double)"
    )
    assert found.severity == "warning"
    assert READ_ALL_FILES in str(found.remediation)


@given(st.floats(), st.sampled_from(["<d", "<f"]), st.floats() | st.none())
def test_exact_partition_is_the_value_of_equal_bounds(
    value: float, width: str, stored: float | None
) -> None:
    with np.errstate(over="ignore"):
        value = float(np.float32(value)) if width == "<f" else value
    bound = struct.pack(width, value)
    bounds = {} if math.isnan(value) else {"lower_bounds": {2: bound}, "upper_bounds": {2: bound}}
    exact = exact_partition(new_file(0, partition=Record(stored), **bounds), SPEC)
    if stored is None or math.isnan(value):
        assert exact is None
    else:
        assert repr(stored if exact is None else exact[0]) == repr(value + 0.0)
