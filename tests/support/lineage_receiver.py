"""A receiver of OpenLineage events, by HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from topicberg.clients import lineage


class Receiver(ThreadingHTTPServer):
    """Keeps the events that it gets; answers with ``status``."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.paths: list[tuple[str, str | None]] = []
        self.status = 201
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.paths.append((self.path, self.headers["Authorization"]))
                receiver.events.append(json.loads(body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def receiving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Serve one, to which topicberg sends its events."""
    server = Receiver()
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("TOPICBERG_LINEAGE_URL", server.url)
    monkeypatch.setenv("TOPICBERG_LINEAGE_NAMESPACE", "shop")
    lineage.client.cache_clear()
    try:
        yield server
    finally:
        lineage.client.cache_clear()
        server.shutdown()
        server.server_close()
