"""Each transform of each type: a reader finds all rows, or ``readable_by`` says which it misses.

Spark is in ``tests/integration/test_format_versions.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import duckdb
import pytest
from partition_matrix import CASES, Case, Question, is_nan
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestFile, PartitionFieldSummary
from pyiceberg.table import Table
from pyiceberg.types import FloatType

from topicberg.iceberg.readers import BEFORE_1970, DUCKDB, PYICEBERG, READ_ALL_FILES, _may_have
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
    table = case.create(catalog, "shop")
    path = path_of(table)
    query = select(Metadata.parse(path, Path(path).read_bytes()), path)
    cursor = Engine(tmp_path / "snowflake").cursor()
    assert not missed(case, in_duckdb(cursor, case, f"({query})"))


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
    field = PartitionFieldSummary(has_nulls, None, None, None)
    manifest = SimpleNamespace(partitions=[field])
    assert _may_have(cast("ManifestFile", manifest), 0, BEFORE_1970) is may_have
