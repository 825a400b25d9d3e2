"""Wait for services of the local stack, and report their state."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from topicberg.alerts.dagster_processes import WEBSERVER, dagster_checks, running_ui
from topicberg.clients import liveness
from topicberg.endpoints import Endpoints
from topicberg.errors import StackError, first_line, split_hint
from topicberg.settings import Settings
from topicberg_local import ports
from topicberg_local.answers import unanswered
from topicberg_local.progress import Report
from topicberg_local.service import Context, Service
from topicberg_local.supervisor import Control, log_file

START_SECONDS = 600.0
"""Two slow cores with thirty busy processes have needed 370. What ends is not waited for."""
EXITS = 3
"""A service that ends so often while it is waited for does not start."""
_TELLING = re.compile(r"error|exception|fatal|cannot|refused|denied|corrupt", re.IGNORECASE)


class NotReadyError(StackError):
    """A service that was started does not answer yet; it may later."""


@dataclass(frozen=True)
class ServiceStatus:
    """One line of ``topicberg status``. Memory in bytes, uptime in seconds.

    ``state``: ``running`` (it answers requests), ``starting`` (the process runs, nothing listens
    yet), ``unresponsive`` (the process runs, and does not answer), ``restarting`` (it ended by
    itself; the supervisor tries again), ``stopping``, ``stopped``.
    """

    name: str
    state: str
    port: int | None = None
    url: str | None = None
    pid: int | None = None
    memory: int = 0
    uptime: float = 0.0
    problem: str | None = None
    """Why it does not answer."""

    @property
    def running(self) -> bool:
        return self.state == "running"


_STATES = {"BACKOFF": "restarting", "EXITED": "restarting", "STOPPING": "stopping"}


def service_status(service: Service, info: Mapping[str, Any] | None) -> ServiceStatus:
    """:param info: supervisord's process info; None: supervisord is not running"""
    name, port, url = service.name, service.port, service.url
    if info is None or info["statename"] not in ("RUNNING", "STARTING"):
        state = _STATES.get(info["statename"], "stopped") if info else "stopped"
        return ServiceStatus(name, state, port, url)
    try:
        process = psutil.Process(info["pid"])
        memory = process.memory_info().rss
        for member in process.children(recursive=True):
            with suppress(psutil.Error):  # a child may end meanwhile, the service does not
                memory += member.memory_info().rss
        problem, state = service.answers(liveness.SECONDS), "running"
        if problem is not None:
            state = "unresponsive" if port is None or ports.listens(port) else "starting"
            if process.status() == psutil.STATUS_STOPPED:
                state, problem = "unresponsive", "a signal stopped the process (SIGSTOP)"
    except (psutil.Error, ValueError):  # it ended meanwhile
        return ServiceStatus(name, "restarting", port, url)
    uptime = max(0.0, info["now"] - info["start"])
    return ServiceStatus(name, state, port, url, info["pid"], memory, uptime, problem)


def dagster_status(config: Settings) -> list[ServiceStatus]:
    """Return the status of Dagster's web server and daemon, if `topicberg ui` runs."""
    if (url := running_ui(config)) is None:
        return []
    checks = dagster_checks(url)
    problems = unanswered(checks)

    def status(name: str) -> ServiceStatus:
        state = "unresponsive" if name in problems else "running"
        problem = split_hint(problems[name])[0] if name in problems else None
        port, address = (urlsplit(url).port, url) if name == WEBSERVER else (None, None)
        return ServiceStatus(name, state, port, address, problem=problem)

    return [status(name) for name in checks]


def wait(
    context: Context,
    services: list[Service],
    endpoints: Endpoints,
    control: Control,
    report: Report,
    seconds: float = START_SECONDS,
) -> None:
    """Wait until every service answers in its own protocol, all at once.

    :raises NotReadyError: a service does not within so many seconds; says which, and why
    :raises StackError: a service keeps ending; says why
    """
    deadline = time.monotonic() + seconds
    over, lock, up = threading.Event(), threading.Lock(), set[str]()
    why: dict[str, str] = {}

    def ask(service: Service) -> None:
        pause = 0.0
        while not over.wait(pause):
            pause = 0.3
            try:
                service.healthy(endpoints)
            except Exception as error:  # whatever the service's client raises
                why[service.name] = first_line(error)
            else:
                with lock:
                    up.add(service.name)
                    report.answers(service.name, len(up), len(services))
                return

    starts: dict[str, set[int]] = {service.name: set() for service in services}
    with ThreadPoolExecutor(max_workers=len(services)) as pool:
        pending = [pool.submit(ask, service) for service in services]
        try:
            while not all(future.done() for future in pending):
                waiting = {name: seen for name, seen in starts.items() if name not in up}
                _refuse_crashes(context, control, waiting)
                if time.monotonic() > deadline:
                    raise _not_ready(seconds, {name: why.get(name) for name in waiting}, len(up))
                over.wait(0.3)
        finally:
            over.set()
    for future in pending:
        future.result()


def _not_ready(seconds: float, why: Mapping[str, str | None], running: int) -> NotReadyError:
    """:param why: service → why it does not answer, as far as that is known"""
    reasons = "; ".join(f"{name}: {reason or 'no answer'}" for name, reason in why.items())
    return NotReadyError(
        f"not ready after {seconds:.0f} s: {reasons}. The other services ({running}) run, "
        "and these go on starting",
        hint="run `topicberg up` again, which waits for them; `topicberg logs SERVICE` shows what "
        "one does; `topicberg down` stops all",
    )


def _refuse_crashes(context: Context, control: Control, waiting: Mapping[str, set[int]]) -> None:
    """:param waiting: service → when its processes started, which this adds to"""
    processes = control.processes() or {}
    if not processes and control.has_ended():
        hint = f"read {log_file(context, 'supervisor')} for the reason"
        raise StackError("the supervisor ended while the services were starting", hint=hint)
    for name in [name for name in waiting if name in processes]:
        info, starts = processes[name], waiting[name]
        starts.add(info["start"])
        if info["statename"] in ("BACKOFF", "EXITED", "FATAL") and len(starts) >= EXITS:
            reason = last_words(log_file(context, name)) or info["spawnerr"]
            hint = f"read `topicberg logs {name}` for more"
            raise StackError(f"{name} ends as soon as it starts: {reason}", hint=hint)


def last_words(log: Path) -> str:
    """Return the line of a log that most likely has the reason; at most 300 characters."""
    try:
        with log.open(errors="replace") as file:
            lines = [line.rstrip() for line in deque(file, maxlen=200)]
    except OSError:
        return ""
    messages = [line for line in lines if line.strip() and not line[0].isspace() and line[0] != "#"]
    cause = "Caused by: "
    causes = [line.removeprefix(cause) for line in messages if line.startswith(cause)]
    telling = causes or [line for line in messages if _TELLING.search(line)] or messages
    return telling[-1][:300] if telling else ""
