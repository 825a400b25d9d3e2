"""The guard before a WSGI application, and a small server for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from topicberg.security.guard import PROTECTION, Guard, Request

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def guarded(app: App, guard: Guard) -> App:
    """Return a WSGI application behind the guard."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def protect(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, *PROTECTION.items()], *rest)

        reason = guard.refusal(_request(environ))
        if reason is None:
            return app(environ, protect)
        body = f"refused: {reason}\n".encode()
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
        protect("403 Forbidden", headers)
        return [body]

    return application


def _request(environ: Mapping[str, Any]) -> Request:
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


def serve(app: App, port: int, guard: Guard, host: str = "127.0.0.1") -> None:
    """Serve an application behind the guard until the process ends."""
    server = _Server((host, port), _Handler)
    server.set_app(guarded(app, guard))
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
