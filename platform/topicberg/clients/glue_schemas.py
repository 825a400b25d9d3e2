"""Errors of AWS Glue Schema Registry, read by boto3's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from topicberg.clients.aws import BUSY, login_hint, refusal_of
from topicberg.errors import LoginError, ThrottledError, TopicbergError, UnreachableError

NAME = "AWS Glue Schema Registry"
MISSING = "EntityNotFoundException"
RIGHTS = "glue:ListSchemaVersions on the registry and its schemas, and glue:GetSchemaVersion on *"
"""What the reader of schemas needs; a version is looked up by its UUID, whose schema is not known
before: AWS's "IAM examples for deserializers"."""
_INVALID = "InvalidInputException"


@contextmanager
def glue_errors(resource: str) -> Iterator[None]:
    """Turn errors of boto3's client into one clear error that names ``resource``.

    That something does not exist is left to the caller.

    :raises LoginError: the credentials, or their rights, do not suffice
    :raises ThrottledError: there are too many requests
    :raises UnreachableError: AWS does not answer, or fails
    :raises TopicbergError: AWS does not allow what is requested
    """
    try:
        yield
    except ClientError as error:
        code, message, status = refusal_of(error)
        if code == MISSING:
            raise
        where, reason = f"{NAME} ({resource})", f"{code}: {message}".rstrip(": ")
        if BUSY.search(code):
            raise ThrottledError(f"{where} throttles requests: {reason}") from error
        if status >= 500:
            raise UnreachableError(
                f"{where} fails: {reason}", hint="wait: the request is sent again"
            ) from error
        if code == _INVALID:
            raise TopicbergError(f"{where} refuses the request: {reason}") from error
        raise LoginError(
            f"{where} refuses the request: {reason}",
            hint=login_hint(error, None) or f"grant {RIGHTS} to the user of this process",
        ) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise LoginError(
            f"{NAME} ({resource}): this process has no credentials of AWS",
            hint="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of a user that "
            f"has {RIGHTS}",
        ) from error
    except BotoCoreError as error:
        raise UnreachableError(
            f"{NAME} does not answer ({resource}): {error}",
            hint=login_hint(error, None)
            or "check TOPICBERG_AWS_REGION, and that this machine reaches AWS Glue: network, DNS "
            "and firewall",
        ) from error
