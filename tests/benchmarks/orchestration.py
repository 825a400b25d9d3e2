"""What Dagster costs beside the work of a backfill: its time over the time that it waits for Spark.

    python tests/benchmarks/orchestration.py [--rows 1000000]

needs a running stack (``TOPICBERG_STATE_DIR``) with nothing else to do. The rows are in Kafka; the
engine commits them, and the job of the pipeline computes, registers, refreshes and checks every
table.
"""

from __future__ import annotations

import argparse
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

from topicberg.dagster.home import dagster_home
from topicberg.endpoints import load_endpoints
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets.partitions import partition_key, time_partitions
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.engine import run_once
from topicberg.topics import load_topic
from topicberg_local.datagen.runner import run_here

TOPIC = "stock_trades"
ALLOWED = 1.30
WAITED_FOR = ("_execute_and_fetch_as_iterator", "_execute", "_analyze")
"""How Spark Connect's client waits for its server."""


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


def graph(rows: int) -> bool:
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
    Console().print(
        f"{rows:,} rows: {took:.1f} s, of which Spark {spark:.1f} s: {took / spark:.2f} times, "
        f"at most {ALLOWED:.2f} is good"
    )
    return took <= ALLOWED * spark


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    sys.exit(not graph(parser.parse_args().rows))
