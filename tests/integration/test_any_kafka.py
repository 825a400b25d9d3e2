"""The cloud deployment with topicberg's engine: any Kafka, any registry, no Confluent Cloud."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from found_topics import AVRO_TOPIC
from kafka_topics import ORDER, Topic
from waiting import wait_until

from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.kafka import topics as kafka
from topicberg.orchestration.resources import Lakehouse
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.status import read_status

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(stack: Endpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Topic]:
    """A topic that only this deployment materializes; its addresses are those of the stack."""
    assert stack.s3
    assert stack.s3_access_key
    assert stack.s3_secret_key
    assert stack.iceberg_rest_token
    (tmp_path / "topics").mkdir(parents=True)  # no topic but ours
    name, bucket = f"orders_{uuid.uuid4().hex[:8]}", settings().bucket
    for variable, value in {
        "TOPICBERG_DEPLOYMENT": "cloud",
        "TOPICBERG_TABLEFLOW": "topicberg",
        "TOPICBERG_PROJECT_ROOT": str(tmp_path),
        "TOPICBERG_STATE_DIR": str(tmp_path / "state"),
        "TOPICBERG_BUCKET": bucket,
        "TOPICBERG_CLUSTER_ID": "elsewhere",
        "TOPICBERG_KAFKA_BOOTSTRAP": stack.kafka_bootstrap,
        "TOPICBERG_KAFKA_SECURITY_PROTOCOL": "PLAINTEXT",
        "TOPICBERG_KAFKA_API_KEY": "",  # as example.env has it
        "TOPICBERG_SCHEMA_REGISTRY_URL": stack.schema_registry,
        "TOPICBERG_ICEBERG_REST_URI": stack.iceberg_rest,
        "TOPICBERG_ICEBERG_REST_TOKEN": stack.iceberg_rest_token.get_secret_value(),
        "TOPICBERG_S3_ENDPOINT": stack.s3,
        "TOPICBERG_SPARK_REMOTE": stack.spark_connect,
        "TOPICBERG_SNOWFLAKE_ACCOUNT": "a",
        "TOPICBERG_SNOWFLAKE_USER": "u",
        "TOPICBERG_SNOWFLAKE_PASSWORD": "p",
        "AWS_ACCESS_KEY_ID": stack.s3_access_key.get_secret_value(),
        "AWS_SECRET_ACCESS_KEY": stack.s3_secret_key.get_secret_value(),
    }.items():
        monkeypatch.setenv(variable, value)
    settings.cache_clear()
    admin = stack.kafka_admin()
    admin.create_topics([NewTopic(name, 2)])[name].result(30)
    schema = Schema(json.dumps(ORDER), "AVRO")
    stack.schema_registry_client().register_schema(f"{name}-value", schema)
    control.enable(settings(), name, {"commit_interval_seconds": 1}, discovered=AVRO_TOPIC)
    spec = control.find_topic(settings(), name)
    yield Topic(load_endpoints(), spec, settings())
    catalog = stack.catalog()
    catalog.purge_table(spec.table_identifier(settings()))
    catalog.drop_namespace(settings().cluster_id)
    settings.cache_clear()


def committed(topic: Topic) -> int:
    """Return how many records the engine says that the table has."""
    return sum(read_status(settings(), topic.spec.name).end_offsets.values())


def test_the_engine_serves_it(topic: Topic) -> None:
    command = [str(Path(sys.executable).with_name("topicberg")), "tableflow", "serve"]
    topic.send(ORDER, [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}])
    with subprocess.Popen(command) as engine:
        try:
            table = Lakehouse().ingest(topic.spec, lambda _: None)
            assert table.scan().to_arrow().num_rows == 2
            topic.send(ORDER, [{"id": 3, "note": "c"}])
            wait_until(lambda: len(topic.rows("id")) == 3)
            # The status is written after the commit. Until the engine runs, the test ingests.
            wait_until(lambda: committed(topic) == 3)
            status = Lakehouse().status(topic.spec)
            assert status is not None
            assert status.phase == "RUNNING"
            assert status.rows_committed
        finally:
            engine.terminate()
            assert engine.wait(30) == 0
    assert sum(kafka.end_offsets(topic.endpoints, topic.spec.name).values()) == 3
