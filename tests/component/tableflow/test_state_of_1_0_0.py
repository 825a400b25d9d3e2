"""What topicberg 1.0.0 wrote is continued: tables, their catalog, and the state directory.
``tests/data/state-1.0.0.tar.xz`` has it. 1.0.0 wrote it with TOPICBERG_TEST_WRITE_STATE=1."""

from __future__ import annotations

import os
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from format_versions import allow_version_3
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from memory_topic import MemoryTopic, mock_registry, serve
from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField, TimestamptzType
from repository import PROJECT_ROOT

from topicberg.alerts.alert import acknowledge, read_decisions
from topicberg.iceberg.summaries import CURRENT_AT_MS, END_OFFSETS, ROWS_SKIPPED, ancestry, summary
from topicberg.logins.catalog import LOCATIONS
from topicberg.settings import Settings
from topicberg.tableflow.service.status import TopicStatus, read_status, write_status
from topicberg.tableflow.upsert.tombstones import CURRENT_OFFSETS
from topicberg.topics import TopicSpec
from topicberg.topics.requests import StoredRequest, read_request, write_request
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import summary_of
from topicberg.transforms.unread import Unread, unread
from topicberg.transforms.versions import computed_by, outdated
from topicberg.transforms.windows import Window
from topicberg.version import IN_SUMMARY

ARCHIVE = PROJECT_ROOT / "tests" / "data" / "state-1.0.0.tar.xz"
OBJECTS = "state-of-1.0.0.objects"
"""Property of the catalog: the folder of the objects."""
RECORDS, COMMITTED, BATCH = 40, 20, 10
TOPICS: dict[str, dict[str, Any]] = {
    "shop.customers": {"write_mode": "upsert", "key": {"format": "string"}},
    "shop.vectors": {
        **{"write_mode": "upsert", "key": {"format": "string"}, "table": {"format_version": 3}}
    },
    "shop.events": {"tableflow": {"error_handling": {"mode": "SKIP"}}},
}


class ObjectsFileIO(PyArrowFileIO):
    """Has objects in a folder, so that no path of a machine is in the tables."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        local = LocalFileSystem(auto_mkdir=True)
        return PyFileSystem(FSSpecHandler(DirFileSystem(self.properties[OBJECTS], local)))


class StateTopic(MemoryTopic):
    """A topic whose table and state are in a folder that may be moved."""

    def __init__(self, name: str, folder: Path) -> None:
        given = {"name": name, "pipeline": "shop", "external": True, "schema": {"format": "text"}}
        spec = TopicSpec.model_validate({**given, **TOPICS[name]})
        super().__init__(spec, folder, mock_registry(folder))
        self.catalog = SqlCatalog(
            "memory",
            uri=f"sqlite:///{folder}/catalog.db",
            warehouse="s3://lake/warehouse",
            **{LOCATIONS: "its own", OBJECTS: str(folder / "objects")},
            **{"py-io-impl": f"{__name__}.{ObjectsFileIO.__name__}"},
        )
        self.partitions = {0: [], 1: []}

    def produce_until(self, end: int) -> None:
        """Produce the records up to a number: updates, tombstones, and malformed text."""
        for number in range(sum(self.ends.values()), end):
            value = None if number % 7 == 3 else f"value {number}".encode()
            if not self.is_upsert:
                value = b"\xff" if number % 7 == 3 else value
            self.produce(number % 2, f"key {number % 6}".encode(), value)

    @property
    def is_upsert(self) -> bool:
        return self.spec.write_mode == "upsert"

    def expected(self) -> list[str]:
        """Return the values that the table should have."""
        values: dict[object, str] = {}
        for log in self.partitions.values():
            for place, record in enumerate(log):
                key = (record.partition(), record.key() if self.is_upsert else place)
                values.pop(key, None)
                if (value := record.value()) is not None and value != b"\xff":
                    values[key] = value.decode()
        return sorted(values.values())

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.spec.table_identifier(self.config))


DERIVATION = Derivation(
    sources=(Source(("lkc-local", "shop.events"), "$$timestamp"),),
    target=("shop", "events_by_hour"),
    transform=lambda *_: None,  # type: ignore[arg-type]
    target_time="at",
    version="first",
)
HOUR = Window(datetime(2023, 11, 14, 22, tzinfo=UTC), datetime(2023, 11, 14, 23, tzinfo=UTC))
"""That of all records."""


def pending(catalog: SqlCatalog) -> list[Unread]:
    """Return what the ledger of the derived table says is not computed."""
    sources = DERIVATION.source_tables(catalog.load_table)
    found = unread(catalog.load_table(DERIVATION.target), DERIVATION.target_time, sources)
    return [hours for read in found.values() for hours in read.unread]


def topic(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> StateTopic:
    made = StateTopic(name, folder)
    serve(made, monkeypatch)
    allow_version_3(monkeypatch)
    return made


@pytest.mark.skipif("TOPICBERG_TEST_WRITE_STATE" not in os.environ, reason="1.0.0 wrote it")
def test_state_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TOPICS:
        own = topic(name, tmp_path, monkeypatch)
        ingestor = own.ingestor()
        for end in range(BATCH, COMMITTED + 1, BATCH):
            own.produce_until(end)
            while ingestor.step().backlog:
                pass
        write_status(own.config, TopicStatus(topic=name, phase="RUNNING", rows_skipped=3))
    catalog = own.catalog
    catalog.create_namespace("shop")
    schema = Schema(NestedField(1, "at", TimestamptzType(), required=False))
    target = catalog.create_table(DERIVATION.target, schema)
    (source,) = DERIVATION.sources
    sources = {source.name: catalog.load_table(source.table)}
    ledger = summary_of(DERIVATION, target, sources, [HOUR], [])
    rows = pa.table({"at": pa.array([HOUR.start], pa.timestamp("us", "UTC"))})
    target.append(rows, snapshot_properties={**ledger, **IN_SUMMARY})
    config = Settings(state_dir=tmp_path / "state")
    write_request(config, StoredRequest(topic="shop.events", enabled=False))
    acknowledge(config, "check iceberg/shop_events:tableflow", "known", timedelta(days=36_500))
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for part in ("catalog.db", "objects", "state"):
            archive.add(tmp_path / part, part)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.parametrize("name", TOPICS)
def test_table_of_1_0_0_is_continued(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = topic(name, folder, monkeypatch)
    own.produce_until(COMMITTED)
    before = own.table
    assert sorted(row["value"] for row in own.rows()) == own.expected()
    own.produce_until(RECORDS)
    ingestor = own.ingestor()
    while ingestor.step().backlog:
        pass
    assert sorted(row["value"] for row in own.rows()) == own.expected()
    snapshots = [*ancestry(own.table)]
    assert before.current_snapshot() in snapshots
    assert all(summary(each)["topicberg-version"] == "1.0.0" for each in ancestry(before))
    assert summary(snapshots[0]).items() >= {END_OFFSETS: "[20,20]", **IN_SUMMARY}.items()
    after = own.table.properties
    changed = {name for name, value in before.properties.items() if after.get(name) != value}
    assert changed <= {ROWS_SKIPPED, CURRENT_AT_MS, CURRENT_OFFSETS}


def test_ledger_of_1_0_0_is_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = topic("shop.events", folder, monkeypatch)
    own.produce_until(COMMITTED)
    assert pending(own.catalog) == []
    computed = computed_by(own.catalog.load_table(DERIVATION.target))
    assert outdated(computed, "first") == []
    assert outdated(computed, "second") != []
    own.produce_until(RECORDS)
    own.ingestor().step()
    assert [range(each.start, each.stop) for each in pending(own.catalog)] == [HOUR.hours]


def test_state_directory_of_1_0_0_is_read(folder: Path) -> None:
    config = Settings(state_dir=folder / "state")
    assert read_status(config, "shop.events").rows_skipped == 3
    assert (read_request(config, "shop.events") or StoredRequest(topic="", enabled=True)) == (
        StoredRequest(topic="shop.events", enabled=False)
    )
    (known,) = read_decisions(config).acknowledged.values()
    assert known.reason == "known"
