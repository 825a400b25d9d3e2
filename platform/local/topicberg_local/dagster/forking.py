"""Dagster's run launcher with preloaded libraries, for one machine.

Dagster starts a new Python for every run, which imports for seconds before the first step; on a
laptop with a commit every ten seconds that is most of what Dagster costs (5 seconds of CPU a run,
here 0.8). Here the daemon forks runs from a server that has imported the libraries, but nothing of
the project: every run reads what a user edits, as without this launcher.

Only runs of this Python environment are forked. An instance may have code locations of other
environments, or behind a gRPC server of another machine: Dagster's default launcher starts their
runs, in the server of the code location.

Source: Python, "multiprocessing", contexts and start methods (``forkserver``: it has one thread, so
that forking is safe). Dagster's own executor can start steps in the same way.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

import psutil
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, DefaultRunLauncher
from dagster._cli.api import execute_run_command
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import serialize_value
from dagster._utils import get_run_crash_explanation
from tenacity import stop_after_delay, wait_fixed

from topicberg.dagster import BACKGROUND
from topicberg.dagster.compatibility import require_attributes, require_parameters
from topicberg.dagster.runs import PROCESS, named_process, process_of
from topicberg.errors.retry import retry

LIBRARIES = (
    "avro.schema",
    "boto3",
    "confluent_kafka.admin",
    "confluent_kafka.schema_registry",
    "dagster._cli.api",
    "dagster._core.storage.sqlite_storage",
    "dagster._daemon.cli",
    "dagster_pyspark",
    "matplotlib.dates",
    "matplotlib.figure",
    "pydantic_settings",
    "pyiceberg.catalog.rest",
    "pyiceberg.io.fsspec",
    "pyspark.sql.connect.session",
)
"""What runs import anyway, except modules that start a thread (Snowflake's connector)."""
NICENESS = 10
"""Of runs in the background: with 40 active topics, checks delayed the tables by seconds."""
_SERVER = get_context("forkserver")
_REPORTING = stop_after_delay(3600)


class ForkingRunLauncher(DefaultRunLauncher):
    """Runs are forked processes of this machine. They survive a killed daemon, and the next daemon
    watches over them.
    """

    def launch_run(self, context: LaunchRunContext) -> None:
        run = context.dagster_run
        if not _is_of_this_environment(run):
            super().launch_run(context)
            return
        origin = run.job_code_origin
        assert origin is not None  # noqa: S101  every run that Dagster launches has one
        arguments = ExecuteRunArgs(origin, run.run_id, self._instance.get_ref())
        _SERVER.set_forkserver_preload(list(LIBRARIES))
        niceness = NICENESS if BACKGROUND in run.tags else 0
        process = _SERVER.Process(target=_execute, args=(serialize_value(arguments), niceness))
        process.start()
        with suppress(psutil.NoSuchProcess):  # it has ended already
            began = psutil.Process(process.pid).create_time()
            self._instance.add_run_tags(run.run_id, {PROCESS: f"{process.pid}:{began}"})
        Thread(target=self._watch, args=(process, run.run_id), daemon=True).start()

    def _watch(self, process: BaseProcess, run_id: str) -> None:
        """Report the failure of a run whose process ended without reporting a result."""
        process.join()  # also returns if the fork server that reports the end has ended
        # It may have ended as the disk was full, which keeps this from being reported, too.
        report = partial(self._report_end, process, run_id)
        retry(report, _REPORTING, on=Exception, wait=wait_fixed(5))

    def _report_end(self, process: BaseProcess, run_id: str) -> None:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished or process_of(self._instance, run):
            return
        who = f"The process of run {run_id}"
        why = get_run_crash_explanation(prefix=who, exit_code=process.exitcode or 0)
        self._instance.report_engine_event(why, run, cls=type(self))
        if run.status == DagsterRunStatus.CANCELING:
            self._instance.report_run_canceled(run)
        else:
            self._instance.report_run_failed(run, why)

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        if GRPC_INFO_TAG in run.tags:
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        self._instance.report_run_canceling(run)
        process = process_of(self._instance, run)
        if process is None:
            self._instance.report_run_canceled(run, "Its process has ended.")
            return False
        process.send_signal(signal.SIGINT)
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        # The server that launched the former reports its end.
        if GRPC_INFO_TAG in run.tags or _is_executed(self._instance, run):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, "the run's process has ended")


def _is_executed(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Return whether a process executes a run that has begun.

    That of a command, which no daemon launched, names its process a moment after it began.
    """
    is_of_command = run.remote_job_origin is None and PROCESS not in run.tags
    is_unnamed = is_of_command and named_process(instance, run) is None
    return is_unnamed or process_of(instance, run) is not None


def _is_of_this_environment(run: DagsterRun) -> bool:
    """Return whether a run uses this Python environment, on this machine: it can be forked."""
    remote = run.remote_job_origin.repository_origin if run.remote_job_origin else None
    server = remote.code_location_origin if remote else None
    if isinstance(server, GrpcServerCodeLocationOrigin) and not server.socket:
        return False  # of `dagster code-server`; those of `dagster dev` have sockets
    if run.job_code_origin is None:
        return False
    code = run.job_code_origin.repository_origin
    return _environment(code.executable_path) == _environment(sys.executable)


def _environment(executable: str) -> tuple[Path, Path]:
    """Return what two names of one Python have in common: a link leads out of an environment."""
    path = Path(executable).absolute()
    return path.parent, path.resolve()


def _execute(arguments: str, niceness: int) -> None:
    os.nice(niceness)
    os.setsid()  # Ctrl-C in the terminal of `topicberg ui` ends Dagster, and no run
    try:
        execute_run_command.main([arguments], standalone_mode=False)
    finally:
        atexit._run_exitfuncs()  # a forked process skips it, but databases have to be closed


# What is used of Dagster, and may be different in another version.
require_attributes(
    DefaultRunLauncher, "_instance", "launch_run", "terminate", "check_run_worker_health"
)
require_attributes(execute_run_command, "main")
require_parameters(ExecuteRunArgs, 3)
