"""Discovery of topics by pattern: what one topic that cannot be read does to the others."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from topicberg import kafka
from topicberg.errors import TopicbergError, UnreachableError
from topicberg.kafka import discovery
from topicberg.kafka.discovery import Discoverer, discover, find_topic, find_topics
from topicberg.logins.kafka import KafkaLogin
from topicberg.settings import Settings
from topicberg.topics.discovery import read_discovery
from topicberg.topics.new import new_topics

SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'


class Services:
    """Kafka and the schema registry: topic → its configuration or an error, and its schema."""

    kafka_bootstrap, kafka_login = "127.0.0.1:1", KafkaLogin()

    def __init__(self, *names: str) -> None:
        self.configs: dict[str, dict[str, str] | int] = {name: {} for name in names}
        self.schemas: dict[str, str] = dict.fromkeys(names, SCHEMA)

    def list_topics(self, timeout: float) -> Any:
        one = SimpleNamespace(partitions={0: 0}, error=None)
        return SimpleNamespace(topics=dict.fromkeys(self.configs, one))

    def describe_configs(self, resources: Any, request_timeout: float) -> dict[Any, Future[Any]]:
        return {resource: self._described(resource.name) for resource in resources}

    def _described(self, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(config := self.configs[name], int):
            future.set_exception(KafkaException(KafkaError(config)))
        else:
            entries = {key: SimpleNamespace(value=value) for key, value in config.items()}
            future.set_result(entries)
        return future

    def schema_registry_client(self) -> Services:
        return self

    def get_subjects(self) -> list[str]:
        return [f"{name}-value" for name in self.schemas]

    def get_latest_version(self, subject: str) -> Any:
        text = self.schemas[subject.removesuffix("-value")]
        schema = SimpleNamespace(schema_type="AVRO", schema_str=text, references=[])
        return SimpleNamespace(schema=schema, version=1)


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    config = Settings(project_root=tmp_path, state_dir=tmp_path / "state")
    config.topics_dir.mkdir(parents=True)
    config.schemas_dir.mkdir(parents=True)
    (config.topics_dir / "web.yaml").write_text("topics: {match: 'web.*'}\n")
    return config


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Services:
    services = Services("web.a", "web.b")
    monkeypatch.setattr(kafka, "admin_client", lambda *_, **__: services)
    monkeypatch.setattr(kafka, "_login_error", lambda *_: None)
    return services


def test_topic_without_rights_stops_no_other(config: Settings, services: Services) -> None:
    endpoints = cast(Any, services)
    services.configs["web.b"] = KafkaError.TOPIC_AUTHORIZATION_FAILED
    discover(endpoints, config)
    topics = read_discovery(config).topics
    assert topics["web.a"].value is not None
    assert "describe the configuration of web.b" in (topics["web.b"].problem or "")
    services.configs["web.b"] = {"cleanup.policy": "compact"}
    discover(endpoints, config, sweep=0)
    found = read_discovery(config).topics["web.b"]
    assert (found.problem, found.is_compacted) == (None, True)


def test_topic_without_rights_is_left_out_of_new_specs(
    config: Settings, services: Services
) -> None:
    endpoints = cast(Any, services)
    (config.topics_dir / "web.yaml").unlink()
    services.configs["web.b"] = KafkaError.TOPIC_AUTHORIZATION_FAILED
    found, _ = find_topics("web.*", endpoints, config)
    made, refused = new_topics(found, lambda _: "web", endpoints, config)
    assert made == ["web.a"]
    assert "describe the configuration of web.b" in refused["web.b"]
    with pytest.raises(TopicbergError, match=r"describe the configuration of web.b"):
        find_topic("web.b", endpoints)


@pytest.mark.parametrize(("name", "text"), [("web.c", "\ud800"), ("web." + "x" * 245, SCHEMA)])
def test_topic_whose_schema_cannot_be_written_stops_no_other(
    config: Settings, services: Services, name: str, text: str
) -> None:
    services.configs[name], services.schemas[name] = {}, text
    discover(cast(Any, services), config)
    topics = read_discovery(config).topics
    assert topics["web.a"].problem is None
    assert topics[name].problem is not None


def test_topic_that_was_known_stays_as_it_was(config: Settings, services: Services) -> None:
    discover(cast(Any, services), config)
    services.configs["web.b"] = KafkaError.TOPIC_AUTHORIZATION_FAILED
    discover(cast(Any, services), config)
    found = read_discovery(config).topics["web.b"]
    assert found.problem is None
    assert found.value is not None


def test_broker_without_an_answer_keeps_the_last_discovery(
    config: Settings, services: Services
) -> None:
    services.configs["web.b"] = KafkaError._TRANSPORT
    with pytest.raises(UnreachableError):
        discover(cast(Any, services), config)
    assert read_discovery(config).topics == {}


def test_discoverer_survives_an_unexpected_error(
    config: Settings, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def fails(*_: Any) -> None:
        attempts.append(1)
        if len(attempts) == 2:
            discoverer.stop()
        raise TypeError

    monkeypatch.setattr(discovery, "discover", fails)
    monkeypatch.setattr(discovery, "INTERVAL_SECONDS", 0.0)
    discoverer = Discoverer(cast(Any, services), config)
    discoverer.start()
    discoverer.join(10)
    assert len(attempts) == 2
