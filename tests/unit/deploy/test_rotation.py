"""Which keys a rotation makes and deletes, and the history of their secrets."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws
from pydantic import SecretStr
from record_pages import InMemory

from topicberg.clients import rsa
from topicberg.clients.secrets import Secrets, active_slot
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.confluent.keys import RotatingKey
from topicberg_deploy.context import DeployContext
from topicberg_deploy.record import CreationRecord
from topicberg_deploy.resource import Live, Resource
from topicberg_deploy.rotate import decide, rotate
from topicberg_deploy.settings import DeploySettings

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def test_on_its_day_a_key_gets_a_successor_and_stays() -> None:
    assert decide({"a": START}, START + 30 * DAY, 30 * DAY, 2) == (True, [])


def test_the_key_before_the_last_one_goes_when_the_next_one_comes() -> None:
    keys = {"b": START + 30 * DAY, "a": START}
    assert decide(keys, START + 60 * DAY, 30 * DAY, 2) == (True, ["a"])


@given(
    steps=st.lists(st.tuples(st.integers(0, 40 * 24), st.booleans()), max_size=40),
    period_days=st.integers(1, 60),
    retain=st.integers(2, 5),
)
def test_any_sequence(steps: list[tuple[int, bool]], period_days: int, retain: int) -> None:
    """Hours until the next run, and whether it is forced."""
    period, now, number = timedelta(days=period_days), START, 0
    keys = {"0": START}
    superseded: dict[str, datetime] = {}
    for hours, force in steps:
        now += timedelta(hours=hours)
        is_due, revoke = decide(keys, now, period, retain, force=force)
        newest = max(keys, key=keys.__getitem__)
        assert is_due == (force or now - keys[newest] >= period)
        if is_due:
            number += 1
            superseded[newest] = now
            keys[str(number)] = now + timedelta(microseconds=number)
        for old in revoke:
            # The active key never goes, nor one whose successor is younger than a period.
            assert now - superseded[old] >= period - timedelta(seconds=1)
        keys = {key: made for key, made in keys.items() if key not in revoke}
        assert len(keys) >= min(retain, number + 1)
        assert str(number) in keys
        assert max(keys.values()) - now <= timedelta(seconds=1)
        assert not [
            key
            for key in sorted(keys, key=keys.__getitem__, reverse=True)[retain:]
            if now - superseded[key] >= period + timedelta(seconds=1)
        ]


def test_a_new_pair_takes_the_other_slot() -> None:
    first, second = rsa.generate(), rsa.generate()
    values = rsa.with_pair({"snowflake_service_user": "U"}, 1, first)
    assert active_slot(values) == 1
    values = rsa.with_pair(values, 2, second)
    assert active_slot(values) == 2
    assert (rsa.private_key(values), rsa.public_key(values, 1)) == (second.private, first.public)
    assert "PRIVATE" not in repr(first)


class Denied(Resource):
    """The user may not read it."""

    def find(self, context: DeployContext) -> Live | None:
        raise ClientError({"Error": {"Code": "AccessDeniedException"}}, f"Read {self.name}")


@dataclass(frozen=True)
class Absent(RotatingKey):
    def find(self, context: DeployContext) -> Live | None:
        return None


def test_each_key_depends_on_its_own_needs_only() -> None:
    context: Any = SimpleNamespace(
        live={}, waiting={}, deploy=SimpleNamespace(profile=None), record=CreationRecord(InMemory())
    )
    graph = [
        Denied("aws/athena_workgroup", "A"),
        Denied("confluent/cluster", "C"),
        Absent("key/kafka", "/kafka", ("confluent/cluster",), account="a", of="kafka"),
        Absent("key/tableflow", "/tableflow", account="a", of="tableflow"),
    ]
    with pytest.raises(TopicbergError, match="2 keys could not be rotated") as raised:
        rotate(graph, context, lambda _: None)
    message = str(raised.value)
    assert "Read C" in message
    assert "/tableflow: it does not exist" in message
    assert "Read A" not in message


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Secrets]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        yield Secrets(boto3.client("secretsmanager", region_name="us-east-1"))


def test_a_new_version_is_current_once_it_is_published(secrets: Secrets) -> None:
    before = time.time()
    secrets.publish("s", secrets.add("s", {"k": "1"}, "ONE"))
    second, versions = secrets.add("s", {"k": "2"}, "TWO"), secrets.versions("s")
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
