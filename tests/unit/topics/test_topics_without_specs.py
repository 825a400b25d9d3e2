"""What a topic without a spec is: one rule for patterns, `new`, `enable` and `peek`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from memory_kafka import MemoryKafka, topic_of

from topicberg import peek
from topicberg.errors import SpecError
from topicberg.kafka import discovery
from topicberg.settings import Settings
from topicberg.tableflow.service import control
from topicberg.topics import TopicSpec, check_topics, load_topic, requests
from topicberg.topics.discovery import (
    Discovery,
    FoundSchema,
    FoundTopic,
    found_document,
    write_discovery,
)
from topicberg.topics.new import new_external_topic, new_pattern, new_topics

FORMATS = ("avro", "json", "protobuf")
CASES = [
    (value, key, is_compacted, is_envelope)
    for value, key, is_compacted, is_envelope in product(
        FORMATS, (None, *FORMATS), (False, True), (False, True)
    )
    if not (is_envelope and value == "protobuf")
]


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    for folder in ("topics", "schemas"):
        (tmp_path / folder).mkdir(parents=True)
    return Settings(project_root=tmp_path, state_dir=tmp_path / "state", tableflow="topicberg")


def topic(value: str, key: str | None, is_compacted: bool, is_envelope: bool) -> FoundTopic:
    document: dict[str, Any] = {"partitions": 7, "is_compacted": is_compacted}
    document["value"] = {"format": value, "version": 1, "is_envelope": is_envelope}
    document["key"] = None if key is None else {"format": key, "version": 1}
    return FoundTopic.model_validate(document)


def facts(spec: TopicSpec) -> tuple[object, ...]:
    return (
        *(spec.value_schema, spec.key, spec.changelog, spec.write_mode),
        *(spec.external, spec.partitions),
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_topic_is_the_same_wherever_it_has_no_spec(
    case: tuple[str, str | None, bool, bool], config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, key, is_compacted, is_envelope = case
    found = topic(*case)
    is_change_with_other_key = is_envelope and key not in (None, "avro", "json")
    expected_key = key or ("none" if is_envelope else "bytes")
    is_upsert = key == value if is_envelope else is_compacted

    enabled = control.enable(config, "orders", discovered=found, command=True)
    assert (enabled.value_schema.format, enabled.key.format) == (value, expected_key)
    assert enabled.write_mode == ("upsert" if is_upsert else "append")
    assert (enabled.changelog is not None) == is_envelope
    assert control.enabled_topics(config)["orders"] == enabled
    control.disable(config, "orders")

    broker = MemoryKafka({"orders": topic_of()}).serve(monkeypatch)
    monkeypatch.setattr(discovery, "find_topic", lambda *_: found)
    requests.requests_folder(config).joinpath("orders.json").unlink()
    assert facts(peek._spec("orders", broker.endpoints, config)) == facts(enabled)

    write_discovery(config, Discovery(topics={"orders": found}))
    path = new_pattern("all", "*", "shop", config, is_enabled=True)
    specs, problems = check_topics(config)
    if is_change_with_other_key:
        assert "the keys of a changelog are avro or json" in str(problems[0])
        return
    assert facts(specs[0]) == facts(enabled)
    path.unlink()

    new_external_topic("orders", found, "shop", config, is_enabled=False)
    written = load_topic("orders", config)
    assert facts(written) == facts(enabled)
    assert not written.tableflow.enabled, "before the file is reviewed"
    assert control.enabled_topics(config) == {}


def test_topic_without_schema_of_values_is_refused_everywhere(config: Settings) -> None:
    found = FoundTopic(partitions=1, key=FoundSchema(format="avro", version=1))
    assert found_document("orders", found, "shop", own_engine=True) is None
    with pytest.raises(SpecError, match="the registry has no subject orders-value"):
        control.enable(config, "orders", discovered=found, command=True)
    assert requests.read_request(config, "orders") is None
    with pytest.raises(SpecError, match="the registry has no subject orders-value"):
        new_external_topic("orders", found, "shop", config, is_enabled=False)
    made, refused = new_topics({"orders": found}, lambda _: "shop", config, is_enabled=False)
    assert (made, list(refused)) == ([], ["orders"])
    assert list(config.topics_dir.iterdir()) == []


def test_topic_stays_what_it_was_until_its_table_is_dropped(config: Settings) -> None:
    """Also with a key that was registered since, and after later commands."""
    first = control.enable(
        config, "orders", discovered=topic("avro", None, True, False), command=True
    )
    later = topic("avro", "avro", True, False)
    again = control.enable(config, "orders", {"error_handling": {"mode": "SKIP"}}, command=True)
    assert facts(again) == facts(first)
    control.disable(config, "orders")
    assert facts(control.enable(config, "orders", command=True)) == facts(first)
    control.table_dropped(config, "orders")
    assert control.needs_look(config, "orders")
    assert control.enable(config, "orders", discovered=later, command=True).key.format == "avro"


def test_write_mode_of_the_command_wins(config: Settings) -> None:
    found = topic("avro", None, True, False)
    assert control.enable(config, "orders", None, "append", discovered=found).write_mode == "append"


def test_new_topics_are_enabled_only_if_requested(config: Settings) -> None:
    found = {"orders": topic("avro", None, False, False)}
    new_topics(found, lambda _: "shop", config, is_enabled=True)
    assert control.enabled_topics(config).keys() == {"orders"}
    (config.topics_dir / "orders.yaml").unlink()
    write_discovery(config, Discovery(topics=found))
    path = new_pattern("all", "*", "shop", config, is_enabled=False)
    assert [spec.name for spec in check_topics(config)[0]] == ["orders"]
    assert control.enabled_topics(config) == {}
    path.unlink()
    new_pattern("all", "*", "shop", config, is_enabled=True)
    assert control.enabled_topics(config).keys() == {"orders"}
