"""The reference project: a line that is removed is not in the graph, nor what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest

import assets
import definitions
import jobs
import topicberg
from topicberg.orchestration import Lake
from topicberg.orchestration.assets.lake import lake_of
from topicberg.settings import settings
from topicberg.topics import load_topics
from topicberg.topics.kept import KnownSpecs


@pytest.fixture(scope="module")
def lake() -> Lake:
    return lake_of(settings(), KnownSpecs(load_topics()))


@pytest.fixture(scope="module")
def cloud_lake() -> Lake:
    """Its graph has the platform, too."""
    config = settings().model_copy(update={"deployment": "cloud"})
    return lake_of(config, KnownSpecs(load_topics(config)))


def keys(defs: dg.Definitions) -> set[str]:
    graph = defs.get_repository_def().asset_graph
    nodes = map(graph.get, graph.get_all_asset_keys())
    return {node.key.to_user_string() for node in nodes if node.is_executable}


@pytest.mark.parametrize(
    ("line", "lost", "kept"),
    [
        ("derived_assets", "iceberg/stock_total_trades", "iceberg/stock_trades"),
        ("published_assets", "kafka/flagged_stock_trades", "iceberg/flagged_stock_trades"),
        ("topic_assets", "kafka/stock_trades", "platform/aws/bucket"),
        ("platform_assets", "platform/aws/bucket", "iceberg/stock_trades"),
    ],
)
def test_asset_without_its_line_is_not_in_the_graph(
    lake: Lake,
    cloud_lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    lost: str,
    kept: str,
) -> None:
    lake = cloud_lake if "platform/aws/bucket" in (lost, kept) else lake
    complete = keys(definitions.platform(lake))
    monkeypatch.setattr(assets, line, lambda *_: ())
    defs = definitions.platform(lake)
    found = keys(defs)
    assert found <= complete
    assert kept in found
    assert lost in complete - found
    for job in defs.get_repository_def().get_all_jobs():  # none is for assets that are gone
        assert job.name
    checked = {key.asset_key.to_user_string() for key in _checks(defs)}
    assert checked <= found


def _checks(defs: dg.Definitions) -> Iterator[dg.AssetCheckKey]:
    yield from defs.get_repository_def().asset_graph.asset_check_keys


@pytest.mark.parametrize(
    ("line", "kind", "name"),
    [
        ("snapshot_sensor", "sensor_defs", "snapshots"),
        ("catalog_sensor", "sensor_defs", "catalogs"),
        ("alert_sensor", "sensor_defs", "alerts"),
        ("engine_sensor", "sensor_defs", "engine"),
        ("check_schedule", "schedule_defs", "check_tables_schedule"),
        ("maintenance_schedule", "schedule_defs", "maintain_tables_schedule"),
        ("retention_schedule", "schedule_defs", "forget_old_runs_schedule"),
        ("rotation_schedule", "schedule_defs", "rotate_keys_schedule"),
    ],
)
def test_automation_without_its_line_is_not_there(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, line: str, kind: str, name: str
) -> None:
    def names() -> set[str]:
        defs = definitions.platform(lake).get_repository_def()
        return {one.name for one in getattr(defs, kind)}

    def without(made: Callable[[Lake], Iterator[Any]]) -> Callable[[Lake], Iterator[Any]]:
        return lambda lake: (one for one in made(lake) if one is not None)

    before = names()
    monkeypatch.setattr(jobs, line, lambda *_: None)
    for part in ("sensors", "schedules"):
        monkeypatch.setattr(definitions, part, without(getattr(jobs, part)))
    assert names() == before - {name}
    assert name in before


def test_definitions_are_those_of_the_reference_project() -> None:
    whole = topicberg.definitions().get_repository_def()
    own = definitions.defs.get_repository_def()
    assert whole.asset_graph.get_all_asset_keys() == own.asset_graph.get_all_asset_keys()
    assert whole.asset_graph.asset_check_keys == own.asset_graph.asset_check_keys
    assert set(whole.job_names) == set(own.job_names)
    assert {one.name for one in whole.sensor_defs} == {one.name for one in own.sensor_defs}
    assert {one.name for one in whole.schedule_defs} == {one.name for one in own.schedule_defs}


def test_public_names() -> None:
    """What is added here is kept: docs/project.md has the promise."""
    assert topicberg.__all__ == [
        "FOREVER",
        "DerivedTable",
        "Rules",
        "Tables",
        "Topic",
        "TopicbergError",
        "Topics",
        "definitions",
        "derived_table",
        "generator",
        "table_check",
    ]
    for name in topicberg.__all__:
        assert getattr(topicberg, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        topicberg.nothing  # noqa: B018
