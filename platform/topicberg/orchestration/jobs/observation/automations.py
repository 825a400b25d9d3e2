"""The sensors and schedules of the code location, and the tables that others watch as well."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg

from topicberg.alerts.observation import Automation, SharedTables
from topicberg.dagster.locations import location_of_automation
from topicberg.orchestration.jobs.observation.runs import step_error
from topicberg.orchestration.jobs.snapshot_cursor import SENSOR as SNAPSHOTS
from topicberg.orchestration.jobs.snapshot_cursor import Cursor

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
    sensors = {each.name: each for each in repository.sensor_defs}
    schedules = {each.name: each for each in repository.schedule_defs}
    definition: dg.SensorDefinition | dg.ScheduleDefinition | None
    for state in instance.all_instigator_state():
        is_schedule, name = state.instigator_type.value == "SCHEDULE", state.instigator_name
        definition = schedules.get(name) if is_schedule else sensors.get(name)
        if definition is None or location not in (None, location_of_automation(state)):
            continue
        interval = None
        if isinstance(definition, dg.SensorDefinition):
            seconds = definition.minimum_interval_seconds or DEFAULT_INTERVAL_SECONDS
            interval = timedelta(seconds=seconds)
        ticks = instance.get_ticks(
            state.instigator_origin_id, state.selector_id, limit=_TICKS if state.is_running else 1
        )
        ended = [tick for tick in ticks if tick.status.value != "STARTED"]
        last = ended[0] if ended and state.is_running else None
        failed = last if last and last.status.value == "FAILURE" else None
        yield Automation(
            name=name,
            kind="schedule" if is_schedule else "sensor",
            running=state.is_running,
            is_on_by_default=definition.default_status.value == "RUNNING",
            ticked_at=datetime.fromtimestamp(ticks[0].timestamp, UTC) if ticks else None,
            interval=interval,
            in_progress=bool(ticks) and ticks[0].status.value == "STARTED",
            failed_at=datetime.fromtimestamp(failed.timestamp, UTC) if failed else None,
            error=step_error(last.error) if last and last.error else None,
            skip_reason=last.skip_reason if last else None,
        )


def shared_tables(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    location: str | None,
    now: datetime,
) -> Iterator[SharedTables]:
    """Yield what the snapshot sensors of other code locations watch as well."""
    own = {
        key.path[1]: key.to_user_string()
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
        cursor = getattr(state.instigator_data, "cursor", None)
        if names := Cursor.parse(cursor).states(own):
            yield SharedTables(other, tuple(sorted(own[name] for name in names)))
