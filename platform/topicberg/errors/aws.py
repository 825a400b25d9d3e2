"""What AWS's clients say in an error: code, message and status, and how to renew a login."""

from __future__ import annotations

import os
from typing import Any

EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
NO_TOKEN = frozenset({"SSOError", "SSOTokenLoadError", "TokenRetrievalError"}) | {
    "UnauthorizedSSOTokenError"
}  # Classes of botocore: the token of a login by SSO has expired, or there is none.


def refusal_of(error: BaseException) -> tuple[str, str, int]:
    """Return AWS's code, its message and the HTTP status of an error; empty: it is not AWS's. It is
    recognized by its attributes, as botocore takes long to import."""
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict) or not hasattr(error, "operation_name"):
        return "", "", 0
    details, status = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, message = (str(details.get(name, "")) for name in ("Code", "Message"))
    return code, message, status.get("HTTPStatusCode", 0)


def code_of(error: BaseException) -> str:
    """Return AWS's code of an error; empty: it is not an error of AWS."""
    return refusal_of(error)[0]


def was_repeated(error: BaseException) -> bool:
    """Return whether AWS's SDK sent a request again: the first one may have been carried out."""
    response: Any = getattr(error, "response", None)
    details = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    return bool(details.get("RetryAttempts", 0) > 0)


def is_expired(error: BaseException) -> bool:
    """Return whether a login to AWS has expired: no further request with it succeeds."""
    return type(error).__name__ in NO_TOKEN or code_of(error) in EXPIRED


def login_hint(error: BaseException, profile: str | None = None) -> str | None:
    """Return how to renew a login (of a profile, or that of the environment) that expired; None:
    the error is about something else."""
    if not is_expired(error):
        return None
    if os.environ.get("GITHUB_ACTIONS") == "true":
        return (
            "start the job again: it resumes where it stopped; `role-duration-seconds` and the "
            "role's MaxSessionDuration say how long a session lasts"
        )
    name = profile or os.environ.get("AWS_PROFILE")
    return f"run `aws sso login{f' --profile {name}' if name else ''}`"
