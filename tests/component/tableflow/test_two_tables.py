"""A batch that fills two tables: each has every record once, wherever the engine ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_topic import MemoryTopic, memory_topic, read_all
from pyiceberg.catalog.sql import SqlCatalog

from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.service.topic_table import BatchTable
from topicberg.tableflow.values.commit import committed
from topicberg.topics import TopicSpec

FIRST, SECOND = 6, 11
"""Records of the topic when a batch is planned."""


class OtherSpec(TopicSpec):
    """The topic, of whose records another table gets a part of its own."""

    def table_identifier(self, config: Settings | None = None) -> tuple[str, str]:
        namespace, name = super().table_identifier(config)
        return namespace, f"{name}_other"


class Killed(BaseException):
    """The engine's process ends."""


class Commits:
    """Counts the commits of a catalog, and ends the engine before one of them."""

    def __init__(self, last: int | None = None) -> None:
        """:param last: the number of the commit; None: all of them are done"""
        self.count, self._last = 0, last

    def catalog(self, topic: MemoryTopic) -> SqlCatalog:
        commits = self

        class Catalog(SqlCatalog):
            def commit_table(self, *given: Any) -> Any:
                commits.count += 1
                if commits.count == commits._last:
                    raise Killed
                return super().commit_table(*given)

        return Catalog("memory", **topic.catalog.properties)


def two_tables(topic: MemoryTopic, catalog: SqlCatalog) -> Ingestor:
    endpoints: Any = SimpleNamespace(**{**vars(topic.endpoints), "catalog": lambda _: catalog})
    ingestor = Ingestor(topic.spec, endpoints, topic.config)
    other = OtherSpec.model_validate(topic.spec.model_dump(by_alias=True))
    shared = ingestor._foreign, ingestor._framing, lambda: None, None
    ingestor.tables = (*ingestor.tables, BatchTable(other, endpoints, topic.config, *shared))
    return ingestor


def finish(topic: MemoryTopic, ingestor: Ingestor) -> None:
    """Produce what is left of the topic in two parts, and commit each."""
    for end in (FIRST, SECOND):
        while (number := sum(map(len, topic.partitions.values()))) < end:
            topic.produce(number % 2, b"k%d" % (number % 4), b"%d" % number, time_ms=number)
        read_all(ingestor)
    ingestor.close()


def state(topic: MemoryTopic) -> Iterator[tuple[Offsets, list[tuple[int, int]]]]:
    """Yield up to where each table holds the topic, and the partition and offset of its rows."""
    for ingested in two_tables(topic, topic.catalog).tables:
        identifier = ingested.spec.table_identifier(topic.config)
        if topic.catalog.table_exists(identifier):
            table = topic.catalog.load_table(identifier)
            rows = table.scan().to_arrow().select(["$$partition", "$$offset"]).to_pylist()
            yield committed(table).offsets, [(r["$$partition"], r["$$offset"]) for r in rows]


def expected(topic: MemoryTopic, offsets: Offsets) -> Counter[tuple[int, int]]:
    """Return the rows of a table that holds the topic up to some offsets."""
    held = [(p, o) for p, end in offsets.items() for o in range(end)]
    if topic.spec.write_mode == "upsert":  # the newest one of each key, in its partition
        held = list({(p, topic.partitions[p][o].key()): (p, o) for p, o in sorted(held)}.values())
    return Counter(held)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_batch_of_two_tables_that_ends_anywhere_is_in_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def new_topic(name: str) -> MemoryTopic:
        (folder := tmp_path / name).mkdir()
        found = memory_topic(folder, monkeypatch, schema={"format": "none"}, write_mode=mode)
        found.partitions |= {0: [], 1: []}
        return found

    undisturbed, all_commits = new_topic("whole"), Commits()
    finish(undisturbed, two_tables(undisturbed, all_commits.catalog(undisturbed)))
    assert all_commits.count >= 4
    apart = 0
    for last in range(1, all_commits.count + 1):  # before the next one is after this one
        topic = new_topic(str(last))
        with pytest.raises(Killed):
            finish(topic, two_tables(topic, Commits(last).catalog(topic)))
        found = list(state(topic))
        apart += len({str(offsets) for offsets, _ in found}) > 1
        for offsets, rows in found:
            assert Counter(rows) == expected(topic, offsets), last
        finish(topic, two_tables(topic, topic.catalog))
        found = list(state(topic))
        assert len(found) == 2
        for offsets, rows in found:
            assert sum(offsets.values()) == SECOND
            assert Counter(rows) == expected(topic, offsets), last
    assert apart >= 2, "the engine ended between two commits of a batch"


def test_records_for_two_tables_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = memory_topic(tmp_path, monkeypatch, schema={"format": "none"})
    ingest, read = topic.processes.ingest, list[int]()

    def counted(plans: Any, *given: Any) -> Any:
        read.append(len(plans))
        return ingest(plans, *given)

    topic.processes = SimpleNamespace(ingest=counted)
    finish(topic, two_tables(topic, topic.catalog))
    assert read == [2, 2]
