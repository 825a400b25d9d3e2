"""Logins that AWS and Snowflake refuse, as one error that says what to check.

Sources: botocore, ``ClientError``; AWS, "Common errors" of the APIs; Snowflake, "Troubleshooting
the connector" and its errors 390100 to 390499, which are about logins.
"""

from __future__ import annotations

import re

from botocore.exceptions import (
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)

from topicberg.clients.aws import login_hint, refusal_of
from topicberg.errors import LoginError, TopicbergError, causes, first_line

_AWS_LOGIN = frozenset(
    {
        *("UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId"),
        *("InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure", "InvalidToken"),
        *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "RequestTimeTooSkewed"),
        *("MissingAuthenticationToken", "IncompleteSignature", "OptInRequired"),
    }
)
_AWS_RIGHTS = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
_AWS_NO_LOGIN = (*(NoCredentialsError, PartialCredentialsError), *(SSOError, TokenRetrievalError))
_SNOWFLAKE = "snowflake.connector"
_SNOWFLAKE_REFUSALS = (
    (
        re.compile(r"^\s*390422\b|is not allowed to access Snowflake"),
        "Snowflake refuses the address of this machine",
        "add it to the network policy of the account or of the user",
    ),
    (
        re.compile(r"^\s*390[1-4]\d\d\b|JWT token is invalid|Incorrect username"),
        "Snowflake refuses the login",
        "check TOPICBERG_SNOWFLAKE_USER, and _PASSWORD or _PRIVATE_KEY, and that the user is "
        "neither disabled nor locked (DESC USER)",
    ),
    (
        re.compile(r"\b290404\b|Verify the account name|404 Not Found.*login-request"),
        "Snowflake does not know the account",
        "check TOPICBERG_SNOWFLAKE_ACCOUNT, which is ORGANIZATION-ACCOUNT",
    ),
)
"""The number and text of an error, what it means, and the hint; the first that matches applies.

The number is that of the error: statements have numbers as well.
"""


def login_refusal(error: BaseException) -> LoginError | None:
    """Return the error of a login that AWS or Snowflake refuses; None: it is another failure.

    Another request with the same login fails in the same way.
    """
    for each in causes(error):
        if isinstance(each, TopicbergError):  # it has said already what its causes mean
            return None
        refused = _of_aws(each) or _of_snowflake(each)
        if refused is not None:
            refused.__cause__ = error
            return refused
    return None


def _of_aws(error: BaseException) -> LoginError | None:
    if isinstance(error, _AWS_NO_LOGIN):
        return LoginError(
            f"the login to AWS failed: {first_line(error)}",
            hint=login_hint(error, None)
            or "set the keys, the profile (AWS_PROFILE) or the role of this process; `aws sts "
            "get-caller-identity` tries them",
        )
    if not isinstance(error, ClientError):
        return None
    code, reason, _ = refusal_of(error)
    if code in _AWS_LOGIN:
        return LoginError(
            f"AWS refuses the login ({error.operation_name}): {code}: {reason}",
            hint=login_hint(error, None)
            or "check the keys, the profile (AWS_PROFILE) or the role of this process: `aws sts "
            "get-caller-identity` tries them; and the clock of this machine",
        )
    if code in _AWS_RIGHTS:
        return LoginError(
            f"AWS does not allow {error.operation_name}: {reason or code}",
            hint="grant this right to the role or user that topicberg uses",
        )
    return None


def _of_snowflake(error: BaseException) -> LoginError | None:
    if not type(error).__module__.startswith(_SNOWFLAKE):
        return None
    text = f"{getattr(error, 'errno', '')} {error}"
    for pattern, meaning, hint in _SNOWFLAKE_REFUSALS:
        if pattern.search(text):
            return LoginError(f"{meaning}: {first_line(error)[:300]}", hint=hint)
    return None
