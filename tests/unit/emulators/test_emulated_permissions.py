"""What a role of the local IAM may do, who may take it, and until when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from topicberg.errors.aws import is_expired
from topicberg_deploy.aws.iam import allow, document, trusted_by
from topicberg_local.emulators import iam
from topicberg_local.emulators.aws.auth import authenticate
from topicberg_local.emulators.aws.shapes import Refusal
from topicberg_local.emulators.aws.state import backends
from topicberg_local.emulators.iam import Policies, Request

USER = "arn:aws:iam::111122223333:user/snowflake"
ROLE = "arn:aws:iam::123456789012:role/reader"
READ = ("s3:GetObject", "arn:aws:s3:::lake/*")
ALL = allow(["*"], "*")
TLS_ONLY = {
    "Effect": "Deny",
    "Principal": "*",
    "Action": "s3:*",
    "Resource": ["arn:aws:s3:::lake", "arn:aws:s3:::lake/*"],
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}


class Account:
    """An account with a bucket, and a role that trusts Snowflake's user."""

    def __init__(self) -> None:
        keys: dict[str, Any] = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
        self.iam: Any = boto3.client("iam", region_name="us-east-1", **keys)
        self.s3: Any = boto3.client("s3", region_name="us-east-1", **keys)
        self.s3.create_bucket(Bucket="lake")
        trust = json.dumps(document(trusted_by(USER, "ext-1")))
        self.iam.create_role(RoleName="reader", AssumeRolePolicyDocument=trust)

    def attach(self, *statements: dict[str, Any]) -> str:
        text = json.dumps(document(*statements))
        made = self.iam.create_policy(PolicyName="reads", PolicyDocument=text)["Policy"]
        self.iam.attach_role_policy(RoleName="reader", PolicyArn=made["Arn"])
        return str(made["Arn"])

    def bound(self, *statements: dict[str, Any]) -> None:
        text = json.dumps(document(*statements))
        made = self.iam.create_policy(PolicyName="boundary", PolicyDocument=text)["Policy"]
        self.iam.put_role_permissions_boundary(RoleName="reader", PermissionsBoundary=made["Arn"])

    def guard_bucket(self, *statements: dict[str, Any]) -> None:
        self.s3.put_bucket_policy(Bucket="lake", Policy=json.dumps(document(*statements)))

    def problem(self, *needs: tuple[str, str]) -> str:
        return iam.problem(self.iam, ROLE, USER, "ext-1", *(needs or (READ,)), s3=self.s3) or ""


@pytest.fixture
def account() -> Iterator[Account]:
    with mock_aws():
        yield Account()


def test_role_without_a_policy_may_nothing(account: Account) -> None:
    assert "s3:GetObject on arn:aws:s3:::lake/* because no identity-based" in account.problem()


def test_what_has_no_arn_is_looked_up_in_no_bucket(account: Account) -> None:
    assert "no identity-based" in account.problem(("glue:GetTables", "*"))


def test_denial_wins_over_what_is_allowed(account: Account) -> None:
    account.attach(ALL, {**allow(["s3:Get*"], "arn:aws:s3:::lake/*"), "Effect": "Deny"})
    assert "explicit deny in an identity-based policy" in account.problem()
    assert account.problem(("s3:ListBucket", "arn:aws:s3:::lake")) == ""


def test_inline_policy_counts_as_an_attached_one(account: Account) -> None:
    text = json.dumps(document(allow(["s3:getobject"], "arn:aws:s3:::lake/*")))
    account.iam.put_role_policy(RoleName="reader", PolicyName="own", PolicyDocument=text)
    assert account.problem() == ""


def test_everything_but_what_is_named_is_allowed(account: Account) -> None:
    account.attach({"Effect": "Allow", "NotAction": "iam:*", "NotResource": "arn:aws:s3:::other*"})
    assert account.problem() == ""
    assert "no identity-based policy" in account.problem(("iam:GetRole", ROLE))
    assert "no identity-based" in account.problem(("s3:GetObject", "arn:aws:s3:::other/x"))


def test_boundary_allows_nothing_and_takes_away(account: Account) -> None:
    account.bound(ALL)
    assert "no identity-based policy" in account.problem()
    account.attach(ALL)
    assert account.problem() == ""


def test_boundary_without_the_action_denies_it(account: Account) -> None:
    account.attach(ALL)
    account.bound(allow(["glue:*"], "*"))
    assert "because no permissions boundary allows it" in account.problem()
    assert account.problem(("glue:GetTable", "arn:aws:glue:us-east-1:1:table/a/b")) == ""


def test_policy_of_the_bucket_that_denies_others_denies_the_role(account: Account) -> None:
    """E.g. all but requests by one endpoint of a VPC, which Snowflake does not use."""
    account.attach(ALL)
    account.guard_bucket(TLS_ONLY)
    assert account.problem() == ""
    outside = {"StringNotEquals": {"aws:SourceVpce": "vpce-1"}}
    account.guard_bucket(TLS_ONLY, {**TLS_ONLY, "Condition": outside})
    assert "explicit deny in a resource-based policy" in account.problem()


def test_policy_of_the_bucket_allows_the_role_that_it_names(account: Account) -> None:
    named = {**allow(["s3:GetObject"], "arn:aws:s3:::lake/*"), "Principal": {"AWS": ROLE}}
    account.guard_bucket(named)
    assert account.problem() == ""
    account.guard_bucket({**named, "Principal": {"AWS": f"{ROLE}2"}})
    assert account.problem() != ""


def test_policy_of_the_bucket_does_not_widen_the_boundary(account: Account) -> None:
    account.bound(allow(["glue:*"], "*"))
    named = {**allow(["s3:GetObject"], "arn:aws:s3:::lake/*"), "Principal": {"AWS": ROLE}}
    account.guard_bucket(named)
    assert "no permissions boundary" in account.problem()


actions = st.sampled_from(["s3:GetObject", "s3:PutObject", "s3:*", "*", "s3:get*"])
resources = st.sampled_from(["arn:aws:s3:::lake/*", "arn:aws:s3:::lake", "*"])
rules = st.builds(
    lambda effect, action, resource: {**allow([action], resource), "Effect": effect},
    st.sampled_from(["Allow", "Deny"]),
    actions,
    resources,
)
sets = st.lists(rules, max_size=4).map(tuple)
requests = st.builds(
    Request,
    st.sampled_from(["s3:GetObject", "s3:PutObject"]),
    st.sampled_from(["arn:aws:s3:::lake/a", "arn:aws:s3:::lake"]),
)


@given(sets, st.none() | sets, sets, requests, rules)
def test_no_boundary_and_no_denial_ever_widens_what_is_allowed(
    identity: Any, boundary: Any, bucket: Any, request: Request, more: dict[str, Any]
) -> None:
    own = tuple({**one, "Principal": "*"} for one in bucket)
    denied = Policies(identity, boundary, own, ROLE).denial(request)
    if denied is None:
        assert Policies(identity, None, own, ROLE).denial(request) is None
        assert any(one["Effect"] == "Allow" for one in (*identity, *own))
    if more["Effect"] == "Deny" and denied is not None:
        assert Policies((*identity, more), boundary, own, ROLE).denial(request) is not None
        assert Policies(identity, (*(boundary or ()), more), own, ROLE).denial(request) is not None


RIGHT = trusted_by(USER, "ext-1")


@pytest.fixture
def client() -> Iterator[Any]:
    with mock_aws():
        yield boto3.client(
            "iam", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )


def refused(client: Any, *statements: dict[str, Any]) -> bool:
    trust = json.dumps(document(*statements))
    client.create_role(RoleName="reader", AssumeRolePolicyDocument=trust)
    return iam.problem(client, ROLE, USER, "ext-1", s3=None) is not None


@pytest.mark.parametrize(
    "statement",
    [
        RIGHT,
        RIGHT | {"Principal": {"AWS": ["arn:aws:iam::1:root", USER]}},
        RIGHT | {"Principal": {"AWS": "arn:aws:iam::111122223333:root"}},
        RIGHT | {"Action": ["sts:TagSession", "STS:assumerole"]},
        RIGHT | {"Condition": {"StringLike": {"sts:ExternalId": ["other", "ext-*"]}}},
        RIGHT | {"Condition": {"ArnLike": {"aws:PrincipalArn": "arn:aws:iam::*:user/snowflake"}}},
    ],
)
def test_trust_that_lets_the_principal_in(client: Any, statement: dict[str, Any]) -> None:
    assert not refused(client, statement)


@pytest.mark.parametrize(
    "statement",
    [
        trusted_by("arn:aws:iam::999988887777:user/other", "ext-1"),
        trusted_by(USER, "ext-2"),
        RIGHT | {"Action": "sts:TagSession"},
        RIGHT | {"Effect": "Deny"},
        RIGHT | {"Principal": {"Service": "emr-serverless.amazonaws.com"}},
        RIGHT | {"Condition": {"StringEquals": {"sts:ExternalId": "EXT-1"}}},
        RIGHT | {"Condition": {"StringNotEquals": {"sts:ExternalId": "ext-1"}}},
        RIGHT
        | {
            "Condition": {
                "StringEquals": {"sts:ExternalId": "ext-1"},
                "Bool": {"aws:MultiFactorAuthPresent": "true"},
            }
        },
    ],
)
def test_trust_that_keeps_the_principal_out(client: Any, statement: dict[str, Any]) -> None:
    assert refused(client, statement)


def denial(operator: str, external_id: str) -> dict[str, Any]:
    condition = {operator: {"sts:ExternalId": external_id}}
    return RIGHT | {"Effect": "Deny", "Principal": "*", "Condition": condition}


def test_a_denial_wins(client: Any) -> None:
    assert refused(client, RIGHT, denial("StringEquals", "ext-1"))


def test_a_denial_of_others_lets_the_principal_in(client: Any) -> None:
    assert not refused(client, RIGHT, denial("StringNotEquals", "ext-1"))


def test_a_denial_that_is_not_understood_counts(client: Any) -> None:
    assert refused(client, RIGHT, denial("NumericEquals", "1"))


HOST = "127.0.0.1:1"
BODY = b"{}"


def signed(session: dict[str, Any]) -> dict[str, Any]:
    """Return what a WSGI server makes of a request for secrets."""
    headers = {"Host": HOST, "X-Amz-Target": "secretsmanager.ListSecrets"}
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
        yield sts.assume_role(RoleArn=role["Role"]["Arn"], RoleSessionName="one")["Credentials"]


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
