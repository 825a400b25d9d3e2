"""HTTP to Confluent's APIs: one base URL with one key; temporary failures are retried.

Retried are 429 (nothing was done) and, for requests that may be sent twice, 5xx except 501 and
broken connections. A creating POST that ends in a 5xx or a broken connection may have been carried
out: it raises :class:`UncertainError`, and the caller checks before it sends another one.
Source: the vendor's OpenAPI documents; error shapes and the meaning of 403 follow Confluent's
Terraform provider.
"""

from __future__ import annotations

import gzip
import json
import logging
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qs, urlsplit

import requests
from pydantic import SecretStr
from tenacity import RetryCallState

from topicberg.clients import trace
from topicberg.clients.answers import AnswerError, checked, unusable
from topicberg.errors import TopicbergError
from topicberg.errors.retry import retry

logger = logging.getLogger(__name__)
P = ParamSpec("P")
Found = TypeVar("Found")

ATTEMPTS = 7
TIMEOUT_SECONDS = (10.0, 60.0)  # To connect, and to wait for a response's next byte.
MAX_WAIT_SECONDS = 120.0
PAGE_SIZE = 99


class ApiError(TopicbergError):
    """A vendor's API refused a request; ``status``: of the response, 0 if there was none."""

    def __init__(self, message: str, *, status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class GoneError(ApiError):
    """The resource does not exist: 404, or a 403 that is not about the key: Confluent sends one for
    deleted resources, and for those hidden from a key."""


class CredentialsError(ApiError):
    """The key is wrong, deleted, or not yet known everywhere."""


class ConflictError(ApiError):
    """409: the resource exists already, or is still in use."""


class UncertainError(ApiError):
    """No response, or a 5xx: the request may or may not have been carried out."""


class GarbledError(UncertainError, AnswerError):
    """A response that is not the API's: the request may or may not have been carried out."""


class FailedError(ApiError):
    """A created resource is in phase FAILED: it may have been created before its dependencies."""


class _TransientError(Exception):
    """This attempt is worth a retry; ``done``: the request may have been carried out."""

    def __init__(self, error: ApiError, wait: float | None = None, *, done: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait = wait
        self.done = done


@dataclass
class Api:
    """One base URL and the key for it; ``url``: without a path of its own."""

    url: str
    key: str
    secret: SecretStr = field(repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    attempts: int = ATTEMPTS
    check_lease: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called before each attempt of a request that changes something."""
    _local: threading.local = field(default_factory=threading.local, repr=False)

    def get(self, path: str, **params: str | int) -> Any:
        """Return an object; reading a field that it lacks raises an :class:`AnswerError`."""
        return self.request("GET", path, params=params)

    def listed(self, path: str) -> list[Any]:
        """Return a list, for the few requests whose response is one."""
        return [*self.request("GET", path, expected=list)]

    def put(self, path: str, body: Any = None) -> Any:
        return self.request("PUT", path, body=body)

    def patch(self, path: str, body: Any) -> Any:
        return self.request("PATCH", path, body=body)

    def delete(self, path: str, **params: str | int) -> Any:
        return self.request("DELETE", path, params=params)

    def post(self, path: str, body: Any, *, repeatable: bool = False) -> Any:
        """:raises UncertainError: unless it is repeatable: it may have been carried out"""
        return self.request("POST", path, body=body, repeatable=repeatable)

    def create(self, path: str, body: Any) -> Any:
        """Return the object that a POST creates.

        :raises UncertainError: it may or may not have been created; also after an empty response
        """
        return self.request("POST", path, body=body, needs_body=True)

    def pages(self, path: str, **params: str | int) -> Iterator[dict[str, Any]]:
        """Yield every element of a list, over all of its pages."""
        query: dict[str, str | int] = {"page_size": PAGE_SIZE, **params}
        seen: set[str] = set()
        while True:
            page = self.get(path, **query)
            yield from page["data"] or []
            following = urlsplit((page.get("metadata") or {}).get("next") or "").query
            if not (token := parse_qs(following).get("page_token", [""])[0]) or token in seen:
                return
            seen.add(token)
            query["page_token"] = token

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Any = None,
        repeatable: bool | None = None,
        expected: type = dict,
        needs_body: bool = False,
    ) -> Any:
        """Return the JSON of the response, or None if it has no body, which a GET must have.

        :param needs_body: another method's response must have one too
        :raises GarbledError: the response was not the API's
        :raises ApiError: the request was refused; subclasses give the reason
        """
        again = method != "POST" if repeatable is None else repeatable

        def attempt() -> Any:
            try:
                return self._send(method, path, params, body, expected, needs_body)
            except _TransientError as failure:
                error = failure.error
                if again or not failure.done:
                    raise
                is_uncertain = isinstance(error, UncertainError)
                raise (
                    error if is_uncertain else UncertainError(error.message, status=error.status)
                ) from None

        try:
            return retry(attempt, self.attempts, on=_TransientError, wait=_wait, sleep=self.sleep)
        except _TransientError as failure:
            raise failure.error from None

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None,
        body: Any,
        expected: type,
        needs_body: bool,
    ) -> Any:
        operation = f"{method} {self.url}{path}"
        if method != "GET":
            self.check_lease()
        began = time.monotonic()
        try:
            response = self._session().request(
                method,
                self.url + path,
                params=dict(params or {}),
                json=body,
                timeout=TIMEOUT_SECONDS,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            reason = f"{operation}: no answer ({type(error).__name__})"
            done = not isinstance(error, requests.exceptions.ConnectTimeout)
            raise _TransientError(ApiError(reason, hint="check the address"), done=done) from None
        trace.confluent(operation, response.status_code, began)
        if 200 <= response.status_code < 300:
            needs_body = needs_body or method == "GET"
            return _expected(operation, response, expected, may_be_empty=not needs_body)
        raise self._refusal(operation, response)

    def _refusal(self, operation: str, response: requests.Response) -> ApiError | _TransientError:
        status = response.status_code
        reason = explain(response).replace(self.secret.get_secret_value() or "\0", "***")
        message = f"{operation}: {status} {reason}".rstrip()
        if status == 429 or (status >= 500 and status != 501):
            hint = "try again later: rate limit" if status == 429 else None
            error = ApiError(message, status=status, hint=hint)
            return _TransientError(error, retry_after(response.headers), done=status != 429)
        hints = {
            401: f"check whether {self.key} is a key for this API and still exists",
            403: f"check the permissions of the owner of {self.key}",
        }
        kinds = {401: CredentialsError, 403: GoneError, 404: GoneError, 409: ConflictError}
        like = 401 if status == 403 and "invalid api key" in reason.lower() else status
        return kinds.get(like, ApiError)(message, status=status, hint=hints.get(like))

    def _session(self) -> requests.Session:
        """Return this thread's session: requests does not guarantee thread safety."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            session.auth = (self.key, self.secret.get_secret_value())
            session.headers.update({"Accept": "application/json", "User-Agent": "topicberg"})
        return session


def if_found(request: Callable[P, Found], *args: P.args, **kwargs: P.kwargs) -> Found | None:
    """Return the response to a request; None after a 404. After a 403, the resource may exist."""
    try:
        return request(*args, **kwargs)
    except GoneError as error:
        if error.status == 403:
            raise
        return None


def _expected(
    operation: str, response: requests.Response, expected: type, *, may_be_empty: bool
) -> Any:
    """:raises _TransientError: the response is not the API's"""
    try:
        answer = _json(response)
    except ValueError:
        shape = "JSON"
    else:
        if isinstance(answer, expected) or (answer is None and may_be_empty):
            return checked(answer, operation)
        shape = "a list" if expected is list else "an object"
    error = unusable(operation, shape)
    garbled = GarbledError(error.message, status=response.status_code, hint=error.hint)
    raise _TransientError(garbled, done=True)


def explain(response: requests.Response) -> str:
    """Return the reason in an error's body, in any of the vendor's four shapes."""
    try:
        body = _json(response)
    except ValueError:
        body = None  # an HTML page, or nothing
    if not isinstance(body, dict):
        return response.reason or ""
    errors = body.get("errors")
    if isinstance(errors, list) and errors:
        return "; ".join(_one_error(error) for error in errors if isinstance(error, dict))
    error = body.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error.get("code") or "")
    code = body.get("error_code") or body.get("code")
    message = body.get("message") or error or ""
    return f"{message} ({code})" if code and code != response.status_code else str(message)


def _one_error(error: Mapping[str, Any]) -> str:
    source = error.get("source") or {}
    where = source.get("pointer") or source.get("parameter")
    text = str(error.get("detail") or error.get("title") or error.get("code") or "")
    return f"{text} [{where}]" if where else text


def _json(response: requests.Response) -> Any:
    """:raises ValueError: the body is not JSON"""
    content = response.content
    if content[:2] == b"\x1f\x8b":  # gzip without its header
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(str(error)) from None
    return json.loads(content) if content.strip() else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a response asks to wait; the rate limit's reset is relative too."""
    for name in ("Retry-After", "X-RateLimit-Reset"):
        value = headers.get(name, "").strip()
        with suppress(ValueError):
            return max(0.0, float(value))
        with suppress(ValueError, TypeError):
            return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    return None


def _wait(state: RetryCallState) -> float:
    failure = state.outcome.exception() if state.outcome else None
    if isinstance(failure, _TransientError) and failure.wait is not None:
        return min(failure.wait, MAX_WAIT_SECONDS)
    step: float = min(30.0, 2.0 ** (state.attempt_number - 1))
    return step * random.uniform(0.5, 1.0)  # noqa: S311  so that several clients spread out
