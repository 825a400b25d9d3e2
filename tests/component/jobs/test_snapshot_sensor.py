"""The sensor of a fleet: a tick costs what changed, and registers it; else one run does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from memory_instance import memory_instance
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestamptzType
from snapshot_daemon import execute_requested, serve_catalog
from specs import Project, minimal

from topicberg.errors import TableFormatError, UnreachableError
from topicberg.orchestration.assets import Lake
from topicberg.orchestration.assets.tables import LakeTable
from topicberg.orchestration.jobs.registration import CHECK_SECONDS, Registrar
from topicberg.orchestration.jobs.sensors import (
    AT_ONCE,
    INTERVAL_SECONDS,
    MAX_SILENT,
    snapshot_sensor,
)
from topicberg.orchestration.jobs.watches import (
    MAX_DELAY_SECONDS,
    SENSOR,
    TABLES,
    listed_tables,
    watches,
)
from topicberg.orchestration.resources import RESOURCES
from topicberg.orchestration.resources.lakehouse import Lakehouse
from topicberg.settings import Settings
from topicberg.tableflow.service.status import TopicStatus, write_status
from topicberg.topics import load_topics

TOPICS, SWEEP = 12, 4
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "$$timestamp", TimestamptzType()))


class Catalog:
    """Counts the tables that are loaded; some of them may be broken."""

    def __init__(self, inner: SqlCatalog) -> None:
        self.inner, self.loaded = inner, 0
        self.broken: dict[str, Exception] = {}

    def load_table(self, identifier: tuple[str, str]) -> Any:
        self.loaded += 1
        if error := self.broken.get(identifier[1]):
            raise error
        return self.inner.load_table(identifier)

    def __getattr__(self, method: str) -> Any:
        return getattr(self.inner, method)


@dataclass
class Fleet:
    """Topics, their tables, the engine's reports on them, and Dagster's daemon."""

    config: Settings
    catalog: Catalog
    instance: dg.DagsterInstance
    cursor: str | None = None
    now: float = field(default_factory=time.time)
    """The sensor's clock, which a test moves."""
    launched: list[dg.RunRequest] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    """Tables that cannot be registered."""
    moves: bool = False
    """Whether ticks can register tables; else each needs a run."""

    def __post_init__(self) -> None:
        self.lake = Lake(self.config, tuple(load_topics(self.config)), ())
        watched = watches(self.lake).values()
        keys = [key for watch in watched for key in watch.registrations]
        checked = [key for watch in watched for key in watch.registration_checks]
        specs = [dg.AssetCheckSpec(key.name, asset=key.asset_key) for key in checked]

        @dg.multi_asset_check(specs=specs, can_subset=True)
        def pass_all(context) -> Iterator[dg.AssetCheckResult]:  # type: ignore[no-untyped-def]
            for key in context.selected_asset_check_keys:
                yield dg.AssetCheckResult(passed=True, asset_key=key.asset_key, check_name=key.name)

        self.repository = dg.Definitions(
            assets=[self._asset(key) for key in keys],
            asset_checks=[pass_all],
            sensors=[snapshot_sensor(self.lake, Registrar(self._move))],
            resources=RESOURCES,
            executor=dg.in_process_executor,
        ).get_repository_def()
        for spec in self.lake.topics:
            identifier = spec.table_identifier(self.config)
            self.catalog.create_namespace_if_not_exists(identifier[0])
            self.catalog.create_table(identifier, SCHEMA)

    def _asset(self, key: dg.AssetKey) -> dg.AssetsDefinition:
        @dg.asset(key=key)
        def register() -> None:
            if key.path[-1] in self.failing:
                raise ValueError(f"{key} cannot be registered")

        return register

    def _move(self, table: LakeTable) -> list[dg.AssetMaterialization]:
        if not self.moves or table.name in self.failing:
            raise ValueError(f"{table.name} cannot be registered")
        return [dg.AssetMaterialization(table.key(system)) for system in ("glue", "snowflake")]

    def commit(self, *numbers: int, reported: bool = True, rows: int = 1) -> None:
        """Add a snapshot to the tables; ``reported``: the engine's status says so."""
        for number in numbers:
            spec = self.lake.topics[number]
            table = self.catalog.inner.load_table(spec.table_identifier(self.config))
            table.append(pa.Table.from_pylist([{}] * rows, schema=table.schema().as_arrow()))
            head = table.current_snapshot()
            if reported:
                status = TopicStatus(topic=spec.name, snapshot_id=head.snapshot_id)
                write_status(self.config, status)

    def tick(self) -> Any:
        """Evaluate the sensor as the daemon does; its runs are requested, not launched."""
        self.catalog.loaded = 0
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            repository_def=self.repository,
            resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
        )
        return self.repository.get_sensor_def(SENSOR).evaluate_tick(context)

    def keep(self, tick: Any) -> None:
        """Store what came of a tick, and run what it requested."""
        self.cursor = tick.cursor or self.cursor
        for event in tick.asset_events:
            self.instance.report_runless_asset_event(event)
        for request in tick.run_requests or ():
            keys = {str(each.run_key) for each in self.launched}
            assert str(request.run_key) not in keys, "Dagster launches no key twice"
            self.launched.append(request)
            execute_requested(
                self.repository.get_job(str(request.job_name)),
                request,
                instance=self.instance,
                raise_on_error=False,
            )

    def live(self, ticks: int) -> list[set[str]]:
        """Return the tables that each run of so many ticks registers."""
        began = len(self.launched)
        for _ in range(ticks):
            self.keep(self.tick())
        return [tables(request) for request in self.launched[began:]]


def tables(request: dg.RunRequest) -> set[str]:
    return {key.path[-1] for key in request.asset_selection or ()}


def checked(request: dg.RunRequest) -> set[str]:
    return {key.asset_key.path[-1] for key in request.asset_check_keys or ()}


def names(*numbers: int) -> set[str]:
    return {f"t{number:02d}" for number in numbers}


@pytest.fixture
def fleet(tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    project, counting = Project(tmp_path), Catalog(catalog)
    for (name,) in map(names, range(TOPICS)):
        project.topic(minimal(name=name, tableflow={"enabled": True}))

    serve_catalog(monkeypatch, counting)
    monkeypatch.setattr(Lakehouse, "config", property(lambda _: project.config))
    monkeypatch.setattr("topicberg.orchestration.jobs.sensors.SWEEP", SWEEP)
    with memory_instance() as instance:
        fleet = Fleet(project.config, counting, instance)
        # Every tick sweeps the same tables: on a slow machine, another one would be news.
        monkeypatch.setattr("topicberg.orchestration.jobs.sensors._now", lambda: fleet.now)
        yield fleet


def test_one_run_registers_all_that_changed(fleet: Fleet) -> None:
    changed = range(1, 10)
    fleet.commit(*changed)
    (registered,) = fleet.live(1)
    assert registered == names(*changed)
    assert fleet.instance.get_latest_materialization_event(dg.AssetKey(["iceberg", "t07"]))
    assert fleet.live(3) == [], "nothing has changed since"
    fleet.commit(8, rows=0)
    fleet.live(1)
    key = dg.AssetKey(["iceberg", "t08"])
    (observed,) = fleet.instance.fetch_observations(key, limit=9).records
    assert "0 rows in" in (observed.asset_observation.description or "")
    assert len(fleet.instance.fetch_materializations(key, limit=9).records) == 1


def test_tick_registers_what_changed_and_a_run_checks_it(fleet: Fleet) -> None:
    fleet.moves = True
    fleet.commit(1, 2)
    assert fleet.live(1) == [set()], "a run without assets"
    assert checked(fleet.launched[-1]) == names(1, 2)
    for system in ("iceberg", "glue", "snowflake"):
        for name in names(1, 2):
            assert fleet.instance.get_latest_materialization_event(dg.AssetKey([system, name]))
    fleet.commit(2, 3)
    assert fleet.live(3) == [], "the next checks are due a minute after the first"
    fleet.now += CHECK_SECONDS
    assert fleet.live(2) == [set()]
    assert checked(fleet.launched[-1]) == names(2, 3)
    assert fleet.tick().skip_message == "no new snapshot"


def test_run_registers_what_a_tick_cannot(fleet: Fleet) -> None:
    fleet.moves, fleet.failing = True, names(2)
    fleet.commit(1, 2)
    tick = fleet.tick()
    (registration, checks) = tick.run_requests
    assert tables(registration) == names(2)
    assert registration.tags[TABLES] == "t02"
    assert checks.tags[TABLES] == "t01"
    assert checked(checks) == names(1)
    fleet.failing = set()
    fleet.keep(tick)
    assert fleet.live(2) == []
    fleet.commit(2)
    assert set().union(*fleet.live(1)) == set(), "a tick registers it again"


def test_tag_of_a_run_names_its_first_tables() -> None:
    keys = [dg.AssetKey([system, f"t{n}"]) for n in range(7) for system in ("glue", "snowflake")]
    assert listed_tables(keys) == "t0, t1, t2, t3, t4 and 2 more"
    assert listed_tables(keys[:4]) == "t0, t1"


def test_table_that_neither_a_tick_nor_a_run_can_register_waits_for_the_next_attempt(
    fleet: Fleet,
) -> None:
    fleet.moves, fleet.failing = True, names(2)
    fleet.commit(2)
    assert fleet.live(3) == [names(2)]
    fleet.now += MAX_DELAY_SECONDS
    assert fleet.live(1) == [names(2)]
    fleet.failing = set()
    fleet.now += MAX_DELAY_SECONDS
    assert names(2) not in fleet.live(1), "a tick registers it"


def test_lost_tick_registers_again(fleet: Fleet) -> None:
    fleet.live(1)
    fleet.moves = True
    fleet.commit(1)
    lost = fleet.tick()
    fleet.commit(3)
    again = fleet.tick()
    assert {event.asset_key.path[-1] for event in lost.asset_events} == names(1)
    assert {event.asset_key.path[-1] for event in again.asset_events} == names(1, 3)
    (first,), (second,) = lost.run_requests, again.run_requests
    assert first.run_key != second.run_key, "Dagster would not launch the other selection"


def test_idle_tick_loads_a_few_tables_and_stores_nothing(fleet: Fleet) -> None:
    fleet.commit(*range(TOPICS))
    fleet.live(4)
    before = fleet.cursor
    assert (fleet.tick().skip_message, fleet.catalog.loaded) == ("no new snapshot", SWEEP)
    assert len(before or "") < 60 * TOPICS, "at most 60 bytes a table"


def test_commit_is_seen_at_the_next_tick(fleet: Fleet) -> None:
    fleet.commit(*range(TOPICS))
    fleet.live(4)
    for number in (0, 5, TOPICS - 1):
        fleet.commit(number)
        assert fleet.live(1) == [names(number)]
        assert fleet.catalog.loaded <= SWEEP + 1
        fleet.live(1)


def test_change_that_no_writer_reports_is_found_in_turn(fleet: Fleet) -> None:
    fleet.commit(9, reported=False)
    found = []
    for _ in range(TOPICS // SWEEP):
        found += fleet.live(1)
        fleet.now += INTERVAL_SECONDS
    assert found == [names(9)]


def test_broken_table_stops_no_other(fleet: Fleet) -> None:
    fleet.catalog.broken = {"t01": ValueError("its metadata is not JSON")}
    fleet.commit(1, 2)
    assert fleet.live(1) == [names(2)]
    fleet.live(1)
    with pytest.raises(ValueError, match="not JSON"):  # an idle tick fails, which is an alert
        fleet.tick()
    fleet.commit(3)
    assert fleet.live(1) == [names(3)]
    fleet.catalog.broken = {}
    assert fleet.live(2) == [names(1)]


@pytest.mark.parametrize("error", [NoSuchTableError(), TableFormatError("version 4")])
def test_table_lost_in_a_run_stops_no_other(fleet: Fleet, error: Exception) -> None:
    fleet.commit(1)
    tick = fleet.tick()
    assert tables(*tick.run_requests) == names(1)
    fleet.catalog.broken = {"t01": error}
    fleet.keep(tick)
    fleet.commit(2)
    assert fleet.live(1) == [names(2)]


def test_dropped_table_is_not_registered(fleet: Fleet) -> None:
    fleet.commit(1)
    fleet.failing = names(1)
    assert fleet.live(1) == [names(1)]
    fleet.catalog.broken = {"t01": NoSuchTableError()}
    assert fleet.live(3) == []
    fleet.catalog.broken, fleet.failing = {}, set()
    fleet.commit(1)
    assert fleet.live(1) == [names(1)], "it was recreated"


def test_silent_catalog_skips_the_tick(fleet: Fleet) -> None:
    fleet.commit(*range(TOPICS))
    error = UnreachableError("the catalog does not answer")
    fleet.catalog.broken = dict.fromkeys(names(*range(TOPICS)), error)
    assert "does not answer" in fleet.tick().skip_message
    assert MAX_SILENT <= fleet.catalog.loaded <= AT_ONCE, "a tick does not wait for each table"


def test_tick_of_which_nothing_is_kept_is_repeated(fleet: Fleet) -> None:
    fleet.live(1)
    fleet.commit(1, 2)
    lost = fleet.tick()
    fleet.commit(3)
    again = fleet.tick()
    (first,), (second,) = lost.run_requests, again.run_requests
    assert tables(first) == names(1, 2)
    assert tables(second) == names(1, 2, 3)
    assert first.run_key != second.run_key, "Dagster would not launch the other selection"
    fleet.keep(again)
    assert len(again.asset_events) == 3
    assert fleet.live(2) == []


def test_tables_of_a_large_fleet_are_registered_in_turn(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topicberg.orchestration.jobs.registration.REGISTERED_AT_ONCE", 5)
    fleet.commit(*range(TOPICS))
    runs = fleet.live(5)
    assert [len(each) for each in runs] == [5, 5, 2]
    assert set().union(*runs) == names(*range(TOPICS))


def test_reset_cursor_reports_again_and_requests_nothing_that_is_done(fleet: Fleet) -> None:
    fleet.commit(1)
    fleet.live(2)
    fleet.cursor = None
    tick = fleet.tick()
    assert [event.asset_key.path[-1] for event in tick.asset_events] == ["t01"]
    assert not tick.run_requests
