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
NOT_FOUND, CONFLICT, INTERNAL_ERROR = 404, 409, 500

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
        raise _refusal(subject, error.http_status_code, error.error_message) from error
    except (HTTPError, OSError) as error:
        raise connection_error(REGISTRY, error, where=subject) or UnreachableError(
            f"the schema registry does not answer ({subject}): {error}",
            hint=see_whether_it_runs(REGISTRY),
        ) from error


def _refusal(subject: str, status: int, text: str) -> TopicbergError:
    """Return the error for a response of the registry, or of a proxy before it."""
    reason = f"{text} ({status})"
    match status:
        case 401 | 403:
            return LoginError(
                f"the schema registry refuses the login ({subject}): {reason}",
                hint=f"check {PREFIX}_URL, and _API_KEY, _TOKEN, _OAUTH or _CERTIFICATE_FILE, "
                "whichever you use, and what it may do",
            )
        case 409:
            return IncompatibleSchemaError(f"the schema registry refused {subject}: {reason}")
        case 429:
            return ThrottledError(f"the schema registry throttles requests ({subject}): {reason}")
        case 502 | 503 | 504:
            return UnreachableError(
                f"the schema registry does not answer ({subject}): {status} from the proxy before "
                "it",
                hint=see_whether_it_runs(REGISTRY),
            )
        case _ if status >= INTERNAL_ERROR:
            return UnreachableError(
                f"the schema registry fails ({subject}): {reason}",
                hint="read the registry's log for the reason (of the local stack: "
                "`topicberg logs schema_registry`)",
            )
    return TopicbergError(f"the schema registry refused {subject}: {reason}")


def if_found(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return what the registry's client returns, or None if the registry does not have it."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        return call(*args, **kwargs)
    except SchemaRegistryError as error:
        if error.http_status_code != NOT_FOUND:
            raise
        return None
