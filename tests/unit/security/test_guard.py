"""Which requests the guard of an HTTP server refuses."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from other_user import as_other_user, needs_users
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as WebRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from topicberg.security.guard import Guard, GuardMiddleware, Request, guarded
from topicberg_local import peers

OWN = "127.0.0.1:3000"
GUARD = Guard(json_only=True)


LINK = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


def refusal(method: str = "GET", guard: Guard = GUARD, /, **headers: str | list[str]) -> str | None:
    """``refusal(host=…, sec_fetch_site=…)``"""
    given_headers = {
        name.replace("_", "-"): value if isinstance(value, list) else [value]
        for name, value in {"host": OWN, **headers}.items()
        if value
    }
    return guard.refusal(Request(method, given_headers))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:3000", "LOCALHOST", "localhost.:80", "[::1]:3000"]
)
def test_guard_own_host_is_accepted(host: str) -> None:
    assert refusal(host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:3000",
        "127.0.0.1.evil.example",
        "localhost.evil.example:3000",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "127.0.0.1:3000, evil.example",
        "0.0.0.0:3000",
        "127.1",
        "127.0.0.1:",
        "[::ffff:127.0.0.1]",
    ],
)
def test_guard_foreign_host_is_refused(host: str) -> None:
    assert refusal(host=host)


def test_guard_two_hosts_are_refused() -> None:
    assert refusal(host=[OWN, "evil.example"])


@given(st.text(max_size=30))
def test_guard_any_other_host_is_refused(host: str) -> None:
    if host.strip().lower().partition(":")[0].rstrip(".") not in {"127.0.0.1", "localhost", "["}:
        assert refusal(host=host or "x")


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:8080",
        "http://localhost:3000",
        "http://127.0.0.1:3000.evil.example",
        "http://127.0.0.1:3000" + "@evil.example",  # as one text it looks like a password
        "http://x" + "@127.0.0.1:3000",
        "http://127.0.0.1:3000/",
        "file://127.0.0.1:3000",
        "chrome-extension://127.0.0.1:3000",
        "http://127.0.0.1:99999999",
        "127.0.0.1:3000",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_guard_other_origin_is_refused(origin: str, method: str) -> None:
    assert refusal(method, origin=origin, content_type="application/json")


def test_guard_own_origin_is_accepted() -> None:
    assert refusal("POST", origin=f"http://{OWN}", content_type="application/json") is None
    behind_tls = Guard(hosts=frozenset({"ui.example.org"}))
    assert (
        refusal("GET", behind_tls, host="ui.example.org", origin="https://ui.example.org") is None
    )


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "anything"])
def test_guard_request_of_another_page_is_refused(site: str) -> None:
    assert refusal(sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="image")
    assert refusal(sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe")
    assert refusal("POST", sec_fetch_site=site, content_type="application/json", **LINK)


def test_guard_link_from_another_page_is_followed() -> None:
    assert refusal(sec_fetch_site="cross-site", **LINK) is None


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "text/plain; application/json",
        "application/graphql",
        "application/json, text/plain",
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "PROPFIND"])
def test_guard_change_without_json_is_refused(method: str, content_type: str) -> None:
    assert refusal(method, content_type=content_type)
    assert refusal(method, content_type="application/json; charset=utf-8") is None


CLIENT = """
import socket
if {family} == 4:
    client = socket.create_connection(("127.0.0.1", {port}))
else:
    client = socket.socket(socket.AF_INET6)
    client.connect(("::ffff:127.0.0.1", {port}))
if {closed}:
    client.close()
signal = socket.create_connection(("127.0.0.1", {port}))
signal.recv(1)
"""


def owner_of_client(family: int, user: int, *, closed: bool = False) -> int | None:
    """What a server finds out about a client that is a process of ``user``."""
    with ThreadPoolExecutor() as pool, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        code = CLIENT.format(family=family, port=listener.getsockname()[1], closed=closed)
        running = pool.submit(as_other_user, code, "socket", user=user)
        connection, client = listener.accept()
        signal, _ = listener.accept()  # the first connection is open, or closed, by now
        with connection, signal:
            found = peers.owner(client, connection.getsockname())
        running.result()
        return found


@pytest.fixture(params=["asked for one", "lists all"])
def _sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How Linux says whose a socket is."""
    if request.param == "lists all":
        monkeypatch.setattr(peers, "has_sock_diag", lambda: False)
    else:
        assert peers.has_sock_diag()


@needs_users
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("user", [0, 65534])
def test_peers_owner_is_the_user_of_the_client(family: int, user: int) -> None:
    assert owner_of_client(family, user) == user


@needs_users
@pytest.mark.usefixtures("_sockets")
def test_peers_closed_socket_has_no_owner() -> None:
    """The kernel lists it as root's."""
    assert owner_of_client(4, 65534, closed=True) is None


@pytest.mark.skipif(not peers.is_supported(), reason="needs /proc/net/tcp")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])  # noqa: S104
def test_peers_server_is_of_this_user(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=":" in host) as server:
        port = server.getsockname()[1]
        assert peers.is_own_server(port)
    assert not peers.is_own_server(port)


@pytest.mark.skipif(not peers.is_supported(), reason="needs /proc/net/tcp")
@pytest.mark.usefixtures("_sockets")
def test_guard_unknown_client_is_refused() -> None:
    guard, headers = Guard(is_own=peers.is_own), {"host": [OWN]}
    for client in (None, ("127.0.0.1", 0), ("10.1.2.3", 5), ("unix", 1), ("::1", 70000)):
        assert guard.refusal(Request("GET", headers, client, ("127.0.0.1", 3000)))


def application() -> TestClient:
    async def answer(request: WebRequest) -> PlainTextResponse:
        return PlainTextResponse("secret")

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("secret")
        await websocket.close()

    routes = [Route("/", answer, methods=["GET", "POST"]), WebSocketRoute("/ws", talk)]
    app = Starlette(routes=routes, middleware=[Middleware(GuardMiddleware, GUARD)])
    return TestClient(app, base_url=f"http://{OWN}")


def test_middleware_refusal_reveals_nothing_of_the_application() -> None:
    answer = application().get("/", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "secret" not in answer.text
    assert "access-control-allow-origin" not in answer.headers


def test_middleware_own_request_is_accepted() -> None:
    answer = application().get("/")
    assert (answer.status_code, answer.text) == (200, "secret")
    assert answer.headers["X-Frame-Options"] == "DENY"


def test_middleware_websocket_of_another_page_is_refused() -> None:
    client, own = application(), {"Host": OWN}
    with client.websocket_connect("/ws", headers=own) as websocket:
        assert websocket.receive_text() == "secret"
    foreign = {**own, "Origin": "http://evil.example"}
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws", headers=foreign):
        pass


def test_wsgi_request_of_another_page_is_refused() -> None:
    def answer(environ: dict[str, object], start: object) -> list[bytes]:
        start("200 OK", [])  # type: ignore[operator]
        return [b"secret"]

    found: list[str] = []
    environ = {
        "REQUEST_METHOD": "GET",
        "HTTP_HOST": OWN,
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "3000",
    }
    app = guarded(answer, GUARD)
    assert app(environ, lambda status, _: found.append(status)) == [b"secret"]
    app({**environ, "HTTP_ORIGIN": "null"}, lambda status, _: found.append(status))
    assert found == ["200 OK", "403 Forbidden"]
