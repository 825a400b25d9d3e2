"""Upsert tables of Iceberg's format version 3 beside those of version 2.

    python tests/benchmarks/deletion_vectors.py [--rows 1000000] [--batches 20] [--share 0.01]

Against the running local stack. Both tables get the same records: all keys once, then batches of
random keys, in turns. Printed are the CPU time of the upserts (this process and Spark), the files
and bytes of deletes, and how long each reader needs for the whole table: the best of the rounds,
which take turns. Compaction does not run.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyiceberg.manifest import DataFileContent
from rich.console import Console
from rich.table import Table as Shown
from workloads import drop, make_topic, produce

from topicberg.endpoints import CATALOG, Endpoints, load_endpoints
from topicberg.iceberg.files import live_files
from topicberg.iceberg.manifests import is_vector, referenced_file, size_of
from topicberg.query import duckdb_connection
from topicberg.settings import Settings, settings
from topicberg.spark import new_session, quote
from topicberg.tableflow.service.engine import Ingestor
from topicberg.topics import TopicSpec
from topicberg_local import stack

VERSIONS = (2, 3)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of Spark."""
    pids = {service.name: service.pid for service in stack.status(settings())}
    total = time.process_time()
    spark = psutil.Process(pids["spark"])
    for process in (spark, *spark.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


class Contender:
    """A topic whose table has one version."""

    def __init__(self, version: int, rows: int, endpoints: Endpoints, config: Settings) -> None:
        self.version, self.endpoints, self.config = version, endpoints, config
        spec = make_topic(endpoints, "avro", range(rows), "upsert")
        given = {**spec.model_dump(by_alias=True), "table": {"format_version": version}}
        self.spec = TopicSpec.model_validate(given)
        self._engine = Ingestor(self.spec, endpoints, config)
        self.upserts: list[float] = []
        self._step()

    def _step(self) -> None:
        while self._engine.step().backlog:
            pass

    def upsert(self, numbers: list[int]) -> None:
        """Upsert a batch, and note its CPU time."""
        produce(self.endpoints, self.spec, "avro", numbers)
        before = cpu_seconds()
        self._step()
        self.upserts.append(cpu_seconds() - before)

    def close(self) -> None:
        self._engine.close()
        drop(self.endpoints, self.spec, self.config)

    @property
    def table(self) -> Any:
        identifier = self.spec.table_identifier(self.config)
        return self.endpoints.catalog(self.config).load_table(identifier)

    def deletes(self) -> dict[str, int]:
        """Return the files with deletes, their bytes, and the most vectors of a data file."""
        found = [f for f in live_files(self.table) if f.content != DataFileContent.DATA]
        files = [referenced_file(file) for file in found if is_vector(file)]
        sizes = [size_of(file) for file in found]
        most = max(map(files.count, files), default=0)
        paths = {file.file_path for file in found}
        return {"files": len(paths), "bytes": sum(sizes), "vectors_of_a_file": most}


def readers(endpoints: Endpoints, config: Settings) -> dict[str, Callable[[Contender], Any]]:
    """Return for each reader a function that reads a column of all rows; the sum must agree."""
    spark = new_session(endpoints.spark_connect, endpoints.spark_session(config)[0])
    duck = duckdb_connection(endpoints, config)

    def by_spark(one: Contender) -> Any:
        name = quote(CATALOG, *one.spec.table_identifier(config))
        spark.sql(f"REFRESH TABLE {name}")
        return spark.sql(f"SELECT count(*), sum(quantity) FROM {name}").collect()[0][:]

    def by_duckdb(one: Contender) -> Any:
        namespace, name = one.spec.table_identifier(config)
        query = f'SELECT count(*), sum(quantity) FROM lake."{namespace}"."{name}"'
        return duck.execute(query).fetchall()[0]

    def by_pyiceberg(one: Contender) -> Any:
        found = one.table.scan(selected_fields=("quantity",)).to_arrow()
        return found.num_rows, sum(found["quantity"].to_pylist())

    return {"Spark": by_spark, "DuckDB": by_duckdb, "PyIceberg": by_pyiceberg}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.01, help="of the rows, in a batch")
    parser.add_argument("--rounds", type=int, default=5, help="of each reader")
    parser.add_argument("--json", type=Path, help="also write the numbers to a file")
    given = parser.parse_args()
    config = settings()
    endpoints = load_endpoints(config)
    rng = random.Random(1)
    contenders = [Contender(version, given.rows, endpoints, config) for version in VERSIONS]
    for batch in range(given.batches):
        numbers = sorted(rng.sample(range(given.rows), int(given.rows * given.share)))
        for one in contenders if batch % 2 else reversed(contenders):
            one.upsert(numbers)
    best: dict[str, dict[int, float]] = {}
    for name, read in readers(endpoints, config).items():
        for _ in range(given.rounds):
            found = set()
            for one in contenders:
                start = time.perf_counter()
                found.add(tuple(read(one)))
                seconds = time.perf_counter() - start
                held = best.setdefault(name, {})
                held[one.version] = min(held.get(one.version, seconds), seconds)
            assert len(found) == 1, f"{name} reads different rows: {found}"
    shown = Shown("", "version 2", "version 3", "version 3 / version 2")
    numbers_: dict[str, Any] = {}

    def row(name: str, values: list[float], digits: int = 2) -> None:
        ratio = f"{values[1] / values[0]:.2f}" if values[0] else ""
        shown.add_row(name, *(f"{value:,.{digits}f}" for value in values), ratio)
        numbers_[name] = values

    half = len(contenders[0].upserts) // 2
    row("CPU s of an upsert, median", [sorted(c.upserts)[half] for c in contenders])
    row("CPU s of all upserts", [sum(c.upserts) for c in contenders])
    for name in ("files", "bytes", "vectors_of_a_file"):
        row(f"deletes: {name}", [c.deletes()[name] for c in contenders], 0)
    for name, times in best.items():
        row(f"{name}, s", [times[version] for version in VERSIONS], 3)
    Console().print(shown)
    if given.json:
        given.json.write_text(json.dumps(numbers_, indent=2))
    for one in contenders:
        one.close()


if __name__ == "__main__":
    main()
