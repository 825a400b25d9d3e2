"""Records that cannot be decoded: suspend, skip, or log to the dead-letter topic, each one once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
import pytest
from kafka_topics import ORDER, Topic, avro, encode
from waiting import wait_until

from topicberg.errors import CommitConflictError, TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg import summaries
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.tableflow.decode.processes import Processes
from topicberg.tableflow.decode.reading import EARLY, WrittenBatch
from topicberg.tableflow.rejected.deadletters import DeadLetters
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.values import commit
from topicberg.topics.deadletters import dead_letter_spec

pytestmark = pytest.mark.integration

DATES = avro(
    {"name": "id", "type": "long"},
    {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        "default": "\x00",
    },
)


def malformed(topic: Topic) -> list[bytes]:
    """A record of each kind that has no place in the table."""
    prefix = wire_prefix(topic.register(DATES))
    return [
        b"",
        b"\x01no magic byte",
        b"\x00\x00\x00",
        wire_prefix(2_000_000_000) + b"\x02\x00\x00",
        prefix,
        prefix + b"\x02\x02",  # ends within the date
        prefix + b"\x02\x00\x10\x01",  # eight bytes of decimal promised, one there
        prefix + b"\x02\x02\xfe\xff\xff\xff\x0f\x02\x01",  # a day in the year 5 881 580
        prefix + b"\x02\x00\x10\x7f\xff\xff\xff\xff\xff\xff\xff",  # more digits than 5
    ]


def good(topic: Topic, *numbers: int) -> None:
    topic.send(DATES, [{"id": n, "day": None, "price": b"\x01"} for n in numbers])


@pytest.fixture
def dates(make_topic: Callable[..., Topic], request: pytest.FixtureRequest) -> Topic:
    return make_topic(tableflow={"error_handling": request.param})


@pytest.mark.parametrize("dates", [{"mode": "SKIP"}], indirect=True)
def test_skip_counts_what_it_leaves_out(dates: Topic) -> None:
    good(dates, 1)
    dates.send_raw(malformed(dates))
    good(dates, 2)
    dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1, 2]
    dates.send_raw([b"again"])
    dates.ingest()
    table = dates.table()
    assert int(table.properties[summaries.ROWS_SKIPPED]) == len(malformed(dates)) + 1


@pytest.mark.parametrize("number", [0, 3, 7])
def test_suspend_names_the_record(make_topic: Callable[..., Topic], number: int) -> None:
    topic = make_topic()
    good(topic, 1)
    topic.send_raw([malformed(topic)[number]])
    with pytest.raises(TableflowError, match=rf"topic {topic.spec.name}, partition \d, offset \d+"):
        topic.ingest()
    assert topic.table().current_snapshot() is None


def dead_letters(topic: Topic) -> list[dict[str, Any]]:
    """The rows of the dead-letter topic's own table."""
    errors = Topic(topic.endpoints, dead_letter_spec(topic.spec), topic.config)
    errors.ingest()
    return [
        row
        for row in errors.rows("error_message", "source_record")
        if row["source_record"]["topic"] == topic.spec.name
    ]


@pytest.mark.parametrize("dates", [{"mode": "LOG", "target": "orders_errors"}], indirect=True)
def test_log_keeps_each_broken_record_once(dates: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = malformed(dates)
    good(dates, 1)
    dates.send_raw(broken[:4])
    dates.ingest()
    dates.send_raw(broken[4:])
    good(dates, 2)

    class Killed(BaseException):
        """The engine dies between the dead letters and the commit."""

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(commit, "add_files", die)
        with pytest.raises(Killed):
            dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1]
    dates.send_raw([b"later"])  # the next batch is another one
    dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1, 2]
    broken.append(b"later")
    logged = dead_letters(dates)
    assert sorted(row["source_record"]["value"] for row in logged) == sorted(broken)
    assert all(row["error_message"] for row in logged)
    table = dates.table()
    assert int(table.properties[summaries.ROWS_SKIPPED]) == len(broken)


@pytest.mark.parametrize("dates", [{"mode": "LOG", "target": "again_errors"}], indirect=True)
def test_new_table_and_new_topic_log_their_own_dead_letters(
    dates: Topic, make_topic: Callable[..., Topic]
) -> None:
    """Also those of an engine that runs while the table, or the topic, is created again."""
    other = make_topic()
    for topic in (dates, other):
        good(topic, 1)
        topic.ingest()
    dates.send_raw([b"bad"])
    ends = kafka.end_offsets(dates.endpoints, dates.spec.name)
    letters = DeadLetters(dates.spec, dates.endpoints, dates.config)
    bad = [
        record
        for partition, end in ends.items()
        if end and (record := letters.record((partition, end - 1), "why"))["value"] == b"bad"
    ]
    assert len(bad) == 1
    for table, topic_id, logged in (
        (dates.table(), "first", 1),
        (dates.table(), "first", 1),
        (other.table(), "first", 2),
        (other.table(), "second", 3),
    ):
        letters.write(table, topic_id, {}, bad)
        wait_until(partial(has_entries, dates, logged), 20)
        assert len(entries(dates)) == logged


def has_entries(topic: Topic, number: int) -> bool:
    return len(entries(topic)) >= number


def entries(topic: Topic) -> list[dict[str, Any]]:
    """What is in the dead-letter topic itself, of committed transactions."""
    target = dead_letter_spec(topic.spec).name
    first = kafka.beginning_offsets(topic.endpoints, target)
    end = kafka.end_offsets(topic.endpoints, target)
    registry = topic.endpoints.schema_registry_client()
    found: list[dict[str, Any]] = []
    for message in messages(topic.endpoints, target, {p: (first[p], end[p]) for p in end}):
        value = message.value() or b""
        if value[:1] != b"\x00":
            continue
        schema: Any = json.loads(registry.get_schema(int.from_bytes(value[1:5])).schema_str or "")
        entry: Any = fastavro.schemaless_reader(BytesIO(value[5:]), schema, None)
        found += [entry] if "source_record" in entry else []
    return found


def test_dead_letters_fit_a_target_of_others(make_topic: Callable[..., Topic]) -> None:
    """It is compacted, takes small records, has a schema of its own, and is flooded."""
    room = 20_000
    target = make_topic({"cleanup.policy": "compact", "max.message.bytes": str(room)})
    target.send(ORDER, [{"id": 1, "note": "of others"}], key=lambda _: b"k")
    target.send_raw([b"x"] * 100_000, key=lambda number: b"%d" % number, batch_size=10_000)
    topic = make_topic(
        {"message.timestamp.after.max.ms": str(2**63 - 1)},
        schema={"format": "avro"},
        tableflow={"error_handling": {"mode": "LOG", "target": target.spec.name}},
    )
    good(topic, 1)
    largest = b"\x01" + b"v" * 8_388_000
    topic.send_raw([largest], message_max_bytes=9_000_000)
    topic.send_raw([b"\x01late"], timestamp=lambda _: 1_700_000_000_000_000_000)
    topic.send_raw([b"\x01key"], key=lambda _: b"k" * 50_000)
    good(topic, 2)
    assert topic.ingest() == 5
    assert [row["id"] for row in topic.rows("id")] == [1, 2]
    by_size = sorted(entries(topic), key=lambda entry: len(entry["source_record"]["value"]))
    key, late, large = by_size
    assert late["error_details"]["timestamp"] == "1700000000000000000"
    assert "truncated" not in late["error_details"]
    assert key["error_details"]["key_bytes"] == "50000"
    assert len(key["source_record"]["key"]) > room / 2
    assert large["error_details"]["value_bytes"] == str(len(largest))
    value = large["source_record"]["value"]
    assert room / 2 < len(value) < room
    assert largest.startswith(value)
    # The subject of the others is as it was.
    registry = topic.endpoints.schema_registry_client()
    assert registry.get_versions(target.spec.value_subject) == [1]


@pytest.mark.parametrize("dates", [{"mode": "LOG", "target": "engines_errors"}], indirect=True)
def test_two_engines_log_each_record_once(dates: Topic) -> None:
    good(dates, 0)
    stop = threading.Event()
    failures: list[Exception] = []

    def engine() -> None:
        ingestor = Ingestor(dates.spec, dates.endpoints, dates.config)
        while not stop.is_set():
            try:
                ingestor.step()
            except CommitConflictError:  # the other one was always faster
                continue
            except Exception as error:  # collected for the assertion below
                failures.append(error)
        ingestor.close()

    engines = [threading.Thread(target=engine) for _ in range(2)]
    for thread in engines:
        thread.start()
    broken = [b"broken %d" % number for number in range(300)]
    for number in range(0, 300, 50):
        good(dates, number + 1)
        dates.send_raw(broken[number : number + 50])
        time.sleep(1)
    deadline = time.monotonic() + 150
    while len(dates.rows("id")) < 7 and time.monotonic() < deadline:
        time.sleep(1)
    stop.set()
    for thread in engines:
        thread.join()
    dates.ingest()
    assert not failures
    assert len(dates.rows("id")) == 7
    mine = [e for e in entries(dates) if e["source_record"]["topic"] == dates.spec.name]
    assert sorted(entry["source_record"]["value"] for entry in mine) == sorted(broken)
    assert int(dates.table().properties[summaries.ROWS_SKIPPED]) == 300


@pytest.mark.parametrize("mode", ["SKIP", "LOG"])
@pytest.mark.parametrize("is_registered", [True, False])
def test_new_schemas_are_looked_up_when_the_first_records_name_them(
    make_topic: Callable[..., Topic],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    is_registered: bool,
) -> None:
    """Not after a batch that is decoded in vain."""
    topic = make_topic(tableflow={"error_handling": {"mode": mode}})
    other = Topic(topic.endpoints, topic.spec.model_copy(update={"name": f"{topic.spec.name}_x"}))
    own = wire_prefix(topic.register(ORDER))
    foreign = wire_prefix(other.register(avro(*ORDER["fields"], {"name": "more", "type": "int"})))
    named = foreign if is_registered else wire_prefix(2_000_000_000)
    texts, parsed = "x" * 40_000, fastavro.parse_schema(ORDER)
    values = [own + encode(parsed, {"id": n, "note": texts}) for n in range(1_400)]
    for n in range(0, 1_400, 100):
        values[n] = named + encode(parsed, {"id": n, "note": "b"}) + b"\x0e"
    topic.send_raw(values)
    read: list[int] = []
    ingest = Processes.ingest

    def counted(*arguments: Any) -> list[WrittenBatch]:
        written = ingest(*arguments)
        read.append(written[0].records)
        return written

    monkeypatch.setattr(Processes, "ingest", counted)
    topic.ingest()
    assert len(read) == 2
    assert read[0] <= 1_400 * EARLY
    assert read[1] == 1_400
    found = [row["id"] for row in topic.rows("id")]
    assert sorted(found) == [n for n in range(1_400) if is_registered or n % 100]
    if mode == "LOG" and not is_registered:
        mine = [e for e in entries(topic) if e["source_record"]["topic"] == topic.spec.name]
        assert len(mine) == 14
