"""Tables for which a tick requests the same partitions are computed by one run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import dagster as dg
import pyarrow as pa
import pytest
from dagster import DagsterEventType
from dagster._core.events import JobFailureData, RunFailureReason
from memory_instance import memory_instance
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform
from pyiceberg.types import NestedField, TimestamptzType
from snapshot_daemon import serve_catalog

from definitions import defs
from topicberg.iceberg.tables import find_table
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.assets.partitions import (
    RANGE_END,
    RANGE_START,
    requested_windows,
    time_partitions,
)
from topicberg.orchestration.jobs.pipelines import COMPUTE
from topicberg.orchestration.jobs.registration import Registrar
from topicberg.orchestration.jobs.sensors import snapshot_sensor
from topicberg.orchestration.jobs.watches import HOURS, MAX_DELAY_SECONDS
from topicberg.orchestration.resources import RESOURCES
from topicberg.settings import settings
from topicberg.topics import load_topic
from topicberg.transforms.derived import summary_of

TIME, TOPIC = "$$timestamp", "stock_trades"
MOVING = "flagged_stock_trades"
"""Reads the hour before a trade; the other tables of the topic do not."""
OTHERS = {"stock_trades_with_totals", "stock_total_trades"}
SCHEMA = Schema(NestedField(1, TIME, TimestamptzType(), required=False))
HOURLY = PartitionSpec(PartitionField(1, 1000, HourTransform(), "hour"))


@dataclass
class Trades:
    """The table of trades, and the sensor beside runs whose ends a test chooses."""

    catalog: SqlCatalog
    instance: dg.DagsterInstance
    now: float = field(default_factory=lambda: time.time() // 3600 * 3600)
    """The sensor's clock begins with an hour: no other begins while a test moves it."""
    cursor: str | None = None
    requests: list[dg.RunRequest] = field(default_factory=list)
    runs: list[tuple[dg.DagsterRun, dg.RunRequest]] = field(default_factory=list)
    """Those that have not ended."""

    def __post_init__(self) -> None:
        derived = tuple(table for table in find_derived() if table.name in {MOVING, *OTHERS})
        self.lake = Lake(settings(), (load_topic(TOPIC),), derived)
        self.sensor = snapshot_sensor(self.lake, Registrar(lambda _: []))
        identifier = self.lake.topics[0].table_identifier(settings())
        self.catalog.create_namespace(identifier[0])
        self.table = self.catalog.create_table(identifier, SCHEMA, partition_spec=HOURLY)

    def commit(self, *hours_ago: int) -> None:
        now = datetime.fromtimestamp(self.now, UTC).replace(minute=30, second=0)
        times = [now - timedelta(hours=ago) for ago in hours_ago]
        self.table.append(pa.table({TIME: times}, SCHEMA.as_arrow()))

    def start(self) -> None:
        """Let everything be computed for the first time."""
        self.commit(0)
        while self.tick():
            self.end()
        self.requests = []

    def tick(self) -> list[set[str]]:
        """Return the tables of the runs that a tick requests to compute them."""
        asked = self.evaluate(keep=True)
        assert len({each.run_key for each in asked}) == len(asked)
        self.requests += asked
        for each in asked:
            run = self.instance.create_run_for_job(
                defs.resolve_job_def(COMPUTE),
                status=dg.DagsterRunStatus.STARTED,
                tags={**each.tags, "dagster/run_key": str(each.run_key)},
                asset_selection=frozenset(each.asset_selection or ()),
            )
            self.runs.append((run, each))
        return [tables(each) for each in asked]

    def evaluate(self, *, keep: bool = False) -> list[dg.RunRequest]:
        """Return the runs of computations that a tick requests.

        :param keep: Dagster stores its cursor
        """
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            repository_def=defs.get_repository_def(),
            resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
        )
        tick = self.sensor.evaluate_tick(context)
        self.cursor = tick.cursor or self.cursor if keep else self.cursor
        return [each for each in tick.run_requests or () if each.job_name.startswith(COMPUTE)]

    def end(self, reason: RunFailureReason | None = None, computed: set[str] | None = None) -> None:
        """Let all runs that were requested end.

        :param reason: they fail; None: they succeed
        :param computed: the tables that they compute; None: all of them if they succeed
        """
        how, data = DagsterEventType.RUN_SUCCESS, None
        if reason:
            how, data = DagsterEventType.RUN_FAILURE, JobFailureData(None, failure_reason=reason)
        for run, request in self.runs:
            done = computed if computed is not None else set() if reason else tables(request)
            for name in tables(request) & done:
                self._compute(name, request)
            event = dg.DagsterEvent(how.value, run.job_name, event_specific_data=data)
            self.instance.report_dagster_event(event, run.run_id, timestamp=self.now)
        self.runs = []

    def _compute(self, name: str, request: dg.RunRequest) -> None:
        """Write what the commit of a run writes, without rows."""
        plan, find = self.lake.plan_of(name), partial(find_table, self.catalog)
        self.catalog.create_namespace_if_not_exists(plan.target[0])
        schema = Schema(NestedField(1, plan.target_time, TimestamptzType()))
        target = find(plan.target) or self.catalog.create_table(plan.target, schema)
        sources = {each.name: self.catalog.load_table(each.table) for each in plan.sources}
        windows = requested_windows(time_partitions(self.lake.topics[0]), request.tags)
        properties = summary_of(plan, target, sources, windows, [])
        target.append(schema.as_arrow().empty_table(), snapshot_properties=properties)


def tables(request: dg.RunRequest) -> set[str]:
    return {key.path[-1] for key in request.asset_selection or () if key.path[0] == "iceberg"}


@pytest.fixture
def trades(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trades]:
    serve_catalog(monkeypatch, catalog)
    with memory_instance() as instance:
        trades = Trades(catalog, instance)
        monkeypatch.setattr("topicberg.orchestration.jobs.sensors._now", lambda: trades.now)
        yield trades


def test_one_run_computes_all_that_follow_from_the_same_hours(trades: Trades) -> None:
    trades.start()
    trades.commit(0)
    assert trades.tick() == [{MOVING, *OTHERS}]
    request = trades.requests[-1]
    assert request.tags[RANGE_START] == request.tags[RANGE_END]
    trades.commit(0)
    assert trades.tick() == [], "it is under way"
    trades.end()
    trades.commit(0)
    assert trades.tick() == [{MOVING, *OTHERS}]
    trades.end()
    assert trades.tick() == []


def test_lost_tick_requests_the_same_runs_again(trades: Trades) -> None:
    trades.start()
    trades.commit(0)
    (lost,), (again,) = trades.evaluate(), trades.evaluate()
    assert lost.run_key == again.run_key


def test_reset_cursor_requests_nothing_that_is_computed(trades: Trades) -> None:
    trades.start()
    trades.cursor = None
    assert trades.tick() == []


def test_hours_that_a_lookback_reaches_are_a_run_of_their_own(trades: Trades) -> None:
    trades.start()
    trades.commit(5)
    assert sorted(trades.tick(), key=len) == [{MOVING}, OTHERS]
    (request,) = (each for each in trades.requests[-2:] if tables(each) == {MOVING})
    assert request.tags[RANGE_START] < request.tags[RANGE_END]


def test_run_that_failed_is_tried_again_for_each_table_of_which_something_is_left(
    trades: Trades,
) -> None:
    """What fails for one of them would fail the others again and again."""
    trades.start()
    trades.commit(0)
    assert trades.tick() == [{MOVING, *OTHERS}]
    trades.end(RunFailureReason.STEP_FAILURE, computed={"stock_total_trades"})
    assert trades.tick() == [], "it waits for the next attempt"
    trades.now += MAX_DELAY_SECONDS
    assert sorted(trades.tick(), key=str) == [set(), {MOVING}, {"stock_trades_with_totals"}]
    (registered,) = (each for each in trades.requests[-3:] if not tables(each))
    keys = registered.asset_selection or ()
    assert {key.path[0] for key in keys} == {"glue", "snowflake"}
    assert {key.path[-1] for key in keys} == {"stock_total_trades"}, "it is computed"
    trades.end()
    trades.tick()
    trades.commit(0)
    assert trades.tick() == [{MOVING, *OTHERS}]


def test_hours_that_fail_do_not_keep_others_from_being_computed(trades: Trades) -> None:
    trades.start()
    trades.commit(9)
    trades.tick()
    trades.end(RunFailureReason.STEP_FAILURE)
    trades.commit(0)
    assert trades.tick() == [{MOVING, *OTHERS}]
    assert trades.requests[-1].tags[RANGE_START] == trades.requests[-1].tags[RANGE_END]


def test_killed_run_is_requested_again_for_all_its_tables(trades: Trades) -> None:
    """The process was killed; only a table that ends it again and again is found by itself."""
    trades.start()
    trades.commit(0)
    together, apart = [{MOVING, *OTHERS}], [{name} for name in sorted({MOVING, *OTHERS})]
    for tables_of_runs in (together, together, apart):
        assert sorted(trades.tick(), key=str) == tables_of_runs
        assert trades.requests[-1].tags["dagster/max_retries"] == "0", "Dagster starts it no more"
        trades.end(RunFailureReason.UNKNOWN)
        trades.now += MAX_DELAY_SECONDS
    keys = [each.run_key for each in trades.requests]
    assert len({*keys}) == len(keys), "Dagster launches no key twice"


def test_scattered_hours_are_one_run_of_exactly_these(trades: Trades) -> None:
    trades.start()
    trades.commit(*range(0, 600, 3))
    assert OTHERS in trades.tick()
    request = next(each for each in trades.requests if tables(each) == OTHERS)
    assert request.tags[RANGE_START] == request.tags[RANGE_END], "of which Dagster plans one"
    windows = requested_windows(time_partitions(trades.lake.topics[0]), request.tags)
    assert sum(len(each.hours) for each in windows) == len(windows) == 200
    assert request.tags[HOURS].endswith(" and 195 more")
