"""An HTTP proxy that fails as vendors do: too busy, broken, silent, forgetful."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}
KINDS = ("429", "500", "lost", "timeout")
"""``lost``: the request is carried out, and its answer is a 500; ``timeout``: no answer, then the
connection ends, and the request was carried out all the same."""


Answer = tuple[int, str, bytes]
"""HTTP status, content type and body."""
Refuse = Callable[[str, str, bytes | None], dict[str, Any] | None]
"""Method, path and body of a request → the JSON of a refusal with status 400, or None."""


def glue_limits(method: str, path: str, body: bytes | None) -> dict[str, Any] | None:
    """What AWS Glue's Iceberg REST API refuses, in its words.

    https://docs.aws.amazon.com/glue/latest/dg/iceberg-rest-apis.html, "CreateTable";
    https://github.com/trinodb/trino/issues/28739,
    https://github.com/duckdb/duckdb-iceberg/issues/1128
    """
    if method != "POST" or not path.partition("?")[0].endswith("/tables"):
        return None
    request, problem = json.loads(body or b"{}"), None
    if request.get("stage-create"):
        problem = "Malformed request: Stage create is not supported"
    elif not request.get("location"):
        problem = "Location information cannot be null while creating an iceberg table"
    if problem is None:
        return None
    return {"error": {"code": 400, "message": problem, "type": "InvalidInputException"}}


@dataclass
class FaultyProxy:
    """``with FaultyProxy(target) as proxy:`` serves at ``proxy.url``.

    :param percent: of the requests fail while :attr:`failing`, each kind as often
    :param refuse: requests that are not passed on
    :param answer: method and path of a request → an answer of the proxy's own, or None
    """

    target: str
    refuse: Refuse = lambda *_: None
    answer: Callable[[str, str], Answer | None] = lambda *_: None
    percent: float = 10.0
    seed: int = 1
    silence: float = 0.5
    failing: bool = False
    hits: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> FaultyProxy:
        self._random = Random(self.seed)
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def draw(self) -> str | None:
        """What happens to the next request."""
        with self._lock:
            if not self.failing or self._random.random() * 100 >= self.percent:
                return None
            kind = self._random.choice(KINDS)
            self.hits[kind] += 1
            return kind


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away before its answer is what kills and time-outs are for."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    address = urlsplit(proxy.target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body, fault = self._body(), proxy.draw()
            if (own := proxy.answer(self.command, self.path)) is not None:
                self._answer(own[0], [("Content-Type", own[1])], own[2])
            elif refusal := proxy.refuse(self.command, self.path, body):
                content = [("Content-Type", "application/json")]
                self._answer(400, content, json.dumps(refusal).encode())
            elif fault == "429":
                self._answer(429, [("Retry-After", "0")], b"")
            elif fault == "500":
                self._answer(500, [], b"")
            else:
                status, headers, data = self._forward(body)
                if fault == "lost":
                    self._answer(500, [], b"")
                elif fault == "timeout":
                    time.sleep(proxy.silence)
                    self.close_connection = True
                else:
                    self._answer(status, headers, data)

        def _body(self) -> bytes | None:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                length = int(self.headers.get("Content-Length") or 0)
                return self.rfile.read(length) if length else None
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass  # trailers
            return b"".join(parts)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _any

        def _forward(self, body: bytes | None) -> tuple[int, list[tuple[str, str]], bytes]:
            """With the Host that the client signed."""
            upstream = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
            try:
                upstream.putrequest(
                    self.command, self.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in self.headers.items():
                    if name.lower() not in HOP:
                        upstream.putheader(name, value)
                if self.headers.get("Transfer-Encoding"):
                    upstream.putheader("Content-Length", str(len(body or b"")))
                upstream.endheaders(body)
                response = upstream.getresponse()
                return response.status, response.getheaders(), response.read()
            finally:
                upstream.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            self.send_response_only(status)
            length = str(len(data))
            for name, value in headers:
                if name.lower() not in HOP | {"content-length"}:
                    self.send_header(name, value)
                elif name.lower() == "content-length" and self.command == "HEAD":
                    length = value
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: a test's output is its own."""

    return Handler
