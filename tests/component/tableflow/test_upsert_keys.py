"""Rows of an upsert table by their keys: found in key files, deleted by position."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from clocks import Clock
from format_versions import allow_version_3, append, duckdb_rows, overwrite, replace, upgrade
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType

from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.iceberg import shared_keys
from topicberg.iceberg.files import live_files
from topicberg.iceberg.maintenance import MaintenancePolicy
from topicberg.iceberg.maintenance.expiry import expire
from topicberg.iceberg.maintenance.orphans import remove_orphans
from topicberg.iceberg.manifests import is_vector, referenced_file
from topicberg.iceberg.position_deletes import (
    Deletes,
    FileRows,
    delete_rows,
    live_rows,
    read_deletes,
    trim_deletes,
)
from topicberg.iceberg.snapshots import report
from topicberg.iceberg.vectors import read_vectors
from topicberg.tableflow.table.table import drop
from topicberg.tableflow.upsert import key_hashing
from topicberg.tableflow.upsert import keys as upsert_keys
from topicberg.tableflow.upsert.key_files import HeldKeys, Keys, merged
from topicberg.tableflow.upsert.key_hashing import KeyHasher
from topicberg.tableflow.upsert.keys import KeyIndex

SCHEMA = Schema(
    NestedField(1, "value", LongType(), required=False),
    NestedField(2, "$$partition", IntegerType(), required=False),
    NestedField(3, "$$raw-key", BinaryType(), required=False),
)
UNPARTITIONED = PartitionSpec()
BY_PARTITION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "$$partition"))
HASH_ARRAY = pd.util.hash_array
COLUMNS = "$$raw-key", "$$partition"
Key = tuple[bytes, int]
Changes = dict[Key, int | None]

KEYS = st.tuples(st.sampled_from([b"", b"a", b"b", b"\x00", b"nan", b"k" * 256]), st.integers(0, 2))
NOW = timedelta(0)
EAGER = MaintenancePolicy(
    retention=NOW, min_snapshots=1, max_snapshots=1, reader_age=NOW, staged_age=NOW, max_young=0
)
CHANGES = st.dictionaries(KEYS, st.none() | st.integers(0, 9), min_size=1, max_size=8)
EVENTS = st.sampled_from(
    [
        *("batch", "batch", "restart", "key files lost"),
        *("compaction", "rollback", "expiry", "upgrade"),
    ]
)


def rows_of(index: KeyIndex, table: Table, head: Snapshot, rows: pa.Table) -> list[FileRows]:
    """Return the rows of a snapshot that have the keys of these."""
    return index.rows_with(table, head, merged([index.hasher.hashes(rows.select(COLUMNS).columns)]))


@dataclass
class Upserted:
    """A table, its index, and what the table should hold."""

    catalog: SqlCatalog
    table: Table
    folder: Path
    rows: dict[Key, int] = field(default_factory=dict)
    history: list[tuple[int, dict[Key, int]]] = field(default_factory=list)
    index: KeyIndex = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.index = KeyIndex(self.folder, KeyHasher(self.table, COLUMNS))

    def batch(self, changes: Changes) -> None:
        added = {key: value for key, value in changes.items() if value is not None}
        if (head := self.table.current_snapshot()) is None:
            append(self.table, arrow(added))
        else:
            located = rows_of(self.index, self.table, head, arrow(changes))
            assert sum(len(rows.positions) for rows in located) == len(changes.keys() & self.rows)
            replace(self.table, located, arrow(added))
        self.table.refresh()
        self.rows = {key: v for key, v in self.rows.items() if key not in changes} | added
        self.index.store.share(self.table)

    def key_files_lost(self) -> None:
        for path in self.folder.rglob("*.keys"):
            path.unlink()

    def compaction(self) -> None:
        """One that leaves the delete files, as Spark's may, and our trimming of them."""
        data = [f for f in live_files(self.table) if f.content == DataFileContent.DATA]
        overwrite(self.table, arrow(self.rows), data)
        self.table.refresh()
        trim_deletes(self.table)
        self.table.refresh()
        assert not self.deleted()

    def rollback(self) -> None:
        snapshot_id, self.rows = self.history.pop(0)
        self.table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()
        self.table.refresh()
        self.history.clear()

    def expiry(self) -> None:
        """Of all snapshots but the head, and of every file that the head does not need."""
        self.table.refresh()
        now = time.time() + 60
        expire(self.table, EAGER, int(now * 1000))
        remove_orphans(self.table.refresh(), timedelta(0), now)
        assert len(self.table.metadata.snapshots) <= 2, "the head, and what a tag keeps"
        self.history.clear()

    def upgrade(self) -> None:
        self.table = upgrade(self.catalog, self.table)

    def do(self, event: str, changes: Changes) -> None:
        if event == "batch":
            self.batch(changes)
        elif event == "rollback":
            if self.history:
                self.rollback()
        elif self.table.current_snapshot():
            getattr(self, event.replace(" ", "_"))()
        if head := self.table.current_snapshot():
            self.history.append((head.snapshot_id, dict(self.rows)))

    def read(self) -> dict[Key, int]:
        found = self.table.scan().to_arrow().to_pylist()
        rows = {(row["$$raw-key"], row["$$partition"]): row["value"] for row in found}
        assert len(rows) == len(found), "a key has two rows"
        return rows

    def check(self) -> None:
        assert self.read() == self.rows
        assert live_rows(self.table) == len(self.rows)
        if head := self.table.current_snapshot():
            assert report(head).total_records == len(self.rows)
        rows = {
            file.file_path: file.record_count
            for file in live_files(self.table)
            if file.content == DataFileContent.DATA
        }
        deleted = self.deleted()
        assert {path for path, _ in deleted} <= rows.keys()
        assert len(deleted) == len(set(deleted))
        assert sum(rows.values()) - len(deleted) == len(self.rows)

    def check_vectors(self) -> None:
        """At most one for a data file; no delete file beside them after a batch."""
        live = [*live_files(self.table)]
        data = {f.file_path for f in live if f.content == DataFileContent.DATA}
        vectors = [referenced_file(file) for file in live if is_vector(file)]
        assert len(vectors) == len(set(vectors))
        assert set(vectors) <= data

    def read_by_duckdb(self) -> dict[Key, int]:
        found = duckdb_rows(self.table, '"$$raw-key", "$$partition", value')
        rows = {(bytes(key), partition): value for key, partition, value in found}
        assert len(rows) == len(found), "a key has two rows"
        return rows

    def deleted(self) -> list[tuple[str, int]]:
        """Data file and position, of every row of every delete file and vector."""
        deletes, io = Deletes.of(live_files(self.table)), self.table.io
        named = [*read_vectors(io, deletes.vectors.values())]
        named += [each for file in deletes.files for each in read_deletes(io, file.file_path)]
        return [(path, int(position)) for path, positions in named for position in positions]


def arrow(changes: Changes | dict[Key, int]) -> pa.Table:
    columns = {
        "value": list(changes.values()),
        "$$partition": [partition for _, partition in changes],
        "$$raw-key": [key for key, _ in changes],
    }
    return pa.table(columns, schema=schema_to_pyarrow(SCHEMA))


numbers = count()


def make(catalog: SqlCatalog, folder: Path, spec: PartitionSpec = UNPARTITIONED) -> Upserted:
    number, properties = next(numbers), {"format-version": "2"}
    table = catalog.create_table(f"shop.t{number}", SCHEMA, None, spec, properties=properties)
    return Upserted(catalog, table, folder / f"keys{number}")


@pytest.fixture(autouse=True)
def _version_3(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_version_3(monkeypatch)


BATCHES = st.lists(st.tuples(EVENTS, CHANGES), min_size=2, max_size=6)


@given(BATCHES, st.booleans(), st.integers(0, 5))
@settings(max_examples=8)
def test_format_versions_agree_after_each_commit(
    catalog: SqlCatalog,
    tmp_path: Path,
    events: list[tuple[str, Changes]],
    partitioned: bool,
    upgraded_before: int,
) -> None:
    """A table of version 2, one of version 3, and one that is upgraded midway."""
    spec = BY_PARTITION if partitioned else UNPARTITIONED
    two, three, midway = (make(catalog, tmp_path, spec) for _ in range(3))
    three.upgrade()
    for number, (event, changes) in enumerate(events):
        if number == upgraded_before:
            midway.upgrade()
        if event == "upgrade":
            continue
        for one in (two, three, midway):
            one.do(event, changes)
            if one.table.current_snapshot():
                one.check()
                one.check_vectors()
                assert one.read_by_duckdb() == one.rows
        assert two.rows == three.rows == midway.rows


def test_row_is_deleted_once_although_its_key_is_repeated(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    one = make(catalog, tmp_path)
    for value in range(5):
        one.batch({(b"k", 0): value})
        one.restart()
    one.check()
    assert len(one.deleted()) == 4
    head = one.table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert [head.summary[f"total-{what}"] for what in ("records", "position-deletes")] == ["5", "4"]
    newest = report(head)
    assert (newest.added_records, newest.deleted_records, newest.total_records) == (1, 1, 1)


def test_two_keys_that_meet_in_half_of_their_hash_are_two(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hash_array(values: Any, hash_key: str, categorize: bool) -> Any:
        hashes = HASH_ARRAY(values, hash_key=hash_key, categorize=categorize)
        first_half = hash_key == one.table.metadata.table_uuid.hex[:16]
        return hashes & np.uint64(1) if first_half else hashes

    one = make(catalog, tmp_path)
    monkeypatch.setattr(pd.util, "hash_array", hash_array)
    one.restart()
    for value in range(3):
        one.batch({(b"%d" % n, 0): value for n in range(value, 40, value + 1)})
        one.check()


def test_rows_that_others_wrote_without_a_key_stay(catalog: SqlCatalog, tmp_path: Path) -> None:
    one = make(catalog, tmp_path)
    one.batch({(b"nan", 0): 1, (b"", 0): 2})
    one.table.append(pa.table({"value": pa.array([7], pa.int64())}))
    null_key = {"value": [8], "$$partition": [0], "$$raw-key": [None]}
    one.table.append(pa.table(null_key, schema=schema_to_pyarrow(SCHEMA)))
    one.batch({(b"nan", 0): 3, (b"", 0): None})
    assert sorted(one.table.scan().to_arrow().column("value").to_pylist()) == [3, 7, 8]


def test_key_files_of_deleted_data_files_are_deleted(
    catalog: SqlCatalog, tmp_path: Path, clock: Clock
) -> None:
    one = make(catalog, tmp_path)
    for value in range(4):
        one.batch({(b"%d" % value, 0): value})
    one.batch({(b"0", 0): 9})
    one.compaction()
    clock.now += upsert_keys._UNUSED_SECONDS + 60
    one.restart()
    one.batch({(b"1", 0): 9})
    assert len(list(one.folder.rglob("*.keys"))) == 1


def test_a_new_table_takes_the_place_of_the_old_ones_key_files(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    old, new = make(catalog, tmp_path), make(catalog, tmp_path)
    old.batch({(b"k", 0): 1})
    old.batch({(b"k", 0): 2})
    new.folder = old.folder
    new.restart()
    new.batch({(b"k", 0): 1})
    new.batch({(b"k", 0): 2})
    (folder,) = old.folder.iterdir()
    assert folder.name.startswith(str(new.table.metadata.table_uuid))


def test_key_files_of_other_hashes_are_not_read(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(catalog, tmp_path)
    one.batch({(b"%d" % n, 0): n for n in range(20)})
    one.batch({(b"1", 0): 7})
    monkeypatch.setattr(key_hashing, "_SPREAD", np.uint64(3))
    monkeypatch.setattr(pd.util, "hash_array", another_hash_array)
    one.restart()
    one.batch({(b"%d" % n, 0): n for n in range(10)})
    one.check()


def another_hash_array(values: Any, hash_key: str, categorize: bool) -> Any:
    return ~HASH_ARRAY(values, hash_key=hash_key, categorize=categorize)


def test_a_state_directory_that_cannot_be_written_is_named(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    one = make(catalog, tmp_path)
    one.batch({(b"k", 0): 1})
    one.batch({(b"k", 0): 2})
    (folder,) = one.folder.iterdir()
    shutil.rmtree(folder)
    folder.write_text("in the way")
    with pytest.raises(TopicbergError, match=str(one.folder)):
        one.batch({(b"k", 0): 3})
    folder.unlink()
    one.batch({(b"k", 0): 3})
    one.check()


def test_the_folder_may_go_while_the_engine_runs(catalog: SqlCatalog, tmp_path: Path) -> None:
    one = make(catalog, tmp_path)
    for value in range(3):
        one.batch({(b"k", 0): value, (b"%d" % value, 1): value})
        shutil.rmtree(one.folder)
    one.check()


@pytest.mark.parametrize("size", [0, 5, 24, 46, 264, 287])
def test_truncated_key_file_is_created_again(
    catalog: SqlCatalog, tmp_path: Path, size: int
) -> None:
    one = make(catalog, tmp_path)
    one.batch({(b"%d" % n, 0): n for n in range(10)})
    one.batch({(b"none", 0): None})
    (file,) = one.folder.rglob("*.keys")
    whole = file.read_bytes()
    assert len(whole) == 288
    file.write_bytes(whole[:size])
    one.batch({(b"%d" % n, 0): -n for n in range(10)})
    one.check()
    assert file.read_bytes() == whole


def test_deletes_are_of_one_partition_each(catalog: SqlCatalog, tmp_path: Path) -> None:
    """Readers that go by the specification apply them to files of their own partition alone."""
    schema = Schema(
        *SCHEMA.fields, NestedField(4, "a", StringType()), NestedField(5, "b", StringType())
    )
    spec = PartitionSpec(
        *(
            PartitionField(3 + n, 999 + n, IdentityTransform(), name)
            for n, name in ((1, "a"), (2, "b"))
        )
    )
    table = catalog.create_table("shop.partitioned", schema, None, spec)
    partitions = [("x, y", "z"), ("x", "y, z"), ("None", "z"), (None, "z")]
    rows = {
        "value": range(4),
        "$$partition": [0] * 4,
        "$$raw-key": [b"0", b"1", b"2", b"3"],
        "a": [a for a, _ in partitions],
        "b": [b for _, b in partitions],
    }
    table.append(pa.table(rows, schema=schema_to_pyarrow(schema)))
    index, head = KeyIndex(tmp_path / "keys", KeyHasher(table, COLUMNS)), table.current_snapshot()
    assert head is not None
    keys = arrow({(b"%d" % n, 0): 0 for n in range(4)})
    delete_rows(table, rows_of(index, table, head, keys), {}, ())
    deleted = table.refresh().current_snapshot()
    assert deleted is not None
    deletes = [
        entry.data_file
        for manifest in deleted.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == DataFileContent.POSITION_DELETES
    ]
    found = [(file.partition[0], file.partition[1]) for file in deletes]
    assert sorted(found, key=str) == sorted(partitions, key=str)
    assert [file.record_count for file in deletes] == [1, 1, 1, 1]


def test_files_of_an_older_partition_spec(catalog: SqlCatalog, tmp_path: Path) -> None:
    one = make(catalog, tmp_path, BY_PARTITION)
    one.batch({(b"%d" % n, n % 3): n for n in range(9)})
    with one.table.update_spec() as update:
        update.add_field("value", IdentityTransform())
    one.table.refresh()
    one.batch({(b"%d" % n, n % 3): -n for n in range(0, 9, 2)})
    one.batch({(b"%d" % n, n % 3): None for n in range(0, 9, 3)})
    one.check()


def test_deletes_of_deleted_files_are_trimmed(catalog: SqlCatalog, tmp_path: Path) -> None:
    """Of a delete file that also names files which stay, the rest stays."""
    one = make(catalog, tmp_path, BY_PARTITION)
    one.batch({(b"%d" % n, 0): n for n in range(4)})
    one.batch({(b"%d" % n, 0): n for n in range(4, 8)})
    one.batch({(b"%d" % n, 0): None for n in (0, 5)} | {(b"9", 1): 9})
    assert len(one.deleted()) == 2
    (old, _), *_ = one.deleted()
    file = next(file for file in live_files(one.table) if file.file_path == old)
    with one.table.transaction() as change, change.update_snapshot().overwrite() as removal:
        removal.delete_data_file(file)
    one.table.refresh()
    deleted = (b"0", b"1", b"2", b"3")
    if (b"1", 0) in one.read():
        deleted = (b"4", b"5", b"6", b"7")
    one.rows = {key: value for key, value in one.rows.items() if key[0] not in deleted}
    assert trim_deletes(one.table) == 1
    one.table.refresh()
    one.check()
    assert len(one.deleted()) == 1
    assert trim_deletes(one.table) == 0
    head = one.table.current_snapshot()
    assert head is not None
    facts = report(head)
    assert (facts.operation, facts.total_records) == ("replace", len(one.rows))
    one.batch({(b"9", 1): 10, (b"1", 0): 1, (b"4", 0): 4})
    one.check()


def test_a_commit_in_between_is_a_conflict(catalog: Any, tmp_path: Path) -> None:
    one = make(catalog, tmp_path)
    one.batch({(b"k", 0): 1})

    def commit_table(*_: Any) -> None:
        raise CommitFailedException("another one came first")

    catalog.answer = commit_table
    head = one.table.current_snapshot()
    assert head is not None
    located = rows_of(one.index, one.table, head, arrow({(b"k", 0): 1}))
    with pytest.raises(CommitConflictError, match="another commit came first"):
        delete_rows(one.table, located, {}, ())


@pytest.fixture
def _shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upsert_keys, "SHARED_ROWS", 1)


def shared_files(one: Upserted) -> set[str]:
    folder = Path(one.table.location().removeprefix("file://")) / shared_keys.FOLDER
    return {path.name for path in folder.glob("*")}


def names_of_data_files(one: Upserted) -> set[str]:
    files = live_files(one.table)
    return {shared_keys.file_name(f.file_path) for f in files if f.content == DataFileContent.DATA}


def no_computation(*_: Any) -> Any:
    raise AssertionError("a data file is read")


@pytest.mark.usefixtures("_shared")
def test_another_engine_copies_key_files(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(catalog, tmp_path)
    for value in range(3):
        one.batch({(b"%d" % n, 0): value for n in range(value, 20)})
    held = names_of_data_files(one)
    one.batch({(b"none", 0): None})
    assert shared_files(one) == held
    one.folder = tmp_path / "another"
    one.restart()
    with monkeypatch.context() as patched:
        patched.setattr(key_hashing, "_key_columns", no_computation)
        one.batch({(b"%d" % n, 0): -n for n in range(0, 20, 2)})
    one.check()


@pytest.mark.usefixtures("_shared")
@pytest.mark.parametrize("damage", ["a bit", "the end", "everything", "another file"])
def test_damaged_shared_key_file_is_replaced(
    catalog: SqlCatalog, tmp_path: Path, damage: str
) -> None:
    one = make(catalog, tmp_path)
    one.batch({(b"%d" % n, 0): n for n in range(40)})
    one.batch({(b"%d" % n, 0): -n for n in range(10)})
    one.batch({(b"none", 0): None})
    folder = Path(one.table.location().removeprefix("file://")) / shared_keys.FOLDER
    paths = sorted(folder.iterdir())
    whole = {path: path.read_bytes() for path in paths}
    for path, other in zip(paths, reversed(paths), strict=True):
        content = bytearray(whole[path])
        if damage == "a bit":
            content[len(content) // 2] ^= 1
        path.write_bytes(
            {
                "a bit": bytes(content),
                "the end": bytes(content[:-30]),
                "everything": b"",
                "another file": whole[other],
            }[damage]
        )
    one.folder = tmp_path / "another"
    one.restart()
    one.batch({(b"%d" % n, 0): 7 for n in range(5, 30)})
    one.check()
    assert {path: path.read_bytes() for path in paths} == whole


@pytest.mark.usefixtures("_shared")
def test_shared_key_files_go_with_their_data_files(catalog: SqlCatalog, tmp_path: Path) -> None:
    one = make(catalog, tmp_path)
    for value in range(4):
        one.batch({(b"%d" % value, 0): value, (b"k", 0): value})
    one.batch({(b"none", 0): None})
    before = shared_files(one)
    assert before == names_of_data_files(one)
    assert not remove_orphans(one.table, timedelta(0), time.time() + 60)
    one.compaction()
    kept = names_of_data_files(one)
    one.batch({(b"none", 0): None})  # the tag that keeps the last batch moves to it
    assert shared_files(one) == before | kept
    expire(one.table.refresh(), EAGER, int((time.time() + 60) * 1000))
    assert shared_files(one) == kept
    folder = Path(one.table.location().removeprefix("file://")) / shared_keys.FOLDER
    shutil.copy(folder / min(kept), folder / min(before))
    remove_orphans(one.table.refresh(), timedelta(0), time.time() + 60)
    assert shared_files(one) == kept
    one.check()


@pytest.mark.usefixtures("_shared")
def test_key_files_of_replaced_data_files_are_not_shared(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(catalog, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(upsert_keys.KeyStore, "share", lambda *_: None)
        for value in range(3):
            one.batch({(b"%d" % value, 0): value})
        one.batch({(b"none", 0): None})
        assert one.index.store._unshared
        one.compaction()
        one.batch({(b"none", 0): None})
        assert not shared_files(one)
    one.index.store.share(one.table)
    assert shared_files(one) == names_of_data_files(one)
    assert not one.index.store._unshared


@pytest.mark.usefixtures("_shared")
def test_deletion_of_a_table_deletes_its_shared_key_files(catalog: Any, tmp_path: Path) -> None:
    one = make(catalog, tmp_path)
    one.batch({(b"k", 0): 1})
    one.batch({(b"k", 0): 2})
    assert shared_files(one)
    catalog.purge_table = catalog.drop_table  # SQL catalogs purge no files
    namespace, name = one.table.name()
    assert drop(catalog, (namespace, name))
    assert not shared_files(one)
    assert not drop(catalog, (namespace, name))


@pytest.mark.usefixtures("_shared")
def test_key_files_that_cannot_be_shared_are_still_used(
    catalog: SqlCatalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = make(catalog, tmp_path)
    one.batch({(b"k", 0): 1, (b"l", 0): 1})
    folder = Path(one.table.location().removeprefix("file://")) / shared_keys.FOLDER
    folder.write_text("in the way")
    for value in range(3):
        one.batch({(b"k", 0): value})
    one.check()
    assert sum("cannot be written" in line for line in caplog.messages) == 1


@given(
    st.sets(st.integers(0, 2**64 - 1), max_size=300),
    st.sets(st.integers(0, 2**64 - 1), max_size=300),
    st.integers(0, 300),
)
@settings(max_examples=60)
def test_key_file_finds_the_keys_it_has(held: set[int], other: set[int], common: int) -> None:
    def keys(hashes: list[int]) -> Keys:
        high = np.array(hashes, np.uint64)
        return merged([Keys(high, ~high, np.arange(len(high), dtype=np.uint32))])

    listed = sorted(held)
    wanted = sorted({*listed[:common], *other})
    found = HeldKeys.of(keys(listed)).positions_of(keys(wanted))
    assert [listed[place] for place in found] == sorted(held & set(wanted))
