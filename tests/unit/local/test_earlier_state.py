"""The state directory of an earlier version, without its services: this version continues it.

``tests/integration/test_upgrade.py`` does so with the services, through kills, and beside an engine
of the earlier version.
"""

from __future__ import annotations

import json
import random
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from debezium import Source, SourceTopic
from format_versions import allow_version_3
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from memory_kafka import Message
from memory_topic import MemoryTopic, mock_registry, serve
from project_copy import add_code
from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from repository import PROJECT_ROOT
from upgrade_topics import (
    BEGIN_MS,
    CHANGES,
    CHANGES_PARTITIONS,
    DERIVED,
    MINUTE_MS,
    STUCK,
    TOPICS,
    TRADES,
    UPSERTED,
    Encoder,
    Record,
    UpgradeTopic,
)

from topicberg.iceberg.summaries import ROWS_SKIPPED
from topicberg.logins.catalog import LOCATIONS
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.jobs.changes import advance
from topicberg.orchestration.jobs.snapshot_store import Position
from topicberg.orchestration.jobs.watches import watches
from topicberg.settings import settings
from topicberg.tableflow import commit
from topicberg.tableflow.control import enabled_topics
from topicberg.tableflow.deadletters import DeadLetters
from topicberg.tableflow.fold_state import FoldState
from topicberg.tableflow.key_state import KeyState
from topicberg.tableflow.status import read_status
from topicberg.topics import TopicSpec, load_topic

CONTINUED = [one for one in TOPICS if one.name != "accounts_string_3"]
"""The other one has tombstones of keys that were forgotten, which are not in its records."""
ARCHIVE = Path(__file__).resolve().parents[2] / "data" / "upgrade" / "state.tar.xz"
OBJECTS = "earlier-state.objects"
"""Property of the catalog: the folder of the buckets."""


class ObjectsFileIO(PyArrowFileIO):
    """Reads and writes objects where the local object store keeps them."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        local = LocalFileSystem(auto_mkdir=True)
        return PyFileSystem(FSSpecHandler(DirFileSystem(self.properties[OBJECTS], local)))


class ArchivedTopic(MemoryTopic):
    """A topic with the table, the key files and the status that the archive has."""

    def __init__(
        self, spec: TopicSpec, folder: Path, registry: Any, topic: UpgradeTopic = STUCK
    ) -> None:
        super().__init__(spec, folder, registry)
        self.topic = topic
        self.catalog = _catalog(self.folder)
        self.encoder = Encoder(self.registry)
        self.table = self.catalog.load_table(self.spec.table_identifier(self.config))
        self.held = commit.committed(self.table)
        self.topic_id = str(self.held.topic_id)

    def send(self, records: Iterable[Record]) -> None:
        for record in records:
            log = self.partitions.setdefault(record.partition, [])
            pair = self.encoder.pair(self.topic, record)
            at_ms = BEGIN_MS + record.minute * MINUTE_MS
            log.append(Message(pair, (record.partition, len(log)), [], at_ms))


def _catalog(folder: Path) -> SqlCatalog:
    return SqlCatalog(
        "lake",
        uri=f"sqlite:///{folder}/state/iceberg_rest/catalog.db",
        warehouse="s3://tableflow-kickstarter",
        **{
            LOCATIONS: "its own",
            OBJECTS: f"{folder}/state/s3/objects",
            "py-io-impl": f"{ObjectsFileIO.__module__}.{ObjectsFileIO.__name__}",
        },
    )


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the archive's state and project; the settings are theirs."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(ARCHIVE) as archive:
        members = [one for one in archive if not one.name.startswith("state/kafka/")]
        archive.extractall(folder, members, filter="data")
    add_code(folder / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICBERG_STATE_DIR", str(folder / "state"))
        patch.setenv("TOPICBERG_PROJECT_ROOT", str(folder / "project"))
        settings.cache_clear()
        yield folder
    settings.cache_clear()


def test_statuses_of_the_earlier_version_are_read(earlier: Path) -> None:
    for one in TOPICS:
        status = read_status(settings(), one.name)
        sent = [record for batch in one.before for record in batch]
        assert status.snapshot_id is not None, one.name
        assert sum(status.end_offsets.values()) >= len(sent), one.name
        if one.mode != "SUSPEND":
            assert status.rows_skipped == one.malformed(sent), one.name
    assert read_status(settings(), STUCK.name).shown_phase == "SUSPENDED"


def test_topics_of_the_earlier_version_are_enabled(earlier: Path) -> None:
    """By their specs, by commands and by a pattern."""
    assert {one.name for one in TOPICS} < enabled_topics(settings()).keys()


@pytest.mark.parametrize("topic", CONTINUED, ids=lambda one: one.name)
def test_engine_with_a_table_of_the_earlier_version_continues_it(
    earlier: Path, topic: UpgradeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row once; a record or a tombstone replaces what the earlier version wrote."""
    allow_version_3(monkeypatch)
    letters: list[Any] = []
    monkeypatch.setattr(DeadLetters, "write", lambda *given: letters.extend(given[-1]))
    spec, registry = enabled_topics(settings())[topic.name], mock_registry(earlier)
    memory = ArchivedTopic(spec, earlier, registry, topic=topic)
    serve(memory, monkeypatch)
    records = [*topic.sent, *topic.after]
    memory.send(records)
    before = memory.held.offsets
    assert before
    assert sum(before.values()) < len(records)
    _ingest(memory)
    rows = [{name: row.get(name) for name in ("id", "note", "amount")} for row in memory.rows()]
    assert sorted(rows, key=lambda row: (row["id"], row["note"])) == topic.rows(records)
    table = memory.catalog.load_table(spec.table_identifier(memory.config))
    assert commit.committed(table).offsets == memory.ends
    assert table.metadata.format_version == topic.table.get("format_version", 2)
    assert int(table.properties.get(ROWS_SKIPPED, 0)) == topic.malformed(records)
    if topic in UPSERTED:  # rows of equal keys are removed once
        keys = KeyState.load(table.properties)
        found = keys and (keys.rebuilt_at_ms is not None, keys.rows_removed)
        assert found == (None if topic.key_kind == "string" else (True, 2))
    if topic.mode == "LOG":  # the earlier version has logged those that it committed
        unread = [one for at, one in _places(records) if at[1] >= before.get(at[0], 0)]
        assert len(letters) == topic.malformed(unread)


def _ingest(memory: ArchivedTopic) -> None:
    """Commit batches until the table has all records, by an engine that then ends."""
    ingestor = memory.ingestor()
    while ingestor.step().backlog:
        pass
    ingestor.close()


def _places(records: Iterable[Record]) -> Iterator[tuple[tuple[int, int], Record]]:
    """Yield the partition and the offset of each record."""
    ends = Counter[int]()
    for record in records:
        yield (record.partition, ends[record.partition]), record
        ends[record.partition] += 1


@pytest.mark.parametrize("name", CHANGES)
def test_engine_with_a_change_log_of_the_earlier_version_continues_it(
    earlier: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that the connector leaves out come from rows of the earlier version."""
    allow_version_3(monkeypatch)
    source = _source_of_archive(earlier)
    for _ in range(20):
        source.change()
    registry = mock_registry(earlier)
    memory = ArchivedTopic(enabled_topics(settings())[name], earlier, registry)
    serve(memory, monkeypatch)
    memory.partitions = {partition: [] for partition in range(CHANGES_PARTITIONS)}
    for event, key, value in SourceTopic(cast("Any", memory)).records(source.events):
        memory.produce(event.partition, key, value, event.headers)
    assert memory.held.offsets
    assert 0 < sum(memory.held.offsets.values()) < sum(memory.ends.values())
    is_folded = CHANGES[name][0] == "upsert"
    if is_folded:
        state = FoldState.load(memory.table.properties)
        assert state.reached.keys() == memory.partitions.keys()
        assert state.lacking == ["big"]
    _ingest(memory)
    rows = memory.rows()
    if not is_folded:
        assert len(rows) == sum(event.op is not None for event in source.events)
    else:
        current = [row for _, row in sorted(source.rows.items())]
        read = {row["id"]: {name: row.get(name) for name in ("id", "v", "big")} for row in rows}
        assert len(read) == len(rows)
        assert [read[number] for number in sorted(read)] == current


def _source_of_archive(earlier: Path) -> Source:
    """Return the database whose changes ``make.py`` sent, after all of them."""
    source = Source(random.Random(39))
    for number, changes in enumerate((30, 30, 12)):
        if number == 1:
            source.change_key_schema()
        for _ in range(changes):
            source.change()
    known = json.loads((earlier / "state" / "upgrade.json").read_text())
    assert [*source.rows.values()] == known["rows"]
    return source


@pytest.mark.parametrize(
    ("project", "first"),
    [("project", "2026-01-02-03:00"), (PROJECT_ROOT, "2026-11-01-00:00")],
    ids=["same_start", "later_start"],
)
def test_sensor_with_a_cursor_of_the_earlier_version_requests_new_hours_only(
    earlier: Path, project: str | Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hours of the trades that were committed since, and no others.

    With a later start of the partitions, these hours are a part of the first one.
    """
    position = Position.parse((earlier / "state/dagster-of-tests/cursor.json").read_text())
    assert position.changed
    monkeypatch.setenv("TOPICBERG_PROJECT_ROOT", str(earlier / project))
    settings.cache_clear()
    derived = tuple(one for one in find_derived() if one.name in DERIVED)
    lake = Lake(settings(), (load_topic(TRADES),), derived)
    catalog = _catalog(earlier)
    requested = []
    for watch in watches(lake):
        cursor = position.changed.get(watch.name)
        if cursor is not None:
            tick = advance(cursor, {}, catalog.load_table(watch.origin.identifier), watch, catalog)
            requested += [(span.first, span.last) for spans in tick.runs.values() for span in spans]
    assert requested == [(first, first)]
