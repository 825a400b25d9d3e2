"""Operations that many tables share: what one asset of them does, does not depend on the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import Any

import boto3
import dagster as dg
import pytest
from lakehouses import lakehouse_of
from memory_instance import memory_instance
from moto import mock_aws
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from specs import Project, minimal

from topicberg.checks.check import Probe, TableCheck
from topicberg.checks.finding import Finding, good
from topicberg.errors import TopicbergError, UnreachableError
from topicberg.errors.table import UNREACHABLE
from topicberg.orchestration.assets import Lake, lake_assets, lake_checks
from topicberg.orchestration.assets.metadata import table_metadata
from topicberg.orchestration.assets.registry import TopicTable
from topicberg.orchestration.assets.sharing import SHARED_BY, isolated, share_out
from topicberg.orchestration.jobs.pipelines import pipeline_jobs
from topicberg.orchestration.jobs.sensors import snapshot_sensor
from topicberg.orchestration.jobs.table_jobs import check_job, maintenance_job
from topicberg.orchestration.resources import RESOURCES, Lakehouse
from topicberg.topics import load_topics

TOPICS = ("clicks", "orders", "payments")
SCHEMA = Schema(NestedField(1, "id", LongType()))


def count_rows(probe: Probe) -> Finding:
    return good(f"{probe.iceberg.name()[1]} has rows")


@dataclass(frozen=True, kw_only=True)
class CommittedTable(TopicTable):
    """The table of a topic whose records are committed: no engine is waited for."""

    def materialize(
        self, context: dg.AssetExecutionContext, lakehouse: Lakehouse
    ) -> dg.MaterializeResult:
        metadata = table_metadata(lakehouse.catalog().load_table(self.identifier), sample=False)
        return dg.MaterializeResult(asset_key=self.key("iceberg"), metadata=metadata)

    def checks(self, lake: Lake) -> Iterator[TableCheck]:
        yield TableCheck("rows", "The table has rows.", count_rows)
        yield TableCheck("name", "The table has a name.", lambda probe: good(probe.table.name))


class Catalog:
    """A catalog that cannot load some of its tables."""

    def __init__(self, inner: SqlCatalog) -> None:
        self.inner = inner
        self.broken: dict[str, list[Exception]] = {}
        """Table → what the next attempts to load it raise; the last one is raised for ever."""

    def load_table(self, identifier: tuple[str, str]) -> Any:
        if errors := self.broken.get(identifier[1]):
            raise errors.pop(0) if len(errors) > 1 else errors[0]
        return self.inner.load_table(identifier)


@dataclass
class Shop:
    """Three topics of one pipeline, with tables in a catalog and a Glue."""

    project: Project
    catalog: Catalog
    instance: dg.DagsterInstance
    lakehouse: Lakehouse

    def definitions(self) -> dg.Definitions:
        config = self.project.config
        lake = Lake(config, tuple(load_topics(config)), ())
        return dg.Definitions(
            assets=list(lake_assets(lake)),
            asset_checks=list(lake_checks(lake)),
            jobs=[*pipeline_jobs(lake), check_job(lake), maintenance_job(lake)],
            sensors=[snapshot_sensor(lake)],
            resources={**RESOURCES, "topicberg_lakehouse": self.lakehouse},
            executor=dg.in_process_executor,
        )

    def run(self, *keys: str, job: str = "shop_pipeline") -> dg.ExecuteInProcessResult:
        """Materialize assets, such as ``glue/orders``, without their checks."""
        return (
            self.definitions()
            .resolve_job_def(job)
            .execute_in_process(
                instance=self.instance,
                asset_selection=[dg.AssetKey(key.split("/")) for key in keys],
                raise_on_error=False,
            )
        )


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is so at once."""
    monkeypatch.setattr("topicberg.orchestration.assets.sharing.time.sleep", lambda _: None)


@pytest.fixture
def shop(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, no_pause: None
) -> Iterator[Shop]:
    project = Project(tmp_path)
    for name in TOPICS:
        project.topic(minimal(name=name))
    namespace = project.config.topics_namespace
    catalog.create_namespace(namespace)
    for name in TOPICS:
        catalog.create_table((namespace, name), SCHEMA)
    breaking = Catalog(catalog)
    with mock_aws(), memory_instance() as instance:
        client = boto3.client("glue", region_name="us-east-1")
        monkeypatch.setattr("topicberg.orchestration.assets.lake.OF_TOPICS", (CommittedTable,))
        monkeypatch.setattr(Probe, "catalog", breaking)
        yield Shop(project, breaking, instance, lakehouse_of(breaking, client))


def materialized(result: dg.ExecuteInProcessResult) -> set[str]:
    return {
        event.asset_key.to_user_string()
        for event in result.get_asset_materialization_events()
        if event.asset_key
    }


def failures(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """The steps that failed, with their errors."""
    return {
        str(event.step_key): str(
            event.step_failure_data.error.cause or event.step_failure_data.error
        )
        for event in result.all_events
        if event.is_step_failure and event.step_failure_data.error
    }


BOTH = [f"{system}/{name}" for name in TOPICS for system in ("iceberg", "glue")]


def test_shared_step_materializes_parents_first(shop: Shop) -> None:
    result = shop.run(*BOTH)
    assert result.success
    assert materialized(result) == set(BOTH)
    steps = [event.step_key for event in result.all_events if event.is_step_success]
    assert steps == ["iceberg_of_shop", "glue_of_shop"]


def test_shared_step_with_a_failure_does_the_others(shop: Shop) -> None:
    shop.catalog.broken["orders"] = [ValueError("its metadata is damaged")]
    result = shop.run(*BOTH)
    assert not result.success
    assert materialized(result) == {key for key in BOTH if not key.endswith("orders")}
    ((step, error),) = failures(result).items()
    assert step == "iceberg_of_shop", "the step of Glue leaves the table out, and succeeds"
    assert "iceberg/orders: ValueError: its metadata is damaged" in error
    assert "clicks" not in error


def test_shared_step_of_one_asset_does_no_other(shop: Shop) -> None:
    shop.catalog.broken = {name: [ValueError("no")] for name in ("clicks", "payments")}
    assert materialized(shop.run("iceberg/orders")) == {"iceberg/orders"}
    assert materialized(shop.run("glue/orders")) == {"glue/orders"}


def test_shared_step_retries_what_a_retry_resolves(shop: Shop) -> None:
    silent = UnreachableError("the catalog does not answer")
    shop.catalog.broken["orders"] = [silent, silent, ValueError("and then it is damaged")]
    shop.catalog.broken["clicks"] = [silent] * 20
    result = shop.run("iceberg/clicks", "iceberg/orders", "iceberg/payments")
    assert materialized(result) == {"iceberg/payments"}
    (error,) = failures(result).values()
    assert "iceberg/orders: ValueError: and then it is damaged" in error
    assert "iceberg/clicks: the catalog does not answer" in error
    assert len(shop.catalog.broken["clicks"]) == 20 - UNREACHABLE.retries - 1


def test_check_run_of_shared_steps_isolates_tables(shop: Shop) -> None:
    shop.catalog.broken["orders"] = [ValueError("its metadata is damaged")]
    checks = [dg.AssetCheckKey(dg.AssetKey(["iceberg", name]), "rows") for name in TOPICS]
    job = shop.definitions().resolve_job_def("check_tables")
    result = job.get_subset(
        asset_selection=set(), asset_check_selection=set(checks)
    ).execute_in_process(instance=shop.instance, raise_on_error=False)
    passed = {one.asset_key.path[-1] for one in result.get_asset_check_evaluations()}
    assert passed == {"clicks", "payments"}
    assert {one.check_name for one in result.get_asset_check_evaluations()} == {"rows"}
    assert not materialized(result)
    (error,) = failures(result).values()
    assert "iceberg/orders" in error


def test_blocking_topic_has_steps_of_its_own(shop: Shop) -> None:
    shop.project.topic(minimal(name="orders", checks={"not_null": ["side"], "blocking": True}))
    nodes = {node.name for node in shop.definitions().resolve_job_def("everything").nodes}
    assert {"iceberg__orders", "glue__orders", "check_iceberg_orders"} <= nodes
    assert {"iceberg_of_shop", "glue_of_shop", "snowflake_of_shop"} <= nodes


def test_operations_of_a_fleet_are_few(shop: Shop) -> None:
    """What Dagster takes to load them grows with the operations of each job."""
    more = 2 * SHARED_BY
    for number in range(more):
        shop.project.topic(minimal(name=f"more_{number}", schema={"format": "none"}))
    repository, topics = shop.definitions().get_repository_def(), more + len(TOPICS)
    assert len(repository.asset_graph.get_all_asset_keys()) == 4 * topics + 1  # and the alerts
    operations = max(len(job.nodes) for job in repository.get_all_jobs())
    assert operations <= 3 * 2 * (topics / SHARED_BY + 1)
    assert len(repository.get_job("maintain_tables").nodes) == 2


@pytest.mark.parametrize("size", [0, 1, SHARED_BY, SHARED_BY + 1, 2_000])
def test_share_out_of_any_size_has_each_once(size: int) -> None:
    members = [("shop", f"topic_{number}") for number in range(size)]
    shares = dict(share_out([*members, ("bank", "one")]))
    assert shares.pop("of_bank") == ["one"]
    assert sorted(one for share in shares.values() for one in share) == sorted(
        name for _, name in members
    )
    assert len(shares) <= 2 * size / SHARED_BY + 1


def test_share_out_of_one_more_moves_none() -> None:
    members = [("shop", f"topic_{number}") for number in range(1_000)]
    before, after = dict(share_out(members[:-1])), dict(share_out(members))
    assert all(set(share) <= set(after[name]) for name, share in before.items())


def test_share_out_of_numbered_pipelines_is_unique() -> None:
    grouped = [
        (group, f"{group}_{number}")
        for group in ("shop", "shop_1", "of_shop")
        for number in range(3 * SHARED_BY)
    ]
    names = [name for name, _ in share_out(grouped)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("at_once", [1, 4])
def test_isolated_after_a_retry_continues(no_pause: None, at_once: int) -> None:
    """What an asset has done is not done again."""
    attempts: list[str] = []

    def silent_once() -> str:
        attempts.append("second")
        if len(attempts) == 1:
            raise UnreachableError("no answer")
        return "second"

    def never() -> str:
        raise TopicbergError("it is wrong", hint="fix it")

    good_key, bad_key = dg.AssetKey("good"), dg.AssetKey("bad")
    work = {bad_key: iter([never]), good_key: iter([lambda: "first", silent_once])}
    events = isolated(work, dg.build_op_context().log, at_once)
    found = []
    try:
        while True:
            found.append(next(events))
    except StopIteration as end:
        failed = end.value
    assert found == ["first", "second"]
    assert list(failed) == [bad_key]


def test_isolated_assets_run_at_the_same_time_and_in_order() -> None:
    """Two that wait for each other end only if both run; each one's events stay in order."""
    both = Barrier(2, timeout=30)

    def tasks(name: str) -> Iterator[Callable[[], str]]:
        yield lambda: f"{name} {both.wait() >= 0}"
        yield lambda: f"{name} is checked"

    work = {dg.AssetKey(name): tasks(name) for name in ("one", "other")}
    found = list(isolated(work, dg.build_op_context().log, 2))
    for name in ("one", "other"):
        assert [e for e in found if e.startswith(name)] == [f"{name} True", f"{name} is checked"]
