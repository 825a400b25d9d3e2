"""The code location loads with nothing running, and has what it should have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from assets import find_derived, topic_graphs
from definitions import defs
from resources import RESOURCES
from topicberg.deploy.platform import resources
from topicberg.errors import SpecError
from topicberg.settings import settings
from topicberg.topics import load_topics

REPOSITORY = defs.get_repository_def()
GRAPH = REPOSITORY.asset_graph


def test_asset_keys() -> None:
    tables = {spec.asset_name for spec in load_topics()}
    derived = {table.name for table in find_derived()}
    keys = {key.to_user_string() for key in GRAPH.get_all_asset_keys()}
    platform = {
        f"platform/{resource.key}"
        for resource in resources(settings(), load_topics())
        if resource.wanted
    }
    assert keys == (
        platform
        | {f"kafka/{name}" for name in tables}
        | {f"{s}/{name}" for name in tables | derived for s in ("iceberg", "glue", "snowflake")}
    )


@pytest.mark.parametrize("key", sorted(GRAPH.get_all_asset_keys()), ids=str)
def test_every_asset_explains_itself(key: dg.AssetKey) -> None:
    node = GRAPH.get(key)
    assert node.description
    assert node.group_name != "default"
    assert node.kinds
    assert node.group_name == "platform" or "dagster/table_name" in node.metadata


def test_the_graph_reads_from_kafka_to_snowflake() -> None:
    def parents(key: str) -> set[str]:
        return {p.to_user_string() for p in GRAPH.get(dg.AssetKey(key.split("/"))).parent_keys}

    assert parents("iceberg/stock_trades") == {"kafka/stock_trades"}
    assert parents("glue/stock_trades") == {"iceberg/stock_trades"}
    assert parents("snowflake/stock_trades") == {"glue/stock_trades"}
    assert parents("iceberg/stock_trades_with_totals") == {"iceberg/stock_trades"}


def test_jobs_and_sensors() -> None:
    specs = load_topics()
    assert {job.name for job in REPOSITORY.get_all_jobs() if not job.name.startswith("__")} == {
        "everything",
        "rotate_keys",
        *(f"{spec.pipeline}_pipeline" for spec in specs),
    }
    sensors = {sensor.name: sensor for sensor in REPOSITORY.sensor_defs}
    assert set(sensors) == {f"{spec.asset_name}_snapshots" for spec in specs}
    assert all(s.default_status == dg.DefaultSensorStatus.RUNNING for s in sensors.values())


def test_every_table_is_checked() -> None:
    checks = {(key.asset_key.path[-1], key.name) for key in GRAPH.asset_check_keys}
    tables = [*(spec.asset_name for spec in load_topics()), *(t.name for t in find_derived())]
    assert {(name, "parity") for name in tables} <= checks


@pytest.fixture
def nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TOPICBERG_STATE_DIR", str(tmp_path))
        settings.cache_clear()
        yield
    settings.cache_clear()


@pytest.mark.usefixtures("nothing_runs")
def test_a_sensor_skips_while_the_stack_is_down() -> None:
    sensor = REPOSITORY.get_sensor_def("stock_trades_snapshots")
    tick = sensor.evaluate_tick(
        dg.build_sensor_context(
            repository_def=REPOSITORY, resources={"lakehouse": RESOURCES["lakehouse"]}
        )
    )
    assert "not running" in (tick.skip_message or "")


def test_a_derived_table_of_no_topic_is_refused() -> None:
    (derived, *_) = find_derived()
    with pytest.raises(SpecError, match=derived.source):
        topic_graphs([], [derived])
