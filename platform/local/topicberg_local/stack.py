"""The local stack as a whole: up, down, status, reset."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import requests
from filelock import FileLock, Timeout
from pydantic import SecretStr

from topicberg.alerts.dagster_processes import forget_ui, lost_ui
from topicberg.alerts.watch import starts_file
from topicberg.dagster.home import dagster_home
from topicberg.endpoints import (
    Endpoints,
    OwnListener,
    SnowflakeEndpoint,
    bypass_proxy,
    stopped_file,
)
from topicberg.errors import StackError
from topicberg.settings import Settings
from topicberg_local import (
    class_data,
    health,
    iceberg_rest,
    jars,
    kafka,
    object_store,
    ports,
    python_services,
    schema_registry,
    spark,
    state,
    supervisor,
)
from topicberg_local.health import NotReadyError, ServiceStatus
from topicberg_local.progress import LogReport, Report
from topicberg_local.service import SNOWFLAKE_ACCOUNT, SNOWFLAKE_USER, Context, Service

if TYPE_CHECKING:
    import dagster as dg

logger = logging.getLogger(__name__)

SERVICES: dict[str, Callable[[Context], Service]] = {
    "kafka": kafka.service,
    "schema_registry": schema_registry.service,
    "access_proxy": python_services.access_proxy,
    "s3": object_store.service,
    "iceberg_rest": iceberg_rest.service,
    "spark": spark.service,
    "aws": python_services.aws,
    "snowflake": python_services.snowflake,
    "confluent": python_services.confluent,
    "tableflow": python_services.tableflow,
}
OTHERS_SECONDS = 900.0
"""How long :func:`ensure_running` waits for another process that starts the stack, which may have
to download everything first."""
STOP_SECONDS = 120.0


def up(config: Settings, report: Report | None = None) -> Endpoints:
    """Start what is not running; wait until every service answers; raises StackError: it cannot."""
    state.prepare_dir(config)
    try:
        with FileLock(state.lock_file(config), timeout=0):
            stopped_file(config).unlink(missing_ok=True)
            endpoints = _up(config, report or LogReport())
            stopped_file(config).unlink(missing_ok=True)  # of a `down` that waited meanwhile
            return endpoints
    except Timeout:
        raise StackError(
            "the stack is being started or stopped by another command",
            hint="wait for it; run `topicberg status` to see its progress",
        ) from None


def ensure_running(config: Settings) -> None:
    """Start the stack if it is not running and no user has stopped it; costs one request if it is.

    Several processes may call it at once: the first one starts the stack, the others wait.

    :raises StackNotRunningError: a user has stopped it, or its project was moved
    :raises StackError: it cannot be started, or its supervisor runs and does not answer
    """
    deadline = time.monotonic() + OTHERS_SECONDS
    while not _runs(config):
        state.refuse_stopped(config)
        state.prepare_dir(config)
        try:
            with FileLock(state.lock_file(config), timeout=15):
                if not _runs(config):
                    state.refuse_stopped(config)  # another process may have stopped it
                    _up(config, LogReport(), ends_silent=False)
                return
        except Timeout:
            if time.monotonic() > deadline:
                minutes = f"{OTHERS_SECONDS / 60:.0f} minutes"
                raise StackError(
                    f"another command has been starting the stack for {minutes}",
                    hint="run `topicberg status` to see its progress",
                ) from None
            logger.info("waiting for another process that starts the stack")


def _runs(config: Settings) -> bool:
    context = state.load_context(config)
    if context is None or not state.has_endpoints(config):
        return False
    processes = supervisor.Control(context).processes() or {}
    return all(processes.get(name, {}).get("statename") == "RUNNING" for name in SERVICES)


def _up(config: Settings, report: Report, *, ends_silent: bool = True) -> Endpoints:
    """:param ends_silent: whether a supervisor that does not answer is ended, with its services"""
    context = state.load_context(config)
    if context and (control := supervisor.Control(context)).answers():
        control.restart_what_is_down()
        return _wait(context, control, report)
    if context and not ends_silent:
        _refuse_silent(control)
    state.forget_endpoints(config)
    starts_file(config).unlink(missing_ok=True)
    supervisor.end(supervisor.stack_processes(config.state_dir))  # a kill -9 leaves them behind
    state.check_resources(config.state_dir)
    jars.ensure(report)
    class_data.prepare()
    shutil.rmtree(config.state_dir / "tmp", ignore_errors=True)
    before = state.load_ports(config)
    context = Context(config, ports.choose(config.ports, before), state.credentials(config))
    services = _services(context)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda service: service.prepare(), services))
    state.save_ports(context)
    try:
        supervisor.launch(context, services)
        return _wait(context, supervisor.Control(context), report)
    except NotReadyError:  # the supervisor continues, and so do the services that answer
        raise
    except BaseException:  # also Ctrl-C: a failed start leaves nothing running
        _stop(config, context, report)
        raise


def _refuse_silent(control: supervisor.Control) -> None:
    if not control.has_ended():
        raise StackError(
            "the supervisor of the local stack does not answer",
            hint="if a signal stopped it, `kill -CONT` its process lets it continue; else run "
            "`topicberg down`, which ends it, then `topicberg up`",
        )


def _wait(context: Context, control: supervisor.Control, report: Report) -> Endpoints:
    bypass_proxy()
    services, endpoints = _services(context), _endpoints(context)
    health.wait(context, services, endpoints, control, report)
    object_store.ensure_buckets(endpoints, context)
    url, compatibility = f"{endpoints.schema_registry}/config", {"compatibility": "BACKWARD"}
    requests.put(url, json=compatibility, timeout=10).raise_for_status()
    state.save_endpoints(context.config, {s.name: s.url for s in services}, endpoints)
    return endpoints


def down(config: Settings, report: Report | None = None) -> bool:
    """Stop the runs in progress and every process of the stack; return False if none was running.

    Until the next :func:`up`, no run starts it again: not even of one that was stopped in part.
    """
    if not config.state_dir.exists():
        return False
    report = report or LogReport()
    try:
        with ExitStack() as undo:
            if state.note_stopped(config):
                undo.callback(stopped_file(config).unlink, missing_ok=True)
            end_runs(config, report.stopping)  # a run may hold the lock: it starts the stack
            with FileLock(state.lock_file(config), timeout=60):
                undo.pop_all()
                state.note_stopped(config)  # an `up` that had the lock has removed it
                return _down(config, report)
    except Timeout:
        raise StackError(
            "the stack is being started by another command", hint="wait for it, then try again"
        ) from None
    except PermissionError as error:
        raise StackError(f"{error.filename} cannot be written: {error.strerror}") from None


def _down(config: Settings, report: Report) -> bool:
    from topicberg_local.datagen.runner import stop_all

    stop_all(config)
    try:
        context = state.load_context(config)
    except StackError as error:  # stopping must work nevertheless
        logger.warning("%s", error.message)
        context = None
    stopped = _stop(config, context, report)
    if lost_ui(config):
        forget_ui(config)
    return state.forget_endpoints(config) or stopped


def _stop(config: Settings, context: Context | None, report: Report) -> bool:
    """End every process, gracefully if the supervisor answers."""
    control = supervisor.Control(context) if context else None
    processes = control.processes() if control else None
    if control and processes is not None:
        names = {info["pid"]: name for name, info in processes.items()}
        control.shutdown()
        shown: list[str] = []
        for pids in supervisor.until_gone(config.state_dir, STOP_SECONDS):
            left = [name for pid, name in names.items() if pid in pids]
            if left and left != shown:
                report.stopping(left)
                shown = left
    processes_left = supervisor.stack_processes(config.state_dir)
    supervisor.end(processes_left)
    return bool(processes_left) or processes is not None


def reset(config: Settings, report: Report | None = None) -> bool:
    """Stop the stack and delete all its state; return False if there was none."""
    if not config.state_dir.exists():
        return False
    state.refuse_foreign(config)
    down(config, report)
    state.delete(config)
    return True


def status(config: Settings) -> list[ServiceStatus]:
    """Return the status of every service, running or not: each that runs is sent a request.

    :raises StackError: the state directory is damaged, or the supervisor does not answer
    """
    context = state.load_context(config)
    if context is None:
        return [ServiceStatus(name, "stopped") for name in SERVICES]
    processes = (control := supervisor.Control(context)).processes()
    if processes is None:
        _refuse_silent(control)
    if processes is None and (left := supervisor.stack_processes(config.state_dir)):
        raise StackError(
            f"the supervisor of the local stack ended, and {len(left)} of its processes are still "
            "running",
            hint="run `topicberg up`, which ends them and starts the stack again; nothing is lost",
        )
    every = _services(context)
    infos = [(processes or {}).get(service.name) for service in every]
    with ThreadPoolExecutor(len(every)) as pool:
        return list(pool.map(health.service_status, every, infos))


def services(config: Settings) -> list[Service]:
    """Return every service; none if the stack was never up."""
    context = state.load_context(config)
    return [] if context is None else _services(context)


def _services(context: Context) -> list[Service]:
    return [make(context) for make in SERVICES.values()]


def _endpoints(context: Context) -> Endpoints:
    secrets = context.credentials
    proxy = f"127.0.0.1:{context.ports['kafka']}"
    return Endpoints(
        kafka_bootstrap=proxy,
        kafka_own=OwnListener(
            proxy=proxy,
            bootstrap=f"127.0.0.1:{context.ports['kafka_own']}",
            login=secrets.kafka_login,
        ),
        schema_registry=context.url("schema_registry") + schema_registry.API,
        s3=context.url("s3"),
        s3_access_key=SecretStr(secrets.s3_access_key),
        s3_secret_key=secrets.s3_secret_key,
        iceberg_rest=context.url("iceberg_rest"),
        iceberg_rest_token=secrets.iceberg_token,
        # Only for this host name does Spark's client send a token to a server without TLS.
        spark_connect=f"sc://localhost:{context.ports['spark']}"
        f"/;token={secrets.spark_token.get_secret_value()}",
        aws=context.url("aws"),
        aws_access_key=SecretStr(secrets.s3_access_key),
        aws_secret_key=secrets.s3_secret_key,
        snowflake=SnowflakeEndpoint(
            account=SNOWFLAKE_ACCOUNT,
            user=SNOWFLAKE_USER,
            password=secrets.snowflake_password,
            host="127.0.0.1",
            port=context.ports["snowflake"],
            protocol="http",
        ),
        confluent=context.url("confluent"),
        confluent_api_key=secrets.confluent_api_key,
        confluent_api_secret=secrets.confluent_api_secret,
        confluent_admin_token=secrets.confluent_admin_token,
    )


RUN_SECONDS = 20.0
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

    from topicberg.dagster.runs import ACTIVE, process_of, run_kind

    status = dg.DagsterRunStatus
    with dg.DagsterInstance.from_config(str(dagster_home(config))) as instance:
        every = instance.get_runs(dg.RunsFilter(statuses=ACTIVE))
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
        for process in psutil.wait_procs(processes, timeout=RUN_SECONDS)[1]:
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
