"""The cloud deployment with topicberg's engine: any Kafka, any registry, no Confluent Cloud."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from kafka_topics import ORDER, Topic
from waiting import wait_until

from resources import Lakehouse
from topicberg import kafka
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.errors import TopicbergError
from topicberg.settings import settings
from topicberg.tableflow import control
from topicberg.tableflow.status import read_status

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(stack: Endpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Topic]:
    """A topic that only this deployment materializes; its addresses are those of the stack."""
    assert stack.s3
    assert stack.s3_access_key
    assert stack.s3_secret_key
    name, bucket = f"orders_{uuid.uuid4().hex[:8]}", settings().bucket
    for variable, value in {
        "TOPICBERG_DEPLOYMENT": "cloud",
        "TOPICBERG_TABLEFLOW": "topicberg",
        "TOPICBERG_STATE_DIR": str(tmp_path),
        "TOPICBERG_BUCKET": bucket,
        "TOPICBERG_CLUSTER_ID": "elsewhere",
        "TOPICBERG_KAFKA_BOOTSTRAP": stack.kafka_bootstrap,
        "TOPICBERG_KAFKA_SECURITY_PROTOCOL": "PLAINTEXT",
        "TOPICBERG_KAFKA_API_KEY": "",  # as example.env has it
        "TOPICBERG_SCHEMA_REGISTRY_URL": stack.schema_registry,
        "TOPICBERG_ICEBERG_REST_URI": stack.iceberg_rest,
        "TOPICBERG_SPARK_REMOTE": stack.spark_connect,
        "TOPICBERG_SNOWFLAKE_ACCOUNT": "a",
        "TOPICBERG_SNOWFLAKE_USER": "u",
        "TOPICBERG_SNOWFLAKE_PASSWORD": "p",
        "AWS_ACCESS_KEY_ID": stack.s3_access_key.get_secret_value(),
        "AWS_SECRET_ACCESS_KEY": stack.s3_secret_key.get_secret_value(),
        "AWS_ENDPOINT_URL_S3": stack.s3,
        "AWS_ENDPOINT_URL": stack.s3,
    }.items():
        monkeypatch.setenv(variable, value)
    settings.cache_clear()
    stack.kafka_admin().create_topics([NewTopic(name, 2)])[name].result(30)
    control.enable(settings(), name, {"commit_interval_seconds": 1})
    spec = control.find_topic(settings(), name)
    yield Topic(load_endpoints(), spec, settings())
    identifier = spec.table_identifier(settings())
    stack.catalog().purge_table(identifier)
    settings.cache_clear()


def test_the_engine_serves_it(topic: Topic) -> None:
    command = [str(Path(sys.executable).with_name("topicberg")), "tableflow", "serve"]
    topic.send(ORDER, [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}])
    with subprocess.Popen(command) as engine:
        try:
            table = Lakehouse().ingest(topic.spec, lambda _: None)
            assert table.scan().to_arrow().num_rows == 2
            topic.send(ORDER, [{"id": 3, "note": "c"}])
            wait_until(lambda: len(topic.rows("id")) == 3)
            status = Lakehouse().status(topic.spec)
            assert status is not None
            assert status.phase == "RUNNING"
            assert read_status(settings(), topic.spec.name).rows_committed == 3
        finally:
            engine.terminate()
            assert engine.wait(30) == 0
    assert sum(kafka.end_offsets(topic.endpoints, topic.spec.name).values()) == 3


def test_without_an_address_it_says_which(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_KAFKA_BOOTSTRAP", "")
    with pytest.raises(TopicbergError, match="TOPICBERG_KAFKA_BOOTSTRAP"):
        load_endpoints()
    monkeypatch.undo()
