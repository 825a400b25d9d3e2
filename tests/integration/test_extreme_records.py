"""Records at Kafka's limits: each one is a row, or is left out as the topic's mode says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from kafka_topics import ORDER, Topic, encode

from topicberg.errors import TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg import summaries
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.values import commit, skips
from topicberg.topics.deadletters import dead_letter_spec

pytestmark = pytest.mark.integration

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
NOW_MS = 1_700_000_000_000
IMPOSSIBLE = {
    "microseconds": NOW_MS * 1000,
    "nanoseconds": NOW_MS * 1_000_000,
    "the year 10000": 253_402_300_800_000,
    "the year 0": -62_135_596_800_001,
    "the largest number": 2**63 - 1,
    "the smallest number": -(2**63),
}
POSSIBLE = {
    "none": (-1, None),
    "the first day": (-62_135_596_800_000, datetime(1, 1, 1, tzinfo=UTC)),
    "a Julian day": (-12_219_379_200_001, None),
    "the last": (253_402_300_799_999, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
    "before 1970": (-5, datetime(1969, 12, 31, 23, 59, 59, 995_000, UTC)),
    "today": (NOW_MS, datetime.fromtimestamp(NOW_MS / 1000, UTC)),
}


def orders(topic: Topic, *numbers: int) -> list[bytes]:
    prefix, parsed = wire_prefix(topic.register(ORDER)), fastavro.parse_schema(ORDER)
    return [prefix + encode(parsed, {"id": number, "note": ""}) for number in numbers]


def skipped(topic: Topic) -> int:
    return int(topic.table().properties.get(summaries.ROWS_SKIPPED, 0))


def handling(mode: str, **more: Any) -> dict[str, Any]:
    return {"error_handling": {"mode": mode, **more}}


def micros(topic: Topic) -> dict[int, int | None]:
    """Order → its timestamp."""
    import pyarrow as pa

    arrow = topic.table().scan(selected_fields=("id", "$$timestamp")).to_arrow()
    times = arrow["$$timestamp"].cast(pa.int64()).to_pylist()
    return dict(zip(arrow["id"].to_pylist(), times, strict=True))


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
@pytest.mark.parametrize("mode", ["SKIP", "LOG"])
def test_only_extreme_timestamps_are_left_out(
    make_topic: Callable[..., Topic], mode: str, write_mode: str
) -> None:
    """Beside good ones."""
    target = {"target": f"errors_{os.urandom(4).hex()}"} if mode == "LOG" else {}
    topic = make_topic(
        ANY_TIME,
        write_mode=write_mode,
        key={"format": "string"},
        tableflow=handling(mode, **target),
    )
    impossible, possible = [*IMPOSSIBLE.values()], [time for time, _ in POSSIBLE.values()]
    times = [*possible, *impossible, *possible]
    topic.send_raw(
        orders(topic, *range(len(times))),
        key=lambda number: b"%d" % number,
        timestamp=lambda number: times[number],
    )
    assert topic.ingest() == len(times)
    expected = {
        number: None if time == -1 else time * 1000
        for number, time in enumerate(times)
        if time not in impossible
    }
    assert micros(topic) == expected
    assert skipped(topic) == len(IMPOSSIBLE)
    if mode == "LOG":
        errors = Topic(topic.endpoints, dead_letter_spec(topic.spec), topic.config)
        errors.ingest()
        rows = errors.rows("error_message", "error_details", "source_record")
        assert sorted(int(dict(row["error_details"])["timestamp"]) for row in rows) == sorted(
            impossible
        )
        assert all("field $$timestamp (timestamptz): value" in r["error_message"] for r in rows)
        assert {row["source_record"]["timestamp"] for row in rows} == {None}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_extreme_timestamp_suspends(make_topic: Callable[..., Topic], name: str) -> None:
    topic = make_topic(ANY_TIME)
    topic.send_raw(orders(topic, 1, 2), partition=1)
    topic.send_raw(orders(topic, 3), partition=1, timestamp=lambda _: IMPOSSIBLE[name])
    place = f"topic {topic.spec.name}, partition 1, offset 2: field $$timestamp (timestamptz): "
    with pytest.raises(TableflowError) as error:
        topic.ingest()
    assert error.value.message.startswith(f"{place}value {IMPOSSIBLE[name]} is not between")


def test_a_tombstone_of_any_time_deletes(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic(
        ANY_TIME, write_mode="upsert", key={"format": "string"}, tableflow=handling("SKIP")
    )
    topic.send_raw(orders(topic, 1, 2, 3), key=lambda number: b"%d" % number)
    topic.ingest()
    times = [NOW_MS * 1000, NOW_MS * 1_000_000]
    topic.send_raw([None, None], key=lambda n: b"%d" % n, timestamp=lambda number: times[number])
    topic.ingest()
    assert topic.rows("id") == [{"id": 3}]
    assert skipped(topic) == 0


def test_records_of_ten_megabytes_are_rows(make_topic: Callable[..., Topic]) -> None:
    """And what they weigh is known before they are read, also after a restart."""
    limit = 16 * 1024 * 1024
    topic = make_topic(
        {"max.message.bytes": str(limit)},
        schema={"format": "none"},
        tableflow={"commit_max_bytes": 1_000_000, **handling("SKIP")},
    )
    values = [os.urandom(12_000_000), *(os.urandom(1000) for _ in range(6000))]
    topic.send_raw(values, partition=0, message_max_bytes=limit)
    sizes: list[int] = []
    for _ in range(2):
        ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
        while (step := ingestor.step()).records and sum(sizes) < len(values):
            sizes.append(step.records)
            if len(sizes) == 2:
                break
        ingestor.close()
    assert max(sizes) < 2500, "a commit has a megabyte"
    topic.ingest()
    table = topic.table()
    lengths = sorted(len(value) for value in table.scan().to_arrow()["value"].to_pylist())
    assert lengths == [1000] * 6000 + [12_000_000]
    learnt = commit.committed(table).batch_size
    assert learnt is not None
    assert json.loads(learnt)["ratio"] != 1.0


@pytest.fixture
def damaged(make_topic: Callable[..., Topic], request: pytest.FixtureRequest) -> Topic:
    """A topic of ten orders, each sent alone, of which one has another byte on disk."""
    topic = make_topic(tableflow=request.param)
    values = orders(topic, *range(9), 123456789)
    for value in (*values[:6], values[9], *values[6:9]):
        topic.send_raw([value], partition=1)
    damage(topic, values[9])
    return topic


def damage(topic: Topic, value: bytes) -> None:
    """Change a byte of a record of partition 1 on disk."""
    log = topic.config.state_dir / "kafka" / "data" / f"{topic.spec.name}-1" / f"{0:020}.log"
    content = bytearray(log.read_bytes())
    place = content.index(value)
    content[place + len(value) - 2] ^= 1
    with log.open("r+b") as stream:
        stream.seek(place)
        stream.write(content[place : place + len(value)])


FAILING = "partition 1, offset 6: the record cannot be decoded: "


@pytest.mark.parametrize("mode", ["SUSPEND", "SKIP"])
@pytest.mark.parametrize("has_backlog", [False, True])
def test_a_failing_record_behind_a_part_is_not_of_the_part(
    make_topic: Callable[..., Topic], mode: str, has_backlog: bool
) -> None:
    """Kafka returns it with the records before it, of which the last offset is a marker's."""
    topic = make_topic(tableflow=handling(mode))
    values = orders(topic, *range(5), 123456789)
    producer = Producer({**topic.endpoints.kafka_config(), "transactional.id": topic.spec.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values[:5]:
        producer.produce(topic.spec.name, value, partition=1)
    producer.commit_transaction(30)
    topic.wait_for_markers()
    topic.send_raw(values[5:], partition=1)
    damage(topic, values[5])
    backlog = 60_000 if has_backlog else 0
    topic.send_raw(orders(topic, *range(100, 100 + backlog)), partition=0)
    if mode == "SUSPEND":
        with pytest.raises(TableflowError, match=FAILING):
            topic.ingest()
    else:
        topic.ingest()
        assert skipped(topic) == 1
    assert len(topic.rows("id")) == 5 + backlog


def send_zstd(topic: Topic, count: int, size: int) -> list[bytes]:
    """Send a batch of records that the broker compresses, which does not say the size before. As a
    producer in Java does; they unpack to many thousand times their bytes in Kafka."""
    values = [str(number).encode().ljust(size, b"x") for number in range(count)]
    topic.send_raw(
        values,
        partition=1,
        compression_type="gzip",
        linger_ms=3_000,
        message_max_bytes=1_000_000_000,
        batch_size=1_000_000_000,
        queue_buffering_max_kbytes=1_000_000,
    )
    return values


def test_zstd_batch_of_unknown_size_is_read(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic({"compression.type": "zstd"}, schema={"format": "none"})
    values = send_zstd(topic, 400, 500_000)
    topic.ingest()
    table = topic.table().scan(selected_fields=("value", "$$offset")).to_arrow()
    assert [row["value"] for row in sorted(table.to_pylist(), key=lambda row: row["$$offset"])] == (
        values
    )


@pytest.mark.parametrize("mode", ["LOG", pytest.param("SUSPEND", marks=pytest.mark.slow)])
def test_zstd_batch_beyond_the_memory_is_skipped_as_a_batch(
    make_topic: Callable[..., Topic], mode: str
) -> None:
    """Beside other such batches and good ones, of which none is taken for one of them."""
    target = {"target": f"errors_{os.urandom(4).hex()}"} if mode == "LOG" else {}
    topic = make_topic(
        {"compression.type": "zstd"}, schema={"format": "none"}, tableflow=handling(mode, **target)
    )
    topic.config = topic.config.model_copy(update={"engine_process_memory_mb": 1024})
    good = [b"first", b"last"]
    topic.send_raw(good[:1], partition=1)
    for _ in range(2):
        send_zstd(topic, 27, 10_000_000)
    topic.send_raw(good[1:], partition=1)
    if mode == "SUSPEND":
        for first in (1, 28):
            with pytest.raises(TableflowError, match="it and the next 26 records") as error:
                topic.ingest()
            assert "or is damaged" in error.value.message
            assert f"offset {first}: " in error.value.message
            assert "skip these records" in (error.value.hint or "")
            table, name = topic.table(), topic.spec.name
            assert skips.request(table, topic.endpoints, name, (1, first), "too large")
            assert not skips.request(table, topic.endpoints, name, (1, first + 7), "again")
    topic.ingest()
    assert sorted(row["value"] for row in topic.rows("value")) == sorted(good)
    assert skipped(topic) == 54
    assert not skips.failing(topic.table())
    if mode == "LOG":
        errors = Topic(topic.endpoints, dead_letter_spec(topic.spec), topic.config)
        errors.ingest()
        sources = [row["source_record"] for row in errors.rows("source_record")]
        assert sorted(source["offset"] for source in sources) == list(range(1, 55))
