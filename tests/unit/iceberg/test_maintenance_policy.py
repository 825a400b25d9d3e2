"""What is due, from metadata alone: tiers, expiry."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from cachetools import LRUCache, cached
from hypothesis import given, settings
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID, SetPropertiesUpdate
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, TimestamptzType
from specs import minimal

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.iceberg import file_facts, files, manifests
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.changes import LEDGER, Mark, changed
from topicberg.iceberg.commits import commit_update, move_main
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.file_facts import Files, live
from topicberg.iceberg.hours import HOUR_MICROSECONDS, FileHours
from topicberg.iceberg.maintenance import retention
from topicberg.iceberg.maintenance.compaction import bytes_to_merge, due_tiers, many_deletes, tiers
from topicberg.iceberg.maintenance.expiry import Expirable, _only_of, expirable, expire, remove
from topicberg.iceberg.maintenance.orphans import remove_orphans
from topicberg.iceberg.maintenance.policy import MaintenancePolicy
from topicberg.iceberg.maintenance.run import maintain_table, topic_policy
from topicberg.iceberg.maintenance.ttl import expired
from topicberg.iceberg.summaries import END_OFFSETS, STAGING_PREFIX, ancestry
from topicberg.tableflow.erasure.rewriting import check_rewritable
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
    return [
        tier.max_bytes // MB for tier in due_tiers(Files.of([file(size) for size in sizes]), TARGET)
    ]


def test_tiers() -> None:
    assert due() == due(1) == due(TARGET, TARGET) == []
    assert due(1, 1) == [1]
    # A file that was merged already waits until there are more of its size.
    assert due(1, 5 * MB) == due(5 * MB, 6 * MB, 7 * MB, 8 * MB) == []
    assert (due(*[5 * MB] * 5), due(*[20 * MB] * 4)) == ([96, 12], [])
    # Full already.
    assert due(90 * MB, 90 * MB) == [96]


def test_partitions_are_apart() -> None:
    assert due_tiers(Files.of([file(1, 0), file(1, 1)]), TARGET) == []
    deletes = [file(1, n % 2, DataFileContent.POSITION_DELETES) for n in range(19)]
    assert many_deletes(Files.of(deletes))
    assert not many_deletes(Files.of(deletes[:18]))
    assert due_tiers(Files.of(deletes), TARGET) == []


def test_bytes_to_merge_are_those_of_data_files() -> None:
    vectors = [file(90 * MB, 0, DataFileContent.POSITION_DELETES)] * 50
    small, full = file(5 * MB), file(TARGET)
    assert bytes_to_merge(Files.of([small, small, full, *vectors]), tiers(TARGET)[0]) == 10 * MB


@given(st.lists(st.integers(1, 4 * TARGET), max_size=40))
def test_merging_ends(sizes: list[int]) -> None:
    """Whatever the files, merging what is due soon leaves nothing due, and few small files."""
    for _ in range(20):
        found = due_tiers(Files.of([file(size) for size in sizes]), TARGET)
        if not found:
            break
        for tier in found:
            whole, rest = divmod(sum([size for size in sizes if size < tier.max_bytes]), TARGET)
            merged = [TARGET] * whole + ([rest] if rest else [])
            sizes = [size for size in sizes if size >= tier.max_bytes] + merged
    else:
        raise AssertionError(sizes)
    assert sum(size < tiers(TARGET)[0].max_bytes for size in sizes) <= 4


def keeping(data_retention_ms: int | None) -> TopicSpec:
    kept = {"retention_ms": 2**63 - 1, "data_retention_ms": data_retention_ms}
    return TopicSpec.model_validate(minimal(tableflow=kept))


def test_rows_are_kept_for_the_shorter_time_that_was_agreed_to(catalog: SqlCatalog) -> None:
    """A history of saved specs and of agreements deletes no row earlier than a table may."""
    month, year, ever = 30 * 86_400_000, 365 * 86_400_000, 2**63 - 1
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType())))
    assert topic_policy(keeping(None), table).retention > timedelta(days=365 * 50)
    assert topic_policy(keeping(month), table).data_retention == timedelta(days=30), "as by 1.0.0"
    retention.follow_longer(table, keeping(None))
    kept = timedelta.max
    steps = Random(1).choices([month, year, ever, None], k=60)
    for number, wanted in enumerate(steps):
        spec = keeping(wanted)
        says = timedelta.max if wanted in (ever, None) else timedelta(milliseconds=wanted)
        assert retention.is_shorter(spec, table) == (says < kept)
        if number % 3 == 0:
            retention.agree(table, spec)
            kept = says
        retention.follow_longer(table, spec)
        kept = max(kept, says)
        policy = topic_policy(spec, table.refresh())
        assert (policy.data_retention or timedelta.max) == kept
    with table.transaction() as transaction:
        transaction.set_properties({retention.AGREED: "a month"})
    assert topic_policy(keeping(month), table).data_retention is None


def test_an_hour_of_hasty_commits_is_cut_short(catalog: SqlCatalog) -> None:
    """What readers may still read stays, up to a number."""
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType())))
    for number in range(8):
        table.append(pa.table({"id": [number]}))
    newest_first = [snapshot.snapshot_id for snapshot in ancestry(table)]
    policy = MaintenancePolicy(min_snapshots=1, max_snapshots=2, max_young=4)
    now_ms = table.metadata.last_updated_ms
    assert expirable(table, policy, now_ms).snapshots == set(newest_first[4:])
    hours_later = now_ms + 2 * 3_600_000
    assert expirable(table, policy, hours_later).snapshots == set(newest_first[2:])
    # A batch that was staged and not published keeps itself, and not what it was to come after.
    table.manage_snapshots().create_branch(newest_first[4], f"{STAGING_PREFIX}x").commit()
    assert expirable(table, policy, now_ms).snapshots == set(newest_first[6:])


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 200), st.integers(0, 3)), max_size=30),
    st.integers(0, 30),
)
def test_files_of_manifests_are_those_of_all(drawn: list[tuple[int, int, int]], first: int) -> None:
    """Numbers of parts of the files, put together, decide the same."""
    held = [file(size * MB, number, DataFileContent(kind)) for kind, size, number in drawn]
    parts = Files.of(held[:first]), Files.of(held[first:])
    together, whole = Files.together(parts), Files.of(held)
    assert due_tiers(together, TARGET) == due_tiers(whole, TARGET)
    assert many_deletes(together) == many_deletes(whole)
    by_partition: dict[tuple[object, ...], int] = {}
    for one in held:
        key = (0, one.partition[0])
        by_partition[key] = by_partition.get(key, 0) + one.file_size_in_bytes
    _, sizes = together.by_partition(np.ones(len(held), np.bool_))
    assert dict(zip(together.partitions, sizes, strict=True)) == by_partition


def test_known_manifests_are_not_read_again(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = NestedField(1, "id", LongType())
    table = catalog.create_table("shop.orders", Schema(column))
    for number in range(3):
        table.append(pa.table({"id": [number, None]}))
    found = live(table, column).numbers[["lower", "upper", "nulls", "rows"]]
    assert sorted(found.tolist()) == [(number, number, 1, 2) for number in range(3)]
    read: list[str] = []

    def read_entries(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
        read.append(manifest.manifest_path)
        return manifests.read_entries(io, manifest)

    monkeypatch.setattr(file_facts, "read_entries", read_entries)
    table.append(pa.table({"id": [3]}))
    assert (len(live(table, column)), len(read)) == (4, 1)
    few: LRUCache[tuple[str, int | None], file_facts.Files] = LRUCache(2, getsizeof=len)
    read_one = cached(few, key=file_facts._files.cache_key)(file_facts._files.__wrapped__)
    monkeypatch.setattr(file_facts, "_files", read_one)
    assert [len(live(table, column)) for _ in range(2)] == [4, 4]
    assert len(read) > 5


HISTORIES = st.lists(
    st.sampled_from(
        [
            *("append", "delete", "branch", "publish", "pick", "again"),
            *("drop", "rollback", "tag", "expire"),
        ]
    ),
    min_size=4,
    max_size=14,
)


@given(HISTORIES, st.randoms(use_true_random=False))
@settings(max_examples=10)
def test_expiry_deletes_what_no_other_snapshot_has(
    catalog: SqlCatalog, events: list[str], random: Random
) -> None:
    """Whatever branches there are, the few snapshots that are read decide as all of them do."""
    name = f"shop.t{uuid.uuid4().hex}"
    table = catalog.create_table(name, Schema(NestedField(1, "id", LongType())))
    own_share = random.choice([0.5, 1])
    table.append(pa.table({"id": [0]}))
    for number, event in enumerate(events, 1):
        line = list(ancestry(table))
        properties = {END_OFFSETS: "[]"} if random.random() < own_share else {}
        if event == "append":
            table.append(pa.table({"id": [number]}), properties)
        elif event == "delete":
            table.delete(f"id == {random.randrange(number)}", properties)
        elif event == "branch":
            base = random.choice(line).snapshot_id
            table.manage_snapshots().create_branch(base, f"b{number}").commit()
            table.append(pa.table({"id": [number]}), properties, branch=f"b{number}")
        elif event == "again":
            _add_again(table, random)
        elif event == "tag":
            table.manage_snapshots().create_tag(
                random.choice(line).snapshot_id, f"t{number}"
            ).commit()
        elif event == "rollback":
            table.manage_snapshots().rollback_to_snapshot(random.choice(line).snapshot_id).commit()
        elif event == "publish":
            branches = [r for r in table.metadata.refs if r.startswith("b")]
            if branches:
                staged = table.metadata.refs[random.choice(branches)].snapshot_id
                table.manage_snapshots().set_current_snapshot(staged).commit()
        elif event == "pick":
            _pick(table, random.choice(table.metadata.snapshots))
        elif event == "drop":
            _drop(table, random)
        else:
            _expire_some(table, random)
        table.refresh()
    _expire_some(table, random)


def _pick(table: Table, source: Snapshot) -> None:
    """Add the files of a snapshot to ``main`` as Iceberg's ``cherrypick_snapshot`` does."""
    added = [
        manifest
        for manifest in source.manifests(table.io)
        if manifest.added_snapshot_id == source.snapshot_id
    ]
    picked = [entry.data_file for entry in files.entries(table.io, added)]
    live = {file.file_path for file in files.live_files(table)}
    if not live.intersection(file.file_path for file in picked):
        properties = {"source-snapshot-id": str(source.snapshot_id)}
        change = SnapshotChange(table, Operation.APPEND, properties=properties)
        change.add(picked)
        change.commit()


def _add_again(table: Table, random: Random) -> None:
    """Add a file that the table has or had, as other writers do to correct its metadata."""
    known = files.manifests(table.io, table.metadata.snapshots).values()
    by_path = {e.data_file.file_path: e.data_file for e in files.entries(table.io, known)}
    chosen = by_path[random.choice(sorted(by_path))]
    live = {file.file_path for file in files.live_files(table)}
    change = SnapshotChange(table, Operation.OVERWRITE)
    change.remove([chosen] if chosen.file_path in live else [])
    change.add([chosen])
    change.commit()


def _drop(table: Table, random: Random) -> None:
    """Remove a branch or a tag, if there is one."""
    if names := sorted(table.metadata.refs.keys() - {"main"}):
        name, manage = random.choice(names), table.manage_snapshots()
        (manage.remove_branch if name.startswith("b") else manage.remove_tag)(name).commit()


def _expire_some(table: Table, random: Random) -> None:
    """Expire snapshots as the unreferenced ones may be, and compare with reading all."""
    before = table.metadata.snapshots
    referenced = {ref.snapshot_id for ref in table.metadata.refs.values()}
    gone = {
        s.snapshot_id for s in before if s.snapshot_id not in referenced and random.random() < 0.6
    }
    if not gone:
        return
    table.maintenance.expire_snapshots().by_ids(list(gone)).commit()
    table.refresh()
    removed = [s for s in before if s.snapshot_id in gone]
    kept = [s for s in before if s.snapshot_id not in gone]

    def reached(snapshots: list[Snapshot]) -> set[str]:
        found = files.manifests(table.io, snapshots)
        data = {e.data_file.file_path for e in files.entries(table.io, found.values())}
        return {s.manifest_list for s in snapshots} | found.keys() | data

    assert _only_of(removed, kept, table.io) == reached(removed) - reached(kept)


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_expiry_keeps_a_tagged_or_branched_file_that_was_added_again(
    catalog: SqlCatalog, kind: str
) -> None:
    own = {END_OFFSETS: "[]"}
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType())))
    table.append(pa.table({"id": [0]}), own)
    (file,), base = files.live_files(table), table.metadata.snapshots[0].snapshot_id
    manage = table.manage_snapshots()
    (manage.create_tag if kind == "tag" else manage.create_branch)(base, "kept").commit()
    _add_again(table, Random(0))
    if kind == "tag":
        table.refresh().delete("id == 0", own)
        first, again, last = table.refresh().metadata.snapshots
        assert file.file_path not in _only_of([again], [first, last], table.io)
        return
    table.refresh().append(pa.table({"id": [1]}), own)
    table.delete("id == 0", own)
    table.append(pa.table({"id": [2]}), own, branch="kept")
    # Earlier, the first two expired: the one that wrote the file, and the one that added it again.
    _, _, removed, last, of_branch = table.refresh().metadata.snapshots
    assert file.file_path not in _only_of([removed], [last, of_branch], table.io)


STAGED = {"wap.id": "audit-1"}


def stage(table: Table, number: int, **properties: str) -> Snapshot:
    """Add a row to a snapshot on no branch, as Spark does with ``spark.wap.id``."""
    change = SnapshotChange(table, Operation.APPEND, properties={**STAGED, **properties})
    with DataFileWriter(WriteTarget.of(table), table.io) as writer:
        writer.write({"id": pa.array([number], pa.int64())})
    change.add(writer.files)
    snapshot, uuid_is_same = change._snapshot(), AssertTableUUID(uuid=table.metadata.table_uuid)
    table.catalog.commit_table(table, (uuid_is_same,), (AddSnapshotUpdate(snapshot=snapshot),))
    table.refresh()
    return snapshot


def test_expirable_keeps_what_users_staged_as_long_as_other_snapshots(catalog: SqlCatalog) -> None:
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType())))
    table.append(pa.table({"id": [1]}))
    users, batch = stage(table, 2), stage(table, 3, **{END_OFFSETS: "{}"})
    now_ms, policy = table.metadata.last_updated_ms, MaintenancePolicy()
    assert expirable(table, policy, now_ms + 3_700_000).snapshots == {batch.snapshot_id}
    both = {batch.snapshot_id, users.snapshot_id}
    assert expirable(table, policy, now_ms + 8 * 86_400_000).snapshots == both


def test_expirable_keeps_what_users_retain_of_a_branch(catalog: SqlCatalog) -> None:
    """apache/iceberg-go#1600 and seaweedfs/seaweedfs#10774."""
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType())))
    for number in range(6):
        table.append(pa.table({"id": [number]}))
    head, year = table.metadata.current_snapshot_id or 0, 365 * 86_400_000
    move, audit = move_main(table, head), {"ref_name": "audit", "min_snapshots_to_keep": 3}
    for kept in (audit, {"max_snapshot_age_ms": year}):
        commit_update(table, move.model_copy(update=kept))
    SnapshotChange(table.refresh(), Operation.APPEND).commit()
    last_ms, policy = table.refresh().metadata.last_updated_ms, MaintenancePolicy(min_snapshots=1)
    assert not expirable(table, policy, last_ms + year // 2)
    assert len(expirable(table, policy, last_ms + 2 * year).snapshots) == 3


def test_expirable_keeps_the_offsets_of_a_tagged_snapshot(catalog: SqlCatalog) -> None:
    """After a rollback to the tag, the engine resumes there."""
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType())))
    for number in range(6):
        offsets = {END_OFFSETS: f'{{"0": {number}}}'} if number in (1, 5) else {}
        table.append(pa.table({"id": [number]}), snapshot_properties=offsets)
    head, _, _, tagged, with_offsets, oldest = ancestry(table)
    table.manage_snapshots().create_tag(tagged.snapshot_id, "good").commit()
    policy = MaintenancePolicy(min_snapshots=1)
    expired = expirable(table, policy, table.metadata.last_updated_ms + 8 * 86_400_000).snapshots
    assert oldest.snapshot_id in expired
    assert not expired & {each.snapshot_id for each in (head, tagged, with_offsets)}


def test_expiry_removes_schemas_and_partition_specs_without_snapshots(catalog: SqlCatalog) -> None:
    table = catalog.create_table("shop.changing", pa.schema([("id", pa.int64())]))
    for number in range(4):
        with table.update_schema() as update:
            update.add_column(f"column_{number}", LongType())
        with table.update_spec() as spec:
            if number:
                spec.remove_field(f"p{number - 1}")
            spec.add_field("id", BucketTransform(3 + number), f"p{number}")
        table.append(pa.table({"id": [number], f"column_{number}": [1]}))
    policy = MaintenancePolicy(
        retention=timedelta(0), min_snapshots=2, max_snapshots=2, reader_age=timedelta(0)
    )
    expire(table, policy, 10**15)
    kept = {snapshot.schema_id for snapshot in table.metadata.snapshots}
    assert {schema.schema_id for schema in table.metadata.schemas} == kept
    assert len(table.metadata.snapshots) == 2
    assert len(table.metadata.partition_specs) == 4  # the files are still read
    assert table.scan().to_arrow().num_rows == 4
    table.delete("id < 3")
    expire(table, policy, 10**15)
    for _ in range(3):
        table.append(pa.table({"id": [9]}))
    expire(table, policy, 10**15)
    assert len(table.metadata.partition_specs) == 1
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [3, 9, 9, 9]


def test_expiry_keeps_no_more_snapshots_than_fit_the_metadata(catalog: SqlCatalog) -> None:
    table = catalog.create_table("shop.large", pa.schema([("id", pa.int64())]))
    for _ in range(6):
        table.append(pa.table({"id": [1]}), snapshot_properties={"offsets": "1" * 10_000})
    now_ms = table.metadata.last_updated_ms
    few = MaintenancePolicy(min_snapshots=2, metadata_bytes=47_000)
    assert len(expirable(table, few, now_ms).snapshots) == 2
    least = MaintenancePolicy(min_snapshots=2, metadata_bytes=1)
    assert len(expirable(table, least, now_ms).snapshots) == 4
    assert not expirable(table, MaintenancePolicy(), now_ms)


class OnePropertyUpdate(SqlCatalog):
    """Refuses what Nessie refuses: a commit with two updates of the properties."""

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        assert sum(isinstance(update, SetPropertiesUpdate) for update in updates) <= 1
        return super().commit_table(table, requirements, updates)


@settings(max_examples=3)
@given(st.sets(st.integers(-5000, 5000), min_size=1, max_size=300), st.randoms())
def test_expiry_records_exactly_the_hours_that_snapshots_changed(
    hours: set[int], random: Random
) -> None:
    """Late rows may be in any hours, and a gap between two of them needs no computation."""
    with TemporaryDirectory() as folder:
        catalog = OnePropertyUpdate(
            "unit", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}"
        )
        catalog.create_namespace("shop")
        table = catalog.create_table("shop.late", Schema(NestedField(1, "at", TimestamptzType())))
        commit_hours(table, {0})
        mark, chosen = Mark.of(table, table.current_snapshot()), sorted(hours)
        random.shuffle(chosen)
        for part in (chosen[::2], chosen[1::2]):
            commit_hours(table, part)
        commit_hours(table, {9000})
        line = [snapshot.snapshot_id for snapshot in ancestry(table)]
        remove(table, Expirable(frozenset(line[2:]), frozenset()), "at")
        remove(table, Expirable(frozenset(line[1:2]), frozenset()), "at", {"shop": "open"})
        assert table.properties["shop"] == "open"
        found = changed(table, "at", mark)
        assert not found.everything
        assert {hour for each in found.changes for hour in each.hours} == {*hours, 9000}
        assert len(table.properties[LEDGER]) < 8_000
        catalog.close()


def commit_hours(table: Table, hours: Iterable[int]) -> None:
    """Add a file for each hour since 1970, which no test reads."""
    change = SnapshotChange(table, Operation.APPEND)
    for hour in hours:
        bound = {1: to_bytes(TimestamptzType(), hour * HOUR_MICROSECONDS)}
        added = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{table.location()}/{uuid.uuid4()}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=1,
            lower_bounds=bound,
            upper_bounds=bound,
            null_value_counts={1: 0},
        )
        added.spec_id = 0
        change.add([added])
    change.commit()
    table.refresh()


def test_maintenance_without_garbage_collection_deletes_no_file(catalog: SqlCatalog) -> None:
    """ClickHouse/ClickHouse#120306: another table, or a branch of Nessie, may have the files."""
    schema, properties = Schema(NestedField(1, "id", LongType())), {"gc.enabled": "false"}
    table = catalog.create_table("shop.shared", schema, properties=properties)
    for number in range(3):
        table.append(pa.table({"id": [number]}))
    now = timedelta(0)
    policy = MaintenancePolicy(
        retention=now,
        min_snapshots=1,
        reader_age=now,
        compact_after=timedelta(days=1),
        orphan_age=now,
        daily=now,
    )
    orphan = Path(table.location().removeprefix("file://")) / "data" / "orphan.parquet"
    orphan.write_text("")
    endpoints = cast("Endpoints", None)  # for Spark, which has nothing to do
    assert not maintain_table(table, endpoints, policy).changed
    assert orphan.exists()
    with pytest.raises(TopicbergError, match=r"property gc\.enabled is false"):
        check_rewritable(table, ())
    with table.transaction() as transaction:
        transaction.set_properties({"gc.enabled": "TRUE"})
    table.catalog.skew_seconds = -86_400.0  # type: ignore[attr-defined]
    assert not maintain_table(table, endpoints, policy).changed  # this machine's clock is ahead
    table.catalog.skew_seconds = -1.0  # type: ignore[attr-defined]
    report = maintain_table(table, endpoints, policy)
    assert (report.snapshots_expired, report.orphans_removed) == (2, 1)


def test_orphans_are_no_files_of_other_formats(catalog: SqlCatalog) -> None:
    """ClickHouse/ClickHouse#113548 and delta-io/delta#2273."""
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType())))
    table.append(pa.table({"id": [1]}))
    root = Path(table.location().removeprefix("file://"))
    names = ("metadata/version-hint.text", ".hoodie/hoodie.properties", "_delta_log/0.json")
    orphans = ("data/_part=1/a.parquet", "_topicberg_keys/a.keys", "metadata/a.avro")
    for name in (*names, *orphans):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    assert remove_orphans(table, timedelta(days=3), now=2e10) == 3
    assert [name for name in (*names, *orphans) if (root / name).exists()] == [*names]


def test_ttl_ignores_bounds_in_the_wrong_order(catalog: SqlCatalog) -> None:
    """ClickHouse/ClickHouse#116499."""
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "at", TimestamptzType())))
    old, young = (datetime(year, 1, 1, tzinfo=UTC) for year in (2024, 2026))
    table.append(pa.table({"at": pa.array([old, young], pa.timestamp("us", "UTC"))}))
    (file,) = files.live_files(table)
    assert file.lower_bounds
    assert file.upper_bounds
    file.lower_bounds[1], file.upper_bounds[1] = file.upper_bounds[1], file.lower_bounds[1]
    column = table.schema().find_field("at")
    whole, partly = expired(
        Files.of([file], column), datetime(2025, 1, 1, tzinfo=UTC), timedelta(), unknown=True
    )
    assert (whole.tolist(), partly) == ([False], True)
    assert FileHours(table, "at").of(file, cast("Snapshot", table.current_snapshot()))[0]
