"""Secrets with a history, in moto: what is current, what is known, when it was made."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws
from pydantic import SecretStr

from topicberg.clients.secrets import Secrets
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.context import DeployContext
from topicberg_deploy.settings import DeploySettings


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Secrets]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        yield Secrets(boto3.client("secretsmanager", region_name="us-east-1"))


def test_a_new_version_is_current_once_it_is_published(secrets: Secrets) -> None:
    before = time.time()
    secrets.publish("s", secrets.add("s", {"k": "1"}, "ONE"))
    second = secrets.add("s", {"k": "2"}, "TWO")
    versions = secrets.versions("s")
    assert [(v.label, v.current) for v in versions] == [("ONE", True), ("TWO", False)]
    assert secrets.read("s", second) == {"k": "2"}
    secrets.publish("s", second)
    secrets.publish("s", second)
    assert [(v.label, v.current) for v in secrets.versions("s")] == [("ONE", False), ("TWO", True)]
    assert all(abs(v.created.timestamp() - before) < 60 for v in versions)
    assert versions[0].created <= versions[1].created


def test_what_was_just_stored_is_known_though_aws_does_not_tell(secrets: Secrets) -> None:
    """Secrets Manager is eventually consistent, and a key whose secret was lost is revoked."""
    secrets.publish("s", secrets.add("s", {"k": "1"}, "ONE"))
    before = secrets.client.describe_secret(SecretId="s")

    def late(parsed: dict[str, Any], **_: Any) -> None:
        parsed["VersionIdsToStages"] = before["VersionIdsToStages"]

    secrets.client.meta.events.register("after-call.secrets-manager.DescribeSecret", late)
    secrets.add("s", {"k": "2"}, "TWO")
    assert [(v.label, v.current) for v in secrets.versions("s")] == [("ONE", True), ("TWO", False)]


def test_a_dead_key_is_forgotten(secrets: Secrets) -> None:
    for number in ("1", "2"):
        secrets.publish("s", secrets.add("s", {"k": number}, f"K{number}"))
    secrets.forget("s", "K1")
    assert [version.label for version in secrets.versions("s")] == ["K2"]


def test_a_secret_that_waits_for_its_deletion_is_taken_back(secrets: Secrets) -> None:
    secrets.publish("s", secrets.add("s", {"k": "1"}, "K1"))
    secrets.delete("s", purge=False)
    assert not secrets.exists("s")
    assert secrets.read("s") is None
    assert secrets.versions("s") == []
    secrets.publish("s", secrets.add("s", {"k": "2"}, "K2"))
    assert secrets.exists("s")
    assert secrets.versions("s")[-1].label == "K2"


def test_a_purged_secret_is_gone(secrets: Secrets) -> None:
    secrets.add("s", {"k": "1"}, "K1")
    secrets.delete("s", purge=True)
    secrets.delete("s", purge=True)
    assert not secrets.exists("s")


@pytest.mark.parametrize("key", ["<placeholder>", b64encode(b"no PEM").decode()])
def test_admins_key_that_is_none_is_named(secrets: Secrets, key: str) -> None:
    values = {"snowflake_account_identifier": "O-A", "admin_service_user": "ADMIN"}
    values |= {"active_key_number": "1", "snowflake_rsa_private_key_1_pem": key}
    secrets.publish("/admin", secrets.add("/admin", values, "K"))
    deploy = DeploySettings(
        confluent_api_key="K",
        confluent_api_secret=SecretStr("S"),
        admin_user_secrets_root_path="/admin",
    )
    context = DeployContext(Settings(deployment="cloud"), deploy, [])
    with pytest.raises(TopicbergError, match="secret /admin: the active private key") as raised:
        context.snowflake.take_roles()
    assert key not in str(raised.value)
