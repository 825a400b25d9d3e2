"""What Dagster costs beside the work: of a run, of an idle tick, and until Snowflake.

    python tests/benchmarks/orchestration.py [--rows 1000000] [--seconds 180] [--only idle,graph]

needs a running stack (``TOPICBERG_STATE_DIR``) with nothing else to do.

- ``idle``: every sensor once more after a tick that found everything done, in computing time.
- ``graph``: the rows are in Kafka; the engine commits them, and the job of the pipeline computes,
  registers, refreshes and checks every table. Its time over the time that it waits for Spark.
- ``arrival``: a record a second, under ``dagster dev``; from a record's time in Kafka until a query
  of Snowflake has it.
- ``derived``: 100 records a second; until each of the topic's derived tables has them in Snowflake,
  and where the time of the runs went.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "support"))

from dagster_dev import dagster_dev

from topicberg.cli.compute import load_lake
from topicberg.dagster.home import dagster_home
from topicberg.endpoints import load_endpoints
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets.partitions import partition_key, time_partitions
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.engine import run_once
from topicberg.topics import load_topic
from topicberg_local.datagen.runner import run_here, start

TOPIC = "stock_trades"
PARTS = ("idle", "graph", "arrival", "derived")
IDLE_SHARE = 0.05
"""Of a core, for all sensors together."""
OVERHEAD = 0.30
ARRIVAL_SECONDS = 10.0
"""Beyond the commit interval, for half of the records."""
DERIVED_RATE, DERIVED_SECONDS = 100, (30.0, 60.0)
"""Records a second; the median, and the 99th percentile, of all derived tables together."""
WAITED_FOR = ("_execute_and_fetch_as_iterator", "_execute", "_analyze")
"""How Spark Connect's client waits for its server."""
PATIENCE_SECONDS = 600.0

Row = tuple[str, str, str, bool | None]
"""What, measured, target, whether it is met."""


def idle() -> Iterator[Row]:
    from definitions import defs
    from topicberg.orchestration.resources import RESOURCES

    load_endpoints()  # without a stack every sensor would only say so
    repository = defs.get_repository_def()
    share, costs = 0.0, []
    with tempfile.TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance:
        for sensor in repository.sensor_defs:
            cursor, spent = None, 0.0
            for _ in range(3):  # what is new, what was not settled yet, and nothing
                resources = {n: RESOURCES[n] for n in sensor.required_resource_keys}
                context = dg.build_sensor_context(
                    instance, cursor=cursor, repository_def=repository, resources=resources
                )
                began = time.process_time()
                cursor = sensor.evaluate_tick(context).cursor or cursor
                spent = time.process_time() - began
            costs.append(spent)
            share += spent / (sensor.minimum_interval_seconds or 30)
    yield (
        f"idle tick: median and worst of {len(costs)} sensors",
        f"{statistics.median(costs) * 1000:.0f} ms, {max(costs) * 1000:.0f} ms",
        "",
        None,
    )
    yield (
        "idle sensors, share of a core",
        f"{share:.1%}",
        f"<= {IDLE_SHARE:.0%}",
        share <= IDLE_SHARE,
    )


@contextmanager
def spark_time() -> Iterator[list[tuple[float, float]]]:
    """Begin and end of every wait of this process for Spark."""
    from pyspark.sql.connect.client.core import SparkConnectClient

    waits: list[tuple[float, float]] = []
    before = {name: getattr(SparkConnectClient, name) for name in WAITED_FOR}

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*arguments, **named)
            finally:
                waits.append((began, time.monotonic()))

        def iterate(*arguments: Any, **named: Any) -> Iterator[Any]:
            began = time.monotonic()
            try:
                yield from function(*arguments, **named)
            finally:
                waits.append((began, time.monotonic()))

        return iterate if function.__name__.endswith("iterator") else call

    for name, function in before.items():
        setattr(SparkConnectClient, name, timed(function))
    try:
        yield waits
    finally:
        for name, function in before.items():
            setattr(SparkConnectClient, name, function)


def union(spans: list[tuple[float, float]]) -> float:
    """Seconds in at least one of them: steps may wait at the same time."""
    total, until = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def graph(rows: int) -> Iterator[Row]:
    from definitions import defs

    config, spec, endpoints = settings(), load_topic(TOPIC), load_endpoints()
    kafka.ensure_topic(spec, endpoints, config)
    job = defs.resolve_job_def(f"{TOPIC}_pipeline")
    partitions = time_partitions(spec)

    def run() -> None:
        key = partition_key(partitions, datetime.now(UTC))
        with tempfile.TemporaryDirectory() as folder:
            home = dagster_home(config.model_copy(update={"state_dir": Path(folder)}))
            instance = dg.DagsterInstance.from_config(str(home))
            assert job.execute_in_process(instance=instance, partition_key=key).success

    control.disable(config, TOPIC)  # the stack's engine keeps off
    try:
        run_here(config, TOPIC, rate=0, count=100)
        run_once(spec, endpoints, config)
        run()  # tables are made, Spark is warm
        run_here(config, TOPIC, rate=0, count=rows)
        with spark_time() as waits:
            began = time.monotonic()
            run_once(spec, endpoints, config)
            run()
            took = time.monotonic() - began
    finally:
        control.enable(config, TOPIC)
    spark = union(waits)
    overhead = took / spark - 1
    yield f"graph of {rows:,} rows", f"{took:.1f} s, Spark {spark:.1f} s", "", None
    yield (
        "graph over Spark",
        f"{1 + overhead:.2f}",
        f"<= {1 + OVERHEAD:.2f}",
        overhead <= OVERHEAD,
    )


def arrival(seconds: int) -> Iterator[Row]:
    config, spec, endpoints = settings(), load_topic(TOPIC), load_endpoints()
    kafka.ensure_topic(spec, endpoints, config)
    before = kafka.end_offsets(endpoints, TOPIC)
    seen: dict[int, int] = {}
    waits: list[float] = []
    partition, offset, at = (spec.metadata_column(c) for c in ("partition", "offset", "timestamp"))
    newer = " OR ".join(f'("{partition}" = {{}} AND "{offset}" >= {{}})' for _ in before)

    def look() -> None:
        """Rows that Snowflake has now and had not before."""
        bounds = [n for p, first in before.items() for n in (p, seen.get(p, first))]
        found = run_query(
            f'SELECT "{partition}", "{offset}", "{at}" FROM {spec.snowflake_name} '
            f"WHERE {newer.format(*bounds)}",
            "snowflake",
            endpoints,
            config,
        ).rows
        now = datetime.now(UTC)
        for number, place, when in found:
            seen[number] = max(seen.get(number, 0), place + 1)
            waits.append((now - when.astimezone(UTC)).total_seconds())

    with dagster_dev(config) as dagster:
        deadline = time.monotonic() + PATIENCE_SECONDS
        warm = 10
        run_here(config, TOPIC, rate=0, count=warm)
        while len(waits) < warm:  # the daemon is up, and the table is there
            look_if_there(look)
            assert time.monotonic() < deadline, "nothing came to Snowflake"
            time.sleep(1)
        waits.clear()
        start(config, TOPIC, rate=1, count=seconds)
        deadline = time.monotonic() + seconds + PATIENCE_SECONDS
        while len(waits) < seconds:
            look_if_there(look)
            assert time.monotonic() < deadline, f"{len(waits)} of {seconds} records came"
            assert dagster.process.is_running()
            time.sleep(0.5)
    ordered = sorted(waits)
    half, worst = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    allowed = spec.tableflow.commit_interval_seconds + ARRIVAL_SECONDS
    yield ("Kafka to Snowflake, p50", f"{half:.1f} s", f"< {allowed:.0f} s", half < allowed)
    yield "Kafka to Snowflake, p99", f"{worst:.1f} s", "", None


def derived(seconds: int) -> Iterator[Row]:
    config, spec, endpoints = settings(), load_topic(TOPIC), load_endpoints()
    kafka.ensure_topic(spec, endpoints, config)
    lake = load_lake(config)
    tables = {
        lake.table(table).snowflake_name: table.time_column
        for table in lake.derived
        if lake.root(table).name == TOPIC
    }
    newest: dict[str, datetime] = {}
    waits: dict[str, list[float]] = {name: [] for name in tables}

    def look() -> None:
        """Note how long ago the rows are that Snowflake has now and had not before."""
        for name, column in tables.items():
            sql = f'SELECT max("{column}") FROM {name}'
            value = run_query(sql, "snowflake", endpoints, config).scalar()
            if value is None:
                continue
            time_, now = value.astimezone(UTC), datetime.now(UTC)
            for second in range(int((time_ - newest.get(name, time_)).total_seconds())):
                waits[name].append((now - time_).total_seconds() + second)
            newest[name] = time_

    with dagster_dev(config):
        deadline = time.monotonic() + PATIENCE_SECONDS
        run_here(config, TOPIC, rate=0, count=10)
        while len(newest) < len(tables):
            look_if_there(look)
            assert time.monotonic() < deadline, f"{sorted(newest)} of {sorted(tables)}"
            time.sleep(1)
        first = datetime.now(UTC)
        start(config, TOPIC, rate=DERIVED_RATE, count=DERIVED_RATE * seconds)
        warm, deadline = time.monotonic() + DERIVED_SECONDS[1], time.monotonic() + seconds
        while time.monotonic() < deadline:
            look_if_there(look)
            if time.monotonic() < warm:  # the tables before it had no rows of a while
                for of_table in waits.values():
                    of_table.clear()
            time.sleep(0.5)
    everything = sorted(wait for of_table in waits.values() for wait in of_table)
    for name, of_table in waits.items():
        half, worst = _percentiles(sorted(of_table))
        yield f"Kafka to {name}, p50, p99", f"{half:.1f} s, {worst:.1f} s", "", None
    for measured, allowed, label in zip(
        _percentiles(everything), DERIVED_SECONDS, ("p50", "p99"), strict=True
    ):
        name = f"Kafka to derived tables in Snowflake, {label}"
        yield name, f"{measured:.1f} s", f"< {allowed:.0f} s", measured < allowed
    with dg.DagsterInstance.from_config(str(dagster_home(config))) as instance:
        yield from _run_times(instance, first)


def _percentiles(ordered: list[float]) -> tuple[float, float]:
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]


def _run_times(instance: dg.DagsterInstance, since: datetime) -> Iterator[Row]:
    """Yield where the seconds of the runs went that ended, at the median of a job."""
    parts: dict[str, list[tuple[float, ...]]] = {}
    for record in instance.get_run_records(dg.RunsFilter(created_after=since)):
        stats = instance.get_run_step_stats(record.dagster_run.run_id)
        spans = [(s.start_time, s.end_time) for s in stats if s.start_time and s.end_time]
        if not record.end_time or not record.start_time or not spans:
            continue
        begin, work = min(first for first, _ in spans), union(spans)
        parts.setdefault(record.dagster_run.job_name, []).append(
            (
                record.start_time - record.create_timestamp.timestamp(),
                begin - record.start_time,
                work,
                max(last for _, last in spans) - begin - work,
                record.end_time - max(last for _, last in spans),
            )
        )
    for job, of_job in sorted(parts.items()):
        medians = ", ".join(f"{statistics.median(part):.1f}" for part in zip(*of_job, strict=True))
        yield (
            f"{len(of_job)} runs of {job}: queue, start, work, between, end",
            f"{medians} s",
            "",
            None,
        )


def look_if_there(look: Callable[[], None]) -> None:
    from topicberg.errors import TopicbergError

    try:
        look()
    except TopicbergError as error:
        # Neither the table nor the schema, before the first run on a new stack.
        if not any(why in str(error) for why in ("does not exist", "not have a current")):
            raise


def main(rows: int, seconds: int, only: list[str]) -> bool:
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "idle": idle,
        "graph": lambda: graph(rows),
        "arrival": lambda: arrival(seconds),
        "derived": lambda: derived(seconds),
    }
    shown, good = Table("what", "measured", "target", ""), True
    try:
        for name in PARTS:
            if name not in only:
                continue
            for what, measured, target, met in parts[name]():
                shown.add_row(what, measured, target, {None: "", True: "met", False: "missed"}[met])
                good &= met is not False
    finally:  # a part that fails loses nothing of those before it
        Console().print(shown)
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS))
    options = parser.parse_args()
    sys.exit(not main(options.rows, options.seconds, options.only))
