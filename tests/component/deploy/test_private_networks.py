"""Vendors that reach each other by AWS PrivateLink, and job runs in a VPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vendors import in_this_process

from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.aws import emr
from topicberg_deploy.aws.permissions import Deployed, policy
from topicberg_deploy.context import DeployContext
from topicberg_deploy.settings import load
from topicberg_deploy.snowflake import integrations

PRIVATE: dict[str, Any] = {
    "snowflake_catalog": "glue_rest",
    "snowflake_privatelink": True,
    "emr": {
        "subnet_ids": "subnet-0b1c2d3e4f5a6b7c8,subnet-0a1b2c3d4e5f6a7b8",
        "security_group_ids": "sg-0123456789abcdef0",
    },
}
KEY = "key/kafka_app_consumer"
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
        vendors.only = ("aws/role/snowflake", "snowflake/linked_database", emr.APPLICATION)
        with pytest.raises(TopicbergError, match="no private connectivity endpoint for the host"):
            vendors.create("stock_trades", **given)
        for service, host in ENDPOINTS:
            vendors.sql(f"SELECT SYSTEM$PROVISION_PRIVATELINK_ENDPOINT('{service}', '{host}')")
        vendors.create("stock_trades", **given)
        assert vendors.plan("stock_trades", **given) == {}
        (application,) = vendors.emr.applications.values()
        assert application.configuration["networkConfiguration"] == {
            "subnetIds": sorted(PRIVATE["emr"]["subnet_ids"].split(",")),
            "securityGroupIds": [PRIVATE["emr"]["security_group_ids"]],
        }
        public = vendors.plan("stock_trades", **given | {"snowflake_privatelink": False})
        assert {key for key, step in public.items() if step.action == "replace"} >= {
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
        vendors.only = (KEY,)
        assert len(addresses(vendors.create(**given), "bootstrap.servers") - {BOOTSTRAP}) == 1
        monkeypatch.setenv("TOPICBERG_KAFKA_BOOTSTRAP_SERVERS", BOOTSTRAP)
        assert {key: step.action for key, step in vendors.plan(**given).items()} == {KEY: "change"}
        assert addresses(vendors.create(**given), "bootstrap.servers") == {BOOTSTRAP}
        assert vendors.plan(**given) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"emr": {"subnet_ids": "subnet-12345678"}}, "SECURITY_GROUP_IDS: set both or none"),
        ({"snowflake_privatelink": True}, "set TOPICBERG_SNOWFLAKE_CATALOG=glue_rest"),
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
    with pytest.raises(TopicbergError, match="TOPICBERG_EMR__SUBNET_IDS"):
        Settings.model_validate({"emr": {"subnet_ids": given}})


@pytest.mark.parametrize(("given", "expected"), [(PRIVATE, 1), ({}, 0)])
def test_who_deploys_may_give_job_runs_a_network(given: dict[str, Any], expected: int) -> None:
    config = Settings.model_validate({"deployment": "cloud", "prefix": "demo", **given})
    statements = policy("deploy", Deployed(config, "123456789012", ()))["Statement"]
    found = [one for one in statements if "ec2:CreateNetworkInterface" in one["Action"]]
    assert len(found) == expected
    assert all(one["Condition"] for one in found)
