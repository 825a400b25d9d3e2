"""The engine's process: when keys are replaced, and when what it needs does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from pydantic import SecretStr

from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.errors import TopicbergError, UnreachableError
from topicberg.kafka.group import GroupMember
from topicberg.logins.kafka import KafkaLogin
from topicberg.settings import Settings
from topicberg.tableflow import service, status
from topicberg.tableflow.status import Unavailable, read_status
from topicberg.topics import TopicSpec, load_topic


def endpoints(key: str) -> Endpoints:
    return Endpoints(
        kafka_bootstrap="127.0.0.1:1",
        kafka_login=KafkaLogin(api_key=key, api_secret=SecretStr("secret")),
        schema_registry="http://127.0.0.1:1",
        iceberg_rest="http://127.0.0.1:1",
        spark_connect="sc://127.0.0.1:1",
        snowflake=SnowflakeEndpoint(account="a", user="u", password=SecretStr("p")),
    )


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A deployment in the cloud whose keys are read without a pause, beside no other engine."""
    monkeypatch.setattr(service, "LOGINS_SECONDS", 0.0)
    monkeypatch.setattr(GroupMember, "start", lambda _: None)
    monkeypatch.setattr(GroupMember, "stop", lambda _: None)
    (tmp_path / "topics").mkdir(parents=True)
    return Settings(
        deployment="cloud",
        project_root=tmp_path,
        state_dir=tmp_path / "state",
        cluster_id="lkc-1",
        bucket="bucket",
    )


def test_engine_starts_again_with_the_key_of_a_rotation(
    deployment: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = iter(["old", "old", None, "new"])  # None: AWS does not answer

    def load(_: Settings) -> Endpoints:
        if (key := next(keys)) is None:
            raise TopicbergError("no answer")
        return endpoints(key)

    monkeypatch.setattr(service, "load_endpoints", load)
    assert service.serve(deployment, threading.Event())
    assert next(keys, "all were read") == "all were read"


def test_engine_that_is_stopped_does_not_start_again(
    deployment: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = threading.Event()
    keys = iter(["old", "new"])

    def load(_: Settings) -> Endpoints:
        if (key := next(keys)) == "new":
            stopping.set()
        return endpoints(key)

    monkeypatch.setattr(service, "load_endpoints", load)
    assert not service.serve(deployment, stopping)


@pytest.fixture
def topics(tmp_path: Path) -> tuple[Settings, dict[str, TopicSpec]]:
    config = Settings(state_dir=tmp_path)
    names = ("stock_trades", "sample_data_users")
    return config, {name: load_topic(name, config) for name in names}


def statuses(config: Settings, names: Iterable[str]) -> list[tuple[str, str | None]]:
    found = [read_status(config, name) for name in names]
    return [(status.phase, status.error_message) for status in found]


def test_engine_that_has_no_topics_yet_says_what_does_not_answer(
    topics: tuple[Settings, dict[str, TopicSpec]],
) -> None:
    """Kafka stopped before the engine knew which topics are its own."""
    config, specs = topics
    share = service._Share(endpoints("key"), config)
    share.converge(specs)
    assert statuses(config, specs) == [("PENDING", None)] * 2
    share.pool.miss(Unavailable("Kafka does not answer", 1), None)
    share.converge(specs)
    assert statuses(config, specs) == [("FAILED", "Kafka does not answer")] * 2
    share.member._set(frozenset(range(100)))
    share.converge(specs)  # Kafka answers the group, and nothing else yet
    assert share.pool.queue.topics.keys() == specs.keys()
    assert statuses(config, specs) == [("FAILED", "Kafka does not answer")] * 2
    share.pool.miss(None, None)
    assert statuses(config, specs) == [("PENDING", None)] * 2


def test_engine_that_has_no_topics_for_long_has_failed(
    topics: tuple[Settings, dict[str, TopicSpec]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, specs = topics
    share = service._Share(endpoints("key"), config)
    share.member.error = UnreachableError("no group")
    share.converge(specs)
    assert statuses(config, specs) == [("PENDING", "no group")] * 2
    monkeypatch.setattr(status, "PENDING_SECONDS", 0)
    share.converge(specs)
    assert statuses(config, specs) == [("FAILED", "no group")] * 2


def test_topic_of_a_changed_spec_still_misses_a_service(
    topics: tuple[Settings, dict[str, TopicSpec]],
) -> None:
    config, specs = topics
    share = service._Share(endpoints("key"), config)
    share.member._set(frozenset(range(100)))
    share.converge(specs)
    share.pool.miss(Unavailable("Kafka does not answer", 1), None)
    changed = {
        name: spec.model_copy(update={"pipeline": "changed"}) for name, spec in specs.items()
    }
    share.converge(changed)
    assert statuses(config, specs) == [("FAILED", "Kafka does not answer")] * 2
