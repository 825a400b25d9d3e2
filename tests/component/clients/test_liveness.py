"""Requests with a deadline: to servers that answer, hang, fail, or are not there."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from real_servers import certificates

from topicberg.clients.liveness import Check, answers_http
from topicberg_local.answers import answers_http2, answers_kafka, unanswered

DEADLINE = 0.3


@pytest.fixture
def frozen() -> Iterator[int]:
    """The port of a process that is stopped: the kernel accepts connections, and nothing reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def checks(port: int) -> dict[str, Check]:
    return {
        "http": answers_http(f"http://127.0.0.1:{port}/health"),
        "http2": answers_http2("127.0.0.1", port),
        "kafka": answers_kafka("127.0.0.1", port),
    }


def test_frozen_service_does_not_answer_within_the_deadline(frozen: int) -> None:
    began, found = time.monotonic(), unanswered(checks(frozen), DEADLINE)
    assert found == dict.fromkeys(("http", "http2", "kafka"), "no answer within 0 s")
    assert time.monotonic() - began < 10 * DEADLINE


def test_service_that_is_not_there_does_not_answer(closed: int) -> None:
    found = unanswered(checks(closed), DEADLINE)
    assert set(found.values()) == {"nothing listens on its port"}
    assert len(found) == 3


@pytest.mark.parametrize("status", [200, 401, 404, 503])
def test_any_response_of_http_is_an_answer_but_a_failure(status: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        why = answers_http(f"http://127.0.0.1:{server.server_port}/x")(5)
        server.shutdown()
    assert why == ("HTTP status 503: hello" if status == 503 else None)


def test_https_is_asked_by_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's UI may be behind a proxy with TLS."""
    files, context = certificates(tmp_path), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.broker)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # 501
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        check = answers_http(f"https://127.0.0.1:{server.server_port}/x")
        assert "CERTIFICATE_VERIFY_FAILED" in (check(5) or "")
        monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
        assert (check(5) or "").startswith("HTTP status 501")
        server.shutdown()


def replies(reply: bytes, *, slowly: bool = False) -> int:
    """The port of a server that answers one connection with these bytes, then closes it."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(1000)
            for part in [bytes([byte]) for byte in reply] if slowly else [reply]:
                time.sleep(DEADLINE / 3 if slowly else 0)
                with suppress(OSError):
                    connection.sendall(part)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def test_answer_has_to_be_whole_and_of_the_protocol() -> None:
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    assert answers_http2("127.0.0.1", replies(settings))(5) is None
    assert answers_http2("127.0.0.1", replies(b"HTTP/1.1 400 Bad Request"))(5)
    assert answers_http2("127.0.0.1", replies(settings[:5]))(5) == "it closed the connection"
    assert answers_kafka("127.0.0.1", replies(b"\x00\x00\x00\x06" + bytes(6)))(5) is None
    assert answers_kafka("127.0.0.1", replies(b""))(5) == "it closed the connection"


def test_deadline_is_of_the_whole_answer() -> None:
    """A service that sends a byte now and then does not answer."""
    began = time.monotonic()
    assert answers_kafka("127.0.0.1", replies(bytes(10), slowly=True))(DEADLINE)
    assert time.monotonic() - began < 2 * DEADLINE
