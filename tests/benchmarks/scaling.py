"""What tasks of Spark cost on a cluster of 1, 2 and 4 executors, and whether they lose anything.

    python tests/benchmarks/scaling.py [--records 20000000] [--executors 1 2 4] [--json FILE]

Starts a standalone cluster and a stack of its own in a temporary folder, and workers of one core
one after the other. For each number of executors, the engine reads the same topic into a new table
by Spark, three times: to start all Python workers, measured, and measured while an executor is
killed (SIGKILL). Before all, it is read once more: the driver's JVM spends more than a second on
compiling what its first batches execute. CPU time is that of all processes of the workers, of the
driver (Spark Connect), and of the engine. The rows and a checksum of every measured table are
compared with what was produced.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from topicberg.settings import Settings, settings
from topicberg_local import stack, state
from topicberg_local.ports import choose

sys.path.append(str(Path(__file__).parents[1] / "support"))

import spark_cluster
from contenders import OURS, Lab, engine, verify
from workloads import WORKLOADS, Topic, fill_topic

KILL_AFTER = 0.4
"""The part of the time of the first run after which an executor is killed."""


def cpu_seconds(roots: list[psutil.Process]) -> float:
    """Return the CPU time of processes and of all that they started, ended or not."""
    total = 0.0
    for root in roots:
        for one in (root, *root.children(recursive=True)):
            try:
                total += sum(one.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue
    return total


def executors(workers: list[psutil.Process]) -> list[psutil.Process]:
    return [one for root in workers for one in root.children() if one.name().startswith("java")]


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, Settings]]:
    """A master, and a stack whose Spark is its driver; the workers are still to be started."""
    url = f"spark://127.0.0.1:{(port := choose({}, {})['spark'])}"
    os.environ |= {"TOPICBERG_STATE_DIR": str(folder / "state"), "TOPICBERG_SPARK_MASTER": url}
    settings.cache_clear()
    config = settings()
    state.prepare_dir(config)
    with spark_cluster.master(folder, port):
        yield url, config


def measured(
    lab: Lab, topic: Topic, workers: list[psutil.Process], kill_after: float | None
) -> dict[str, float]:
    """Return the seconds of a run, and of its CPU time those of each part."""
    driver = [psutil.Process(one.pid) for one in stack.status(lab.config) if one.name == "spark"]
    parts = {"executors": workers, "driver": driver}
    before, own = {name: cpu_seconds(roots) for name, roots in parts.items()}, time.process_time()
    killing = None
    if kill_after is not None:
        killing = threading.Timer(kill_after, lambda: executors(workers)[0].kill())
        killing.start()
    start = time.perf_counter()
    table = engine(lab, topic)
    seconds = time.perf_counter() - start
    if killing is not None:
        killing.join()
    used = {name: cpu_seconds(roots) - before[name] for name, roots in parts.items()}
    used["engine"] = time.process_time() - own
    verify(lab, topic, table, OURS)
    lab.catalog.purge_table(table)
    return {"seconds": seconds, **used}


def by_spark(topic: Topic) -> Topic:
    tableflow = topic.spec.tableflow.model_copy(update={"engine": "spark"})
    return replace(topic, spec=topic.spec.model_copy(update={"tableflow": tableflow}))


def compare(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with ExitStack() as running:
        url, config = running.enter_context(cluster(folder))
        workers: list[psutil.Process] = []

        def add_worker() -> None:
            name = folder / f"worker-{len(workers)}"
            workers.append(running.enter_context(spark_cluster.worker(name, url, config)))

        add_worker()
        running.callback(stack.down, config)
        lab = Lab(stack.up(config), config)
        topic = by_spark(fill_topic(lab.endpoints, WORKLOADS[0], arguments.records))
        for count in arguments.executors:
            while len(workers) < count:
                add_worker()
            while len(executors(workers)) < count:
                time.sleep(0.5)
            for _ in range(1 if found else 2):  # starts each executor's Python, and the driver
                lab.catalog.purge_table(engine(lab, topic))
            whole = measured(lab, topic, workers, None)
            killed = measured(lab, topic, workers, whole["seconds"] * KILL_AFTER)["seconds"]
            found[str(count)] = {"records": arguments.records, "whole": whole, "killed": killed}
            Console(stderr=True).print(count, found[str(count)])
    return found


def show(found: dict[str, Any]) -> Table:
    table = Table("executors", "seconds", "CPU of executors, µs a record", "driver", "engine")
    table.add_column("with an executor killed, s")
    for count, about in found.items():
        whole, million = about["whole"], about["records"] / 1e6
        total = whole["executors"] + whole["driver"] + whole["engine"]
        table.add_row(
            count,
            f"{whole['seconds']:.1f}",
            f"{whole['executors'] / million:.2f}",
            *(f"{whole[name] / total:.1%}" for name in ("driver", "engine")),
            f"{about['killed']:.1f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--executors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", type=Path, help="also write the numbers to a file")
    arguments = parser.parse_args()
    if not spark_cluster.HAS_JDK:
        parser.error("it needs a JDK with jdk.incubator.vector (java on the PATH)")
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder), arguments)
    Console(width=160).print(show(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
