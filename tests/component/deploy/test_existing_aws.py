"""IAM roles and buckets that another administrator manages: checked, and never changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import boto3
import pytest
from moto import mock_aws
from pydantic import SecretStr
from vendors import in_this_process

from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy import engine
from topicberg_deploy.aws import emr, iam
from topicberg_deploy.aws.bucket import Bucket
from topicberg_deploy.context import CLUSTER, DeployContext
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Live, Resource
from topicberg_deploy.settings import DeploySettings

ACCOUNT = "123456789012"
CONFLUENT = "arn:aws:iam::197857026523:role/confluent"
ARN = f"arn:aws:iam::{ACCOUNT}:role/data/lake-writer"
FACTS = {
    CLUSTER: Live("lkc-1"),
    "confluent/provider_integration": Live(
        "cspi-1", {}, {"principal": CONFLUENT, "external_id": "ext"}
    ),
}
ROLE = iam.Role("aws/role/tableflow", "lake-writer", trust=iam.confluent_trust, given=ARN)
BUCKET = Bucket("aws/bucket", "of the tables", given=True)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DeployContext]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    config = Settings(deployment="cloud", prefix="demo", aws_region="eu-west-1", state_dir=tmp_path)
    deploy = DeploySettings(confluent_api_key="K", confluent_api_secret=SecretStr("S"))
    with mock_aws():
        yield DeployContext(config, deploy, [], sleep=lambda _: None, live=dict(FACTS))


def _step(resource: Resource, context: DeployContext) -> Any:
    (step,) = engine.plan([resource], context)
    return step


def _create_role(context: DeployContext, *statements: Any, path: str = "/data/") -> None:
    trust = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    context.aws.client("iam").create_role(
        RoleName="lake-writer", Path=path, AssumeRolePolicyDocument=trust
    )


def test_role_that_does_not_exist_is_waited_for(context: DeployContext) -> None:
    step = _step(ROLE, context)
    assert step.action == "wait"
    assert f"{ARN} does not exist" in step.reason
    assert '"sts:ExternalId": "ext"' in step.reason


def test_role_of_another_path_is_not_the_one(context: DeployContext) -> None:
    _create_role(context, *iam.confluent_trust(context)["Statement"], path="/other/")
    assert "does not exist" in _step(ROLE, context).reason


def test_role_without_the_trust_names_the_statements(context: DeployContext) -> None:
    first, second = iam.confluent_trust(context)["Statement"]
    _create_role(context, first)
    step = _step(ROLE, context)
    assert step.action == "wait"
    assert json.loads(step.reason.partition("add ")[2])["Statement"] == [second]


@pytest.mark.parametrize(
    "statements",
    [
        [
            iam.trusted_by(CONFLUENT, "ext"),
            {"Effect": "Allow", "Principal": {"AWS": CONFLUENT}, "Action": "sts:TagSession"},
        ],
        [
            {
                "Effect": "Allow",
                "Principal": {"AWS": ["arn:aws:iam::1:role/x", CONFLUENT]},
                "Action": ["sts:AssumeRole", "sts:TagSession"],
            }
        ],
        [
            {
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::197857026523:root"},
                "Action": "sts:*",
                "Condition": {"StringLike": {"sts:ExternalId": ["other", "e?t"]}},
            },
            {"Effect": "Allow", "Principal": {"AWS": "197857026523"}, "Action": "sts:TagSession"},
        ],
    ],
)
def test_role_with_a_trust_that_suffices_is_kept(
    context: DeployContext, statements: list[Any]
) -> None:
    _create_role(context, *statements)
    before = context.aws.client("iam").get_role(RoleName="lake-writer")["Role"]
    assert _step(ROLE, context).action == "keep"
    engine.create([ROLE], context, lambda *_: None)
    assert context.need(ROLE.key).id == ARN
    assert context.aws.client("iam").get_role(RoleName="lake-writer")["Role"] == before
    attached = context.aws.client("iam").list_attached_role_policies(RoleName="lake-writer")
    assert not attached["AttachedPolicies"]
    assert not engine.existing([ROLE], context, lambda *_: None)


@pytest.mark.parametrize(
    "statement",
    [
        {**iam.trusted_by(CONFLUENT, "ext"), "Effect": "Deny"},
        iam.trusted_by(CONFLUENT, "other"),
        iam.trusted_by("arn:aws:iam::197857026523:role/confluent2", "ext"),
        {**iam.trusted_by(CONFLUENT, "ext"), "Action": "sts:AssumeRoleWithSAML"},
        {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:*"},
    ],
)
def test_trust_of_something_else_does_not_suffice(context: DeployContext, statement: Any) -> None:
    tagging = iam.confluent_trust(context)["Statement"][1]
    _create_role(context, statement, tagging)
    assert _step(ROLE, context).action == "wait"


def test_trust_that_is_not_known_yet_comes_later(context: DeployContext) -> None:
    del context.live["confluent/provider_integration"]
    step = _step(ROLE, context)
    assert step.action == "wait"
    assert "once confluent/provider_integration exists" in step.reason


def test_existing_bucket_is_neither_changed_nor_deleted(context: DeployContext) -> None:
    step = _step(BUCKET, context)
    assert step.action == "wait"
    assert "TOPICBERG_EXISTING_BUCKETS" in step.reason
    s3 = boto3.client("s3", region_name="eu-west-1")
    where = cast(Any, {"LocationConstraint": "eu-west-1"})
    s3.create_bucket(Bucket=context.aws.bucket, CreateBucketConfiguration=where)
    assert _step(BUCKET, context).action == "keep"
    engine.create([BUCKET], context, lambda *_: None)
    with pytest.raises(s3.exceptions.ClientError, match="NoSuchTagSet"):
        s3.get_bucket_tagging(Bucket=context.aws.bucket)
    assert not engine.existing([BUCKET], context, lambda *_: None)


def test_settings_of_an_existing_bucket_are_not_read(context: DeployContext) -> None:
    client = context.aws.client("s3")
    where = {"LocationConstraint": "eu-west-1"}
    client.create_bucket(Bucket=context.aws.bucket, CreateBucketConfiguration=where)
    requests: list[str] = []
    client.meta.events.register("before-call.s3", lambda model, **_: requests.append(model.name))
    assert _step(BUCKET, context).action == "keep"
    assert requests == ["HeadBucket", "GetBucketLocation", "ListObjectsV2"]


def test_bucket_with_objects_of_others_is_refused(context: DeployContext) -> None:
    client = context.aws.client("s3")
    where = cast(Any, {"LocationConstraint": "eu-west-1"})
    client.create_bucket(Bucket=context.aws.bucket, CreateBucketConfiguration=where)
    client.put_object(Bucket=context.aws.bucket, Key="theirs", Body=b"x")
    with pytest.raises(engine.DeployError, match="has objects, and Tableflow does not write"):
        engine.plan([BUCKET], context)
    context.record.put(BUCKET.key, context.aws.bucket)  # `create` made it
    assert _step(BUCKET, context).action == "keep"


def test_existing_bucket_elsewhere_is_refused(context: DeployContext) -> None:
    s3 = boto3.client("s3", region_name="us-west-2")
    where = cast(Any, {"LocationConstraint": "us-west-2"})
    s3.create_bucket(Bucket=context.aws.bucket, CreateBucketConfiguration=where)
    with pytest.raises(engine.DeployError, match="differs in region"):
        engine.create([BUCKET], context, lambda *_: None)


def test_given_roles_take_the_place_of_our_roles_and_policies() -> None:
    begin = f"arn:aws:iam::{ACCOUNT}:role/data"
    names = ("tableflow", "snowflake", "emr")
    roles = {f"{name}_role_arn": f"{begin}/{name}" for name in names}
    config = Settings.model_validate(
        {"deployment": "cloud", "iam": roles, "existing_buckets": True}
    )
    found = {one.key: one for one in resources(config, load_topics(config))}
    for name in ("tableflow", "snowflake", "emr"):
        role = cast(iam.Role, found[f"aws/role/{name}"])
        assert (role.given, role.name) == (f"{begin}/{name}", name)
        assert not found[f"aws/policy/{name}"].wanted
    assert cast(Any, found["confluent/provider_integration"]).role == f"{begin}/tableflow"
    assert all(cast(Bucket, found[f"aws/{name}"]).given for name in ("bucket", "derived_bucket"))


POLICIES = {
    "tableflow": (iam.confluent_trust, iam.tableflow_policy),
    "snowflake": (iam.snowflake_trust, iam.snowflake_policy),
    "emr": (emr.emr_trust, emr.emr_policy),
}


def test_all_that_needs_given_roles_and_buckets_waits_for_them(tmp_path: Path) -> None:
    arns = {f"{name}_role_arn": f"arn:aws:iam::{ACCOUNT}:role/{name}" for name in POLICIES}
    given: dict[str, Any] = {"iam": arns, "existing_buckets": True, "bucket": "theirs"}
    with in_this_process(tmp_path) as vendors:
        roles = [f"aws/role/{name}" for name in POLICIES]
        vendors.only = ("snowflake/table/stock_trades", *roles)
        context = vendors.create("stock_trades", **given)
        assert context.waiting.keys() == {
            *("aws/bucket", "aws/derived_bucket", "confluent/catalog_integration", *roles),
            *("confluent/tableflow/stock_trades", "snowflake/table/stock_trades"),
        }
        client, s3 = vendors.client("iam"), vendors.client("s3")
        for bucket in (context.aws.bucket, context.aws.derived_bucket):
            s3.create_bucket(Bucket=bucket)
        for name, (trust, policy) in POLICIES.items():
            text = json.dumps(trust(context))
            client.create_role(RoleName=name, AssumeRolePolicyDocument=text)
            text = json.dumps(policy(context))
            made = client.create_policy(PolicyName=name, PolicyDocument=text)["Policy"]
            client.attach_role_policy(RoleName=name, PolicyArn=made["Arn"])
        assert vendors.create("stock_trades", **given).waiting == {}


@pytest.mark.parametrize(
    ("key", "need"),
    [
        ("snowflake/linked_database", "aws/role/snowflake"),
        ("snowflake/table/stock_trades", "confluent/tableflow/stock_trades"),
        ("confluent/tableflow/stock_trades", "aws/bucket"),
    ],
)
def test_what_needs_something_that_waits_waits_as_well(
    context: DeployContext, key: str, need: str
) -> None:
    (waiting,) = [one for one in resources(context.config, load_topics()) if one.key == key]
    context.waiting[need] = "for the administrator"
    assert waiting.waits(context) == "for the administrator"
