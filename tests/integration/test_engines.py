"""Several engines share the topics; one that is killed loses none and doubles none."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from found_topics import AVRO_TOPIC
from kafka_topics import ORDER, encode
from typer.testing import CliRunner
from waiting import wait_until

from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.formats.framing import wire_prefix
from topicberg.kafka.group import PARTITIONS, holders, partition_of
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.status import read_status
from topicberg.tableflow.values.identity import engine_group

pytestmark = [pytest.mark.integration, pytest.mark.project]
logger = logging.getLogger(__name__)
PATIENCE_SECONDS = 180
TAKE_OVER_SECONDS = 30


def spread_names(topics: int) -> tuple[str, list[str]]:
    """Return a new mark, and names with it of which each of two engines has some. An engine gets
    the first half of the partitions or the second one, or every other one. Of four names that are
    not chosen, one engine has all in an eighth of the runs."""
    while True:
        mark = uuid.uuid4().hex[:6]
        names = [f"shared_{mark}_{number:02}" for number in range(topics)]
        places = [partition_of(name, PARTITIONS) for name in names]
        halves = {place < PARTITIONS // 2 for place in places}
        if len(halves) == len({place % 2 for place in places}) == 2:
            return mark, names


class Load(threading.Thread):
    """Records of many topics, until it is stopped; of one topic every 50th one is malformed."""

    def __init__(self, endpoints: Endpoints, topics: int, rate: float, interval: float) -> None:
        """:param rate: records a second in each topic
        :param interval: seconds between two commits of a topic
        """
        super().__init__(daemon=True)
        self.endpoints, self._rate = endpoints, rate
        mark, self.names = spread_names(topics)
        self.upsert, self.logged = self.names[1], self.names[0]
        self.error_log = f"errors_{mark}"
        self.sent = 0
        self._over = threading.Event()
        admin, registry = endpoints.kafka_admin(), endpoints.schema_registry_client()
        for future in admin.create_topics([NewTopic(name, 2) for name in self.names]).values():
            future.result(60)
        schema = Schema(json.dumps(ORDER), "AVRO")
        for name in self.names:
            prefix = wire_prefix(registry.register_schema(f"{name}-value", schema))
        self._prefix = prefix
        self._producer = Producer({**endpoints.kafka_config(), "linger.ms": 20})
        for name in self.names:
            settings_: dict[str, object] = {"commit_interval_seconds": interval}
            if name == self.logged:
                settings_["error_handling"] = {"mode": "LOG", "target": self.error_log}
            mode = "upsert" if name == self.upsert else "append"
            control.enable(settings(), name, settings_, mode, discovered=AVRO_TOPIC)  # type: ignore[arg-type]

    def run(self) -> None:
        parsed, began = fastavro.parse_schema(ORDER), time.monotonic()
        while not self._over.is_set():
            if self.sent > (time.monotonic() - began) * self._rate:
                time.sleep(0.01)
                continue
            value = self._prefix + encode(parsed, {"id": self.sent, "note": "x" * 50})
            for name in self.names:
                bad = name == self.logged and self.sent % 50 == 0
                key = str(self.sent % 20).encode()
                self._producer.produce(name, b"\x01bad" if bad else value, key)
                self._producer.poll(0)
            self.sent += 1

    def stop(self) -> None:
        self._over.set()
        self.join()
        assert self._producer.flush(60) == 0

    def held(self, name: str) -> int:
        return sum(read_status(settings(), name).end_offsets.values())

    def rows(self, name: str) -> list[int]:
        table = self.endpoints.catalog(settings()).load_table((settings().cluster_id, name))
        return sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())

    def letters(self) -> int:
        catalog = self.endpoints.catalog(settings())
        return catalog.load_table((settings().cluster_id, self.error_log)).scan().count()

    def check(self) -> None:
        """Wait for the rest, and compare every table with what was sent."""
        wait_until(
            lambda: all(self.held(name) >= self.sent for name in self.names), PATIENCE_SECONDS
        )
        bad = list(range(0, self.sent, 50))
        # Offsets count the markers of transactions too, so they do not tell.
        wait_until(lambda: self.letters() >= len(bad), PATIENCE_SECONDS)
        for name in self.names:
            expected = list(range(self.sent))
            if name == self.logged:
                expected = [number for number in expected if number % 50]
            elif name == self.upsert:
                expected = expected[-20:]
            assert self.rows(name) == expected, name
        assert self.letters() == len(bad)

    def close(self) -> None:
        self._over.set()
        for name in (*self.names, self.error_log):
            control.disable(settings(), name)


@contextmanager
def engine() -> Iterator[subprocess.Popen[bytes]]:
    """One more engine on this machine."""
    log = settings().state_dir / "second-engine.log"
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "topicberg.tableflow.service.service"], stderr=stream
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait(30)


def shares(load: Load) -> dict[str, str]:
    return holders(load.endpoints, engine_group(settings()), load.names)


def moving(load: Load, patience: float) -> float:
    """Wait until every table has more records than now; return the seconds."""
    began, before = time.monotonic(), {name: load.held(name) for name in load.names}
    wait_until(lambda: all(load.held(n) > before[n] for n in load.names), patience, 0.2)
    return time.monotonic() - began


def run(stack: Endpoints, topics: int, rate: float, interval: float) -> None:
    load = Load(stack, topics, rate, interval)
    load.start()
    try:
        wait_until(lambda: all(load.held(name) for name in load.names), PATIENCE_SECONDS)
        assert len(set(shares(load).values())) == 1
        with engine() as second:
            wait_until(lambda: len(set(shares(load).values())) == 2, 60)
            took = moving(load, PATIENCE_SECONDS)
            logger.info("moving %.1f s after the second engine came", took)
            found = shares(load)
            wait_until(
                lambda: all(read_status(settings(), n).engine == found[n] for n in load.names), 60
            )
            shown = CliRunner().invoke(app, ["tableflow", "status", "--json"])
            assert shown.exit_code == 0, shown.output
            shown_engines = {each["topic"]: each["engine"] for each in json.loads(shown.stdout)}
            assert found.items() <= shown_engines.items()
            second.kill()
            took = moving(load, TAKE_OVER_SECONDS)
            logger.info("moving %.1f s after the second engine was killed", took)
        with engine() as second:
            wait_until(lambda: len(set(shares(load).values())) == 2, 60)
            moving(load, PATIENCE_SECONDS)
            second.terminate()
            assert second.wait(60) == 0
            took = moving(load, TAKE_OVER_SECONDS)
            logger.info("moving %.1f s after the second engine ended", took)
            assert len(set(shares(load).values())) == 1
        load.stop()
        load.check()
    finally:
        load.close()


def test_killed_engine_loses_and_doubles_nothing(stack: Endpoints) -> None:
    run(stack, 4, 10, 2)


@pytest.mark.slow
def test_killed_engine_of_a_fleet_loses_nothing(stack: Endpoints) -> None:
    run(stack, 50, 1, 10)


@pytest.mark.slow
def test_killed_engine_of_busy_topics_loses_nothing(stack: Endpoints) -> None:
    run(stack, 8, 10, 1)
