"""Sessions of roles that end: the emulator refuses them as AWS does."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto import mock_aws

from topicberg.errors.aws import is_expired
from topicberg_local.emulators.aws.auth import authenticate
from topicberg_local.emulators.aws.shapes import Refusal
from topicberg_local.emulators.aws.state import backends

HOST = "127.0.0.1:1"
BODY = b"{}"


def signed(session: dict[str, Any]) -> dict[str, Any]:
    """Return what a WSGI server makes of a request for secrets."""
    target = "secretsmanager.ListSecrets"
    headers = {"Host": HOST, "X-Amz-Target": target}
    request = AWSRequest("POST", f"http://{HOST}/", data=BODY, headers=headers)
    key = Credentials(session["AccessKeyId"], session["SecretAccessKey"], session["SessionToken"])
    SigV4Auth(key, "secretsmanager", "us-east-1").add_auth(request)
    named = {f"HTTP_{k.upper().replace('-', '_')}": v for k, v in request.headers.items()}
    return {"REQUEST_METHOD": "POST", "PATH_INFO": "/", **named}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "LOCAL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        trust = json.dumps({"Version": "2012-10-17", "Statement": []})
        role = boto3.client("iam").create_role(RoleName="ci", AssumeRolePolicyDocument=trust)
        sts = boto3.client("sts")
        answer = sts.assume_role(RoleArn=role["Role"]["Arn"], RoleSessionName="one")
        yield answer["Credentials"]


def test_session_that_lasts_is_let_in(session: dict[str, Any]) -> None:
    assert authenticate(signed(session), BODY)[0] == "secretsmanager"


def test_session_that_ended_is_expired_and_not_unknown(session: dict[str, Any]) -> None:
    for _, _, sts in backends("sts").iter_backends():
        role = sts.get_assumed_role_from_access_key(session["AccessKeyId"])
        if role is not None:
            role.expiration = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=1)
    with pytest.raises(Refusal) as caught:
        authenticate(signed(session), BODY)
    assert caught.value.code == "ExpiredTokenException"
    with pytest.raises(Refusal) as caught:
        authenticate(signed({**session, "SessionToken": "other"}), BODY)
    assert caught.value.code == "UnrecognizedClientException"


def test_expired_session_is_known_to_the_client() -> None:
    from botocore.exceptions import ClientError

    for code, expected in {"ExpiredTokenException": True, "AccessDenied": False}.items():
        error: Any = {"Error": {"Code": code, "Message": ""}}
        assert is_expired(ClientError(error, "ListSecrets")) is expected
