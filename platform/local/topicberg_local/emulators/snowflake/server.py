"""Snowflake's wire protocol over HTTP: log in, run a statement, log out.

The requests and answers are those of the connectors (``/session/v1/login-request``,
``/queries/v1/query-request``, …). Statements run in threads: a slow query of one session does not
keep another one from logging in.
"""

from __future__ import annotations

import gzip
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fakesnow.converter import from_binding
from fakesnow.transforms import SERVER_VERSION
from snowflake.connector.errors import ProgrammingError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from topicberg.security.asgi import GuardMiddleware
from topicberg.security.guard import Guard
from topicberg_local.emulators.snowflake.account import Account
from topicberg_local.emulators.snowflake.errors import unsupported
from topicberg_local.emulators.snowflake.logins import Login, LoginRefused, Logins
from topicberg_local.emulators.snowflake.session import Session

logger = logging.getLogger(__name__)
IDLE_SECONDS = 4 * 60 * 60
"""After so long without a statement a session is over, as in Snowflake."""

_PARAMETERS = [
    {"name": "AUTOCOMMIT", "value": True},
    {"name": "TIMEZONE", "value": "Etc/UTC"},
    {"name": "CLIENT_SESSION_KEEP_ALIVE_HEARTBEAT_FREQUENCY", "value": 3600},
]


class Server:
    """The endpoints, over one account."""

    def __init__(self, account: Account, logins: Logins) -> None:
        self._account, self._logins = account, logins
        self._sessions: dict[str, Session] = {}

    def application(self) -> Starlette:
        posts: dict[str, Callable[[Request], Awaitable[JSONResponse]]] = {
            "/session/v1/login-request": self.log_in,
            "/session": self.log_out,
            "/session/heartbeat": self.heartbeat,
            "/session/token-request": self.renew,
            "/queries/v1/query-request": self.query,
            "/queries/v1/abort-request": self.abort,
            "/telemetry/send": _accept,
        }
        routes = [Route(path, answer, methods=["POST"]) for path, answer in posts.items()]
        routes.append(Route("/health", _accept, methods=["GET"]))
        return Starlette(routes=routes, middleware=[Middleware(GuardMiddleware, Guard())])

    def interrupt(self) -> None:
        """Cancel every running statement."""
        for session in list(self._sessions.values()):
            session.interrupt()

    async def log_in(self, request: Request) -> JSONResponse:
        data = (await _body(request))["data"]
        login = Login(
            user=str(data.get("LOGIN_NAME") or ""),
            password=str(data.get("PASSWORD") or ""),
            authenticator=str(data.get("AUTHENTICATOR") or "SNOWFLAKE").upper(),
            token=str(data.get("TOKEN") or ""),
            account=str(data.get("ACCOUNT_NAME") or ""),
            address=request.client.host if request.client else "127.0.0.1",
        )
        chosen = {
            key: _identifier(request.query_params.get(key))
            for key in ("databaseName", "schemaName", "warehouse", "roleName")
        }
        try:
            session = await run_in_threadpool(self._open, login, chosen)
        except LoginRefused as refused:
            return _failure(refused.code, refused.message, data={})
        token = secrets.token_urlsafe(32)
        self._forget_idle()
        self._sessions[token] = session
        context = session.context
        return _success(
            {
                "token": token,
                "masterToken": token,
                "validityInSeconds": 3600,
                "masterValidityInSeconds": 14400,
                "displayUserName": context.user,
                "serverVersion": SERVER_VERSION,
                "sessionId": len(self._sessions),
                "parameters": _PARAMETERS,
                "sessionInfo": {
                    "databaseName": context.database,
                    "schemaName": context.schema,
                    "warehouseName": context.warehouse,
                    "roleName": context.role,
                },
            }
        )

    def _forget_idle(self) -> None:
        """Close the sessions of clients that went away without logging out."""
        oldest = time.monotonic() - IDLE_SECONDS
        for token in [t for t, s in self._sessions.items() if s.last_used < oldest]:
            self._sessions.pop(token).close()

    def _open(self, login: Login, chosen: dict[str, str | None]) -> Session:
        context = self._logins.open(login, chosen["roleName"], chosen["warehouse"])
        database = chosen["databaseName"] or context.database
        if database in self._account.engine.databases():
            context.database = database
            context.schema = chosen["schemaName"] or context.schema or "PUBLIC"
        return Session(self._account, context)

    async def log_out(self, request: Request) -> JSONResponse:
        if (session := self._sessions.pop(_token(request), None)) is None:
            return _gone()
        await run_in_threadpool(session.close)
        return await _accept(request)

    async def heartbeat(self, request: Request) -> JSONResponse:
        return await _accept(request) if _token(request) in self._sessions else _gone()

    async def abort(self, request: Request) -> JSONResponse:
        if (session := self._sessions.get(_token(request))) is None:
            return _gone()
        session.interrupt()
        return await _accept(request)

    async def renew(self, request: Request) -> JSONResponse:
        token = _token(request)
        if token not in self._sessions:
            return _gone()
        return _success({"sessionToken": token, "masterToken": token, "validityInSecondsST": 3600})

    async def query(self, request: Request) -> JSONResponse:
        if (session := self._sessions.get(_token(request))) is None:
            return _gone()
        body = await _body(request)
        try:
            return await run_in_threadpool(_run, session, body)
        except ProgrammingError as error:
            code, state, message = f"{error.errno:06d}", error.sqlstate, str(error.raw_msg)
        except Exception as error:
            logger.exception("a statement failed unexpectedly")
            code, state, message = "000603", "XX000", f"SQL execution internal error: {error!r}"
        return _failure(code, message, {"errorCode": code, "sqlState": state})


def _run(session: Session, body: dict[str, Any]) -> JSONResponse:
    sql = body["sqlText"]
    for option in ("asyncExec", "describeOnly"):
        if body.get(option):
            raise unsupported(f"the option {option} of a query")
    bindings: dict[str, Any] = body.get("bindings") or {}
    if any(isinstance(binding["value"], list) for binding in bindings.values()):
        raise unsupported("one statement over many rows (executemany)")
    values = tuple(from_binding(bindings[str(i)]) for i in range(1, len(bindings) + 1))
    response, context = session.execute(sql, values or None), session.context
    return _success(
        {
            "parameters": _PARAMETERS,
            "queryId": response.query_id,
            "statementTypeId": response.statement_type,
            "returned": response.payload["total"],
            "finalDatabaseName": context.database,
            "finalSchemaName": context.schema,
            "finalWarehouseName": context.warehouse,
            "finalRoleName": context.role,
            "numberOfBinds": len(bindings),
            "arrayBindSupported": False,
            **response.payload,
        }
    )


async def _body(request: Request) -> dict[str, Any]:
    content = await request.body()
    if request.headers.get("Content-Encoding") == "gzip":
        content = gzip.decompress(content)
    return dict(json.loads(content))


def _identifier(name: str | None) -> str | None:
    """A name from a connection's settings: as SQL would read it."""
    if not name:
        return None
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.upper()


def _token(request: Request) -> str:
    header = request.headers.get("Authorization", "")
    return header.removeprefix('Snowflake Token="').removesuffix('"')


def _gone() -> JSONResponse:
    return _failure("390104", "Session no longer exists. New login required to access the service.")


def _failure(code: str, message: str, data: dict[str, Any] | None = None) -> JSONResponse:
    return JSONResponse({"data": data, "code": code, "message": message, "success": False})


def _success(data: dict[str, Any] | None) -> JSONResponse:
    return JSONResponse({"data": data, "code": None, "message": None, "success": True})


async def _accept(_request: Request) -> JSONResponse:
    return _success(None)
