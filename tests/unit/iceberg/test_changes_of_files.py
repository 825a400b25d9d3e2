"""Snapshots of format version 3: row ids in manifests, manifest lists, snapshots and the table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from format_versions import allow_version_3, append, data_files, upgrade
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import RESTError
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, DataFile, DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from topicberg.errors import CommitConflictError, TableFormatError
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.commits import lacks_snapshot
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.files import live_files
from topicberg.iceberg.maintenance.ttl import drop_files
from topicberg.iceberg.manifests import is_vector, read_entries, read_manifests, write_manifest_list
from topicberg.iceberg.position_deletes import FileRows, delete_rows, live_rows, trim_deletes
from topicberg.iceberg.snapshots import affected_hours, report
from topicberg.iceberg.summaries import summary

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = int(START.timestamp()) // 3600
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()))


@pytest.fixture(autouse=True)
def _version_3(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_version_3(monkeypatch)


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return catalog.create_table("shop.orders", SCHEMA, properties={"format-version": "2"})


def add(table: Table, *hours: int) -> None:
    rows = [{"id": hour, "at": START + timedelta(hours=hour)} for hour in hours]
    append(table.refresh(), pa.Table.from_pylist(rows, SCHEMA.as_arrow()))
    table.refresh()


def row_ids(table: Table) -> list[tuple[int | None, int]]:
    """First row id and number of rows of each data file, as a reader inherits them."""
    head = table.current_snapshot()
    assert head is not None
    found = []
    for manifest in read_manifests(table.io, head):
        for entry in read_entries(table.io, manifest):
            if entry.data_file.content == DataFileContent.DATA:
                found.append((entry.data_file[16], entry.data_file.record_count))
    return sorted(found)


def data(table: Table) -> list[DataFile]:
    files = [f for f in live_files(table) if f.content == DataFileContent.DATA]
    return sorted(files, key=lambda file: file.record_count)


def delete(table: Table, *rows: tuple[DataFile, list[int]]) -> None:
    found = [FileRows(file, np.array(places, np.uint32)) for file, places in rows]
    delete_rows(table, found, {}, ())
    table.refresh()


def next_row_id(table: Table) -> int | None:
    assert isinstance(table.metadata, TableMetadataV3)
    return table.metadata.next_row_id


def test_row_ids_are_assigned_once(catalog: SqlCatalog, table: Table) -> None:
    table = upgrade(catalog, table)
    add(table, 1, 2, 3)
    add(table, 4, 5)
    assert row_ids(table) == [(0, 3), (3, 2)]
    delete(table, (data(table)[0], [1]))
    head = table.current_snapshot()
    assert head is not None
    assert (head.first_row_id, head.added_rows, next_row_id(table)) == (5, 0, 5)
    assert row_ids(table) == [(0, 3), (3, 2)]


def test_upgraded_files_get_row_ids_with_the_next_snapshot(
    catalog: SqlCatalog, table: Table
) -> None:
    add(table, 1, 2, 3)
    add(table, 4, 5)
    table = upgrade(catalog, table)
    assert row_ids(table) == [(None, 2), (None, 3)] or row_ids(table) == [(None, 3), (None, 2)]
    SnapshotChange(table, Operation.APPEND, properties={"note": "x"}).commit({"note": "x"})
    table.refresh()
    assert sum(rows for _, rows in row_ids(table)) == next_row_id(table) == 5
    ids = [n for first, rows in row_ids(table) for n in range(first or 0, (first or 0) + rows)]
    assert sorted(ids) == [*range(5)]
    assert table.properties["note"] == "x"
    add(table, 6)
    assert row_ids(table)[-1] == (5, 1)


def test_row_ids_stay_when_a_manifest_is_written_again(catalog: SqlCatalog, table: Table) -> None:
    table = upgrade(catalog, table)
    change = SnapshotChange(table, Operation.APPEND)
    for hours in ((1, 2, 3), (50,), (60, 61)):
        rows = [{"id": hour, "at": START + timedelta(hours=hour)} for hour in hours]
        change.add(data_files(table, pa.Table.from_pylist(rows, SCHEMA.as_arrow())))
    change.commit()
    table.refresh()
    assert row_ids(table) == [(0, 3), (3, 1), (4, 2)]
    cutoff = START + timedelta(hours=10)
    delete(table, (data(table)[2], [0]), (data(table)[1], [1]))
    assert drop_files(table, "at", cutoff) == 2, "one of three rows was deleted before"
    table.refresh()
    assert row_ids(table) == [(3, 1), (4, 2)]
    assert [is_vector(file) for file in live_files(table)].count(True) == 1
    assert live_rows(table) == 2
    head = table.current_snapshot()
    assert head is not None
    assert report(head).total_records == 2
    assert summary(head)["removed-dvs"] == "1"


def test_vector_changes_the_hours_of_its_data_file(catalog: SqlCatalog, table: Table) -> None:
    table = upgrade(catalog, table)
    add(table, 1, 2)
    add(table, 50)
    head = table.current_snapshot()
    delete(table, (data(table)[1], [0]))
    head = table.current_snapshot()
    assert head is not None
    assert {hour - HOUR for hours in affected_hours(table, head, "at") for hour in hours} == {1, 2}
    facts = report(head)
    assert (facts.deleted_records, facts.total_records) == (1, 2)
    delete(table, (data(table)[1], [1]))
    head = table.current_snapshot()
    assert head is not None
    facts = report(head)
    assert (facts.deleted_records, facts.total_records) == (1, 1)


def test_trim_replaces_delete_files_of_an_upgraded_table(catalog: SqlCatalog, table: Table) -> None:
    add(table, 1, 2, 3)
    add(table, 50, 51)
    delete(table, (data(table)[0], [0]), (data(table)[1], [2]))
    table = upgrade(catalog, table)
    assert live_rows(table) == 3
    assert trim_deletes(table) == 1
    table.refresh()
    deletes = [file for file in live_files(table) if file.content != DataFileContent.DATA]
    assert [is_vector(file) for file in deletes] == [True, True]
    assert live_rows(table) == table.scan().to_arrow().num_rows == 3
    head = table.current_snapshot()
    assert head is not None
    facts = report(head)
    assert (facts.operation, facts.total_records) == ("replace", 3)
    assert trim_deletes(table) == 0


def test_trim_of_upgraded_table_without_deletes_commits_one_snapshot(
    catalog: SqlCatalog, table: Table
) -> None:
    """Snowflake refreshes no upgraded table before it has a snapshot of version 3."""
    add(table, 1, 2)
    assert not lacks_snapshot(table)
    table = upgrade(catalog, table)
    assert lacks_snapshot(table)
    assert trim_deletes(table) == 0
    head = table.refresh().current_snapshot()
    assert head is not None
    assert (report(head).operation, head.first_row_id) == ("replace", 0)
    assert not lacks_snapshot(table)
    assert row_ids(table) == [(0, 2)]
    assert table.scan().to_arrow().num_rows == 2
    trim_deletes(table)
    assert table.refresh().current_snapshot() == head


def test_upgraded_table_without_rows_lacks_no_snapshot(catalog: SqlCatalog, table: Table) -> None:
    assert not lacks_snapshot(upgrade(catalog, table))


def test_refused_snapshot_is_a_conflict_if_ids_moved(
    catalog: SqlCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another branch got a snapshot: the head is the same, sequence number and row ids are not."""
    add(table, 1)
    stale = catalog.load_table("shop.orders")
    table.manage_snapshots().create_branch(stale.metadata.current_snapshot_id or 0, "b").commit()
    table.refresh().append(pa.Table.from_pylist([{"id": 9}], SCHEMA.as_arrow()), branch="b")

    def refuse(*_: object) -> None:
        raise RESTError("first-row-id is behind")

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    with pytest.raises(CommitConflictError, match="first-row-id"):
        SnapshotChange(stale, Operation.APPEND).commit()
    with pytest.raises(RESTError):
        SnapshotChange(table.refresh(), Operation.APPEND).commit()


def test_version_1_is_not_written(catalog: SqlCatalog) -> None:
    old = catalog.create_table("shop.old", SCHEMA, properties={"format-version": "1"})
    with pytest.raises(TableFormatError, match="version 1"):
        SnapshotChange(old, Operation.APPEND)


KINDS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "kind", StringType(), required=False),
)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("has_schema", [True, False])
def test_change_of_files_of_a_spec_whose_column_was_dropped_keeps_partitions(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, version: int, has_schema: bool
) -> None:
    """The schema with the column is the table's, or only that of the manifest."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))
    table = catalog.create_table("shop.kinds", KINDS, partition_spec=spec)
    table = upgrade(catalog, table) if version == 3 else table
    with DataFileWriter(WriteTarget.of(table), table.io) as writer:
        writer.write({"id": pa.array([1, 2, 3]), "kind": pa.array(["a", "b", "b"])})
    change = SnapshotChange(table, Operation.APPEND)
    change.add(writer.files)
    change.commit()
    with table.refresh().update_spec() as new_spec:
        new_spec.remove_field("kind")
    with table.refresh().update_schema() as new_schema:
        new_schema.delete_column("kind")
    table = catalog.load_table("shop.kinds")
    if not has_schema:
        schemas = {table.schema().schema_id: table.schema()}
        monkeypatch.setattr(Table, "schemas", lambda _: schemas)
    one, two = data(table)
    delete(table, (two, [1]))
    delete(table, (two, [0]))
    change = SnapshotChange(table, Operation.DELETE)
    change.remove([one])
    change.commit()
    files = live_files(table.refresh())
    assert {file.partition[0] for file in files} == {"b"}
    assert table.scan().to_arrow().num_rows == 0


def test_files_of_manifests_that_count_none_stay(catalog: SqlCatalog, table: Table) -> None:
    """icelake-io/icelake#280; and a codec of Iceberg's that PyIceberg lacks."""
    with table.transaction() as transaction:
        transaction.set_properties({"write.avro.compression-codec": "uncompressed"})
    add(table, 1, 2)
    head = table.current_snapshot()
    assert head is not None
    manifests = read_manifests(table.io, head)
    for place, field in enumerate(MANIFEST_LIST_FILE_SCHEMAS[2].fields):
        if field.name.endswith("_count"):
            manifests[0][place] = 0
    output = table.io.new_output(head.manifest_list)
    ids = {"snapshot_id": head.snapshot_id, "parent_snapshot_id": None, "sequence_number": 1}
    write_manifest_list(2, manifests, 0, output_file=output, compression="gzip", **ids)
    add(table, 3)
    assert table.scan().to_arrow().num_rows == 3
