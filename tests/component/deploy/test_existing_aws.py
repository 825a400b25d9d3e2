"""What others manage, from roles to clusters: used, checked early, and never changed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import boto3
import pytest
from moto import mock_aws
from pydantic import SecretStr
from stackless import NO_DELAYS, Stackless, age_keys
from test_confluent_requests import quiet, served
from vendors import in_this_process

from topicberg.clients.aws import every
from topicberg.clients.secrets import ApiKey
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy import engine, preflight
from topicberg_deploy.aws import emr, iam
from topicberg_deploy.aws.bucket import Bucket
from topicberg_deploy.confluent.keys import RotatingKey
from topicberg_deploy.confluent.organization import Cluster, check_given
from topicberg_deploy.context import CLUSTER, ENVIRONMENT, DeployContext
from topicberg_deploy.platform import costs, resources
from topicberg_deploy.resource import Live, Resource
from topicberg_deploy.rotate import rotate
from topicberg_deploy.settings import DeploySettings, load

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
    _create_role(context, statement, iam.confluent_trust(context)["Statement"][1])
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
    client, where = context.aws.client("s3"), {"LocationConstraint": "eu-west-1"}
    client.create_bucket(Bucket=context.aws.bucket, CreateBucketConfiguration=where)
    requests: list[str] = []
    client.meta.events.register("before-call.s3", lambda model, **_: requests.append(model.name))
    assert _step(BUCKET, context).action == "keep"
    assert requests == ["HeadBucket", "GetBucketLocation", "ListObjectsV2"]


def test_bucket_with_objects_of_others_is_refused(context: DeployContext) -> None:
    client, where = context.aws.client("s3"), cast(Any, {"LocationConstraint": "eu-west-1"})
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


KEY = {"confluent_api_key": "LOCALKEY", "confluent_api_secret": SecretStr("local-secret")}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Stackless]:
    with served(tmp_path) as stackless:
        stackless.account.delays = NO_DELAYS
        yield stackless


def opened(server: Stackless, **changes: Any) -> tuple[DeployContext, list[Resource]]:
    """A deployment, and its graph as far as it does not need Snowflake."""
    given = {"deployment": "cloud", "prefix": "demo", "compute": "none", **changes}
    config = Settings.model_validate(given)
    deploy = DeploySettings.model_validate({**KEY, "confluent_url": server.account.url})
    specs = [one for one in load_topics() if one.name == "stock_trades"]
    context = DeployContext(config, deploy, specs, sleep=lambda wait: time.sleep(min(wait, 0.01)))
    return context, [one for one in resources(config, specs) if "snowflake" not in one.key]


def theirs(server: Stackless, kind: str, **changes: Any) -> dict[str, str]:
    """Make an environment and a cluster as another team has them; return the settings."""
    cloud = opened(server)[0].confluent.cloud
    environment = cloud.create("/org/v2/environments", {"display_name": "platform-team"})["id"]
    spec = {
        "display_name": "shared",
        "availability": "HIGH",
        "cloud": "AWS",
        "region": "us-east-1",
        "config": {"kind": kind, **({"cku": 2} if kind == "Dedicated" else {})},
        "environment": {"id": environment},
        **changes,
    }
    cluster = cloud.create("/cmk/v2/clusters", {"spec": spec})["id"]
    return {"existing_environment": environment, "existing_cluster": cluster}


@pytest.mark.parametrize("kind", ["Basic", "Enterprise", "Freight"])
def test_cluster_of_any_type_is_planned_to_be_kept(server: Stackless, kind: str) -> None:
    context, graph = opened(server, **theirs(server, kind))
    check_given(context)
    given = [resource for resource in graph if resource.key in (ENVIRONMENT, CLUSTER)]
    assert [step.action for step in engine.plan(given, context)] == ["keep", "keep"]


def test_cluster_in_several_zones_is_adopted_as_it_is(server: Stackless) -> None:
    context, graph = opened(server)
    cloud, names = context.confluent.cloud, context.names
    environment = cloud.create("/org/v2/environments", {"display_name": names.environment})["id"]
    spec = {
        "display_name": names.cluster,
        "availability": "MULTI_ZONE",
        "cloud": "AWS",
        "region": "us-east-1",
        "config": {"kind": "Standard"},
        "environment": {"id": environment},
    }
    cloud.create("/cmk/v2/clusters", {"spec": spec})
    found = [resource for resource in graph if resource.key in (ENVIRONMENT, CLUSTER)]
    assert engine.plan(found, context)[-1].action == "keep"


def test_cluster_of_private_access_points_is_deployed_to(server: Stackless) -> None:
    """Its addresses are not in the fields that are deprecated."""
    context, graph = opened(server, **theirs(server, "Enterprise"))
    check_given(context)
    engine.create(graph, context, quiet)
    assert context.need(CLUSTER).facts["http_endpoint"] == server.account.url
    values = context.need("key/kafka_app_consumer").fields["values"]
    assert values["bootstrap.servers"] == server.account.kafka
    context.live[CLUSTER].facts["http_endpoint"] = None
    with pytest.raises(TopicbergError, match="shows no address of the REST API") as caught:
        context.confluent.kafka_as(ApiKey("a", SecretStr("b")))
    assert "TOPICBERG_KAFKA_REST_URL" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unity": {"workspace_url": "https://dbc-1.cloud.databricks.com"}}, "TOPICBERG_UNITY__"),
        ({"snowflake_catalog": "open_catalog"}, "TOPICBERG_SNOWFLAKE_CATALOG=open_catalog"),
        ({}, "storage: managed}` of stock_trades"),
    ],
)
def test_what_tableflow_lacks_in_a_private_network_is_refused_first(
    server: Stackless, changes: dict[str, Any], said: str
) -> None:
    context, _ = opened(server, **theirs(server, "Freight"), **changes)
    if not changes:
        context.specs[:] = [
            spec.model_copy(
                update={"tableflow": spec.tableflow.model_copy(update={"storage": "managed"})}
            )
            for spec in context.specs
        ]
    with pytest.raises(TopicbergError, match="is in a private network") as caught:
        preflight.check_confluent(context, "create")
    assert said in caught.value.message


def test_all_that_another_team_has_in_the_cluster_survives_delete(server: Stackless) -> None:
    """A topic and its table with the names of a spec that is not external, and roles, users and a
    database with the names of the deployment.
    """
    given = theirs(server, "Dedicated")
    context, graph = opened(server, **given)
    cloud, names, s3 = context.confluent.cloud, context.names, context.aws.client("s3")
    cluster, configs = given["existing_cluster"], {"cleanup.policy": "delete", "retention.ms": "-1"}
    server.topics["stock_trades"] = {"partitions_count": 6, "configs": configs}
    user = {"display_name": names.service_account("app_consumer"), "description": "theirs"}
    cloud.create("/iam/v2/service-accounts", user)
    role = {"RoleName": names.tableflow_role, "AssumeRolePolicyDocument": "{}"}
    context.aws.client("iam").create_role(**role)
    s3.create_bucket(Bucket=context.aws.bucket)
    context.aws.client("glue").create_database(DatabaseInput={"Name": cluster})
    secret = names.confluent_secret("kafka_cluster/app_manager/python_client")
    context.aws.client("secretsmanager").create_secret(Name=secret, SecretString="{}")
    check_given(context)
    engine.create(graph, context, quiet)
    assert (context.environment, context.cluster) == tuple(given.values())
    assert server.enabled
    policy = s3.get_bucket_policy(Bucket=context.aws.bucket)["Policy"]
    s3.delete_bucket_policy(Bucket=context.aws.bucket)  # moto evaluates none of its conditions
    s3.put_object(Bucket=context.aws.bucket, Key="theirs", Body=b"x")  # as Tableflow writes to it
    s3.put_bucket_policy(Bucket=context.aws.bucket, Policy=policy)
    context, graph = opened(server, **given)
    assert {step.action for step in engine.plan(graph, context)} == {"keep"}
    server.asked.clear()
    context, graph = opened(server, **given)
    context.purge_secrets = True
    found = engine.existing(graph, context, quiet)
    assert not {ENVIRONMENT, CLUSTER} & {resource.key for resource, _ in found}
    assert engine.delete(found, context, quiet) == {}
    preflight.check_confluent(context, "plan")
    changed = [one.path.rpartition("/")[2] for one in server.asked if one.method != "GET"]
    assert changed
    assert not set(given.values()) & set(changed)
    for kind in ("environment", "cluster"):
        assert len(server.account.store.all(kind)) == 1
    assert server.topics["stock_trades"]["partitions_count"] >= 6
    assert not server.enabled
    users = server.account.store.all("service account")
    assert [one.properties["display_name"] for one in users] == [user["display_name"]]
    (left,) = context.aws.client("iam").list_roles()["Roles"]
    assert left["RoleName"] == names.tableflow_role
    assert [one["Name"] for one in s3.list_buckets()["Buckets"]] == [context.aws.bucket]
    s3.delete_bucket_policy(Bucket=context.aws.bucket)  # moto evaluates none of its conditions
    assert s3.get_object(Bucket=context.aws.bucket, Key="theirs")["Body"].read() == b"x"
    (database,) = context.aws.client("glue").get_databases()["DatabaseList"]
    assert database["Name"] == cluster
    (kept,) = context.aws.client("secretsmanager").list_secrets()["SecretList"]
    assert kept["Name"] == secret
    assert context.aws.client("ssm").describe_parameters()["Parameters"] == []
    assert set(context.kept) == {
        *("confluent/topic/stock_trades", "confluent/service_account/app_consumer"),
        *("aws/role/tableflow", "aws/bucket", "aws/glue_database", "key/kafka_app_manager"),
    }


def test_missing_environment_or_cluster_is_reported_before_anything_changes(
    server: Stackless,
) -> None:
    given = theirs(server, "Basic")
    for name, other in {"existing_environment": "env-none", "existing_cluster": "lkc-none"}.items():
        context, _ = opened(server, **given | {name: other})
        with pytest.raises(TopicbergError, match=f"TOPICBERG_{name.upper()}: .*{other}"):
            preflight.check_confluent(context, "create")
        preflight.check_confluent(context, None)  # the rest can be deleted without it


def test_cluster_elsewhere_is_refused_with_its_place(server: Stackless) -> None:
    context, _ = opened(server, **theirs(server, "Dedicated", cloud="GCP", region="europe-west1"))
    with pytest.raises(TopicbergError, match="is in GCP europe-west1, expected AWS us-east-1"):
        check_given(context)


def test_cluster_that_is_being_made_is_refused(server: Stackless) -> None:
    given = theirs(server, "Standard")
    server.account.delays = NO_DELAYS.model_copy(update={"cluster": 60.0})
    context, _ = opened(server, **given)
    with pytest.raises(TopicbergError, match="is PROVISIONING, expected PROVISIONED"):
        check_given(context)


def test_contradicting_settings_are_reported_at_once() -> None:
    config = Settings.model_validate(
        {"deployment": "cloud", "existing_cluster": "lkc-1", "cluster_type": "Standard"}
    )
    with pytest.raises(TopicbergError) as caught:
        load(KEY, config)
    for name in ("EXISTING_ENVIRONMENT: missing", "CLUSTER_TYPE: leave it out"):
        assert f"TOPICBERG_{name}" in caught.value.message


def test_cluster_that_is_paid_anyway_costs_nothing() -> None:
    config = Settings.model_validate(
        {"deployment": "cloud", "existing_environment": "env-1", "existing_cluster": "lkc-1"}
    )
    found = costs(resources(config, []), config, {})
    assert not [one for one, _ in found if isinstance(one, Cluster)]


def key_ids(context: DeployContext) -> set[str]:
    return {str(key["id"]) for key in context.confluent.cloud.pages("/iam/v2/api-keys")}


def empty_aws_account(context: DeployContext) -> None:
    """As another account or region is: no secrets, no parameters."""
    secrets, ssm = context.aws.client("secretsmanager"), context.aws.client("ssm")
    for secret in every(secrets, "list_secrets", "SecretList"):
        secrets.delete_secret(SecretId=secret["Name"], ForceDeleteWithoutRecovery=True)
    for parameter in every(ssm, "describe_parameters", "Parameters"):
        ssm.delete_parameter(Name=parameter["Name"])


def opened_keys(server: Stackless) -> tuple[DeployContext, list[Resource]]:
    """A deployment, and two of its API keys with what they need."""
    context, graph = opened(server)
    rotating = [
        one for one in graph if one.key in ("key/kafka_app_manager", "key/kafka_app_consumer")
    ]
    return context, engine.with_needs(rotating, graph)


def test_keys_of_the_same_prefix_in_another_aws_account_stay(
    server: Stackless, monkeypatch: pytest.MonkeyPatch
) -> None:
    age_keys(monkeypatch)
    context, graph = opened_keys(server)
    engine.create(graph, context, quiet)
    theirs = {
        context.live[resource.key].facts["key"].id
        for resource in graph
        if isinstance(resource, RotatingKey)
    }
    assert theirs <= key_ids(context)
    empty_aws_account(context)

    def other() -> tuple[DeployContext, list[Resource]]:
        context, graph = opened_keys(server)
        context.aws.__dict__["account"] = "210987654321"
        return context, graph

    context, graph = other()
    engine.create(graph, context, quiet)
    assert theirs < key_ids(context)
    context, graph = other()
    assert {step.action for step in engine.plan(graph, context)} == {"keep"}
    context, graph = other()
    assert rotate(graph, context, lambda _: None, force=True) == len(theirs)
    assert theirs < key_ids(context)
