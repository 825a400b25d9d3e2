"""The engine's process when keys of its deployment are replaced."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pydantic import SecretStr

from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.errors import TopicbergError
from topicberg.kafka.group import Member
from topicberg.logins.kafka import KafkaLogin
from topicberg.settings import Settings
from topicberg.tableflow import service


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
    monkeypatch.setattr(Member, "start", lambda _: None)
    monkeypatch.setattr(Member, "stop", lambda _: None)
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
