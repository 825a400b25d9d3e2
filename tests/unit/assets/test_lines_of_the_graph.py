"""The reference project: a line that is removed is not in the graph, nor what follows from it."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

import definitions
import topicberg
from topicberg.orchestration import Lake, lake_assets
from topicberg.orchestration.assets.lake import lake_of
from topicberg.settings import settings
from topicberg.topics import load_topics
from topicberg.topics.kept import KnownSpecs


@pytest.fixture(scope="module")
def lake() -> Lake:
    return lake_of(settings(), KnownSpecs(load_topics()))


def keys(defs: dg.Definitions) -> set[str]:
    graph = defs.get_repository_def().asset_graph
    nodes = map(graph.get, graph.get_all_asset_keys())
    return {node.key.to_user_string() for node in nodes if node.is_executable}


@pytest.mark.parametrize(
    ("left_out", "lost", "kept"),
    [
        ("iceberg/stock_total_trades", "iceberg/stock_total_trades", "iceberg/stock_trades"),
        ("kafka/flagged_stock_trades", "kafka/flagged_stock_trades", "iceberg/stock_trades"),
    ],
)
def test_asset_that_a_project_leaves_out_is_not_in_the_graph(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, left_out: str, lost: str, kept: str
) -> None:
    key, complete = dg.AssetKey.from_user_string(left_out), keys(build_without(lake))
    some = [one for one in lake_assets(lake) if key not in getattr(one, "keys", ())]
    monkeypatch.setattr(definitions, "assets", lambda _: some)
    defs = build_without(lake)
    found = keys(defs)
    assert found <= complete
    assert kept in found
    assert lost in complete - found
    for job in defs.get_repository_def().get_all_jobs():  # none is for assets that are gone
        assert job.name
    assert {key.asset_key.to_user_string() for key in _checks(defs)} <= found


def build_without(lake: Lake) -> dg.Definitions:
    return dg.Definitions.merge(definitions.platform(lake), *lake.additions)


def _checks(defs: dg.Definitions) -> Iterator[dg.AssetCheckKey]:
    yield from defs.get_repository_def().asset_graph.asset_check_keys


def test_definitions_are_those_of_the_reference_project() -> None:
    whole, own = topicberg.definitions().get_repository_def(), definitions.defs.get_repository_def()
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
