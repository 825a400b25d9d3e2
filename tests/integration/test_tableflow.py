"""The engine against the real stack, and its service: exactly once; schemas; broken records."""

from __future__ import annotations

import gc
import json
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import ConfigCompatibilityLevel, Schema, ServerConfig
from found_topics import AVRO_TOPIC
from kafka_topics import ORDER, Topic, avro, encode
from prometheus_client import CollectorRegistry, generate_latest
from pyiceberg.table import Table
from typer.testing import CliRunner, Result
from waiting import wait_until

from topicberg.checks.topic import check_lag, lag_of
from topicberg.cli import app
from topicberg.clients.catalog import CheckedCatalog, ensure_namespace
from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError, TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.kafka import consumer
from topicberg.kafka import topics as kafka
from topicberg.kafka.offsets import Offsets
from topicberg.kafka.transactions import transaction_errors, transactional_producer
from topicberg.settings import settings
from topicberg.spark import new_session
from topicberg.tableflow.service import control, turn_schedule
from topicberg.tableflow.service.metrics import StatusCollector
from topicberg.tableflow.service.pool import Pool
from topicberg.tableflow.service.status import read_status, remove_status
from topicberg.tableflow.service.wait import held_offsets, wait_for
from topicberg.tableflow.values import commit
from topicberg.topics import requests

pytestmark = pytest.mark.integration

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def test_a_session_that_was_stopped_is_not_kept(make_topic: Callable[..., Topic]) -> None:
    """The engine makes a new session whenever Spark has ended."""
    session = new_session(make_topic().endpoints.spark_connect)
    session.sql("SELECT 1").collect()
    clients = weakref.WeakSet([session.client])  # type: ignore[operator]  # a property
    session.stop()
    del session
    gc.collect()
    assert not clients


def test_how_far_a_table_is_that_notes_no_offsets(make_topic: Callable[..., Topic]) -> None:
    """As Confluent's Tableflow makes them: the newest record's time tells."""
    topic = make_topic()
    topic.send(ORDER, [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}])
    topic.ingest()
    ours = topic.table()
    identifier = (topic.config.cluster_id, f"{topic.spec.name}_of_another")
    theirs = ours.catalog.create_table(identifier, ours.schema())
    try:
        end = kafka.end_offsets(topic.endpoints, topic.spec.name)
        assert held_offsets(theirs, topic.spec, topic.endpoints, end) == {}
        theirs.append(ours.scan().to_arrow())
        assert held_offsets(theirs, topic.spec, topic.endpoints, end) == end
        assert lag_of(theirs, topic.spec, topic.endpoints) == 0
        time.sleep(0.01)  # offsets go by milliseconds
        topic.send(ORDER, [{"id": 3, "note": "c"}])
        assert lag_of(theirs, topic.spec, topic.endpoints) == 1
        assert not cloud_holds(theirs, topic)
        topic.ingest()
        theirs.overwrite(topic.table().scan().to_arrow())
        assert cloud_holds(theirs, topic)
    finally:
        ours.catalog.purge_table(identifier)


def cloud_holds(table: Table, topic: Topic) -> bool:
    end = kafka.end_offsets(topic.endpoints, topic.spec.name)

    def held(table: Table) -> Offsets:
        return held_offsets(table, topic.spec, topic.endpoints, end)

    return wait_for(table, end, 0, offsets_of=held)


def test_topics_that_need_a_new_namespace_at_once_all_get_it(
    stack: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg's JDBC catalog answers 500 to the second one that creates it."""
    at_once = 6
    catalogs = [stack.catalog(settings()) for _ in range(at_once)]
    found = CheckedCatalog.namespace_exists
    for _ in range(30):
        namespace, none_has_it = f"shared_{uuid.uuid4().hex[:8]}", threading.Barrier(at_once)

        def first_look(self: CheckedCatalog, name: Any, ready: Any = none_has_it) -> bool:
            exists = found(self, name)
            if not exists:
                ready.wait(20)
            return exists

        monkeypatch.setattr(CheckedCatalog, "namespace_exists", first_look)
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(ensure_namespace, catalogs, [namespace] * at_once))
        assert found(catalogs[0], namespace)
        catalogs[0].drop_namespace(namespace)


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_a_rollback_while_a_batch_is_written_stays(
    make_topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch, write_mode: str
) -> None:
    """An operator takes back a delete; the batch is written again on what is the head then."""
    topic = make_topic(write_mode=write_mode, key={"format": "string"})
    for number in range(2):
        topic.send(ORDER, [{"id": number, "note": ""}], key=lambda _, n=number: b"%d" % n)
        topic.ingest()
    table = topic.table()
    good = table.current_snapshot()
    table.delete("id = 0")
    add_files = commit.add_files
    seen: list[None] = []

    def rolled_back(*arguments: Any, **more: Any) -> Any:
        if not seen:
            table.refresh().manage_snapshots().rollback_to_snapshot(good.snapshot_id).commit()
        seen.append(None)
        return add_files(*arguments, **more)

    monkeypatch.setattr(commit, "add_files", rolled_back)
    topic.send(ORDER, [{"id": 2, "note": ""}], key=lambda _: b"2")
    topic.ingest()
    assert len(seen) == 2
    assert topic.rows("id") == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_lag_counts_what_an_open_transaction_holds(
    make_topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_schedule, "OPEN_SECONDS", 1.0)
    topic = make_topic(checks={"max_lag_records": 1}, tableflow={"commit_interval_seconds": 0.5})
    topic.send(ORDER, [{"id": 1, "note": "a"}], partition=0)
    producer = Producer({**topic.endpoints.kafka_config(), "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.spec.name, b"never committed", partition=0)
    producer.flush(30)
    begun_ms = int(time.time() * 1000)
    topic.send(ORDER, [{"id": 2, "note": "b"}, {"id": 3, "note": "c"}], partition=0)
    pool = Pool(topic.endpoints, topic.config)
    pool.add(topic.spec)
    worker = pool.queue.topics[topic.spec.name]
    pool.start()
    try:
        wait_until(lambda: bool(worker.report.status.open_transactions), 60)
        assert worker.report.status.lag[0] == 3
        transaction = worker.report.status.open_transactions[0]
        assert transaction.offset == 1
        assert abs(transaction.since_ms - begun_ms) < 10_000
        late = check_lag(topic.spec, topic.table(), topic.endpoints, None)
        assert "3 of them wait for the end of an open transaction: partition 0" in late.what
        collected = CollectorRegistry()
        collected.register(StatusCollector(lambda: [worker.report.status]))
        assert b"open_transaction_seconds" in generate_latest(collected)
        producer.abort_transaction(30)
        wait_until(lambda: not any(worker.report.status.lag.values()), 60)
        assert worker.report.status.open_transactions == {}
    finally:
        pool.stop(60)
        remove_status(topic.config, topic.spec.name)
    assert topic.rows("id") == [{"id": 1}, {"id": 2}, {"id": 3}]


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("handling", ["SUSPEND", "LOG"])
def test_batch_without_committed_records_is_passed(
    make_topic: Callable[..., Topic], mode: str, handling: str
) -> None:
    """It holds aborted records and markers only, as small batches of dead-letter topics do."""
    topic = make_topic(
        write_mode=mode,
        tableflow={"error_handling": {"mode": handling, "target": f"errors-{uuid.uuid4().hex[:8]}"}}
        if handling == "LOG"
        else {},
    )
    prefix, parsed = wire_prefix(topic.register(ORDER)), fastavro.parse_schema(ORDER)
    producer = Producer({**topic.endpoints.kafka_config(), "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)

    def transaction(number: int) -> None:
        producer.begin_transaction()
        value = prefix + encode(parsed, {"id": number, "note": ""})
        producer.produce(topic.spec.name, value, str(number).encode(), 0)
        producer.flush(30)

    for number in range(3):  # the first batch, one in the middle, and a last one
        transaction(2 * number)
        producer.abort_transaction(30)
        topic.wait_for_markers()
        topic.ingest()
        transaction(2 * number + 1)
        producer.commit_transaction(30)
        topic.wait_for_markers()
        topic.ingest()
    assert [row["id"] for row in topic.rows("id")] == [1, 3, 5]
    assert commit.committed(topic.table(), topic.table().current_snapshot()).offsets[0] >= 11


@pytest.mark.parametrize(
    ("kind", "schema", "encoded"),
    [
        ("avro", '"string"', b"\x02k"),
        ("json", f'{{"$schema": "{DRAFT_7}", "type": "string"}}', b'"k"'),
    ],
)
def test_a_key_that_is_no_record_is_the_column_key(
    make_topic: Callable[..., Topic], kind: str, schema: str, encoded: bytes
) -> None:
    topic = make_topic(key={"format": kind, "file": "from-the-registry"})
    registry = topic.endpoints.schema_registry_client()
    prefix = wire_prefix(
        registry.register_schema(topic.spec.key_subject, Schema(schema, kind.upper()))
    )
    topic.send(ORDER, [{"id": 1, "note": "a"}], key=lambda _: prefix + encoded)
    topic.ingest()
    assert topic.rows("key", "id") == [{"key": "k", "id": 1}]


def test_bytes_without_a_schema_and_several_event_types(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic(schema={"format": "none"})
    topic.send_raw([b"anything", None], key=lambda number: b"%d" % number)
    topic.ingest()
    assert topic.rows("key", "value") == [
        {"key": b"0", "value": b"anything"},
        {"key": b"1", "value": None},
    ]
    several = make_topic()
    registry = several.endpoints.schema_registry_client()
    union = [ORDER, {**ORDER, "name": "Refund"}]
    registry.register_schema(several.spec.value_subject, Schema(json.dumps(union), "AVRO"))
    several.send_raw([b"\x00\x00\x00\x00\x01\x00"])
    several.ingest()
    assert several.rows("value") == [{"value": b"\x00\x00\x00\x00\x01\x00"}]


def test_new_table_starts_at_the_offset_of_the_spec(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic(tableflow={"start_position": "latest"})
    topic.send(ORDER, [{"id": 1, "note": "before"}])
    assert topic.ingest() == 0
    topic.send(ORDER, [{"id": 2, "note": "after"}])
    assert (topic.ingest(), topic.rows("id")) == (1, [{"id": 2}])


def test_illegal_change_suspends_and_its_fix_loses_nothing(
    make_topic: Callable[..., Topic],
) -> None:
    topic = make_topic()
    topic.send(ORDER, [{"id": 1, "note": "a"}])
    topic.ingest()
    registry = topic.endpoints.schema_registry_client()
    registry.set_config(
        topic.spec.value_subject, ServerConfig(compatibility=ConfigCompatibilityLevel.NONE)
    )
    topic.register(avro({"name": "id", "type": "string"}, {"name": "note", "type": "string"}))
    topic.send_raw([wire_prefix(1), None])
    with pytest.raises(TableflowError, match="cannot follow"):
        topic.ingest()
    topic.send(ORDER, [{"id": 2, "note": "b"}])
    topic.respec(tableflow={"error_handling": {"mode": "SKIP"}})
    registry.delete_version(topic.spec.value_subject, 2)
    topic.ingest()
    assert [row["id"] for row in topic.rows("id") if row["id"]] == [1, 2]


PATIENCE_SECONDS = 120


@pytest.fixture
def enabled() -> Iterator[Callable[[str], None]]:
    names: list[str] = []

    def enable(topic: str) -> None:
        result = CliRunner().invoke(app, ["tableflow", "enable", topic])
        assert result.exit_code == 0, result.output
        names.append(topic)

    yield enable
    for topic in names:
        assert CliRunner().invoke(app, ["tableflow", "disable", topic]).exit_code == 0


def test_a_topic_without_a_spec_is_taken_as_it_is(
    stack: Endpoints, enabled: Callable[[str], None]
) -> None:
    """Its table comes, and the topic keeps the partitions that its owner gave it."""
    topic, admin = f"clicks-{uuid.uuid4().hex[:6]}", stack.kafka_admin()
    admin.create_topics([NewTopic(topic, 2)])[topic].result(30)
    registry = stack.schema_registry_client()
    click = '{"type": "record", "name": "Click", "fields": [{"name": "number", "type": "int"}]}'
    prefix = wire_prefix(registry.register_schema(f"{topic}-value", Schema(click, "AVRO")))
    producer = Producer(stack.kafka_config())
    for number in range(10):
        producer.produce(topic, prefix + b"%c" % (2 * number), partition=number % 2)
    assert producer.flush(30) == 0
    enabled(topic)
    catalog = stack.catalog(settings())
    identifier = (settings().cluster_id, topic)
    wait_until(lambda: catalog.table_exists(identifier), PATIENCE_SECONDS)
    assert wait_for(catalog.load_table(identifier), {0: 5, 1: 5}, PATIENCE_SECONDS)
    assert kafka.end_offsets(stack, topic) == {0: 5, 1: 5}


def test_a_topic_that_is_not_there_is_refused(stack: Endpoints) -> None:
    topic = f"never-created-{uuid.uuid4().hex[:6]}"
    refused = CliRunner().invoke(app, ["tableflow", "enable", topic])
    assert refused.exit_code != 0
    assert f"topic {topic} does not exist" in str(refused.exception)
    assert requests.read_request(settings(), topic) is None


def test_a_topic_that_is_deleted_is_waited_for(stack: Endpoints) -> None:
    topic = f"never-created-{uuid.uuid4().hex[:6]}"
    control.enable(settings(), topic, discovered=AVRO_TOPIC)
    try:
        wait_until(
            lambda: topic in (read_status(settings(), topic).error_message or ""), PATIENCE_SECONDS
        )
    finally:
        control.disable(settings(), topic)
    status = read_status(settings(), topic)
    assert "Traceback" not in (status.error_message or "")
    assert topic not in stack.kafka_admin().list_topics(timeout=60).topics


def test_a_record_is_skipped_while_the_engine_runs(
    make_topic: Callable[..., Topic], enabled: Callable[[str], None]
) -> None:
    """In mode SUSPEND, which stops before it; who did it and why is shown later."""
    topic = make_topic()
    topic.send(ORDER, [{"id": 1, "note": "a"}], partition=0)
    topic.send_raw([b"\x01 broken"], partition=0)
    topic.send(ORDER, [{"id": 2, "note": "b"}], partition=0)
    name = topic.spec.name

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["tableflow", *arguments])

    enabled(name)
    wait_until(lambda: read_status(settings(), name).suspended, PATIENCE_SECONDS)
    for partition, offset, reason in (("0", "3", "ends at offset 3"), ("7", "0", "no such part")):
        refused = run("skip", name, partition, offset)
        assert refused.exit_code != 0
        assert reason in str(refused.exception)
    done = run("skip", name, "0", "1", "--reason", "half a record")
    assert done.exit_code == 0, done.output
    wait_until(lambda: read_status(settings(), name).rows_skipped == 1, PATIENCE_SECONDS)
    assert topic.rows("id") == [{"id": 1}, {"id": 2}]
    status = read_status(settings(), name)
    assert (status.records_read, status.rows_committed, status.records_skipped) == (2, 2, 1)
    shown = run("status", name).output
    assert "partition 0, offset 1: skipped by" in shown
    assert "reason: half a record" in shown
    assert "skipped already" in run("skip", name, "0", "1").output
    assert "the table is already past this record" in str(run("skip", name, "0", "2").exception)


def recreate(topic: Topic, partitions: int) -> None:
    """Delete the topic, and create it again."""
    admin, name = topic.endpoints.kafka_admin(), topic.spec.name

    def is_there() -> bool:
        with suppress(kafka.NoSuchTopicError):
            return bool(kafka.topic_id(topic.endpoints, name))
        return False

    admin.delete_topics([name])[name].result(30)
    wait_until(lambda: not is_there(), 30)
    admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(30)
    wait_until(is_there, 30)


def test_table_goes_on_with_other_logs_while_the_engine_runs(
    make_topic: Callable[..., Topic], enabled: Callable[[str], None]
) -> None:
    """Read again, created again with more partitions, moved to other offsets, and deleted."""
    topic, target = make_topic(), f"errors-{uuid.uuid4().hex[:8]}"
    name, endpoints, config = topic.spec.name, topic.endpoints, settings()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["tableflow", *arguments])

    def shown() -> str:
        return " ".join(run("status", name).output.split())

    def sent(first: int, number: int) -> None:
        topic.send(ORDER, [{"id": first + i, "note": "x"} for i in range(number)])

    def is_suspended(reason: str) -> None:
        wait_until(lambda: read_status(config, name).suspended, PATIENCE_SECONDS)
        message = str(read_status(config, name).error_message)
        assert reason in message
        assert f"topicberg tableflow continue {name}" in message

    def goes_on(rows: list[int], *arguments: str) -> None:
        done = run("continue", name, "--yes", *arguments)
        assert done.exit_code == 0, f"{done.output} {done.exception}"
        wait_until(lambda: len(topic.rows("id")) == len(rows), PATIENCE_SECONDS)
        assert sorted(row["id"] for row in topic.rows("id")) == sorted(rows)
        wait_until(lambda: read_status(config, name).shown_phase == "RUNNING", PATIENCE_SECONDS)

    sent(0, 20)
    topic.send_raw([b"\x01 broken"], partition=0)
    enabled(name)
    assert run("enable", name, "--error-handling", "LOG", "--log-target", target).exit_code == 0
    wait_until(lambda: read_status(config, name).records_dead_lettered == 1, PATIENCE_SECONDS)
    assert "nothing to decide" in run("continue", name).output
    goes_on([*range(20)] * 2, "--from", "beginning")
    ((letters,),) = [kafka.high_watermarks(endpoints, target).values()]
    read = [*consumer.messages(endpoints, target, {0: (0, letters)}, may_end_early=True)]
    assert len({m.key() for m in read}) == 1
    assert len(read) == 2, "the record is one of each log"

    recreate(topic, 3)
    is_suspended("deleted and recreated")
    refused = run("continue", name)
    assert "cannot be proved" in str(refused.exception)
    sent(20, 5)
    assert run("continue", name, "--from", "beginning", "--dry-run").exit_code == 0
    assert "1 log ended before it" in shown()
    goes_on([*[*range(20)] * 2, *range(20, 25)], "--from", "beginning")
    assert "let the table go on with another log" in shown()
    assert "2 logs ended before it" in shown()

    ends, begin = kafka.end_offsets(endpoints, name), kafka.beginning_offsets(endpoints, name)
    read = [*consumer.messages(endpoints, name, {p: (begin[p], e) for p, e in ends.items()})]
    recreate(topic, 3)
    producer = Producer({**endpoints.kafka_config(), "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    for message in read:  # each is followed by the marker of its transaction
        producer.begin_transaction()
        place, time_ms = message.partition() or 0, message.timestamp()[1]
        producer.produce(name, message.value(), message.key(), place, timestamp=time_ms)
        producer.commit_transaction(30)
    topic.wait_for_markers()
    sent(25, 5)
    is_suspended("deleted and recreated")
    goes_on([*[*range(20)] * 2, *range(20, 30)])

    assert run("disable", name).exit_code == 0
    topic.send(ORDER, [{"id": 30 + i, "note": "x"} for i in range(4)], partition=0)
    last = TopicPartition(name, 0, kafka.end_offsets(endpoints, name)[0] - 1)
    admin = kafka.admin_client(endpoints, writes=True)  # which has to live until it has answered
    admin.delete_records([last])[last].result(30)
    assert run("enable", name).exit_code == 0
    is_suspended("3 records were deleted before they were read")
    goes_on([*[*range(20)] * 2, *range(20, 30), 33])


@pytest.fixture
def topic(stack: Endpoints) -> str:
    name = f"fenced_{uuid.uuid4().hex[:8]}"
    admin = kafka.admin_client(stack)  # which has to live until it has answered
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


@pytest.mark.parametrize("seconds", [0, 2])
def test_fenced_producer_reports_another_one(stack: Endpoints, topic: str, seconds: float) -> None:
    """It may notice while it still produces: librdkafka then says only that an error is fatal."""
    first, second = (transactional_producer(topic, stack, 60) for _ in range(2))

    def send() -> None:
        with transaction_errors("topic", hint="none"):
            first.begin_transaction()
            for number in range(3):
                kafka.produce(first, topic, b"%d" % number, None)
                time.sleep(seconds)
            first.commit_transaction(30)

    with pytest.raises(CommitConflictError, match="another producer took over"):
        send()
    second.begin_transaction()
    kafka.produce(second, topic, b"new", None)
    second.commit_transaction(30)
    # A record, and the marker of its transaction, which the broker writes a moment later.
    wait_until(lambda: kafka.end_offsets(stack, topic) == {0: 2}, 20)
