"""How long commits take while a large table is compacted: their times, in one run.

    python tests/benchmarks/compaction.py [--rows 100000000] [--files 400]

needs a running stack with nothing else to do (``TOPICBERG_STATE_DIR``). The engine has two topics
with a commit interval of ten seconds: one gets a hundred records a second, which it writes itself,
the other 150,000 every ten seconds, which it writes in tasks of Spark. For a minute they are alone;
then a table of small files is compacted by maintenance until it is done. Printed are the seconds
between two commits of a topic.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import pairwise

from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as Shown
from workloads import drop, make_topic, produce, quantile

from topicberg.endpoints import CATALOG, Endpoints, load_endpoints
from topicberg.iceberg.maintenance import MaintenancePolicy
from topicberg.iceberg.maintenance.run import maintain_table
from topicberg.iceberg.summaries import END_OFFSETS, summary
from topicberg.settings import Settings, settings
from topicberg.spark import new_session, quote
from topicberg.tableflow.service import control
from topicberg.tableflow.service.engine import Ingestor
from topicberg.topics import TopicSpec

INTERVAL = 10
ALONE_SECONDS = 60.0
RATES = {"100 a second": (100, 1), "150,000 in 10 s": (150_000, 10)}
"""Records, and every how many seconds."""
NOW = MaintenancePolicy(compact_after=timedelta(0), compact_bytes=1)


def fill(endpoints: Endpoints, config: Settings, rows: int, files: int) -> TopicSpec:
    """Return a topic whose table has rows in small files."""
    spec = make_topic(endpoints, "avro", range(1_000))
    ingestor = Ingestor(spec, endpoints, config)
    name = f"{CATALOG}.{quote(*ingestor.table().name())}"
    ingestor.close()
    spark = new_session(endpoints.spark_connect, endpoints.spark_session(config)[0])
    number = F.col("id")
    values = {
        "$$offset": number,
        "$$partition": F.lit(0),
        "$$timestamp": F.timestamp_seconds(1_700_000_000 + (number / 1_000).cast("long")),
        "side": F.when(number % 2 == 0, "BUY").otherwise("SELL"),
        "quantity": F.xxhash64(number) % 5_000,
        "symbol": F.concat(F.lit("S"), number % 50),
        "price": number % 995,
        "userid": F.concat(F.lit("User_"), number % 9_000),
    }
    columns = spark.table(name).schema
    row = [values.get(c.name, F.lit(None)).cast(c.dataType).alias(c.name) for c in columns]
    spark.range(0, rows, 1, files).select(*row).writeTo(name).append()
    spark.stop()
    return spec


class Load:
    """Sends records to topics until it is stopped, and shows when their tables have them."""

    def __init__(
        self, endpoints: Endpoints, config: Settings, rates: Mapping[str, tuple[int, int]]
    ) -> None:
        """:param rates: name → records, and every how many seconds"""
        self.endpoints, self.config, self.rates = endpoints, config, rates
        self.topics = dict[str, TopicSpec]()
        self.shown = Shown("topic", "meanwhile", "commits", "median s", "99 % s", "longest s")
        for name in rates:
            spec = make_topic(endpoints, "avro", range(100))
            control.enable(config, spec.name, {"commit_interval_seconds": INTERVAL})
            self.topics[name] = spec
        self._is_stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(name,), daemon=True) for name in rates
        ]
        for thread in self._threads:
            thread.start()
        time.sleep(3 * INTERVAL)  # the first batch of each topic is slow

    def _send(self, name: str) -> None:
        count, seconds = self.rates[name]
        due = time.monotonic()
        while not self._is_stopped.wait(max(0.0, due - time.monotonic())):
            due += seconds
            produce(self.endpoints, self.topics[name], "avro", range(count))

    def during(self, what: str, work: Callable[[], object]) -> None:
        """Add the seconds between commits while some work is done."""
        since = time.time()
        work()
        until = time.time()
        for name, spec in self.topics.items():
            found = gaps(self.endpoints, self.config, spec, since, until) or [until - since]
            cells = (quantile(found, 0.5), quantile(found, 0.99), found[-1])
            self.shown.add_row(name, what, str(len(found)), *(f"{cell:.1f}" for cell in cells))

    def stop(self) -> None:
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()
        for spec in self.topics.values():
            control.disable(self.config, spec.name)
            drop(self.endpoints, spec, self.config)


def gaps(
    endpoints: Endpoints, config: Settings, spec: TopicSpec, since: float, until: float
) -> list[float]:
    """Return the seconds between commits of a topic, ascending."""
    table = endpoints.catalog(config).load_table(spec.table_identifier(config))
    times = [s.timestamp_ms / 1000 for s in table.snapshots() if END_OFFSETS in summary(s)]
    inside = [moment for moment in times if since <= moment <= until]
    return sorted(later - earlier for earlier, later in pairwise(inside))


def main(rows: int, files: int) -> None:
    endpoints, config = load_endpoints(), settings()
    console = Console(width=120)
    large = fill(endpoints, config, rows, files)
    table = endpoints.catalog(config).load_table(large.table_identifier(config))
    load = Load(endpoints, config, RATES)
    reports = list[object]()
    load.during("nothing", lambda: time.sleep(ALONE_SECONDS))
    load.during("compaction", lambda: reports.append(maintain_table(table, endpoints, NOW)))
    load.stop()
    console.print(load.shown)
    console.print(f"compaction of {rows:,} rows: {reports[0]}")
    drop(endpoints, large, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--files", type=int, default=400)
    given = parser.parse_args()
    main(given.rows, given.files)
