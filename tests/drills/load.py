"""Two topics that fill while things break: one appends, one upserts; and what they must hold."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from found_topics import AVRO_TOPIC
from pyiceberg.table import Table

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.tables import sync
from topicberg.endpoints import Endpoints
from topicberg.formats.framing import wire_prefix
from topicberg.kafka import topics as kafka
from topicberg.query import run_query
from topicberg.settings import Settings, settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.wait import wait_for

KEYS = 500
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "number", "type": "long"}, {"name": "text", "type": "string"}],
}


class Load(threading.Thread):
    """Produces to both topics until it is stopped, and knows what the tables must hold."""

    def __init__(self, endpoints: Endpoints, name: str, rate: int = 1000) -> None:
        """Make and materialize ``<name>_append_…`` and ``<name>_upsert_…``.

        :param rate: records a second for each of them
        """
        super().__init__(daemon=True)
        mark = uuid.uuid4().hex[:6]
        self.append, self.upsert = f"{name}_append_{mark}", f"{name}_upsert_{mark}"
        self.endpoints = endpoints
        self.config: Settings = settings()
        self.sent = 0
        self.newest: dict[str, int] = {}
        self.failures: list[str] = []
        self._rate = rate
        self._go, self._idle, self._over = (threading.Event() for _ in range(3))
        self._producer = Producer(
            {
                **endpoints.kafka_config(),
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
                "linger.ms": 20,
            }
        )
        registry, admin = endpoints.schema_registry_client(), endpoints.kafka_admin()
        for topic in self.topics:
            admin.create_topics([NewTopic(topic, 3)])[topic].result(30)
            schema = Schema(json.dumps(SCHEMA), "AVRO")
            self._prefix = wire_prefix(registry.register_schema(f"{topic}-value", schema))
        cadence = {"commit_interval_seconds": 2}
        control.enable(self.config, self.append, cadence, discovered=AVRO_TOPIC)
        control.enable(self.config, self.upsert, cadence, "upsert", discovered=AVRO_TOPIC)

    @property
    def topics(self) -> tuple[str, str]:
        return self.append, self.upsert

    def run(self) -> None:
        rng, parsed = random.Random(3), fastavro.parse_schema(json.loads(json.dumps(SCHEMA)))
        before = time.monotonic()
        while not self._over.wait(0.05):
            passed, before = time.monotonic() - before, time.monotonic()
            if not self._go.is_set():
                self._producer.flush(1)
                if not len(self._producer):
                    self._idle.set()
                continue
            for _ in range(int(self._rate * min(passed, 1))):
                buffer = BytesIO()
                fastavro.schemaless_writer(buffer, parsed, {"number": self.sent, "text": "x"})
                value = self._prefix + buffer.getvalue()
                self._send(self.append, value, b"%d" % (self.sent % 97))
                key = f"k{rng.randrange(KEYS)}"
                if rng.random() < 0.1:
                    self._send(self.upsert, None, key.encode())
                    self.newest.pop(key, None)
                else:
                    self._send(self.upsert, value, key.encode())
                    self.newest[key] = self.sent
                self.sent += 1

    def go(self) -> None:
        """Produce, from now on."""
        self._idle.clear()
        self._go.set()

    def pause(self) -> None:
        """Produce no more; returns when the broker has acknowledged everything."""
        self._go.clear()
        assert self._idle.wait(300), "Kafka acknowledges nothing"
        assert self.failures == []

    def close(self) -> None:
        """Stop for good: both topics are not materialized any more."""
        self._over.set()
        self.join()
        for topic in self.topics:
            control.disable(self.config, topic)

    def table(self, topic: str) -> Table:
        return self.endpoints.catalog(self.config).load_table((self.config.cluster_id, topic))

    def caught_up(self, patience: float = 120) -> bool:
        """Wait until both tables are there and hold what the topics hold."""
        deadline, catalog = time.monotonic() + patience, self.endpoints.catalog(self.config)
        while not all(catalog.table_exists((self.config.cluster_id, t)) for t in self.topics):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return all(
            wait_for(self.table(topic), kafka.end_offsets(self.endpoints, topic), patience)
            for topic in self.topics
        )

    def lost_and_twice(self) -> tuple[int, int]:
        """Rows that are missing or wrong, and rows that should not be there, in both tables."""
        ((rows, distinct, right),) = run_query(
            f"SELECT count(*), count(DISTINCT number), count(DISTINCT number) FILTER "
            f'(number BETWEEN 0 AND {self.sent - 1}) FROM lake."{self.config.cluster_id}"'
            f".{self.append}",
            "duckdb",
            self.endpoints,
            self.config,
        ).rows
        lost, twice = self.sent - right, (rows - distinct) + (distinct - right)
        scan = self.table(self.upsert).scan(selected_fields=("key", "number"))
        held = scan.to_arrow().to_pylist()
        found = {row["key"].decode(): row["number"] for row in held}
        lost += sum(found.get(key) != number for key, number in self.newest.items())
        twice += len(held) - len(found) + len(found.keys() - self.newest.keys())
        return lost, twice

    def to_snowflake(self) -> int:
        """The append topic's table to Glue and Snowflake, as its assets do it; rows there."""
        import snowflake.connector

        at = (self.config.cluster_id, self.append)
        glue.register(self.endpoints.boto3("glue", self.config), self.table(self.append), *at)
        account = self.endpoints.snowflake.model_dump()
        account["password"] = self.endpoints.snowflake.password.get_secret_value()
        with snowflake.connector.connect(**account, login_timeout=10) as connection:
            location = self.table(self.append).location()
            return sync(connection, self.config, self.append.upper(), at, location).rows

    def _send(self, topic: str, value: bytes | None, key: bytes) -> None:
        kafka.produce(self._producer, topic, value, key, self._delivered)

    def _delivered(self, error: Any, _message: object) -> None:
        if error is not None:
            self.failures.append(str(error))


@contextmanager
def paused_load(stack: Endpoints, name: str, rate: int) -> Iterator[Load]:
    """Topics whose tables hold what came so far; they are deleted at the end."""
    load = Load(stack, name, rate=rate)
    load.start()
    load.go()
    load.pause()
    assert load.caught_up()
    yield load
    load.close()
    time.sleep(3)  # the engine has let go of both
    for topic in load.topics:
        load.table(topic).catalog.purge_table((load.config.cluster_id, topic))
