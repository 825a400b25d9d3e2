"""Discovery of topics by pattern: what one topic that cannot be read does to the others."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from memory_kafka import serve_clients

from topicberg.errors import TopicbergError, UnreachableError
from topicberg.kafka import discovery
from topicberg.kafka.discovery import discover, find_topic, find_topics, keep_discovering
from topicberg.logins.kafka import KafkaLogin
from topicberg.settings import Settings
from topicberg.topics import check_topics, load_topic
from topicberg.topics.discovery import FoundSchema, read_discovery
from topicberg.topics.new import new_external_topic, new_topics

SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'


class Services:
    """Kafka and the schema registry: topic → its configuration or an error, and its schema."""

    kafka_bootstrap, kafka_login = "127.0.0.1:1", KafkaLogin()

    def kafka_listener(self) -> tuple[str, KafkaLogin]:
        return self.kafka_bootstrap, self.kafka_login

    def __init__(self, *names: str) -> None:
        self.configs: dict[str, dict[str, str] | int] = {name: {} for name in names}
        self.schemas: dict[str, str] = dict.fromkeys(names, SCHEMA)
        self.others: dict[str, tuple[str, str]] = {}
        """Subject → type and text of its schema."""

    def list_topics(self, timeout: float) -> Any:
        one = SimpleNamespace(partitions={0: 0}, error=None)
        return SimpleNamespace(topics=dict.fromkeys(self.configs, one))

    def poll(self, _: float) -> None: ...

    def describe_configs(self, resources: Any, request_timeout: float) -> dict[Any, Future[Any]]:
        return {resource: self._described(resource.name) for resource in resources}

    def _described(self, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(config := self.configs[name], int):
            future.set_exception(KafkaException(KafkaError(config)))
        else:
            future.set_result({key: SimpleNamespace(value=value) for key, value in config.items()})
        return future

    def schema_registry_client(self) -> Services:
        return self

    def get_subjects(self) -> list[str]:
        return [*(f"{name}-value" for name in self.schemas), *self.others]

    def get_latest_version(self, subject: str) -> Any:
        kind, text = self.others.get(subject, ("AVRO", ""))
        text = text or self.schemas[subject.removesuffix("-value")]
        schema = SimpleNamespace(schema_type=kind, schema_str=text, references=[])
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
    serve_clients(monkeypatch, services)
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
    made, refused = new_topics(found, lambda _: "web", config, is_enabled=False)
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
    attempts, ended = [], threading.Event()

    class Failing(Services):
        def list_topics(self, timeout: float) -> Any:
            attempts.append(1)
            if len(attempts) == 2:
                ended.set()
            raise TypeError

    serve_clients(monkeypatch, Failing())
    monkeypatch.setattr(discovery, "INTERVAL_SECONDS", 0.0)
    keep_discovering(cast(Any, services), config, ended)
    assert len(attempts) == 2


def test_find_topic_returns_the_schemas_of_keys_and_values(services: Services) -> None:
    services.others["web.a-key"] = ("JSON", "{}")
    services.configs["web.a"] = {"cleanup.policy": "compact"}
    found = find_topic("web.a", cast(Any, services))
    assert (found.partitions, found.is_compacted) == (1, True)
    assert found.value == FoundSchema(format="avro", version=1)
    assert found.key == FoundSchema(format="json", version=1)
    assert find_topic("web.c", cast(Any, services)) is None


@pytest.mark.parametrize(
    ("subject", "keys", "expected"),
    [
        ("shipments-acme.Created", ["shipments-key"], "shipments-key"),
        ("eu.shipments-value", ["eu.shipments-key"], "eu.shipments-key"),
        ("eu.shipments-value", ["eu.shipments-key", "shipments-key"], "shipments-key"),
        ("shipments-acme.Created", [], None),
    ],
)
def test_spec_from_another_subject_names_it_and_the_subject_of_the_keys(
    config: Settings, services: Services, subject: str, keys: list[str], expected: str | None
) -> None:
    services.configs["shipments"] = {}
    services.others = {subject: ("AVRO", SCHEMA), **dict.fromkeys(keys, ("AVRO", '"string"'))}
    found = find_topic("shipments", cast(Any, services), subject)
    assert found is not None
    path = new_external_topic("shipments", found, "shop", config, is_enabled=False)
    spec = load_topic("shipments", config)
    assert (spec.external, spec.tableflow.enabled) == (True, False)
    assert spec.value_subject == subject
    assert spec.key.format == ("bytes" if expected is None else "avro")
    assert expected in (None, spec.key_subject)
    discover(cast(Any, services), config)
    assert (spec.unknown_schemas(config), spec.columns(config)["a"]) == ([], "int")
    assert path.read_text().count("file:") == 0


def test_schema_of_an_external_spec_with_a_subject_of_its_own_is_read(
    config: Settings, services: Services
) -> None:
    text = "{name: shipments, pipeline: shop, external: true, schema: {format: avro, subject: S}}"
    (config.topics_dir / "shipments.yaml").write_text(text)
    services.configs["shipments"], services.others = {}, {"S": ("AVRO", SCHEMA)}
    assert load_topic("shipments", config).unknown_schemas(config) == ["S"]
    discover(cast(Any, services), config)
    assert load_topic("shipments", config).columns(config)["a"] == "int"


@pytest.mark.parametrize(
    ("part", "text", "columns"),
    [
        ("key", '"string"', {"key": "string"}),
        ("key", '{"type": "long"}', {"key": "long"}),
        ("value", f'[{SCHEMA}, "string"]', {"value": "binary"}),
    ],
)
def test_columns_of_an_external_topic_are_those_of_its_table(
    config: Settings, services: Services, part: str, text: str, columns: dict[str, str]
) -> None:
    """Of keys that are no records, and of several event types: no reason to leave the topic out."""
    services.others[f"web.a-{part}"] = ("AVRO", text)
    services.schemas = {"web.a": SCHEMA} if part == "key" else {}
    discover(cast(Any, services), config)
    (spec,), problems = check_topics(config)
    assert (spec.name, [str(one) for one in problems if "web.b" not in str(one)]) == ("web.a", [])
    assert spec.columns(config).items() >= columns.items()
