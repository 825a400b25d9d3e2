"""Tables for which a tick requests the same partitions are computed by one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

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
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.assets.partitions import (
    RANGE_END,
    RANGE_START,
    SCATTERED,
    requested_windows,
    spans,
    time_partitions,
)
from topicberg.orchestration.jobs.changes import Tick
from topicberg.orchestration.jobs.pipelines import COMPUTE
from topicberg.orchestration.jobs.registration import Registrar
from topicberg.orchestration.jobs.sensors import LOOKING_BACK_SECONDS, snapshot_sensor
from topicberg.orchestration.jobs.snapshot_cursor import TableCursor, request
from topicberg.orchestration.jobs.snapshot_store import Cursors
from topicberg.orchestration.jobs.tick_computations import Computations
from topicberg.orchestration.jobs.watches import HOURS, watches
from topicberg.orchestration.resources import RESOURCES
from topicberg.settings import settings
from topicberg.topics import load_topic

TIME, TOPIC = "$$timestamp", "stock_trades"
MOVING = "flagged_stock_trades"
"""Reads the hour before a trade; the other tables of the topic do not."""
ALONE = {"stock_trades_with_totals", "stock_total_trades"}
SCHEMA = Schema(NestedField(1, TIME, TimestamptzType(), required=False))
HOURLY = PartitionSpec(PartitionField(1, 1000, HourTransform(), "hour"))


@dataclass
class Trades:
    """The table of trades, and the sensor beside runs whose ends a test chooses."""

    catalog: SqlCatalog
    instance: dg.DagsterInstance
    now: float = 1000.0
    cursor: str | None = None
    requests: list[dg.RunRequest] = field(default_factory=list)
    runs: list[dg.DagsterRun] = field(default_factory=list)
    """Those that have not ended."""

    def __post_init__(self) -> None:
        derived = tuple(table for table in find_derived() if table.name in {MOVING, *ALONE})
        self.lake = Lake(settings(), (load_topic(TOPIC),), derived)
        self.sensor = snapshot_sensor(self.lake, Registrar(lambda _: []))
        identifier = self.lake.topics[0].table_identifier(settings())
        self.catalog.create_namespace(identifier[0])
        self.table = self.catalog.create_table(identifier, SCHEMA, partition_spec=HOURLY)

    def commit(self, *hours_ago: int) -> None:
        now = datetime.now(UTC).replace(minute=30, second=0, microsecond=0)
        times = [now - timedelta(hours=ago) for ago in hours_ago]
        self.table.append(pa.table({TIME: times}, SCHEMA.as_arrow()))

    def tick(self) -> list[set[str]]:
        """Return the tables of the runs that a tick requests to compute them."""
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            repository_def=defs.get_repository_def(),
            resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
        )
        tick = self.sensor.evaluate_tick(context)
        self.cursor = tick.cursor or self.cursor
        asked = [each for each in tick.run_requests or () if each.job_name.startswith(COMPUTE)]
        assert len({each.run_key for each in asked}) == len(asked)
        self.requests += asked
        self.runs += [
            self.instance.create_run_for_job(
                defs.resolve_job_def(COMPUTE),
                status=dg.DagsterRunStatus.STARTED,
                tags={**each.tags, "dagster/run_key": str(each.run_key)},
            )
            for each in asked
        ]
        return [tables(each) for each in asked]

    def end(self, reason: RunFailureReason | None = None) -> None:
        """Let all runs that were requested end; ``reason``: they fail."""
        how, data = DagsterEventType.RUN_SUCCESS, None
        if reason:
            how, data = DagsterEventType.RUN_FAILURE, JobFailureData(None, failure_reason=reason)
        for run in self.runs:
            event = dg.DagsterEvent(how.value, run.job_name, event_specific_data=data)
            self.instance.report_dagster_event(event, run.run_id)
        self.runs = []


def tables(request: dg.RunRequest) -> set[str]:
    return {key.path[-1] for key in request.asset_selection or ()}


@pytest.fixture
def trades(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trades]:
    serve_catalog(monkeypatch, catalog)
    # The runs compute nothing here: what they should have read would be requested again.
    monkeypatch.setattr("topicberg.orchestration.jobs.changes._unread_hours", lambda *_: iter(()))
    with memory_instance() as instance:
        trades = Trades(catalog, instance)
        clock = "topicberg.orchestration.jobs.sensors._now"
        monkeypatch.setattr(clock, lambda: trades.now)
        yield trades


def test_one_run_computes_all_that_follow_from_the_same_hours(trades: Trades) -> None:
    trades.commit(0)
    assert trades.tick() == [{MOVING, *ALONE}]
    request = trades.requests[-1]
    assert request.tags[RANGE_START] == request.tags[RANGE_END]
    trades.commit(0)
    assert trades.tick() == [], "it is under way"
    trades.end()
    assert trades.tick() == [{MOVING, *ALONE}], "also before the next look back"
    trades.end()
    assert trades.tick() == []


def test_hours_that_only_a_lookback_reaches_wait_for_the_next_look_back(trades: Trades) -> None:
    trades.tick()
    trades.commit(5)
    assert trades.tick() == [ALONE]
    trades.end()
    assert trades.tick() == []
    trades.now += LOOKING_BACK_SECONDS
    assert trades.tick() == [{MOVING}]
    request = trades.requests[-1]
    assert request.tags[RANGE_START] < request.tags[RANGE_END]


def test_after_a_failed_run_tables_share_none(trades: Trades) -> None:
    """What fails for one of them would fail the others again and again."""
    trades.tick()
    trades.commit(0)
    assert trades.tick() == [{MOVING, *ALONE}]
    trades.end(RunFailureReason.STEP_FAILURE)
    trades.now += LOOKING_BACK_SECONDS
    assert sorted(trades.tick(), key=len) == [{MOVING}, ALONE]
    trades.end()
    trades.now += LOOKING_BACK_SECONDS
    trades.tick()
    trades.commit(0)
    assert trades.tick() == [{MOVING, *ALONE}]


def test_killed_run_is_requested_again_for_all_its_tables(trades: Trades) -> None:
    """The process was killed; only a table that ends it again and again is found by itself."""
    trades.tick()
    trades.commit(0)
    for tables_of_runs in ([{MOVING, *ALONE}], [{MOVING, *ALONE}], [ALONE, {MOVING}]):
        assert sorted(trades.tick(), key=len, reverse=True) == tables_of_runs
        assert trades.requests[-1].tags["dagster/max_retries"] == "0", "Dagster starts it no more"
        trades.end(RunFailureReason.UNKNOWN)
        trades.now += LOOKING_BACK_SECONDS


def test_scattered_hours_are_one_run_of_exactly_these(trades: Trades) -> None:
    trades.tick()
    trades.commit(*range(0, 600, 3))
    assert ALONE in trades.tick()
    request = next(each for each in trades.requests if tables(each) == ALONE)
    assert request.tags[RANGE_START] == request.tags[RANGE_END], "of which Dagster plans one"
    partitions = time_partitions(trades.lake.topics[0])
    windows = requested_windows(partitions, request.tags)
    assert sum(len(each.hours) for each in windows) == len(windows) == 200
    assert request.tags[HOURS].endswith(" and 195 more")


def test_tick_requests_a_few_runs_and_the_next_ticks_the_others(trades: Trades) -> None:
    """Dagster makes them before the next tick, and writes an event for each planned partition."""
    (watch,) = (each for each in watches(trades.lake) if each.reported)
    partitions, now = time_partitions(trades.lake.topics[0]), datetime.now(UTC)
    hour = int(now.timestamp()) // 3600
    watched = {name: replace(watch, name=name) for name in map("t{}".format, range(7))}
    cursors = Cursors(
        {
            name: TableCursor(life="l", signal="1", pending=[(hour - 400 - n, hour - 30 * n)])
            for n, name in enumerate(watched)
        }
    )
    made = list[str]()
    for expected in (4, 3, 0):
        computations = Computations()
        for name, each in watched.items():
            cursor, runs = request(
                cursors[name], lambda hours: spans(partitions, hours, now, 9), name
            )
            computations.add(each, Tick(cursor, [], runs))
            cursors.note(name, cursor)
        requests = computations.requests(cursors)
        assert len(requests) == expected
        made += [str(each.run_key) for each in requests]
        planned = [each for each in requests if SCATTERED not in each.tags]
        assert len(planned) <= 1, "of ten days, hourly, of two tables"
    assert len({key.partition(":")[0] for key in made}) == len(watched)
    postponed = [name for name, cursor in cursors.items() if cursor.signal is None]
    assert len(postponed) == 3, "the next tick looks at them again"
