"""The process that executes a run, if it is one of this machine."""

from __future__ import annotations

from contextlib import suppress

import psutil
from dagster import DagsterEventType, DagsterInstance, DagsterRun, TextMetadataValue

PROCESS = ".dagster/process"
"""Hidden tag of a run: its process and the process's start, because a pid may be used again."""
_FROZEN = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def process_of(instance: DagsterInstance, run: DagsterRun) -> psutil.Process | None:
    """Return the process that executes a run; None if it has ended, or has not begun."""
    pid, _, began = run.tags.get(PROCESS, "").partition(":")
    with suppress(psutil.NoSuchProcess, ValueError):
        if pid:
            process = psutil.Process(int(pid))
            is_same = process.create_time() == float(began)
        elif named := _named_process(instance, run):
            process = psutil.Process(named[0])
            is_same = process.create_time() <= named[1]
        else:
            return None
        if is_same and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def is_executed(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Return whether a process executes a run that has begun.

    No daemon launched that of a command such as ``dagster asset materialize``: it names its process
    a moment after it began.
    """
    is_of_command = run.remote_job_origin is None and PROCESS not in run.tags
    if is_of_command and _named_process(instance, run) is None:
        return True
    return process_of(instance, run) is not None


def _named_process(instance: DagsterInstance, run: DagsterRun) -> tuple[int, float] | None:
    """Return the process that a run names in its first event of the engine, and when it did."""
    kind = DagsterEventType.ENGINE_EVENT
    for record in instance.get_records_for_run(run.run_id, of_type=kind, limit=1).records:
        event = record.event_log_entry.dagster_event
        pid = event.engine_event_data.metadata.get("pid") if event else None
        if isinstance(pid, TextMetadataValue) and pid.text:
            return int(pid.text), record.timestamp
    return None


def frozen_process(instance: DagsterInstance, run: DagsterRun) -> int | None:
    """Return the id of a run's process that is stopped (SIGSTOP); None: none of them is."""
    process = process_of(instance, run)
    if process is None:
        return None
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            if each.status() in _FROZEN:
                return int(each.pid)
    return None
