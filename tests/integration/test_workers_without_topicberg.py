"""Workers of Spark that have PySpark and PyArrow, and not topicberg: it is sent to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bare_python import bare_python
from confluent_kafka.schema_registry import Schema
from fuzz_protobuf import schema_and_records
from kafka_topics import Topic, avro
from pyspark.sql import SparkSession

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg.summaries import READER, summary
from topicberg.settings import settings
from topicberg.spark import new_session
from topicberg.tableflow.decode import sessions
from topicberg.tableflow.decode.sessions import Sessions, check_workers
from topicberg.tableflow.service.engine import Ingestor, spark_sessions

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MEMORY = 1024**3
COUNT = 300


@contextmanager
def _session(stack: Endpoints, python: Path) -> Iterator[SparkSession]:
    session = new_session(stack.spark_connect, {"spark.sql.execution.pyspark.python": str(python)})
    try:
        yield session
    finally:
        session.stop()


def test_topicberg_is_sent_to_workers_that_lack_it(stack: Endpoints, tmp_path: Path) -> None:
    with _session(stack, bare_python(tmp_path)) as session:
        assert "No module named 'topicberg'" in sessions._lack(session, MEMORY)
        assert check_workers(session, MEMORY)
        assert not check_workers(session, MEMORY)


def test_reason_of_workers_that_nothing_helps(stack: Endpoints, tmp_path: Path) -> None:
    python = bare_python(tmp_path, without="pyarrow")
    with (
        _session(stack, python) as session,
        pytest.raises(TopicbergError, match=r"(?i)pyarrow") as error,
    ):
        check_workers(session, MEMORY)
    assert "Traceback" not in error.value.message


def test_workers_without_memory_are_said(stack: Endpoints, tmp_path: Path) -> None:
    python = bare_python(tmp_path)
    with _session(stack, python) as session, pytest.raises(TopicbergError, match="memory"):
        check_workers(session, 2**45)


def _rows(topic: Topic, engine: str, pool: Sessions | None = None) -> list[str]:
    """Return the rows of a table of a topic that Spark or processes read."""
    tableflow = topic.spec.tableflow.model_copy(update={"engine": engine})
    spec = topic.spec.model_copy(update={"tableflow": tableflow})
    ingestor = Ingestor(spec, topic.endpoints, topic.config, sessions=pool)
    try:
        ingestor.step()
    finally:
        ingestor.close()
    table = topic.table()
    head = table.current_snapshot()
    assert head is not None
    assert summary(head)[READER] == ("process" if pool is None else "spark")
    rows = table.scan().to_arrow().to_pylist()
    topic.endpoints.catalog(topic.config).purge_table(spec.table_identifier(topic.config))
    return sorted(map(repr, rows))


def _avro(make_topic: Callable[..., Topic], **options: str) -> Topic:
    topic = make_topic({"retention.ms": "-1"}, **options)
    schema = avro({"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]})
    rows = [{"id": n, "note": None if n % 3 else f"ü{n}"} for n in range(COUNT)]
    topic.send(schema, rows, key=lambda n: f"{n % 70}".encode())
    return topic


def _other(make_topic: Callable[..., Topic], name: str) -> Topic:
    topic = make_topic({"retention.ms": "-1"}, schema={"format": name, "file": "from-the-registry"})
    if name == "json":
        text = '{"type": "object", "properties": {"id": {"type": "integer"}, "é": {}}}'
        payloads = [b'{"id": %d, "\xc3\xa9": [1, {"a": null}]}' % n for n in range(COUNT)]
    else:
        sample = schema_and_records(random.Random(5), COUNT)
        text, payloads = sample.text, sample.payloads
    registry = topic.endpoints.schema_registry_client()
    number = registry.register_schema(topic.spec.value_subject, Schema(text, name.upper()))
    topic.send_raw([wire_prefix(number) + payload for payload in payloads])
    return topic


def test_rows_are_the_same_by_workers_that_were_sent_topicberg(
    stack: Endpoints,
    make_topic: Callable[..., Topic],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    python = str(bare_python(tmp_path))

    def new(remote: str, conf: dict[str, str]) -> SparkSession:
        return new_session(remote, {**conf, "spark.sql.execution.pyspark.python": python})

    monkeypatch.setattr(sessions, "new_session", new)
    pool, upserted = spark_sessions(stack, settings()), _avro(make_topic, write_mode="upsert")
    for topic in [_avro(make_topic), _other(make_topic, "json"), _other(make_topic, "protobuf")]:
        found = _rows(topic, "spark", pool)
        assert len(found) == COUNT
        assert found == _rows(topic, "auto")
    found = _rows(upserted, "spark", pool)
    assert len(found) == 70
    assert found == _rows(upserted, "auto")
