"""The HTTP server: faults, authentication, validation, then the operation; errors in shape.

``GET /health`` needs no key. ``/emulator/v1/`` is no API of Confluent's: with its own token, it
sets faults and delays.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from http import HTTPStatus
from random import Random
from re import Pattern
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from topicberg.errors import TopicbergError
from topicberg.security.guard import Guard, GuardMiddleware
from topicberg_local.emulators.confluent import (
    catalogs,
    clusters,
    connectors,
    environments,
    errors,
    integrations,
    kafka_rest,
    keys,
    roles,
    subjects,
    tableflow,
)
from topicberg_local.emulators.confluent.account import Account, Delays
from topicberg_local.emulators.confluent.connector_checks import denied
from topicberg_local.emulators.confluent.generators import Generators
from topicberg_local.emulators.confluent.materialization import Tables
from topicberg_local.emulators.confluent.operation import Call, HttpResponse, Operation


class Fault(BaseModel):
    """What happens to requests, and to which.

    ``429`` comes with ``Retry-After``; ``unsynced``: the key is unknown as yet; ``slow`` answers
    after ``seconds``; ``timeout`` answers nothing for ``seconds``, then 504; ``lost``: the
    request is carried out, and its answer is a 500; ``reworded``: a refusal by 400 or 422 has other
    words, since no vendor documents its words.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["429", "500", "503", "unsynced", "slow", "timeout", "lost", "reworded"]
    method: Literal["*", "GET", "POST", "PUT", "PATCH", "DELETE"] = "*"
    path: Pattern[str] = Field(default="", validate_default=True, description="searched in paths")
    times: int | None = Field(default=None, ge=1, description="the next so many requests")
    percent: float | None = Field(default=None, gt=0, le=100, description="of all requests")
    seed: int = Field(default=0, description="for percent: the same requests each time")
    seconds: float = Field(default=1.0, ge=0, description="of Retry-After, slow and timeout")

    @model_validator(mode="after")
    def _times_or_percent(self) -> Fault:
        if (self.times is None) == (self.percent is None):
            raise ValueError("either times or percent")
        return self


class _Active:
    def __init__(self, fault: Fault) -> None:
        self.fault, self.left, self.hits = fault, fault.times, 0
        self.random = Random(fault.seed)  # noqa: S311

    def strikes(self, method: str, path: str) -> bool:
        if self.fault.method not in ("*", method) or not self.fault.path.search(path):
            return False
        if self.left == 0 or (
            self.left is None and self.random.random() * 100 >= (self.fault.percent or 0)
        ):
            return False
        self.left = None if self.left is None else self.left - 1
        self.hits += 1
        return True


class Faults:
    """Those that are in force; a restart of the emulator forgets them."""

    def __init__(self) -> None:
        self._active: list[_Active] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._active.append(_Active(fault))

    def clear(self) -> None:
        with self._lock:
            self._active.clear()

    def shown(self) -> list[dict[str, object]]:
        with self._lock:
            return [
                {**active.fault.model_dump(mode="json"), "left": active.left, "hits": active.hits}
                for active in self._active
            ]

    def strike(self, method: str, path: str) -> Fault | None:
        """The first fault that this request meets."""
        with self._lock:
            faults = (active.fault for active in self._active if active.strikes(method, path))
            return next(faults, None)


logger = logging.getLogger(__name__)

_APIS = (
    environments,
    clusters,
    keys,
    roles,
    integrations,
    kafka_rest,
    subjects,
    connectors,
    tableflow,
    catalogs,
)
OPERATIONS: list[Operation] = [one for api in _APIS for one in api.OPERATIONS]
RATE_LIMIT = 2000
"""Requests of one key in :data:`RATE_SECONDS`; one more is answered with 429."""
RATE_SECONDS = 60
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_REWORDED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)


class Rate:
    """Counts the requests of each key in the running window."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[int, int]] = {}

    def count(self, key: str) -> dict[str, str]:
        """The headers that tell how much is left; ``Reset`` is in seconds from now.

        :raises Refusal: nothing is left
        """
        now = int(time.time())
        window = now // RATE_SECONDS
        began, used = self._windows.get(key, (window, 0))
        used = used + 1 if began == window else 1
        self._windows[key] = (window, used)
        headers = _limits(max(0, RATE_LIMIT - used), (window + 1) * RATE_SECONDS - now)
        if used > RATE_LIMIT:
            headers["Retry-After"] = headers["X-RateLimit-Reset"]
            raise errors.Refusal(
                HTTPStatus.TOO_MANY_REQUESTS, "Rate Limit Exceeded", headers=headers
            )
        return headers


def _limits(remaining: int, reset_seconds: int) -> dict[str, str]:
    limits = {"Limit": RATE_LIMIT, "Remaining": remaining, "Reset": reset_seconds}
    return {f"X-RateLimit-{name}": str(value) for name, value in limits.items()}


class Server:
    """The APIs, over one account."""

    def __init__(self, account: Account, bootstrap: keys.Bootstrap, admin_token: str) -> None:
        self.account, self._bootstrap, self._admin_token = account, bootstrap, admin_token
        self.generators = Generators(account, partial(denied, account))
        self.tables, self.faults, self._rate = Tables(account), Faults(), Rate()

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", _health, methods=["GET"]),
                Route("/emulator/v1/{what}", self.administer, methods=METHODS),
                Route("/{path:path}", self.handle, methods=METHODS),
            ],
            middleware=[Middleware(GuardMiddleware, Guard())],
        )

    async def handle(self, request: Request) -> Response:
        """Any operation of Confluent's APIs."""
        answer = await self._handle(request)
        logger.info("%s %s %d", request.method, request.url.path, answer.status_code)
        return answer

    async def _handle(self, request: Request) -> Response:
        method, path = request.method, request.url.path
        try:
            operation, parameters = _find(method, path)
        except errors.Refusal as unknown:
            shapes = {"kafka": errors.Shape.KAFKA, "connect": errors.Shape.CONNECT}
            return _refused(unknown, shapes.get(path.split("/")[1], errors.Shape.CLOUD), method)
        fault = self.faults.strike(method, path)
        try:
            if fault is not None:
                await _suffer(fault)
            content = await request.body()
            answer = await run_in_threadpool(
                self._answer, operation, parameters, request, content, fault
            )
            if fault is not None and fault.kind == "lost":
                raise _injected(HTTPStatus.INTERNAL_SERVER_ERROR)
            return answer
        except errors.Refusal as error:
            refusal = error
            if fault is not None and fault.kind == "reworded" and refusal.status in _REWORDED:
                refusal.detail = f"Error {uuid.uuid4().hex}"
        except TopicbergError as error:  # a service of the stack does not answer
            refusal = errors.Refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.message, number=50302)
        except Exception as error:
            logger.exception("%s %s failed unexpectedly", method, path)
            refusal = errors.Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, repr(error))
        return _refused(refusal, operation.shape, method)

    def _answer(
        self,
        operation: Operation,
        parameters: dict[str, str],
        request: Request,
        content: bytes,
        fault: Fault | None,
    ) -> Response:
        if fault is not None and fault.kind == "unsynced":
            raise errors.unauthorized("invalid API key: unknown, or its secret is wrong")
        caller = keys.authenticate(
            self.account,
            self._bootstrap,
            request.headers.get("Authorization", ""),
            operation.key,
            parameters.get("cluster_id"),
        )
        limits = self._rate.count(caller.key)
        items = request.query_params.multi_items()
        try:
            query = None if operation.any_query else operation.query.parse(items)
        except ValidationError as error:
            raise errors.wrong_parameter(error) from None
        call = Call(
            self.account,
            self.generators,
            self.tables,
            caller,
            request.method,
            self.account.url + request.url.path,
            parameters,
            items,
            query,
            _body(operation, request.headers, content),
            content,
        )
        with nullcontext() if operation.method == "GET" else self.account.changing:
            document = operation.handler(call)
        answer = document if isinstance(document, HttpResponse) else HttpResponse(document)
        headers = limits if operation.rated else {}
        if answer.location:
            headers["Location"] = self.account.url + answer.location
        return _response(answer, operation, headers)

    async def administer(self, request: Request) -> Response:
        """``faults``: GET, POST one, DELETE all. ``delays``: GET, PATCH some."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._admin_token.encode()):
            return _refused(
                errors.unauthorized("The emulator's own token is required."), errors.Shape.CLOUD, ""
            )
        try:
            return await self._administer(request)
        except ValidationError as error:
            return _refused(errors.wrong_field(error), errors.Shape.CLOUD, request.method)

    async def _administer(self, request: Request) -> Response:
        match request.path_params["what"], request.method:
            case "faults", "GET":
                return JSONResponse(self.faults.shown())
            case "faults", "POST":
                self.faults.add(Fault.model_validate_json(await request.body()))
                return JSONResponse(self.faults.shown(), 201)
            case "faults", "DELETE":
                self.faults.clear()
                return Response(status_code=204)
            case "delays", "GET":
                return JSONResponse(self.account.delays.model_dump())
            case "delays", "PATCH":
                given = TypeAdapter(dict[str, float]).validate_json(await request.body())
                current = self.account.delays.model_dump()
                self.account.delays = Delays.model_validate({**current, **given})
                return JSONResponse(self.account.delays.model_dump())
        missing = errors.Refusal(HTTPStatus.NOT_FOUND, "There are faults and delays.", "not_found")
        return _refused(missing, errors.Shape.CLOUD, request.method)


def _find(method: str, path: str) -> tuple[Operation, dict[str, str]]:
    """:raises Refusal: no operation is there"""
    parsed = ((operation, operation.match(path)) for operation in OPERATIONS)
    matches = [(operation, match) for operation, match in parsed if match is not None]
    for operation, parameters in matches:
        if operation.method == method:
            return operation, parameters
    if not matches:
        raise errors.unsupported(f"{method} {path}")
    allowed = ", ".join(operation.method for operation, _ in matches)
    raise errors.Refusal(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"{method} {path}: only {allowed}",
        "method_not_allowed",
        headers={"Allow": allowed},
    )


def _body(operation: Operation, headers: Mapping[str, str], content: bytes) -> Any:
    """:raises Refusal: a body that the operation does not take"""
    if operation.body is None:
        return None
    media_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        text = f"The content type must be application/json, not '{media_type}'."
        raise errors.Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text, "unsupported_media_type")
    if not content:
        raise errors.bad_request("A body is required.")
    try:
        return TypeAdapter(operation.body).validate_json(content, strict=True)
    except ValidationError as error:
        refusal = errors.wrong_field(error)
        if operation.invalid_is_400:
            refusal.status = HTTPStatus.BAD_REQUEST
        raise refusal from None


async def _suffer(fault: Fault) -> None:
    """The faults that keep a request from being carried out, or delay it.

    :raises Refusal: it is not carried out
    """
    match fault.kind:
        case "429":
            wait = int(fault.seconds)
            headers = {**_limits(0, wait), "Retry-After": str(wait)}
            raise _injected(HTTPStatus.TOO_MANY_REQUESTS, headers)
        case "500" | "503":
            raise _injected(HTTPStatus(int(fault.kind)))
        case "slow":
            await asyncio.sleep(fault.seconds)
        case "timeout":
            await asyncio.sleep(fault.seconds)
            raise _injected(HTTPStatus.GATEWAY_TIMEOUT)


def _injected(status: HTTPStatus, headers: dict[str, str] | None = None) -> errors.Refusal:
    return errors.Refusal(status, "A fault that was asked for.", "injected", headers=headers or {})


def _response(answer: HttpResponse, operation: Operation, headers: dict[str, str]) -> Response:
    headers["X-Request-Id"] = uuid.uuid4().hex
    status = answer.status or operation.success
    if answer.document is None:
        return Response(status_code=status, headers=headers)
    if isinstance(answer.document, bytes):
        return Response(answer.document, status, headers, media_type=answer.media_type)
    content = json.dumps(answer.document)
    return Response(content, status, headers, media_type="application/json")


def _refused(refusal: errors.Refusal, shape: errors.Shape, method: str) -> Response:
    content, media_type = errors.render(refusal, shape, method)
    headers = {"X-Request-Id": uuid.uuid4().hex, **refusal.headers}
    return Response(content, refusal.status.value, headers, media_type=media_type)


async def _health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})
