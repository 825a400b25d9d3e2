"""Tokens: what is requested, how long they are kept, and what a refusal says."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
from clocks import Clock
from pydantic import SecretStr

from topicberg.errors import LoginError, ThrottledError, TopicbergError, UnreachableError
from topicberg.errors.meaning import classify
from topicberg.errors.table import THROTTLED, UNREACHABLE
from topicberg.logins import oauth
from topicberg.logins.oauth import OAuthClient

SECRET = "correct-horse-battery"


class Server:
    """A token endpoint that answers what a test wants, and keeps what it was sent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answer: tuple[int, Any] = (200, {"access_token": "first-token", "expires_in": 3600})
        self.clock_seconds = 0.0
        self.sent: list[tuple[dict[str, str], dict[str, str]]] = []

    def client(self, **more: Any) -> OAuthClient:
        given = {"client_id": "engine", "client_secret": SecretStr(SECRET), **more}
        prefix = "TOPICBERG_ICEBERG_REST_OAUTH_"
        return OAuthClient(**{"token_uri": self.url, "prefix": prefix, **given})


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: value[0] for name, value in parse_qs(body).items()}
            found.sent.append((form, dict(self.headers)))
            status, content = found.answer
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response_only(status)
            self.send_header("Date", formatdate(_now() + found.clock_seconds, usegmt=True))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    oauth._held.cache_clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        found = Server(f"http://127.0.0.1:{http.server_port}/realms/a/token")
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield found
        http.shutdown()
        thread.join()


def _now() -> float:
    import time

    return time.time()


def test_token_by_form_sends_scope_audience_headers(server: Server) -> None:
    client = server.client(scope="a b", audience="lake", headers=(("Polaris-Realm", "R"),))
    assert client.token() == "first-token"
    ((form, headers),) = server.sent
    assert form == {
        "grant_type": "client_credentials",
        "client_id": "engine",
        "client_secret": SECRET,
        "scope": "a b",
        "audience": "lake",
    }
    assert headers["Polaris-Realm"] == "R"
    assert "Authorization" not in headers


def test_token_by_basic_sends_no_secret_in_form(server: Server) -> None:
    server.client(client_auth="basic").token()
    ((form, headers),) = server.sent
    assert form == {"grant_type": "client_credentials"}
    pair = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()
    assert pair == f"engine:{SECRET}"


@pytest.mark.parametrize(
    ("seconds", "kept", "renewed"), [(60, 39, 41), (3600, 3539, 3541), (5, 3, 4)]
)
def test_token_before_expiry_is_renewed(
    server: Server, clock: Clock, seconds: int, kept: int, renewed: int
) -> None:
    began = clock.now
    server.answer = (200, {"access_token": "first-token", "expires_in": seconds})
    client = server.client()
    client.token()
    server.answer = (200, {"access_token": "second-token", "expires_in": seconds})
    clock.now = began + kept
    assert client.token() == "first-token"
    clock.now = began + renewed
    assert client.token() == "second-token"
    assert len(server.sent) == 2


def test_token_refused_elsewhere_is_requested_again(server: Server) -> None:
    client = server.client()
    first = client.token()
    server.answer = (200, {"access_token": "second-token"})
    client.discard("another")
    assert client.token() == first
    client.discard(first)
    assert client.token() == "second-token"


@pytest.mark.parametrize(
    ("answer", "said", "hint"),
    [
        ((401, {"error": "invalid_client"}), "invalid_client", "_CLIENT_SECRET"),
        (
            (400, {"error": "invalid_client", "error_description": "client secret expired"}),
            "secret expired",
            "_CLIENT_SECRET",
        ),
        ((400, {"error": "invalid_scope"}), 'scope "catalog"', "_SCOPE"),
        (
            (404, {"error": {"message": "Unknown realm: X", "type": "NotFound"}}),
            "Unknown realm: X",
            "_TOKEN_URI",
        ),
        ((200, "<html>sign in</html>"), "unexpected response 200", "_TOKEN_URI"),
        ((302, ""), "unexpected response 302", "_TOKEN_URI"),
        ((400, {"error": "invalid_request"}), "invalid_request", "_AUDIENCE"),
    ],
)
def test_refusal_names_server_setting_and_no_secret(
    server: Server, answer: tuple[int, Any], said: str, hint: str
) -> None:
    server.answer = answer
    with pytest.raises(LoginError) as refused:
        server.client(scope="catalog").token()
    assert server.url in refused.value.message
    assert said in refused.value.message
    assert f"TOPICBERG_ICEBERG_REST_OAUTH_{hint}" in str(refused.value.hint)
    assert SECRET not in str(refused.value)
    assert "\n" not in refused.value.message
    assert classify(refused.value) is None


def test_refusal_is_repeated_without_a_request(server: Server) -> None:
    server.answer = (401, {"error": "invalid_client"})
    for _ in range(5):
        with pytest.raises(LoginError):
            server.client().token()
    assert len(server.sent) == 1


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [(503, UNREACHABLE, UnreachableError), (429, THROTTLED, ThrottledError)],
)
def test_server_that_fails_is_retried(
    server: Server, status: int, kind: object, error: type[TopicbergError]
) -> None:
    server.answer = (status, {})
    with pytest.raises(error) as failed:
        server.client().token()
    assert classify(failed.value) is kind


def test_server_that_is_down_is_named() -> None:
    client = OAuthClient(
        client_id="engine",
        client_secret=SecretStr(SECRET),
        token_uri="http://127.0.0.1:9/token",
        prefix="TOPICBERG_SCHEMA_REGISTRY_OAUTH_",
    )
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:9/token does not") as down:
        client.token()
    assert "TOPICBERG_SCHEMA_REGISTRY_OAUTH__TOKEN_URI" in str(down.value.hint)
    assert "Connection refused" in down.value.message


def test_clock_of_the_server_is_compared(server: Server) -> None:
    server.clock_seconds = 300
    client = server.client()
    client.token()
    assert client.skew_seconds == pytest.approx(300, abs=3)
