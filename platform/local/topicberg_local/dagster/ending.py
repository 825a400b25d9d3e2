"""The runs in progress of the local deployment are ended with its stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from topicberg.dagster.home import dagster_home
from topicberg.settings import Settings

if TYPE_CHECKING:
    import dagster as dg

SECONDS = 20.0
"""In which a run that is canceled has to end; then its process is killed."""


def end_runs(config: Settings, report: Callable[[Sequence[str]], object]) -> None:
    """Cancel the runs of the project that wait or are in progress, and wait for their processes.

    Those of other projects in the same Dagster stay, and so do commands such as
    ``dagster asset materialize``, of which no process is known: they fail.

    :param report: gets what each of them is a run of, and its id
    """
    home = config.state_dir / "dagster"
    if not (home / "history").is_dir():
        return

    import dagster as dg

    from topicberg.dagster.run_assets import run_kind
    from topicberg.dagster.run_process import process_of

    status = dg.DagsterRunStatus
    unfinished = [status.QUEUED, status.STARTING, status.STARTED, status.CANCELING]
    with dg.DagsterInstance.from_config(str(dagster_home(config))) as instance:
        every = instance.get_runs(dg.RunsFilter(statuses=unfinished))
        runs = [run for run in every if _is_of(config.project_root, run)]
        if runs:
            report([f"the run {run.run_id[:8]} of {run_kind(run)}" for run in runs])
        processes = []
        for run in runs:
            if (process := process_of(instance, run)) is not None:
                processes += [process, *process.children(recursive=True)]
                instance.run_launcher.terminate(run.run_id)
            elif run.status == status.QUEUED:
                instance.report_run_canceled(run, "The local stack is stopped.")
        for process in psutil.wait_procs(processes, timeout=SECONDS)[1]:
            process.kill()
        for run in runs:
            now = instance.get_run_by_id(run.run_id)
            if now and now.status == status.CANCELING and process_of(instance, now) is None:
                instance.report_run_canceled(now, "Its process was killed: the stack is stopped.")


def _is_of(root: Path, run: dg.DagsterRun) -> bool:
    """Return whether a run may be of the project: its code is in no other folder that exists."""
    origin = run.job_code_origin
    pointer = origin.repository_origin.code_pointer if origin else None
    folder = getattr(pointer, "working_directory", None)
    return not folder or not Path(folder).is_dir() or Path(folder).is_relative_to(root)
