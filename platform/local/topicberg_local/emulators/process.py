"""What the processes of all emulators share: the command line, the socket, and how they end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from topicberg.errors import StackError
from topicberg.security.logs import log_to_stderr

if TYPE_CHECKING:
    from starlette.applications import Starlette

logger = logging.getLogger(__name__)
STOP_SECONDS = 3
"""How long running requests, and each worker, have to end when the server is stopped."""


class Worker(threading.Thread):
    """Runs beside the server until it is stopped: it looks after something again and again.

    :param seconds: between two looks
    """

    def __init__(self, name: str, seconds: float = 1.0) -> None:
        super().__init__(name=name, daemon=True)
        self._seconds, self._awake, self._stopping = seconds, threading.Event(), False

    def look(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        """Look at once."""
        self._awake.set()

    def stop(self) -> None:
        self._stopping = True
        self._awake.set()

    def run(self) -> None:
        while not self._stopping:
            try:
                self.look()
            except Exception:
                logger.exception("%s failed unexpectedly", self.name)
            self._awake.wait(self._seconds)
            self._awake.clear()


def main(
    module: str,
    description: str | None,
    serve: Callable[[str, int, Path], None],
    levels: Mapping[str, int],
) -> None:
    """Run ``serve(host, port, folder of the state)`` as the command line says.

    :param levels: of the log
    """
    parser = argparse.ArgumentParser(prog=module, description=description)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    arguments = parser.parse_args()
    log_to_stderr(logging.INFO, "%(asctime)s %(levelname)s %(name)s %(message)s", levels)
    try:
        serve(arguments.host, arguments.port, arguments.state_dir)
    except StackError as error:
        sys.exit(f"error: {error}")


def require_variables(*names: str) -> list[str]:
    """Return the values of environment variables; raises StackError: one of them is missing."""
    if missing := [name for name in names if not os.environ.get(name)]:
        raise StackError(f"not set in the environment: {', '.join(missing)}")
    return [os.environ[name] for name in names]


def listen(vendor: str, host: str, port: int) -> socket.socket:
    """:raises StackError: the port is taken"""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise StackError(f"the {vendor} emulator cannot listen on {host}:{port}: {error}") from None


def run(
    application: Starlette,
    listener: socket.socket,
    workers: Sequence[Worker],
    interrupt: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM.

    :param workers: run meanwhile
    :param interrupt: is called at the end, before running requests are waited for
    """
    import uvicorn

    for worker in workers:
        worker.start()

    server = uvicorn.Server(
        uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=STOP_SECONDS)
    )
    # In a thread, because in the main one uvicorn would handle the signals, and die of them.
    thread = threading.Thread(target=server.run, args=([listener],), name="server", daemon=True)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    thread.start()
    while thread.is_alive() and not stop.wait(0.5):
        pass
    for worker in workers:
        worker.stop()
    interrupt()
    server.should_exit = True
    thread.join(STOP_SECONDS + 1)
    for worker in workers:
        worker.join(STOP_SECONDS)
