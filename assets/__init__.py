"""The asset graph: every topic of ``platform/topics`` and every derived table of ``pipelines/``."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from assets.checks import lake_checks
from assets.derived import derived_assets
from assets.lake import Lake, find_derived
from assets.publishing import publishing_asset
from assets.topics import topic_assets

__all__ = ["Lake", "find_derived", "lake_assets", "lake_checks"]


def lake_assets(lake: Lake) -> Iterator[dg.AssetsDefinition]:
    for spec in lake.topics:
        yield from topic_assets(spec, lake.config)
    for derived in lake.derived:
        yield from derived_assets(derived, lake)
        for spec in lake.published(derived):
            yield publishing_asset(spec, derived, lake)
