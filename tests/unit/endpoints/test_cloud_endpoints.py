"""The cloud deployment finds what `topicberg deploy` made: names in a file, keys in secrets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import boto3
import pytest
from moto import mock_aws
from pydantic import SecretStr
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.clients import rsa
from topicberg.clients.secrets import Secrets
from topicberg.endpoints import (
    Endpoints,
    SnowflakeEndpoint,
    cloud,
    load_endpoints,
    model,
    parameters,
)
from topicberg.errors import TopicbergError, UnreachableError
from topicberg.settings import DEPLOYED_LINK, Settings, deployment_parameter, settings
from topicberg.spark import check_spark
from topicberg.tableflow.service import confluent
from topicberg.tableflow.service.status import FailingFormat
from topicberg.topics import load_topic, load_topics
from topicberg_deploy.context import with_choices
from topicberg_local.datagen.producer import GeneratorRun

PREFIX = "demo"
KAFKA = f"/confluent_cloud_resource/{PREFIX}/kafka_cluster/{{}}/python_client"
REGISTRY = f"/confluent_cloud_resource/{PREFIX}/schema_registry_cluster/python_client"
SNOWFLAKE = f"/snowflake_resource/{PREFIX}"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """An AWS account and an environment that says only where and what."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "TOPICBERG_DEPLOYMENT": "cloud",
        "TOPICBERG_PREFIX": PREFIX,
        "TOPICBERG_STATE_DIR": str(tmp_path),
        "TOPICBERG_SPARK_REMOTE": "sc://spark:15002",
    }.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    parameters._read.clear()
    with mock_aws():
        yield boto3.client("secretsmanager", region_name="us-east-1")
    settings.cache_clear()


def test_pyarrow_gets_the_keys_of_a_profile_that_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of SSO, of a role, of a process: boto3 reads them, AWS's C++ clients may not."""
    keys = '{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "SK", "SessionToken": "T"}'
    (tmp_path / "keys.json").write_text(keys)
    config = f"[profile work]\ncredential_process = cat {tmp_path}/keys.json\n"
    static = "[profile plain]\naws_access_key_id = A\naws_secret_access_key = B\n"
    (tmp_path / "config").write_text(config + static)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)  # it would count, not the profile
    for profile, expected in (("work", {"AK", "SK", "T"}), ("plain", set())):
        monkeypatch.setenv("AWS_PROFILE", profile)
        assert set(model._profile_keys().values()) == expected


def test_clients_sign_by_what_the_environment_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = Endpoints(
        kafka_bootstrap="kafka",
        schema_registry="http://registry",
        iceberg_rest="http://rest",
        spark_connect="",
        snowflake=SnowflakeEndpoint(account="", user="", password=SecretStr("")),
    )
    for key in ("A", "B"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        client = endpoints.boto3("iam", Settings(aws_region="us-east-1"))
        assert client._request_signer._credentials.access_key == key
        assert endpoints.boto3("iam", Settings(aws_region="us-east-1")) is client


def _store(client: Any, name: str, values: dict[str, str]) -> None:
    secrets = Secrets(client)
    secrets.publish(name, secrets.add(name, values, "K"))


def _note(value: str | dict[str, Any]) -> None:
    """Write what `deploy` notes."""
    text = value if isinstance(value, str) else json.dumps(value)
    ssm = boto3.client("ssm", region_name="us-east-1")
    ssm.put_parameter(Name=deployment_parameter(PREFIX), Value=text, Type="String", Overwrite=True)


def _choices() -> Settings:
    return with_choices(Settings(), None, None)


def test_names_are_those_that_were_noted(account: Any) -> None:
    noted = {"cluster_id": "lkc-7", "bucket": "demo-123456789012", "aws_account_id": "123456789012"}
    _note(noted)
    found = settings()
    assert {name: getattr(found, name) for name in noted} == noted


@pytest.mark.parametrize(
    ("noted", "reason"),
    [
        (None, "there is no SSM parameter /topicberg/demo/deployment in us-east-1"),
        ("{", "is not a JSON object"),
        ("[]", "is not a JSON object"),
        ("{}", "lacks it"),
    ],
)
def test_names_that_are_not_known_raise(account: Any, noted: str | None, reason: str) -> None:
    if noted is not None:
        _note(noted)
    config = settings()
    read: list[Callable[[], Any]] = [
        lambda: config.cluster_id,
        lambda: config.warehouse,
        lambda: config.aws_account_id,
        lambda: config.model_copy().bucket,
        lambda: load_topic("stock_trades").table_identifier(),
    ]
    for name in read:
        with pytest.raises(TopicbergError, match=reason) as raised:
            name()
        assert "TOPICBERG_CLUSTER_ID" in str(raised.value)


def test_names_that_are_not_known_keep_no_spec_from_loading(account: Any) -> None:
    assert load_topics(settings())
    done = CliRunner().invoke(app, ["topics", "validate"])
    assert done.exit_code == 0, done.output


def test_the_environment_comes_before_the_note(
    account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICBERG_CLUSTER_ID", "lkc-8")
    _note({"cluster_id": "lkc-7"})
    assert settings().cluster_id == "lkc-8"


def test_settings_that_aws_refuses_name_the_reason_and_no_choice_is_guessed(
    account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(TopicbergError, match="cannot be read: Unable to locate credentials") as one:
        _ = settings().cluster_id
    assert "ssm:GetParameter" in (one.value.hint or "")
    with pytest.raises(TopicbergError, match="what `deploy` remembers of the deployment"):
        _choices()


def test_settings_with_all_names_in_the_environment_ask_nobody(
    account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _note({"cluster_id": "lkc-7", DEPLOYED_LINK: False})
    for name, value in {
        "CLUSTER_ID": "lkc-8",
        "BUCKET": "lake",
        "AWS_ACCOUNT_ID": "123456789012",
    }.items():
        monkeypatch.setenv(f"TOPICBERG_{name}", value)
    assert settings().snowflake_linked_database is True
    settings.cache_clear()
    monkeypatch.delenv("TOPICBERG_SPARK_REMOTE")  # now an application may be noted
    assert settings().snowflake_linked_database is False


@pytest.mark.parametrize(
    ("noted", "stated", "linked"),
    [
        (None, None, True),
        ({"cluster_id": "lkc-7", DEPLOYED_LINK: False}, None, False),
        ({"cluster_id": "lkc-7"}, "true", True),
        ({"cluster_id": "lkc-7", DEPLOYED_LINK: True}, None, True),
        ({"cluster_id": "lkc-7", DEPLOYED_LINK: True}, "false", False),
    ],
)
def test_linked_database_is_default_of_new_deployments_only(
    account: Any,
    monkeypatch: pytest.MonkeyPatch,
    noted: dict[str, Any] | None,
    stated: str | None,
    linked: bool,
) -> None:
    """An upgrade leaves the tables of a deployment where they are."""
    if noted is not None:
        _note(noted)
    if stated is not None:
        monkeypatch.setenv("TOPICBERG_SNOWFLAKE_LINKED_DATABASE", stated)
    assert settings().snowflake_linked_database is linked
    assert _choices().snowflake_linked_database is linked  # of `deploy`


@pytest.mark.parametrize("stated", [None, "sales"])
def test_namespace_of_the_deployment_is_remembered(
    account: Any, monkeypatch: pytest.MonkeyPatch, stated: str | None
) -> None:
    _note({"cluster_id": "lkc-1", "tableflow_namespace": "finance"})
    if stated:
        monkeypatch.setenv("TOPICBERG_TABLEFLOW_NAMESPACE", stated)
    expected = stated or "finance"
    assert settings().topics_namespace == expected
    assert _choices().topics_namespace == expected  # of `deploy`


@pytest.fixture
def deployed(account: Any) -> rsa.KeyPair:
    """The secrets of a deployment, and the active key pair of its Snowflake user."""
    pair = rsa.generate()
    for role in ("app_consumer", "app_producer", "app_manager"):
        key = {"sasl.username": role, "sasl.password": "S", "bootstrap.servers": "broker:9092"}
        _store(account, KAFKA.format(role), key)
    _store(
        account,
        REGISTRY,
        {"schema.registry.url": "https://sr", "schema.registry.basic.auth.user.info": "R:T"},
    )
    values = {"snowflake_account_identifier": "org-acc", "snowflake_service_user": "DEMO_USER"}
    _store(account, SNOWFLAKE, rsa.with_pair(values, 2, pair))
    return pair


def test_keys_are_those_of_the_secrets(deployed: rsa.KeyPair) -> None:
    found = load_endpoints()  # as every command does

    assert found.kafka_config()["bootstrap.servers"] == "broker:9092"
    assert found.kafka_config()["sasl.username"] == "app_consumer"
    assert found.kafka_config(writes=True)["sasl.username"] == "app_producer"
    assert found.registry_login.client() == {"basic.auth.user.info": "R:T"}
    assert found.iceberg_rest == "https://glue.us-east-1.amazonaws.com/iceberg"
    login = found.snowflake.login()["private_key"]
    assert base64.b64decode(login) == deployed.private
    assert found.snowflake.connector_login()["private_key"] != login
    assert deployed.private.decode() not in repr(found)


def test_secret_of_terraform_has_its_key_in_the_first_slot(
    account: Any, deployed: rsa.KeyPair
) -> None:
    values = {"snowflake_account_identifier": "org-acc", "snowflake_service_user": "DEMO_USER"}
    held = rsa.with_pair(values, 1, deployed)
    _store(account, SNOWFLAKE, {k: v for k, v in held.items() if k != "active_key_number"})
    login = cloud.connect(Settings()).snowflake.login()["private_key"]
    assert base64.b64decode(login) == deployed.private
    parameters._read.clear()
    _store(account, SNOWFLAKE, values)
    with pytest.raises(TopicbergError, match="has no snowflake_rsa_private_key_1_pem"):
        cloud.connect(Settings())


def test_own_engine_manages_the_cluster(account: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_TABLEFLOW", "topicberg")
    for name in ("SCHEMA_REGISTRY_URL", "SNOWFLAKE_ACCOUNT", "SNOWFLAKE_USER"):
        monkeypatch.setenv(f"TOPICBERG_{name}", "http://localhost:1")
    monkeypatch.setenv("TOPICBERG_SNOWFLAKE_PASSWORD", "x")
    key = {"sasl.username": "K", "sasl.password": "S", "bootstrap.servers": "broker:9092"}
    _store(account, KAFKA.format("app_manager"), key)
    found = cloud.connect(Settings())
    assert found.kafka_config() == found.kafka_config(writes=True)
    assert found.kafka_config()["sasl.username"] == "K"


@pytest.mark.parametrize("service", ["kafka", "kafka-serverless"])
def test_msk_login_is_for_the_region_of_the_brokers(
    deployed: rsa.KeyPair, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    monkeypatch.setenv("TOPICBERG_KAFKA_AUTH", "msk_iam")
    brokers = f"boot-x1.c2.{service}.eu-west-1.amazonaws.com:9098"
    monkeypatch.setenv("TOPICBERG_KAFKA_BOOTSTRAP", brokers)
    assert load_endpoints().kafka_config()["oauth_cb"].region == "eu-west-1"


def test_generator_takes_the_key_of_a_rotation(
    account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCHEMA_REGISTRY_URL", "SNOWFLAKE_ACCOUNT", "SNOWFLAKE_USER"):
        monkeypatch.setenv(f"TOPICBERG_{name}", "http://localhost:1")
    monkeypatch.setenv("TOPICBERG_SCHEMA_REGISTRY_API_KEY", "R")
    monkeypatch.setenv("TOPICBERG_SCHEMA_REGISTRY_API_SECRET", "x")
    monkeypatch.setenv("TOPICBERG_SNOWFLAKE_PASSWORD", "x")
    key = {"sasl.password": "S", "bootstrap.servers": "broker:9092"}
    for role in ("app_consumer", "app_producer"):
        _store(account, KAFKA.format(role), {"sasl.username": f"{role}-1", **key})
    spec = load_topic("stock_trades")
    run = GeneratorRun(spec, cloud.connect(Settings()), Settings(), rate=1, count=None, seed=1)
    _store(account, KAFKA.format("app_producer"), {"sasl.username": "app_producer-2", **key})
    parameters._read.clear()
    taken: list[tuple[str, str]] = []
    producer = SimpleNamespace(set_sasl_credentials=lambda *login: taken.append(login))
    run._renew_login(cast(Any, producer))
    assert taken == [("app_producer-2", "S")]


def test_what_is_missing_is_named(account: Any) -> None:
    with pytest.raises(TopicbergError, match=KAFKA.format("app_consumer")) as raised:
        cloud.connect(Settings())
    assert "TOPICBERG_KAFKA_BOOTSTRAP" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (["KAFKA_BOOTSTRAP"], "no TOPICBERG_KAFKA_API_KEY and no TOPICBERG_KAFKA_API_SECRET"),
        (["KAFKA_API_KEY", "KAFKA_API_SECRET"], "no TOPICBERG_KAFKA_BOOTSTRAP"),
        (["KAFKA_BOOTSTRAP", "KAFKA_API_KEY"], "no TOPICBERG_KAFKA_API_SECRET"),
        (["SNOWFLAKE_ACCOUNT", "SNOWFLAKE_USER"], "no TOPICBERG_SNOWFLAKE_PASSWORD"),
        (["SNOWFLAKE_USER", "SNOWFLAKE_PASSWORD"], "no TOPICBERG_SNOWFLAKE_ACCOUNT"),
        (["ICEBERG_REST_TOKEN"], "is token, and there is no TOPICBERG_ICEBERG_REST_URI"),
        (["SCHEMA_REGISTRY_TOKEN"], "is bearer, and there is no TOPICBERG_SCHEMA_REGISTRY_URL"),
        (["SCHEMA_REGISTRY_API_KEY"], "requires TOPICBERG_SCHEMA_REGISTRY_API_SECRET"),
        (["SCHEMA_REGISTRY_API_SECRET"], "requires TOPICBERG_SCHEMA_REGISTRY_API_KEY"),
        (["SCHEMA_REGISTRY_OAUTH__CLIENT_SECRET"], "requires TOPICBERG_SCHEMA_REGISTRY_OAUTH__CL"),
        (["SCHEMA_REGISTRY_KEY_FILE"], "requires TOPICBERG_SCHEMA_REGISTRY_CERTIFICATE_FILE"),
    ],
)
@pytest.mark.usefixtures("deployed")
def test_a_login_is_not_completed_with_keys_of_the_deployment(
    monkeypatch: pytest.MonkeyPatch, given: list[str], missing: str
) -> None:
    for name in given:
        monkeypatch.setenv(f"TOPICBERG_{name}", "value")
    with pytest.raises(TopicbergError, match=missing):
        cloud.connect(Settings())


@pytest.mark.usefixtures("deployed")
def test_proxy_of_the_registry_gets_the_key_of_the_deployment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("TOPICBERG_SCHEMA_REGISTRY_URL", "https://proxy")
    monkeypatch.setenv("TOPICBERG_SCHEMA_REGISTRY_CA_FILE", str(tmp_path / "ca.pem"))
    found = cloud.connect(Settings())
    assert found.schema_registry == "https://proxy"
    assert found.registry_login.client() == {
        "basic.auth.user.info": "R:T",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }


@pytest.mark.usefixtures("deployed")
def test_registry_without_a_login_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_SCHEMA_REGISTRY_URL", "https://open")
    monkeypatch.setenv("TOPICBERG_SCHEMA_REGISTRY_AUTH", "none")
    found = cloud.connect(Settings())
    assert (found.schema_registry, found.registry_login.client()) == ("https://open", {})


def test_any_kafka_wants_an_address(account: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
    monkeypatch.setenv("TOPICBERG_KAFKA_BOOTSTRAP", "")  # as example.env has it
    with pytest.raises(TopicbergError, match="there is no TOPICBERG_KAFKA_BOOTSTRAP"):
        load_endpoints()


def test_engine_commands_in_the_cloud_are_refused(account: Any) -> None:
    for command in (["status"], ["run", "stock_trades", "--once"], ["enable", "stock_trades"]):
        done = CliRunner().invoke(app, ["tableflow", *command])
        assert isinstance(done.exception, TopicbergError)
        assert "Confluent's Tableflow writes the tables" in done.exception.message


def test_sparks_token_is_shown_nowhere() -> None:
    remote = "sc://127.0.0.1:1/;use_ssl=true;token=SECRET123"
    with pytest.raises(UnreachableError, match=r"sc://127\.0\.0\.1:1: ") as raised:
        check_spark(remote, 0.1)
    assert "SECRET123" not in str(raised.value)
    endpoints = Endpoints(
        kafka_bootstrap="broker:9092",
        schema_registry="https://sr",
        iceberg_rest="https://glue",
        spark_connect=remote,
        snowflake=SnowflakeEndpoint(account="a", user="u"),
    )
    assert "SECRET123" not in repr(endpoints)


def test_confluent_status_without_a_key_sends_no_request(account: Any) -> None:
    assert confluent.read_status(settings(), "stock_trades") is None


def test_confluent_status_is_shown_like_the_engines_status() -> None:
    status = {
        "phase": "RUNNING",
        "write_mode": "UPSERT",
        "failing_table_formats": [{"format": "DELTA", "error_message": "timeout"}],
        "catalog_sync_statuses": [
            {"catalog_type": "AWS_GLUE", "sync_status": "FAILED", "error_message": "no access"},
            {"catalog_type": "SNOWFLAKE", "sync_status": "SYNCED"},
            {"catalog_type": "UNITY", "sync_status": "DISCONNECTED", "error_message": None},
        ],
    }
    found = confluent._status("t", {"suspended": True}, status)
    assert (found.phase, found.suspended, found.write_mode) == ("RUNNING", True, "UPSERT")
    assert found.failing_table_formats == [FailingFormat(format="DELTA", error_message="timeout")]
    assert (found.error_message or "").startswith(
        "catalog AWS_GLUE: no access; catalog UNITY: the catalog integration is disconnected\n  → "
    )
    assert [one["catalog_type"] for one in confluent.syncs(status, of_delta=False)] == [
        "AWS_GLUE",
        "SNOWFLAKE",
    ]
    assert confluent._status("t", {}, {"phase": "FAILED"}).error_message
    assert confluent._status("t", {}, {"phase": "RUNNING"}).error_message is None
