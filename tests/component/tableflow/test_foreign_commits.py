"""Commits of other writers: every row once and right, or the topic suspended until a user acts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import cast

import pytest
from debezium import folding_waits
from format_versions import allow_version_3
from format_versions import overwrite as write
from memory_topic import MemoryTopic, memory_topic, read_all
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from test_folding import Connector, changed_topic, random_source, rows_of

from topicberg.cli import tableflow as command
from topicberg.errors import SpecError, TableflowError
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.commits import commit_update, move_main
from topicberg.iceberg.files import entries, live_files
from topicberg.iceberg.manifests import new_file
from topicberg.iceberg.summaries import CHECKPOINT_TAG, PICKED_FROM, TRIMMED
from topicberg.settings import Settings
from topicberg.tableflow.changelog import old_values
from topicberg.tableflow.changelog.old_values import LaterRecordsError
from topicberg.tableflow.erasure.forgetting import Forgetting
from topicberg.tableflow.erasure.rows import KeyRows, topic_targets
from topicberg.tableflow.service import control
from topicberg.tableflow.table.reread import Reread, reread
from topicberg.topics.discovery import FoundSchema, FoundTopic
from topicberg.topics.requests import StoredRequest, write_request

HISTORIES = int(os.environ.get("TOPICBERG_TEST_HISTORIES", "4"))
SEED = int(os.environ.get("TOPICBERG_TEST_SEED", "0"))


class Lake:
    """A topic in memory, its table, and another writer."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, write_mode: str, version: int
    ) -> None:
        self.topic: MemoryTopic = memory_topic(
            folder,
            monkeypatch,
            schema={"format": "text"},
            key={"format": "string"},
            write_mode=write_mode,
            table={"format_version": version},
        )
        if version == 3:
            allow_version_3(monkeypatch)
        self.restart()

    def restart(self) -> None:
        self.ingestor = self.topic.ingestor()

    def produce(self, **values: str | None) -> None:
        for key, value in values.items():
            text = None if value is None else value.encode()
            self.topic.produce(ord(key[-1]) % 2, key.encode(), text)

    def commit(self) -> None:
        while self.ingestor.step().backlog:
            pass

    @property
    def table(self) -> Table:
        return self.topic.catalog.load_table(self.topic.spec.table_identifier(self.topic.config))

    @property
    def head(self) -> Snapshot:
        return cast("Snapshot", self.table.current_snapshot())

    def rows(self) -> list[tuple[str, str]]:
        return sorted((row["key"], str(row["value"])) for row in self.topic.rows())

    def expected(self) -> list[tuple[str, str]]:
        """Return what the table has of the whole topic."""
        records = [
            (cast("bytes", one.own[0]).decode(), one.own[1] and one.own[1].decode())
            for log in self.topic.partitions.values()
            for one in log
        ]
        if self.topic.spec.write_mode == "upsert":
            records = [item for item in dict(records).items() if item[1] is not None]
        return sorted((key, str(value)) for key, value in records)

    def resume(self) -> None:
        request = StoredRequest(topic=self.topic.spec.name, enabled=True, resumed_at=time.time())
        write_request(self.topic.config, request)

    def reread(self) -> Reread:
        return reread(self.topic.spec, self.table, self.topic.endpoints, self.topic.config)

    # --- what others do ---

    def compact(self, as_of: Snapshot, properties: Mapping[str, str] | None = None) -> None:
        """Merge the files of a snapshot that the head still has, with their rows as of then.

        :param properties: of a snapshot that replaces files, as a compaction's does
        """
        table = self.table
        present = {file.file_path for file in live_files(table)}
        old = entries(table.io, as_of.manifests(table.io))
        data = [e.data_file for e in old if e.data_file.content == DataFileContent.DATA]
        removed = [file for file in data if file.file_path in present]
        paths = {file.file_path for file in removed}
        scan = table.scan(snapshot_id=as_of.snapshot_id)
        tasks = [task for task in scan.plan_files() if task.file.file_path in paths]
        reader = ArrowScan(table.metadata, table.io, table.schema(), scan.row_filter)
        operation = Operation.OVERWRITE if properties is None else Operation.REPLACE
        write(table, reader.to_table(tasks), removed, operation, properties)

    def overwrite(self, as_of: Snapshot) -> None:
        """Replace all rows by those of a snapshot."""
        table = self.table
        rows = table.scan(snapshot_id=as_of.snapshot_id).to_arrow()
        if not rows.num_rows:  # as a statement that deletes all rows
            return
        if table.format_version == 2:
            table.overwrite(rows)
        else:  # PyIceberg writes no other version
            write(table, rows, [f for f in live_files(table) if f.content == DataFileContent.DATA])

    def roll_back(self, to: Snapshot) -> None:
        commit_update(self.table, move_main(self.table, to.snapshot_id))

    def pick(self, picked: Snapshot) -> None:
        """Add the files that a snapshot added."""
        change = SnapshotChange(
            self.table, Operation.APPEND, properties={PICKED_FROM: str(picked.snapshot_id)}
        )
        change.add(self.added_by(picked))
        change.commit()

    def added_by(self, snapshot: Snapshot) -> list[DataFile]:
        found = entries(self.table.io, snapshot.manifests(self.table.io))
        return [
            entry.data_file
            for entry in found
            if entry.snapshot_id == snapshot.snapshot_id
            and entry.data_file.content == DataFileContent.DATA
        ]

    def expire(self) -> None:
        """Expire all snapshots that no branch or tag is at."""
        table = self.table
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        ids = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in kept]
        if ids:
            table.maintenance.expire_snapshots().by_ids(ids).commit()


MakeLake = Callable[[str, int], Lake]


@pytest.fixture
def make_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeLake:
    def make(write_mode: str, version: int = 2) -> Lake:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return Lake(folder, monkeypatch, write_mode, version)

    return make


def test_engine_change_log_after_a_compaction_as_of_an_older_head_is_reread(
    make_lake: MakeLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, rng = make_lake("upsert", 2), Random(3)
    lake.topic = changed_topic(tmp_path, monkeypatch)
    lake.restart()
    folding_waits(monkeypatch, certain_ms=old_values.CERTAIN_MS)
    connector, source = Connector(lake.topic), random_source(rng, 2)
    first, *others, last = source.batches(4)
    heads = list[Snapshot]()
    with monkeypatch.context() as waiting:
        folding_waits(waiting)
        for batch in (first, *others):
            connector.send(batch)
            with suppress(LaterRecordsError):  # the deletion of an old key is in a later batch
                lake.commit()
            heads.append(lake.head)
    lake.compact(heads[0])
    connector.send(last)
    with pytest.raises(TableflowError, match="brought back or doubled"):
        lake.commit()
    lake.reread()
    read_all(lake.ingestor)
    assert rows_of(lake.topic) == source.rows


def changed(lake: Lake) -> Snapshot:
    """Return the first of two snapshots; the second one has deletes, updates and insertions."""
    lake.produce(**{f"k{number}": "old" for number in range(6)})
    lake.commit()
    before = lake.head
    lake.produce(k0=None, k1="new", k2="new", k7="new")
    lake.commit()
    return before


@pytest.mark.parametrize("version", [2, 3])
def test_engine_compaction_as_of_an_older_head_suspends_until_reread(
    make_lake: MakeLake, version: int
) -> None:
    lake = make_lake("upsert", version)
    before, right, head = changed(lake), lake.rows(), lake.head
    lake.compact(before)
    assert len(lake.rows()) == len(right) + 3
    lake.produce(k8="new")
    for _ in range(2):
        with pytest.raises(TableflowError, match="brought back or doubled 3 rows") as error:
            lake.commit()
        lake.restart()
    assert f"snapshot {lake.head.snapshot_id} (overwrite)" in error.value.message
    assert "parquet-cpp-arrow" in error.value.message
    assert f"set the table to snapshot {head.snapshot_id}" in str(error.value.hint)
    assert lake.reread().restored == head.snapshot_id
    lake.commit()
    assert lake.rows() == lake.expected()


def test_engine_compaction_by_a_careless_user_of_the_java_library_suspends(
    make_lake: MakeLake,
) -> None:
    """StarRocks/starrocks#77709: it compared with the head instead of what it had read."""
    lake = make_lake("upsert", 2)
    lake.compact(changed(lake), {"iceberg-version": "Apache Iceberg 1.10.0"})
    lake.produce(k8="new")
    with pytest.raises(TableflowError, match="brought back or doubled 3 rows"):
        lake.commit()


def test_engine_compaction_of_the_newest_rows_continues(make_lake: MakeLake) -> None:
    lake = make_lake("upsert", 2)
    changed(lake)
    lake.compact(lake.head)
    lake.produce(k3=None, k4="newer")
    lake.commit()
    assert lake.rows() == lake.expected()


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_engine_overwrite_with_older_rows_suspends(make_lake: MakeLake, write_mode: str) -> None:
    lake = make_lake(write_mode, 2)
    lake.produce(k0="old", k1="old")
    lake.commit()
    before = lake.head
    lake.produce(k2="new", k3="new")
    lake.commit()
    lake.overwrite(before)
    with pytest.raises(TableflowError, match="lost 2 rows of snapshot"):
        lake.commit()
    lake.reread()
    lake.commit()
    assert lake.rows() == lake.expected()


def test_engine_picked_rows_of_a_rolled_back_batch_suspend(make_lake: MakeLake) -> None:
    lake = make_lake("append", 2)
    lake.produce(k0="a")
    lake.commit()
    first = lake.head
    lake.produce(k1="b")
    lake.commit()
    second = lake.head
    lake.roll_back(first)
    lake.pick(second)
    with pytest.raises(TableflowError, match="brought back or doubled 1 row of"):
        lake.commit()
    lake.reread()
    lake.commit()
    assert lake.rows() == lake.expected()


def test_engine_rows_that_a_user_accepts_stay(make_lake: MakeLake) -> None:
    lake = make_lake("append", 2)
    changed(lake)
    rows = lake.rows()
    lake.overwrite(lake.head)
    lake.commit()
    assert lake.rows() == rows
    lake.table.append(lake.table.scan(limit=1).to_arrow())
    lake.resume()  # for another reason: no user knows of these rows
    for _ in range(2):
        with pytest.raises(TableflowError, match="doubled 1 row of"):
            lake.commit()
        lake.restart()
        # Maintenance, and more rows, before the user resumes.
        SnapshotChange(lake.table, Operation.REPLACE, properties={TRIMMED: "true"}).commit()
        lake.table.append(lake.table.scan(limit=1).to_arrow())
        lake.resume()
    with pytest.raises(TableflowError, match="doubled 1 row of"):
        lake.commit()
    lake.resume()
    lake.produce(k9="z")
    lake.commit()
    assert len(lake.rows()) == len(rows) + 4
    with pytest.raises(SpecError, match="write mode append"):
        lake.reread()


def test_engine_rows_in_a_file_of_another_format_continues(make_lake: MakeLake) -> None:
    lake = make_lake("append", 2)
    changed(lake)
    (file, *_), change = live_files(lake.table), SnapshotChange(lake.table, Operation.APPEND)
    names = ("content", "file_path", "partition", "record_count", "file_size_in_bytes")
    facts = {name: getattr(file, name) for name in names} | {"file_path": f"{file.file_path}.orc"}
    change.add([new_file(file.spec_id, **facts, file_format=FileFormat.ORC)])
    change.commit()
    lake.produce(k9="z")
    lake.commit()


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_resume_command_names_the_rows_that_stay_and_what_repairs_them(
    make_lake: MakeLake,
    write_mode: str,
    monkeypatch: pytest.MonkeyPatch,
    as_settings: Callable[[Settings], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    lake = make_lake(write_mode, 2)
    before, spec, config = changed(lake), lake.topic.spec, lake.topic.config
    lake.overwrite(before)
    with pytest.raises(TableflowError, match="another writer"):
        lake.commit()
    found = FoundTopic(partitions=1, value=FoundSchema(format="avro", version=1))
    control.enable(config, spec.name, discovered=found)
    as_settings(config)
    monkeypatch.setattr(command, "_open", lambda _: (spec, lake.table, lake.topic.endpoints))
    command.resume(spec.name)
    said = capsys.readouterr().err
    lost = "lost 3 rows" if write_mode == "upsert" else "lost 4 rows"
    assert str(lake.head.snapshot_id) in said
    assert lost in said
    assert "reread shop.customers` still sets the table to the snapshot before" in said
    if write_mode == "append":
        assert "After it, run `topicberg tableflow disable shop.customers --drop-table`" in said
        lake.reread()
        lake.commit()
        assert lake.rows() == lake.expected()
        return
    assert "reread shop.customers` deletes rows that are not the newest of a key" in said
    lake.produce(k9="z")
    lake.commit()
    lake.reread()
    lost_rows = {("k1", "new"), ("k2", "new"), ("k7", "new")}
    assert set(lake.rows()) == {*lake.expected(), ("k1", "old"), ("k2", "old")} - lost_rows
    command.resume(spec.name)
    assert not capsys.readouterr().err, "nothing is to accept any more"


def test_reread_rows_that_were_doubled_earlier_are_one(make_lake: MakeLake) -> None:
    lake = make_lake("upsert", 2)
    lake.compact(changed(lake))
    lake.produce(k9="z")
    lake.ingestor.tables[0].foreign_commits.check = lambda _: None  # type: ignore[method-assign, assignment]
    lake.commit()
    assert len(lake.rows()) == len(lake.expected()) + 3
    assert lake.reread().rows == 3
    assert lake.rows() == lake.expected()


def test_forget_before_a_user_decides_about_other_rows_is_refused(make_lake: MakeLake) -> None:
    lake = make_lake("upsert", 2)
    lake.compact(changed(lake))
    topic, rows = lake.topic, lake.rows()
    key = KeyRows.parse(topic.spec, "k3", topic.endpoints, topic.config)
    target, *_ = targets = topic_targets(topic.spec, topic.config, key.key)
    forgetting = Forgetting(key, targets, topic.endpoints, topic.config, "asked for")
    with pytest.raises(TableflowError, match="brought back or doubled 3 rows"):
        forgetting.erase(target)
    assert lake.rows() == rows
    with pytest.raises(TableflowError, match="brought back or doubled 3 rows"):
        lake.commit()
    lake.reread()
    assert forgetting.erase(target).rows == 1
    lake.commit()
    assert lake.rows() == [row for row in lake.expected() if row[0] != "k3"]


def continues(lake: Lake) -> bool:
    """Commit what there is; a suspended topic stays so until a user acts. Return whether it was."""
    try:
        lake.commit()
        return False
    except TableflowError as error:
        lake.restart()
        with pytest.raises(TableflowError):
            lake.commit()
        if "rolled back to a state" in error.message:
            lake.roll_back(cast("Snapshot", lake.table.snapshot_by_name(CHECKPOINT_TAG)))
        else:
            lake.reread()
        lake.commit()
        return True


def random_history(lake: Lake, random: Random) -> None:
    heads = list[Snapshot]()
    for number in range(random.randrange(4, 12)):
        keys = random.sample("0123456789", random.randrange(1, 5))
        lake.produce(**{f"k{k}": random.choice([None, f"{number}", f"{number}"]) for k in keys})
        if (not heads or random.random() < 0.7) and continues(lake):
            assert lake.rows() == lake.expected()
        heads = [s for s in [*heads, lake.head] if lake.table.snapshot_by_id(s.snapshot_id)]
        chosen = random.choice(heads)
        match random.randrange(9):
            case 0 | 1:
                lake.compact(chosen)
            case 2:
                lake.overwrite(chosen)
            case 3:
                lake.roll_back(chosen)
            case 4:
                lake.pick(chosen)
            case 5:
                lake.expire()
    continues(lake)
    assert lake.rows() == lake.expected()


@pytest.mark.parametrize("number", range(HISTORIES))
def test_rows_after_random_commits_of_others_are_once_and_right_or_suspended(
    make_lake: MakeLake, number: int
) -> None:
    random = Random(SEED + number)
    write_mode = random.choice(["append", "upsert", "upsert"])
    random_history(make_lake(write_mode, random.choice([2, 3])), random)
