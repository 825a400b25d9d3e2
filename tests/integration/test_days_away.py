"""Three days of commits without a daemon, snapshots expired, the cursor lost: all is computed."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from random import Random
from typing import Any

import dagster as dg
import fastavro
import pytest
from confluent_kafka import Producer
from kafka_topics import encode
from pyspark.sql import DataFrame, SparkSession
from snapshot_daemon import Daemon, snapshot_daemon

from definitions import defs
from topicberg.checks import check
from topicberg.datagen import record_generator
from topicberg.endpoints import Endpoints
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg.maintenance import MaintenancePolicy, maintain, maintain_table
from topicberg.iceberg.summaries import ancestry
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.assets.derived import DerivedTable, with_parameters
from topicberg.orchestration.jobs import sensors
from topicberg.orchestration.jobs.pipelines import EVERYTHING
from topicberg.orchestration.jobs.sensors import snapshot_sensor
from topicberg.settings import settings
from topicberg.tableflow.service.engine import run_once
from topicberg.tableflow.service.history import history_table, ingest_history
from topicberg.testing import rows, spark_session
from topicberg.topics import load_topic, load_topics
from topicberg.transforms.spark_tables import spark_name

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

GENERATORS = {
    "stock_trades": ("stock_trades", 40, "symbol"),
    "sample_data_users": ("users", 8, "userid"),
    "airline.sunset": ("sunset", 15, None),
    "airline.skyone": ("skyone", 15, None),
}
"""The topics, with how many records a commit has, and which field is the key."""
BEFORE, AWAY, COMMITS = timedelta(hours=8), timedelta(hours=72), 4
SIMPLE = {"stock_trades_with_totals", "stock_total_trades"}
HASTY = MaintenancePolicy(
    retention=timedelta(0),
    min_snapshots=1,
    max_snapshots=1,
    reader_age=timedelta(0),
    max_young=1,
    compact_after=timedelta(0),
    compact_bytes=0,
)
"""What three days of maintenance keep: the newest snapshot, and of the files what is compacted."""


class Producers:
    """Producers of all topics, which write at times of their own."""

    def __init__(self, stack: Endpoints) -> None:
        self.stack = stack
        self.random = random = Random(18)
        self.records = {
            name: record_generator(kind)(random, 1) for name, (kind, _, _) in GENERATORS.items()
        }
        self.producer = Producer(stack.kafka_config())

    def send(self, name: str, begin: datetime, end: datetime, earliest: datetime) -> None:
        """Records of a time, and a few that are late, by up to days."""
        _, count, key_field = GENERATORS[name]
        registry = self.stack.schema_registry_client()
        found = registry.get_latest_version(load_topic(name).value_subject)
        assert found.schema_id is not None
        assert found.schema.schema_str is not None
        parsed = fastavro.parse_schema(json.loads(found.schema.schema_str))
        for number in range(count):
            since = earliest if number % 10 == 9 else begin
            moment = since + (end - since) * self.random.random()
            record = next(self.records[name])
            value: bytes | None = wire_prefix(found.schema_id) + encode(parsed, record)
            if name == "sample_data_users" and number % 8 == 7:
                value = None  # the user is deleted
            key = str(record[key_field]).encode() if key_field else None
            at_ms = int(moment.timestamp() * 1000)
            self.producer.produce(name, value, key, timestamp=at_ms)
        assert self.producer.flush(60) == 0


def watched_lake() -> Lake:
    """The tables with a lookback, a lookup, two sources, or a derived table as a source."""
    derived = tuple(one for one in find_derived() if one.name not in SIMPLE)
    topics = tuple(spec for spec in load_topics() if spec.publishes is None)
    return Lake(settings(), topics, derived)


class Clock:
    """The time of the sensor, a minute later whenever the test says so."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return time.time() + self.ahead


class Later(datetime):
    """The time of the checks: what was committed a moment ago is not excused as too young."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Later:
        return cls.fromtimestamp(time.time() + 7200, tz)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sensors, "_now", clock.now)
    monkeypatch.setattr(check, "datetime", Later)
    return clock


@pytest.fixture
def daemon(stack: Endpoints, tmp_path: Path) -> Iterator[Daemon]:
    lake = watched_lake()
    with snapshot_daemon(snapshot_sensor(lake), tmp_path) as daemon:
        yield daemon


def settle(daemon: Daemon, clock: Clock) -> None:
    """Tick until nothing is left to do, also of what the sensor inspects once a minute only."""
    while True:
        daemon.settle()
        before = len(daemon.runs)
        clock.ahead += sensors.LOOKING_BACK_SECONDS
        daemon.settle()
        if len(daemon.runs) == before:
            return


def commit(stack: Endpoints) -> None:
    for name in GENERATORS:
        run_once(load_topic(name), stack, settings())
    ingest_history(load_topic("sample_data_users"), stack, settings())


def expire(stack: Endpoints, lake: Lake) -> None:
    """Let maintenance compact every table, and expire every snapshot that it may."""
    for name in GENERATORS:
        maintain(load_topic(name), stack, settings(), HASTY)
    of_topics = {load_topic(name).table_identifier(settings()) for name in GENERATORS}
    catalog = stack.catalog(settings())
    for table in lake.tables:
        if table.identifier not in of_topics and catalog.table_exists(table.identifier):
            found = catalog.load_table(table.identifier)
            maintain_table(found, stack, HASTY, time=table.time)


def recomputed(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """All rows of a table, from nothing but the tables of the topics."""
    derived: DerivedTable | None = lake.derived_by_name.get(name)
    if derived is None:
        return spark.table(spark_name(lake.origin(name).identifier))
    sources = [recomputed(spark, lake, each) for each in (*derived.sources, *derived.lookups)]
    function = with_parameters(derived.transform, derived.parameters_of(lake.root(derived)))
    frame: DataFrame = function(*sources)
    return frame


def newest_bookings(spark: SparkSession) -> list[dict[str, Any]]:
    """The view ``airline_sunset_by_route``, in plain Python."""
    spec = load_topic("airline.sunset")
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    bookings = rows(spark.table(spark_name(spec.table_identifier(settings()))))
    for row in sorted(bookings, key=lambda one: (one["$$partition"], one["$$offset"])):
        found[tuple(row[name] for name in spec.upsert_views["airline_sunset_by_route"])] = row
    return list(found.values())


def counted(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str(sorted(row.items())) for row in found)


def failing(daemon: Daemon, lake: Lake) -> set[str]:
    """The derived tables whose check ``up_to_date`` fails."""
    keys = {
        dg.AssetCheckKey(lake.table(derived).key("iceberg"), "up_to_date")
        for derived in lake.derived
    }
    job = defs.resolve_job_def(EVERYTHING)
    selected = job.get_subset(asset_selection=set(), asset_check_selection=keys)
    ran = selected.execute_in_process(instance=daemon.instance, raise_on_error=False)
    evaluations = ran.get_asset_check_evaluations()
    assert len(evaluations) == len(keys)
    return {one.asset_key.path[-1] for one in evaluations if not one.passed}


def test_daemon_away_for_three_days_loses_nothing(
    stack: Endpoints, daemon: Daemon, clock: Clock
) -> None:
    lake = watched_lake()
    now = datetime.now(UTC)
    start = now - AWAY - BEFORE
    producers = Producers(stack)
    for name in GENERATORS:
        kafka.ensure_topic(load_topic(name), stack, settings())
        producers.send(name, start, now - AWAY, start)
    commit(stack)
    settle(daemon, clock)
    known = {
        derived.name: lake_snapshot(stack, lake, derived.name) for derived in lake.derived
    }  # every table is computed once
    read = {name: lineage(stack, name)[0] for name in GENERATORS}

    slices = [now - AWAY + AWAY * number / COMMITS for number in range(COMMITS + 1)]
    for number in range(COMMITS):
        for name in GENERATORS:
            producers.send(name, slices[number], slices[number + 1], start)
        commit(stack)
        if number % 2 == 1:
            expire(stack, lake)
    for name, snapshot in read.items():
        assert snapshot not in lineage(stack, name)  # what the sensor has read is expired
    daemon.lose_cursor()
    # What reads derived tables only has read all of them: those are behind, and their checks fail.
    assert failing(daemon, lake) == {
        derived.name
        for derived in lake.derived
        if not {*derived.sources, *derived.lookups} <= lake.derived_by_name.keys()
    }

    settle(daemon, clock)
    assert failing(daemon, lake) == set()
    with spark_session() as spark:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for derived in lake.derived:
            identifier = lake.table(derived).identifier
            assert lake_snapshot(stack, lake, derived.name) != known[derived.name]
            found = counted(rows(spark.table(spark_name(identifier))))
            expected = counted(rows(recomputed(spark, lake, derived.name)))
            assert expected, derived.name
            assert found == expected, f"{derived.name}: {found - expected}, {expected - found}"
        (view,) = [one for one in lake.tables if one.name == "airline_sunset_by_route"]
        assert counted(rows(spark.table(spark_name(view.identifier)))) == counted(
            newest_bookings(spark)
        )
        history = spark.table(spark_name(history_table(load_topic("sample_data_users"))))
        sent = sum(kafka.end_offsets(stack, "sample_data_users").values())
        assert history.count() == sent


def lineage(stack: Endpoints, topic: str) -> list[int]:
    """The snapshots of a topic's table that there still are, the newest first."""
    identifier = load_topic(topic).table_identifier(settings())
    table = stack.catalog(settings()).load_table(identifier)
    return [snapshot.snapshot_id for snapshot in ancestry(table)]


def lake_snapshot(stack: Endpoints, lake: Lake, name: str) -> int | None:
    table = stack.catalog(settings()).load_table(lake.table(lake.derived_by_name[name]).identifier)
    head = table.current_snapshot()
    return head.snapshot_id if head else None
