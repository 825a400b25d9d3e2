"""The local stack as a whole: up, down, status, reset."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests
from filelock import FileLock, Timeout
from pydantic import SecretStr, ValidationError
from rich.progress import Progress

from topicberg.endpoints import Endpoints, SnowflakeEndpoint, runtime_file
from topicberg.errors import StackError
from topicberg.local import (
    iceberg_rest,
    jars,
    kafka,
    object_store,
    schema_registry,
    spark,
    stand_ins,
    supervisor,
)
from topicberg.local.service import (
    SNOWFLAKE_ACCOUNT,
    SNOWFLAKE_USER,
    Context,
    Credentials,
    Service,
)
from topicberg.settings import Settings

SERVICES: dict[str, Callable[[Context], Service]] = {
    "kafka": kafka.service,
    "schema_registry": schema_registry.service,
    "s3": object_store.service,
    "iceberg_rest": iceberg_rest.service,
    "spark": spark.service,
    "aws": stand_ins.aws,
    "snowflake": stand_ins.snowflake,
    "tableflow": stand_ins.tableflow,
}
PORTS = (
    "kafka",
    "kafka_controller",
    "schema_registry",
    "schema_registry_management",
    "s3",
    "iceberg_rest",
    "spark",
    "aws",
    "snowflake",
    "supervisor",
)
START_SECONDS = 180.0
NEEDED_DISK = 2 * 2**30
NEEDED_MEMORY = 3 * 2**30


@dataclass(frozen=True)
class ServiceStatus:
    """One line of ``topicberg status``. Memory in bytes, uptime in seconds."""

    name: str
    state: str
    port: int | None = None
    url: str = ""
    pid: int | None = None
    memory: int = 0
    uptime: float = 0.0

    @property
    def running(self) -> bool:
        return self.state == "running"


def up(config: Settings, progress: Progress | None = None) -> Endpoints:
    """Start whatever is not running, and wait until everything answers.

    :raises StackError: why it cannot, in one line
    """
    _check_state_dir(config.state_dir)
    try:
        with FileLock(config.state_dir / "up.lock", timeout=0):
            return _up(config, progress)
    except Timeout:
        raise StackError(
            "the stack is being started or stopped by another command",
            hint="wait for it; `topicberg status` shows how far it is",
        ) from None


def _up(config: Settings, progress: Progress | None) -> Endpoints:
    running = _load_context(config)
    if running and (control := supervisor.Control(running)).answers():
        services = _services(running)
        for name, info in control.processes().items():
            if info["statename"] not in ("RUNNING", "STARTING"):
                control.start(name)
        endpoints = _endpoints(running)
        _wait(running, services, endpoints, progress)
        return endpoints
    supervisor.end(supervisor.stack_processes(config.state_dir))  # what a kill -9 left
    _check_resources(config.state_dir)
    jars.ensure(progress)
    context = Context(config, _choose_ports(config), _credentials(config))
    services = _services(context)
    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(service.prepare) for service in services if service.prepare]:
            future.result()
    endpoints = _endpoints(context)
    _write_runtime(context, services, endpoints)
    supervisor.launch(context, services)
    _wait(context, services, endpoints, progress)
    return endpoints


def down(config: Settings) -> bool:
    """Stop every process of the stack. False: none was running."""
    if not config.state_dir.exists():
        return False
    try:
        with FileLock(config.state_dir / "up.lock", timeout=60):
            return _down(config)
    except Timeout:
        raise StackError(
            "the stack is being started by another command", hint="wait for it, then try again"
        ) from None


def _down(config: Settings) -> bool:
    from topicberg.datagen.runner import stop_all

    stop_all(config)
    context = _load_context(config)
    if context and (control := supervisor.Control(context)).answers():
        control.shutdown()
        supervisor.wait_until_gone(config.state_dir, 90)
    left = supervisor.stack_processes(config.state_dir)
    supervisor.end(left)
    was_running = runtime_file(config).exists()
    runtime_file(config).unlink(missing_ok=True)
    return was_running or bool(left)


def reset(config: Settings) -> None:
    """Stop the stack and delete all its state."""
    down(config)
    shutil.rmtree(config.state_dir, ignore_errors=True)


def ensure_running(config: Settings) -> None:
    """Start the stack if it is not running; costs one request when it is."""
    context = _load_context(config)
    if context is None or not supervisor.Control(context).answers():
        up(config)


def status(config: Settings) -> list[ServiceStatus]:
    """Every service, whether it runs or not."""
    try:
        context = _load_context(config)
    except StackError:
        context = None
    if context is None:
        return [ServiceStatus(name, "stopped") for name in SERVICES]
    control = supervisor.Control(context)
    processes = control.processes() if control.answers() else {}
    return [_status(service, processes.get(service.name)) for service in _services(context)]


def _status(service: Service, info: Any) -> ServiceStatus:
    if info is None or info["statename"] != "RUNNING":
        state = "stopped" if info is None else str(info["statename"]).lower()
        return ServiceStatus(service.name, state, service.port, service.url)
    try:
        process = psutil.Process(info["pid"])
        family = [process, *process.children(recursive=True)]
        memory = sum(member.memory_info().rss for member in family)
    except psutil.Error:
        return ServiceStatus(service.name, "restarting", service.port, service.url)
    return ServiceStatus(
        service.name,
        "running",
        service.port,
        service.url,
        info["pid"],
        memory,
        info["now"] - info["start"],
    )


def _services(context: Context) -> list[Service]:
    return [make(context) for make in SERVICES.values()]


def _endpoints(context: Context) -> Endpoints:
    secrets = context.credentials
    return Endpoints(
        kafka_bootstrap=f"127.0.0.1:{context.ports['kafka']}",
        schema_registry=context.url("schema_registry") + schema_registry.API,
        s3=context.url("s3"),
        s3_access_key=SecretStr(secrets.s3_access_key),
        s3_secret_key=secrets.s3_secret_key,
        iceberg_rest=context.url("iceberg_rest"),
        spark_connect=f"sc://127.0.0.1:{context.ports['spark']}",
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
    )


# --- the state directory ---


def _check_state_dir(state_dir: Path) -> None:
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        state_dir.chmod(0o700)
        probe = state_dir / ".writable"
        probe.write_text("x" * 4096)
        probe.unlink()
    except OSError as error:
        raise StackError(
            f"{state_dir} cannot be written: {error.strerror}",
            hint="free some space or mend its permissions; TOPICBERG_STATE_DIR chooses another one",
        ) from None


def _check_resources(state_dir: Path) -> None:
    free = shutil.disk_usage(state_dir).free
    if free < NEEDED_DISK:
        raise StackError(
            f"{state_dir} has {free / 2**30:.1f} GB free, the stack needs {NEEDED_DISK / 2**30:.0f}",
            hint="free some space; TOPICBERG_STATE_DIR chooses another place",
        )
    available = psutil.virtual_memory().available
    if available < NEEDED_MEMORY:
        raise StackError(
            f"{available / 2**30:.1f} GB of memory are available, the stack needs "
            f"{NEEDED_MEMORY / 2**30:.0f}",
            hint="close something; `topicberg down` in another checkout stops its stack",
        )


def _load_context(config: Settings) -> Context | None:
    """The context of a started stack; None if it was never started, or stopped."""
    path = runtime_file(config)
    try:
        ports = json.loads(path.read_text())["ports"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, OSError) as error:
        raise _corrupt(path, error) from None
    return Context(config, ports, _credentials(config))


def _credentials(config: Settings) -> Credentials:
    path = config.state_dir / "credentials.json"
    try:
        return Credentials.model_validate_json(path.read_text())
    except FileNotFoundError:
        credentials = Credentials.generate()
        _write_private(path, credentials.model_dump_json())
        return credentials
    except (ValidationError, OSError) as error:
        raise _corrupt(path, error) from None


def _corrupt(path: Path, error: Exception) -> StackError:
    return StackError(
        f"{path} is damaged ({type(error).__name__})",
        hint="restore it, or start afresh with `topicberg reset`, which deletes the local tables",
    )


def _write_runtime(context: Context, services: list[Service], endpoints: Endpoints) -> None:
    values = endpoints.model_dump()
    revealed = {key: _revealed(value) for key, value in values.items()}
    document = {
        "ports": dict(context.ports),
        "services": {service.name: {"url": service.url} for service in services},
        "endpoints": revealed,
    }
    _write_private(runtime_file(context.config), json.dumps(document, indent=1))
    _write_private(context.config.state_dir / "ports.json", json.dumps(dict(context.ports)))


def _revealed(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: _revealed(item) for key, item in value.items()}
    return value


def _write_private(path: Path, text: str) -> None:
    """Replace a file in one step; nobody else may read it."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    temporary.replace(path)


# --- ports ---


def _choose_ports(config: Settings) -> dict[str, int]:
    """The ports of the last start where they are still free, free ones otherwise."""
    try:
        before = json.loads((config.state_dir / "ports.json").read_text())
    except (FileNotFoundError, ValueError):
        before = {}
    chosen: dict[str, int] = {}
    for name in PORTS:
        if wanted := config.ports.get(name):
            if not _is_free(wanted):
                raise StackError(
                    f"port {wanted} for {name} is taken{_holder(wanted)}",
                    hint=f"stop what holds it, or choose another port in TOPICBERG_PORTS['{name}']",
                )
            chosen[name] = wanted
        elif (old := before.get(name)) and old not in chosen.values() and _is_free(old):
            chosen[name] = old
        else:
            chosen[name] = _free_port(set(chosen.values()))
    return chosen


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_port(taken: set[int]) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass
    return ""


# --- waiting ---


def _wait(
    context: Context, services: list[Service], endpoints: Endpoints, progress: Progress | None
) -> None:
    """Until every service answers in its own protocol, all at once.

    :raises StackError: one does not in :data:`START_SECONDS`; names its log
    """
    deadline = time.monotonic() + START_SECONDS
    task = progress.add_task("starting", total=len(services)) if progress else None

    def wait(service: Service) -> None:
        last: Exception | None = None
        while time.monotonic() < deadline:
            try:
                service.healthy(endpoints)
            except Exception as error:  # whatever the service's client raises
                last = error
                time.sleep(0.3)
            else:
                if progress and task is not None:
                    progress.update(task, advance=1, description=f"{service.name} is up")
                return
        raise StackError(
            f"{service.name} does not answer after {START_SECONDS:.0f} s: {_first_line(last)}",
            hint=f"`topicberg logs {service.name}` says why",
        )

    with ThreadPoolExecutor(max_workers=len(services)) as pool:
        for future in [pool.submit(wait, service) for service in services]:
            future.result()
    object_store.ensure_bucket(endpoints, context)
    compatibility = requests.put(
        f"{endpoints.schema_registry}/config", json={"compatibility": "BACKWARD"}, timeout=10
    )
    compatibility.raise_for_status()


def _first_line(error: Exception | None) -> str:
    lines = str(error).strip().splitlines() if error else []
    return lines[0] if lines else type(error).__name__
