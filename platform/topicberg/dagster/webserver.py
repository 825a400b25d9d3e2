"""Dagster's web server behind a guard: other pages and other users cannot start runs.

Dagster accepts GraphQL mutations from any page: by GET, as text/plain, with any Host and Origin.
The guard is a middleware of Dagster's own ASGI application, so there is no further process. Where
that application is built in another way, no web server starts.

In the local deployment the instance installs it (:mod:`topicberg_local.dagster.storage`), so that
``topicberg ui``, ``dagster dev`` and ``dagster-webserver`` are all guarded. In production,
``topicberg-webserver`` installs it, with the options of ``dagster-webserver``.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any
from urllib.parse import parse_qs

from starlette.middleware import Middleware
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from topicberg.documents import GRAPH, ROUTE, docs_folder
from topicberg.errors import TopicbergError
from topicberg.security.guard import LOOPBACK, Guard, GuardMiddleware, IsOwn, Scope
from topicberg.settings import Settings, settings


class UnguardedWebServerError(TopicbergError):
    """Dagster's web server cannot be guarded, so it does not start."""


def _unguarded(reason: object) -> UnguardedWebServerError:
    return UnguardedWebServerError(
        "Dagster's web server is not started, because it would accept requests of other pages and "
        f"other users: topicberg cannot guard the one of Dagster {version('dagster')} ({reason})",
        hint="install the version of dagster and dagster-webserver that `topicberg constraints` "
        "prints",
    )


def guard_webservers(config: Settings, is_own: IsOwn | None = None) -> None:
    """Put the guard before every web server of Dagster that this process starts.

    :param is_own: as of :class:`.Guard`; None: any client may come
    :raises UnguardedWebServerError: Dagster builds its application in another way
    """
    try:
        from dagster_webserver.webserver import DagsterWebserver

        build_middleware = DagsterWebserver.build_middleware
        create_asgi_app = DagsterWebserver.create_asgi_app
    except (ImportError, AttributeError) as error:
        raise _unguarded(error) from None
    names = {name.strip().lower() for name in config.ui_hosts.split(",") if name.strip()}
    guard = Guard(hosts=LOOPBACK | names, is_own=is_own, json_only=True)

    def guarded(server: DagsterWebserver[Any, Any]) -> list[Middleware]:
        return [Middleware(GuardMiddleware, guard, _refuse_query), *build_middleware(server)]

    def create_guarded(*arguments: Any, **named: Any) -> Any:
        app = create_asgi_app(*arguments, **named)
        outermost = next(iter(getattr(app, "user_middleware", ())), None)
        if getattr(outermost, "cls", None) is not GuardMiddleware:
            raise _unguarded("its application has no middleware of topicberg")
        if folder := docs_folder():  # before Dagster's route, which takes every path
            app.router.routes.insert(0, Mount(ROUTE, StaticFiles(directory=folder, html=True)))
        if is_own:  # Dagster begins with a timeline, which is empty until there are runs
            app.router.routes.insert(0, Route("/", lambda _: RedirectResponse(GRAPH)))
        return app

    if is_own:
        # Uvicorn would use X-Forwarded-For as the client's address, which any client can send.
        os.environ["FORWARDED_ALLOW_IPS"] = ""
    DagsterWebserver.build_middleware = guarded  # type: ignore[method-assign, assignment]
    DagsterWebserver.create_asgi_app = create_guarded  # type: ignore[method-assign]


def _refuse_query(scope: Scope) -> str | None:
    """Refuse a GraphQL document in a URL: Dagster runs mutations of it too."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    if "query" in query and scope["path"].rstrip("/").endswith("/graphql"):
        return "a GraphQL document must be sent as JSON by POST"
    return None


def main() -> None:
    """Run ``dagster-webserver`` behind the guard."""
    try:
        guard_webservers(settings())
        from dagster_webserver import cli
    except (UnguardedWebServerError, ImportError) as error:
        raise SystemExit(f"error: {error}") from None
    cli.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
