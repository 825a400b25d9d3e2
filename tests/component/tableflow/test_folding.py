"""Changes of a database's table, in random batches and partitions, become its current rows."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema
from debezium import ENVELOPE, UNAVAILABLE, Event, Source, SourceTopic, folding_waits
from hypothesis import given
from hypothesis import strategies as st
from memory_topic import MemoryTopic, memory_topic, read_all
from pyiceberg.table import Table
from replaced_logs import continue_table, migrate
from seeds import some

from topicberg.errors import TableflowError
from topicberg.iceberg.commits import commit_update, move_main
from topicberg.tableflow.changelog import fold_state, old_values
from topicberg.tableflow.changelog.change_batch import newest_by_partition
from topicberg.tableflow.changelog.old_values import LaterRecordsError
from topicberg.tableflow.decode import sessions
from topicberg.tableflow.service.replay import Replay
from topicberg.tableflow.table import batch_commit
from topicberg.tableflow.values.commit import committed

SEEDS = range(int(os.environ.get("TOPICBERG_TEST_HISTORIES", "12")))
CHANGES = int(os.environ.get("TOPICBERG_TEST_CHANGES", "60"))


class Connector(SourceTopic):
    """Writes the records of a source's events to a topic in memory."""

    def __init__(self, topic: MemoryTopic, *source: Any) -> None:
        """:param source: the envelope, and what gives a change its position"""
        super().__init__(cast("Any", topic), *source)
        self._times = count(1_700_000_000_000)

    def send(self, events: Iterable[Event]) -> None:
        topic = cast("MemoryTopic", self.topic)
        for event, key, value in self.records(events):
            topic.produce(event.partition, key, value, event.headers, next(self._times))


def changed_topic(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> MemoryTopic:
    given = {
        "schema": {"format": "avro"},
        "key": {"format": "avro"},
        "changelog": {"format": "debezium"},
        "write_mode": "upsert",
        **more,
    }
    topic = memory_topic(folder, monkeypatch, **given)
    for partition in range(3):
        topic.partitions[partition] = []
    return topic


def random_source(rng: random.Random, seed: int) -> Source:
    """Return a source with changes; every second seed changes the schema of the keys."""
    source = Source(rng)
    for number in range(CHANGES):
        if number == CHANGES // 2 and seed % 2:
            source.change_key_schema()
        source.change()
        if rng.random() < 0.05:
            source.restart()
    return source


def rows_of(topic: MemoryTopic) -> dict[int, dict[str, Any]]:
    return {
        row["id"]: {name: value for name, value in row.items() if not name.startswith("$$")}
        for row in topic.rows()
    }


@pytest.mark.parametrize("seed", some(SEEDS))
def test_random_changes_in_any_batches_are_the_rows_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    folding_waits(monkeypatch, certain_ms=old_values.CERTAIN_MS)
    rng = random.Random(seed)
    source, topic = random_source(rng, seed), changed_topic(tmp_path, monkeypatch)
    for module in (sessions, batch_commit):  # several tasks read and write a batch
        monkeypatch.setattr(module, "FILE_RECORDS", rng.choice([3, 20, 500_000]))
    connector, ingestor = Connector(topic), topic.ingestor()
    with monkeypatch.context() as waiting:
        folding_waits(waiting)
        for batch in source.batches(6):
            connector.send(batch)
            with suppress(LaterRecordsError):  # the deletion of an old key is in a later batch
                read_all(ingestor)
    read_all(ingestor)
    ingestor.close()
    assert rows_of(topic) == source.rows


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_changes_go_on_at_the_offsets_of_other_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """These have some of the records that were read, so their offsets are lower or higher."""
    folding_waits(monkeypatch, certain_ms=old_values.CERTAIN_MS)
    rng = random.Random(seed)
    source, topic = random_source(rng, seed), changed_topic(tmp_path, monkeypatch)
    connector = Connector(topic)
    with monkeypatch.context() as waiting:
        folding_waits(waiting)
        for batch in source.batches(6):
            connector.send(batch)
            ingestor = topic.ingestor()
            with suppress(LaterRecordsError):
                read_all(ingestor)
            ingestor.close()
            table = ingestor.table()
            last = committed(table).last_records
            first = {p: rng.randint(0, last[p].offset) if p in last else 0 for p in topic.ends}
            migrate(topic, rng.choice([0, 2]), first)
            before = table.current_snapshot()
            for is_rolled_back in [False, *[True] * rng.randint(0, 1)]:
                if is_rolled_back and before is not None:
                    commit_update(table, move_main(table, before.snapshot_id))
                said, _ = continue_table(topic.spec, table.refresh(), topic.endpoints)
                assert said.proposed is not None, said.positions
    ingestor = topic.ingestor()
    read_all(ingestor)
    ingestor.close()
    assert rows_of(topic) == source.rows


@pytest.mark.parametrize("seed", some(SEEDS))
def test_changes_that_are_left_out_leave_no_older_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    folding_waits(monkeypatch)
    source = Source(random.Random(seed))
    for _ in range(CHANGES):
        source.change()
    source.damage(0.15)
    topic = changed_topic(tmp_path, monkeypatch, tableflow={"error_handling": {"mode": "SKIP"}})
    connector, ingestor = Connector(topic), topic.ingestor()
    for batch in source.batches(5):
        connector.send(batch)
        with suppress(LaterRecordsError):
            read_all(ingestor)
    last = ingestor.step()
    ingestor.close()
    rows, left_out = source.rows_without_malformed()
    assert rows_of(topic) == rows
    malformed = sum(event.is_malformed for event in source.events)
    assert malformed <= last.rows_skipped <= left_out  # some are superseded in their batch


@pytest.mark.parametrize("seed", [5, 298])
def test_first_batch_and_all_others_at_once_are_the_rows_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The connector repeats changes of the primary key, whose rows are deleted or moved again."""
    source, topic = random_source(random.Random(seed), seed), changed_topic(tmp_path, monkeypatch)
    connector, ingestor = Connector(topic), topic.ingestor()
    first, *others = source.batches(6)
    connector.send(first)
    with suppress(LaterRecordsError):
        read_all(ingestor)
    connector.send(event for batch in others for event in batch)
    read_all(ingestor)
    ingestor.close()
    assert rows_of(topic) == source.rows


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize("seed", some([5, 31, 48, 72]))
def test_rollback_to_a_batch_leads_to_the_rows_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, is_noted: bool
) -> None:
    """If the state is too large for a snapshot's summary, the topic may stop, with a reason."""
    folding_waits(monkeypatch, certain_ms=old_values.CERTAIN_MS)
    if not is_noted:
        monkeypatch.setattr(fold_state, "_MAX_NOTED", 0)
    rng = random.Random(seed)
    source, topic = random_source(rng, seed), changed_topic(tmp_path, monkeypatch)
    connector = Connector(topic)
    snapshots: list[int] = []

    def table() -> Table:
        return topic.catalog.load_table(topic.spec.table_identifier(topic.config))

    def ingest() -> None:
        ingestor = topic.ingestor()
        with suppress(LaterRecordsError):
            while (done := ingestor.step()).records:
                assert done.snapshot_id is not None
                snapshots.append(done.snapshot_id)
        ingestor.close()

    with monkeypatch.context() as waiting:
        folding_waits(waiting)
        for batch in source.batches(6):
            connector.send(batch)
            ingest()
    ingest()
    assert rows_of(topic) == source.rows
    folding_waits(monkeypatch, 150_000, 150_000)
    commit_update(table(), move_main(table(), rng.choice(snapshots[:-1])))
    with nullcontext() if is_noted else suppress(TableflowError):
        ingest()
        assert rows_of(topic) == source.rows


@pytest.mark.parametrize("newest", [UNAVAILABLE, "new"])
def test_moved_key_takes_the_value_of_its_newest_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest: str
) -> None:
    """Of the partition that it left, in the same batch; else of the table."""
    folding_waits(monkeypatch, old_values.PATIENCE_MS)
    topic = changed_topic(tmp_path, monkeypatch)
    connector, first = Connector(topic), Event(0, 7, "c", 30, {"id": 7, "v": 1, "big": "old"})
    connector.send([first, Event(2, 9, "c", 31, {"id": 9, "v": 1, "big": "x"})])
    ingestor = topic.ingestor()
    assert ingestor.step().records
    connector.send(
        [
            Event(0, 7, "u", 50, {"id": 7, "v": 2, "big": newest}),
            Event(1, 7, "u", 60, {"id": 7, "v": 3, "big": UNAVAILABLE}, key_schema=1),
            Event(0, 8, "c", 70, {"id": 8, "v": 1, "big": "y"}),
            Event(2, 9, "u", 71, {"id": 9, "v": 2, "big": "x"}),
        ]
    )
    read_all(ingestor)
    ingestor.close()
    expected = "old" if newest == UNAVAILABLE else newest
    assert rows_of(topic)[7] == {"id": 7, "v": 3, "big": expected}


def test_append_has_a_row_for_each_change_but_tombstones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"format": "debezium", "columns": ["source-transaction", "source-snapshot"]}
    more: dict[str, Any] = {"write_mode": "append", "changelog": columns}
    more["tableflow"] = {"error_handling": {"mode": "SKIP"}}
    topic = changed_topic(tmp_path, monkeypatch, **more)
    connector, row = Connector(topic), {"id": 7, "v": 1, "big": "b"}
    connector.send([Event(0, 7, "c", 10, row), Event(0, 7, "d", 20), Event(0, 7, None, 20)])
    connector.value_id = late = 9  # which the registry does not have yet
    connector.send([Event(0, 7, "u", 30, row), Event(0, 7, "d", 40)])
    ingestor = topic.ingestor()
    done = ingestor.step()
    ingestor.close()
    assert (done.records, done.rows) == (5, 2)
    for number in range(late):  # the registry numbers them
        text = json.dumps(ENVELOPE) + " " * number
        topic.registry.register_schema("other-value", Schema(text, "AVRO"))
    replays = [Replay(topic.spec, topic.endpoints, topic.config).run() for _ in range(2)]
    assert [replay.counts["inserted"] for replay in replays] == [2, 0]
    created, deleted, *replayed = sorted(topic.rows(), key=lambda one: one["$$offset"])
    changes = [(r["$$op"], r["after"], r["id"], r["$$source-position"]) for r in replayed]
    assert changes == [("u", row, 7, 30), ("d", None, 7, 40)]
    assert (created["after"], created["$$op"], created["id"]) == (row, "c", 7)
    assert (deleted["after"], deleted["$$op"], deleted["id"]) == (None, "d", 7)
    assert created["$$source-position"] == 10
    assert created["$$source-timestamp"] == datetime(1970, 1, 1, 0, 0, 0, 10_000, tzinfo=UTC)
    assert (created["$$source-transaction"], created["$$source-snapshot"]) == ("1", "false")


def sql_server(lsn: int) -> dict[str, Any]:
    at = f"00000027:{lsn:08x}:"
    return {"change_lsn": f"{at}0002", "commit_lsn": f"{at}0003", "event_serial_no": 1}


def oracle(lsn: int) -> dict[str, Any]:
    return {"scn": str(lsn), "commit_scn": str(lsn + 1)}


@pytest.mark.parametrize("position", [sql_server, oracle])
def test_documented_position_orders_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: Callable[[int], dict[str, Any]]
) -> None:
    """Sources: Debezium's documentation of its SQL Server and Oracle connectors."""
    topic, envelope = changed_topic(tmp_path, monkeypatch), json.loads(json.dumps(ENVELOPE))
    source, kinds = envelope["fields"][2]["type"]["fields"], {int: "long", str: "string"}
    source[3:] = [
        {"name": name, "type": ["null", kinds[type(value)]], "default": None}
        for name, value in position(1).items()
    ]
    writer, row = Connector(topic, envelope, position), {"v": 1, "big": "b"}
    ingestor = topic.ingestor()
    try:
        for part in (
            [Event(0, 1, "c", 98, {"id": 1, **row}, ms=5)],
            [Event(1, None, "t", 100, ms=5)],
            [
                Event(0, 2, "c", 99, {"id": 2, **row}, ms=5),
                Event(0, 3, "c", 101, {"id": 3, **row}, ms=5),
            ],
            [
                Event(2, 4, "c", 9, {"id": 4, **row}, ms=5),
                Event(2, 5, "u", 102, {"id": 5, **row}, ms=5),
            ],
        ):
            writer.send(part)
            read_all(ingestor)
    finally:
        ingestor.close()
    assert sorted(rows_of(topic)) == [3, 5]


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 6])
def test_snapshot_times_later_than_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """A snapshot reads a large table for long: changes have times from before the row was read."""
    topic = changed_topic(tmp_path, monkeypatch)
    writer, read, late = Connector(topic), {"id": 1, "v": 1, "big": "old"}, 900
    events = [
        Event(0, 1, "r", 10, read, ms=late),
        Event(0, 2, "r", 10, {**read, "id": 2}, ms=late),
        Event(0, 1, "u", 20, {"id": 1, "v": 2, "big": "new"}),
        Event(0, 1, "d", 30, new_key=3),
        Event(0, 1, None, 30, new_key=3),
        Event(1, 3, "c", 30, {"id": 3, "v": 3, "big": UNAVAILABLE}, old_key=1),
        Event(0, 2, "d", 40, new_key=4),
        Event(2, 4, "c", 40, {"id": 4, "v": 4, "big": UNAVAILABLE}, old_key=2),
        Event(2, 9, "r", 10, {**read, "id": 9}, ms=late),
    ]
    ingestor = topic.ingestor()
    try:
        for part in (events[:cut], events[cut:]):
            writer.send(part)
            read_all(ingestor)
    finally:
        ingestor.close()
    assert {key: row["big"] for key, row in rows_of(topic).items()} == {
        3: "new",
        4: "old",
        9: "old",
    }


SCHEMA = {
    "type": "struct",
    "fields": [
        {"field": "op", "type": "string"},
        {
            "field": "after",
            "type": "struct",
            "optional": True,
            "fields": [
                {"field": "id", "type": "int64"},
                {"field": "big", "type": "string", "optional": True},
            ],
        },
        {"field": "source", "type": "struct", "fields": [{"field": "lsn", "type": "int64"}]},
    ],
}
KEY_SCHEMA = {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}


def test_changes_with_schemas_of_their_own_are_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = changed_topic(
        tmp_path,
        monkeypatch,
        schema={"format": "json"},
        key={"format": "json"},
        tableflow={"error_handling": {"mode": "SKIP"}},
    )

    def send(key: Any, value: Any, schema: Any = SCHEMA) -> None:
        own, record = {"schema": KEY_SCHEMA, "payload": key}, {"schema": schema, "payload": value}
        topic.produce(0, json.dumps(own).encode(), json.dumps(record).encode())

    def change(op: str, lsn: int, **row: Any) -> dict[str, Any]:
        return {"op": op, "after": row or None, "source": {"lsn": lsn}}

    wider = json.loads(json.dumps(SCHEMA))
    wider["fields"][1]["fields"].append({"field": "more", "type": "int64", "optional": True})
    send({"id": 1}, change("c", 1, id=1, big="b"))
    send({"id": 2}, change("c", 2, id=2, big=None))
    send({"id": 2}, change("u", 3, id=2, big="x", more=5), wider)
    send({"id": 3}, change("c", 4, id=3), {"type": "unknown"})
    send({"id": 1}, change("d", 5))
    ingestor = topic.ingestor()
    done = ingestor.step()
    ingestor.close()
    assert done.rows_skipped == 1
    assert (done.records_read, done.records_skipped, done.records_dead_lettered) == (5, 1, 0)
    assert rows_of(topic) == {2: {"id": 2, "big": "x", "more": 5}}


def test_time_beyond_the_years_of_a_timestamp_is_malformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = changed_topic(tmp_path, monkeypatch)
    Connector(topic).send([Event(0, 7, "c", 2**53, {"id": 7, "v": 1, "big": "b"})])
    ingestor = topic.ingestor()
    with pytest.raises(TableflowError, match=r"offset 0: field source \(struct\): its time"):
        ingestor.step()
    ingestor.close()


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=["numbers", "texts"])
@given(st.lists(st.tuples(st.integers(0, 3), *[st.none() | st.integers(-3, 3)] * 2), max_size=30))
def test_newest_change_of_each_partition(
    kind: pa.DataType, changes: list[tuple[int, int | None, int | None]]
) -> None:
    partitions, micros, numbers = zip(*changes, strict=True) if changes else ((), (), ())
    positions = pa.array(numbers, pa.int64()).cast(kind)
    table = pa.table({"partition": pa.array(partitions, pa.int32()), "m": micros, "p": positions})
    table = table.set_column(1, "m", pa.array(micros, pa.int64()))
    expected: dict[int, Any] = {}
    for one in table.to_pylist():
        least = "" if pa.types.is_string(kind) else -10
        order = one["m"] is not None, one["m"] or 0, one["p"] is not None, one["p"] or least
        order = (*order[:3], one["p"] if one["p"] is not None else least)
        expected[one["partition"]] = max(order, expected.get(one["partition"], order))
    assert {
        row["partition"]: (row["m"], row["p"]) for row in newest_by_partition(table).to_pylist()
    } == {
        partition: (m if has_m else None, p if has_p else None)
        for partition, (has_m, m, has_p, p) in expected.items()
    }
