"""The assets of the platform: a line for each part of the graph, and their checks."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from topicberg.orchestration import (
    Lake,
    alerts_asset,
    derived_assets,
    platform_assets,
    published_assets,
    table_checks,
    topic_assets,
)


def assets(lake: Lake) -> Iterator[dg.AssetsDefinition | dg.AssetSpec]:
    """Every topic and every table."""
    yield from topic_assets(lake)  # in Kafka; its table in Iceberg, Glue and Snowflake
    yield from derived_assets(lake)  # what the functions of assets/pipelines compute
    yield from published_assets(lake)  # derived tables that are topics as well
    yield from platform_assets(lake.config, lake.topics)  # what `topicberg deploy` creates
    yield alerts_asset(lake)  # the list of active alerts


def checks(lake: Lake) -> Iterator[dg.AssetChecksDefinition]:
    """What has to hold for them."""
    yield from table_checks(lake)
