"""Which keys a rotation makes and deletes, over any sequence of rotations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from record_pages import InMemory

from topicberg.clients import rsa
from topicberg.clients.secrets import active_slot
from topicberg.errors import TopicbergError
from topicberg_deploy.confluent.keys import RotatingKey
from topicberg_deploy.context import DeployContext
from topicberg_deploy.record import CreationRecord
from topicberg_deploy.resource import Live, Resource
from topicberg_deploy.rotate import decide, rotate

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def test_a_young_key_stays() -> None:
    assert decide({"a": START}, START + 29 * DAY, 30 * DAY, 2) == (False, [])


def test_on_its_day_a_key_gets_a_successor_and_stays() -> None:
    assert decide({"a": START}, START + 30 * DAY, 30 * DAY, 2) == (True, [])


def test_the_key_before_the_last_one_goes_when_the_next_one_comes() -> None:
    keys = {"b": START + 30 * DAY, "a": START}
    assert decide(keys, START + 60 * DAY, 30 * DAY, 2) == (True, ["a"])


def test_rotating_by_hand_deletes_nothing_that_a_consumer_may_hold() -> None:
    keys = {name: START + n * timedelta(minutes=1) for n, name in enumerate("abc")}
    assert decide(keys, START + timedelta(hours=1), 30 * DAY, 2, force=True) == (True, [])


@given(
    steps=st.lists(st.tuples(st.integers(0, 40 * 24), st.booleans()), max_size=40),
    period_days=st.integers(1, 60),
    retain=st.integers(2, 5),
)
def test_any_sequence(steps: list[tuple[int, bool]], period_days: int, retain: int) -> None:
    """Hours until the next run, and whether it is forced."""
    period = timedelta(days=period_days)
    now, number = START, 0
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
        too_many = [
            key
            for key in sorted(keys, key=keys.__getitem__, reverse=True)[retain:]
            if now - superseded[key] >= period + timedelta(seconds=1)
        ]
        assert not too_many


def test_a_new_pair_takes_the_other_slot() -> None:
    first, second = rsa.generate(), rsa.generate()
    values = rsa.with_pair({"snowflake_service_user": "U"}, 1, first)
    assert active_slot(values) == 1
    values = rsa.with_pair(values, 2, second)
    assert active_slot(values) == 2
    assert rsa.private_key(values) == second.private
    assert rsa.public_key(values, 1) == first.public
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
