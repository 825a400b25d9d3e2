"""A guard for HTTP servers on a user's machine: it refuses web pages and other users.

A server that listens on 127.0.0.1 can be reached by every page in the user's browser and by every
user of the machine. The guard accepts a request only if

- its ``Host`` is a name of this server: after DNS rebinding it is the attacker's;
- it does not come from another page: the browser sets ``Origin`` and ``Sec-Fetch-Site``, and no
  page can change them. Links to a page are accepted, because they change nothing;
- a change is a ``POST`` (or ``PUT``, …) with JSON, which no page can send to another origin without
  a preflight request, if the server requires that;
- the client is a process of the same user, if the server requires that.

Sources: Fetch Standard, "CORS-safelisted request-header" and "``Origin`` header"; W3C, Fetch
Metadata Request Headers; RFC 9110, 7.2 (``Host``).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

Address = tuple[str, int]
"""IP address and port."""
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
IsOwn = Callable[[Address, Address], bool]
"""Whether the client of a connection, by its two ends, is a process of this user, or of root."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?(?::(?P<port>\d+))?")
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
PROTECTION = {
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every response: no other page may frame it, load it, or keep a reference to it."""


@dataclass(frozen=True)
class Request:
    """The parts of a request that the guard checks. Names of headers are in lower case."""

    method: str
    headers: Mapping[str, list[str]]
    client: Address | None = None
    server: Address | None = None

    def header(self, name: str) -> str | None:
        """Return the value of a header; several values are joined, which no rule accepts."""
        values = self.headers.get(name)
        return ", ".join(values).strip().lower() if values else None


@dataclass(frozen=True)
class Guard:
    """The rules of one server.

    :param hosts: names, without ports, by which clients reach the server
    :param is_own: refuse the clients of which it says no
    :param json_only: requests that may change something must have JSON as their content type
    :param any_address: accept every IP address as ``Host`` too: no rebound name is one
    """

    hosts: frozenset[str] = LOOPBACK
    is_own: IsOwn | None = None
    json_only: bool = False
    any_address: bool = False

    def refusal(self, request: Request) -> str | None:
        """Return why a request must be refused, or None if it is accepted."""
        host = _HOST.fullmatch(request.header("host") or "")
        if host is None or not (host["name"] in self.hosts or self._is_address(host["name"])):
            return "this server is not known by that Host"
        origin = request.header("origin")
        if origin is not None and not _is_same(origin, host):
            return "the request comes from a page of another origin"
        site = request.header("sec-fetch-site")
        if site not in (None, "same-origin", "none") and not _follows_link(request):
            return "the request comes from a page of another origin"
        if self.json_only and request.method not in _READS:
            media_type = (request.header("content-type") or "").partition(";")[0].strip()
            if media_type != "application/json":
                return "a request that changes something must have Content-Type: application/json"
        if self.is_own is not None:
            client, server = request.client, request.server
            if client is None or server is None or not self.is_own(client, server):
                return "the client is a process of another user"
        return None

    def _is_address(self, name: str) -> bool:
        with suppress(ValueError):
            ip_address(name.strip("[]"))
            return self.any_address
        return False


def _is_same(origin: str, host: re.Match[str]) -> bool:
    """Return whether an ``Origin`` is the server itself; a proxy may have terminated TLS."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme not in _PORTS or parts.path or parts.query or parts.fragment:
        return False
    default = _PORTS[parts.scheme]
    name = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc
    return name == host["name"] and (port or default) == int(host["port"] or default)


def _follows_link(request: Request) -> bool:
    return (
        request.method == "GET"
        and request.header("sec-fetch-mode") == "navigate"
        and request.header("sec-fetch-dest") == "document"
    )


class GuardMiddleware:
    """Checks every request and every WebSocket handshake with the guard; ``refuse``: a further rule
    of the application; returns why a request is refused."""

    def __init__(
        self, app: AsgiApp, guard: Guard, refuse: Callable[[Scope], str | None] = lambda _: None
    ) -> None:
        self._app = app
        self._guard = guard
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        reason = self._guard.refusal(_of_scope(scope)) or self._refuse(scope)

        async def protect(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), text.encode()) for name, text in PROTECTION.items()]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        if reason is None:
            await self._app(scope, receive, protect)
        elif scope["type"] == "websocket":
            await receive()  # the handshake, which gets the response 403
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            body = f"refused: {reason}\n".encode()
            length = str(len(body)).encode()
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", length)]
            await protect({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body})


def _of_scope(scope: Scope) -> Request:
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    client, server = scope.get("client"), scope.get("server")
    return Request(
        method=scope.get("method", "GET"),
        headers=headers,
        client=tuple(client) if client else None,
        server=tuple(server) if server else None,
    )


def guarded(app: WsgiApp, guard: Guard) -> WsgiApp:
    """Return a WSGI application behind the guard."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def protect(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, *PROTECTION.items()], *rest)

        reason = guard.refusal(_of_environ(environ))
        if reason is None:
            return app(environ, protect)
        body = f"refused: {reason}\n".encode()
        protect(
            "403 Forbidden", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
        )
        return [body]

    return application


def _of_environ(environ: Mapping[str, Any]) -> Request:
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): [str(value)]
        for name, value in environ.items()
        if name.startswith("HTTP_") or name == "CONTENT_TYPE"
    }
    port = environ.get("REMOTE_PORT")
    return Request(
        method=environ["REQUEST_METHOD"],
        headers=headers,
        client=(environ["REMOTE_ADDR"], int(port)) if port else None,
        server=(environ["SERVER_NAME"], int(environ["SERVER_PORT"])),
    )


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        super().server_bind()
        # The address, so that DNS is not asked for a name.
        self.base_environ["SERVER_NAME"] = str(self.server_address[0])


class _Handler(WSGIRequestHandler):
    def get_environ(self) -> dict[str, Any]:
        return {**super().get_environ(), "REMOTE_PORT": str(self.client_address[1])}

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def serve(app: WsgiApp, port: int, guard: Guard, host: str = "127.0.0.1") -> None:
    """Serve an application behind the guard until the process ends."""
    server = _Server((host, port), _Handler)
    server.set_app(guarded(app, guard))
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
