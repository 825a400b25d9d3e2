"""The assets and partitions that events of a run are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import dagster as dg

_EVENTS = 1000
"""Events that are read at once."""


def assets_of_run(
    instance: dg.DagsterInstance, run_id: str, events: set[dg.DagsterEventType]
) -> frozenset[dg.AssetKey]:
    """Return the assets of a run's events of some types."""
    return frozenset(partitions_of_run(instance, run_id, events))


def partitions_of_run(
    instance: dg.DagsterInstance, run_id: str, events: set[dg.DagsterEventType]
) -> Mapping[dg.AssetKey, Set[str | None]]:
    """Return asset → the partitions of its events of some types; None: one without partition."""
    if hasattr(instance, "get_asset_partitions_for_run"):  # this way reads no event
        return instance.get_asset_partitions_for_run(run_id, events)
    partitions: dict[dg.AssetKey, set[str | None]] = {}  # Dagster 1.12 has only events
    for key, partition in _keys(instance, run_id, events):
        partitions.setdefault(key, set()).add(partition)
    return partitions


def _keys(
    instance: dg.DagsterInstance, run_id: str, events: set[dg.DagsterEventType]
) -> Iterator[tuple[dg.AssetKey, str | None]]:
    cursor, more = None, True
    while more:
        page = instance.get_records_for_run(run_id, cursor=cursor, of_type=events, limit=_EVENTS)
        cursor, more = page.cursor, page.has_more
        for record in page.records:
            event = record.event_log_entry.dagster_event
            if event and event.asset_key:
                yield event.asset_key, event.partition


def run_kind(run: dg.DagsterRun) -> str:
    """Return what a run is one of: its job, the sensor that requested it, or its assets."""
    if not run.job_name.startswith("__"):
        return run.job_name
    if sensor := run.tags.get("dagster/sensor_name"):
        return f"{sensor} ({run.tags.get('topicberg/kind', 'run')})"
    keys = sorted(key.to_user_string() for key in run.asset_selection or ())
    return ", ".join(keys) or run.job_name
