"""What a derived table costs, against a job written by hand with PySpark: ratios, in one run.

    python tests/benchmarks/derived.py [--rows-a-day 500000] [--days 30] [--rounds 5]

needs a running stack (``TOPICBERG_STATE_DIR``). The source has some days of trades. Both compute an
hour, a day and all days of two tables: ``stock_trades_with_totals`` (a row for each trade) and
``stock_total_trades`` (sums). The job by hand is what a careful engineer writes: it prunes the
source by time, writes with the same partitioning, and replaces the window in one commit
(``overwrite``). It has no retries, no record of what it read, and no evolution of the schema. Both
use one Spark session and take turns; rows and a checksum are compared, and the best round counts.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from refresh import NAMESPACE, START, trades
from rich.console import Console
from rich.table import Table

from topicberg.endpoints import load_endpoints
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.assets.derived import derivation
from topicberg.settings import settings
from topicberg.testing import create_table, spark_session
from topicberg.topics import load_topics
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import write_window
from topicberg.transforms.spark_tables import spark_name
from topicberg.transforms.windows import Window

SPANS = {"an hour": timedelta(hours=1), "a day": timedelta(days=1)}
TABLES = ("stock_trades_with_totals", "stock_total_trades")


def by_hand(spark: SparkSession, plan: Derivation, target: tuple[str, str], window: Window) -> None:
    """Compute a window of a derived table."""
    (source,) = plan.sources
    assert source.time is not None
    since, until = F.lit(window.start), F.lit(window.end)
    time_ = F.col(f"`{source.time}`")
    rows = spark.read.table(spark_name(source.table)).filter((time_ >= since) & (time_ < until))
    new = F.col(plan.target_time)
    plan.transform(rows).writeTo(spark_name(target)).overwrite((new >= since) & (new < until))


def checksum(spark: SparkSession, table: tuple[str, str], time: str, window: Window) -> object:
    rows = spark.read.table(spark_name(table))
    inside = (F.col(time) >= F.lit(window.start)) & (F.col(time) < F.lit(window.end))
    names = sorted(rows.columns)
    found = rows.filter(inside).agg(F.count("*"), F.sum(F.xxhash64(*names).cast("decimal(38)")))
    return tuple(found.collect()[0])


def measure(
    spark: SparkSession, name: str, source: tuple[str, str], days: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Return span → the best seconds of topicberg and of the job by hand."""
    config, stack = settings(), load_endpoints()
    lake = Lake(config, tuple(load_topics(config)), tuple(find_derived()))
    catalog = stack.catalog(config)
    suffix = uuid.uuid4().hex[:6]
    plan = replace(
        derivation(lake.derived_by_name[name], lake),
        sources=(Source(source, "$$timestamp"),),
        target=(NAMESPACE, f"{name}_{suffix}"),
    )
    target = NAMESPACE, f"{name}_{suffix}_by_hand"
    first = Window(START, START + timedelta(hours=1))
    write_window(spark, catalog, plan, first)
    made = catalog.load_table(plan.target)
    catalog.create_table(
        target,
        made.schema(),
        partition_spec=made.spec(),
        location=f"{made.location()}_by_hand",
        properties=made.properties,
    )
    found: dict[str, tuple[float, float]] = {}
    spans = SPANS | ({f"{days} days": timedelta(days)} if days > 1 else {})
    for span, length in spans.items():
        window = Window(START, START + length)
        best = [float("inf")] * 2
        works: tuple[Callable[[], object], ...] = (
            partial(write_window, spark, catalog, plan, window),
            partial(by_hand, spark, plan, target, window),
        )
        for number in range(rounds + 1):  # the first one warms up
            for place, work in enumerate(works):
                began = time.monotonic()
                work()
                if number:
                    best[place] = min(best[place], time.monotonic() - began)
        sums = {checksum(spark, t, plan.target_time, window) for t in (plan.target, target)}
        assert len(sums) == 1, f"{name}, {span}: the tables differ: {sums}"
        found[span] = best[0], best[1]
    for table in (plan.target, target):
        catalog.purge_table(table)
    return found


def main(rows: int, days: int, rounds: int) -> None:
    shown = Table("table", "window", "topicberg s", "by hand s", "ratio")
    stack, source = load_endpoints(), (NAMESPACE, f"days_{uuid.uuid4().hex[:6]}")
    catalog = stack.catalog(settings())
    catalog.create_namespace_if_not_exists(NAMESPACE)
    with spark_session() as spark:
        create_table(spark, trades(spark, rows * days, 0, 24 * days), source, "$$timestamp")
        for name in TABLES:
            for span, (ours, theirs) in measure(spark, name, source, days, rounds).items():
                shown.add_row(name, span, f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}")
    catalog.purge_table(source)
    Console().print(shown)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows-a-day", type=int, default=500_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    main(given.rows_a_day, given.days, given.rounds)
