"""The Confluent emulator over the real stack: topics, connectors, Tableflow, Glue, kill -9."""

from __future__ import annotations

import functools
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from conftest import KillService
from waiting import wait_until

from topicberg.endpoints import Endpoints
from topicberg.endpoints.parameters import _read
from topicberg.kafka import topics as kafka
from topicberg.naming import Names
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.confluent import read_status
from topicberg.tableflow.service.status import TopicStatus
from topicberg.topics import load_topic
from topicberg.topics.requests import read_request
from topicberg_local.datagen.status import ALIVE
from topicberg_local.datagen.status import read_status as read_generator

pytestmark = pytest.mark.integration

TOPIC = "stock_trades"


class Cloud:
    """The emulator's APIs, and one environment with a cluster, a registry and keys for them."""

    def __init__(self, stack: Endpoints) -> None:
        assert stack.confluent_api_key
        self.stack = stack
        self.cloud = (stack.confluent_api_key, stack.confluent_api_secret.get_secret_value())
        self.admin = {"Authorization": f"Bearer {stack.confluent_admin_token.get_secret_value()}"}
        name = uuid.uuid4().hex[:8]
        self.environment = self.made("/org/v2/environments", {"display_name": name})["id"]
        spec = {
            "display_name": name,
            "availability": "SINGLE_ZONE",
            "cloud": "AWS",
            "region": settings().aws_region,
            "config": {"kind": "Standard"},
            "environment": {"id": self.environment},
        }
        self.cluster = self.made("/cmk/v2/clusters", {"spec": spec})["id"]
        self.owner = self.made("/iam/v2/service-accounts", {"display_name": name})["id"]
        organization = self.get("/org/v2/organizations")["data"][0]["id"]
        self.crn = (
            f"crn://confluent.cloud/organization={organization}/environment={self.environment}"
        )
        self.bind("CloudClusterAdmin", f"{self.crn}/cloud-cluster={self.cluster}")
        listed = f"/srcm/v3/clusters?environment={self.environment}"
        registry = wait_until(lambda: self.get(listed)["data"])[0]
        self.subjects = f"{self.crn}/schema-registry={registry['id']}/subject"
        self.kafka = self.key(self.cluster, "Cluster", "cmk/v2")
        self.registry = self.key(registry["id"], "Cluster", "srcm/v3")
        self.tableflow = self.key("tableflow", "Tableflow", "tableflow/v1")
        self.topics = f"/kafka/v3/clusters/{self.cluster}/topics"
        self.connectors = (
            f"/connect/v1/environments/{self.environment}/clusters/{self.cluster}/connectors"
        )
        self.query = f"?environment={self.environment}&spec.kafka_cluster={self.cluster}"
        for path, key in (
            (self.topics, self.kafka),
            ("/subjects", self.registry),
            ("/tableflow/v1/regions", self.tableflow),
        ):
            wait_until(lambda path=path, key=key: self.call("GET", path, auth=key).ok)  # type: ignore[misc]

    def call(
        self, method: str, path: str, body: Any = None, auth: tuple[str, str] | None = None
    ) -> requests.Response:
        return requests.request(
            method, self.stack.confluent + path, json=body, auth=auth or self.cloud, timeout=60
        )

    def get(self, path: str, auth: tuple[str, str] | None = None) -> Any:
        answer = self.call("GET", path, auth=auth)
        assert answer.ok, answer.text
        return answer.json()

    def made(self, path: str, body: Any, auth: tuple[str, str] | None = None) -> Any:
        answer = self.call("POST", path, body, auth)
        assert answer.ok, answer.text
        return answer.json()

    def key(self, resource: str, kind: str, version: str) -> tuple[str, str]:
        reference = {"id": resource, "kind": kind, "api_version": version}
        spec = {"owner": {"id": self.owner}, "resource": reference}
        made = self.made("/iam/v2/api-keys", {"spec": spec})
        return made["id"], made["spec"]["secret"]

    def bind(self, role: str, crn: str) -> None:
        body = {"principal": f"User:{self.owner}", "role_name": role, "crn_pattern": crn}
        self.made("/iam/v2/role-bindings", body)

    def let_write(self, topic: str) -> None:
        """Give the owner what a connector of this topic and Tableflow on it need."""
        acl = {
            "resource_type": "CLUSTER",
            "resource_name": "kafka-cluster",
            "pattern_type": "LITERAL",
            "principal": f"User:{self.owner}",
            "host": "*",
            "operation": "DESCRIBE",
            "permission": "ALLOW",
        }
        assert self.call("POST", f"/kafka/v3/clusters/{self.cluster}/acls", acl, self.kafka).ok
        self.bind("DeveloperWrite", f"{self.subjects}={topic}-value")

    def connector_state(self, name: str) -> str:
        return str(self.get(f"{self.connectors}/{name}/status")["connector"]["state"])

    def delete(self) -> None:
        """Everything, in the order that the APIs demand."""
        for name in self.get(self.connectors):
            assert self.call("DELETE", f"{self.connectors}/{name}").ok
        for kind in ("tableflow-topics", "catalog-integrations"):
            path = f"/tableflow/v1/{kind}"
            for one in self.get(path + self.query, self.tableflow)["data"]:
                name = one.get("id") or one["spec"]["display_name"]
                assert self.call("DELETE", f"{path}/{name}{self.query}", auth=self.tableflow).ok
        inside = f"?environment={self.environment}"
        for one in self.get(f"/pim/v1/integrations{inside}")["data"]:
            assert self.call("DELETE", f"/pim/v1/integrations/{one['id']}{inside}").ok
        for path in (
            f"/cmk/v2/clusters/{self.cluster}{inside}",
            f"/iam/v2/service-accounts/{self.owner}",
            f"/org/v2/environments/{self.environment}",
        ):
            assert self.call("DELETE", path).status_code == 204, path


@pytest.fixture
def cloud(stack: Endpoints) -> Iterator[Cloud]:
    cloud = Cloud(stack)
    yield cloud
    cloud.delete()


def datagen(cloud: Cloud, name: str, **changes: str) -> dict[str, Any]:
    config = {
        "connector.class": "DatagenSource",
        "name": name,
        "kafka.auth.mode": "SERVICE_ACCOUNT",
        "kafka.service.account.id": cloud.owner,
        "kafka.topic": TOPIC,
        "output.data.format": "AVRO",
        "quickstart": "STOCK_TRADES",
        "tasks.max": "1",
    }
    return {"name": name, "config": config | changes}


def test_a_topic_is_one_of_the_broker(cloud: Cloud) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    body = {"topic_name": name, "configs": [{"name": "retention.ms", "value": "3600000"}]}
    assert cloud.made(cloud.topics, body, cloud.kafka)["partitions_count"] == 6
    assert len(cloud.stack.kafka_admin().list_topics(timeout=60).topics[name].partitions) == 6
    again = cloud.call("POST", cloud.topics, body, cloud.kafka)
    assert (again.status_code, again.json()["error_code"]) == (400, 40002)
    assert name in [one["topic_name"] for one in cloud.get(cloud.topics, cloud.kafka)["data"]]

    one = f"{cloud.topics}/{name}"
    config = cloud.get(f"{one}/configs/retention.ms", cloud.kafka)
    assert (config["value"], config["source"]) == ("3600000", "DYNAMIC_TOPIC_CONFIG")
    alter = {"data": [{"name": "retention.ms", "operation": "DELETE"}]}
    assert cloud.call("POST", f"{one}/configs:alter", alter, cloud.kafka).status_code == 204
    wait_until(lambda: cloud.get(f"{one}/configs/retention.ms", cloud.kafka)["is_default"])
    more = {"partitions_count": 8}
    assert cloud.call("PATCH", one, more, cloud.kafka).json()["partitions_count"] == 8

    assert cloud.call("DELETE", one, auth=cloud.kafka).status_code == 204
    wait_until(lambda: cloud.call("GET", one, auth=cloud.kafka).status_code == 404)
    assert name not in cloud.stack.kafka_admin().list_topics(timeout=60).topics


def test_a_connector_makes_records_arrive(cloud: Cloud, kill_service: KillService) -> None:
    kafka.ensure_topic(load_topic(TOPIC), cloud.stack)
    cloud.let_write(TOPIC)
    validate = cloud.connectors.removesuffix("connectors") + (
        "connector-plugins/DatagenSource/config/validate"
    )
    right = datagen(cloud, "trades", **{"max.interval": "20"})
    assert cloud.call("PUT", validate, right["config"]).json()["error_count"] == 0
    wrong = cloud.call("PUT", validate, right["config"] | {"quickstart": "USERS"}).json()
    assert wrong["error_count"] == 1
    refused = cloud.call("POST", cloud.connectors, datagen(cloud, "trades", quickstart="USERS"))
    assert (refused.status_code, refused.json()["code"]) == (400, 400)

    before = sum(kafka.end_offsets(cloud.stack, TOPIC).values())
    cloud.made(cloud.connectors, right)
    wait_until(lambda: cloud.connector_state("trades") == "RUNNING")
    wait_until(lambda: sum(kafka.end_offsets(cloud.stack, TOPIC).values()) > before)
    (shown,) = cloud.get(f"{cloud.connectors}?expand=info,status,id").values()
    assert shown["id"]["id"].startswith("lcc-")
    assert shown["info"]["config"]["max.interval"] == "20"
    assert cloud.call("POST", cloud.connectors, right).status_code == 409

    generator = read_generator(settings(), TOPIC)
    assert generator.rate == 100
    kill_service("confluent")  # the generator goes on, and is found again
    assert cloud.connector_state("trades") == "RUNNING"
    assert read_generator(settings(), TOPIC).pid == generator.pid

    assert cloud.call("PUT", f"{cloud.connectors}/trades/pause").status_code == 202
    assert cloud.connector_state("trades") == "PAUSED"
    assert read_generator(settings(), TOPIC).state not in ALIVE
    assert cloud.call("PUT", f"{cloud.connectors}/trades/resume").status_code == 202
    wait_until(lambda: cloud.connector_state("trades") == "RUNNING")
    gone = cloud.call("DELETE", f"{cloud.connectors}/trades")
    assert (gone.status_code, gone.json()) == (200, {"error": None})
    assert read_generator(settings(), TOPIC).state not in ALIVE


def test_tableflow_runs_once_its_storage_can_be_entered(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"role-{uuid.uuid4().hex[:8]}"
    body = {
        "display_name": role,
        "provider": "AWS",
        "config": {
            "kind": "AwsIntegrationConfig",
            "customer_iam_role_arn": f"arn:aws:iam::{settings().aws_account_id}:role/{role}",
        },
        "environment": {"id": cloud.environment},
    }
    integration, path = cloud.made("/pim/v1/integrations", body), "/tableflow/v1/tableflow-topics"
    spec = {
        "display_name": TOPIC,
        "environment": {"id": cloud.environment},
        "kafka_cluster": {"id": cloud.cluster},
        "storage": {
            "kind": "ByobAws",
            "bucket_name": settings().bucket,
            "provider_integration_id": integration["id"],
        },
    }

    def post(**changes: Any) -> requests.Response:
        return cloud.call("POST", path, {"spec": spec | changes}, cloud.tableflow)

    assert post(display_name="no_such_topic").status_code == 404
    schemaless = f"t-{uuid.uuid4().hex[:8]}"
    cloud.made(cloud.topics, {"topic_name": schemaless}, cloud.kafka)
    wait_until(lambda: cloud.call("GET", f"{cloud.topics}/{schemaless}", auth=cloud.kafka).ok)
    assert "Schemaless topic detected" in post(display_name=schemaless).text
    # Not through the API: with the cluster, it would delete the topic of all other tests.
    kafka.ensure_topic(load_topic(TOPIC), cloud.stack)
    cloud.let_write(TOPIC)
    cloud.made(cloud.connectors, datagen(cloud, "trades"))
    wait_until(lambda: cloud.connector_state("trades") == "RUNNING")
    assert post().status_code == 403  # its role has no say over the integration
    cloud.bind("ResourceOwner", f"{cloud.crn}/provider-integration={integration['id']}")
    wait_until(lambda: post().status_code == 202)
    assert post().status_code == 409
    glue_integration = functools.partial(
        cloud.made,
        "/tableflow/v1/catalog-integrations",
        {
            "spec": {
                "display_name": "glue",
                "environment": {"id": cloud.environment},
                "kafka_cluster": {"id": cloud.cluster},
                "config": {
                    "kind": "AwsGlue",
                    "provider_integration_id": integration["id"],
                    "custom_database": role,
                },
            }
        },
        cloud.tableflow,
    )
    catalog = glue_integration()
    in_use = cloud.call(
        "DELETE", f"/pim/v1/integrations/{integration['id']}?environment={cloud.environment}"
    )
    assert in_use.status_code == 409

    def status() -> Any:
        return cloud.get(f"{path}/{TOPIC}{cloud.query}", cloud.tableflow)["status"]

    # What the check of a cloud deployment asks, with a secret that `topicberg deploy` would make.
    monkeypatch.setenv("TOPICBERG_CONFLUENT_URL", cloud.stack.confluent)
    secret = {
        **dict(zip(("api.key", "api.key.secret"), cloud.tableflow, strict=True)),
        "environment.id": cloud.environment,
        "kafka.cluster.id": cloud.cluster,
    }
    path_of_secret = Names(settings().prefix).confluent_secret("tableflow")
    monkeypatch.setitem(_read, path_of_secret, (time.monotonic(), secret))

    def seen() -> TopicStatus:
        found = read_status(settings(), TOPIC)
        assert found
        return found

    wait_until(lambda: status()["phase"] == "FAILED")
    assert role in status()["error_message"]
    assert seen().phase == "FAILED"
    assert role in (seen().error_message or "")
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": integration["config"]["iam_role_arn"]},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"sts:ExternalId": integration["config"]["external_id"]}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam = cloud.stack.boto3("iam")
    one = f"/tableflow/v1/catalog-integrations/{catalog['id']}{cloud.query}"
    wait_until(lambda: cloud.get(one, cloud.tableflow)["status"]["phase"] == "FAILED")
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=policy)
    allowed = {"Effect": "Allow", "Action": ["s3:*", "glue:*"], "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    may = iam.create_policy(PolicyName=role, PolicyDocument=document)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName=role, PolicyArn=may)
    try:
        assert cloud.get(one, cloud.tableflow)["status"]["phase"] == "FAILED"  # it stays so
        assert cloud.call("DELETE", one, auth=cloud.tableflow).status_code == 204
        catalog = glue_integration()
        wait_until(lambda: status()["phase"] == "RUNNING", 180)
        wait_until(lambda: status()["catalog_sync_statuses"][0]["sync_status"] == "SYNCED", 180)
        assert seen() == TopicStatus(topic=TOPIC, phase="RUNNING")
        shown = cloud.get(f"{path}/{TOPIC}{cloud.query}", cloud.tableflow)
        glue = cloud.stack.boto3("glue").get_table(DatabaseName=role, Name=TOPIC)["Table"]
        place = shown["spec"]["storage"]["table_path"]
        assert glue["StorageDescriptor"]["Location"] == glue["Parameters"]["metadata_location"]
        assert glue["StorageDescriptor"]["Location"].startswith(f"{place}/metadata/")
        one = f"/tableflow/v1/catalog-integrations/{catalog['id']}{cloud.query}"
        wait_until(lambda: cloud.get(one, cloud.tableflow)["status"]["phase"] == "CONNECTED")
        change = {
            "spec": {
                "environment": {"id": cloud.environment},
                "kafka_cluster": {"id": cloud.cluster},
                "config": {"retention_ms": "172800000"},
            }
        }
        changed = cloud.call("PATCH", f"{path}/{TOPIC}", change, cloud.tableflow).json()
        assert changed["spec"]["config"]["retention_ms"] == "172800000"
        assert changed["spec"]["config"]["error_handling"] == {"mode": "SUSPEND"}
        asked = read_request(settings(), TOPIC)
        assert asked.enabled
        assert asked.tableflow["retention_ms"] == 172800000
        one = f"{path}/{TOPIC}{cloud.query}"
        assert cloud.call("DELETE", one, auth=cloud.tableflow).status_code == 204
        assert TOPIC not in control.enabled_topics(settings())
        assert cloud.call("GET", one, auth=cloud.tableflow).status_code == 404
        assert "not enabled" in (seen().error_message or "")
    finally:
        iam.detach_role_policy(RoleName=role, PolicyArn=may)
        iam.delete_policy(PolicyArn=may)
        iam.delete_role(RoleName=role)
        control.enable(settings(), TOPIC)  # as the other tests find it
