"""Kafka clients take their settings from Parameter Store, and never what exactly-once needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, Producer
from moto import mock_aws
from repository import PROJECT_ROOT

from topicberg.endpoints import Endpoints, SnowflakeEndpoint, parameters
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.aws.parameters import CONSUMER, PRODUCER
from topicberg_local.datagen.producer import PRODUCER_CONFIG

PATH = "/confluent_cloud_resource/tableflow_kickstarter"


@pytest.fixture
def ssm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Parameter Store with what `topicberg deploy create` writes."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    parameters._read.clear()
    with mock_aws():
        client = boto3.client("ssm", region_name="us-east-1")
        for kind, values in (("consumer", CONSUMER), ("producer", PRODUCER)):
            for name, value in {**values, "auto.offset.reset": "latest"}.items():
                _put(client, kind, name, value)
        yield client
    parameters._read.clear()


def _put(client: Any, kind: str, name: str, value: str) -> None:
    where = f"{PATH}/{kind}_kafka_client/{name}"
    client.put_parameter(Name=where, Value=value, Type="String", Overwrite=True)


def _endpoints(deployed: bool) -> Endpoints:
    return Endpoints(
        kafka_bootstrap="127.0.0.1:1",
        kafka_deployed=deployed,
        schema_registry="http://127.0.0.1:1",
        iceberg_rest="http://127.0.0.1:1",
        spark_connect="",
        snowflake=SnowflakeEndpoint(account="a", user="u"),
    )


def test_settings_of_the_deployment_tune_clients(ssm: Any) -> None:
    for number in range(15):  # more than one page
        _put(ssm, "producer", f"unknown.{number}", "1")
    _put(ssm, "producer", "linger.ms", "7")
    tuning = _endpoints(True).kafka_tuning("producer")
    assert tuning == {
        "client.dns.lookup": "use_all_dns_ips",
        "compression.type": "gzip",
        "linger.ms": "7",
    }
    Producer({**PRODUCER_CONFIG, **tuning})
    tuning = _endpoints(True).kafka_tuning("consumer")
    assert tuning["session.timeout.ms"] == "90000"
    Consumer({"group.id": "g", **tuning}).close()


@pytest.mark.parametrize("client", ["consumer", "producer"])
def test_every_tunable_property_is_one_of_librdkafka(client: parameters.Client) -> None:
    """A client with a property that librdkafka does not have cannot be created."""
    known = {"client.dns.lookup": "use_all_dns_ips", "compression.type": "zstd"}
    config = {name: known.get(name, "60000") for name in parameters.TUNABLE[client]}
    if client == "consumer":
        Consumer({"group.id": "g", **config}).close()
    else:
        Producer(config)


def test_exactly_once_does_not_depend_on_parameters(ssm: Any) -> None:
    for name in ("acks", "enable.idempotence", "transaction.timeout.ms", "bootstrap.servers"):
        _put(ssm, "producer", name, "0")
    for name in ("isolation.level", "enable.auto.commit", "auto.offset.reset", "check.crcs"):
        _put(ssm, "consumer", name, "0")
    for client in parameters.TUNABLE:
        assert "0" not in _endpoints(True).kafka_tuning(client).values()


def test_kafka_of_other_origin_asks_no_parameter_store() -> None:
    assert _endpoints(False).kafka_tuning("consumer") == {}


def test_refusal_of_parameter_store_is_one_message(
    ssm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetParametersByPath")

    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", refuse)
    with pytest.raises(TopicbergError, match=f"parameters under {PATH}/consumer") as raised:
        parameters.client_parameters(Settings(), "consumer")
    assert "ssm:GetParametersByPath" in str(raised.value.hint)


def test_documented_consumer_is_created(ssm: Any) -> None:
    """The code of docs/cloud.md, with what `topicberg deploy create` writes."""
    login = {"bootstrap.servers": "127.0.0.1:1", "sasl.username": "K", "sasl.password": "S"}
    boto3.client("secretsmanager", "us-east-1").create_secret(
        Name=f"{PATH}/kafka_cluster/app_consumer/python_client", SecretString=json.dumps(login)
    )
    page = Path(PROJECT_ROOT, "docs", "cloud.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102  our own documentation
    assert isinstance(names["consumer"], Consumer)
    names["consumer"].close()
