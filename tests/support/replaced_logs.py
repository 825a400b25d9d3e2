"""A topic whose log is put back, cut, created again or moved, with an engine."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from memory_kafka import Message
from memory_topic import MemoryTopic, memory_topic
from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.kafka.offsets import Offsets
from topicberg.tableflow.service import continuing, control
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.topics import TopicSpec
from topicberg.topics.discovery import FoundSchema, FoundTopic

FOUND = FoundTopic(partitions=1, value=FoundSchema(format="avro", version=1))
Log = list[Message]


def continue_table(
    spec: TopicSpec, table: Table, endpoints: Endpoints, since: str | None = None
) -> tuple[continuing.Comparison, Offsets]:
    """Do what `topicberg tableflow continue` does; without a proposal, from the beginning."""
    compared = continuing.compare(spec, table, endpoints, lambda _: None)
    if compared.is_same and since is None:
        return compared, {}
    starts, decision = compared.choose(since)
    starts = dict(compared.log.beginning) if starts is None else starts
    compared.go_on(starts, decision)
    return compared, starts


def replace_topic(topic: MemoryTopic, logs: dict[int, Log]) -> None:
    """Create a topic again, with these records."""
    topic.topic_id += "+"
    topic.epochs, topic.beginning, topic.partitions = {}, {}, logs


def migrate(topic: MemoryTopic, gaps: int, first: Offsets) -> None:
    """Move a topic to a cluster that has its records from some offsets on, each after gaps."""
    moved: dict[int, Log] = {}
    for p, log in topic.partitions.items():
        kept = [m for m in log[min(first[p], len(log)) :] if not m.is_gone]
        moved[p] = [
            replace(message, place=(p, 0), epoch=0, is_gone=number < gaps)
            for message in kept
            for number in range(1 + gaps)
        ]
        moved[p] = [replace(m, place=(p, offset)) for offset, m in enumerate(moved[p])]
    replace_topic(topic, moved)


@dataclass
class Site:
    """A topic of two partitions, an engine, and copies of the logs."""

    topic: MemoryTopic
    engine: Ingestion = field(init=False)
    copies: list[dict[int, Log]] = field(default_factory=list)
    sent: int = 0
    starts: Offsets = field(default_factory=dict)
    """Where the table went on last."""

    def __post_init__(self) -> None:
        self.topic.partitions = {0: [], 1: []}
        self.copies.append({0: [], 1: []})
        control.enable(self.topic.config, self.topic.spec.name, discovered=FOUND)
        self.restart()

    def restart(self) -> None:
        unused: Any = None
        self.engine = Ingestion(self.topic.spec, self.topic.endpoints, self.topic.config, unused)

    def produce(self, partition: int, number: int, text: str = "") -> None:
        for _ in range(number):
            self.sent += 1
            key = b"%d" % (self.sent % 4)
            time_ms = 1_700_000_000_000 + self.sent // 3
            value = (text or str(self.sent)).encode()
            self.topic.produce(partition, key, value, time_ms=time_ms)

    def abort(self, partition: int) -> None:
        """End a transaction with a record that no reader gets."""
        self.produce(partition, 1)
        self.topic.partitions[partition][-1].is_gone = True

    def elect(self, partition: int) -> None:
        self.topic.epochs[partition] = self.topic.epochs.get(partition, 0) + 1

    def copy(self) -> None:
        self.copies.append({p: list(log) for p, log in self.topic.partitions.items()})

    def put_back(self, partition: int, copy: int = -1) -> None:
        self.topic.partitions[partition] = list(self.copies[copy][partition])
        self.elect(partition)

    def cut(self, partition: int, number: int) -> None:
        log = self.topic.partitions[partition]
        del log[max(0, len(log) - number) :]
        self.elect(partition)

    def compact(self, partition: int) -> None:
        log = self.topic.partitions[partition]
        newest = {m.key(): m.offset() for m in log if not m.is_gone}
        self.topic.partitions[partition] = [
            replace(m, is_gone=m.offset() != newest.get(m.key())) for m in log
        ]

    def turn(self) -> str:
        self.engine.turn()
        return self.engine.report.status.shown_phase

    def resume(self) -> None:
        control.resume(self.topic.config, self.topic.spec.name)

    def go_on(self, since: str | None = None) -> continuing.Comparison:
        """Let the table go on with the log that the topic has now."""
        compared, self.starts = continue_table(
            self.topic.spec, self.table(), self.topic.endpoints, since
        )
        return compared

    def table(self) -> Table:
        return self.topic.catalog.load_table(self.topic.spec.table_identifier(self.topic.config))

    def replace_topic(self, logs: dict[int, Log] | None = None) -> None:
        """Create the topic again, with copies of records at their own offsets, or without any."""
        replace_topic(self.topic, {0: [], 1: []} if logs is None else logs)

    def migrate(self, gaps: int = 0, first: int = 0) -> None:
        migrate(self.topic, gaps, dict.fromkeys(self.topic.partitions, first))

    def fail_over(self) -> None:
        """Let a mirror with the same offsets take over."""
        logs = {
            p: [replace(m, epoch=m.epoch + 7) for m in log]
            for p, log in self.topic.partitions.items()
        }
        self.replace_topic(logs)

    def roll_back(self) -> None:
        """Set the table to the snapshot before, as another writer may."""
        table = self.topic.ingestor().table()
        head = table.current_snapshot()
        if head is not None and head.parent_snapshot_id is not None:
            table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()

    def values(self) -> list[str]:
        return sorted(row["value"] for row in self.topic.rows())

    def verify(self) -> None:
        """The table has every record once; of compacted ones, it may have those that it read."""
        rows, logs = Counter(self.values()), self.topic.partitions.values()
        if self.topic.spec.write_mode == "upsert":
            read = (m for log in logs for m in log if not m.is_gone)
            newest = {(m.partition(), m.key()): m.value() for m in read}
            needed = possible = Counter((v or b"").decode() for v in newest.values())
        else:
            sent = [((m.value() or b"").decode(), m.is_gone) for log in logs for m in log]
            needed = Counter(value for value, is_gone in sent if not is_gone)
            possible = Counter(value for value, _ in sent)
        assert needed <= rows <= possible


@contextmanager
def site(write_mode: str = "append", **more: Any) -> Iterator[Site]:
    given: dict[str, Any] = {"schema": {"format": "text"}, "write_mode": write_mode, **more}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        yield Site(memory_topic(Path(folder), patch, **given))
