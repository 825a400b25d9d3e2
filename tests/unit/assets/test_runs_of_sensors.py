"""What a run computes of the partitions that a sensor or a user requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.storage.partition_status_cache import AssetPartitionStatus
from derivations import compute_by
from memory_instance import memory_instance

from topicberg.clients.lineage import TableState
from topicberg.orchestration.assets import Lake
from topicberg.orchestration.assets import derived as derived_assets
from topicberg.orchestration.assets.derived import derivation, derived_asset, derived_table
from topicberg.orchestration.assets.partitions import (
    RANGE_END,
    RANGE_START,
    SCATTERED,
    scattered,
    spans,
    time_partitions,
)
from topicberg.orchestration.assets.tables import COMPUTATION, KIND, LakeTable
from topicberg.orchestration.catalogs.catalog import catalogs
from topicberg.orchestration.emr import client
from topicberg.orchestration.jobs.observation.runs import _ended_run
from topicberg.orchestration.resources import RESOURCES
from topicberg.settings import settings
from topicberg.topics import load_topics
from topicberg.topics.spec import DerivedPartitions
from topicberg.transforms import derived as transforms
from topicberg.transforms.derived import WrittenWindow
from topicberg.transforms.windows import Window


@dataclass
class Deployment:
    """Assets of a derived table whose partitions a test writes."""

    monkeypatch: pytest.MonkeyPatch
    write: Callable[[list[Window]], WrittenWindow]
    readers: list[str] = field(default_factory=list)
    """Where the table was registered."""

    def reached(self, system: str, table: LakeTable, *_: Any) -> dg.MaterializeResult:
        self.readers.append(system)
        return dg.MaterializeResult(asset_key=table.key(system))

    def run(
        self, assets: list[Any], tags: dict[str, str], instance: dg.DagsterInstance | None = None
    ) -> dg.ExecuteInProcessResult:
        patch = self.monkeypatch.setattr
        compute_by(self.monkeypatch, self.write)
        patch(derived_assets, "table_metadata", lambda *_, **__: {})
        for system, catalog in catalogs().items():
            patch(catalog, "register", partial(self.reached, system))
        patch(TableState, "of", lambda _: None)
        catalog = SimpleNamespace(table_exists=lambda _: True, load_table=lambda _: None)
        resources = {
            "topicberg_lakehouse": SimpleNamespace(
                catalog=lambda: catalog,
                endpoints=lambda: SimpleNamespace(spark_connect=""),
                config=None,
            ),
            "topicberg_spark": SimpleNamespace(spark_session=None),
            "topicberg_snowflake": None,
        }
        return dg.materialize(
            assets, resources=resources, tags=tags, instance=instance, raise_on_error=False
        )


@pytest.mark.parametrize("on_emr", [False, True])
@pytest.mark.parametrize(
    ("tags", "left"),
    [({KIND: COMPUTATION}, 4), ({KIND: COMPUTATION}, 2), ({KIND: COMPUTATION}, 0), ({}, 4)],
)
def test_run_of_a_sensor_leaves_out_what_is_past_a_retention(
    monkeypatch: pytest.MonkeyPatch, tags: dict[str, str], left: int, on_emr: bool
) -> None:
    """One that a user requested computes all. Either is one job of Spark."""

    def large_trades(trades: Any) -> Any:
        return trades

    (spec,) = (spec for spec in load_topics(settings()) if spec.name == "stock_trades")
    now = datetime.now(UTC)
    spec = spec.model_copy(
        update={
            "tableflow": spec.tableflow.model_copy(update={"data_retention_ms": 30 * 86_400_000}),
            "derived_partitions": DerivedPartitions(
                granularity="hourly", start=(now - timedelta(days=90)).date()
            ),
        }
    )
    declared = derived_table(source="stock_trades", time_column="at")(large_trades)
    lake = Lake(settings(), (spec,), (declared,))
    table = next(table for table in lake.tables if table.name == "large_trades")
    first = derivation(declared, lake).first_hour(now)
    begin = datetime.fromtimestamp((first - 4 + left) * 3600, UTC)
    requested = [begin + timedelta(hours=number) for number in range(4)]
    computed: list[Window] = []

    def write(windows: list[Window]) -> WrittenWindow:
        (window,) = windows
        computed.append(window)
        return WrittenWindow(windows, rows=1, rows_by_hour={window.hours.stop - 1: 1})

    def write_window_on_emr(_: Any, name: str, windows: list[Window], *__: Any) -> WrittenWindow:
        assert name == table.name
        plan, unused = derivation(declared, lake), cast("Any", None)
        return transforms.write_window(unused, unused, plan, *windows, keep_expired=bool(tags))

    monkeypatch.setattr(derived_assets, "emr_settings", lambda: on_emr)
    monkeypatch.setattr(client, "write_window_on_emr", write_window_on_emr)
    keys = [f"{moment:%Y-%m-%d-%H:%M}" for moment in requested]
    result = Deployment(monkeypatch, write).run(
        [derived_asset(declared, table, lake)], {**tags, RANGE_START: keys[0], RANGE_END: keys[-1]}
    )
    assert result.success
    whole = Window(requested[0], requested[-1] + timedelta(hours=1))
    kept = [h for h in whole.hours if not tags or h >= first]
    begins = [requested[hour - whole.hours.start] for hour in kept[:1]]
    assert computed == [Window(begin, whole.end) for begin in begins]
    assert {
        each.partition
        for each in result.asset_materializations_for_node("__".join(table.key("iceberg").path))
        if "dagster/partition_row_count" in each.metadata
    } == {keys[hour - whole.hours.start] for hour in kept}


def tables(days: int) -> tuple[Lake, list[dg.AssetsDefinition], datetime]:
    """Return two tables, of which one is derived from the other, and when their partitions begin.

    :param days: how long ago that is
    """

    def large_trades(trades: Any) -> Any:
        return trades

    def larger_trades(trades: Any) -> Any:
        return trades

    (spec,) = (spec for spec in load_topics(settings()) if spec.name == "stock_trades")
    start = (datetime.now(UTC) - timedelta(days=days)).date()
    partitions = DerivedPartitions(granularity="hourly", start=start)
    spec = spec.model_copy(update={"derived_partitions": partitions})
    declared = (
        derived_table(source="stock_trades", time_column="at")(large_trades),
        derived_table(source="large_trades", time_column="at")(larger_trades),
    )
    lake = Lake(settings(), (spec,), declared)
    assets = [derived_asset(each, lake.table(each), lake) for each in declared]
    return lake, assets, datetime.combine(start, time(), UTC)


def write_all(windows: list[Window]) -> WrittenWindow:
    return WrittenWindow(windows, rows=1, rows_by_hour={windows[-1].hours.stop - 1: 1})


def test_run_of_scattered_partitions_materializes_exactly_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, assets, start = tables(days=20)
    hours = [int(start.timestamp()) // 3600 + 40 * number for number in range(10)]
    partitions = time_partitions(lake.topics[0])
    found, _ = spans(partitions, [range(h, h + 1) for h in hours], datetime.now(UTC), 100)
    with memory_instance() as instance:
        last = dict.fromkeys((RANGE_START, RANGE_END), found[-1].last)
        tags = {KIND: COMPUTATION, **last, SCATTERED: scattered(partitions, found)}
        result = Deployment(monkeypatch, write_all).run(assets, tags, instance)
        assert result.success
        for name in ("large_trades", "larger_trades"):
            key = dg.AssetKey(["iceberg", name])
            assert instance.get_materialized_partitions(key) == {span.first for span in found}
        planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        events = instance.get_records_for_run(result.run_id, of_type=planned).records
        assert len(events) == len(assets), "and one for each partition would take ten milliseconds"


def test_partition_that_cannot_be_computed_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a backfill, all other partitions are computed, and the message names the one."""
    lake, assets, start = tables(days=9)
    bad = start + timedelta(hours=100)
    jobs: list[list[Window]] = []

    def write(windows: list[Window]) -> WrittenWindow:
        jobs.append(windows)
        if any((each.start or start) <= bad < each.end for each in windows):
            raise ValueError("division by zero")
        return write_all(windows)

    partitions = time_partitions(lake.topics[0])
    keys = [f"{start + timedelta(hours=hour):%Y-%m-%d-%H:%M}" for hour in range(200)]
    deployment = Deployment(monkeypatch, write)
    with memory_instance() as instance:
        result = deployment.run(assets[:1], {RANGE_START: keys[0], RANGE_END: keys[-1]}, instance)
        assert not result.success
        key = dg.AssetKey(["iceberg", "large_trades"])
        statuses = instance.get_status_by_partition(key, keys, partitions)
        assert statuses
        expected = dict.fromkeys(keys, AssetPartitionStatus.MATERIALIZED)
        assert statuses == expected | {keys[100]: AssetPartitionStatus.FAILED}
        record = instance.get_run_record_by_id(result.run_id)
        assert record
        repository = dg.Definitions(assets[:1], resources=RESOURCES).get_repository_def()
        ended = _ended_run(instance, repository, record, datetime.now(UTC))
        assert ended.left == ((keys[100], keys[100]),), "what its alert waits for"
        assert not ended.materialized
        (error,) = (each.step_failure_data.error for each in result.get_step_failure_events())
        cause = error.cause or error
        assert f"1 partition cannot be computed ({bad:%F %H:%M} to" in cause.message
        assert "ValueError: division by zero; all others are computed" in cause.message
    assert len(jobs) < 20, "it is found by halves"
    assert deployment.readers == ["glue", "snowflake"], "readers get what is computed"


def test_function_that_fails_for_every_partition_is_not_tried_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, assets, start = tables(days=9)
    jobs: list[list[Window]] = []

    def write(windows: list[Window]) -> WrittenWindow:
        jobs.append(windows)
        raise KeyError("quantity")

    keys = [f"{start + timedelta(hours=hour):%Y-%m-%d-%H:%M}" for hour in range(200)]
    deployment = Deployment(monkeypatch, write)
    result = deployment.run(assets[:1], {RANGE_START: keys[0], RANGE_END: keys[-1]})
    assert not result.success
    (error,) = (each.step_failure_data.error for each in result.get_step_failure_events())
    assert "no further one was tried" in (error.cause or error).message
    assert len(jobs) < 20
    assert not deployment.readers
