"""What `--debug` shows of a statement, and what an expired AWS login says."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    NoCredentialsError,
    SSOTokenLoadError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from topicberg.clients import trace
from topicberg.errors.aws import login_hint


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER CATALOG INTEGRATION c SET REST_AUTHENTICATION = (OAUTH_CLIENT_SECRET = 'it''s-me')",
        "CREATE USER u\n  PASSWORD='it''s-me'",
        "x (BEARER_TOKEN = 'a\\'it''s-me')",
    ],
)
def test_secrets_in_statements_are_masked(statement: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "topicberg.requests"):
        trace.snowflake(statement, "SYSADMIN", 0)
    assert "s-me" not in caplog.text
    assert "***" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        SSOTokenLoadError(profile_name="work", error_msg="no token"),
        UnauthorizedSSOTokenError(),
        TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed"),
        ClientError({"Error": {"Code": "ExpiredToken", "Message": "expired"}}, "GetCallerIdentity"),
    ],
)
def test_an_expired_login_names_its_command(error: Exception) -> None:
    assert login_hint(error, "work") == "run `aws sso login --profile work`"


def test_other_errors_have_hints_of_their_own() -> None:
    assert login_hint(NoCredentialsError(), "work") is None
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetRole")
    assert login_hint(denied, "work") is None
