"""The assets of the graph: those of topics, and of derived tables."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from topicberg.orchestration.assets import alerts, sharing, topics
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.orchestration.assets.tables import own_operation
from topicberg.orchestration.catalogs.catalog import catalogs
from topicberg.orchestration.checks.adapter import lake_checks

__all__ = ["Lake", "find_derived", "lake_assets", "lake_checks"]


def lake_assets(lake: Lake) -> Iterator[dg.AssetsDefinition | dg.AssetSpec]:
    """Return every asset: each topic in Kafka, each table in Iceberg and in the catalogs, the
    topics to which derived tables are published, and the list of active alerts."""
    yield from sharing.shared_assets(lake)
    for table in lake.tables:
        if not table.is_independent(lake):
            yield table.iceberg_asset(lake)
            for system in catalogs():
                part = sharing.Part(table, system, ())
                yield own_operation(part.spec(), part.materialize)
    for derived in lake.derived:
        for spec in lake.published(derived):
            yield topics.publishing_asset(spec, derived, lake)
    yield alerts.alerts_asset(lake)
