"""Erasure on tables in a local folder: every file is read to see whether a row is left."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fastavro
import format_versions
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from topicberg.errors import TopicbergError
from topicberg.iceberg.files import live_files
from topicberg.iceberg.position_deletes import FileRows, delete_rows, live_rows
from topicberg.iceberg.read_tags import PREFIX, reading
from topicberg.iceberg.summaries import CHECKPOINT_TAG, END_OFFSETS, summary
from topicberg.tableflow.erasure import steps
from topicberg.tableflow.erasure.locations import find, prove
from topicberg.tableflow.erasure.matching import Condition, Rows
from topicberg.tableflow.erasure.rewriting import rewritten
from topicberg.tableflow.erasure.steps import Erasure, PinnedError

SECRET = "alice@example.org"
SCHEMA = Schema(
    NestedField(1, "email", StringType()),
    NestedField(2, "n", LongType()),
    NestedField(3, "inside", StructType(NestedField(4, "raw", BinaryType()))),
    NestedField(5, "$$at", TimestamptzType()),
    NestedField(6, "price", DecimalType(9, 2)),
    NestedField(7, "tags", ListType(8, StringType(), element_required=False)),
)
Make = Callable[..., Table]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("shop")

    def create(schema: Schema = SCHEMA, **more: Any) -> Table:
        return catalog.create_table(("shop", "users"), schema, **more)

    return create


def row(email: str | None, n: int) -> dict[str, Any]:
    time, inside = 1_700_000_000_000_000 + n, {"raw": f"r{n}".encode()}
    return {
        **{"email": email, "n": n, "inside": inside, "$$at": time, "price": n, "tags": [str(n)]}
    }


def append(table: Table, *emails: str | None, **summary_of: str) -> None:
    rows = [row(email, n) for n, email in enumerate(emails)]
    arrow = pa.Table.from_pylist(rows, schema=table.schema().as_arrow())
    table.append(arrow, snapshot_properties=summary_of)


def secret(table: Table, value: Any = SECRET) -> Rows:
    return Rows(table.schema(), ({("email",): (value,)},))


def holders(table: Table, text: str = SECRET) -> list[Path]:
    """Return the files of the folder that hold the text, in rows, statistics or bounds. Written
    independently of the command's code: values of Parquet, and all of each Avro file."""
    found = []
    for path in Path(table.location().removeprefix("file://")).rglob("*"):
        if path.suffix == ".parquet":
            content = str(pq.ParquetFile(path).read().to_pylist()) + str(pq.read_metadata(path))
        elif path.suffix == ".avro":
            with path.open("rb") as stream:
                content = str(list(fastavro.reader(stream)))
        elif path.is_file():
            content = path.read_text(errors="replace")
        else:
            continue
        if text in content or text[:16] in content:
            found.append(path)
    return found


def test_erase_version_3_with_vectors_leaves_no_file(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    format_versions.allow_version_3(monkeypatch)
    table = make()
    append(table, SECRET, "bob", "eve", SECRET)
    (old,) = live_files(table.refresh())
    delete_rows(table, [FileRows(old, np.array([1], np.uint32))], {}, [])
    catalog = table.catalog
    assert isinstance(catalog, SqlCatalog)
    table = format_versions.upgrade(catalog, table.refresh())
    rows = [row(email, n) for n, email in enumerate(["carol", "dave", SECRET, "frank"])]
    format_versions.append(table, pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    (new,) = [f for f in live_files(table.refresh()) if f.file_path != old.file_path and is_data(f)]
    delete_rows(table, [FileRows(new, np.array([0, 2], np.uint32))], {}, [])
    assert find(table.refresh(), secret(table)).rows == 2
    assert holders(table)
    lineage = "email, _row_id, _last_updated_sequence_number"
    before = format_versions.duckdb_rows(table, lineage)
    done = Erasure(table, secret(table)).erase()
    kept = [each for each in before if each[0] != SECRET]
    assert sorted(format_versions.duckdb_rows(table.refresh(), lineage)) == sorted(kept)
    assert (done.rows, done.files_rewritten) == (2, 2)
    assert holders(table) == []
    assert prove(table, secret(table)).files
    left = sorted(table.refresh().scan().to_arrow()["email"].to_pylist())
    assert left == ["dave", "eve", "frank"]
    assert sorted(format_versions.duckdb_rows(table, "email")) == [(name,) for name in left]
    assert live_rows(table) == 3
    assert all(is_data(file) for file in live_files(table))  # no vector of a file that is gone


def is_data(file: DataFile) -> bool:
    return file.content == DataFileContent.DATA


def test_erase_after_a_rollback_to_unknown_offsets_changes_nothing(make: Make) -> None:
    """The engine would read the topic again, or leave records out, behind a head without them."""
    table = make()
    append(table, SECRET, **{END_OFFSETS: '{"0": 1}'})
    append(table, "bob")
    line = [snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots]
    table.manage_snapshots().create_tag(line[1], "good").commit()
    append(table, "carol", **{END_OFFSETS: '{"0": 2}'})
    head = table.refresh().current_snapshot()
    table.manage_snapshots().create_tag(head.snapshot_id, CHECKPOINT_TAG).commit()
    table.manage_snapshots().rollback_to_snapshot(line[1]).commit()
    table.refresh().maintenance.expire_snapshots().by_ids([line[0]]).commit()
    before = table.refresh().metadata
    with pytest.raises(TopicbergError, match="rolled back to a state whose offsets are not known"):
        Erasure(table, secret(table)).erase()
    assert table.refresh().metadata == before


def test_erase_history_and_deleted_rows_leaves_no_file(make: Make) -> None:
    table = make()
    append(table, SECRET, "bob", **{END_OFFSETS: '{"0": 2}', "topicberg.topic-id": "t"})
    head = table.refresh().current_snapshot()
    table.manage_snapshots().create_tag(head.snapshot_id, CHECKPOINT_TAG).commit()
    table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    append(table, "carol")
    append(table.refresh(), SECRET, "dave")
    (file,) = [f for f in live_files(table.refresh()) if f.record_count == 2][:1]
    delete_rows(table, [FileRows(file, np.array([0], np.uint32))], {}, [])
    found = find(table, secret(table))
    assert (found.rows, found.live, found.history) == (1, 2, 0)
    assert found.refs == ("audit", CHECKPOINT_TAG)
    assert holders(table)
    done = Erasure(table, secret(table), "$$at", lambda rows: {"note": str(rows)}).erase()
    assert (done.rows, done.files_rewritten, done.refs) == (1, 2, ["audit"])
    assert holders(table) == []
    assert prove(table, secret(table)).files
    assert not find(table, secret(table)).holders
    assert sorted(table.refresh().scan().to_arrow()["email"].to_pylist()) == [
        "bob",
        "carol",
        "dave",
    ]
    assert live_rows(table) == 3
    head = table.current_snapshot()
    assert head is not None
    facts = summary(head)
    assert facts[END_OFFSETS] == '{"0": 2}'
    assert table.refs()[CHECKPOINT_TAG].snapshot_id == head.snapshot_id
    assert int(facts["total-records"]) == 3
    assert done.hours


def test_erase_keeps_snapshots_that_never_had_the_row(make: Make) -> None:
    table = make()
    append(table, "bob")
    clean = table.refresh().current_snapshot()
    assert clean is not None
    table.manage_snapshots().create_tag(clean.snapshot_id, "month-end").commit()
    append(table, SECRET)
    Erasure(table, secret(table)).erase()
    assert "month-end" in table.refresh().refs()
    assert table.scan(snapshot_id=clean.snapshot_id).to_arrow()["email"].to_pylist() == ["bob"]
    assert holders(table) == []


def test_erase_columns_named_as_position_deletes(make: Make) -> None:
    names = ("email", StringType()), ("file_path", StringType()), ("pos", LongType())
    table = make(Schema(*(NestedField(n, *column) for n, column in enumerate(names, 1))))
    for email in (SECRET, "bob"):
        content = [{"email": email, "file_path": f"/home/{email}", "pos": 1}]
        table.append(pa.Table.from_pylist(content, schema=table.schema().as_arrow()))
    (file, _) = live_files(table.refresh())
    delete_rows(table, [FileRows(file, np.array([0], np.uint32))], {}, [])
    assert find(table, secret(table)).live == 1
    with pytest.raises(TopicbergError, match="1 of 3 files hold the key"):
        prove(table, secret(table))
    Erasure(table, secret(table)).erase()
    prove(table, secret(table))
    assert holders(table) == []


def test_erase_partitioned_by_the_key_leaves_no_path(make: Make) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "email"))
    table = make(partition_spec=spec)
    append(table, SECRET, "bob")
    append(table.refresh(), SECRET)
    Erasure(table, secret(table)).erase()
    assert holders(table) == []
    assert table.refresh().scan().to_arrow()["email"].to_pylist() == ["bob"]
    files = [p for p in Path(table.location().removeprefix("file://")).rglob("*") if p.is_file()]
    assert not [path for path in files if "alice" in str(path)]


class Killed(BaseException):
    """What a kill does: nothing after it runs."""


@pytest.mark.parametrize("step", range(9))
def test_erase_killed_at_any_step_is_completed_by_the_next(make: Make, step: int) -> None:
    table = make()
    append(table, SECRET, "bob", **{END_OFFSETS: "{}"})
    append(table.refresh(), "carol")
    append(table.refresh(), SECRET)
    left = [step]

    def counted(work: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0 and not after:
                raise Killed
            result = work(*given, **more)
            if left[0] < 0:
                raise Killed
            return result

        return call

    io, catalog = type(table.io), type(table.catalog)
    with (
        patch.object(catalog, "commit_table", counted(catalog.commit_table, step % 2 == 0)),
        patch.object(io, "delete", counted(io.delete, step % 2 == 0)),
    ):
        try:
            Erasure(table, secret(table)).erase()
        except Killed:
            pass
        else:
            pytest.skip("the erasure has fewer steps")
    Erasure(table, secret(table)).erase()
    assert holders(table) == []
    assert sorted(table.refresh().scan().to_arrow()["email"].to_pylist()) == ["bob", "carol"]


def test_erase_deletes_files_of_a_killed_writer(make: Make) -> None:
    table = make()
    append(table, "bob")
    arrow = pa.Table.from_pylist([row(SECRET, 1)], schema=table.schema().as_arrow())
    path = Path(table.location().removeprefix("file://")) / "data" / "orphan.parquet"
    pq.write_table(arrow, path)
    found = find(table, secret(table))
    assert found.unreachable == 1
    assert found.outside == (f"file://{path}",)
    assert Erasure(table, secret(table)).erase().files_deleted == 1
    assert not path.exists()


def test_prove_with_a_file_of_a_killed_writer_beside_the_folder_names_it(
    make: Make, tmp_path: Path
) -> None:
    """The folder may be that of other tables too: nothing in it is deleted."""
    table, elsewhere = make(), tmp_path / "elsewhere"
    with table.transaction() as transaction:
        transaction.set_properties({"write.data.path": f"file://{elsewhere}/"})
    append(table, SECRET, "bob")
    rows, left = secret(table.refresh()), elsewhere / "a" / "left.parquet"
    left.parent.mkdir()
    pq.write_table(pa.Table.from_pylist([row(SECRET, 1)], schema=table.schema().as_arrow()), left)
    other_type = pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "1"})
    other = pa.table([pa.array([7])], schema=pa.schema([other_type]))
    pq.write_table(other, elsewhere / "other.parquet")
    (elsewhere / "notes.txt").write_text(SECRET)
    assert find(table, rows).elsewhere == (f"file://{left}",)
    Erasure(table, rows).erase()
    with pytest.raises(TopicbergError, match=r"no snapshot has 1 file .* left: left\.parquet"):
        prove(table, rows)
    left.unlink()
    beside = table.catalog.create_table(
        (*table.name()[:-1], "beside"),
        table.schema(),
        properties={"write.data.path": f"file://{elsewhere}"},
    )
    append(beside, SECRET)
    assert find(table, rows).elsewhere == (), "another table of the catalog has the file"
    assert prove(table, rows).files
    assert table.refresh().scan().to_arrow()["email"].to_pylist() == ["bob"]


def test_erase_beside_a_commit_retries_on_the_new_head(make: Make) -> None:
    table = make()
    append(table, SECRET, "bob")
    other = table.catalog.load_table(table.name())
    raced: list[bool] = []

    def rewriting(*given: Any) -> Any:
        if not raced:
            raced.append(True)
            append(other.refresh(), "carol", SECRET)
        return rewritten(*given)

    with patch.object(steps, "rewritten", rewriting):
        done = Erasure(table, secret(table), patience=0).erase()
    assert done.rows == 2
    assert sorted(table.refresh().scan().to_arrow()["email"].to_pylist()) == ["bob", "carol"]
    assert holders(table) == []


def test_erase_names_a_reader_that_does_not_end(make: Make) -> None:
    """It may write what it has read; one that was killed a day ago does not count."""
    table = make()
    append(table, SECRET, "bob")
    begun = int((datetime.now(UTC) - timedelta(days=2)).timestamp() * 1000)
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_tag(head.snapshot_id, f"{PREFIX}{begun}-killed-1").commit()
    with reading([table], "compaction"):
        done = Erasure(table, secret(table), patience=0).erase()
    (reader,) = done.readers
    assert "-compaction-" in reader
    assert holders(table) == []
    with reading([table.refresh()], "compaction"):  # of a snapshot without the rows
        append(table, SECRET)
        assert Erasure(table, secret(table), patience=60).erase().readers == []


def test_erase_what_is_published_asks_to_publish_first(make: Make) -> None:
    table = make()
    append(table, SECRET)
    head = table.refresh().current_snapshot()
    assert head is not None
    table.manage_snapshots().create_tag(head.snapshot_id, "published-orders").commit()
    with pytest.raises(PinnedError, match="orders"):
        Erasure(table, secret(table)).erase()
    assert not find(table, secret(table)).live
    table.refresh().manage_snapshots().remove_tag("published-orders").commit()
    Erasure(table, secret(table)).erase()
    assert holders(table) == []


def test_erase_a_file_that_is_not_parquet_is_refused(make: Make) -> None:
    table = make()
    path = Path(table.location().removeprefix("file://")) / "data" / "torn.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1")
    with pytest.raises(TopicbergError, match="cannot be read as Parquet"):
        find(table, secret(table))


def conditions(**values: Any) -> tuple[Condition, ...]:
    return ({(name,): (value,) for name, value in values.items()},)


COMPOSITE = Schema(
    NestedField(1, "day", DateType()),
    NestedField(2, "price", DecimalType(9, 2)),
    NestedField(3, "n", IntegerType()),
    NestedField(4, "s", StructType(NestedField(5, "b", BinaryType()))),
)


@given(st.lists(st.tuples(*[st.sampled_from([None, 0, 1])] * 4), max_size=30), st.integers(0, 80))
def test_rows_of_any_types_equal_a_plain_comparison(rows: list[Any], which: int) -> None:
    """Composite keys of several types, null included."""
    from datetime import date
    from decimal import Decimal

    makes: tuple[Callable[[int], Any], ...] = (
        lambda n: date(2026, 1, 1 + n),
        lambda n: Decimal(n),
        lambda n: n,
        lambda n: {"b": bytes([n])},
    )
    table = [
        {
            name: None if v is None else make(v)
            for name, v, make in zip(("day", "price", "n", "s"), values, makes, strict=True)
        }
        for values in rows
    ]
    codes = [which // 3**place % 3 for place in range(4)]
    key = tuple(None if c == 2 else c for c in codes)
    wanted = {
        name: None if v is None else make(v)
        for name, v, make in zip(("day", "price", "n", "s"), key, makes, strict=True)
    }
    arrow = pa.Table.from_pylist(table, schema=COMPOSITE.as_arrow())
    found = Rows(COMPOSITE, conditions(**wanted)).among(arrow)
    assert found.tolist() == [values == key for values in rows]


@pytest.mark.parametrize("kind", [DoubleType(), FloatType()])
@pytest.mark.parametrize("is_nested", [True, False])
def test_rows_of_zero_and_of_nan_are_those_of_one_key(kind: IcebergType, is_nested: bool) -> None:
    """Upserts compare -0.0 and 0.0, and two NaN, as one key."""
    inside = StructType(NestedField(2, "n", kind)) if is_nested else kind
    schema = Schema(NestedField(1, "k", inside, required=False))
    values: list[Any] = [0.0, -0.0, math.nan, 1.5]
    keys = [{"n": value} if is_nested else value for value in values] + [None]
    arrow = pa.table({"k": pa.array(keys, schema.as_arrow().field(0).type)})
    found = [Rows(schema, conditions(k=key)).among(arrow).tolist() for key in keys]
    zero = [True, True, False, False, False]
    assert found[:3] == [zero, zero, [False, False, True, False, False]]
    assert [row.count(True) for row in found[3:]] == [1, 1]
