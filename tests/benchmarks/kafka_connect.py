"""A Kafka Connect worker with Apache Iceberg's sink, as a contender of the ingest benchmark.

The worker and its plugins come from Maven Central: ``connect-runtime``, Iceberg's sink, and the
Avro converter of Apicurio, which reads Confluent's wire format from the stack's registry. One
standalone worker on 127.0.0.1 with as many tasks as there are cores; commits every second, so that
the last rows of a run wait for little.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import NewTopic
from lock_jars import Bundle
from pyiceberg.exceptions import NoSuchTableError

from topicberg.endpoints import Endpoints
from topicberg.iceberg.summaries import summary
from topicberg.settings import Settings

sys.path.append(str(Path(__file__).parents[1] / "support"))

import connect
from kafka_java import java_config

ICEBERG = "1.11.0"
HADOOP = "3.4.2"
COMMIT_MS = 1000
PLUGINS = {
    "iceberg": Bundle(
        transitive=True,
        coordinates=[
            f"org.apache.iceberg:iceberg-kafka-connect:{ICEBERG}",
            f"org.apache.iceberg:iceberg-aws:{ICEBERG}",
            f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",
            f"org.apache.iceberg:iceberg-parquet:{ICEBERG}",
            f"org.apache.iceberg:iceberg-orc:{ICEBERG}",
            "org.apache.avro:avro:1.12.1",  # the plugin's own POM asks for an older one
            f"org.apache.hadoop:hadoop-client-api:{HADOOP}",
            f"org.apache.hadoop:hadoop-client-runtime:{HADOOP}",
        ],
    ),
    "avro": connect.AVRO,
}


def rest_catalog(endpoints: Endpoints, config: Settings) -> dict[str, str]:
    """Return the properties of the stack's catalog for Iceberg's REST client in Java."""
    secrets = endpoints.s3_access_key, endpoints.s3_secret_key
    token = endpoints.iceberg_rest_token
    return {
        "uri": endpoints.iceberg_rest,
        "token": token.get_secret_value() if token else "",
        "token-refresh-enabled": "false",
        "warehouse": config.warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": config.aws_region,
        "s3.endpoint": endpoints.s3 or "",
        "s3.path-style-access": "true",
        "s3.access-key-id": secrets[0].get_secret_value() if secrets[0] else "",
        "s3.secret-access-key": secrets[1].get_secret_value() if secrets[1] else "",
    }


class Worker:
    """Iceberg's sink in a running worker."""

    def __init__(self, worker: connect.Worker, endpoints: Endpoints, config: Settings) -> None:
        self._worker = worker
        self._endpoints = endpoints
        self._config = config

    def ingest(self, topic: str, records: int, table: tuple[str, str]) -> None:
        """Wait until a new connector has committed all records to a new table."""
        catalog = self._endpoints.catalog(self._config)
        name = table[1]
        control = f"control-{name}"
        admin = self._endpoints.kafka_admin()
        admin.create_topics([NewTopic(control, 1)])[control].result(30)
        self._worker.create(name, self._sink(topic, ".".join(table), control))
        try:
            while True:
                self._worker.check(name)
                try:
                    head = catalog.load_table(table).current_snapshot()
                except NoSuchTableError:
                    head = None
                if head and int(summary(head).get("total-records", 0)) >= records:
                    return
                time.sleep(0.1)
        finally:
            self._worker.delete(name)
            admin.delete_topics([control])[control].result(30)

    def _sink(self, topic: str, table: str, control: str) -> dict[str, str]:
        catalog = rest_catalog(self._endpoints, self._config)
        return {
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": str(os.cpu_count() or 1),
            "topics": topic,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            **connect.avro_converter("value", self._endpoints.schema_registry),
            "iceberg.tables": table,
            "iceberg.tables.auto-create-enabled": "true",
            "iceberg.control.topic": control,
            "iceberg.control.commit.interval-ms": str(COMMIT_MS),
            "consumer.override.auto.offset.reset": "earliest",
            "consumer.override.max.poll.records": "20000",
            "iceberg.catalog.type": "rest",
            **{f"iceberg.catalog.{key}": value for key, value in catalog.items()},
        }


@contextmanager
def worker(folder: Path, endpoints: Endpoints, config: Settings) -> Iterator[Worker]:
    """Run a worker for Iceberg's sink until the block ends."""
    with connect.worker(folder, java_config(endpoints), PLUGINS) as one:
        yield Worker(one, endpoints, config)
