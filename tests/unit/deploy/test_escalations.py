"""What no printed policy allows: ways from who plans, deploys or rotates to more."""

from __future__ import annotations

from typing import Any

import pytest

from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy.aws.permissions import Deployed, Purpose, ci_role, policy
from topicberg_local.emulators.iam import Policies, Request

ACCOUNT = "123456789012"
IAM = f"arn:aws:iam::{ACCOUNT}"
BOUNDARY = f"{IAM}:policy/limits"
ROLE = f"{IAM}:role/demo_spark_job_role"
OWN_POLICY = f"{IAM}:policy/demo_spark_job_policy"
ADMIN = "arn:aws:iam::aws:policy/AdministratorAccess"
WITH = {"iam:permissionsboundary": BOUNDARY}
OWN = {"iam:policyarn": OWN_POLICY}
SECRETS = f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret"
KEYS = f"{SECRETS}:/confluent_cloud_resource/demo"
LOGIN = f"{SECRETS}:/snowflake/admin-AbCdEf"


def deployed(**changes: Any) -> Deployed:
    config = Settings.model_validate({"deployment": "cloud", "prefix": "demo", **changes})
    return Deployed(config, ACCOUNT, tuple(load_topics(config)), ("/snowflake/admin",))


def is_allowed(purpose: Purpose, request: Request, **changes: Any) -> bool:
    policies = Policies(tuple(policy(purpose, deployed(**changes))["Statement"]))
    return policies.denial(request) is None


LIMITED = [
    Request("iam:CreateRole", ROLE, WITH),
    Request("iam:PutRolePermissionsBoundary", ROLE, WITH),
    Request("iam:AttachRolePolicy", ROLE, WITH | OWN),
]


@pytest.mark.parametrize("request_", LIMITED, ids=str)
def test_deploy_with_a_boundary_changes_only_roles_that_have_it(request_: Request) -> None:
    boundary = {"iam": {"permissions_boundary_arn": BOUNDARY}}
    assert is_allowed("deploy", request_, **boundary)
    for changed in (f"{BOUNDARY}2", ADMIN, None):
        context = dict(request_.context)
        context.pop("iam:permissionsboundary", None)
        context |= {"iam:permissionsboundary": changed} if changed else {}
        other = Request(request_.action, request_.resource, context)
        assert not is_allowed("deploy", other, **boundary), changed


ESCALATIONS = [
    Request("iam:AttachRolePolicy", ROLE, WITH | {"iam:policyarn": ADMIN}),
    Request("iam:AttachRolePolicy", ROLE, WITH | {"iam:policyarn": f"{IAM}:policy/theirs"}),
    Request("iam:AttachRolePolicy", f"{IAM}:role/demo_ci_deploy", WITH | OWN),
    Request("iam:AttachUserPolicy", f"{IAM}:user/me", WITH | OWN),
    Request("iam:PutRolePolicy", ROLE, WITH),
    Request("iam:DeleteRolePermissionsBoundary", ROLE, WITH),
    Request("iam:CreatePolicyVersion", BOUNDARY, {}),
    Request("iam:SetDefaultPolicyVersion", BOUNDARY, {}),
    Request("iam:SetDefaultPolicyVersion", OWN_POLICY, {}),
    Request("iam:DeletePolicy", BOUNDARY, {}),
    Request("iam:CreatePolicyVersion", f"{IAM}:policy/demo_ci_deploy_0", {}),
    Request("iam:UpdateAssumeRolePolicy", f"{IAM}:role/admin", WITH),
    Request("iam:UpdateAssumeRolePolicy", f"{IAM}:role/demo_ci_deploy", WITH),
    Request("iam:CreateRole", f"{IAM}:role/other", WITH),
    Request("iam:CreateUser", f"{IAM}:user/me", WITH),
    Request("iam:CreateAccessKey", f"{IAM}:user/admin", {}),
    Request(
        "iam:PassRole", f"{IAM}:role/admin", {"iam:passedtoservice": "emr-serverless.amazonaws.com"}
    ),
    Request("iam:PassRole", ROLE, {"iam:passedtoservice": "lambda.amazonaws.com"}),
    Request("sts:AssumeRole", f"{IAM}:role/admin", {}),
    Request("iam:CreateServiceLinkedRole", "*", {"iam:awsservicename": "ec2.amazonaws.com"}),
    Request("secretsmanager:GetSecretValue", f"{SECRETS}:theirs-AbCdEf", {}),
    Request("secretsmanager:GetSecretValue", f"{SECRETS}:/confluent_cloud_resource/o/k-AbCdEf", {}),
    Request("ssm:PutParameter", f"arn:aws:ssm:us-east-1:{ACCOUNT}:parameter/theirs", {}),
    Request("s3:PutBucketPolicy", "arn:aws:s3:::theirs", {}),
    Request("glue:DeleteDatabase", f"arn:aws:glue:us-east-1:{ACCOUNT}:database/theirs", {}),
    Request("lakeformation:GrantPermissions", "*", {}),
    Request("lakeformation:PutDataLakeSettings", "*", {}),
    Request("kms:Decrypt", f"arn:aws:kms:us-east-1:{ACCOUNT}:key/0a1b", {}),
]


@pytest.mark.parametrize("purpose", ["plan", "deploy", "rotate"])
@pytest.mark.parametrize("request_", ESCALATIONS, ids=str)
def test_printed_policy_denies_an_escalation(purpose: Purpose, request_: Request) -> None:
    for boundary in (BOUNDARY, None):
        assert not is_allowed(purpose, request_, iam={"permissions_boundary_arn": boundary})


@pytest.mark.parametrize(
    ("secret", "allowed"),
    [
        (f"{KEYS}/reader/kafka-AbCdEf", True),
        (f"{KEYS}/reader/tableflow-AbCdEf", True),
        (LOGIN, True),
        (f"{KEYS}/kafka_cluster/app_manager/python_client-AbCdEf", False),
        (f"{KEYS}/kafka_cluster/app_consumer/python_client-AbCdEf", False),
        (f"{KEYS}/tableflow-AbCdEf", False),
        (f"{KEYS}/cloud-AbCdEf", False),
        (f"{SECRETS}:/snowflake_resource/demo-AbCdEf", False),
    ],
)
def test_plan_reads_the_values_of_a_reader_only(secret: str, allowed: bool) -> None:
    assert is_allowed("plan", Request("secretsmanager:GetSecretValue", secret)) is allowed
    assert is_allowed("plan", Request("secretsmanager:DescribeSecret", secret)) is (secret != LOGIN)


def test_deploy_may_pass_only_the_job_role_and_only_to_emr() -> None:
    passed = {"iam:passedtoservice": "emr-serverless.amazonaws.com"}
    assert is_allowed("deploy", Request("iam:PassRole", ROLE, passed))
    for role in ("demo_s3_glue_role", "demo_snowflake_s3_glue_role", "demo_ci_deploy"):
        assert not is_allowed("deploy", Request("iam:PassRole", f"{IAM}:role/{role}", passed))


def test_another_teams_buckets_and_roles_are_only_read() -> None:
    theirs = f"{IAM}:role/their-jobs"
    given = {"existing_buckets": True, "bucket": "theirs", "iam": {"emr_role_arn": theirs}}
    for action, resource, allowed in (
        ("s3:ListBucket", "arn:aws:s3:::theirs", True),
        ("s3:PutBucketPolicy", "arn:aws:s3:::theirs", False),
        ("s3:GetObject", "arn:aws:s3:::theirs-derived/a", True),
        ("s3:DeleteObjectVersion", "arn:aws:s3:::theirs-derived/a", False),
        ("s3:PutBucketPolicy", "arn:aws:s3:::theirs-compute", True),
        ("iam:GetRole", theirs, True),
        ("iam:UpdateAssumeRolePolicy", theirs, False),
        ("iam:DeleteRole", ROLE, True),
    ):
        assert is_allowed("deploy", Request(action, resource), **given) is allowed, action


def test_role_of_ci_is_none_that_deploy_manages() -> None:
    of = deployed()
    managed = of.resources()["role"]
    assert not {*of.iam("role", *(ci_role(of, one) for one in ("plan", "deploy", "rotate")))} & {
        *managed
    }
