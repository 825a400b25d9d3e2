"""Errors of the schema registry's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from topicberg.clients.answers import answered
from topicberg.errors import TopicbergError, UnreachableError

CONFLICT = 409


class IncompatibleSchemaError(TopicbergError):
    """The registry refuses a schema beside the versions that its subject has."""


@contextmanager
def registry_errors(what: str) -> Iterator[None]:
    """Turn the registry client's errors into one clear error that names ``what``.

    :raises TopicbergError: the registry does not answer, or refuses
    :raises AnswerError: the response is not a registry's
    """
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from httpx2 import HTTPError

    library = "confluent_kafka.schema_registry"
    try:
        with answered(f"the schema registry ({what})", "JSON of a registry", library):
            yield
    except SchemaRegistryError as error:
        kind = IncompatibleSchemaError if error.http_status_code == CONFLICT else TopicbergError
        raise kind(
            f"the schema registry refused {what}: {error.error_message} ({error.http_status_code})"
        ) from error
    except (HTTPError, OSError) as error:
        raise UnreachableError(
            f"the schema registry does not answer ({what}): {error}",
            hint="run `topicberg status` to see whether it runs",
        ) from error
