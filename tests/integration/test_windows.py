"""After late data, partial backfills and failed runs in any order, tables equal the reference."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from faulty_proxy import FaultyProxy, glue_limits
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_derived_tables import RULES, Row

from topicberg.endpoints import CATALOG, Endpoints
from topicberg.iceberg.summaries import ancestry, summary
from topicberg.settings import settings
from topicberg.testing import create_table, rows, spark_session, topic_frame
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import FailedPartitionsError, write_window
from topicberg.transforms.spark_tables import spark_name
from topicberg.transforms.unread import unread
from topicberg.transforms.upsert_view import UpsertView, refresh
from topicberg.transforms.windows import WINDOW, Window

pytestmark = [pytest.mark.integration]

START = datetime(2026, 1, 1, 10, tzinfo=UTC)
HOURS = 3
NAMESPACE = "windows"


def trade(random: Random) -> Row:
    """Near the hours' borders, over which the lookback reaches; often at the same time."""
    minutes = random.randrange(HOURS) * 60 + random.choice([0, 0.5, 1, 30, 59, 59.5])
    return {
        "$$timestamp": START + timedelta(minutes=minutes),
        "symbol": random.choice(["ZVV", "ZBZX"]),
        "price": random.choice([None, *range(1, 12)]),
        "quantity": random.choice([None, 39, 41]),
        "side": "BUY",
        "userid": "User_1",
        "account": "ABC123",
    }


def window(first: int, last: int) -> Window:
    return Window(START + timedelta(hours=first), START + timedelta(hours=last + 1))


@pytest.mark.parametrize("partitioned_by", ["hour", "day"])
def test_first_partition_keeps_what_its_sources_no_longer_have(
    stack: Endpoints, spark: SparkSession, partitioned_by: str
) -> None:
    """It has everything before it, and is computed again for its own hours."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    today, name = now.replace(hour=0), f"t{uuid.uuid4().hex[:8]}"
    catalog = stack.catalog(settings())
    catalog.create_namespace_if_not_exists(NAMESPACE)
    source = (NAMESPACE, f"{name}_trades")
    end = today + timedelta(days=1)
    derivation = Derivation(
        sources=(Source(source, "$$timestamp", kept=timedelta(days=30)),),
        target=(NAMESPACE, name),
        transform=lambda trades: trades.select("$$timestamp", "quantity"),
        target_time="$$timestamp",
        partitioned_by=partitioned_by,
        first=today,
    )

    def arrive(days_ago: int, quantity: int) -> DataFrame:
        row = {"$$timestamp": today - timedelta(days=days_ago), "quantity": quantity}
        return topic_frame(spark, "stock_trades", [row]).drop("$$headers")

    def quantities() -> list[int]:
        found = rows(spark.table(spark_name(derivation.target)))
        return sorted(row["quantity"] for row in found)

    create_table(spark, arrive(40, 1), source, "$$timestamp")
    arrive(20, 2).writeTo(spark_name(source)).append()
    arrive(0, 3).writeTo(spark_name(source)).append()
    write_window(spark, catalog, derivation, Window(None, end))
    assert quantities() == [1, 2, 3]
    spark.sql(f"DELETE FROM {spark_name(source)} WHERE quantity IN (1, 2)")  # 1: its retention
    arrive(0, 4).writeTo(spark_name(source)).append()
    write_window(spark, catalog, derivation, Window(None, end))
    assert quantities() == [1, 3, 4]


def test_tables_are_created_within_glues_limits(stack: Endpoints, spark: SparkSession) -> None:
    """PyIceberg and Spark reach the catalog through what refuses like Glue's REST API."""
    name, partition = f"t{uuid.uuid4().hex[:8]}", ("$$partition", "$$offset")
    source = (NAMESPACE, f"{name}_trades")
    stack.catalog(settings()).create_namespace_if_not_exists(NAMESPACE)
    frame = topic_frame(spark, "stock_trades", [trade(Random(1)) for _ in range(5)])
    create_table(spark, frame.drop("$$headers"), source, "$$timestamp")
    derivation = Derivation(
        sources=(Source(source, "$$timestamp", lookback=RULES.window),),
        target=(NAMESPACE, name),
        transform=lambda trades: trades.withColumnRenamed("$$timestamp", "at"),
        target_time="at",
    )
    view = UpsertView(source, (NAMESPACE, f"{name}_newest"), ("symbol",), partition)
    with FaultyProxy(stack.iceberg_rest, refuse=glue_limits) as glue, spark_session() as session:
        session.conf.set(f"spark.sql.catalog.{CATALOG}.uri", glue.url)
        catalog = stack.model_copy(update={"iceberg_rest": glue.url}).catalog(settings())
        with pytest.raises(Exception, match="Stage create is not supported"):
            session.sql(f"CREATE TABLE {spark_name((NAMESPACE, 'ctas'))} AS SELECT 1 AS id")
        assert write_window(session, catalog, derivation, window(0, HOURS - 1)).rows == 5
        refresh(session, catalog, view)
    assert rows(spark.table(spark_name(view.target)).select("symbol").distinct())


@dataclass(frozen=True)
class Copied:
    """A table that holds the rows of its source; neither is created yet."""

    catalog: Catalog
    source: tuple[str, str]
    derivation: Derivation


@pytest.fixture
def copied(stack: Endpoints) -> Copied:
    catalog, name = stack.catalog(settings()), f"t{uuid.uuid4().hex[:8]}"
    catalog.create_namespace_if_not_exists(NAMESPACE)
    source = NAMESPACE, f"{name}_source"
    sources = (Source(source, "at"),)
    return Copied(catalog, source, Derivation(sources, (NAMESPACE, name), lambda rows: rows, "at"))


class Overtaken:
    """A catalog: right after it loaded a source for a writer, another writer does its work."""

    def __init__(self, catalog: Catalog, source: tuple[str, str], other: Callable[[], object]):
        self._catalog, self._source, self._other = catalog, source, [other]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, identifier: tuple[str, str]) -> Any:
        found = self._catalog.load_table(identifier)
        if identifier == self._source and self._other:
            self._other.pop()()
        return found


@pytest.mark.parametrize("kind", ["window", "first window", "view", "first view"])
def test_writer_with_older_sources_does_not_win(
    spark: SparkSession, copied: Copied, kind: str
) -> None:
    """Another writer reads newer sources and commits while it has loaded its own already."""
    catalog, source, target = copied.catalog, copied.source, copied.derivation.target
    view = UpsertView(source, target, keys=("id",), order=("version",))

    def write(catalog: Any) -> None:
        if "view" in kind:
            refresh(spark, catalog, view)
        else:
            write_window(spark, catalog, copied.derivation, window(0, 0))

    def arrive(version: int) -> None:
        columns = "at timestamp, id long, version long"
        frame = spark.createDataFrame([(START + timedelta(minutes=version), 1, version)], columns)
        if version:
            frame.writeTo(spark_name(source)).append()
        else:
            create_table(spark, frame, source, "at")

    def other() -> None:
        arrive(2)
        write(catalog)

    arrive(0)
    if "first" not in kind:
        write(catalog)
    arrive(1)
    write(Overtaken(catalog, source, other))
    found = [row["version"] for row in spark.table(spark_name(target)).collect()]
    assert sorted(found) == ([2] if "view" in kind else [0, 1, 2])


def test_source_whose_snapshot_expires_is_read_again(spark: SparkSession, copied: Copied) -> None:
    """After it was loaded, and before the tag that protects it."""
    catalog, source = copied.catalog, copied.source
    frame = spark.createDataFrame([(START, 1)], "at timestamp, id long")
    create_table(spark, frame, source, "at")

    def expire() -> None:
        read = catalog.load_table(source).current_snapshot()
        frame.writeTo(spark_name(source)).append()
        assert read is not None
        catalog.load_table(source).maintenance.expire_snapshots().by_id(read.snapshot_id).commit()

    overtaken: Any = Overtaken(catalog, source, expire)
    assert write_window(spark, overtaken, copied.derivation, window(0, 0)).rows == 2


@pytest.mark.parametrize("kind", ["window", "view"])
def test_source_with_a_new_column_and_no_newer_snapshot(
    spark: SparkSession, copied: Copied, kind: str
) -> None:
    """The engine adds a column before it commits records that have it; a quiet topic has none."""
    catalog, source, target = copied.catalog, copied.source, copied.derivation.target
    frame = spark.createDataFrame([(START, 1, (2,))], "at timestamp, id long, in struct<a:int>")
    create_table(spark, frame, source, "at")
    spark.sql(f"ALTER TABLE {spark_name(source)} ADD COLUMNS (note string, in.b string)")
    spark.sql(f"ALTER TABLE {spark_name(source)} ALTER COLUMN id COMMENT 'new'")
    if kind == "view":
        refresh(spark, catalog, UpsertView(source, target, keys=("id",), order=("at",)))
    else:
        write_window(spark, catalog, copied.derivation, window(0, 0))
    (row,) = spark.table(spark_name(target)).collect()
    assert row.asDict(recursive=True).items() >= {"id": 1, "note": None}.items()
    assert row["in"].asDict() == {"a": 2, "b": None}
    found = catalog.load_table(target).schema()
    assert [found.find_field(column).doc for column in ("id", "note")] == ["new", None]


@pytest.mark.parametrize("lookback", [None, timedelta(hours=2)])
def test_scattered_windows_are_one_commit_of_exactly_these(
    spark: SparkSession, copied: Copied, lookback: timedelta | None
) -> None:
    """Late rows may be in any hours; with a lookback, of windows apart that read the same hours."""
    catalog, source, plan = copied.catalog, copied.source, copied.derivation
    plan = replace(plan, sources=tuple(replace(one, lookback=lookback) for one in plan.sources))
    hours = [START + timedelta(hours=hour) for hour in range(12)]
    create_table(
        spark, spark.createDataFrame([(at,) for at in hours], "at timestamp"), source, "at"
    )
    write_window(spark, catalog, plan, window(0, 11))
    spark.createDataFrame([(at,) for at in hours], "at timestamp").writeTo(
        spark_name(source)
    ).append()
    late = [window(1, 1), window(3, 3), window(6, 7), window(11, 11)]
    written = write_window(spark, catalog, plan, *late)
    assert (written.rows, [*written.windows]) == (10, late)
    first = int(START.timestamp()) // 3600
    assert written.rows_by_hour == {first + hour: 2 for hour in (1, 3, 6, 7, 11)}
    found = rows(spark.table(spark_name(plan.target)).groupBy("at").count())
    assert {row["at"]: row["count"] for row in found} == {
        at: 2 if hour in (1, 3, 6, 7, 11) else 1 for hour, at in enumerate(hours)
    }
    target = catalog.load_table(plan.target)
    assert sum(WINDOW in summary(each) for each in ancestry(target)) == 2
    sources = plan.source_tables(lambda name: catalog.load_table(name))
    (read,) = unread(target, "at", sources).values()
    left = {hour for each in read.unread for hour in range(each.start - first, each.stop - first)}
    reached_later = {1, 3, 6, 7, 11} if lookback is None else set()
    assert left >= {0, 2, 4, 5, 8, 9, 10}
    assert not left & reached_later


def test_hour_that_cannot_be_computed_is_named_and_the_others_are(
    spark: SparkSession, copied: Copied
) -> None:
    """In a worker of Spark, where one row of 24 hours is wrong."""

    def inverse(at: datetime, number: int) -> float:
        return 1 / number

    catalog, source, inverted = copied.catalog, copied.source, F.udf(inverse, "double")
    plan = replace(
        copied.derivation, transform=lambda rows: rows.withColumn("n", inverted("at", "n"))
    )
    numbers = [(START + timedelta(hours=hour), hour - 16) for hour in range(24)]
    create_table(spark, spark.createDataFrame(numbers, "at timestamp, n int"), source, "at")
    with pytest.raises(FailedPartitionsError) as failed:
        write_window(spark, catalog, plan, window(0, 23))
    named = f"1 partition cannot be computed ({START + timedelta(hours=16):%F %H:%M} to 03:00)"
    assert named in failed.value.message
    assert "ZeroDivisionError: division by zero; all others" in failed.value.message
    assert failed.value.written.rows == 23
    assert spark.table(spark_name(plan.target)).count() == 23
