"""Random derived tables: however their computation is divided into runs, they equal the whole.

Times are of the source or of the payload; the function looks back, ahead, or at everything. Records
arrive late, runs overlap, and the function changes in between.
``TOPICBERG_TEST_TABLES=200 TOPICBERG_TEST_SEED=0 pytest -m slow -s`` draws more tables.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.iceberg.hours import Hours, union
from topicberg.settings import settings
from topicberg.testing import create_table, rows, spark_session
from topicberg.transforms import derived, placement
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import write_window
from topicberg.transforms.spark_tables import spark_name
from topicberg.transforms.unread import unread
from topicberg.transforms.versions import computed_by, outdated
from topicberg.transforms.windows import FOREVER, Window

pytestmark = [pytest.mark.integration]

START = datetime(2026, 1, 2, tzinfo=UTC)
FIRST = int(START.timestamp()) // 3600
ARRIVALS = 8
"""Records arrive in so many hours."""
HOURS = 16
"""Partitions that are computed, which have the times of all rows."""
HOUR = timedelta(hours=1)
NAMESPACE = "splits"
TIME = "at"
SCHEMA = f"`{TIME}` timestamp, id long, key string, value string"
Function = Callable[[DataFrame, int], DataFrame]
"""Rows, and what differs between versions of the function."""


@dataclass(frozen=True)
class Shape:
    """A function, and what its author declares; ``early`` and ``late``: of the payload's times."""

    function: Function
    lookback: timedelta | None = None
    lookahead: timedelta | None = None
    late: float = 0
    """Hours by which a record may arrive after the time of its payload."""
    early: float = 0


def source_time(trades: DataFrame, version: int) -> DataFrame:
    """A column has another name in each version."""
    return trades.filter(f"id % 5 <> {version % 5}").select(
        F.col(TIME).alias("ts"), "id", "key", (F.col("id") * version).alias(f"number_{version}")
    )


def sums_by_minute(trades: DataFrame, version: int) -> DataFrame:
    minute = F.date_trunc("minute", TIME)
    return trades.groupBy(minute.alias("ts"), "key").agg(F.sum(F.col("id") + version).alias("n"))


def all_but_first(trades: DataFrame, version: int) -> DataFrame:
    """The rows of an hour but for the first ones of their keys."""
    window = SparkWindow.partitionBy("key", F.date_trunc("hour", TIME)).orderBy(TIME, "id")
    numbered = trades.withColumn("n", F.row_number().over(window) + version)
    return numbered.select(F.col(TIME).alias("ts"), "id", "n").filter(f"n > {version} + 1")


def moving(hours: int) -> Function:
    def function(trades: DataFrame, version: int) -> DataFrame:
        micros = F.unix_micros(TIME)
        window = (
            SparkWindow.partitionBy("key").orderBy(micros).rangeBetween(-hours * 3_600_000_000, 0)
        )
        total = F.sum(F.col("id") + version).over(window)
        return trades.select(F.col(TIME).alias("ts"), "id", total.alias("n"))

    return function


def running(trades: DataFrame, version: int) -> DataFrame:
    window = SparkWindow.partitionBy("key").orderBy(TIME, "id").rowsBetween(-(2**31), 0)
    return trades.select(
        F.col(TIME).alias("ts"), "id", F.sum(F.col("id") * version).over(window).alias("n")
    )


def parsed(trades: DataFrame) -> DataFrame:
    return trades.withColumn("ts", F.to_timestamp(F.split("value", ",")[0]))


def payload_time(trades: DataFrame, version: int) -> DataFrame:
    return parsed(trades).select("ts", "id", (F.col("id") + version).alias("n"))


def payload_sums(trades: DataFrame, version: int) -> DataFrame:
    return (
        parsed(trades)
        .groupBy(F.date_trunc("hour", "ts").alias("ts"), "key")
        .agg(F.sum(F.col("id") + version).alias("n"), F.count("*").alias("of"))
    )


def payload_running(trades: DataFrame, version: int) -> DataFrame:
    window = SparkWindow.partitionBy("key").orderBy("ts", "id").rowsBetween(-(2**31), 0)
    total = F.sum(F.col("id") * version).over(window)
    return parsed(trades).select("ts", "id", total.alias("n"))


def payload_moving(trades: DataFrame, version: int) -> DataFrame:
    window = (
        SparkWindow.partitionBy("key").orderBy(F.unix_micros("ts")).rangeBetween(-7_200_000_000, 0)
    )
    total = F.sum(F.col("id") + version).over(window)
    return parsed(trades).select("ts", "id", total.alias("n"))


def sums_of_six_hours(trades: DataFrame, version: int) -> DataFrame:
    seconds = F.unix_seconds(TIME)
    begin = F.timestamp_seconds(seconds - seconds % (6 * 3600)).alias("ts")
    return trades.groupBy(begin, "key").agg(F.sum(F.col("id") + version).alias("n"))


def next_of_key(trades: DataFrame, version: int) -> DataFrame:
    """The sum of what follows within two hours."""
    window = (
        SparkWindow.partitionBy("key").orderBy(F.unix_micros(TIME)).rangeBetween(1, 7_200_000_000)
    )
    total = F.sum(F.col("id") + version).over(window)
    return trades.select(F.col(TIME).alias("ts"), "id", total.alias("n"))


def shape(random: Random) -> Shape:
    back, late, early = random.choice([1, 2, 5]), random.choice([1, 3, 7]), random.choice([1, 2])
    return random.choice(
        [
            Shape(source_time),
            Shape(sums_by_minute),
            Shape(all_but_first),
            Shape(moving(back), lookback=back * HOUR),
            Shape(running, lookback=FOREVER),
            Shape(payload_time, lookahead=late * HOUR, late=late),
            Shape(payload_sums, lookahead=(late + 1) * HOUR, late=late),
            Shape(payload_time, lookahead=FOREVER, late=20),
            Shape(payload_time, early * HOUR, late * HOUR, late=late, early=early),
            Shape(payload_running, FOREVER, FOREVER, late=late),
            Shape(payload_moving, 2 * HOUR, late * HOUR, late=late),
            Shape(sums_of_six_hours, lookahead=6 * HOUR),
            Shape(next_of_key, lookahead=2 * HOUR),
        ]
    )


class Case:
    """A source, a table that is derived from it, and what happens to them."""

    def __init__(self, spark: SparkSession, catalog: Catalog, random: Random, shape: Shape) -> None:
        self.spark, self.catalog, self.random, self.shape = spark, catalog, random, shape
        name = f"t{uuid.uuid4().hex[:8]}"
        self.source, self.number, self.version = (NAMESPACE, f"{name}_source"), 0, 1
        self.plan = Derivation(
            sources=(
                Source(self.source, TIME, lookback=shape.lookback, lookahead=shape.lookahead),
            ),
            target=(NAMESPACE, name),
            transform=lambda trades: shape.function(trades, self.version),
            target_time="ts",
            first=START,
            version="1",
        )

    def arrive(self, number: int) -> None:
        values = []
        for _ in range(number):
            self.number += 1
            minutes = self.random.choice([0, 0.5, 1, 30, 59, 59.9])
            at = START + self.random.randrange(ARRIVALS) * HOUR + timedelta(minutes=minutes)
            offset = self.random.choice(
                [0, -self.shape.late, self.shape.early, self.random.uniform(-self.shape.late, 0)]
            )
            ts = at + timedelta(hours=offset)
            text = f"{ts:%Y-%m-%d %H:%M:%S.%f},{self.number}"
            values.append((at, self.number, self.random.choice("abc"), text))
        frame = self.spark.createDataFrame(values, SCHEMA)
        if self.number > number:
            frame.writeTo(spark_name(self.source)).append()
        else:
            create_table(self.spark, frame, self.source, TIME)

    def write(self, first: int, stop: int) -> None:
        start = START + first * HOUR if first else None
        write_window(self.spark, self.catalog, self.plan, Window(start, START + stop * HOUR))

    def split(self) -> None:
        """Compute a part of the range in runs of any length and order."""
        first = self.random.randrange(HOURS)
        stop = self.random.randrange(first, HOURS) + 1
        cuts = sorted({first, stop, *self.random.sample(range(first, stop), min(2, stop - first))})
        runs = list(pairwise(cuts))
        self.random.shuffle(runs)
        for run in runs:
            self.write(*run)

    def change(self) -> None:
        """Change the function."""
        self.version += 1
        self.plan = replace(self.plan, version=str(self.version))

    def late_hours(self) -> list[Hours]:
        """Return what the table's metadata says that is not computed, of the range."""
        try:
            table = self.catalog.load_table(self.plan.target)
        except NoSuchTableError:
            table = None
        sources = self.plan.source_tables(self.catalog.load_table)
        found = [
            Hours(each.start, each.stop)
            for read in unread(table, "ts", sources).values()
            for each in read.unread
        ]
        found += outdated(computed_by(table), self.plan.version)
        clipped = (
            Hours(max(h.start, FIRST), min(max(h.stop, FIRST + 1), FIRST + HOURS)) for h in found
        )
        return union(each for each in clipped if each)

    def settle(self) -> None:
        """Compute what is late, in runs of any length."""
        for _ in range(30):
            hours = self.late_hours()
            if not hours:
                return
            start, stop = hours[0].start - FIRST, hours[0].stop - FIRST
            self.write(start, self.random.choice([stop, self.random.randrange(start, stop) + 1]))
        raise AssertionError("there is always something to compute")

    def verify(self) -> None:
        """The table is what the function returns for everything."""
        source = self.spark.table(spark_name(self.source))
        expected = rows(self.shape.function(source, self.version))
        found, key = rows(self.spark.table(spark_name(self.plan.target))), str
        assert sorted(found, key=key) == sorted(expected, key=key)
        assert {row["ts"] for row in found} <= {row["ts"] for row in expected}


@pytest.fixture(scope="module")
def spark(stack: Endpoints) -> Iterator[SparkSession]:
    stack.catalog(settings()).create_namespace_if_not_exists(NAMESPACE)
    with spark_session() as session:
        yield session


def try_table(stack: Endpoints, spark: SparkSession, seed: int) -> None:
    random = Random(seed)
    case = Case(spark, stack.catalog(settings()), random, shape(random))
    case.arrive(40)
    for _ in range(3):
        random.choice([case.split, case.split, lambda: case.arrive(8), case.change])()
    case.settle()
    case.verify()


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]
)
def test_random_table_in_any_runs_equals_the_whole(
    stack: Endpoints, spark: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commit_several_times(monkeypatch)
    try_table(stack, spark, seed)


def _commit_several_times(patch: pytest.MonkeyPatch) -> None:
    """Let some runs have several commits."""
    for module in (derived, placement):
        patch.setattr(module, "AT_ONCE", 3)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_random_tables_in_any_runs_equal_the_whole(
    stack: Endpoints, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commit_several_times(monkeypatch)
    number = int(os.environ.get("TOPICBERG_TEST_TABLES", "200"))
    first = int(os.environ.get("TOPICBERG_TEST_SEED", "1000"))
    failed: dict[int, str] = {}
    for seed in range(first, first + number):
        try:
            try_table(stack, spark, seed)
        except (AssertionError, TopicbergError) as error:
            failed[seed] = str(error)[:500]
            print(f"seed {seed}: {failed[seed]}", flush=True)  # noqa: T201
    print(f"{number - len(failed)} of {number} tables equal the whole")  # noqa: T201
    assert not failed


@pytest.mark.parametrize(
    ("shape", "runs", "named"),
    [
        (Shape(payload_time, late=3), [(0, HOURS)], "lookahead=timedelta"),
        (Shape(payload_time, lookahead=FOREVER, early=3), [(0, HOURS)], "lookback=timedelta"),
        *(
            pytest.param(shape, runs, "lookahead=timedelta", marks=pytest.mark.slow)
            for shape, runs in (
                (Shape(payload_time, lookback=FOREVER, late=3), [(7, 8)]),
                (Shape(sums_of_six_hours), [(0, HOURS)]),
            )
        ),
    ],
)
def test_rows_that_no_run_would_find_are_refused(
    stack: Endpoints, spark: SparkSession, shape: Shape, runs: list[tuple[int, int]], named: str
) -> None:
    """Also where all of them are in the range of the run."""
    case = Case(spark, stack.catalog(settings()), Random(1), shape)
    case.arrive(60)

    def compute() -> None:
        for run in runs:
            case.write(*run)

    expected = "of its sources, its function returns a row"
    with pytest.raises(TopicbergError, match=expected) as refused:
        compute()
    assert named in (refused.value.hint or "")
