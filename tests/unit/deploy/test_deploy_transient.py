"""Which answers of the vendors a deployment tries again, and which it takes at their word."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError
from snowflake.connector.errors import OperationalError, ProgrammingError

from topicberg.clients.answers import UnknownNamesError
from topicberg.clients.confluent import ApiError, ConflictError, FailedError, GoneError
from topicberg.errors import TopicbergError
from topicberg_deploy.transient import gone, is_refusal, is_retryable


def aws(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "Operation")


@pytest.mark.parametrize(
    "error",
    [
        GoneError("403", status=403),
        aws("MalformedPolicyDocument"),
        aws("BucketNotEmpty"),
        OperationalError("the connection is broken"),
    ],
)
def test_what_is_not_known_everywhere_yet_passes(error: Exception) -> None:
    assert is_retryable(error)


@pytest.mark.parametrize(
    "error",
    [
        ApiError("400: in any words", status=400),
        ApiError("422: display_name must not be empty", status=422),
        FailedError("connector c is FAILED: no reason is given"),
        ProgrammingError("Insufficient privileges to operate on integration 'I'", errno=3001),
    ],
)
def test_refusal_passes_only_after_something_new(error: Exception) -> None:
    assert is_refusal(error)
    assert not is_retryable(error)


@pytest.mark.parametrize(
    "error",
    [
        ApiError("there are 2 environments named demo"),
        ApiError("does not have access", status=500),
        ConflictError("409", status=409),
        ProgrammingError("syntax error line 1 at position 7", errno=1003),
        aws("AccessDenied"),
        TopicbergError("not authorized"),
        UnknownNamesError("Snowflake (DESC USER U): unknown names"),
    ],
)
def test_what_is_wrong_stays_wrong(error: Exception) -> None:
    assert not is_retryable(error)
    assert not is_refusal(error)


def test_only_a_404_is_gone() -> None:
    assert gone(GoneError("404", status=404))
    assert not gone(GoneError("403: you may not delete it", status=403))
    assert gone(aws("NoSuchBucket"))
