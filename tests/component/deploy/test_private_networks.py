"""Vendors that reach each other by AWS PrivateLink, and job runs in a VPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vendors import in_this_process

from topicberg.deploy import engine
from topicberg.deploy.aws import emr
from topicberg.deploy.aws.permissions import Deployed, policy
from topicberg.deploy.context import DeployContext
from topicberg.deploy.resource import Action, Resource
from topicberg.deploy.settings import load
from topicberg.deploy.snowflake import integrations
from topicberg.errors import TopicbergError
from topicberg.settings import Settings

PRIVATE: dict[str, Any] = {
    "snowflake_catalog": "glue_rest",
    "snowflake_privatelink": True,
    "emr_subnet_ids": "subnet-0b1c2d3e4f5a6b7c8,subnet-0a1b2c3d4e5f6a7b8",
    "emr_security_group_ids": "sg-0123456789abcdef0",
}
BOOTSTRAP = "lkc-1-2.eu.private.example:9092"
ENDPOINTS = (
    ("com.amazonaws.us-east-1.s3", "*.s3.us-east-1.amazonaws.com"),
    ("com.amazonaws.us-east-1.glue", "glue.us-east-1.amazonaws.com"),
)


def test_private_deployment_is_created_once_its_endpoints_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCESS_SECONDS", "VERIFY_SECONDS"):
        monkeypatch.setattr(integrations, name, 1.0)
    given = {**PRIVATE, "snowflake_linked_database": True, "snowflake_refresh_seconds": 30}
    with in_this_process(tmp_path) as vendors:

        def opened(**changes: Any) -> tuple[DeployContext, list[Resource]]:
            """What reaches AWS by itself, and what it needs, as a new process sees it."""
            context, graph = vendors.open("stock_trades", **given | changes)
            keys = ("aws/role/snowflake", "snowflake/linked_database", emr.APPLICATION)
            chosen = [one for one in graph if one.key in keys]
            return context, engine.with_needs(chosen, graph)

        def create() -> None:
            context, graph = opened()
            engine.create(graph, context, lambda *_: None)

        def planned(**changes: Any) -> dict[str, Action]:
            context, graph = opened(**changes)
            return {step.resource.key: step.action for step in engine.plan(graph, context)}

        with pytest.raises(TopicbergError, match="no private connectivity endpoint for the host"):
            create()
        for service, host in ENDPOINTS:
            vendors.sql(f"SELECT SYSTEM$PROVISION_PRIVATELINK_ENDPOINT('{service}', '{host}')")
        create()
        assert set(planned().values()) == {Action.KEEP}
        (application,) = vendors.emr.applications.values()
        assert application.configuration["networkConfiguration"] == {
            "subnetIds": sorted(PRIVATE["emr_subnet_ids"].split(",")),
            "securityGroupIds": [PRIVATE["emr_security_group_ids"]],
        }
        public = planned(snowflake_privatelink=False)
        changed = {key for key, action in public.items() if action is Action.REPLACE}
        assert changed >= {
            f"snowflake/{name}" for name in ("volume", "integration", "linked_integration")
        }
        assert vendors.delete("stock_trades", **given) == {}


def addresses(context: DeployContext, name: str) -> set[str]:
    """Return what the secrets of API keys have of a name."""
    values = [live.fields.get("values") or {} for live in context.live.values()]
    return {one[name] for one in values if name in one}


def test_consumers_get_the_private_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"compute": "none"}
    with in_this_process(tmp_path) as vendors:

        def keys() -> tuple[DeployContext, list[Resource]]:
            """An API key of Kafka and what it needs, as a new process sees them."""
            context, graph = vendors.open(**given)
            chosen = [one for one in graph if one.key == "key/kafka_app_consumer"]
            return context, engine.with_needs(chosen, graph)

        def created() -> set[str]:
            context, graph = keys()
            engine.create(graph, context, lambda *_: None)
            return addresses(context, "bootstrap.servers")

        def planned() -> set[Action]:
            context, graph = keys()
            return {step.action for step in engine.plan(graph, context)}

        before = created()
        assert len(before - {BOOTSTRAP}) == 1
        monkeypatch.setenv("TOPICBERG_KAFKA_BOOTSTRAP_SERVERS", BOOTSTRAP)
        assert planned() == {Action.KEEP, Action.CHANGE}
        assert created() == {BOOTSTRAP}
        assert planned() == {Action.KEEP}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"emr_subnet_ids": "subnet-12345678"}, "SECURITY_GROUP_IDS: set both or none"),
        ({"snowflake_privatelink": True}, "set TOPICBERG_SNOWFLAKE_CATALOG=glue_rest"),
        (
            {**PRIVATE, "snowflake_vended_credentials": True},
            "set TOPICBERG_SNOWFLAKE_VENDED_CREDENTIALS=false",
        ),
    ],
)
def test_settings_that_contradict_private_networks_are_named(
    given: dict[str, Any], said: str
) -> None:
    config = Settings.model_validate({"deployment": "cloud", "prefix": "demo", **given})
    with pytest.raises(TopicbergError) as caught:
        load({}, config)
    assert said in caught.value.message


@pytest.mark.parametrize("given", ["subnet-1", "subnet-12345678,", "vpc-12345678", "a,b"])
def test_subnets_are_ids(given: str) -> None:
    with pytest.raises(TopicbergError, match="TOPICBERG_EMR_SUBNET_IDS"):
        Settings.model_validate({"emr_subnet_ids": given})


@pytest.mark.parametrize(("given", "expected"), [(PRIVATE, 1), ({}, 0)])
def test_who_deploys_may_give_job_runs_a_network(given: dict[str, Any], expected: int) -> None:
    config = Settings.model_validate({"deployment": "cloud", "prefix": "demo", **given})
    statements = policy("deploy", Deployed(config, "123456789012", ()))["Statement"]
    found = [one for one in statements if "ec2:CreateNetworkInterface" in one["Action"]]
    assert len(found) == expected
    assert all(one["Condition"] for one in found)
