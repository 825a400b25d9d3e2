"""What a fleet of topics costs: idle, while small batches arrive, and at the start.

    python tests/benchmarks/fleet.py [--topics 10 50 200] [--seconds 60] [--busy 50] [--rate 1]

needs a running stack with nothing else to do (``TOPICBERG_STATE_DIR``). Each topic has one
partition, an Avro value and ten records. The fleet grows from one size to the next. The table shows
for each size:

- seconds until all tables have their records;
- idle: the share of a core that each service takes;
- busy: ``--rate`` records a second in each of ``--busy`` topics. Commits a second, and the CPU time
  of all services together for one commit;
- memory of the engine and of Spark.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import fastavro
import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from rich.console import Console
from rich.table import Table

from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.formats.subjects import wire_prefix
from topicberg.local import stack
from topicberg.settings import Settings, settings
from topicberg.tableflow import control
from topicberg.tableflow.status import TopicStatus, read_status

RECORDS = 10
PATIENCE_SECONDS = 1800.0
SETTLE_SECONDS = 15.0
SERVICES = ("tableflow", "kafka", "schema_registry", "iceberg_rest", "s3", "spark")
TRADE = {
    "type": "record",
    "name": "Trade",
    "fields": [
        {"name": "side", "type": "string"},
        {"name": "quantity", "type": "int"},
        {"name": "symbol", "type": "string"},
        {"name": "price", "type": "int"},
        {"name": "account", "type": "string"},
        {"name": "userid", "type": "string"},
    ],
}


@dataclass(frozen=True)
class Use:
    """What the services have used so far. ``cpu``: seconds, ``memory``: bytes; by service."""

    cpu: dict[str, float]
    memory: dict[str, int]

    def since(self, before: Use) -> dict[str, float]:
        return {name: self.cpu[name] - before.cpu[name] for name in SERVICES}


def use(config: Settings) -> Use:
    cpu, memory = dict.fromkeys(SERVICES, 0.0), dict.fromkeys(SERVICES, 0)
    for service in stack.status(config):
        if service.name not in SERVICES or service.pid is None:
            continue
        process = psutil.Process(service.pid)
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            cpu[service.name] += times.user + times.system
            memory[service.name] += one.memory_info().rss
    return Use(cpu, memory)


class Fleet:
    """Topics ``fleet_0000`` and so on."""

    def __init__(self, endpoints: Endpoints, config: Settings) -> None:
        self.endpoints, self.config = endpoints, config
        self.topics: list[str] = []
        self._producer = Producer({**endpoints.kafka_config(), "linger.ms": 50})
        self._parsed = fastavro.parse_schema(TRADE)
        self._prefix: dict[str, bytes] = {}

    def grow(self, size: int) -> None:
        """Create the missing topics with their records, and enable them."""
        new = [f"fleet_{number:04}" for number in range(len(self.topics), size)]
        admin = self.endpoints.kafka_admin()
        for future in admin.create_topics([NewTopic(name, 1) for name in new]).values():
            future.result(120)
        registry = self.endpoints.schema_registry_client()
        schema = Schema(json.dumps(TRADE), "AVRO")
        for name in new:
            self._prefix[name] = wire_prefix(registry.register_schema(f"{name}-value", schema))
        self.topics += new
        for number in range(RECORDS):
            self.send(new, number)
        for name in new:
            control.enable(self.config, name)

    def send(self, topics: Sequence[str], number: int) -> None:
        """Send one record to each of these topics."""
        for name in topics:
            buffer = BytesIO(self._prefix[name])
            buffer.seek(0, 2)
            trade = {"side": "BUY", "quantity": number, "symbol": "ZVZZT", "price": 100}
            row = {**trade, "account": "ABC123", "userid": f"User_{number}"}
            fastavro.schemaless_writer(buffer, self._parsed, row)
            self._producer.produce(name, buffer.getvalue(), str(number).encode())
        assert self._producer.flush(60) == 0

    def statuses(self) -> list[TopicStatus]:
        return [read_status(self.config, name) for name in self.topics]

    def wait(self, records: int) -> float:
        """Wait until every table has so many records; return the seconds."""
        began = time.monotonic()
        while True:
            found = self.statuses()
            if all(sum(status.end_offsets.values()) >= records for status in found):
                return time.monotonic() - began
            if time.monotonic() > began + PATIENCE_SECONDS:
                late = [s.topic for s in found if sum(s.end_offsets.values()) < records]
                raise SystemExit(f"{len(late)} topics are late, e.g. {late[0]}")
            time.sleep(0.5)

    def remove(self) -> None:
        for name in self.topics:
            control.disable(self.config, name)


def idle(config: Settings, seconds: float) -> dict[str, float]:
    """Return the share of a core that each service takes while nothing happens."""
    time.sleep(SETTLE_SECONDS)
    before, began = use(config), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {name: used / took for name, used in use(config).since(before).items()}


def busy(fleet: Fleet, topics: int, rate: float, seconds: float) -> tuple[float, dict[str, float]]:
    """Return commits a second, and the CPU seconds of each service for one commit.

    :param rate: records a second in each of these topics
    """
    some = fleet.topics[:topics]

    def commits() -> int:
        return sum(status.commits for status in fleet.statuses())

    before, committed, began, number = use(fleet.config), commits(), time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < seconds:
        if number > elapsed * rate:
            time.sleep(min(0.1, number / rate - elapsed))
            continue
        fleet.send(some, number)
        number += 1
    took = time.monotonic() - began
    done = max(1, commits() - committed)
    used = use(fleet.config).since(before)
    return done / took, {name: cpu / done for name, cpu in used.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--topics", type=int, nargs="+", default=[10, 50, 200])
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--busy", type=int, default=50)
    arguments.add_argument("--rate", type=float, default=1.0)
    given = arguments.parse_args()
    config = settings()
    fleet = Fleet(load_endpoints(config), config)
    shown = Table("topics", "tables after", "measured", *SERVICES, "all", "")
    try:
        for size in given.topics:
            fleet.grow(size)
            after = f"{fleet.wait(RECORDS):.0f} s"
            shares = idle(config, given.seconds)
            cells = [f"{share:.1%}" for share in (*shares.values(), sum(shares.values()))]
            shown.add_row(str(size), after, "idle, share of a core", *cells, "")
            rate, costs = busy(fleet, min(size, given.busy), given.rate, given.seconds)
            cells = [f"{cost:.3f}" for cost in (*costs.values(), sum(costs.values()))]
            label = f"busy ({min(size, given.busy)} topics), CPU s a commit"
            shown.add_row(str(size), "", label, *cells, f"{rate:.1f} commits/s")
            memory = use(config).memory.values()
            cells = [f"{size / 2**20:.0f} MB" for size in (*memory, sum(memory))]
            shown.add_row(str(size), "", "memory", *cells, "")
            Console(width=200).print(shown)
    finally:
        fleet.remove()


if __name__ == "__main__":
    main()
