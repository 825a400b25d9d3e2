"""The assets of the graph and their checks; what is added here, the graph has as well."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from topicberg.orchestration import Lake, lake_assets, lake_checks


def assets(lake: Lake) -> Iterator[dg.AssetsDefinition | dg.AssetSpec]:
    """Every topic and every table, also those that ``assets/pipelines`` compute."""
    yield from lake_assets(lake)


def checks(lake: Lake) -> Iterator[dg.AssetChecksDefinition]:
    """What has to hold for them."""
    yield from lake_checks(lake)
