"""The HTTP layer against a server in the test: what it retries, what it makes of errors."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from topicberg.clients.confluent import (
    Api,
    ApiError,
    ConflictError,
    CredentialsError,
    GoneError,
    UncertainError,
    retry_after,
)

ZIPPED = gzip.compress(b'{"message": "zipped"}', mtime=0)


class Server:
    """Answers with what the test laid out, in order, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.waited: list[float] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append((self.command, self.path, json.loads(body) if body else None))
                status, headers, content = outer.answers.pop(0)
                if status == 0:  # no answer at all
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def will(self, status: int, body: Any = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append((status, named, content))

    def api(self) -> Api:
        url = f"http://127.0.0.1:{self.http.server_port}"
        return Api(url, "KEY", SecretStr("s3cret"), sleep=self.waited.append)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_pages_follow_the_token_of_next(server: Server) -> None:
    server.will(200, {"data": [{"id": 1}], "metadata": {"next": "https://x/y?page_token=abc%3D"}})
    server.will(200, {"data": [{"id": 2}], "metadata": {"next": ""}})
    assert [one["id"] for one in server.api().pages("/things", environment="env-1")] == [1, 2]
    assert [path for _, path, _ in server.requests] == [
        "/things?page_size=99&environment=env-1",
        "/things?page_size=99&environment=env-1&page_token=abc%3D",
    ]


def test_pages_end_when_next_repeats_itself(server: Server) -> None:
    for _ in range(2):
        server.will(200, {"data": [{"id": 1}], "metadata": {"next": "/x?page_token=again"}})
    assert len(list(server.api().pages("/things"))) == 2


@pytest.mark.parametrize(
    ("status", "body", "error", "text"),
    [
        (
            400,
            {"errors": [{"status": "400", "detail": "is bad", "source": {"pointer": "/a/b"}}]},
            ApiError,
            "is bad [/a/b]",
        ),
        (404, {"error_code": 40403, "message": "no topic"}, GoneError, "no topic (40403)"),
        (400, {"error": {"code": 400, "message": "no class"}}, ApiError, "no class"),
        (401, b"<html>401 Unauthorized</html>", CredentialsError, "Unauthorized"),
        (403, {"errors": [{"detail": "invalid API key"}]}, CredentialsError, "invalid API key"),
        (403, {"errors": [{"detail": "Forbidden"}]}, GoneError, "Forbidden"),
        (409, {"errors": [{"detail": "is used"}]}, ConflictError, "is used"),
        (400, ZIPPED, ApiError, "zipped"),
        (501, b"", ApiError, "501"),
        (400, ZIPPED[:-9], ApiError, "Bad Request"),  # of a proxy that ended
        (400, ZIPPED[:12] + b"\xff" * 20, ApiError, "Bad Request"),
    ],
)
def test_error_shapes(
    server: Server, status: int, body: Any, error: type[ApiError], text: str
) -> None:
    server.will(status, body)
    with pytest.raises(error) as raised:
        server.api().get("/thing")
    assert text in raised.value.message
    assert type(raised.value) is error
    assert len(server.requests) == 1


def test_secret_in_a_response_is_redacted_from_the_error(server: Server) -> None:
    server.will(400, {"message": "what is s3cret?"})
    with pytest.raises(ApiError) as raised:
        server.api().get("/thing")
    assert "s3cret" not in str(raised.value)
    assert "s3cret" not in repr(server.api())


def test_waits_as_long_as_its_header_requests(server: Server) -> None:
    server.will(429, b"<html/>", Retry_After="7")
    server.will(429, X_RateLimit_Reset="3")
    server.will(201, {"id": "a"})
    assert server.api().post("/things", {"x": 1}) == {"id": "a"}
    assert server.waited == [7.0, 3.0]


@pytest.mark.parametrize("failure", [500, 502, 503, 0])
def test_what_can_be_sent_twice_is(server: Server, failure: int) -> None:
    server.will(failure)
    server.will(failure)
    server.will(204)
    assert server.api().delete("/thing") is None
    assert len(server.requests) == 3
    assert 0.5 <= server.waited[0] <= 1.0 <= server.waited[1] <= 2.0


@pytest.mark.parametrize("failure", [500, 503, 0])
def test_a_post_is_not_sent_twice(server: Server, failure: int) -> None:
    server.will(failure)
    with pytest.raises(UncertainError):
        server.api().post("/things", {})
    assert len(server.requests) == 1


def test_a_post_that_may_be_sent_twice_is(server: Server) -> None:
    server.will(500)
    server.will(200, {"id": 1})
    assert server.api().post("/subjects/a", {}, repeatable=True) == {"id": 1}


def test_it_gives_up(server: Server) -> None:
    for _ in range(20):
        server.will(503, {"errors": [{"detail": "maintenance"}]})
    with pytest.raises(ApiError, match="maintenance"):
        server.api().get("/thing")
    assert len(server.requests) == 7


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_2xx_is_success(server: Server, status: int) -> None:
    server.will(status)
    assert server.api().put("/thing", {}) is None


@pytest.mark.parametrize("body", [ZIPPED[:-9], ZIPPED[:12] + b"\xff" * 20, b"{"])
def test_damaged_success_is_not_taken_for_an_answer(server: Server, body: bytes) -> None:
    server.will(200, body)
    with pytest.raises(UncertainError, match="expected JSON"):
        server.api().post("/things", {})


def test_retry_after_may_be_a_date_or_nonsense() -> None:
    assert retry_after({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert retry_after({"Retry-After": "soon", "X-RateLimit-Reset": "4"}) == 4.0
    assert retry_after({}) is None
