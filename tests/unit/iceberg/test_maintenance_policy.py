"""What is due, from metadata alone: tiers, expiry."""

from __future__ import annotations

from datetime import timedelta

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from topicberg.iceberg.maintenance.compaction import due_tiers, many_deletes, tiers
from topicberg.iceberg.maintenance.expiry import expirable
from topicberg.iceberg.maintenance.policy import Policy
from topicberg.iceberg.maintenance.run import topic_policy
from topicberg.iceberg.summaries import STAGING_PREFIX, ancestry
from topicberg.topics import TopicSpec

MB = 1024 * 1024
TARGET = 128 * MB


def file(
    size: int, partition: int = 0, content: DataFileContent = DataFileContent.DATA
) -> DataFile:
    data = DataFile.from_args(
        content=content,
        file_path="f",
        file_format=FileFormat.PARQUET,
        partition=Record(partition),
        record_count=1,
        file_size_in_bytes=size,
    )
    data.spec_id = 0
    return data


def due(*sizes: int) -> list[int]:
    return [tier.max_bytes // MB for tier in due_tiers([file(size) for size in sizes], TARGET)]


def test_tiers() -> None:
    assert due() == due(1) == due(TARGET, TARGET) == []
    assert due(1, 1) == [1]
    # A file that was merged already waits until there are more of its size.
    assert due(1, 5 * MB) == due(5 * MB, 6 * MB, 7 * MB, 8 * MB) == []
    assert due(*[5 * MB] * 5) == [96, 12]
    assert due(*[20 * MB] * 4) == []
    # Full already.
    assert due(90 * MB, 90 * MB) == [96]


def test_partitions_are_apart() -> None:
    assert due_tiers([file(1, 0), file(1, 1)], TARGET) == []
    deletes = [file(1, n % 2, DataFileContent.POSITION_DELETES) for n in range(19)]
    assert many_deletes(deletes)
    assert not many_deletes(deletes[:18])
    assert due_tiers(deletes, TARGET) == []


@given(st.lists(st.integers(1, 4 * TARGET), max_size=40))
def test_merging_ends(sizes: list[int]) -> None:
    """Whatever the files, merging what is due soon leaves nothing due, and few small files."""
    for _ in range(20):
        found = due_tiers([file(size) for size in sizes], TARGET)
        if not found:
            break
        for tier in found:
            small = [size for size in sizes if size < tier.max_bytes]
            whole, rest = divmod(sum(small), TARGET)
            merged = [TARGET] * whole + ([rest] if rest else [])
            sizes = [size for size in sizes if size >= tier.max_bytes] + merged
    else:
        raise AssertionError(sizes)
    assert sum(size < tiers(TARGET)[0].max_bytes for size in sizes) <= 4


def test_retention_for_ever_is_possible() -> None:
    spec = TopicSpec.model_validate(
        {
            "name": "t",
            "pipeline": "p",
            "schema": {"format": "none"},
            "tableflow": {"retention_ms": 2**63 - 1, "data_retention_ms": 30 * 86_400_000},
        }
    )
    policy = topic_policy(spec)
    assert policy.retention > timedelta(days=365 * 50)
    assert policy.data_retention == timedelta(days=30)


def test_an_hour_of_hasty_commits_is_cut_short(catalog: SqlCatalog) -> None:
    """What readers may still read stays, up to a number."""
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType())))
    for number in range(8):
        table.append(pa.table({"id": [number]}))
    newest_first = [snapshot.snapshot_id for snapshot in ancestry(table)]
    policy = Policy(min_snapshots=1, max_snapshots=2, max_young=4)
    now_ms = table.metadata.last_updated_ms
    assert expirable(table, policy, now_ms).snapshots == set(newest_first[4:])
    hours_later = now_ms + 2 * 3_600_000
    assert expirable(table, policy, hours_later).snapshots == set(newest_first[2:])
    # A batch that was staged and not published keeps itself, and not what it was to come after.
    table.manage_snapshots().create_branch(newest_first[4], f"{STAGING_PREFIX}x").commit()
    assert expirable(table, policy, now_ms).snapshots == set(newest_first[6:])
