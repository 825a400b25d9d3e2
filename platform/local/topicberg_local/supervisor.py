"""supervisord keeps the services running: its configuration, its control, and orphaned processes.

Control uses HTTP on loopback with a password, because a Unix socket's path may not exceed 108
characters, and a checkout's path can be long.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ProtocolError, ServerProxy, Transport

import psutil

from topicberg.errors import StackError
from topicberg.processes import marked
from topicberg_local.service import Context, Service, quoted, write_file

STACK_VARIABLE = "TOPICBERG_STACK"
"""Environment variable of every process of a stack: its state directory."""
_PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "SSL_CERT_FILE",
    "JDK_JAVA_OPTIONS",  # options for every JVM, which its launcher reads
)
_START_SECONDS = 10
"""A service that ends sooner is restarted after 1, 2, 3... seconds, one that ends later at once."""
_ANSWER_SECONDS = 10.0
_USER = "topicberg"
_TIDILY = ["/bin/sh", "-c", 'rm -rf "$TMPDIR" && mkdir -p "$TMPDIR" && exec "$@"', "sh"]
"""Before a service starts, the temporary folder of its killed predecessor is emptied: otherwise
Spark's shuffle files and the libraries that JVMs unpack would fill the disk over time."""


def log_file(context: Context, name: str) -> Path:
    """Return the path of a service's log; ``supervisor``: the supervisor's own log."""
    return context.folder("logs") / f"{name}.log"


def configuration(context: Context, services: Iterable[Service]) -> str:
    """Return supervisord's configuration file, which holds secrets.

    Paths are relative to the state directory, because supervisord expands ``%`` in some twice.
    """
    port = context.ports["supervisor"]
    password = context.credentials.supervisor_password.get_secret_value()
    sections = [
        f"""[supervisord]
logfile=logs/supervisor.log
logfile_maxbytes=5MB
logfile_backups=1
pidfile=supervisor/supervisord.pid
childlogdir=logs

[inet_http_server]
port=127.0.0.1:{port}
username={_USER}
password={_escape(password)}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
    ]
    orders: dict[int, list[str]] = {}
    for service in services:
        orders.setdefault(service.start_order, []).append(service.name)
        environment = {
            STACK_VARIABLE: str(context.config.state_dir),
            "TMPDIR": str(context.temporary(service.name)),
            **service.environment,
        }
        sections.append(
            f"""[program:{service.name}]
command={_escape(" ".join(quoted(part) for part in [*_TIDILY, *service.command]))}
environment={_escape(",".join(f"{key}={_enclose(value)}" for key, value in environment.items()))}
autostart=true
autorestart=true
startsecs={_START_SECONDS}
startretries=1000000
stopwaitsecs={service.stop_seconds}
stopasgroup=true
killasgroup=true
redirect_stderr=true
stdout_logfile=logs/{service.name}.log
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=2
"""
        )
    # supervisord stops one group after the other, and the programs of a group at the same time.
    sections += [
        f"[group:{order}]\nprograms={','.join(names)}\npriority={order}\n"
        for order, names in orders.items()
    ]
    return "\n".join(sections)


def _enclose(value: str) -> str:
    """Quote a value for ``environment=``, which supports quotes but no escape for one."""
    return f"'{value}'" if '"' in value else f'"{value}"'


def _escape(text: str) -> str:
    return text.replace("%", "%%")


class _Transport(Transport):
    """Does not wait for ever for a supervisor that is stopped by a signal."""

    def make_connection(self, host: Any) -> HTTPConnection:
        connection = super().make_connection(host)
        connection.timeout = _ANSWER_SECONDS
        return connection


class Control:
    """Talks to a running supervisord."""

    def __init__(self, context: Context) -> None:
        password = context.credentials.supervisor_password.get_secret_value()
        url = f"http://{_USER}:{password}@127.0.0.1:{context.ports['supervisor']}/RPC2"
        self._state_dir = context.config.state_dir
        self._api: Any = ServerProxy(url, _Transport(), allow_none=True).supervisor

    def answers(self) -> bool:
        """Return whether it answers, and does not shut down."""
        return self.processes() is not None

    def processes(self) -> dict[str, Mapping[str, Any]] | None:
        """Return service → supervisord's process info (``statename``, ``pid``, ``start``, ``now``).

        None if supervisord does not answer, or shuts down.
        """
        try:
            return {info["name"]: info for info in self._api.getAllProcessInfo()}
        except (OSError, HTTPException, Fault, ProtocolError):
            return None

    def has_ended(self) -> bool:
        """Return whether it has ended, or shuts down; not if it only does not answer, as a process
        does that a signal stopped (SIGSTOP)."""
        try:
            self._api.getAllProcessInfo()
        except (Fault, ConnectionRefusedError):
            return True
        except (OSError, HTTPException, ProtocolError):  # its port may be of another process now
            return not stack_processes(self._state_dir)
        return False

    def restart_what_is_down(self) -> None:
        """Start now what is stopped, gave up, or waits for its next attempt."""
        for info in (self.processes() or {}).values():
            with suppress(Fault):  # its state changed meanwhile
                if info["statename"] == "BACKOFF":
                    self._api.stopProcess(full_name(info))
                if info["statename"] not in ("RUNNING", "STARTING"):
                    self._api.startProcess(full_name(info), False)

    def shutdown(self) -> None:
        self._api.shutdown()


def full_name(info: Mapping[str, Any]) -> str:
    """Return what supervisord calls a process whose info it returned."""
    return f"{info['group']}:{info['name']}"


def launch(context: Context, services: Iterable[Service]) -> None:
    """Start supervisord in the background, with every service; raises StackError: it fails."""
    folder = context.folder("supervisor")
    context.folder("logs")
    path = write_file(folder / "supervisord.conf", configuration(context, services))
    environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    environment[STACK_VARIABLE] = str(context.config.state_dir)
    command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(path)]
    state_dir = context.config.state_dir
    done = subprocess.run(command, cwd=state_dir, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise StackError(f"supervisord does not start: {(done.stderr or done.stdout).strip()}")


def stack_processes(state_dir: Path) -> list[psutil.Process]:
    """Return every process of the stack of this state directory, including orphans."""
    of_stack = [process for process, mark in marked(STACK_VARIABLE) if mark == str(state_dir)]
    return [process for process in of_stack if process.pid != os.getpid()]


def end(processes: list[psutil.Process], patience: float = 10.0) -> None:
    """End processes: first by SIGTERM, then by SIGKILL."""
    for stop, seconds in ((psutil.Process.terminate, patience), (psutil.Process.kill, 5.0)):
        for process in processes:
            with suppress(psutil.Error):
                stop(process)
        _, processes = psutil.wait_procs(processes, timeout=seconds)


def until_gone(state_dir: Path, patience: float) -> Iterator[set[int]]:
    """Wait until every process of the stack has ended, or for so many seconds.

    :returns: the ids of those that have not, again and again
    """
    deadline = time.monotonic() + patience
    while (left := stack_processes(state_dir)) and time.monotonic() < deadline:
        yield {process.pid for process in left}
        time.sleep(0.2)
