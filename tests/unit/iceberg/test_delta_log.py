"""The Delta log over an Iceberg table's files, without a stack: tables of PyIceberg in a folder."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypothesis
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from topicberg.errors import TableflowError
from topicberg.iceberg import delta
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.delta.log import CHECKPOINT_EVERY
from topicberg.iceberg.delta.sync import statistics
from topicberg.iceberg.files import live_files
from topicberg.iceberg.names import name_in_files
from topicberg.topics import TopicSpec

Row = dict[str, Any]
MakeTable = Callable[..., Table]

ORDER = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "note", StringType()))
NESTED = Schema(
    NestedField(1, "id", IntegerType()),
    NestedField(2, "$$offset", LongType()),
    NestedField(
        3,
        "place",
        StructType(
            NestedField(4, "post code", StringType()), NestedField(5, "height", FloatType())
        ),
    ),
    NestedField(
        6, "items", ListType(7, StructType(NestedField(8, "é-price", DecimalType(8, 2))), False)
    ),
    NestedField(9, "$$headers", MapType(10, StringType(), 11, BinaryType(), False)),
    NestedField(12, "at", TimestamptzType()),
    NestedField(13, "local", TimestampType()),
    NestedField(14, "day", DateType()),
    NestedField(15, "fixed", FixedType(3)),
)


def spec(*formats: str) -> TopicSpec:
    return TopicSpec.model_validate(
        {
            "name": "orders",
            "pipeline": "shop",
            "schema": {"format": "avro", "file": "orders.avsc"},
            "tableflow": {"table_formats": formats},
        }
    )


BOTH = spec("ICEBERG", "DELTA")


@pytest.fixture
def make_table(tmp_path: Path) -> MakeTable:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")

    def make(schema: Schema = ORDER, **more: Any) -> Table:
        return catalog.create_table("shop.orders", schema=schema, **more)

    return make


def append(table: Table, *rows: Row) -> None:
    table.append(pa.Table.from_pylist(list(rows), schema=table.schema().as_arrow()))


def by_id(rows: pa.Table) -> list[Row]:
    return sorted(rows.to_pylist(), key=lambda row: str(row["id"]))


def delta_rows(table: Table, predicate: str | None = None) -> list[Row]:
    return by_id(pa.table(DeltaTable(table.location()).scan(predicate=predicate)))


def iceberg_rows(table: Table) -> list[Row]:
    return by_id(table.scan().to_arrow())


def folder(table: Table) -> Path:
    return Path(urlsplit(table.location()).path)


def versions(table: Table) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder(table) / "_delta_log").glob("0*.json")}


def actions(table: Table, version: int) -> list[Row]:
    path = folder(table) / "_delta_log" / f"{version:020}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds(table: Table, version: int) -> list[str]:
    return [next(iter(action)) for action in actions(table, version)]


def test_nothing_without_delta_in_the_spec(make_table: MakeTable) -> None:
    table = make_table()
    append(table, {"id": 1, "note": "a"})
    assert delta.sync(table, spec("ICEBERG")) is None
    assert not (folder(table) / "_delta_log").exists()


def test_one_version_for_each_snapshot_over_the_same_files(make_table: MakeTable) -> None:
    table = make_table()
    first = delta.sync(table, BOTH)
    assert (first.version, first.snapshot_id) == (0, None)
    assert delta_rows(table) == []
    for number in range(3):
        append(table, {"id": number, "note": f"n{number}"})
    files, last = sorted(folder(table).rglob("*.parquet")), delta.sync(table, BOTH)
    snapshot = table.current_snapshot()
    # The first rows of a table come as one version, whatever came before.
    assert (last.version, last.snapshot_id) == (1, snapshot.snapshot_id)
    for number in range(3, 6):
        append(table, {"id": number, "note": f"n{number}"})
    last = delta.sync(table, BOTH)
    assert last.version == 4
    assert kinds(table, 4) == ["commitInfo", "add"]
    assert delta_rows(table) == iceberg_rows(table)
    assert len(sorted(folder(table).rglob("*.parquet"))) == len(files) + 3


def test_without_news_nothing_is_written(make_table: MakeTable) -> None:
    table = make_table()
    append(table, {"id": 1, "note": "a"})
    first, before = delta.sync(table, BOTH), versions(table)
    assert delta.sync(table, BOTH) == first
    assert versions(table) == before


def test_no_other_writer_can_harm_the_table(make_table: MakeTable) -> None:
    """A vacuum would remove Iceberg's metadata, which Delta does not know."""
    table = make_table()
    append(table, {"id": 1, "note": "a"})
    delta.sync(table, BOTH)
    table_of_delta = DeltaTable(table.location())
    for write in (
        lambda: table_of_delta.vacuum(0, False, False, full=True),
        lambda: table_of_delta.delete("id = 1"),
    ):
        with pytest.raises(DeltaError, match="topicberg"):
            write()
    assert iceberg_rows(table) == [{"id": 1, "note": "a"}]


def test_every_type_and_encoded_names(make_table: MakeTable) -> None:
    table, day = make_table(NESTED), datetime(2024, 5, 1, 12, tzinfo=UTC)
    append(
        table,
        *(
            {
                "id": number,
                "$$offset": number,
                "place": {"post code": f"code {number}", "height": number / 4},
                "items": [{"é-price": Decimal(number) / 4}],
                "$$headers": {"k": b"v"},
                "at": day + timedelta(microseconds=number),
                "local": day.replace(tzinfo=None) + timedelta(microseconds=number),
                "day": date(2024, 5, 1) + timedelta(days=number),
                "fixed": b"abc",
            }
            for number in range(5)
        ),
    )
    append(table, dict.fromkeys(table.schema().column_names))
    delta.sync(table, BOTH)
    assert delta_rows(table) == iceberg_rows(table)
    assert len(delta_rows(table, '"$$offset" = 3')) == 1
    assert len(delta_rows(table, "at > '2024-05-01T12:00:00.000003Z'")) == 1


def test_dropped_column_is_left_out_and_wider_one_is_read(make_table: MakeTable) -> None:
    table = make_table()
    append(table, {"id": 1, "note": "old"})
    delta.sync(table, BOTH)
    with table.update_schema() as update:
        update.delete_column("note")
        update.update_column("id", LongType())
    delta.sync(table, BOTH)
    assert kinds(table, 1) == ["commitInfo", "protocol", "metaData"]
    assert DeltaTable(table.location()).protocol().min_reader_version == 1, "of plain names"
    append(table, {"id": 2**40})
    delta.sync(table, BOTH)
    assert delta_rows(table) == [{"id": 1}, {"id": 2**40}]
    assert len(delta_rows(table, "id > 1")) == 1
    with table.update_schema() as update:
        update.add_column("note", StringType())
    with pytest.raises(TableflowError, match="note had another name before"):
        delta.sync(table, BOTH)


def test_a_renamed_column_is_refused(make_table: MakeTable) -> None:
    table = make_table()
    with table.update_schema() as update:
        update.rename_column("note", "remark")
    with pytest.raises(TableflowError, match="remark had another name before"):
        delta.sync(table, BOTH)


@pytest.mark.parametrize(
    ("name", "in_files"),
    [
        ("$$offset", "_x24_x24offset"),
        ("1a", "_1a"),
        ("a1_é", "a1_é"),
        ("a b²", "a_x20b_xB2"),
        ("😀", "_xD83D_xDE00"),
    ],
)
def test_names_as_icebergs_java_library_writes_them(name: str, in_files: str) -> None:
    assert name_in_files(name) == in_files


def test_a_file_that_is_removed_and_added_at_once_stays(make_table: MakeTable) -> None:
    """apache/iceberg#17304."""
    table = make_table()
    append(table, {"id": 1, "note": "a"})
    delta.sync(table, BOTH)
    (file,) = live_files(table)
    change = SnapshotChange(table, Operation.OVERWRITE)
    change.remove([file])
    change.add([file])
    change.commit()
    delta.sync(table, BOTH)
    assert kinds(table, 1) == ["commitInfo", "add"]
    assert delta_rows(table) == iceberg_rows(table) == [{"id": 1, "note": "a"}]


def test_partition_values_in_paths(make_table: MakeTable) -> None:
    by_note = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "note"))
    table = make_table(partition_spec=by_note)
    for number, note in enumerate(("a b", "50%", "ü/x", "q?#&=+", None)):
        append(table, {"id": number, "note": note})
    delta.sync(table, BOTH)
    append(table, {"id": 9, "note": "a%20b"})
    delta.sync(table, BOTH)
    assert delta_rows(table) == iceberg_rows(table)
    table.delete("id > 1")
    table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    delta.sync(table, BOTH)
    assert delta_rows(table) == iceberg_rows(table)
    assert len(DeltaTable(table.location()).file_uris()) == 2


def test_a_rollback_is_followed(make_table: MakeTable) -> None:
    table = make_table()
    append(table, {"id": 1, "note": "a"})
    kept = table.current_snapshot()
    append(table, {"id": 2, "note": "b"})
    delta.sync(table, BOTH)
    table.manage_snapshots().rollback_to_snapshot(kept.snapshot_id).commit()
    append(table, {"id": 3, "note": "c"})
    delta.sync(table, BOTH)
    assert [row["id"] for row in delta_rows(table)] == [1, 3]


@pytest.mark.parametrize("kept", range(5))
def test_killed_anywhere_the_log_is_the_same(make_table: MakeTable, kept: int) -> None:
    """Versions are written in order: a kill leaves the first ones."""
    table = make_table()
    append(table, {"id": 0, "note": "n"})
    delta.sync(table, BOTH)
    for number in range(1, 4):
        append(table, {"id": number, "note": "n"})
    table.delete("id = 1")
    delta.sync(table, BOTH)
    whole = versions(table)
    assert len(whole) == 5
    for name in sorted(whole)[max(kept, 1) :]:
        (folder(table) / "_delta_log" / name).unlink()
    delta.sync(table, BOTH)
    assert versions(table) == whole


def test_two_writers_write_one_log(make_table: MakeTable) -> None:
    table = make_table()
    append(table, {"id": 0, "note": "n"})
    delta.sync(table, BOTH)
    for number in range(1, 12):
        append(table, {"id": number, "note": "n"})
    together = threading.Barrier(3)
    failed: list[Exception] = []

    def run() -> None:
        together.wait()
        try:
            delta.sync(table, BOTH)
        except Exception as error:
            failed.append(error)

    writers = [threading.Thread(target=run) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    delta.sync(table, BOTH)
    assert len(versions(table)) == 12
    assert delta_rows(table) == iceberg_rows(table)


def test_writer_that_another_overtakes_does_not_go_back(make_table: MakeTable) -> None:
    table = make_table()
    append(table, {"id": 0, "note": "n"})
    delta.sync(table, BOTH)
    earlier = table.catalog.load_table(table.name())
    append(table, {"id": 1, "note": "n"})
    delta.sync(table, BOTH)
    whole = versions(table)
    delta.sync(earlier, BOTH)
    assert versions(table) == whole


def test_checkpoints_and_old_logs(make_table: MakeTable) -> None:
    table = make_table(NESTED)
    for number in range(CHECKPOINT_EVERY + 3):
        append(table, {"id": number})
        delta.sync(table, BOTH)
    log = folder(table) / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == CHECKPOINT_EVERY
    assert delta_rows(table) == iceberg_rows(table)
    for path in log.iterdir():
        os.utime(path, (0, 0))
    for number in range(CHECKPOINT_EVERY):
        append(table, {"id": 100 + number})
        delta.sync(table, BOTH)
    assert not (log / f"{0:020}.json").exists()
    assert delta_rows(table) == iceberg_rows(table)
    for path in log.iterdir():
        os.utime(path, (0, 0))
    append(table, {"id": 1000})
    delta.sync(table, BOTH)
    assert delta_rows(table) == iceberg_rows(table)


def test_foreign_versions_are_refused(make_table: MakeTable) -> None:
    table = make_table()
    append(table, {"id": 1, "note": "a"})
    delta.sync(table, BOTH)
    path = folder(table) / "_delta_log" / f"{1:020}.json"
    path.write_text('{"commitInfo":{"operation":"OPTIMIZE"}}\n')
    with pytest.raises(TableflowError, match=r"version 1 .* OPTIMIZE"):
        delta.sync(table, BOTH)
    path.write_text("torn")
    with pytest.raises(TableflowError, match="Delta log cannot be updated"):
        delta.sync(table, BOTH)


def test_sync_after_a_version_that_a_full_disk_cut_off_reports_it(make_table: MakeTable) -> None:
    table = make_table()
    for number in range(2):
        append(table, {"id": number, "note": "x"})
        delta.sync(table, BOTH)
    newest = folder(table) / "_delta_log" / f"{1:020}.json"
    newest.write_bytes(newest.read_bytes()[:-20])
    append(table, {"id": 2, "note": "x"})
    with pytest.raises(TableflowError, match="cannot be updated"):
        delta.sync(table, BOTH)
    assert len(versions(table)) == 2, "its rows are not left out in silence"


def test_a_type_that_delta_lacks(make_table: MakeTable) -> None:
    table = make_table(Schema(NestedField(1, "id", StructType(NestedField(2, "t", TimeType())))))
    with pytest.raises(TableflowError, match=r"no type for column id\.t, a time"):
        delta.sync(table, BOTH)


_NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="."),
    min_size=1,
    max_size=6,
)
_PRIMITIVES: list[IcebergType] = [
    *(BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), StringType()),
    *(BinaryType(), DateType(), TimestampType(), TimestamptzType(), DecimalType(10, 2)),
    *(FixedType(4), UUIDType()),
]


@st.composite
def _schemas(draw: st.DrawFn) -> Schema:
    ids = iter(range(1, 10_000))

    def kind(depth: int) -> IcebergType:
        nested = draw(st.sampled_from(["", "struct", "list", "map"] if depth else [""]))
        if nested == "struct":
            return StructType(*fields(depth - 1))
        if nested == "list":
            return ListType(next(ids), kind(depth - 1), draw(st.booleans()))
        if nested == "map":
            return MapType(next(ids), StringType(), next(ids), kind(depth - 1), draw(st.booleans()))
        return draw(st.sampled_from(_PRIMITIVES))

    def fields(depth: int) -> list[NestedField]:
        names = draw(st.lists(_NAMES, min_size=1, max_size=4, unique_by=str.lower))
        return [NestedField(next(ids), n, kind(depth), required=draw(st.booleans())) for n in names]

    return Schema(*fields(2))


@hypothesis.settings(max_examples=30)
@given(_schemas())
def test_schemas_are_what_delta_reads(tmp_path_factory: pytest.TempPathFactory, it: Schema) -> None:
    root = tmp_path_factory.mktemp("t")
    catalog = SqlCatalog("c", uri="sqlite:///:memory:", warehouse=f"file://{root}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=it)
    delta.sync(table, BOTH)
    read = DeltaTable(table.location())
    assert [field.name for field in read.schema().fields] == [field.name for field in it.fields]
    assert DeltaSchema.from_json(read.schema().to_json()) == read.schema()


_VALUES: list[tuple[PrimitiveType, st.SearchStrategy[Any]]] = [
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (DoubleType(), st.floats(allow_nan=False)),
    (StringType(), st.text(max_size=8)),
    (DateType(), st.integers(-(2**31), 2**31 - 1)),
    (TimestampType(), st.integers(-(2**63), 2**63 - 1)),
    (TimestamptzType(), st.integers(-(2**55), 2**55)),
    (DecimalType(20, 4), st.decimals(-(10**15), 10**15, places=4)),
]
_EPOCH = datetime(1970, 1, 1)


def _parsed(kind: PrimitiveType, text: Any) -> Any:
    if isinstance(kind, DateType):
        return (date.fromisoformat(text) - _EPOCH.date()).days
    if isinstance(kind, (TimestampType, TimestamptzType)):
        assert text.endswith("Z") == isinstance(kind, TimestamptzType)
        since = datetime.fromisoformat(text.removesuffix("Z")) - _EPOCH
        return since // timedelta(microseconds=1)
    return float(text) if isinstance(kind, DoubleType) else text


@given(st.data())
def test_bounds_are_never_narrow(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(_VALUES))
    lower, upper = sorted(data.draw(st.lists(values, min_size=2, max_size=2)))
    file = DataFile.from_args(
        record_count=2,
        lower_bounds={1: to_bytes(kind, lower)},
        upper_bounds={1: to_bytes(kind, upper)},
        null_value_counts={1: 0},
        nan_value_counts={1: 0},
    )
    struct = StructType(NestedField(1, "$$c", kind))
    written = json.loads(statistics(file, struct), parse_float=Decimal)
    assert written["numRecords"] == 2
    assert written["nullCount"] == {"_x24_x24c": 0}
    if not written["minValues"]:
        assert isinstance(kind, (DateType, TimestampType, TimestamptzType, DoubleType))
        assert written["maxValues"] == {}
        return
    assert _parsed(kind, written["minValues"]["_x24_x24c"]) <= lower
    assert _parsed(kind, written["maxValues"]["_x24_x24c"]) >= upper


@pytest.mark.parametrize(("upper", "nans"), [(2.0, 1), (0.5, 0)])
def test_bounds_with_nan_or_in_the_wrong_order_are_left_out(upper: float, nans: int) -> None:
    file = DataFile.from_args(
        record_count=2,
        lower_bounds={1: to_bytes(DoubleType(), 1.0)},
        upper_bounds={1: to_bytes(DoubleType(), upper)},
        nan_value_counts={1: nans},
    )
    written = statistics(file, StructType(NestedField(1, "c", DoubleType())))
    assert json.loads(written)["maxValues"] == {}
