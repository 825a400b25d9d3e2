"""What access lists and role bindings of the Confluent emulator say of Kafka's clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from stackless import NO_DELAYS, NOWHERE

from topicberg.settings import Settings
from topicberg_local import state
from topicberg_local.emulators.confluent.account import ACL, CLUSTER, ROLE_BINDING, Account
from topicberg_local.emulators.confluent.clusters import GONE_AFTER
from topicberg_local.emulators.confluent.connector_checks import unseen_cluster
from topicberg_local.emulators.confluent.kafka_gateway import Right, _authenticated, _token, rights
from topicberg_local.emulators.store import Stored

SA = "lkc-1.sa-1"


@pytest.fixture
def account(tmp_path: Path) -> Account:
    config = Settings(state_dir=tmp_path)
    state.save_endpoints(config, {}, NOWHERE)
    account = Account(tmp_path, config, "http://127.0.0.1:1")
    account.delays = NO_DELAYS
    account.store.put(Stored(CLUSTER, ("lkc-1",), {"environment": "env-1"}))
    return account


def _list(account: Account, permission: str, name: str, pattern: str = "LITERAL") -> None:
    what = ("CLUSTER", name, pattern, "User:sa-1", "*", "DESCRIBE", permission)
    account.store.put(Stored(ACL, ("lkc-1", *what)))


def _bind(account: Account, role: str, *parts: str) -> None:
    crn = account.crn("environment=env-1", *parts)
    binding = {"principal": "User:sa-1", "role_name": role, "crn_pattern": crn}
    account.store.put(Stored(ROLE_BINDING, (f"rb-{role}{len(parts)}{parts[-1:]}",), binding))


def _of_account(account: Account) -> set[Right]:
    return {right for right in rights(account) if right.user == SA}


def test_access_list_is_a_right_of_the_account_in_its_cluster(account: Account) -> None:
    what = ("TOPIC", "orders", "PREFIXED", "User:sa-1", "*", "READ", "DENY")
    account.store.put(Stored(ACL, ("lkc-1", *what)))
    assert _of_account(account) == {Right(SA, "TOPIC", "orders", "PREFIXED", "READ", "DENY")}


@pytest.mark.parametrize(
    ("role", "part", "expected"),
    [
        ("DeveloperRead", "topic=a", {("TOPIC", "a", "LITERAL", "READ")}),
        ("DeveloperWrite", "topic=a*", {("TOPIC", "a", "PREFIXED", "WRITE")}),
        ("DeveloperRead", "group=*", {("GROUP", "*", "LITERAL", "READ")}),
        ("DeveloperWrite", "transactional-id=t", {("TRANSACTIONAL_ID", "t", "LITERAL", "WRITE")}),
        ("ResourceOwner", "topic=a", {("TOPIC", "a", "LITERAL", "ALL")}),
        ("DeveloperWrite", "group=g", set()),
    ],
)
def test_role_on_a_resource_is_the_rights_of_the_role(
    account: Account, role: str, part: str, expected: set[tuple[str, ...]]
) -> None:
    _bind(account, role, "cloud-cluster=lkc-1", "kafka=lkc-1", part)
    assert {right[1:5] for right in _of_account(account)} == expected


@pytest.mark.parametrize("parts", [(), ("cloud-cluster=lkc-1",)])
def test_admin_of_what_has_the_cluster_may_do_everything(
    account: Account, parts: tuple[str, ...]
) -> None:
    _bind(account, "CloudClusterAdmin", *parts)
    found = {right[1:5] for right in _of_account(account)}
    assert ("TOPIC", "*", "LITERAL", "ALL") in found
    assert ("CLUSTER", "kafka-cluster", "LITERAL", "ALL") in found


def test_new_binding_counts_after_its_delay(account: Account) -> None:
    account.delays = NO_DELAYS.model_copy(update={"role_binding": 60})
    _bind(account, "CloudClusterAdmin")
    assert _of_account(account) == set()


def test_deleted_cluster_gives_no_rights(account: Account) -> None:
    account.store.put(Stored(CLUSTER, ("lkc-1",), {"environment": "env-1", GONE_AFTER: 0}))
    _bind(account, "CloudClusterAdmin")
    assert rights(account) == set()


@pytest.mark.parametrize(
    ("lists", "is_seen"),
    [
        ([], False),
        ([("ALLOW", "kafka-cluster", "LITERAL")], True),
        ([("ALLOW", "kafka-", "PREFIXED")], True),
        ([("ALLOW", "kafka-", "LITERAL")], False),
        ([("ALLOW", "kafka-cluster", "LITERAL"), ("DENY", "kafka", "PREFIXED")], False),
    ],
)
def test_connector_sees_the_cluster_as_access_lists_say(
    account: Account, lists: list[tuple[str, str, str]], is_seen: bool
) -> None:
    for permission, name, pattern in lists:
        _list(account, permission, name, pattern)
    assert (unseen_cluster(account, "env-1", "lkc-1", "sa-1") is None) is is_seen


def test_login_in_every_version_of_the_protocol() -> None:
    """The compact form of Java's clients, with a token whose length takes two bytes."""
    token, head = b"\0key\0" + b"s" * 200, bytes.fromhex("0024 0002 00000007 0003") + b"abc"
    size = len(token) + 1
    compact = head + b"\0" + bytes([size & 0x7F | 0x80, size >> 7]) + token + b"\0"
    assert _token(compact, 2) == token
    assert _token(head + len(token).to_bytes(4, "big") + token, 1) == token
    assert _authenticated(2, 7, "") == bytes.fromhex("00000007 00 0000 00 01") + bytes(8) + b"\0"
    assert _authenticated(2, 7, "no")[5:10] == bytes.fromhex("003a 03") + b"no"
    assert _authenticated(1, 7, "") == bytes.fromhex("00000007 0000 ffff 00000000") + bytes(8)
    assert _authenticated(0, 7, "") == bytes.fromhex("00000007 0000 ffff 00000000")
