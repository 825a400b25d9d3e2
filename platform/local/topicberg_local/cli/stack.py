"""``topicberg up | down | status | logs | reset``: the local stack."""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.output import (
    AsJson,
    Yes,
    complain,
    confirm,
    echo,
    echo_json,
    exit_if,
    print_table,
    settings,
)
from topicberg.errors import StackError
from topicberg.security.redaction import log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings
    from topicberg_local.health import ServiceStatus
    from topicberg_local.progress import Report


class _TerminalReport:
    """A progress line: bytes while jars are downloaded, then the services that answer, or what has
    not ended yet.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._starting: TaskID | None = None
        self._stopping: TaskID | None = None

    def downloading(self, files: int, size: int) -> Callable[[int], None]:
        task = self._progress.add_task(f"downloading {files} jars", total=size / 1e6, unit="MB")
        return lambda more: self._progress.advance(task, more / 1e6)

    def answers(self, service: str, count: int, total: int) -> None:
        if self._starting is None:
            self._starting = self._progress.add_task("starting", total=total, unit="services")
        text = f"{service} is up"
        self._progress.update(self._starting, completed=count, description=text)

    def stopping(self, names: Sequence[str]) -> None:
        from topicberg.wording import listed

        if self._stopping is None:
            self._stopping = self._progress.add_task("", total=len(names), unit="to end")
        text = f"stopping {listed(names, 3)}"
        self._progress.update(self._stopping, completed=len(names), description=text)


def up() -> None:
    """Start the local stack, or those of its services that are not running."""
    from rich.console import Console

    console = Console(stderr=True)
    began = time.monotonic()
    start(settings(), console)
    console.print(f"the stack is up after {time.monotonic() - began:.0f} s; `topicberg status`")


def start(config: Settings, console: Console) -> Endpoints:
    """Run :func:`topicberg_local.stack.up` with progress."""
    from topicberg_local import stack

    with _report(console) as report:
        return stack.up(config, report)


@contextmanager
def _report(console: Console) -> Iterator[Report | None]:
    """Yield what shows the progress: a bar on a terminal, else lines."""
    if console.is_terminal:
        with _progress(console) as progress:
            yield _TerminalReport(progress)
    else:
        log_to_stderr(logging.WARNING, levels={"topicberg_local": logging.INFO})
        yield None


def _progress(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}")
    amount = TextColumn("{task.completed:.0f} of {task.total:.0f} {task.fields[unit]}")
    return Progress(text, BarColumn(), amount, TimeElapsedColumn(), console=console, transient=True)


def down() -> None:
    """Stop the local stack and the runs that use it; its data stays.

    It stays down until `topicberg up` or `topicberg ui`: no run starts it again.
    """
    from rich.console import Console

    from topicberg_local import stack

    with _report(Console(stderr=True)) as report:
        ran = stack.down(settings(), report)
    echo("the stack is down" if ran else "the stack was not running")


def status(as_json: AsJson = False) -> None:
    """Show every service. Exits with 1 if a service is not running.

    States: running (it answers a request), starting (nothing listens yet), unresponsive (it does
    not answer within five seconds), restarting (it ended by itself), stopping, stopped. Dagster is
    shown while `topicberg ui` runs.
    """
    from topicberg.endpoints import local_endpoints
    from topicberg_local import stack
    from topicberg_local.health import dagster_status

    states = [*stack.status(settings()), *dagster_status(settings())]
    if as_json:
        fields = ("state", "pid", "port", "url", "problem")
        services = {s.name: {field: getattr(s, field) for field in fields} for s in states}
        try:
            addresses = _addresses(local_endpoints(settings()))
        except StackError:
            addresses = {}
        echo_json({"services": services, "endpoints": addresses})
    else:
        columns = ("service", "state", "port", "pid", "memory", "uptime")
        total = sum(s.memory for s in states)
        print_table(columns, map(_row, states), caption=f"{total / 2**20:,.0f} MB in all")
        complain(f"{s.name} is {s.state}: {s.problem}" for s in states if s.problem)
    exit_if(not all(s.running for s in states))


def _row(status: ServiceStatus) -> tuple[str, ...]:
    state = status.state if status.running else f"[red]{status.state}"
    memory = f"{status.memory / 2**20:,.0f} MB" if status.memory else ""
    hours, seconds = divmod(int(status.uptime), 3600)
    uptime = f"{hours}:{seconds // 60:02}:{seconds % 60:02}" if status.pid else ""
    return status.name, state, str(status.port or ""), str(status.pid or ""), memory, uptime


def logs(
    service: Annotated[str | None, typer.Argument(help="one service; all by default")] = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1)] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="wait for further lines")] = False,
) -> None:
    """Show the logs of the services."""
    from topicberg_local.stack import SERVICES

    folder = settings().state_dir / "logs"
    paths = [path for path in sorted(folder.glob("*.log")) if service in (None, path.stem)]
    if service and not paths and service not in SERVICES:
        hint = f"use one of {', '.join(SERVICES)}"
        raise StackError(f"there is no service {service!r}", hint=hint)
    streams = {"" if service else f"{path.stem}: ": path.open(errors="replace") for path in paths}
    for prefix, stream in streams.items():
        echo(prefix + line.rstrip() for line in deque(stream, maxlen=lines))
    while follow:
        for prefix, stream in streams.items():
            echo(prefix + line.rstrip() for line in stream)
        time.sleep(0.3)


def reset(yes: Yes = False) -> None:
    """Stop the stack and delete its state: topics, schemas, tables, run history."""
    from rich.console import Console

    from topicberg_local import stack

    config = settings()
    if not config.state_dir.exists():
        echo(f"there is nothing to delete: {config.state_dir} does not exist")
        return
    confirm(f"Delete {config.state_dir} with every local topic and table?", yes=yes)
    with _report(Console(stderr=True)) as report:
        stack.reset(config, report)
    echo("the stack is down, its state is deleted")


def _addresses(endpoints: Endpoints) -> dict[str, str | None]:
    from topicberg.spark import without_token

    snowflake = endpoints.snowflake
    return {
        "kafka_bootstrap": endpoints.kafka_bootstrap,
        "schema_registry": endpoints.schema_registry,
        "s3": endpoints.s3,
        "iceberg_rest": endpoints.iceberg_rest,
        "spark_connect": without_token(endpoints.spark_connect),
        "aws": endpoints.aws,
        "snowflake": f"{snowflake.protocol}://{snowflake.host}:{snowflake.port}",
        "confluent": endpoints.confluent,
    }
