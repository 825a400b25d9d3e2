"""Which errors of the vendors a retry may resolve while resources are created and deleted.

Beside :func:`topicberg.retry.classify`, as the same code means another thing here: a principal, a
key or a permission that was created seconds ago is not known everywhere yet, so "does not exist"
and "access denied" may be resolved by waiting. A response that was lost may have been carried out:
the second request finds the object. The vendors' clients have retried what is safe to repeat.
"""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from topicberg.clients.answers import AnswerError
from topicberg.clients.confluent import (
    ApiError,
    ConflictError,
    CredentialsError,
    FailedError,
    GoneError,
    UncertainError,
)

EXISTS = (
    *("EntityAlreadyExists", "AlreadyExistsException", "ResourceExistsException"),
    *("ParameterAlreadyExists", "BucketAlreadyOwnedByYou", "OperationAborted"),
)
"""AWS's codes for an object that an earlier request created, or is creating."""
GONE = (
    *("NoSuchEntity", "EntityNotFoundException", "ResourceNotFoundException"),
    *("ParameterNotFound", "NoSuchBucket"),
)
DENIED = ("AccessDenied", "AccessDeniedException")
"""AWS's codes for a request that the login may not send."""
EVENTUAL = (
    *("NoSuchEntity", "MalformedPolicyDocument", "DeleteConflict", "BucketNotEmpty"),
    *("InvalidParameterException", "InvalidRequestException"),
    *("ConcurrentModification", "ConcurrentModificationException"),
)
"""What AWS answers while a change is not everywhere: a principal that IAM does not know yet is
called a malformed policy; a secret's stage that has moved already, an invalid parameter. Tableflow
may write to its bucket for a while after it was disabled."""
DUPLICATE = "42710"
"""Snowflake's SQLSTATE of an object that exists already, also one that the role may not see."""
SYNTAX_ERROR = 1003
"""Snowflake's number for a statement that it cannot parse."""
BUSY = ("Throttling", "ThrottlingException", "TooManyRequestsException", "SlowDown")


def code(error: BaseException) -> str:
    """Return AWS's code of an error; empty: it is not an error of AWS."""
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def exists(error: BaseException) -> bool:
    """Return whether the object exists, e.g. by an earlier request whose response was lost.

    Kafka's REST API says 400 of a topic, Athena ``InvalidRequestException`` of a workgroup: their
    words tell it from other mistakes.
    """
    if isinstance(error, ConflictError) or code(error) in EXISTS:
        return True
    if _of_snowflake(error):
        return getattr(error, "sqlstate", None) == DUPLICATE
    is_wrong = isinstance(error, ApiError) and error.status == 400
    words = str(error).lower()
    return (is_wrong and "already exists" in words) or (
        code(error) == "InvalidRequestException" and "already created" in words
    )


def was_repeated(error: BaseException) -> bool:
    """Return whether AWS's SDK sent a request again: the first one may have been carried out."""
    if not isinstance(error, ClientError):
        return False
    return error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0) > 0


def gone(error: BaseException) -> bool:
    """Return whether the object is deleted.

    A 403 does not say so: the key may lack the permission. Reading the object shows which it is.
    """
    return (isinstance(error, GoneError) and error.status == 404) or code(error) in GONE


def is_retryable(error: BaseException) -> bool:
    """Return whether to read the state again, and to retry."""
    return (
        isinstance(error, GoneError | CredentialsError)
        or code(error) in EVENTUAL
        or unanswered(error)
    )


def is_refusal(error: BaseException) -> bool:
    """Return whether a vendor refuses what it may accept when a new object is known everywhere.

    A role binding, a schema or an IAM role of a few seconds ago: Confluent answers 400 or 422, or
    the object fails, and Snowflake refuses a statement. No vendor documents a code or a text that
    tells these refusals from final ones, so the caller has to know whether something is new.
    """
    if isinstance(error, FailedError):
        return True
    if isinstance(error, ApiError):
        return error.status in (400, 422)
    if not _of_snowflake(error):
        return False
    from snowflake.connector.errors import ProgrammingError

    return isinstance(error, ProgrammingError) and error.errno != SYNTAX_ERROR


def unanswered(error: BaseException) -> bool:
    """Return whether it is unknown what the vendor did with the request."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return code(error) in BUSY or status == 429 or status >= 500
    return isinstance(error, UncertainError | HTTPClientError | AnswerError) or broken(error)


def broken(error: BaseException) -> bool:
    """Return whether a session with Snowflake is broken."""
    if not _of_snowflake(error):
        return False
    from snowflake.connector.errors import DatabaseError, Error, OperationalError

    kind = OperationalError if isinstance(error, DatabaseError) else Error
    return isinstance(error, kind)


def of_vendor(error: BaseException) -> bool:
    """Return whether it is an error of AWS's or Snowflake's client, or of the way to them."""
    return isinstance(error, BotoCoreError | ClientError) or _of_snowflake(error)


def _of_snowflake(error: BaseException) -> bool:
    """Without importing the connector, which takes long."""
    return type(error).__module__.startswith("snowflake.connector")
