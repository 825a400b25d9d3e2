"""Which answers of the vendors a deployment tries again, and which it takes at their word."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError
from snowflake.connector.errors import ProgrammingError

from topicberg.clients.confluent import ApiError, ConflictError, FailedError, GoneError
from topicberg.deploy.passing import gone, is_retryable


def aws(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "Operation")


@pytest.mark.parametrize(
    "error",
    [
        ApiError("400: Schemaless topic detected for topic t. Schemaless topics …", status=400),
        ApiError("422: failed to assume role arn:aws:iam::1:role/r", status=422),
        ApiError("422: User:sa-1 is not authorized to perform sts:AssumeRole", status=422),
        ApiError("400: User does not have CREATE access to topic t", status=400),
        ApiError("the table cannot be written: unable to assume IAM role"),
        GoneError("403", status=403),
        FailedError("connector c is FAILED: no reason is given"),
        ProgrammingError("Error assuming AWS_ROLE: … is not authorized to perform: sts:AssumeRole"),
        aws("MalformedPolicyDocument"),
        aws("BucketNotEmpty"),
    ],
)
def test_what_is_not_known_everywhere_yet_passes(error: Exception) -> None:
    assert is_retryable(error)


@pytest.mark.parametrize(
    "error",
    [
        ApiError("422: display_name must not be empty", status=422),
        ApiError("400: retention_ms is no number", status=400),
        ApiError("does not have access", status=500),
        ConflictError("409", status=409),
        ProgrammingError("Insufficient privileges to operate on integration 'I'", errno=3001),
        aws("AccessDenied"),
    ],
)
def test_what_is_wrong_stays_wrong(error: Exception) -> None:
    assert not is_retryable(error)


def test_only_a_404_is_gone() -> None:
    assert gone(GoneError("404", status=404))
    assert not gone(GoneError("403: you may not delete it", status=403))
    assert gone(aws("NoSuchBucket"))
