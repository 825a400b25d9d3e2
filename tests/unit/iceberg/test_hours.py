"""Which hours files hold: by partitions, bounds, and the files that deletes name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from format_versions import allow_version_3, assert_summary_has_hours, upgrade, written
from hypothesis import given
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform
from pyiceberg.types import DateType, LongType, NestedField, TimestamptzType

from topicberg.iceberg.files import live_files
from topicberg.iceberg.hours import (
    EVERYTHING,
    MAX_SUMMARY_RANGES,
    NO_TIME,
    SUMMARY,
    Hours,
    coarse,
    common,
    union,
    without,
)
from topicberg.iceberg.position_deletes import FileRows, delete_rows
from topicberg.iceberg.snapshots import affected_hours, held_hours
from topicberg.iceberg.summaries import END_OFFSETS, PICKED_FROM, summary
from topicberg.iceberg.table import keep_bounds
from topicberg.tableflow.values.commit import add_files

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = int(START.timestamp()) // 3600
TIME = "$$timestamp"
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, TIME, TimestamptzType()),
    NestedField(3, "day", DateType()),
)
NO_BOUNDS = {"write.metadata.metrics.default": "none"}


HOURLY = PartitionSpec(PartitionField(2, 1000, HourTransform(), "hour"))


def rows_of(*hours: int | None) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for hour in hours:
        at = None if hour is None else START + timedelta(hours=hour)
        rows.append({"id": hour, TIME: at, "day": at.date() if at else None})
    return pa.Table.from_pylist(rows, schema_to_pyarrow(SCHEMA))


def append(table: Table, *hours: int | None) -> None:
    table.append(rows_of(*hours))


def commit(table: Table, replaced: list[FileRows], *hours: int | None, column: str = TIME) -> None:
    """Commit a batch, as the engine does it."""
    head = table.metadata.current_snapshot_id
    files = [file for hour in hours for file in written(table, rows_of(hour))]
    add_files(table, head, files, replaced, {END_OFFSETS: "{}"}, time=column)
    table.refresh()


def affected(table: Table, column: str = TIME) -> list[Hours]:
    head = table.refresh().current_snapshot()
    assert head
    return [
        each if each == NO_TIME else Hours(each.start - FIRST, each.stop - FIRST)
        for each in affected_hours(table, head, column)
    ]


def test_files_hold_the_hours_of_their_bounds(catalog: SqlCatalog) -> None:
    table = catalog.create_table("shop.orders", SCHEMA)
    for hours, expected in (
        ((3, 5), [Hours(3, 6)]),
        ((None, 3), [NO_TIME, Hours(3, 4)]),
        ((None, None), [NO_TIME]),
        ((24 * 365 * 200,), [Hours(24 * 365 * 200, 24 * 365 * 200 + 1)]),
    ):
        append(table, *hours)
        assert affected(table) == expected
        assert affected(table, "day")[-1].stop % 24 == 0 or expected == [NO_TIME]


def test_files_without_bounds_hold_every_hour(catalog: SqlCatalog) -> None:
    table = catalog.create_table("shop.orders", SCHEMA, properties=NO_BOUNDS)
    append(table, 3)
    assert held_hours(table, TIME) == [EVERYTHING]
    with table.update_schema() as update:
        update.add_column("later", TimestamptzType())
    assert held_hours(table, "later") == [EVERYTHING]


def test_deletes_change_the_hours_of_the_files_they_name(catalog: SqlCatalog) -> None:
    table = catalog.create_table("shop.orders", SCHEMA)
    append(table, 1, 2)
    append(table, 50)
    append(table, 99)
    files = {task.file.record_count: task.file for task in table.scan().plan_files()}
    delete_rows(table, [FileRows(files[2], np.array([0], np.uint32))], {}, ())
    table.refresh()
    assert affected(table) == [Hours(1, 3)]


@pytest.mark.parametrize(
    ("version", "spec", "column"),
    [(version, spec, TIME) for version in (2, 3) for spec in (PartitionSpec(), HOURLY)]
    + [(2, PartitionSpec(), "day")],
)
def test_summary_of_a_batch_has_the_hours_of_its_files(
    catalog: SqlCatalog,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    spec: PartitionSpec,
    column: str,
) -> None:
    """Those of added rows, and of the data files of which it deletes rows, as manifests say."""
    allow_version_3(monkeypatch)
    table = catalog.create_table("shop.orders", SCHEMA, partition_spec=spec)
    random = Random(version)
    if version == 3:
        table = upgrade(catalog, table)
    for _ in range(5):
        data = [file for file in live_files(table) if file.content == DataFileContent.DATA]
        chosen = random.sample(data, min(len(data), random.randrange(3)))
        replaced = [FileRows(file, np.array([0], np.uint32)) for file in chosen]
        hours = [random.choice([None, *range(-60, 60)]) for _ in range(random.randrange(4))]
        commit(table, replaced, *hours, column=column)
        assert_summary_has_hours(table, column)


def test_hours_of_a_batch_need_no_manifest(catalog: SqlCatalog) -> None:
    table = catalog.create_table("shop.orders", SCHEMA)
    commit(table, [], 3, 50)
    head = table.current_snapshot()
    for path in (head.manifest_list, *(m.manifest_path for m in head.manifests(table.io))):
        table.io.delete(path)
    assert affected(table) == [Hours(3, 4), Hours(50, 51)]


@pytest.mark.parametrize("count", [MAX_SUMMARY_RANGES, MAX_SUMMARY_RANGES + 1])
def test_summary_with_too_many_ranges_is_left_to_the_manifests(
    catalog: SqlCatalog, count: int
) -> None:
    table = catalog.create_table("shop.orders", SCHEMA, partition_spec=HOURLY)
    add_files(table, None, written(table, rows_of(*range(0, 2 * count, 2))), [], {}, time=TIME)
    head = table.refresh().current_snapshot()
    assert head
    assert (SUMMARY in summary(head)) is (count == MAX_SUMMARY_RANGES)
    assert len(summary(head).get(SUMMARY, "")) < 2_000
    assert affected(table) == [Hours(hour, hour + 1) for hour in range(0, 2 * count, 2)]


def test_hours_of_a_picked_snapshot_are_those_of_its_files(catalog: SqlCatalog) -> None:
    """Another tool may have copied the summary of the snapshot that it picked."""
    table = catalog.create_table("shop.orders", SCHEMA)
    commit(table, [], 3)
    copied = summary(table.metadata.snapshots[0])[SUMMARY]
    table.append(rows_of(7), snapshot_properties={SUMMARY: copied, PICKED_FROM: "1"})
    assert affected(table) == [Hours(7, 8)]


def test_columns_beyond_the_hundredth_keep_their_bounds(catalog: SqlCatalog) -> None:
    columns = [NestedField(n, f"c{n}", LongType()) for n in range(1, 1200)]
    schema = Schema(*columns, NestedField(1200, TIME, TimestamptzType()))
    table = catalog.create_table("shop.wide", schema)
    keep_bounds(table, [TIME, "c7", "missing"])
    table.refresh()
    wanted = {f"write.metadata.metrics.column.{name}": "truncate(16)" for name in (TIME, "c7")}
    assert {key: table.properties[key] for key in wanted} == wanted
    assert not any("missing" in key for key in table.properties)
    location = table.metadata_location
    keep_bounds(table, [TIME])
    assert table.refresh().metadata_location == location, "nothing to do"
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.column.c7": "none"})
    keep_bounds(table, ["c7"])
    assert table.refresh().properties["write.metadata.metrics.column.c7"] == "none"


some = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 8)).map(lambda h: Hours(h[0], h[0] + h[1])),
    max_size=8,
)


def hours_of(ranges: list[Hours]) -> set[int]:
    return {hour for each in ranges for hour in each}


@given(some, st.integers(1, 4), st.integers(0, 50), st.integers(0, 20))
def test_ranges_are_sets_of_hours(ranges: list[Hours], limit: int, start: int, width: int) -> None:
    assert hours_of(union(ranges)) == hours_of(ranges)
    assert all(a.stop < b.start for a, b in zip(union(ranges), union(ranges)[1:], strict=False))
    assert hours_of(coarse(ranges, limit)) >= hours_of(ranges)
    assert len(coarse(ranges, limit)) <= limit
    removed = Hours(start, start + width)
    assert hours_of(common(ranges, [removed])) == hours_of(ranges) & {*removed}
    assert common(ranges, ranges) == union(ranges)
    assert hours_of(without(ranges, removed)) == hours_of(ranges) - set(removed)
