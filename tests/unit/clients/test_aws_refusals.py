"""What AWS refuses, in words that lead to a fix."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    SSOTokenLoadError,
)

from topicberg.errors import LoginError
from topicberg.retry import classify, is_refused, with_service


def refused(code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "GetTable")


@pytest.mark.parametrize(
    ("error", "says", "fix"),
    [
        (
            refused("UnrecognizedClientException", "The security token is invalid."),
            "AWS refuses the login (GetTable): UnrecognizedClientException: The security token is",
            "get-caller-identity",
        ),
        (refused("ExpiredTokenException", "expired"), "AWS refuses the login", "aws sso login"),
        (
            refused("AccessDeniedException", "User a is not authorized to perform glue:GetTable"),
            "AWS does not allow GetTable: User a is not authorized to perform glue:GetTable",
            "grant this right",
        ),
        (NoCredentialsError(), "the login to AWS failed: Unable to locate credentials", "profile"),
        (
            SSOTokenLoadError(error_msg="Token for a does not exist"),
            "the login to AWS failed: ",
            "aws sso login",
        ),
    ],
)
def test_refusal_names_the_request_and_the_fix(error: Exception, says: str, fix: str) -> None:
    reported = with_service(error)
    assert isinstance(reported, LoginError)
    assert reported.message.startswith(says)
    assert fix in (reported.hint or "")
    assert classify(error) is None


def test_silent_metadata_server_is_no_refusal() -> None:
    silent = CredentialRetrievalError(provider="container-role", error_msg="Connection refused")
    assert not is_refused(silent)


def test_other_errors_stay_as_they_are() -> None:
    error = refused("EntityNotFoundException", "Table a not found.")
    assert with_service(error) is error
