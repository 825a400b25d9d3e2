"""supervisord keeps the services running: its configuration, its control, and its orphans.

Control goes over HTTP on loopback with a password (a Unix socket's path may not exceed 108
characters, and a checkout can lie deep).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ProtocolError, ServerProxy

import psutil

from topicberg.errors import StackError
from topicberg.local.service import Context, Service

STACK_VARIABLE = "TOPICBERG_STACK"
"""In the environment of every process of a stack: its state directory."""
_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ", "SSL_CERT_FILE")
_USER = "topicberg"


def configuration(context: Context, services: Iterable[Service]) -> str:
    """supervisord's configuration file; it holds secrets."""
    folder = context.folder("supervisor")
    logs = context.folder("logs")
    port = context.ports["supervisor"]
    password = context.credentials.supervisor_password.get_secret_value()
    sections = [
        f"""[supervisord]
logfile={_escape(str(logs / "supervisor.log"))}
logfile_maxbytes=5MB
logfile_backups=1
pidfile={_escape(str(folder / "supervisord.pid"))}
childlogdir={_escape(str(logs))}
directory={_escape(str(context.config.state_dir))}

[inet_http_server]
port=127.0.0.1:{port}
username={_USER}
password={_escape(password)}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
    ]
    for service in services:
        log = logs / f"{service.name}.log"
        environment = {STACK_VARIABLE: str(context.config.state_dir), **service.environment}
        sections.append(
            f"""[program:{service.name}]
command={_escape(" ".join(_quote(part) for part in service.command))}
environment={_escape(",".join(f'{key}="{value}"' for key, value in environment.items()))}
priority={service.start_order}
autostart=true
autorestart=true
startsecs=2
startretries=1000
stopwaitsecs={service.stop_seconds}
stopasgroup=true
killasgroup=true
redirect_stderr=true
stdout_logfile={_escape(str(log))}
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=2
"""
        )
    return "\n".join(sections)


def _quote(part: str) -> str:
    return '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escape(text: str) -> str:
    return text.replace("%", "%%")


class Control:
    """Talks to a running supervisord."""

    def __init__(self, context: Context) -> None:
        password = context.credentials.supervisor_password.get_secret_value()
        url = f"http://{_USER}:{password}@127.0.0.1:{context.ports['supervisor']}/RPC2"
        self._api: Any = ServerProxy(url, allow_none=True).supervisor

    def answers(self) -> bool:
        try:
            return bool(self._api.getState()["statecode"] == 1)
        except (OSError, Fault, ProtocolError):
            return False

    def processes(self) -> dict[str, Mapping[str, Any]]:
        """Service → supervisord's process info (``statename``, ``pid``, ``start``, ``now``)."""
        return {info["name"]: info for info in self._api.getAllProcessInfo()}

    def start(self, name: str) -> None:
        try:
            self._api.startProcess(name, False)
        except Fault as fault:
            if "ALREADY_STARTED" not in fault.faultString:
                raise StackError(f"{name} does not start: {fault.faultString}") from None

    def shutdown(self) -> None:
        self._api.shutdown()


def launch(context: Context, services: Iterable[Service]) -> None:
    """Start supervisord in the background, and with it every service.

    :raises StackError: it does not start
    """
    folder = context.folder("supervisor")
    path = folder / "supervisord.conf"
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(configuration(context, services))
    environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    environment[STACK_VARIABLE] = str(context.config.state_dir)
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.supervisord", "-c", str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise StackError(f"supervisord does not start: {(done.stderr or done.stdout).strip()}")


def stack_processes(state_dir: Path) -> list[psutil.Process]:
    """Every process that belongs to the stack of this state directory, orphans included."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(STACK_VARIABLE) == str(state_dir):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return [process for process in found if process.pid != os.getpid()]


def end(processes: list[psutil.Process], patience: float = 10.0) -> None:
    """Ask processes to stop, then make them."""
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=patience)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


def wait_until_gone(state_dir: Path, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not stack_processes(state_dir):
            return True
        time.sleep(0.2)
    return False
