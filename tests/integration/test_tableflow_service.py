"""The engine's service, as `topicberg tableflow` steers it, and topics that have no spec."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from found_topics import AVRO_TOPIC
from kafka_topics import ORDER, Topic
from typer.testing import CliRunner, Result
from waiting import wait_until

from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.formats.framing import wire_prefix
from topicberg.kafka import topics as kafka
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.status import read_status
from topicberg.tableflow.service.wait import wait_for
from topicberg.topics import requests

pytestmark = pytest.mark.integration
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
    assert topic not in stack.kafka_admin().list_topics(timeout=10).topics


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
    again = run("skip", name, "0", "1")
    assert "skipped already" in again.output
    late = run("skip", name, "0", "2")
    assert "the table is already past this record" in str(late.exception)
