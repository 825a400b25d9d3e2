"""Rows that a snapshot read before newer changes do not replace what these left."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from debezium import ENVELOPE, UNAVAILABLE, Event, SourceTopic
from memory_topic import MemoryTopic, read_all
from seeds import some
from test_folding import changed_topic, rows_of

from topicberg.checks.topic import check_snapshot_reads
from topicberg.tableflow.changelog.fold_state import MAX_DELETES, FoldState

Position = Callable[[int], dict[str, Any]]
READ_MS = 30_000_000
"""The time of the snapshot's reading, long after the changes."""


def postgresql(number: int) -> dict[str, Any]:
    return {"lsn": number}


def mysql(number: int) -> dict[str, Any]:
    """Return a position whose file has another number of digits from 910 on."""
    return {"file": f"log.bin.{999_090 + number:06}", "pos": 4 + number % 7, "row": 3}


def mysql_read(number: int) -> dict[str, Any]:
    """Return the position of an incremental snapshot: that of the last change, without its row."""
    return mysql(number) | {"row": 0}


def sql_server(number: int) -> dict[str, Any]:
    lsn = f"00000027:{number:08x}:"
    return {"change_lsn": f"{lsn}0002", "commit_lsn": f"{lsn}0003", "event_serial_no": 1}


def oracle(number: int) -> dict[str, Any]:
    """Return the position of a change of a transaction that began long before its commit."""
    return {"scn": str(number - 100), "commit_scn": str(number)}


def informix(number: int) -> dict[str, Any]:
    return {"change_lsn": str(number - 100), "commit_lsn": str(number)}


READS: dict[Position, Position] = {
    postgresql: postgresql,
    mysql: mysql_read,
    sql_server: lambda number: sql_server(number) | {"change_lsn": None, "event_serial_no": None},
    oracle: lambda number: {"scn": str(number), "commit_scn": None},
    informix: lambda number: informix(number) | {"change_lsn": None},
}
"""The positions of a connector's changes → those of the rows that a snapshot of it reads."""
KINDS = {int: "long", str: "string"}


class Writer(SourceTopic):
    """Writes the events of one connector to a topic in memory."""

    def __init__(self, topic: MemoryTopic, position: Position) -> None:
        envelope = json.loads(json.dumps(ENVELOPE))
        envelope["fields"][2]["type"]["fields"][3:] = [
            {"name": name, "type": ["null", KINDS[type(value)]], "default": None}
            for name, value in position(1_000).items()
        ]
        super().__init__(cast("Any", topic), envelope, position)
        self.changed = position

    def send(self, events: Iterable[Event]) -> None:
        for event in events:
            self.position = READS[self.changed] if event.op == "r" else self.changed
            for one, key, value in self.records([event]):
                cast("MemoryTopic", self.topic).produce(one.partition, key, value, one.headers)


def ingest(topic: MemoryTopic, position: Position, batches: Sequence[Sequence[Event]]) -> FoldState:
    """Read events in batches; return what is known of them."""
    writer, ingestor = Writer(topic, position), topic.ingestor()
    for batch in batches:
        writer.send(batch)
        read_all(ingestor)
    ingestor.close()
    return FoldState.load(table_of(topic).properties)


def table_of(topic: MemoryTopic) -> Any:
    return topic.catalog.load_table(topic.spec.table_identifier(topic.config))


def change(op: str, number: int, key: int = 1, big: str | None = "b", **more: Any) -> Event:
    after = None if op in "dt" else {"id": key, "v": number, "big": big}
    more.setdefault("ms", READ_MS if op == "r" else number)
    return Event(more.pop("partition", 0), None if op == "t" else key, op, number, after, **more)


def cut(events: Sequence[Event], *, is_cut: bool) -> list[Sequence[Event]]:
    return [[event] for event in events] if is_cut else [events]


@pytest.mark.parametrize("is_cut", [True, False], ids=["each", "all"])
@pytest.mark.parametrize("position", READS, ids=lambda position: position.__name__)
def test_stale_read_after_newer_changes_is_ignored_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: Position, *, is_cut: bool
) -> None:
    """See https://github.com/memiiso/debezium-server-iceberg/issues/544."""
    topic = changed_topic(tmp_path, monkeypatch)
    events = [
        change("c", 901, big="new"),
        change("c", 801, key=2),
        change("c", 880, key=3),
        change("d", 902, key=2),
        change("r", 850, big="old"),
        change("r", 850, key=2),
        change("r", 900, key=4),
        change("u", 950, big=UNAVAILABLE),
        change("u", 950, key=3),
        change("r", 950, key=3, big="read"),
    ]
    state = ingest(topic, position, cut(events, is_cut=is_cut))
    assert rows_of(topic) == {
        1: {"id": 1, "v": 950, "big": "new"},
        3: {"id": 3, "v": 950, "big": "read"},
        4: {"id": 4, "v": 900, "big": "b"},
    }
    assert (state.reads.ignored, state.reads.doubtful) == (2, 0)
    finding = check_snapshot_reads(table_of(topic))
    assert finding.passed
    assert "2 rows" in finding.what


@pytest.mark.parametrize("is_cut", [True, False], ids=["each", "all"])
def test_stale_read_of_truncated_row_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_cut: bool
) -> None:
    topic = changed_topic(tmp_path, monkeypatch)
    events = [change("c", 800), change("t", 900), change("r", 850), change("r", 900, key=2)]
    ingest(topic, oracle, cut(events, is_cut=is_cut))
    assert rows_of(topic).keys() == {2}


@pytest.mark.parametrize("is_cut", [True, False], ids=["each", "all"])
@pytest.mark.parametrize("op", "ud")
def test_stale_read_of_key_in_another_partition_does_not_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, *, is_cut: bool
) -> None:
    topic = changed_topic(tmp_path, monkeypatch)
    events = [
        change("c", 700, key=2, key_schema=1),
        change("c", 800),
        change(op, 901, partition=1, key_schema=1),
        change("r", 850),
    ]
    ingest(topic, oracle, cut(events, is_cut=is_cut))
    assert {key: row["v"] for key, row in rows_of(topic).items()} == (
        {1: 901, 2: 700} if op == "u" else {2: 700}
    )


@pytest.mark.parametrize("is_cut", [True, False], ids=["each", "all"])
def test_read_of_a_source_whose_log_began_again_wins_after_the_first_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_cut: bool
) -> None:
    """Positions are lower after a failover; the repair by an incremental snapshot must work."""
    topic = changed_topic(tmp_path, monkeypatch)
    events = [
        change("c", 9001, big="old"),
        change("c", 9002, key=2, big="old"),
        change("u", 1201, key=2, ms=9_500),
        change("r", 1202, ms=9_600, big="repaired"),
        change("r", 1202, key=2, ms=9_600, big="repaired"),
    ]
    ingest(topic, postgresql, cut(events, is_cut=is_cut))
    assert [row["big"] for row in rows_of(topic).values()] == ["repaired", "repaired"]


def test_read_ignored_before_the_log_began_again_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = changed_topic(tmp_path, monkeypatch)
    ingest(topic, postgresql, [[change("c", 9001), change("r", 1200, ms=9_500)]])
    assert check_snapshot_reads(table_of(topic)).passed
    ingest(topic, postgresql, [[change("c", 1201, key=2, ms=9_600)]])
    finding = check_snapshot_reads(table_of(topic))
    assert not finding.passed
    assert "partition 0" in finding.what


@pytest.mark.parametrize(
    ("position", "read"),
    [
        pytest.param(postgresql, {"lsn": None}, id="none"),
        pytest.param(mysql, {"file": "a.000001", "pos": 4, "row": 0}, id="another-server"),
    ],
)
def test_read_without_comparable_position_wins_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: Position, read: dict[str, Any]
) -> None:
    monkeypatch.setitem(READS, position, lambda _: read)
    topic = changed_topic(tmp_path, monkeypatch)
    events = [
        change("c", 901, ms=901),
        change("c", 902, key=2, ms=902),
        change("r", 0, ms=850, big="read"),
        change("r", 0, key=2, ms=950, big="read"),
    ]
    state = ingest(topic, position, cut(events, is_cut=True))
    assert [row["big"] for row in rows_of(topic).values()] == ["read", "read"]
    assert (state.reads.ignored, state.reads.doubtful) == (0, 1)
    finding = check_snapshot_reads(table_of(topic))
    assert not finding.passed
    assert "1 row" in finding.what


def test_read_of_key_whose_deletion_is_forgotten_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, keys = changed_topic(tmp_path, monkeypatch), range(MAX_DELETES + 3)
    rows = [change("c", 800, key=key) for key in keys]
    deletes = [change("d", 900 + key, key=key) for key in keys]
    reads = [change("r", 850, key=key) for key in keys]
    state = ingest(topic, oracle, [[*rows, *deletes[:5]], deletes[5:], reads])
    assert rows_of(topic).keys() == {0, 1, 2}
    assert (state.reads.ignored, state.reads.doubtful) == (MAX_DELETES, 3)


@pytest.mark.parametrize("seed", some(range(6)))
def test_stale_reads_in_any_batches_leave_the_rows_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Rows are read at random positions of the past, among changes; later reads are of now."""
    rng, topic = random.Random(seed), changed_topic(tmp_path, monkeypatch)
    rows: dict[int, dict[str, Any]] = {}
    history = [(1_000, dict(rows))]
    events: list[Event] = []
    for number in range(1_001, 1_080):
        key = rng.randrange(6)
        if key in rows and rng.random() < 0.3:
            del rows[key]
            events.append(change("d", number, key=key))
        else:
            row: dict[str, Any] = {"id": key, "v": number, "big": f"b{number}"}
            sent = row["big"]
            if key in rows and rng.random() < 0.5:
                row["big"], sent = rows[key]["big"], UNAVAILABLE
            events.append(change("u" if key in rows else "c", number, key=key, big=sent))
            rows[key] = row
        history.append((number, dict(rows)))
        if rng.random() < 0.4:
            at, were = rng.choice(history)
            events += [
                change("r", at, key=one, big=row["big"])
                for one, row in were.items()
                if rng.random() < 0.7
            ]
    bounds = itertools.pairwise([0, *sorted(rng.sample(range(1, len(events)), 5)), len(events)])
    state = ingest(topic, oracle, [events[begin:end] for begin, end in bounds])
    found = {key: row["big"] for key, row in rows_of(topic).items()}
    assert found == {key: row["big"] for key, row in rows.items()}
    assert state.reads.doubtful == 0
