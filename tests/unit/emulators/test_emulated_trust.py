"""The emulators let a vendor take a role only if IAM would: wrong trust policies of every kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from topicberg_deploy.aws.iam import document, trusted_by
from topicberg_local.emulators import iam

USER = "arn:aws:iam::111122223333:user/snowflake"
ROLE = "arn:aws:iam::123456789012:role/reader"
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
