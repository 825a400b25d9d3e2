"""Who signed a request: AWS Signature Version 4, checked against the keys that exist.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html; the signature is computed by
botocore itself, over the headers that the client says it signed.
"""

from __future__ import annotations

import hmac
import os
import re
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from topicberg_local.emulators.aws.shapes import Refusal
from topicberg_local.emulators.aws.state import backends

AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<date>\d{8})/(?P<region>[^/]+)/"
    r"(?P<service>[^/]+)/aws4_request, ?SignedHeaders=(?P<headers>[^,]+), ?"
    r"Signature=(?P<signature>[0-9a-f]{64})$"
)


def authenticate(environ: dict[str, Any], body: bytes) -> tuple[str, str]:
    """The service and region that a request is signed for; raises Refusal: it is not."""
    as_json = speaks_json(environ)
    status = HTTPStatus.BAD_REQUEST if as_json else HTTPStatus.FORBIDDEN
    parts = AUTHORIZATION.match(environ.get("HTTP_AUTHORIZATION", ""))
    if parts is None:
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            "MissingAuthenticationTokenException" if as_json else "MissingAuthenticationToken",
            "The request must contain a valid AWS Signature Version 4 in its Authorization header.",
        )
    key, token = parts["key"], environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
    if _is_expired(key, token):
        code = "ExpiredTokenException" if as_json else "ExpiredToken"
        raise Refusal(status, code, "The security token included in the request is expired")
    if (secret := _secret(key, token)) is None:
        code = "UnrecognizedClientException" if as_json else "InvalidClientTokenId"
        raise Refusal(status, code, "The security token included in the request is invalid.")
    if not hmac.compare_digest(_signature(environ, body, parts, secret), parts["signature"]):
        raise Refusal(
            status,
            "InvalidSignatureException" if as_json else "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. "
            "Check your AWS Secret Access Key and signing method.",
        )
    return parts["service"].lower(), parts["region"]


def principal_of(environ: dict[str, Any]) -> str:
    """Return the ARN of who signed a request: the role of a session, a user, else the account."""
    parts = AUTHORIZATION.match(environ.get("HTTP_AUTHORIZATION", ""))
    key = parts["key"] if parts else ""
    if (role := _session(key)) is not None:
        return str(role.role_arn)
    for account, access_key in _access_keys(key):
        return f"arn:aws:iam::{account}:user/{access_key.user_name}"
    return f"arn:aws:iam::{os.environ['MOTO_ACCOUNT_ID']}:root"


def speaks_json(environ: dict[str, Any]) -> bool:
    """Whether a request is of one of AWS's JSON protocols: by its target, or REST."""
    rest = environ["PATH_INFO"].startswith(("/applications", "/tags/"))
    return "HTTP_X_AMZ_TARGET" in environ or rest


def _session(key: str) -> Any:
    """Return moto's session of a role that has this access key; None: there is none."""
    every = (backend for _, _, backend in backends("sts").iter_backends())
    roles = (sts.get_assumed_role_from_access_key(key) for sts in every)
    return next((role for role in roles if role is not None), None)


def _access_keys(key: str) -> list[tuple[str, Any]]:
    """Return account and key of the user who has this access key; none or one."""
    every = [(id, iam.access_keys.get(key)) for id, _, iam in backends("iam").iter_backends()]
    return [(account, access_key) for account, access_key in every if access_key is not None]


def _is_expired(key: str, token: str) -> bool:
    """Return whether the key and the token are those of a role's session that has ended.

    https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
    """
    role, now = _session(key), datetime.now(UTC).replace(tzinfo=None)
    return role is not None and role.session_token == token and bool(now >= role.expiration)


def _secret(key: str, token: str) -> str | None:
    """The secret of an access key and its session's token; None: there is no such active key."""
    if key == os.environ["AWS_ACCESS_KEY_ID"]:
        return os.environ["AWS_SECRET_ACCESS_KEY"]
    if (role := _session(key)) is not None:  # IAM has its key too, without an end
        return str(role.secret_access_key) if role.session_token == token else None
    for _, access_key in _access_keys(key):
        return str(access_key.secret_access_key) if access_key.status == "Active" else None
    return None


def _signature(environ: dict[str, Any], body: bytes, parts: re.Match[str], secret: str) -> str:
    special = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
    headers = {
        name: environ.get(special.get(name) or f"HTTP_{name.upper().replace('-', '_')}", "")
        for name in parts["headers"].split(";")
    }
    query = environ.get("QUERY_STRING", "")
    # As it was sent: an encoded slash, as of an ARN in a path, is part of the signature.
    path = environ.get("RAW_URI", "").partition("?")[0] or quote(environ["PATH_INFO"])
    url = f"http://{environ['HTTP_HOST']}{path}{'?' + query if query else ''}"
    request = AWSRequest(method=environ["REQUEST_METHOD"], url=url, data=body, headers=headers)
    request.context["timestamp"] = environ.get("HTTP_X_AMZ_DATE", "")
    signer = SigV4Auth(Credentials(parts["key"], secret), parts["service"], parts["region"])
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return str(signer.signature(text, request))
