"""Which errors pass by themselves, of every vendor: what a walk tries again.

The vendors' clients repeat what may be repeated. What is left is about an answer that was lost (it
was done, and the second request finds that), about a key, a permission or an IAM document that is
not known everywhere yet, and about connections that broke for longer than a client is patient.
"""

from __future__ import annotations

from botocore.exceptions import ClientError, HTTPClientError

from topicberg.answers import AnswerError
from topicberg.deploy.confluent.api import (
    ConflictError,
    CredentialsError,
    GoneError,
    UncertainError,
)

EXISTS = (
    "EntityAlreadyExists",
    "AlreadyExistsException",
    "ResourceExistsException",
    "ParameterAlreadyExists",
    "BucketAlreadyOwnedByYou",
    "OperationAborted",
)
"""AWS's words for what an earlier request made, or is making."""
GONE = (
    "NoSuchEntity",
    "EntityNotFoundException",
    "ResourceNotFoundException",
    "ParameterNotFound",
    "NoSuchBucket",
)
EVENTUAL = (
    "NoSuchEntity",
    "MalformedPolicyDocument",
    "DeleteConflict",
    "InvalidParameterException",
    "InvalidRequestException",
    "ConcurrentModification",
    "ConcurrentModificationException",
)
"""What AWS answers while a change is not everywhere: a principal that IAM does not know yet is
called a malformed policy; a secret's stage that has moved already, an invalid parameter."""
BUSY = ("Throttling", "ThrottlingException", "TooManyRequestsException", "SlowDown")


def code(error: BaseException) -> str:
    """AWS's code of an error; empty: it is none of AWS."""
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def exists(error: BaseException) -> bool:
    """What was to be made is there, e.g. by an earlier request whose answer was lost."""
    return isinstance(error, ConflictError) or code(error) in EXISTS


def gone(error: BaseException) -> bool:
    """What was to be deleted is not there."""
    return isinstance(error, GoneError) or code(error) in GONE


def passes(error: BaseException) -> bool:
    """Whether it is worth looking again, and trying again."""
    return (
        isinstance(error, GoneError | CredentialsError)
        or code(error) in EVENTUAL
        or unanswered(error)
    )


def unanswered(error: BaseException) -> bool:
    """Whether a vendor did not say what it thinks of the request."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return code(error) in BUSY or status == 429 or status >= 500
    return isinstance(error, UncertainError | HTTPClientError | AnswerError) or broken(error)


def broken(error: BaseException) -> bool:
    """Whether a session with Snowflake is of no use any more."""
    if not type(error).__module__.startswith("snowflake.connector"):
        return False
    from snowflake.connector.errors import DatabaseError, Error, OperationalError

    if isinstance(error, DatabaseError):
        return isinstance(error, OperationalError)
    return isinstance(error, Error)
