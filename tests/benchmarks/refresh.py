"""What a refresh after 1 % new data costs, against computing everything: a ratio, in one run.

    python tests/benchmarks/refresh.py 1000000 10000000

needs a running stack (``TOPICBERG_STATE_DIR``). For each number of source rows, spread over 99
hours: ``full`` computes all hours in one run; then 1 % new rows arrive in the hour after them, and
``refresh`` computes what they affected, as the sensor finds it; ``constant`` computes an hour that
has no rows. The refresh is good if it costs at most 5 % of the full run, plus the constant.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.iceberg.snapshots import affected_hours
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.assets.derived import derivation
from topicberg.settings import settings
from topicberg.testing import create_table, spark_session
from topicberg.topics import load_topics
from topicberg.transforms.derivation import Source
from topicberg.transforms.derived import write_window
from topicberg.transforms.spark_tables import spark_name
from topicberg.transforms.windows import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = 99
NAMESPACE = "benchmark"
ALLOWED = 0.05
DERIVED = "stock_trades_with_totals"


def trades(spark: SparkSession, rows: int, first_hour: int, hours: int) -> DataFrame:
    """Rows like the trades' table has, spread evenly over the hours."""
    from pyspark.sql import functions as F

    number = F.col("id")
    second = first_hour * 3600 + (number % (hours * 3600))
    symbols = F.array(*(F.lit(s) for s in ("ZBZX", "ZJZZT", "ZTEST", "ZVV", "ZVZZT")))
    return spark.range(rows).select(
        F.timestamp_seconds(int(START.timestamp()) + second).alias("$$timestamp"),
        F.when(number % 2 == 0, "BUY").otherwise("SELL").alias("side"),
        (F.xxhash64("id") % 2500 + 2500).cast("int").alias("quantity"),
        F.element_at(symbols, (number % 5 + 1).cast("int")).alias("symbol"),
        (number % 995 + 5).cast("int").alias("price"),
        F.lit("ABC123").alias("account"),
        F.concat(F.lit("User_"), (number % 9 + 1).cast("string")).alias("userid"),
    )


def measure(spark: SparkSession, stack: Endpoints, rows: int) -> tuple[float, float, float]:
    """Seconds of a full run, of a refresh, and of an hour without rows."""
    config = settings()
    lake = Lake(config, tuple(load_topics(config)), tuple(find_derived()))
    catalog = stack.catalog(config)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    name = f"rows_{rows}_{uuid.uuid4().hex[:6]}"
    source = (NAMESPACE, f"{name}_trades")
    plan = replace(
        derivation(lake.derived_by_name[DERIVED], lake),
        sources=(Source(source, "$$timestamp"),),
        target=(NAMESPACE, name),
    )
    create_table(spark, trades(spark, rows, 0, HOURS), source, "$$timestamp")

    def compute(first: int, last: int) -> int:
        span = Window(START + timedelta(hours=first), START + timedelta(hours=last))
        return write_window(spark, catalog, plan, span).rows

    compute(0, 1)  # the table is made, and Spark is warm
    full = seconds(lambda: compute(0, HOURS), rows)
    new = rows // 100
    trades(spark, new, HOURS, 1).writeTo(spark_name(source)).append()
    table = catalog.load_table(source)
    head = table.current_snapshot()
    assert head is not None
    beginning = int(START.timestamp()) // 3600
    (affected,) = {(h.start, h.stop) for h in affected_hours(table, head, "$$timestamp")}
    refresh = seconds(lambda: compute(affected[0] - beginning, affected[1] - beginning), new)
    constant = seconds(lambda: compute(HOURS + 10, HOURS + 11), 0)
    for table_name in (source, plan.target):
        catalog.purge_table(table_name)
    return full, refresh, constant


def seconds(work: Callable[[], int], expected: int) -> float:
    began = time.monotonic()
    found = work()
    assert found == expected, f"{found} rows instead of {expected}"
    return time.monotonic() - began


def main(sizes: list[int]) -> bool:
    shown = Table("source rows", "full s", "refresh s", "constant s", "(refresh - constant) / full")
    good = True
    with spark_session() as spark:
        for rows in sizes:
            full, refresh, constant = measure(spark, load_endpoints(), rows)
            ratio = max(0.0, refresh - constant) / full
            good &= ratio <= ALLOWED
            cells = (full, refresh, constant)
            shown.add_row(f"{rows:,}", *(f"{cell:.2f}" for cell in cells), f"{ratio:.1%}")
    Console().print(shown)
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=int, nargs="*", default=[1_000_000])
    sys.exit(not main(parser.parse_args().rows))
