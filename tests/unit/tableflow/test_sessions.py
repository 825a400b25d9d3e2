"""Spark's sessions that topics share."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from clocks import Clock

from topicberg.errors import TopicbergError
from topicberg.tableflow.decode import sessions
from topicberg.tableflow.decode.sessions import IDLE_SECONDS, Sessions

URL, LOGIN = "sc://127.0.0.1:1", {"a login": "of this session"}


class Spark:
    """Spark, as far as sessions need it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.stopped, self.tried = list[Any](), list[int](), list[Any]()
        self.renew_at: float | None = None
        self.is_shipped = True
        self.lack: TopicbergError | None = None
        monkeypatch.setattr(sessions, "new_session", self.new)
        monkeypatch.setattr(sessions, "check_spark", lambda _: None)
        monkeypatch.setattr(sessions, "check_workers", self.check)

    def new(self, _: str, conf: dict[str, str]) -> Any:
        assert conf in ({}, LOGIN)
        self.made.append(SimpleNamespace(stop=partial(self.stopped.append, len(self.made))))
        return self.made[-1]

    def login(self) -> tuple[dict[str, str], float | None]:
        return LOGIN, self.renew_at

    def check(self, session: Any, _: int) -> bool:
        self.tried.append(session)
        if self.lack is not None:
            raise self.lack
        return self.is_shipped


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(monkeypatch)


def test_each_session_is_sent_topicberg_if_workers_lack_it(spark: Spark) -> None:
    pool = Sessions(URL, spark.login, 0)
    first, second, third = (spark.new("", {}) for _ in range(3))
    for session in (first, first, second, first, second):
        assert pool.check_workers(session) is None
    assert spark.tried == [first, second]
    # After Spark ended, its workers may have it, or no memory.
    pool.discard(None, others=True)
    spark.is_shipped = False
    for session in (first, third, second):
        assert pool.check_workers(session) is None
    assert spark.tried[2:] == [first]
    pool.discard(None, others=True)
    spark.lack = TopicbergError("they have no memory")
    for session in (third, first, third):
        assert pool.check_workers(session) is spark.lack
    assert spark.tried[3:] == [third]


def test_free_session_serves_the_next_topic(spark: Spark, clock: Clock) -> None:
    made, stopped = spark.made, spark.stopped
    pool = Sessions(URL, spark.login, 0)
    first, second = pool.take(), pool.take()
    assert first is not second
    pool.give_back(first)
    assert pool.take() is first
    pool.give_back(first)
    pool.discard(second)
    assert stopped == [1]
    third = pool.take()
    assert third is first
    pool.give_back(first)
    # Spark ended during a batch of another session: this one is none of Spark's any more.
    lent = pool.take()
    assert lent is first
    pool.give_back(pool.take())
    pool.discard(None, others=True)
    assert stopped == [1, 2]
    pool.give_back(lent)
    assert stopped == [1, 2, 0]
    assert pool.take() is made[3]
    pool.give_back(made[3])
    clock.now += IDLE_SECONDS
    spark.renew_at = clock.now - 1
    assert pool.take() is made[4]
    assert stopped == [1, 2, 0, 3]
    pool.give_back(made[4])
    spark.renew_at = clock.now + 60
    assert pool.take() is made[5]
    pool.give_back(made[5])
    assert pool.take() is made[5]
