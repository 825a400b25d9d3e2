"""What a deployment does not compute, because it has no Spark for it."""

from __future__ import annotations

from collections.abc import Iterable

from topicberg.settings import Settings
from topicberg.topics import TopicSpec


def uncomputed(
    config: Settings, specs: Iterable[TopicSpec], derived: Iterable[str] = ()
) -> list[str]:
    """Return what is left out of the graph of a deployment without Spark Connect; empty: nothing.

    EMR Serverless computes tables: its job runs reach only AWS, and Dagster sends it no queries.

    :param derived: names of the derived tables that are left out
    """
    if config.has_spark:
        return []
    enabled = [spec for spec in specs if spec.tableflow.enabled]
    left_out = {
        "published topics": [spec.name for spec in specs if spec.publishes],
        "histories": [f"{spec.asset_name}_history" for spec in enabled if spec.history],
        "derived tables that read a history": list(derived),
    }
    lines = [f"{kind}: {', '.join(sorted(names))}" for kind, names in left_out.items() if names]
    if not config.on_emr:
        lines.insert(0, "derived tables and upsert views")
    return [*lines, "charts of derived tables, and checks of their rows that are functions"]
