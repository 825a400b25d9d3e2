"""The sensors and schedules of the code location, and the tables that others watch as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import dagster as dg

from topicberg.alerts.observation import Automation, SharedTables
from topicberg.dagster.locations import location_of_automation
from topicberg.orchestration.jobs.observation.runs import step_error
from topicberg.orchestration.jobs.snapshot_store import SENSOR as SNAPSHOTS
from topicberg.orchestration.jobs.snapshot_store import known_names

UNLOADED_SECONDS = 600
"""After so long without a tick of its snapshot sensor, a code location counts as removed: Dagster
remembers the sensors of those that were renamed."""
DEFAULT_INTERVAL_SECONDS = 30
"""Dagster's, of a sensor that has none."""
_TICKS = 10
"""How many ticks are read to find the last one that ended: few can be in progress."""


def automations(
    instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, location: str | None
) -> Iterator[Automation]:
    """Yield sensors and schedules; Dagster also stores those of topics that are deleted."""
    for state in instance.all_instigator_state():
        name, origin = state.instigator_name, state.instigator_origin_id
        if location not in (None, location_of_automation(state)):
            continue
        if not (repository.has_sensor_def(name) or repository.has_schedule_def(name)):
            continue
        kind: Literal["sensor", "schedule"] = (
            "schedule" if state.instigator_type.value == "SCHEDULE" else "sensor"
        )
        ticks = instance.get_ticks(
            origin, state.selector_id, limit=_TICKS if state.is_running else 1
        )
        known = Automation(
            name=name,
            kind=kind,
            running=state.is_running,
            is_on_by_default=_is_on_by_default(repository, name, kind),
            ticked_at=datetime.fromtimestamp(ticks[0].timestamp, UTC) if ticks else None,
            interval=_interval(repository, name) if kind == "sensor" else None,
            in_progress=bool(ticks) and ticks[0].status.value == "STARTED",
        )
        last = next((tick for tick in ticks if tick.status.value != "STARTED"), None)
        if last is None or not state.is_running:
            yield known
            continue
        failed, error = last.status.value == "FAILURE", last.error
        yield replace(
            known,
            failed_at=datetime.fromtimestamp(last.timestamp, UTC) if failed else None,
            error=step_error(error) if error else None,
            skip_reason=last.skip_reason,
        )


def shared_tables(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    location: str | None,
    now: datetime,
) -> Iterator[SharedTables]:
    """Yield what the snapshot sensors of other code locations watch as well."""
    own = {
        f"{key.path[1]}_snapshots": key.to_user_string()
        for key in repository.asset_graph.get_all_asset_keys()
        if key.path[0] == "iceberg" and len(key.path) == 2
    }
    for state in instance.all_instigator_state():
        other = location_of_automation(state)
        if location in (None, other) or state.instigator_name != SNAPSHOTS:
            continue
        origin = state.instigator_origin_id
        ticks = instance.get_ticks(origin, state.selector_id, limit=1)
        if not ticks or now.timestamp() - ticks[0].timestamp > UNLOADED_SECONDS:
            continue
        if names := known_names(instance, own, other):
            yield SharedTables(other, tuple(sorted(own[name] for name in names)))


def _is_on_by_default(
    repository: dg.RepositoryDefinition, name: str, kind: Literal["sensor", "schedule"]
) -> bool:
    """Return whether the code turns a sensor or schedule on."""
    if kind == "schedule":
        status = repository.get_schedule_def(name).default_status
        return status == dg.DefaultScheduleStatus.RUNNING
    default = repository.get_sensor_def(name).default_status
    return default == dg.DefaultSensorStatus.RUNNING


def _interval(repository: dg.RepositoryDefinition, sensor: str) -> timedelta:
    """Return how often a sensor ticks."""
    seconds = repository.get_sensor_def(sensor).minimum_interval_seconds
    return timedelta(seconds=seconds or DEFAULT_INTERVAL_SECONDS)
