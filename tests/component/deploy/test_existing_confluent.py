"""An environment and a Kafka cluster that exist: used, checked early, and never changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from stackless import NO_DELAYS, Stackless, age_keys
from test_confluent_requests import quiet, served

from topicberg.clients.aws import every
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy import engine, preflight
from topicberg_deploy.confluent.keys import RotatingKey
from topicberg_deploy.confluent.organization import Cluster, check_given
from topicberg_deploy.context import CLUSTER, ENVIRONMENT, DeployContext
from topicberg_deploy.platform import costs, resources
from topicberg_deploy.resource import Resource
from topicberg_deploy.rotate import rotate
from topicberg_deploy.settings import DeploySettings, load

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
    config = {"kind": kind, **({"cku": 2} if kind == "Dedicated" else {})}
    spec = {
        "display_name": "shared",
        "availability": "HIGH",
        "cloud": "AWS",
        "region": "us-east-1",
        "config": config,
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


def test_all_that_another_team_has_in_the_cluster_survives_delete(server: Stackless) -> None:
    """A topic and its table with the names of a spec that is not external, and roles, users and a
    database with the names of the deployment.
    """
    given = theirs(server, "Dedicated")
    context, graph = opened(server, **given)
    cloud, names, s3 = context.confluent.cloud, context.names, context.aws.client("s3")
    cluster = given["existing_cluster"]
    configs = {"cleanup.policy": "delete", "retention.ms": "-1"}
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
    given = theirs(server, "Dedicated", cloud="GCP", region="europe-west1")
    context, _ = opened(server, **given)
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
    rotated = rotate(graph, context, lambda _: None, force=True)
    assert rotated == len(theirs)
    assert theirs < key_ids(context)
