"""The assets of the graph: those of topics, and of derived tables."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from topicberg.orchestration.assets import alerts, publishing, registry, sharing
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.orchestration.assets.tables import own_operation
from topicberg.orchestration.catalogs.catalog import catalogs
from topicberg.orchestration.checks.adapter import lake_checks

__all__ = [
    "Lake",
    "alerts_asset",
    "derived_assets",
    "find_derived",
    "lake_assets",
    "lake_checks",
    "published_assets",
    "topic_assets",
]


def topic_assets(lake: Lake) -> Iterator[dg.AssetsDefinition]:
    """Return each topic in Kafka, and its tables in Iceberg, Glue and Snowflake."""
    yield from sharing.shared_assets(lake)
    for table in lake.tables:
        if not (isinstance(table, registry.ComputedTable) or table.is_independent(lake)):
            yield from _assets(table, lake)


def derived_assets(lake: Lake) -> Iterator[dg.AssetsDefinition]:
    """Return each derived table in Iceberg, Glue and Snowflake."""
    for table in lake.tables:
        if isinstance(table, registry.ComputedTable):
            yield from _assets(table, lake)


def published_assets(lake: Lake) -> Iterator[dg.AssetsDefinition]:
    """Return the topics to which derived tables are published."""
    for derived in lake.derived:
        for spec in lake.published(derived):
            yield publishing.publishing_asset(spec, derived, lake)


def lake_assets(lake: Lake) -> Iterator[dg.AssetsDefinition | dg.AssetSpec]:
    """Return every asset: of the topics and of the tables, and the list of active alerts."""
    yield from topic_assets(lake)
    yield from derived_assets(lake)
    yield from published_assets(lake)
    yield alerts.alerts_asset(lake)


def _assets(table: registry.Table, lake: Lake) -> Iterator[dg.AssetsDefinition]:
    yield table.iceberg_asset(lake)
    for system in catalogs():
        part = sharing.Part(table, system, ())
        yield own_operation(part.spec(), part.materialize)
