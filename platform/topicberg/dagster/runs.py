"""What there is to know of Dagster's runs: their code location, their assets and their process.

An instance may have several code locations. One is named as Dagster labels its runs:
``repository@location``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from typing import Any

import dagster as dg
import psutil

UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
ACTIVE = [*UNFINISHED, dg.DagsterRunStatus.CANCELING]  # Those whose process may still run.
_LABEL = ".dagster/repository"  # Tag of every run that the daemon launches.
PROCESS = ".dagster/process"
"""Hidden tag of a run: its process and the process's start, because a pid may be used again."""
BEGIN_SECONDS = 180.0  # In which the process of a run has loaded the code of the project.


def location_of_run(run: dg.DagsterRun) -> str | None:
    """Return the code location of a run; None: a command has executed it in its own process."""
    origin = run.remote_job_origin
    return origin.repository_origin.get_label() if origin else None


def location_of_sensor(context: dg.SensorEvaluationContext) -> str | None:
    """Return the code location of a sensor; None: no daemon evaluates it."""
    origin = context.code_location_origin
    return f"{context.repository_name}@{origin.location_name}" if origin else None


def location_of_automation(state: Any) -> str:
    """Return the code location of a sensor or a schedule by its state, which is not public."""
    return str(state.origin.repository_origin.get_label())


def location_tags(location: str | None) -> dict[str, str]:
    """Return tags that select the runs of a code location; None: those of all."""
    return {_LABEL: location} if location else {}


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
    partitions = defaultdict[dg.AssetKey, set[str | None]](set)  # Dagster 1.12 has only events
    for key, partition in _keys(instance, run_id, events):
        partitions[key].add(partition)
    return partitions


def _keys(
    instance: dg.DagsterInstance, run_id: str, events: set[dg.DagsterEventType]
) -> Iterator[tuple[dg.AssetKey, str | None]]:
    cursor, more = None, True
    while more:
        page = instance.get_records_for_run(run_id, cursor=cursor, of_type=events, limit=1000)
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


def process_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> psutil.Process | None:
    """Return the process that executes a run; None if it has ended, or has not begun."""
    pid, _, began = run.tags.get(PROCESS, "").partition(":")
    with suppress(psutil.NoSuchProcess, ValueError):
        if pid:
            process = psutil.Process(int(pid))
            is_same = process.create_time() == float(began)
        elif named := named_process(instance, run):
            process = psutil.Process(named[0])
            is_same = process.create_time() <= named[1]
        else:
            return None
        if is_same and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def named_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> tuple[int, float] | None:
    """Return the process that a run names in its first event of the engine, and when it did."""
    kind = dg.DagsterEventType.ENGINE_EVENT
    for record in instance.get_records_for_run(run.run_id, of_type=kind, limit=1).records:
        event = record.event_log_entry.dagster_event
        pid = event.engine_event_data.metadata.get("pid") if event else None
        if isinstance(pid, dg.TextMetadataValue) and pid.text:
            return int(pid.text), record.timestamp
    return None


def loading_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """Return the id of a run's process that has long been there, and has not begun the run."""
    starting = run.status == dg.DagsterRunStatus.STARTING
    process = process_of(instance, run) if starting else None
    with suppress(psutil.Error):
        if process and time.time() - process.create_time() > BEGIN_SECONDS:
            return int(process.pid)
    return None


def frozen_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """Return the id of a run's process that is stopped (SIGSTOP); None: none of them is."""
    process = process_of(instance, run)
    if process is None:
        return None
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            if each.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                return int(each.pid)
    return None
