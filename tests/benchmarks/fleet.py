"""What a fleet of topics costs: idle, while small batches arrive, and at the start.

    python tests/benchmarks/fleet.py [--topics 10 50 200] [--seconds 60] [--busy 50] [--rate 1]

needs a running stack with nothing else to do (``TOPICBERG_STATE_DIR``). Each topic has one
partition, an Avro value and ten records. The fleet grows from one size to the next. The table shows
for each size:

- seconds until all tables have their records;
- idle: the share of a core that each service takes;
- busy: ``--rate`` records a second in each of ``--busy`` topics. Commits a second, and the CPU time
  of all services together for one commit;
- memory of the engine and of Spark;
- with ``--restart``: seconds until a killed engine has committed what arrived meanwhile.

    python tests/benchmarks/fleet.py --project /tmp/fleet [--topics 200] [--busy 40]

copies the project to this folder, with a spec for each topic of the fleet, and runs it with a stack
and Dagster of its own. It also shows:

- seconds from the first record until Snowflake has the records of all tables;
- what Dagster takes: its code server, its daemon and the runs, its web server;
- busy: seconds from a record in Kafka to its row in Snowflake, at the median and at the 99th
  percentile;
- with ``--restart`` also until Snowflake has those records.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import dagster as dg
import fastavro
import psutil
import snowflake.connector
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "support"))

from dagster_dev import dagster_dev
from project_copy import copy_project
from workloads import SMALL, quantile

from topicberg.catalogs.snowflake.names import quote
from topicberg.catalogs.snowflake.session import ask
from topicberg.dagster.home import dagster_home
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.formats.framing import wire_prefix
from topicberg.settings import Settings, settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.status import TopicStatus, read_status
from topicberg_local import stack

RECORDS = 10
PATIENCE_SECONDS = 1800.0
SERVICES = ("tableflow", "kafka", "schema_registry", "iceberg_rest", "s3", "spark")
ALL_SERVICES = (*SERVICES, "access_proxy", "aws", "snowflake", "confluent")
"""With those that only Dagster uses."""
DAGSTER = {"api grpc": "code server", "_daemon": "daemon", "forkserver": "runs", "webserver": "UI"}
SPEC = """\
name: {name}
pipeline: fleet_{pipeline}
description: Trades of one account.
schema: {{format: avro, file: fleet.avsc}}
key: {{format: string, field: userid}}
partitions: 1
owners: ["team:fleet"]
freshness: {{warn_minutes: 30, fail_minutes: 120}}
tableflow: {{commit_interval_seconds: 10}}
"""
PIPELINES = 10


@dataclass(frozen=True)
class Use:
    """What was used so far. ``cpu``: seconds, ``memory``: bytes; by service or part of Dagster."""

    cpu: dict[str, float]
    memory: dict[str, int]

    def since(self, before: Use) -> dict[str, float]:
        return {name: cpu - before.cpu.get(name, 0.0) for name, cpu in self.cpu.items()}


def use(config: Settings, dagster: psutil.Process | None = None) -> Use:
    names = SERVICES if dagster is None else (*ALL_SERVICES, *DAGSTER.values())
    cpu, memory = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)

    def count(name: str, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            cpu[name] += sum(process.cpu_times()[:4])  # with children that have ended
            memory[name] += process.memory_info().rss
            for child in process.children():
                count(name if dagster is None else _part(child) or name, child)

    for service in stack.status(config):
        if service.name in names and service.pid is not None:
            count(service.name, psutil.Process(service.pid))
    for child in dagster.children() if dagster else ():
        count(_part(child) or "UI", child)
    return Use(cpu, memory)


def _part(process: psutil.Process) -> str | None:
    command = " ".join(process.cmdline())
    return next((name for mark, name in DAGSTER.items() if mark in command), None)


class Fleet:
    """Topics ``fleet_0000`` and so on."""

    def __init__(self, endpoints: Endpoints, config: Settings, *, is_requested: bool) -> None:
        """:param is_requested: the topics have no specs"""
        self.endpoints, self.config, self.is_requested = endpoints, config, is_requested
        self.topics: list[str] = []
        self.sent: defaultdict[str, list[float]] = defaultdict(list)
        """Topic → when each of its records was sent."""
        self._producer = Producer({**endpoints.kafka_config(), "linger.ms": 50})
        self._prefix: dict[str, bytes] = {}

    def grow(self, size: int) -> float:
        """Create the missing topics with their records; return when the records were sent."""
        new = [_name(number) for number in range(len(self.topics), size)]
        admin = self.endpoints.kafka_admin()
        held = admin.list_topics(timeout=60).topics  # the stack creates the topics of specs
        missing = [NewTopic(name, 1) for name in new if name not in held]
        for future in (admin.create_topics(missing) if missing else {}).values():
            try:
                future.result(120)
            except KafkaException as error:  # the stack was faster
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        registry = self.endpoints.schema_registry_client()
        schema = Schema(json.dumps(SMALL.avro), "AVRO")
        for name in new:
            self._prefix[name] = wire_prefix(registry.register_schema(f"{name}-value", schema))
        self.topics += new
        began = time.monotonic()
        for _ in range(RECORDS):
            self.send(new)
        if self.is_requested:
            for name in new:
                control.enable(self.config, name)
        return began

    def send(self, topics: Sequence[str]) -> None:
        """Send one record to each of these topics."""
        for name in topics:
            buffer = BytesIO(self._prefix[name])
            buffer.seek(0, 2)
            number = len(self.sent[name])
            trade = {"side": "BUY", "quantity": number, "symbol": "ZVZZT", "price": 100}
            user = f"User_{number}"
            row = {**trade, "account": "ABC123", "userid": user}
            fastavro.schemaless_writer(buffer, SMALL.parsed, row)
            self._producer.produce(name, buffer.getvalue(), user.encode())
            self.sent[name].append(time.time())
        assert self._producer.flush(60) == 0

    def statuses(self) -> list[TopicStatus]:
        return [read_status(self.config, name) for name in self.topics]

    def wait(self, began: float) -> float:
        """Wait until every table has all records; return the seconds since."""
        while True:
            found = self.statuses()
            late = [s for s in found if sum(s.end_offsets.values()) < len(self.sent[s.topic])]
            if not late:
                return time.monotonic() - began
            if time.monotonic() > began + PATIENCE_SECONDS:
                raise SystemExit(f"{len(late)} topics are late, e.g. {late[0].topic}")
            time.sleep(0.5)

    def remove(self) -> None:
        for name in self.topics if self.is_requested else ():
            control.disable(self.config, name)


def _name(number: int) -> str:
    return f"fleet_{number:04}"


class InSnowflake:
    """What Snowflake has of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.schema = tuple(fleet.config.snowflake_name(kind) for kind in ("database", "schema"))
        account = fleet.endpoints.snowflake
        address = {name: getattr(account, name) for name in ("host", "port", "protocol")}
        self.connection = snowflake.connector.connect(
            account=account.account,
            user=account.user,
            **account.connector_login(),
            **{name: value for name, value in address.items() if value is not None},
        )

    def wait(self, began: float) -> float:
        """Wait until it has all records; return the seconds since."""
        late = {name: len(records) for name, records in self.fleet.sent.items()}
        while time.monotonic() < began + PATIENCE_SECONDS:
            _, rows = ask(self.connection, "SHOW ICEBERG TABLES IN ACCOUNT")
            tables = {str(row[1]).lower(): str(row[1]) for row in rows}
            for name in late.keys() & tables.keys():
                counted = f"SELECT COUNT(*) FROM {quote(*self.schema, tables[name])}"
                if ask(self.connection, counted)[1][0][0] < late[name]:
                    break  # one that is late suffices
                del late[name]
            if not late:
                return time.monotonic() - began
            time.sleep(1)
        raise SystemExit(f"{len(late)} topics are late in Snowflake, e.g. {min(late)}")


def latencies(fleet: Fleet, since: float) -> list[float]:
    """Return, ascending, the seconds from each record to the refresh that showed it in Snowflake.

    :param since: when the first of these records was sent
    """
    found = []
    with dg.DagsterInstance.from_config(str(dagster_home(fleet.config))) as instance:
        for name, sent in fleet.sent.items():
            key = dg.AssetKey(["snowflake", name])
            wanted = dg.AssetRecordsFilter(asset_key=key, after_timestamp=since)
            records = instance.fetch_materializations(wanted, limit=1000, ascending=True).records
            shown = 0
            for record in records:
                metadata = record.asset_materialization.metadata
                rows, refreshed = (
                    metadata["dagster/row_count"].value,
                    metadata["refreshed_at"].value,
                )
                assert isinstance(rows, int)
                assert isinstance(refreshed, float)
                new = sent[shown:rows]
                found += [refreshed - at for at in new if at >= since]
                shown = max(shown, rows)
    return sorted(found)


def idle(
    config: Settings, seconds: float, dagster: psutil.Process | None = None
) -> dict[str, float]:
    """Return the share of a core that each service takes while nothing happens."""
    before, began = use(config, dagster), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {name: used / took for name, used in use(config, dagster).since(before).items()}


def busy(
    fleet: Fleet, topics: int, rate: float, seconds: float, dagster: psutil.Process | None = None
) -> tuple[float, dict[str, float]]:
    """Return commits a second, and the CPU seconds of each service for one commit.

    :param rate: records a second in each of these topics
    """
    some = fleet.topics[:topics]

    def commits() -> int:
        return sum(status.commits for status in fleet.statuses())

    before, committed, began = use(fleet.config, dagster), commits(), time.monotonic()
    number = 0
    while (elapsed := time.monotonic() - began) < seconds:
        if number > elapsed * rate:
            time.sleep(min(0.1, number / rate - elapsed))
            continue
        fleet.send(some)
        number += 1
    took = time.monotonic() - began
    done = max(1, commits() - committed)
    used = use(fleet.config, dagster).since(before)
    return done / took, {name: cpu / done for name, cpu in used.items()}


@contextmanager
def own_stack(folder: Path, topics: int) -> Iterator[Settings]:
    """Yield the settings of a copy of the project with specs of a fleet and its own stack."""
    os.environ["TOPICBERG_PROJECT_ROOT"] = str(copy_project(folder))
    os.environ["TOPICBERG_STATE_DIR"] = str(folder / "state")
    config = settings()
    (config.schemas_dir / "fleet.avsc").write_text(json.dumps(SMALL.avro))
    for number in range(topics):
        text = SPEC.format(name=_name(number), pipeline=number % PIPELINES)
        (config.topics_dir / f"{_name(number)}.yaml").write_text(text)
    stack.up(config)
    try:
        yield config
    finally:
        stack.down(config)


def restart(fleet: Fleet) -> float:
    """Kill the engine, send a record to each topic, and return when it was killed."""
    (engine,) = [one for one in stack.status(fleet.config) if one.name == "tableflow"]
    assert engine.pid is not None
    began = time.monotonic()
    psutil.Process(engine.pid).kill()
    fleet.send(fleet.topics)
    return began


def row(name: str, values: dict[str, float], unit: str) -> list[str]:
    def shown(value: float) -> str:
        return f"{value:.1%}" if unit == "%" else f"{value:.3f}" if unit == "s" else f"{value:.0f}"

    return [name, *(shown(value) for value in (*values.values(), sum(values.values())))]


def with_dagster(arguments: argparse.Namespace) -> None:
    """Measure the fleet with Dagster."""
    size = max(arguments.topics)
    with own_stack(arguments.project, size) as config, dagster_dev(config) as dagster:
        for _ in range(600):
            with suppress(OSError):
                dagster.ask("{ version }")
                break
            time.sleep(1)
        fleet = Fleet(load_endpoints(config), config, is_requested=False)
        console, snowflake_ = Console(width=220), InSnowflake(fleet)
        began = fleet.grow(size)
        console.print(f"{size} topics: in their tables after {fleet.wait(began):.0f} s")
        console.print(f"in Snowflake after {snowflake_.wait(began):.0f} s")
        time.sleep(arguments.settle)
        parts = [*ALL_SERVICES, *DAGSTER.values(), "all"]
        shown = Table("", *parts)
        shares = idle(config, arguments.seconds, dagster.process)
        shown.add_row(*row("idle, share of a core", shares, "%"))
        memory = {k: v / 2**20 for k, v in use(config, dagster.process).memory.items()}
        shown.add_row(*row("memory, MB", memory, "MB"))
        console.print(shown)
        if topics := min(size, arguments.busy):
            since = time.time()
            rate, costs = busy(fleet, topics, arguments.rate, arguments.seconds, dagster.process)
            shown.add_row(*row(f"busy ({topics} topics), CPU s a commit", costs, "s"))
            console.print(shown)
            snowflake_.wait(time.monotonic())
            time.sleep(2)
            found = latencies(fleet, since)
            half, most = quantile(found, 0.5), quantile(found, 0.99)
            console.print(
                f"{rate:.1f} commits a second; {len(found)} records in Snowflake after "
                f"{half:.1f} s (median), {most:.1f} s (99th percentile)"
            )
        if arguments.restart:
            began = restart(fleet)
            console.print(f"after a restart: in their tables after {fleet.wait(began):.0f} s")
            console.print(f"in Snowflake after {snowflake_.wait(began):.0f} s")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--topics", type=int, nargs="+", default=[10, 50, 200])
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--busy", type=int, default=50)
    arguments.add_argument("--rate", type=float, default=1.0)
    arguments.add_argument("--project", type=Path, help="run with Dagster, in this folder")
    arguments.add_argument("--settle", type=float, default=60.0, help="seconds before it is idle")
    arguments.add_argument("--restart", action="store_true", help="kill the engine at the end")
    given = arguments.parse_args()
    if given.project:
        with_dagster(given)
        return
    config = settings()
    fleet = Fleet(load_endpoints(config), config, is_requested=True)
    shown = Table("topics", "tables after", "measured", *SERVICES, "all", "")
    try:
        for size in given.topics:
            began = fleet.grow(size)
            after = f"{fleet.wait(began):.0f} s"
            time.sleep(given.settle)
            shares = idle(config, given.seconds)
            shown.add_row(str(size), after, *row("idle, share of a core", shares, "%"), "")
            topics = min(size, given.busy)
            rate, costs = busy(fleet, topics, given.rate, given.seconds)
            label = f"busy ({topics} topics), CPU s a commit"
            shown.add_row(str(size), "", *row(label, costs, "s"), f"{rate:.1f} commits/s")
            memory = {k: v / 2**20 for k, v in use(config).memory.items()}
            shown.add_row(str(size), "", *row("memory, MB", memory, "MB"), "")
            Console(width=200).print(shown)
        if given.restart:
            began = restart(fleet)
            Console().print(f"after a restart: in their tables after {fleet.wait(began):.0f} s")
    finally:
        fleet.remove()


if __name__ == "__main__":
    main()
