"""Which names a member of a group has, as Kafka's client reports its partitions."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until

from topicberg.errors import TopicbergError
from topicberg.kafka.group import PARTITIONS, GroupMember, partition_of

TOPIC = "engines"


class Consumer:
    """What a member calls of Kafka's client, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.calls.append(f"assign {len(places)}")

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self.calls.append(f"unassign {len(places)}")

    def pause(self, places: list[TopicPartition]) -> None:
        self.calls.append(f"pause {len(places)}")


def places(*partitions: int) -> list[TopicPartition]:
    return [TopicPartition(TOPIC, partition) for partition in partitions]


def member_of(consumer: Consumer) -> GroupMember:
    def give_up(is_lost: bool) -> None:
        consumer.calls.append(f"give up, lost: {is_lost}, knows: {member.is_known}")

    member = GroupMember(
        cast("Any", SimpleNamespace()), "g", TOPIC, "n", lambda _: "id", give_up, lambda: None
    )
    return member


@given(st.text(min_size=1), st.integers(1, 100))
def test_partition_of_a_name_is_one_of_the_topic(name: str, partitions: int) -> None:
    assert 0 <= partition_of(name, partitions) < partitions


def test_partition_of_a_name_never_changes() -> None:
    """Engines of two versions share the topics during an upgrade."""
    names = ("orders", "orders.eu", "stock_trades")
    assert [partition_of(name, 60) for name in names] == [28, 36, 53]
    found = Counter(partition_of(f"fleet_{number:04}", PARTITIONS) for number in range(6000))
    assert len(found) == PARTITIONS
    assert max(found.values()) < 150


def test_member_has_the_names_of_its_partitions() -> None:
    consumer = Consumer()
    member = member_of(consumer)
    orders, trades = partition_of("orders", PARTITIONS), partition_of("trades", PARTITIONS)
    assert orders != trades
    assert not member.is_known
    member._assigned(cast("Any", consumer), [])
    assert member.is_known
    assert not member.holds("orders")
    member._assigned(cast("Any", consumer), places(orders, trades))
    assert member.holds("orders")
    member._revoked(cast("Any", consumer), places(orders))
    assert not member.holds("orders")
    assert member.holds("trades")
    assert consumer.calls == [
        "assign 0",
        "assign 2",
        "pause 2",
        "give up, lost: False, knows: True",
        "unassign 1",
    ]


def test_lost_member_knows_nothing_until_assigned_again() -> None:
    consumer = Consumer()
    member = member_of(consumer)
    member._assigned(cast("Any", consumer), places(*range(PARTITIONS)))
    member._lost(cast("Any", consumer), places(*range(PARTITIONS)))
    assert not member.is_known
    assert not member.holds("orders")
    assert consumer.calls[-2:] == ["give up, lost: True, knows: False", "unassign 60"]
    member._assigned(cast("Any", consumer), [])
    assert member.is_known


def test_member_without_rights_has_all_names() -> None:
    member = member_of(Consumer())
    refused = cast("Any", KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(TopicbergError, match="refused the consumer group g") as raised:
        member._check(refused)
    member._hold_everything(raised.value)
    assert member.holds("orders")
    assert member.holds("trades")


def test_member_creates_a_deleted_topic_again() -> None:
    member = member_of(Consumer())
    member._check(cast("Any", KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    assert member._is_topicless
    assert not member._is_replaced


def test_member_tries_again_whatever_fails() -> None:
    member = member_of(Consumer())  # its endpoints have nothing of what it needs
    member.start()
    wait_until(lambda: member.error is not None, 10)
    assert "AttributeError" in str(member.error)
    assert member.is_alive()
    member.stop()
    assert not member.is_alive()
