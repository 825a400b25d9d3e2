"""The list of active alerts as an asset: the sensor ``alerts`` reports it when it changes."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from topicberg.alerts.alert import ActiveAlert, markdown
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.metadata import documentation
from topicberg.project import prefix_of
from topicberg.settings import Settings


def alerts_key(config: Settings) -> dg.AssetKey:
    """Return the key of the list, which is that of the project: an instance may have several."""
    return dg.AssetKey(["alerts", prefix_of(config.prefix)])


def alerts_asset(lake: Lake) -> dg.AssetSpec:
    """Return the list of active alerts."""
    return dg.AssetSpec(
        alerts_key(lake.config),
        group_name="operation",
        kinds={"dashboard"},
        owners=sorted({owner for spec in lake.topics for owner in spec.owners}),
        description="The active alerts: which tables, since when, the cause and the fix. Open the "
        "newest event to read the list; the sensor `alerts` reports one when the list changes.\n\n"
        "In the terminal: `topicberg alerts`; `topicberg alerts acknowledge KEY` and `topicberg "
        "alerts silence PATTERN` decide who works on one, and what is not sent.",
        metadata=documentation("checks.md"),
    )


def alerts_event(config: Settings, alerts: Sequence[ActiveAlert]) -> dg.AssetMaterialization:
    """Return the event that shows the list, with numbers that the UI plots."""
    errors = sum(active.alert.severity == "error" for active in alerts)
    return dg.AssetMaterialization(
        alerts_key(config),
        metadata={
            "alerts": dg.MetadataValue.md(markdown(alerts)),
            "active_alerts": len(alerts),
            "errors": errors,
            "warnings": len(alerts) - errors,
        },
    )
