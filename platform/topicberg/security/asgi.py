"""The guard before an ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from topicberg.security.guard import PROTECTION, Guard, Request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class GuardMiddleware:
    """Checks every request and every WebSocket handshake with the guard.

    :param refuse: a further rule of the application; returns why a request is refused
    """

    def __init__(
        self, app: App, guard: Guard, refuse: Callable[[Scope], str | None] = lambda _: None
    ) -> None:
        self._app = app
        self._guard = guard
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        reason = self._guard.refusal(_request(scope)) or self._refuse(scope)

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
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            headers.append((b"content-length", str(len(body)).encode()))
            await protect({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body})


def _request(scope: Scope) -> Request:
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
