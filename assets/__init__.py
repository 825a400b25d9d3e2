"""The asset graph: every topic of ``platform/topics`` and every derived table of ``pipelines/``."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from assets.checks.adapter import lake_checks
from assets.lake import Lake, find_derived
from assets.publishing import publishing_asset
from assets.sharing import Part, shared_assets
from assets.tables import own_operation

__all__ = ["Lake", "find_derived", "lake_assets", "lake_checks"]


def lake_assets(lake: Lake) -> Iterator[dg.AssetsDefinition]:
    """Return every asset of the topics and of the tables."""
    yield from shared_assets(lake)
    for table in lake.tables:
        if table.is_independent(lake):
            continue
        yield table.iceberg_asset(lake)
        for system in ("glue", "snowflake"):
            part = Part(table, system, ())
            yield own_operation(part.spec(), part.materialize)
    for derived in lake.derived:
        for spec in lake.published(derived):
            yield publishing_asset(spec, derived, lake)
