"""Each transform of each type: a reader finds all rows, or ``readable_by`` says which it misses.

Spark is in ``tests/integration/test_format_versions.py``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from format_versions import allow_version_3, duckdb_rows, upgrade
from hypothesis import given
from hypothesis import strategies as st
from partition_matrix import CASES, Case, Question, is_nan
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType

from topicberg.checks.table import check_partition_values, check_readable_by
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.files import exact_partition, live_files
from topicberg.iceberg.manifests import new_file, set_partition
from topicberg.iceberg.position_deletes import FileRows, delete_rows, misplaced_files, trim_deletes
from topicberg.iceberg.readers import (
    BEFORE_1970,
    DUCKDB,
    PYICEBERG,
    READ_ALL_FILES,
    SNOWFLAKE,
    _may_have,
)
from topicberg.query import load_extensions
from topicberg_local.emulators.snowflake.engine import Engine
from topicberg_local.emulators.snowflake.iceberg import Metadata, select

HARD = {
    *("identity(double)", "truncate[2](string)", "truncate[10](decimal(38, 10))"),
    *("day(timestamptz)", "day(date)"),
}
Ask = Callable[[Question], frozenset[int]]


def each_case(cases: set[str]) -> pytest.MarkDecorator:
    """Return all cases, of which those that are not named are slow."""
    marks = ((case, () if str(case) in cases else pytest.mark.slow) for case in CASES)
    return pytest.mark.parametrize(
        "case", [pytest.param(case, marks=mark, id=str(case)) for case, mark in marks]
    )


def missed(case: Case, ask: Ask) -> dict[str, tuple[frozenset[int], frozenset[int]]]:
    """Return the questions that were answered with other rows: those expected and found."""
    rows = {f"{q.comparison} {q.value!r}": (q.ids, ask(q)) for q in case.questions()}
    return {text: (ids, found) for text, (ids, found) in rows.items() if ids != found}


def in_duckdb(connection: duckdb.DuckDBPyConnection, case: Case, relation: str) -> Ask:
    def ask(question: Question) -> frozenset[int]:
        query = f"SELECT id FROM {relation} WHERE {question.sql(case.kind, 'duckdb')}"
        return frozenset(number for (number,) in connection.execute(query).fetchall())

    return ask


def path_of(table: Table) -> str:
    return urlsplit(table.metadata_location).path


@each_case(HARD)
def test_duckdb_finds_all_rows_as_topicberg_queries_it(case: Case, catalog: SqlCatalog) -> None:
    table = case.create(catalog, "shop")
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_extensions(connection)
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
        ask = in_duckdb(connection, case, f"iceberg_scan('{path_of(table)}')")
        try:
            is_wrong = bool(missed(case, ask))
        except duckdb.InternalException:  # an error of the extension; nothing runs after it
            is_wrong = True
        misses = bool(DUCKDB.misses(table))
        assert is_wrong == misses if str(case) in HARD else is_wrong <= misses
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_extensions(connection)
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
        if is_wrong:
            connection.execute(READ_ALL_FILES)
            ask = in_duckdb(connection, case, f"iceberg_scan('{path_of(table)}')")
            assert not missed(case, ask)


@each_case({"month(timestamptz)"})
def test_emulator_of_snowflake_finds_all_rows(
    case: Case, catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOPICBERG_S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    path = path_of(case.create(catalog, "shop"))
    query = select(Metadata.parse(path, Path(path).read_bytes()), path)
    assert not missed(case, in_duckdb(Engine(tmp_path / "snowflake").cursor(), case, f"({query})"))


@each_case({"identity(double)"})
def test_pyiceberg_finds_all_rows_or_is_named(case: Case, catalog: SqlCatalog) -> None:
    table = case.create(catalog, "shop")
    nan = {number for number, value in enumerate(case.values) if is_nan(value)}

    def ask(question: Question) -> frozenset[int]:
        value: Any = question.value
        if is_nan(value) and question.comparison != "=":
            return question.ids
        if isinstance(case.kind, FloatType) and abs(value or 0) == math.inf:
            return question.ids  # PyIceberg takes it for a double beyond all floats, in any table
        try:
            scan = table.scan(row_filter=question.expression(), selected_fields=("id",))
            found = frozenset(scan.to_arrow()["id"].to_pylist())
        except OverflowError:  # year and month have no neighbours of the years 1 and 9999
            return question.ids
        # NaN is in no range, other than in SQL.
        return found if is_nan(value) or not question.ids & nan else found | nan

    assert bool(missed(case, ask)) == bool(PYICEBERG.misses(table))


@pytest.mark.parametrize(("has_nulls", "may_have"), [(True, False), (False, True)])
def test_times_before_1970_without_bounds_are_of_a_careless_writer(
    has_nulls: bool, may_have: bool
) -> None:
    """ClickHouse/ClickHouse#118905: no bounds, and yet no nulls."""
    manifest = SimpleNamespace(partitions=[PartitionFieldSummary(has_nulls, None, None, None)])
    assert _may_have(cast("ManifestFile", manifest), 0, BEFORE_1970) is may_have


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
    assert partitions(files(table, DataFileContent.POSITION_DELETES)) != of_data
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
