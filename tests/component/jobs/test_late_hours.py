"""Late rows in thousands of hours: exactly these are computed, and no tick waits for that."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from math import ceil
from pathlib import Path
from random import Random

import dagster as dg
import pytest
from dagster import DagsterEventType
from lake_model import HOURLY
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, TimestamptzType
from snapshot_daemon import serve_catalog
from specs import Project, avro_schema, minimal

from topicberg.iceberg.hours import HOUR_MICROSECONDS, Hours, union
from topicberg.iceberg.summaries import summary
from topicberg.iceberg.tables import find_table
from topicberg.orchestration.assets import Lake
from topicberg.orchestration.assets.derived import DerivedTable
from topicberg.orchestration.assets.partitions import (
    RANGE_END,
    RANGE_START,
    TimePartitions,
    requested_ranges,
    requested_windows,
)
from topicberg.orchestration.assets.tables import LakeTable
from topicberg.orchestration.jobs.registration import Registrar
from topicberg.orchestration.jobs.sensors import INTERVAL_SECONDS, snapshot_sensor
from topicberg.orchestration.jobs.tick_computations import MAX_PLANNED, MAX_RANGES, MAX_RUNS
from topicberg.orchestration.jobs.watches import SENSOR, watches
from topicberg.orchestration.resources import RESOURCES
from topicberg.orchestration.resources.lakehouse import Lakehouse
from topicberg.tableflow.service.status import TopicStatus, write_status
from topicberg.topics import load_topics
from topicberg.transforms.derived import summary_of
from topicberg.transforms.unread import READ
from topicberg.transforms.windows import Window

SCHEMA = Schema(NestedField(1, "$$timestamp", TimestamptzType()))
START = date(2010, 1, 1)
NOW = datetime.now(UTC)
FIRST = int(datetime(2010, 1, 1, tzinfo=UTC).timestamp()) // 3600
LAST = int(NOW.timestamp()) // 3600
TABLES = 40
INDEXED_BYTES = 2700
"""The longest tag that Postgres has room for in the index of Dagster's tags."""


def scattered(count: int, random: Random) -> set[int]:
    return {LAST - 40 * number for number in range(count)}


def clustered(count: int, random: Random) -> set[int]:
    starts = random.sample(range(FIRST, LAST - 30), ceil(count / 25))
    return {start + hour for start in starts for hour in range(25)}


def alternating(count: int, random: Random) -> set[int]:
    return {LAST - 2 * number for number in range(count)}


def anywhere(count: int, random: Random) -> set[int]:
    return set(random.sample(range(FIRST, LAST + 1), count))


Pattern = Callable[[int, Random], set[int]]
PATTERNS: tuple[Pattern, ...] = (scattered, clustered, alternating, anywhere)


def computed_hours(windows: Sequence[Window]) -> list[int]:
    return [hour for w in windows for hour in range(max(w.hours.start, FIRST), w.hours.stop)]


def planned_events(partitions: TimePartitions, run: dg.RunRequest) -> int:
    """Return how many events Dagster writes when it makes a run."""
    keys = dg.PartitionKeyRange(run.tags[RANGE_START], run.tags[RANGE_END])
    tables = sum(key.path[0] == "iceberg" for key in run.asset_selection or ())
    return tables * len(partitions.get_partition_keys_in_range(keys))


@dataclass
class LateRows:
    """Topics, tables that follow from them, and Dagster with its storage; Spark computes nothing.

    What a run would compute becomes snapshots of the tables without rows.
    """

    project: Project
    catalog: SqlCatalog
    instance: dg.DagsterInstance
    cursor: str | None = None
    now: float = field(default_factory=time.time)
    computed: dict[str, list[int]] = field(default_factory=dict)
    runs: list[tuple[dg.DagsterRun, dg.RunRequest]] = field(default_factory=list)
    """Those that have not ended."""
    launched: int = 0
    seconds: list[tuple[float, float]] = field(default_factory=list)
    """Of each tick, with the runs that Dagster makes in it; and those of the processor."""
    registered: set[str] = field(default_factory=set)
    """The tables that the last tick registered."""

    def create(self, tables: int) -> None:
        """:param tables: how many follow from the topics with partitions, together"""
        config = self.project.config
        topics = tuple(load_topics(config))
        sources = [spec.name for spec in topics if spec.derived_partitions]
        derived = [
            DerivedTable(f"{name}_{number}", (name,), "$$timestamp", lambda rows: rows, "Rows.")
            for name in sources
            for number in range(tables // len(sources))
        ]
        self.computed = {each.name: [] for each in derived}
        self.lake = Lake(config, topics, tuple(derived))
        watched = watches(self.lake).values()
        computations = [each.computation for each in watched if each.computation]
        self.partitions = computations[0].partitions
        keys = {key for each in watched for key in each.registrations}
        keys |= {key for each in computations for key in each.assets}
        checks = {key for each in watched for key in each.registration_checks}
        checks |= {key for each in computations for key in each.checks}

        @dg.multi_asset_check(
            specs=[dg.AssetCheckSpec(key.name, asset=key.asset_key) for key in checks],
            can_subset=True,
        )
        def pass_all() -> Iterator[dg.AssetCheckResult]:
            yield from ()

        self.repository = dg.Definitions(
            assets=[self._asset(key) for key in keys],
            asset_checks=[pass_all],
            sensors=[snapshot_sensor(self.lake, Registrar(self._register))],
            resources=RESOURCES,
        ).get_repository_def()
        for spec in topics:
            identifier = spec.table_identifier(config)
            self.catalog.create_namespace_if_not_exists(identifier[0])
            self.catalog.create_table(identifier, SCHEMA, partition_spec=HOURLY)

    def _asset(self, key: dg.AssetKey) -> dg.AssetsDefinition:
        is_derived = key.path[0] == "iceberg" and key.path[-1] in self.computed

        @dg.asset(key=key, partitions_def=self.partitions if is_derived else None)
        def compute() -> None: ...

        return compute

    def _register(self, table: LakeTable) -> list[dg.AssetMaterialization]:
        self.registered.add(table.name)
        return [dg.AssetMaterialization(table.key(system)) for system in ("glue", "snowflake")]

    def commit(self, topic: str, hours: Collection[int]) -> None:
        """Add a snapshot with a file for each hour, which nobody reads."""
        (spec,) = (each for each in self.lake.topics if each.name == topic)
        table = self.catalog.load_table(spec.table_identifier(self.project.config))
        transaction = table.transaction()
        with transaction.update_snapshot().fast_append() as append:
            for hour in hours:
                bound = to_bytes(TimestamptzType(), hour * HOUR_MICROSECONDS)
                append.append_data_file(
                    DataFile.from_args(
                        content=DataFileContent.DATA,
                        file_path=f"{table.location()}/{uuid.uuid4()}.parquet",
                        file_format=FileFormat.PARQUET,
                        partition=Record(hour),
                        record_count=1,
                        file_size_in_bytes=1,
                        lower_bounds={1: bound},
                        upper_bounds={1: bound},
                        null_value_counts={1: 0},
                    )
                )
        transaction.commit_transaction()
        head = table.refresh().current_snapshot()
        assert head
        write_status(self.project.config, TopicStatus(topic=topic, snapshot_id=head.snapshot_id))

    def tick(self) -> None:
        """Evaluate the sensor, and make its runs, as the daemon does before the next tick."""
        began, processor = time.monotonic(), time.process_time()
        self.registered = set()
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            repository_def=self.repository,
            resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
        )
        tick = self.repository.get_sensor_def(SENSOR).evaluate_tick(context)
        self.cursor = tick.cursor or self.cursor
        for event in tick.asset_events:
            self.instance.report_runless_asset_event(event)
        requests = [each for each in tick.run_requests or () if requested_ranges(each.tags)]
        assert len(requests) <= MAX_RUNS
        planned = sum(planned_events(self.partitions, each) for each in requests)
        assert planned <= MAX_PLANNED + TABLES
        for each in tick.run_requests or ():
            assert all(len(value) <= INDEXED_BYTES for value in each.tags.values())
            job, assets = self.repository.get_job(str(each.job_name)), each.asset_selection
            run = self.instance.create_run_for_job(
                job.get_subset(asset_selection={*assets}) if assets else job,
                status=dg.DagsterRunStatus.STARTED,
                tags={**each.tags, "dagster/run_key": str(each.run_key)},
                asset_selection=frozenset(assets) if assets else None,
            )
            self.runs.append((run, each))
        self.seconds.append((time.monotonic() - began, time.process_time() - processor))
        self.now += INTERVAL_SECONDS

    def end_runs(self) -> None:
        """Let the requested runs compute their partitions, and succeed."""
        for run, each in self.runs:
            windows = requested_windows(self.partitions, each.tags)
            self.launched += bool(windows)
            for key in each.asset_selection or ():
                if windows and key.path[0] == "iceberg" and key.path[-1] in self.computed:
                    self.compute(key.path[-1], windows)
            event = dg.DagsterEvent(DagsterEventType.RUN_SUCCESS.value, run.job_name)
            self.instance.report_dagster_event(event, run.run_id)
        self.runs = []

    def compute(self, name: str, windows: Sequence[Window]) -> None:
        """Write what the last commit of a run writes."""
        plan, find = self.lake.plan_of(name), partial(find_table, self.catalog)
        target = find(plan.target) or self.catalog.create_table(plan.target, SCHEMA)
        sources = {each.name: self.catalog.load_table(each.table) for each in plan.sources}
        properties = summary_of(plan, target, sources, windows, [])
        target.append(schema_to_pyarrow(SCHEMA).empty_table(), snapshot_properties=properties)
        self.computed[name] += computed_hours(windows)

    def target(self, name: str) -> Table:
        return self.catalog.load_table(self.lake.plan_of(name).target)


@pytest.mark.parametrize(
    ("hours", "tables"),
    [(60, 4), pytest.param(2000, 40, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])],
)
def test_late_hours_of_several_topics_are_computed_and_nothing_else_waits(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, hours: int, tables: int
) -> None:
    project, random = Project(tmp_path), Random(1)
    project.schema("trades.avsc", avro_schema())
    partitions = {"granularity": "hourly", "start": START}
    for pattern in PATTERNS:
        project.topic(minimal(name=pattern.__name__, derived_partitions=partitions))
    project.topic(minimal(name="other"))
    serve_catalog(monkeypatch, catalog)
    monkeypatch.setattr(Lakehouse, "config", property(lambda _: project.config))
    storage = {
        "module": "topicberg_local.dagster.storage",
        "class": "SqliteStorage",
        "config": {"base_dir": str(tmp_path / "dagster")},
    }
    with dg.instance_for_test({"storage": {"custom": storage}}) as instance:
        late = LateRows(project, catalog, instance)
        monkeypatch.setattr("topicberg.orchestration.jobs.sensors._now", lambda: late.now)
        late.create(tables)
        for pattern in PATTERNS:
            late.commit(pattern.__name__, [LAST])
        late.tick()
        late.end_runs()
        late.launched, late.computed = 0, {name: [] for name in late.computed}
        affected = {pattern.__name__: pattern(hours, random) for pattern in PATTERNS}
        for name, of_topic in affected.items():
            late.commit(name, of_topic)
        for number in range(50):
            late.tick()
            late.commit("other", [LAST - number])
            late.tick()
            assert "other" in late.registered, "in the next tick, whatever runs are requested"
            if not late.runs:
                break
            late.end_runs()
        for name, computed in late.computed.items():
            assert sorted(computed) == sorted(affected[name.rpartition("_")[0]]), name
        runs = sum(
            ceil(len(union(Hours(h, h + 1) for h in of)) / MAX_RANGES) for of in affected.values()
        )
        assert late.launched <= runs
        summaries = [
            len(summary(snapshot).get(READ, ""))
            for name in late.computed
            for snapshot in late.target(name).snapshots()
        ]
        assert max(summaries) < 10_000
        longest = "/".join(f"{max(each):.1f}" for each in zip(*late.seconds, strict=True))
        print(f"{len(late.seconds)} ticks of at most {longest} s, {late.launched} runs")  # noqa: T201
        print(f"summaries of at most {max(summaries):,} bytes")  # noqa: T201
