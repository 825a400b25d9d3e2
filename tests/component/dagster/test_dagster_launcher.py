"""Runs in forked processes: they succeed, are killed, are terminated, and leave nothing open."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.errors import DagsterInvariantViolationError
from dagster._core.events import EngineEventData
from dagster._core.launcher import LaunchRunContext, WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from launched_jobs import long, short
from waiting import wait_until

from topicberg.dagster.home import dagster_home
from topicberg.dagster.runs import PROCESS
from topicberg.settings import Settings
from topicberg_local.dagster.forking import LIBRARIES, ForkingRunLauncher
from topicberg_local.stack import end_runs

STORAGE = {"module": "topicberg_local.dagster.storage", "class": "SqliteStorage"}
LAUNCHER = {"module": "topicberg_local.dagster.launcher", "class": "ForkingRunLauncher"}


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    storage = {**STORAGE, "config": {"base_dir": str(tmp_path_factory.mktemp("dagster"))}}
    config = {"storage": {"custom": storage}, "run_launcher": LAUNCHER}
    with dg.instance_for_test(config) as instance:
        yield instance


def launch(instance: dg.DagsterInstance, job: dg.JobDefinition) -> str:
    origin = dg.reconstructable(job).get_python_origin()
    run = instance.create_run_for_job(
        job, status=dg.DagsterRunStatus.STARTING, job_code_origin=origin
    )
    instance.run_launcher.launch_run(LaunchRunContext(run, None))
    return run.run_id


def status(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    return instance.get_run_by_id(run_id).status


def process(instance: dg.DagsterInstance, run_id: str) -> psutil.Process:
    return psutil.Process(int(instance.get_run_by_id(run_id).tags[PROCESS].partition(":")[0]))


def until(
    instance: dg.DagsterInstance, run_id: str, expected: dg.DagsterRunStatus
) -> Callable[[], bool]:
    return lambda: status(instance, run_id) == expected


def test_a_run_succeeds_and_leaves_no_database_open(instance: dg.DagsterInstance) -> None:
    run_id = launch(instance, short)
    wait_until(until(instance, run_id, dg.DagsterRunStatus.SUCCESS), 90)
    number = instance.get_run_by_id(run_id).tags[PROCESS].partition(":")[0]
    messages = [entry.message for entry in instance.all_logs(run_id)]
    assert f"Started process for run (pid: {number})." in messages
    folder = Path(instance.storage_directory()).parent
    wait_until(lambda: not list(folder.rglob(f"{run_id}.db-wal")), 30)


def test_a_run_that_is_killed_has_failed_at_once(instance: dg.DagsterInstance) -> None:
    run_id = launch(instance, long)
    wait_until(until(instance, run_id, dg.DagsterRunStatus.STARTED), 90)
    process(instance, run_id).kill()
    wait_until(until(instance, run_id, dg.DagsterRunStatus.FAILURE), 30)
    assert any("SIGKILL" in entry.message for entry in instance.all_logs(run_id))


def test_end_of_a_run_is_reported_once_the_disk_has_room(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, report = [OSError(errno.ENOSPC, "No space left on device")], instance.report_run_failed

    def report_later(*arguments: Any) -> Any:
        if full:
            raise full.pop()
        return report(*arguments)

    monkeypatch.setattr(instance, "report_run_failed", report_later)
    run_id = launch(instance, long)
    process(instance, run_id).kill()  # before it has started
    wait_until(until(instance, run_id, dg.DagsterRunStatus.FAILURE), 60)
    assert not full


def test_a_run_that_is_terminated_is_canceled(instance: dg.DagsterInstance) -> None:
    run_id = launch(instance, long)
    wait_until(until(instance, run_id, dg.DagsterRunStatus.STARTED), 90)
    assert instance.run_launcher.terminate(run_id)
    wait_until(until(instance, run_id, dg.DagsterRunStatus.CANCELED), 30)
    assert not instance.run_launcher.terminate(run_id)


def test_the_next_daemon_knows_which_runs_go_on(instance: dg.DagsterInstance) -> None:
    run_id = launch(instance, long)
    wait_until(until(instance, run_id, dg.DagsterRunStatus.STARTED), 90)
    launcher = ForkingRunLauncher()
    launcher.register_instance(instance)

    def health() -> WorkerStatus:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        return launcher.check_run_worker_health(run).status

    assert health() == WorkerStatus.RUNNING
    at_work = process(instance, run_id)
    instance.add_run_tags(run_id, {PROCESS: f"{at_work.pid}:1.0"})
    assert health() == WorkerStatus.FAILED, "another process has the number now"
    at_work.kill()
    wait_until(until(instance, run_id, dg.DagsterRunStatus.FAILURE), 30)


def queue(instance: dg.DagsterInstance, folder: str | None) -> str:
    """Queue a run whose code is in a folder; None: in this checkout."""
    origin = dg.reconstructable(short).get_python_origin()
    repository = origin.repository_origin
    if folder is not None:
        repository = repository._replace(code_pointer=ModuleCodePointer("jobs", "main", folder))
        origin = origin._replace(repository_origin=repository)
    server = GrpcServerCodeLocationOrigin("localhost", port=1, location_name="jobs")
    return instance.create_run_for_job(
        short,
        status=dg.DagsterRunStatus.QUEUED,
        job_code_origin=origin,
        remote_job_origin=RemoteRepositoryOrigin(server, "jobs").get_job_origin("short"),
    ).run_id


def test_end_runs_cancels_what_waits_and_what_is_in_progress(tmp_path: Path) -> None:
    config, reported = Settings(state_dir=tmp_path), list[str]()
    end_runs(config, reported.extend)
    assert (reported, [*tmp_path.iterdir()]) == ([], []), "Dagster never ran"
    with dg.DagsterInstance.from_config(str(dagster_home(config))) as instance:
        run_id = launch(instance, long)
        wait_until(until(instance, run_id, dg.DagsterRunStatus.STARTED), 90)
        at_work = process(instance, run_id)
        waiting, of_others = queue(instance, None), queue(instance, "/")
        end_runs(config, reported.extend)
        assert not at_work.is_running()
        canceled = {status(instance, one) for one in (run_id, waiting)}
        assert canceled == {dg.DagsterRunStatus.CANCELED}
        assert status(instance, of_others) == dg.DagsterRunStatus.QUEUED
    assert {*reported} == {f"the run {run_id[:8]} of long", f"the run {waiting[:8]} of short"}


def test_run_of_a_command_is_watched_by_the_process_that_it_names(
    instance: dg.DagsterInstance,
) -> None:
    """``dagster asset materialize`` beside ``topicberg ui``: no daemon launched its run."""
    command = instance.create_run_for_job(long, status=dg.DagsterRunStatus.STARTED)

    def health() -> WorkerStatus:
        run = instance.get_run_by_id(command.run_id)
        assert run is not None
        return instance.run_launcher.check_run_worker_health(run).status

    assert health() == WorkerStatus.RUNNING, "it has not named its process yet"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as at_work:
        time.sleep(0.1)  # the event comes after the process
        data = EngineEventData.in_process(at_work.pid)
        instance.report_engine_event("Executing steps in process", command, data)
        assert health() == WorkerStatus.RUNNING
        at_work.kill()
    assert health() == WorkerStatus.FAILED
    assert not instance.run_launcher.terminate(command.run_id)


IMPORT = """
import importlib, sys, threading
for name in sys.argv[1:]:
    importlib.import_module(name)
assert threading.active_count() == 1, threading.enumerate()
assert "topicberg" not in sys.modules
"""


def test_libraries_are_there_and_start_no_thread() -> None:
    """A thread would not be there after forking, and what it holds would stay locked."""
    subprocess.run([sys.executable, "-c", IMPORT, *LIBRARIES], check=True, cwd="/")


def test_a_run_outlives_the_server_that_forked_it(instance: dg.DagsterInstance) -> None:
    run_id = launch(instance, long)
    wait_until(until(instance, run_id, dg.DagsterRunStatus.STARTED), 90)
    running = process(instance, run_id)
    assert os.getsid(running.pid) == running.pid, "Ctrl-C in Dagster's terminal ends it"
    running.parent().kill()
    time.sleep(3)  # its other threads have ended as well
    wait_until(until(instance, launch(instance, short), dg.DagsterRunStatus.SUCCESS), 90)
    assert status(instance, run_id) == dg.DagsterRunStatus.STARTED
    assert instance.run_launcher.terminate(run_id)
    wait_until(until(instance, run_id, dg.DagsterRunStatus.CANCELED), 30)


TOLD = """
import sys

import dagster as dg
from beside import NAME


@dg.op
def where(context: dg.OpExecutionContext) -> None:
    context.log.info(f"{NAME} of {sys.prefix}")


@dg.op
def wait() -> None:
    import time

    time.sleep(600)


@dg.job(executor_def=dg.in_process_executor)
def tell() -> None:
    where()


@dg.job(executor_def=dg.in_process_executor)
def last() -> None:
    wait()


defs = dg.Definitions(jobs=[tell, last])
"""


class Locations:
    """Code locations: ``same`` in another folder, ``other`` in another environment as well."""

    def __init__(self, instance: dg.DagsterInstance, folder: Path, workspace: Any) -> None:
        self.instance, self.folder, self.workspace = instance, folder, workspace

    def launch(self, location: str, job: str) -> str:
        of_location = self.workspace.get_code_location(location)
        found = of_location.get_repository("__repository__").get_full_job(job)
        run = create_run_for_test(
            self.instance,
            job_name=job,
            status=dg.DagsterRunStatus.STARTING,
            remote_job_origin=found.get_remote_origin(),
            job_code_origin=found.get_python_origin(),
        )
        self.instance.run_launcher.launch_run(LaunchRunContext(run, self.workspace))
        return run.run_id


@pytest.fixture(scope="module")
def locations(
    instance: dg.DagsterInstance, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Locations]:
    folder = tmp_path_factory.mktemp("locations")
    (folder / "beside.py").write_text('NAME = "a module of the folder"\n')
    (folder / "told.py").write_text(TOLD)
    venv.create(folder / "venv", symlinks=True)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    own = Path(dg.__file__).parents[1]
    (packages / "own.pth").write_text(f"import site; site.addsitedir({str(own)!r})\n")
    same = {"relative_path": "told.py", "working_directory": str(folder), "location_name": "same"}
    other = same | {
        "location_name": "other",
        "executable_path": str(folder / "venv" / "bin" / "python"),
    }
    file = folder / "workspace.yaml"
    file.write_text(json.dumps({"load_from": [{"python_file": one} for one in (same, other)]}))
    with WorkspaceProcessContext(instance, WorkspaceFileTarget([str(file)])) as process:
        yield Locations(instance, folder, process.create_request_context())


def test_run_of_another_folder_is_forked(
    instance: dg.DagsterInstance, locations: Locations
) -> None:
    run_id = locations.launch("same", "tell")
    wait_until(until(instance, run_id, dg.DagsterRunStatus.SUCCESS), 90)
    assert PROCESS in instance.get_run_by_id(run_id).tags
    messages = [entry.user_message for entry in instance.all_logs(run_id)]
    assert f"a module of the folder of {sys.prefix}" in messages


def test_run_of_another_environment_is_launched_there(
    instance: dg.DagsterInstance, locations: Locations
) -> None:
    run_id = locations.launch("other", "tell")
    wait_until(until(instance, run_id, dg.DagsterRunStatus.SUCCESS), 90)
    assert PROCESS not in instance.get_run_by_id(run_id).tags
    messages = [entry.user_message for entry in instance.all_logs(run_id)]
    assert f"a module of the folder of {locations.folder / 'venv'}" in messages


def test_run_of_another_environment_is_terminated_there(
    instance: dg.DagsterInstance, locations: Locations
) -> None:
    run_id = locations.launch("other", "last")
    wait_until(until(instance, run_id, dg.DagsterRunStatus.STARTED), 90)
    run = instance.get_run_by_id(run_id)
    assert run
    assert instance.run_launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING
    assert instance.run_launcher.terminate(run_id)
    wait_until(until(instance, run_id, dg.DagsterRunStatus.CANCELED), 30)


def test_run_of_a_code_server_elsewhere_is_launched_there(instance: dg.DagsterInstance) -> None:
    """Its Python may have the same path, in another container."""
    server = GrpcServerCodeLocationOrigin(host="warehouse", port=4000, location_name="warehouse")
    origin = RemoteRepositoryOrigin(server, "__repository__").get_job_origin(short.name)
    run = create_run_for_test(
        instance,
        job_name=short.name,
        remote_job_origin=origin,
        job_code_origin=dg.reconstructable(short).get_python_origin(),
    )
    with pytest.raises(DagsterInvariantViolationError, match="DefaultRunLauncher"):
        instance.run_launcher.launch_run(LaunchRunContext(run, None))
