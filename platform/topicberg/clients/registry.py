"""Errors of the schema registry's client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from topicberg.clients.answers import answered
from topicberg.errors import (
    LoginError,
    ThrottledError,
    TopicbergError,
    UnreachableError,
    see_whether_it_runs,
)
from topicberg.errors.connections import connection_error
from topicberg.logins.registry import PREFIX

REGISTRY = "the schema registry"
NOT_FOUND, CONFLICT, THROTTLED, INTERNAL_ERROR = 404, 409, 429, 500
_GATEWAY = (502, 503, 504)  # Status of a proxy whose server does not answer.

P = ParamSpec("P")
T = TypeVar("T")


class IncompatibleSchemaError(TopicbergError):
    """The registry refuses a schema beside the versions that its subject has."""


@contextmanager
def registry_errors(subject: str) -> Iterator[None]:
    """Turn the registry client's errors into one clear error that names ``subject``.

    :raises TopicbergError: the registry does not answer, or refuses; AnswerError: it is none
    """
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from httpx2 import HTTPError  # what the client is built on

    called = f"the schema registry ({subject})"
    try:
        with answered(called, "JSON of a registry", "confluent_kafka.schema_registry"):
            yield
    except SchemaRegistryError as error:
        status, reason = error.http_status_code, f"{error.error_message} ({error.http_status_code})"
        if status in (401, 403):
            raise LoginError(
                f"the schema registry refuses the login ({subject}): {reason}",
                hint=f"check {PREFIX}_URL, and _API_KEY, _TOKEN, _OAUTH or _CERTIFICATE_FILE, "
                "whichever you use, and what it may do",
            ) from error
        if status == THROTTLED:
            raise ThrottledError(
                f"the schema registry throttles requests ({subject}): {reason}"
            ) from error
        if status in _GATEWAY:
            raise UnreachableError(
                f"the schema registry does not answer ({subject}): {status} from the proxy before "
                "it",
                hint=see_whether_it_runs(REGISTRY),
            ) from error
        if status >= INTERNAL_ERROR:
            raise UnreachableError(
                f"the schema registry fails ({subject}): {reason}",
                hint="read the registry's log for the reason (of the local stack: "
                "`topicberg logs schema_registry`)",
            ) from error
        raise (IncompatibleSchemaError if status == CONFLICT else TopicbergError)(
            f"the schema registry refused {subject}: {reason}"
        ) from error
    except (HTTPError, OSError) as error:
        raise connection_error(REGISTRY, error, where=subject) or UnreachableError(
            f"the schema registry does not answer ({subject}): {error}",
            hint=see_whether_it_runs(REGISTRY),
        ) from error


def if_found(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return what the registry's client returns, or None if the registry does not have it."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        return call(*args, **kwargs)
    except SchemaRegistryError as error:
        if error.http_status_code != NOT_FOUND:
            raise
        return None
