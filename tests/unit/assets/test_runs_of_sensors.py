"""What a run computes of the partitions that a sensor or a user requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from topicberg.clients.lineage import TableState
from topicberg.orchestration.assets import Lake
from topicberg.orchestration.assets import derived as derived_assets
from topicberg.orchestration.assets.derived import derivation, derived_asset, derived_table
from topicberg.orchestration.assets.run_kinds import COMPUTATION, KIND
from topicberg.orchestration.emr import client
from topicberg.settings import settings
from topicberg.topics import load_topics
from topicberg.topics.spec import DerivedPartitions
from topicberg.transforms import derived as transforms
from topicberg.transforms.derived import WrittenWindow
from topicberg.transforms.windows import Window


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

    def write(_: Any, __: Any, ___: Any, windows: list[Window]) -> WrittenWindow:
        (window,) = windows
        computed.append(window)
        return WrittenWindow(windows, rows=1, rows_by_hour={window.hours.stop - 1: 1})

    def write_window_on_emr(_: Any, name: str, windows: list[Window], *__: Any) -> WrittenWindow:
        assert name == table.name
        plan, unused = derivation(declared, lake), cast("Any", None)
        return transforms.write_window(unused, unused, plan, *windows, keep_expired=bool(tags))

    monkeypatch.setattr(transforms, "_portions", lambda *given: [given[-1]])
    monkeypatch.setattr(transforms, "_write", write)
    monkeypatch.setattr(derived_assets, "emr_settings", lambda: on_emr)
    monkeypatch.setattr(client, "write_window_on_emr", write_window_on_emr)
    monkeypatch.setattr(derived_assets, "table_metadata", lambda *_, **__: {})
    monkeypatch.setattr(TableState, "of", lambda _: None)
    catalog = SimpleNamespace(table_exists=lambda _: True, load_table=lambda _: None)
    lakehouse = SimpleNamespace(
        catalog=lambda: catalog, endpoints=lambda: SimpleNamespace(spark_connect=""), config=None
    )
    keys = [f"{moment:%Y-%m-%d-%H:%M}" for moment in requested]
    result = dg.materialize(
        [derived_asset(declared, table, lake)],
        resources={
            "topicberg_lakehouse": lakehouse,
            "topicberg_spark": SimpleNamespace(spark_session=None),
            "topicberg_snowflake": None,
        },
        tags=tags
        | {
            "dagster/asset_partition_range_start": keys[0],
            "dagster/asset_partition_range_end": keys[-1],
        },
    )
    assert result.success
    whole = Window(requested[0], requested[-1] + timedelta(hours=1))
    kept = [h for h in whole.hours if not tags or h >= first]
    begins = [requested[hour - whole.hours.start] for hour in kept[:1]]
    assert computed == [Window(begin, whole.end) for begin in begins]
    counted = {
        each.partition
        for each in result.asset_materializations_for_node("__".join(table.key("iceberg").path))
        if "dagster/partition_row_count" in each.metadata
    }
    assert counted == {keys[hour - whole.hours.start] for hour in kept}
