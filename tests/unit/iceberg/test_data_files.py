"""Data files that are written without Spark, on a table in a folder."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions import GreaterThanOrEqual
from pyiceberg.expressions.literals import literal
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.data_files import (
    DataFileWriter,
    Target,
    UnsupportedWriteError,
    dump_file,
    load_file,
    repeated,
)

SCHEMA = Schema(
    NestedField(1, "$$time", TimestamptzType(), required=False),
    NestedField(2, "kind", StringType(), required=False),
    NestedField(3, "day", DateType(), required=False),
    NestedField(4, "price", DecimalType(9, 2), required=False),
    NestedField(5, "number", LongType(), required=False),
)
SPEC = PartitionSpec(
    PartitionField(1, 1000, DayTransform(), "time_day"),
    PartitionField(2, 1001, IdentityTransform(), "kind"),
    PartitionField(3, 1002, IdentityTransform(), "day"),
)


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "$$time": datetime(2026, 1, 1 + n % 3, n % 24, tzinfo=UTC) if n % 7 else None,
            "kind": ("a/b", "ü", None)[n % 3],
            "day": date(1969, 12, 31) if n % 2 else None,
            "price": Decimal(n).scaleb(-2),
            "number": n,
        }
        for n in range(count)
    ]


def columns(found: list[dict[str, Any]]) -> dict[str, pa.Array]:
    table = pa.Table.from_pylist(
        found,
        schema=pa.schema(
            [
                ("$$time", pa.timestamp("us", "UTC")),
                ("kind", pa.string()),
                ("day", pa.date32()),
                ("price", pa.decimal128(9, 2)),
                ("number", pa.int64()),
            ]
        ),
    )
    return {name: table.column(name).combine_chunks() for name in table.column_names}


def make_table(folder: Path, spec: PartitionSpec = SPEC) -> Table:
    catalog = InMemoryCatalog("test", warehouse=folder.as_uri())
    catalog.create_namespace("n")
    return catalog.create_table("n.t", SCHEMA, partition_spec=spec)


def test_rows_of_many_partitions_are_read_again(tmp_path: Path) -> None:
    table, wanted = make_table(tmp_path), rows(500)
    target = Target.of(table)
    with DataFileWriter(target, table.io, 2**30) as writer:
        writer.write(columns(wanted[:200]))
        writer.write(columns(wanted[200:]))
    sent = [load_file(dump_file(file, target), target) for file in writer.files]
    change = SnapshotChange(table, Operation.APPEND)
    change.add(sent)
    change.commit()
    scanned = table.refresh().scan().to_arrow().sort_by("number").to_pylist()
    assert scanned == wanted
    days = {(row["$$time"] and row["$$time"].day, row["kind"], row["day"]) for row in wanted}
    assert len(sent) == len(days)
    # Readers prune files by partitions and by bounds.
    first = table.scan(
        GreaterThanOrEqual("$$time", literal("2026-01-03T00:00:00+00:00"))  # type: ignore[call-arg]
    ).to_arrow()
    assert len(first) == sum(row["$$time"] is not None and row["$$time"].day == 3 for row in wanted)
    (plan,) = [task.file.file_path for task in table.scan("kind = 'ü' and number = 1").plan_files()]
    assert "kind=%C3%BC" in plan or "kind=ü" in plan


def test_the_next_file_begins_when_one_is_large(tmp_path: Path) -> None:
    table = make_table(tmp_path, PartitionSpec())
    with DataFileWriter(Target.of(table), table.io, 1) as writer:
        writer.write(columns(rows(10)))
        writer.write(columns(rows(10)))
    assert [file.record_count for file in writer.files] == [10, 10]
    assert len({file.file_path for file in writer.files}) == 2


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    writer = DataFileWriter(Target.of(table), table.io, 2**30)
    writer.__enter__().write(columns(rows(10)))
    writer.__exit__(RuntimeError, RuntimeError(), None)
    assert not list(tmp_path.rglob("*.parquet"))


def test_other_transforms_are_for_spark(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(5, 1000, BucketTransform(4), "number_bucket"))
    with pytest.raises(UnsupportedWriteError):
        Target.of(make_table(tmp_path, spec))


def test_only_values_that_repeat_have_a_dictionary(tmp_path: Path) -> None:
    struct = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.field("element", pa.string())))])
    table = pa.table(
        {
            "same": pa.array(["x"] * 100),
            "unique": pa.array(range(100)),
            "nested": pa.array([{"a": 1, "b": ["y"]}] * 100, struct),
            "pairs": pa.array([[("k", b"v")]] * 100, pa.map_(pa.string(), pa.binary())),
        }
    )
    named = repeated(table)
    pq.write_table(table, tmp_path / "f.parquet", use_dictionary=named)
    group = pq.read_metadata(tmp_path / "f.parquet").row_group(0)
    with_dictionary = {
        group.column(n).path_in_schema
        for n in range(group.num_columns)
        if group.column(n).has_dictionary_page
    }
    assert with_dictionary == set(named)
    assert {one.partition(".")[0] for one in named} == {"same", "nested", "pairs"}
