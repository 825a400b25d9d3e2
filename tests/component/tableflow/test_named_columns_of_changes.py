"""Columns of a database's table may have the names of what is known of its changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from debezium import UNAVAILABLE, struct
from memory_topic import MemoryTopic, memory_topic, read_all

from topicberg.tableflow.values.commit import committed


def send(topic: MemoryTopic, op: str, lsn: int, key: str, row: dict[str, Any] | None) -> None:
    """Send a change whose row has texts, as a JsonConverter with schemas writes it."""
    after = struct(**dict.fromkeys(row or {key: ""}, "string"))
    schema = struct(op="string", after=after, source=struct(lsn="int64"))
    own_key = {"schema": struct(**{key: "string"}), "payload": {key: "seven"}}
    value = {"schema": schema, "payload": {"op": op, "after": row, "source": {"lsn": lsn}}}
    topic.produce(0, json.dumps(own_key).encode(), json.dumps(value).encode())


def changed_topic(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    topic = memory_topic(
        folder,
        monkeypatch,
        schema={"format": "json"},
        key={"format": "json"},
        changelog={"format": "debezium"},
        write_mode="upsert",
        tableflow={"error_handling": {"mode": "SKIP"}},
    )
    topic.partitions[0] = []
    return topic


def rows_of(topic: MemoryTopic) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if not name.startswith("$$")}
        for row in topic.rows()
    ]


@pytest.mark.parametrize("name", ["place", "partition", "m"])
def test_folding_column_with_any_name_keeps_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    topic = changed_topic(tmp_path, monkeypatch)
    send(topic, "c", 1, "id", {"id": "seven", "v": "1", name: "large"})
    ingestor = topic.ingestor()
    ingestor.step()
    send(topic, "u", 2, "id", {"id": "seven", "v": "2", name: UNAVAILABLE})
    ingestor.step()
    ingestor.close()
    assert rows_of(topic) == [{"id": "seven", "v": "2", name: "large"}]
    last = committed(ingestor.table()).last_records
    assert {p: record.offset for p, record in last.items()} == {0: 1}, "the log is recognized by it"


@pytest.mark.parametrize("name", ["offset", "partition"])
def test_folding_key_with_any_name_loses_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    topic = changed_topic(tmp_path, monkeypatch)
    send(topic, "c", 1, name, {name: "seven", "big": "old"})
    ingestor = topic.ingestor()
    ingestor.step()
    send(topic, "no operation", 2, name, {name: "seven", "big": "new"})
    send(topic, "u", 3, name, {name: "seven", "big": UNAVAILABLE})
    send(topic, "u", 4, name, {name: "seven", "big": "newest"})
    read_all(ingestor)
    ingestor.close()
    assert rows_of(topic) == [{name: "seven", "big": "newest"}]
