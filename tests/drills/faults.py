"""How a component of the stack may fail; each fault is lifted at the end of its block."""

from __future__ import annotations

import json
import os
import random
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault

import psutil

from topicberg.settings import settings
from topicberg_local import stack as local_stack
from topicberg_local import state
from topicberg_local.supervisor import Control, full_name

INGESTION = (
    *("kafka", "schema_registry", "access_proxy", "s3", "iceberg_rest", "spark"),
    *("tableflow", "aws"),
)
"""Components between a producer and the table in Glue."""


def _family(component: str) -> list[psutil.Process]:
    """The processes of a component, its own first."""
    pids = {service.name: service.pid for service in local_stack.status(settings())}
    process = psutil.Process(pids[component])
    return [process, *process.children(recursive=True)]


@contextmanager
def killed(component: str) -> Iterator[None]:
    """``kill -9``; the supervisor starts it again by itself."""
    _family(component)[0].kill()
    yield


@contextmanager
def stopped(component: str) -> Iterator[None]:
    """It takes connections and requests, and does not answer: SIGSTOP, SIGCONT."""
    family = _family(component)
    for process in family:
        process.suspend()
    try:
        yield
    finally:
        for process in family:
            with suppress(psutil.Error):
                process.resume()


@contextmanager
def full(component: str) -> Iterator[None]:
    """Not one byte can be written to any file, as on a full disk (here: EFBIG, not ENOSPC)."""
    family = _family(component)
    for process in family:
        _limit(process, 0)
    try:
        yield
    finally:
        for process in family:
            with suppress(psutil.Error):  # those that ended of it were started anew, without limit
                _limit(process, psutil.RLIM_INFINITY)


def _limit(process: psutil.Process, size: int) -> None:
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (size, hard))


@contextmanager
def down(component: str) -> Iterator[None]:
    """It does not run, and nobody starts it again; connections are refused."""
    control = _supervisor()
    control.stopProcess(_name(component), True)
    try:
        yield
    finally:
        with suppress(Fault):  # somebody did
            control.startProcess(_name(component), False)


def _control() -> Control:
    context = state.load_context(settings())
    assert context is not None
    return Control(context)


def _supervisor() -> Any:
    return _control()._api


def _name(component: str) -> str:
    return full_name((_control().processes() or {})[component])


def _address(component: str) -> tuple[str, int]:
    context = state.load_context(settings())
    ports = {
        "kafka": "kafka_own",
        "schema_registry": "schema_registry_server",
        "access_proxy": "schema_registry",
    }
    return "127.0.0.1", context.ports[ports.get(component, component)]


@contextmanager
def lying(component: str) -> Iterator[None]:
    """Something else answers at its address: garbage, with a "200 OK" wherever there is HTTP. What
    is written to the object store is refused, though: against a store that acknowledges and throws
    away there is no help."""
    control = _supervisor()
    control.stopProcess(_name(component), True)
    address = _address(component)
    server: socketserver.TCPServer
    if component in ("kafka", "spark"):
        socketserver.ThreadingTCPServer.allow_reuse_address = True
        server = socketserver.ThreadingTCPServer(address, _Noise)
    else:
        server = ThreadingHTTPServer(address, _Liar)
        _Liar.reads_only = component == "s3"
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        with suppress(Fault):  # somebody did
            control.startProcess(_name(component), False)


@contextmanager
def robbed(component: str) -> Iterator[None]:
    """Another program has its port: the supervisor starts it again and again, in vain."""
    with lying(component):
        _supervisor().startProcess(_name(component), False)
        yield


class _Noise(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            self.request.recv(4096)
            self.request.sendall(random.randbytes(256))


class _Liar(BaseHTTPRequestHandler):
    reads_only = False

    def _answer(self) -> None:
        with suppress(OSError, ValueError):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            refuses = self.reads_only and self.command not in ("GET", "HEAD")
            body = b'{"here": "is", "nothing": ["of", "use"]}'
            self.send_response(500 if refuses else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _answer

    def log_message(self, *_: Any) -> None:
        pass


def note(**row: Any) -> None:
    """Add a line of JSON to the file that TOPICBERG_TEST_DRILL_RESULTS names."""
    if path := os.environ.get("TOPICBERG_TEST_DRILL_RESULTS"):
        with Path(path).open("a") as file:
            file.write(json.dumps(row) + "\n")


FAULTS: dict[str, Callable[[str], AbstractContextManager[None]]] = {
    "killed": killed,
    "stopped": stopped,
    "full": full,
    "lying": lying,
}
"""Those that pass within seconds; the others last."""
