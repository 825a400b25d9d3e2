"""Changes that other programs than Debezium write in its envelope."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from debezium import struct
from memory_topic import MemoryTopic, memory_topic
from test_folding import rows_of

from topicberg.errors import TableflowError

SPEC: dict[str, Any] = {
    "schema": {"format": "json"},
    "key": {"format": "json"},
    "changelog": {"format": "debezium"},
    "write_mode": "upsert",
    "tableflow": {"error_handling": {"mode": "SKIP"}},
}
NANOS = 1_745_527_444_910_044_000

KEY = struct(id="int64")
ROW = struct(id="int64", v="string")
TICDC = struct(connector="string", ts_ms="int64", file="string", pos="int64", commit_ts="int64")
COCKROACH = struct(ts_ns="int64", ts_hlc="string")


def ticdc(schema: dict[str, Any], payload: dict[str, Any]) -> bytes:
    """Return a record as TiCDC writes it, see https://docs.pingcap.com/tidb/stable/ticdc-debezium."""
    return json.dumps({"payload": payload, "schema": schema}, separators=(",", ":")).encode()


def of_ticdc(topic: MemoryTopic, op: str, key: int, v: str | None = None) -> None:
    row = {"id": key, "v": v}
    source = {"connector": "TiCDC", "ts_ms": 1, "file": "", "pos": 0, "commit_ts": 4_611}
    payload = {"source": source, "op": op, "before": None, "after": None if op == "d" else row}
    schema = struct(before=ROW, after=ROW, source=TICDC, op="string")
    topic.produce(0, ticdc(KEY, {"id": key}), ticdc(schema, payload))


def test_changes_of_ticdc_between_its_other_events_are_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = memory_topic(tmp_path, monkeypatch, **SPEC)
    ddl = ticdc(struct(source=TICDC, ddl="string"), {"source": None, "ddl": "CREATE TABLE t …"})
    watermark = ticdc(struct(source=TICDC, op="string"), {"source": None, "op": "m"})
    topic.produce(0, ticdc(struct(databaseName="string"), {"databaseName": "test"}), ddl)
    ingestor = topic.ingestor()
    with pytest.raises(TableflowError, match=r"not a change of a row .* source, ddl"):
        ingestor.step()
    of_ticdc(topic, "c", 1, "a")
    of_ticdc(topic, "c", 2, "b")
    ingestor.table()  # as the service does at first
    ingestor.step()
    topic.produce(0, ticdc(struct(), {}), watermark)
    of_ticdc(topic, "u", 1, "c")
    of_ticdc(topic, "d", 2)
    assert ingestor.step().rows_skipped == 2
    ingestor.close()
    assert rows_of(topic) == {1: {"id": 1, "v": "c"}}


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("partitions", [(0, 1), (1, 0)])
def test_newer_change_of_cockroachdb_in_another_partition_is_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: tuple[int, int], *, is_cut: bool
) -> None:
    """Its only time is in nanoseconds: https://github.com/cockroachdb/cockroach/pull/140112."""
    topic = memory_topic(tmp_path, monkeypatch, **SPEC)
    topic.partitions = {0: [], 1: []}
    ingestor, schema = topic.ingestor(), struct(after=ROW, source=COCKROACH, op="string")
    for number, partition in enumerate(partitions):
        nanos = NANOS + number * 10**9
        source = {"ts_ns": nanos, "ts_hlc": f"{nanos}.0000000000"}
        payload = {"after": {"id": 1, "v": f"v{number}"}, "source": source, "op": "cu"[number]}
        key = json.dumps({"schema": KEY, "payload": {"id": 1}}).encode()
        topic.produce(partition, key, json.dumps({"schema": schema, "payload": payload}).encode())
        if is_cut:
            ingestor.step()
    ingestor.step()
    ingestor.close()
    assert rows_of(topic) == {1: {"id": 1, "v": "v1"}}
