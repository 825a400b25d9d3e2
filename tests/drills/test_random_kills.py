"""Services of the stack are killed -9 at random while two topics fill: nothing lost, nothing twice.

Half a minute by default; TOPICBERG_TEST_KILL_MINUTES=30 for the long drill.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import uuid
from datetime import timedelta
from io import BytesIO
from typing import Any

import fastavro
import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema

from topicberg import kafka
from topicberg.endpoints import Endpoints
from topicberg.local import stack as local_stack
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.tableflow import control
from topicberg.tableflow.maintenance import Policy, maintain_table
from topicberg.tableflow.maintenance.orphans import remove_orphans
from topicberg.tableflow.subjects import wire_prefix
from topicberg.tableflow.wait import wait_for

MINUTES = float(os.environ.get("TOPICBERG_TEST_KILL_MINUTES", 0.5))
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(int(MINUTES * 60 + 900)),
]

SERVICES = ("kafka", "schema_registry", "s3", "iceberg_rest", "spark", "tableflow", "aws")
KEYS = 500
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "number", "type": "long"}, {"name": "text", "type": "string"}],
}


class Load(threading.Thread):
    """Produces to both topics until it is stopped, and knows what the tables must hold."""

    def __init__(self, endpoints: Endpoints, append: str, upsert: str, prefix: bytes) -> None:
        super().__init__()
        self.topics = append, upsert
        self.sent = 0
        self.newest: dict[str, int] = {}
        self.failures: list[str] = []
        self._prefix = prefix
        self._stop_requested = threading.Event()
        self._producer = Producer(
            {
                **endpoints.kafka_config(),
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
                "linger.ms": 20,
            }
        )

    def run(self) -> None:
        rng = random.Random(3)
        parsed = fastavro.parse_schema(json.loads(json.dumps(SCHEMA)))
        append, upsert = self.topics
        while not self._stop_requested.wait(0.05):
            for _ in range(50):
                buffer = BytesIO()
                fastavro.schemaless_writer(buffer, parsed, {"number": self.sent, "text": "x"})
                value = self._prefix + buffer.getvalue()
                self._send(append, value, b"%d" % (self.sent % 97))
                key = f"k{rng.randrange(KEYS)}"
                if rng.random() < 0.1:
                    self._send(upsert, None, key.encode())
                    self.newest.pop(key, None)
                else:
                    self._send(upsert, value, key.encode())
                    self.newest[key] = self.sent
                self.sent += 1
        assert self._producer.flush(300) == 0

    def stop(self) -> None:
        self._stop_requested.set()
        self.join()

    def _send(self, topic: str, value: bytes | None, key: bytes) -> None:
        kafka.produce(self._producer, topic, value, key, self._delivered)

    def _delivered(self, error: Any, _message: object) -> None:
        if error is not None:
            self.failures.append(str(error))


def test_random_kills(stack: Endpoints) -> None:
    config, mark = settings(), uuid.uuid4().hex[:6]
    append, upsert = f"kills_append_{mark}", f"kills_upsert_{mark}"
    registry = stack.schema_registry_client()
    admin = stack.kafka_admin()
    for name in (append, upsert):
        admin.create_topics([NewTopic(name, 3)])[name].result(30)
        schema_id = registry.register_schema(f"{name}-value", Schema(json.dumps(SCHEMA), "AVRO"))
    cadence = {"commit_interval_seconds": 2}
    control.enable(config, append, cadence)
    control.enable(config, upsert, cadence, "upsert")
    load = Load(stack, append, upsert, wire_prefix(schema_id))
    load.start()
    rng = random.Random(5)
    killed: list[str] = []
    until = time.monotonic() + MINUTES * 60
    while time.monotonic() < until:
        time.sleep(rng.uniform(3, 8))
        name = rng.choice(SERVICES)
        running = {s.name: s.pid for s in local_stack.status(config) if s.running}
        if pid := running.get(name):
            psutil.Process(pid).kill()
            killed.append(name)
    load.stop()
    local_stack.up(config)  # waits until everything serves again
    assert load.failures == []
    catalog = stack.catalog(config)
    for name in (append, upsert):
        table = catalog.load_table((config.cluster_id, name))
        assert wait_for(table, kafka.end_offsets(stack, name), patience=120), (name, killed)
        control.disable(config, name)
    found = run_query(
        f'SELECT count(*), count(DISTINCT number) FROM lake."{config.cluster_id}".{append}',
        "duckdb",
        stack,
        config,
    )
    assert found.rows == [(load.sent, load.sent)], killed
    found = run_query(
        f'SELECT key, number FROM lake."{config.cluster_id}".{upsert}',
        "duckdb",
        stack,
        config,
    )
    assert len(found.rows) == len(load.newest), killed
    assert {bytes(key).decode(): number for key, number in found.rows} == load.newest, killed
    time.sleep(3)  # the engine has let go of both
    at_once = timedelta(0)
    for name in (append, upsert):
        table = catalog.load_table((config.cluster_id, name))
        policy = Policy(staged_age=at_once, orphan_age=at_once, daily=at_once)
        maintain_table(table, stack, policy)
        assert remove_orphans(table.refresh(), at_once) == 0
        table.catalog.purge_table(table.name())
