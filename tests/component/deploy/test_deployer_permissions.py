"""What who deploys lacks in IAM: all of it is listed before anything is created."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from strict_aws import ACCOUNT, Account, strict_aws

from topicberg.errors import TopicbergError
from topicberg_deploy.aws.image import check_image
from topicberg_deploy.aws.permissions import Deployed, check_permissions, policy
from topicberg_deploy.context import DeployContext
from topicberg_local.emulators.aws import simulator

ROLE = "demo_ci_deploy"
SIMULATE = {
    "Effect": "Allow",
    "Action": "iam:SimulatePrincipalPolicy",
    "Resource": f"arn:aws:iam::{ACCOUNT}:role/{ROLE}",
}
NEEDED = {
    *("s3:CreateBucket", "s3:PutBucketPolicy", "iam:CreateRole", "iam:CreatePolicy"),
    *("iam:PassRole", "glue:CreateDatabase", "glue:BatchDeleteTable", "ssm:PutParameter"),
    *("secretsmanager:CreateSecret", "emr-serverless:CreateApplication", "athena:CreateWorkGroup"),
}


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with strict_aws() as account:
        yield account


def statements(context: DeployContext) -> list[dict[str, Any]]:
    of = Deployed(context.config, ACCOUNT, tuple(context.specs))
    return list(policy("deploy", of)["Statement"])


def lacking(account: Account, **changes: Any) -> str:
    """Return what is reported; empty: nothing."""
    try:
        check_permissions(account.context(ROLE, **changes))
    except TopicbergError as error:
        return error.message
    return ""


def without(found: list[dict[str, Any]], action: str) -> list[dict[str, Any]]:
    kept = [{**one, "Action": [a for a in one["Action"] if a != action]} for one in found]
    return [one for one in kept if one["Action"]]


def test_role_of_ci_lacks_nothing(account: Account) -> None:
    account.allow(ROLE, *statements(account.context(ROLE)))
    assert lacking(account) == ""


@pytest.mark.parametrize(
    "action", ["s3:PutBucketPolicy", "iam:PassRole", "glue:CreateDatabase", "ssm:PutParameter"]
)
def test_each_permission_that_is_missing_is_named(account: Account, action: str) -> None:
    account.allow(ROLE, *without(statements(account.context(ROLE)), action))
    message = lacking(account)
    assert f"{action} on " in message
    assert not [other for other in NEEDED - {action} if f"{other} on " in message]


def test_all_that_is_missing_is_listed_at_once(account: Account) -> None:
    account.allow(ROLE, SIMULATE)
    message = lacking(account)
    assert all(f"{action} on " in message for action in NEEDED)
    assert "lakeformation" not in message


def test_services_that_are_turned_off_need_no_permission(account: Account) -> None:
    account.allow(ROLE, SIMULATE)
    message = lacking(account, compute="none", athena=False)
    assert "emr-serverless" not in message
    assert "PassRole" not in message
    assert "athena" not in message
    assert "glue:CreateDatabase" in message


def test_permission_on_another_name_does_not_suffice(account: Account) -> None:
    text = json.dumps(statements(account.context(ROLE))).replace("role/demo", "role/other")
    account.allow(ROLE, SIMULATE, *json.loads(text))
    message = lacking(account)
    assert "iam:CreateRole on " in message
    assert "iam:CreatePolicy on " not in message


def test_boundary_of_the_deployer_counts(account: Account) -> None:
    account.allow(ROLE, {"Effect": "Allow", "Action": "*", "Resource": "*"})
    assert lacking(account) == ""
    iam, but = account.client("iam"), {"Effect": "Allow", "NotAction": "iam:Create*"}
    document = {"Version": "2012-10-17", "Statement": [{**but, "Resource": "*"}]}
    made = iam.create_policy(PolicyName="limits", PolicyDocument=json.dumps(document))["Policy"]
    iam.put_role_permissions_boundary(RoleName=ROLE, PermissionsBoundary=made["Arn"])
    try:
        assert lacking(account).count(" on ") == 3  # role, policy and version of a policy
    finally:
        iam.delete_role_permissions_boundary(RoleName=ROLE)


def test_denial_that_depends_on_what_is_not_known_is_a_warning(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    outside = {"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}
    denied = {"Effect": "Deny", "Action": "iam:CreateRole", "Resource": "*", "Condition": outside}
    account.allow(ROLE, {"Effect": "Allow", "Action": "*", "Resource": "*"}, denied)
    with caplog.at_level(logging.WARNING, "topicberg_deploy"):
        assert lacking(account) == ""
    (record,) = [one for one in caplog.records if one.name.startswith("topicberg_deploy")]
    assert "iam:CreateRole on " in record.getMessage()
    assert "(aws:SourceIp)" in record.getMessage()
    assert "iam:CreatePolicy" not in record.getMessage()


def test_roles_without_the_demanded_boundary_are_reported(account: Account) -> None:
    boundary = f"arn:aws:iam::{ACCOUNT}:policy/limits"
    condition = {"StringEquals": {"iam:PermissionsBoundary": boundary}}
    context = account.context(ROLE, iam={"permissions_boundary_arn": boundary})
    found = without(statements(context), "iam:CreateRole")
    create = {"Effect": "Allow", "Action": "iam:CreateRole", "Resource": "*"}
    account.allow(ROLE, *found, {**create, "Condition": condition})
    assert lacking(account, iam={"permissions_boundary_arn": boundary}) == ""
    other = {"permissions_boundary_arn": f"{boundary}2"}
    assert "iam:CreateRole on " in lacking(account, iam=other)


def test_what_cannot_be_simulated_is_a_warning(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    account.allow(ROLE, {**SIMULATE, "Action": "s3:ListAllMyBuckets", "Resource": "*"})
    with caplog.at_level(logging.WARNING, "topicberg_deploy"):
        assert lacking(account) == ""
    (record,) = [one for one in caplog.records if one.name.startswith("topicberg_deploy")]
    assert f"role/{ROLE} has all permissions is not checked" in record.getMessage()
    assert "AccessDenied" in record.getMessage()


def test_denial_by_the_organization_is_a_warning(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    """Its policies allow some regions only, of all services but IAM's; or of all."""
    account.allow(ROLE, {"Effect": "Allow", "Action": "*", "Resource": "*"})
    outside = {"StringNotEquals": {"aws:RequestedRegion": ["us-east-1", "eu-west-1"]}}
    allows = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    denies = {"Effect": "Deny", "Action": "*", "Resource": "*", "Condition": outside}
    simulator.ORGANIZATION[:] = [allows, denies]
    try:
        for region in ("eu-west-1", "eu-north-1"):
            caplog.clear()
            assert lacking(account, aws_region=region) == ""
            said = [one.getMessage() for one in caplog.records if "topicberg" in one.name]
            is_denied = region == "eu-north-1"
            assert ("s3:CreateBucket on " in "".join(said)) == is_denied
            assert ("a policy of the organization denies it" in "".join(said)) == is_denied
            assert "iam:CreateRole" not in "".join(said)  # IAM's requests are in us-east-1
    finally:
        simulator.ORGANIZATION.clear()


def test_permissions_are_not_simulated_if_that_is_skipped(account: Account) -> None:
    account.allow(ROLE, SIMULATE)
    context = account.context(ROLE)
    context.skips_simulation = True
    check_permissions(context)


def test_image_that_emr_serverless_may_not_pull_is_a_warning(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    """The repository does not exist, has no policy, one for others, one of only some actions."""
    account.allow(ROLE, {"Effect": "Allow", "Action": "*", "Resource": "*"})
    image = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/team/spark:1"
    context, ecr = account.context(ROLE, emr={"image": image}), account.client("ecr")
    with pytest.raises(TopicbergError, match=f"account {ACCOUNT} has no repository team/spark"):
        check_image(context)
    name = {"repositoryName": "team/spark"}
    ecr.create_repository(**name)
    check_image(context)
    (message,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    printed = json.loads(
        message.partition("team/spark add this statement to those of its policy: ")[2]
    )
    emr, pull = {"Service": "emr-serverless.amazonaws.com"}, printed["Action"]
    for principal, actions, is_proved in (
        ({"Service": "ecs-tasks.amazonaws.com"}, pull, False),
        (emr, pull[:2], False),
        (emr, "ecr:*", True),
        (emr, pull, True),
    ):
        caplog.clear()
        statement = {"Effect": "Allow", "Principal": principal, "Action": actions}
        text = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        ecr.set_repository_policy(**name, policyText=text)
        check_image(context)
        warned = [one for one in caplog.records if one.levelno == logging.WARNING]
        assert bool(warned) != is_proved
    assert "ecr:GetRepositoryPolicy" in json.dumps(statements(context))
