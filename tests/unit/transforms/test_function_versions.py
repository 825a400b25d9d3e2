"""Which version of a function computed which hours of a derived table, and what is left of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from topicberg.checks.derived import check_up_to_date
from topicberg.checks.finding import Finding
from topicberg.errors import TopicbergError
from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import _drop_unused, summary_of
from topicberg.transforms.target import ensure_table
from topicberg.transforms.unread import SourceTable
from topicberg.transforms.versions import (
    COMPUTED_BY,
    MAX_RANGES,
    UNKNOWN,
    VERSION,
    Versions,
    computed_by,
    outdated,
    recorded,
)
from topicberg.transforms.windows import Window

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = int(START.timestamp()) // 3600
COLUMNS = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64()), ("old", pa.int64())])


def window(first: int, stop: int) -> Window:
    start = START + timedelta(hours=first) if first else None
    return Window(start, START + timedelta(hours=stop))


def version_at(versions: Versions, hour: int) -> str:
    return [version for start, version in versions if start <= FIRST + hour][-1]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8), st.sampled_from("abc"))))
def test_recorded_versions_are_those_of_the_last_run(runs: list[tuple[int, int, str]]) -> None:
    versions, expected = Versions(), dict[int, str]()
    for first, number, version in runs:
        before = recorded(versions, version, [window(first, first + number)], [])
        versions = [(start, name) for start, name in json.loads(before[COMPUTED_BY])]
        base = expected or dict.fromkeys(range(40), version)
        expected = base | dict.fromkeys(range(first, first + number), version)
    assert [version_at(versions, hour) for hour in expected] == list(expected.values())
    for version in "abc":
        old = outdated(versions, version)
        for hour, name in expected.items():
            assert any(FIRST + hour in hours for hours in old) == (name != version)


def test_recorded_versions_of_very_many_ranges_are_never_called_newer() -> None:
    random, versions, expected = Random(1), Versions(), dict[int, str]()
    for number in range(2 * MAX_RANGES):
        version = random.choice("abc")
        text = recorded(versions, version, [window(number * 3 + 1, number * 3 + 2)], [])[
            COMPUTED_BY
        ]
        versions = [(start, name) for start, name in json.loads(text)]
        expected[number * 3 + 1] = version
    assert len(versions) <= MAX_RANGES
    assert all(version_at(versions, hour) in (name, UNKNOWN) for hour, name in expected.items())


@pytest.fixture
def tables(catalog: SqlCatalog) -> tuple[Table, Table]:
    """A source with a row in each of four hours, and a table with rows of others."""
    source = catalog.create_table("shop.orders", COLUMNS)
    target = catalog.create_table("shop.totals", COLUMNS)
    rows = [{"at": START + timedelta(hours=n), "id": n, "old": n} for n in range(4)]
    source.append(pa.Table.from_pylist(rows, COLUMNS))
    target.append(pa.Table.from_pylist(rows, COLUMNS))
    return source, target


def plan(version: str) -> Derivation:
    unused: Any = None
    sources = (Source(("shop", "orders"), "at"),)
    return Derivation(sources, ("shop", "totals"), unused, "at", first=START, version=version)


def compute(tables: tuple[Table, Table], version: str, first: int, stop: int, **row: int) -> None:
    """Do what a run does, but for Spark."""
    source, target = tables
    given = window(first, stop)
    unused = [] if "old" in row else ["old"]
    properties = summary_of(
        plan(version), target.refresh(), {"shop.orders": source}, [given], unused
    )
    rows = [{"at": START + timedelta(hours=n), **row} for n in range(first, stop)]
    names = [field for field in COLUMNS if field.name in target.schema().column_names]
    before = START + timedelta(hours=first)
    condition = f"at >= '{before.isoformat()}' AND at < '{given.end.isoformat()}'"
    data = pa.Table.from_pylist(rows, pa.schema(names))
    target.overwrite(data, condition, snapshot_properties=properties)
    _drop_unused(plan(version), target.refresh(), unused)


def check(tables: tuple[Table, Table], version: str, minutes: int = 0) -> Finding:
    source, target = tables
    return check_up_to_date(
        target.refresh(),
        "at",
        {"shop.orders": SourceTable(source, "at")},
        30,
        datetime.now(UTC) + timedelta(minutes=minutes),
        None,
        lambda ranges: [f"{h - FIRST:02}" for hours in ranges for h in hours if h >= FIRST],
        lambda keys: f"compute {' '.join(keys)}",
        version=version,
        recomputation=lambda keys: f"compute again {' '.join(keys)}",
    )


def test_versions_of_a_table_without_any_are_not_reported(tables: tuple[Table, Table]) -> None:
    assert computed_by(tables[1]) == []
    assert check(tables, "a").facts["outdated_partitions"] == 0


def test_versions_of_a_table_with_rows_count_as_the_first(tables: tuple[Table, Table]) -> None:
    compute(tables, "a", 0, 1, id=1, old=1)
    assert computed_by(tables[1]) == [(BEFORE_EVERYTHING, f"a@{FIRST}"), (FIRST + 1, "a")]
    assert check(tables, "a").facts["outdated_partitions"] == 0
    assert check(tables, "b").facts["outdated_partitions"] == 4


def test_versions_of_a_table_with_other_columns_are_unknown(tables: tuple[Table, Table]) -> None:
    compute(tables, "a", 0, 1, id=1)
    found = check(tables, "a")
    assert (found.passed, found.facts["outdated_partitions"]) == (False, 3)
    assert "3 partitions (01 to 03) were computed by another version" in found.what
    assert "old, which it no longer returns, will be dropped" in found.what
    assert found.remediation == "compute again 01 02 03"


def test_changed_function_is_reported_until_all_is_computed_again(
    tables: tuple[Table, Table],
) -> None:
    compute(tables, "a", 0, 4, id=1, old=1)
    assert check(tables, "a").passed
    compute(tables, "b", 2, 3, id=2)
    found = check(tables, "b")
    assert (found.facts["outdated_partitions"], found.remediation) == (3, "compute again 00 01 03")
    assert check(tables, "a").facts["outdated_partitions"] == 1  # the change was reverted
    assert "old" in tables[1].refresh().schema().column_names
    compute(tables, "b", 0, 2, id=2)
    assert "old" in tables[1].refresh().schema().column_names
    compute(tables, "b", 3, 4, id=2)
    assert tables[1].refresh().schema().column_names == ["at", "id"]
    assert check(tables, "b").passed
    assert check(tables, "a").facts["outdated_partitions"] == 4


def test_hour_that_was_never_computed_is_of_no_other_version(tables: tuple[Table, Table]) -> None:
    """What was recorded of the hours after the last computed ones is an older version."""
    compute(tables, "a", 0, 4, id=1, old=1)
    compute(tables, "b", 0, 4, id=2, old=2)
    tables[0].append(pa.Table.from_pylist([{"at": START + timedelta(hours=5)}], COLUMNS))
    found = check(tables, "b")
    assert (found.passed, found.facts["outdated_partitions"]) == (True, 0)
    assert "in 1 partition (05) were not read yet" in found.what
    late = check(tables, "b", minutes=31)
    assert (late.passed, late.remediation) == (False, "compute 05")


def test_versions_of_concurrent_runs_are_all_known(tables: tuple[Table, Table]) -> None:
    """A run knows the versions of before it began; what others wrote meanwhile is in theirs."""
    source, target = tables
    compute(tables, "a", 0, 4, id=1, old=1)
    begun = summary_of(plan("b"), target.refresh(), {"shop.orders": source}, [window(2, 3)], [])
    compute(tables, "b", 1, 2, id=1, old=1)
    target.refresh().append(COLUMNS.empty_table(), snapshot_properties=begun)
    versions = computed_by(target.refresh())
    assert [version_at(versions, hour) for hour in range(4)] == [f"a@{FIRST}", "b", "b", "a"]
    assert begun[VERSION] == "b"


def test_first_partition_that_begins_earlier_is_outdated(tables: tuple[Table, Table]) -> None:
    """What the function computed at once is in partitions of their own then."""
    compute(tables, "a", 0, 4, id=1, old=1)
    versions = computed_by(tables[1].refresh())
    for start, expected in ((FIRST, []), (FIRST + 2, []), (FIRST - 2, [FIRST + 1])):
        old = outdated(versions, "a", Hours(start, start + 1))
        assert [hours.stop for hours in old] == expected
    begun = summary_of(plan("b"), tables[1], {"shop.orders": tables[0]}, [window(0, 4)], [])
    tables[1].append(COLUMNS.empty_table(), snapshot_properties=begun)
    assert version_at(computed_by(tables[1].refresh()), 0) == f"b@{FIRST}"


def test_time_column_with_another_name_is_refused(catalog: SqlCatalog) -> None:
    from topicberg.clients.catalog import TABLES

    catalog.properties[TABLES] = catalog.properties["warehouse"] + "/"
    ensure_table(catalog, ("shop", "totals"), COLUMNS, ("at", "hour"))
    columns = COLUMNS.append(pa.field("moment", pa.timestamp("us", "UTC")))
    with pytest.raises(TopicbergError, match="its event time is now moment") as refused:
        ensure_table(catalog, ("shop", "totals"), columns, ("moment", "hour"))
    assert (refused.value.hint or "").startswith("name the event time at again")
