"""Rows of an upsert table by their decoded keys, in all partitions of Kafka."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from format_versions import append, replace
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from topicberg.formats.framing import wire_prefix
from topicberg.iceberg.position_deletes import FileRows
from topicberg.tableflow.layout.upsert_key import UpsertKey
from topicberg.tableflow.upsert import keys as module
from topicberg.tableflow.upsert.key_files import Keys, in_order
from topicberg.tableflow.upsert.key_hashing import KeyHasher, hash_keys, times_of
from topicberg.tableflow.upsert.keys import KeyIndex
from topicberg.tableflow.values.key_values import KeyShape, key_text

ID = NestedField(1, "id", LongType(), required=False)
SCHEMA = Schema(
    ID,
    NestedField(2, "value", StringType(), required=False),
    NestedField(3, "$$partition", IntegerType(), required=False),
    NestedField(4, "$$offset", LongType(), required=False),
    NestedField(5, "$$timestamp", TimestamptzType(), required=False),
    NestedField(6, "$$raw-key", BinaryType(), required=False),
)
ZERO = datetime(2026, 1, 1, tzinfo=UTC)
names = itertools.count()


@dataclass(frozen=True)
class Record:
    """``version``: of the key's schema."""

    key: int
    version: int
    partition: int
    time: int
    value: str | None


def key(*, is_in_columns: bool) -> UpsertKey:
    metadata = "$$raw-key", "$$partition", "$$offset", "$$timestamp"
    return UpsertKey(
        *metadata,
        fields=(ID,),
        shapes=(KeyShape(),),
        is_in_columns=is_in_columns,
        versions=tuple(bytes([0, 0, 0, number]) for number in (5, 6, 7)),
    )


def raw(record: Record) -> bytes:
    return wire_prefix(5 + record.version) + b"%d" % record.key


def decode(raws: Any) -> Any:
    keys = [one and one[5:] for one in raws.to_pylist()]
    return pa.array([one and b"%d:%s" % (len(one), one) for one in keys], pa.binary())


class Upserted:
    def __init__(self, catalog: SqlCatalog, folder: Path, *, is_in_columns: bool) -> None:
        number = next(names)
        self.table: Table = catalog.create_table(f"shop.decoded{number}", SCHEMA)
        self.folder = folder / str(number)
        self.key = key(is_in_columns=is_in_columns)
        self.offsets = itertools.count()
        self.restart()

    def restart(self) -> None:
        self.index = KeyIndex(
            self.folder, KeyHasher(self.table, self.key.names, key=self.key, decode=decode)
        )

    def arrow(self, records: Sequence[Record]) -> pa.Table:
        # What a value's field of the key's name would have, if columns do not tell the key.
        rows = [
            {
                "id": one.key if self.key.is_in_columns else 99,
                "value": one.value,
                "$$partition": one.partition,
                "$$offset": next(self.offsets),
                "$$timestamp": ZERO + timedelta(milliseconds=one.time),
                "$$raw-key": raw(one),
            }
            for one in records
        ]
        return pa.Table.from_pylist(rows, SCHEMA.as_arrow())

    def batch(self, records: Sequence[Record]) -> None:
        rows = self.arrow(records)
        text = key_text([pa.array([one.key for one in records], pa.int64())])
        partition = rows.column("$$partition").combine_chunks()
        hashed = hash_keys(self.table.metadata.table_uuid, text, partition, are_decoded=True)
        times = times_of(rows.column("$$timestamp"), rows.column("$$raw-key"), self.key)
        keys = in_order(hashed.high, hashed.low)
        keys, head = keys.chosen(keys.is_newest(times)), self.table.current_snapshot()
        located: list[FileRows] = []
        stale = np.zeros(len(keys.high), np.bool_)
        if head is not None:
            located, stale = self.index.older_rows(self.table, head, keys, times)
        kept = sorted(keys.position[~stale].tolist())
        live = [at for at in kept if records[at].value is not None]
        self.commit(located, rows.take(pa.array(live, pa.int64())))

    def commit(self, located: Sequence[FileRows], added: pa.Table) -> None:
        if self.table.current_snapshot() is None:
            append(self.table, added)
        else:
            replace(self.table, located, added)
        self.table.refresh()

    def read(self) -> dict[int, str]:
        found = self.table.scan().to_arrow().to_pylist()
        rows = {int(row["$$raw-key"][5:]): row["value"] for row in found}
        assert len(rows) == len(found), "a key has two rows"
        return rows


RECORDS = st.lists(
    st.builds(
        Record,
        key=st.integers(0, 3),
        version=st.integers(0, 2),
        partition=st.integers(0, 2),
        time=st.just(0),
        value=st.none() | st.sampled_from("abc"),
    ),
    min_size=1,
    max_size=6,
)


@given(st.lists(st.tuples(RECORDS, st.booleans()), min_size=1, max_size=5), st.booleans())
@settings(max_examples=25)
def test_newest_record_of_all_partitions_is_the_row(
    catalog: SqlCatalog,
    tmp_path: Path,
    batches: list[tuple[list[Record], bool]],
    is_in_columns: bool,
) -> None:
    """Times grow from record to record; key files may be lost before any batch."""
    one = Upserted(catalog, tmp_path, is_in_columns=is_in_columns)
    expected: dict[int, str | None] = {}
    clock = itertools.count()
    for drawn, is_lost in batches:
        records = [Record(r.key, r.version, r.partition, next(clock), r.value) for r in drawn]
        if is_lost:
            shutil.rmtree(one.folder)
            one.restart()
        one.batch(records)
        expected |= {record.key: record.value for record in records}
        assert one.read() == {k: value for k, value in expected.items() if value is not None}


def test_of_one_millisecond_the_newer_version_of_the_key_counts(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    for at_once in (True, False):
        one = Upserted(catalog, tmp_path, is_in_columns=True)
        older, newer = Record(3, 0, 2, 7, "older"), Record(3, 1, 0, 7, "newer")
        for batch in [[older, newer]] if at_once else [[older], [newer]]:
            one.batch(batch)
        assert one.read() == {3: "newer"}


def test_record_that_is_older_than_the_row_of_another_partition_changes_nothing(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    one = Upserted(catalog, tmp_path, is_in_columns=True)
    one.batch([Record(3, 1, 1, 20, "new"), Record(4, 1, 1, 20, "other")])
    one.batch([Record(3, 0, 0, 10, "late"), Record(4, 0, 0, 10, None)])
    assert one.read() == {3: "new", 4: "other"}
    one.batch([Record(3, 0, 0, 30, "newer"), Record(4, 0, 0, 30, None)])
    assert one.read() == {3: "newer"}


@pytest.mark.parametrize("rows_at_once", [3, 1_000])
def test_rows_of_keys_that_became_equal_are_repeated(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    """As a table that was written when raw keys were compared."""
    monkeypatch.setattr(module, "_RANGE_ROWS", rows_at_once)
    one = Upserted(catalog, tmp_path, is_in_columns=True)
    for version in range(3):
        records = [
            Record(number, version, (number + version) % 3, version, f"v{version}")
            for number in range(version, 30)
        ]
        append(one.table, one.arrow(records))
        one.table.refresh()
    head = one.table.current_snapshot()
    assert head is not None
    repeated = one.index.repeated_rows(one.table, head)
    assert sum(len(rows.positions) for rows in repeated) == 29 + 28
    one.commit(repeated, one.arrow([]))
    newest = {number: f"v{min(number, 2)}" for number in range(30)}
    assert one.read() == newest
    head = one.table.current_snapshot()
    assert head is not None
    assert one.index.repeated_rows(one.table, head) == []


def test_rows_that_others_wrote_without_a_partition_stay(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    one = Upserted(catalog, tmp_path, is_in_columns=True)
    one.batch([Record(1, 0, 0, 1, "a")])
    one.table.append(pa.table({"id": pa.array([1, None], pa.int64())}))
    one.batch([Record(1, 0, 0, 2, "b")])
    rows = one.table.refresh().scan().to_arrow().to_pylist()
    assert sorted(str(row["value"]) for row in rows) == ["None", "None", "b"]


def test_key_files_of_other_definitions_are_not_read(catalog: SqlCatalog, tmp_path: Path) -> None:
    one = Upserted(catalog, tmp_path, is_in_columns=True)
    raw_index = KeyIndex(one.folder, KeyHasher(one.table, ("$$raw-key", "$$partition")))
    one.batch([Record(1, 0, 0, 1, "a")])
    head = one.table.current_snapshot()
    assert head is not None
    held = pa.table({"raw": [raw(Record(1, 0, 0, 1, "a"))], "p": pa.array([0], pa.int32())})
    assert len(raw_index.rows_with(one.table, head, raw_index.hasher.hashes(held.columns))) == 1
    one.batch([Record(1, 1, 2, 2, "b")])
    assert one.read() == {1: "b"}
    assert len({path.parent for path in one.folder.rglob("*.keys")}) == 2
    wider = KeyIndex(one.folder, KeyHasher(one.table, ("id", "value"), is_decoded=True))
    assert (
        len({wider.hasher.definition, raw_index.hasher.definition, one.index.hasher.definition})
        == 3
    )


def test_hash_of_a_decoded_key_keeps_its_order() -> None:
    found = hash_keys(
        UUID(int=7),
        pa.array([b"a", b"b", b"a"]),
        pa.array([1, None, 3], pa.int32()),
        first=10,
        are_decoded=True,
    )
    assert isinstance(found, Keys)
    assert (found.position.tolist(), found.high[0]) == ([10, 12], found.high[1])
    assert (found.low >> np.uint64(48)).tolist() == [1, 3]
