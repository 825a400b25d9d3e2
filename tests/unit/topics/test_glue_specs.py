"""Specs of topics whose schemas are in AWS Glue: what they say, and what is read for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import yaml
from glue_records import REGISTRY, GlueRegistry, glue_record
from memory_kafka import MemoryKafka, topic_of
from specs import Project, minimal
from strict_aws import strict_aws

from topicberg.errors import SpecError
from topicberg.kafka.discovery import discover
from topicberg.kafka.schemas import why_no_files
from topicberg.settings import Settings
from topicberg.topics import check_topics, load_topic
from topicberg.topics.discovery import FoundTopic, read_discovery
from topicberg.topics.new import new_topic_from_kafka

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def registry() -> Iterator[GlueRegistry]:
    with strict_aws() as account:
        yield GlueRegistry(account)


def glue(**more: Any) -> dict[str, Any]:
    return {"format": "avro", "framing": "glue", **more}


def problems(project: Project, config: Settings | None = None, **fields: Any) -> list[str]:
    project.topic(minimal(**fields))
    return [f"{one.field}: {one.reason}" for one in check_topics(config or project.config)[1]]


def test_spec_names_the_schema_or_uses_the_topics_name(project: Project) -> None:
    assert not problems(project, schema=glue(), key=glue(subject="trade-key"))
    spec = load_topic("trades", project.config)
    assert (spec.value_subject, spec.key_subject) == ("trades", "trade-key")
    assert not list(spec.schema_files(project.config))
    assert "AWS Glue, which topicberg only reads" in why_no_files(spec)
    assert spec.unknown_schemas(project.config) == ["trades", "trade-key"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"schema": glue(file="trades.avsc")},
            "schema.file: is not for framing glue: producers register the schema in AWS Glue",
        ),
        (
            {"schema": glue(), "key": glue(subject="k", compatibility="FULL")},
            "key.compatibility: is not for framing glue",
        ),
        ({"schema": glue(subject=":.eu:orders")}, 'schema.subject: ":.eu:orders" is no name'),
        ({"schema": glue(subject="s", version=3)}, "schema.version: is only for framing none"),
        (
            {"schema": glue(), "key": glue()},
            "key.subject: keys and values cannot both have the schema trades of AWS Glue",
        ),
        (
            {"schema": {"format": "text", "framing": "glue"}},
            "schema.framing: format text has no schema that a record could name",
        ),
        (
            {"schema": glue(), "publishes": "orders_by_day"},
            "schema.framing: is glue, but topicberg writes the topic",
        ),
        (
            {"schema": glue(), "generator": {"kind": "stock_trades"}},
            "schema.framing: is glue, but topicberg writes the topic",
        ),
        (
            {"schema": glue(file="trades.avsc"), "external": True},
            "schema.file: is not for framing glue",
        ),
    ],
)
def test_spec_that_topicberg_would_have_to_register_is_refused(
    project: Project, fields: dict[str, Any], expected: str
) -> None:
    found = problems(project, **fields)
    assert any(one.startswith(expected) for one in found), found


def test_confluents_tableflow_cannot_read_such_a_topic(project: Project) -> None:
    config = project.config.model_copy(update={"deployment": "cloud", "tableflow": "confluent"})
    (one,) = problems(project, config, schema=glue())
    assert one.startswith("schema.framing: glue is only for topicberg's engine: Confluent's Table")
    own = config.model_copy(update={"tableflow": "topicberg"})
    assert not problems(project, own, schema=glue())


@pytest.fixture
def endpoints(registry: GlueRegistry, monkeypatch: pytest.MonkeyPatch) -> Any:
    topics = {"trades": topic_of(3), "web.a": topic_of(), "web.b": topic_of()}
    broker = MemoryKafka(topics).serve(monkeypatch)
    return SimpleNamespace(
        **vars(broker.endpoints),
        boto3=lambda *_: registry.client,
        schema_registry_client=lambda: SimpleNamespace(get_subjects=list),  # no one may ask it
    )


def test_columns_of_a_spec_are_those_of_the_newest_version(
    project: Project, registry: GlueRegistry, endpoints: Any
) -> None:
    registry.register("trades", "avro", ORDER)
    assert not problems(project, schema=glue(), table={"partitioning": ["bucket[2](other)"]})
    discover(endpoints, project.config)
    (one,) = check_topics(project.config)[1]
    assert "the table has no column other" in one.reason
    assert not problems(project, schema=glue(), table={"partitioning": ["bucket[2](id)"]})


def test_pattern_gives_its_topics_the_framing(
    project: Project, registry: GlueRegistry, endpoints: Any
) -> None:
    registry.register("web.a", "avro", ORDER)
    registry.register("shared-key", "json", '{"type": "object", "properties": {"k": {}}}')
    defaults = {"schema": {"framing": "glue"}, "key": {"framing": "glue", "subject": "shared-key"}}
    project.topic({"topics": {"match": "web.*", "defaults": defaults}}, "web.yaml")
    discover(endpoints, project.config)
    specs, found = check_topics(project.config)
    (spec,) = [one for one in specs if one.name == "web.a"]
    assert (spec.value_schema.format, spec.value_schema.framing) == ("avro", "glue")
    assert (spec.key.format, spec.key_subject) == ("json", "shared-key")
    assert list(spec.columns(project.config))[:2] == ["k", "id"]
    (one,) = found
    assert "AWS Glue has no available schema web.b" in one.reason
    assert read_discovery(project.config).topics["web.b"].value is None


def test_new_spec_names_the_schema_of_the_newest_record(
    project: Project, registry: GlueRegistry
) -> None:
    version = registry.register("orders-of-shop", "avro", ORDER)
    key = registry.register("orders-key", "json", '{"type": "object"}')
    record = glue_record(key, b"{}"), glue_record(version, b"\2")
    has = FoundTopic(partitions=3, is_compacted=True)
    find = registry.reader().version
    (path,), notes = new_topic_from_kafka(
        "orders", [record], "shop", project.config, has, find, is_enabled=True
    )
    document = yaml.safe_load(path.read_text())
    assert document["schema"] == {"framing": "glue", "format": "avro", "subject": "orders-of-shop"}
    assert document["key"] == {"framing": "glue", "format": "json", "subject": "orders-key"}
    assert (document["external"], document["write_mode"]) == (True, "upsert")
    assert notes[0] == "the values name version 1 of the schema orders-of-shop in AWS Glue"
    assert load_topic("orders", project.config).value_subject == "orders-of-shop"


def test_new_spec_of_the_topics_own_schema_has_text_as_keys(
    project: Project, registry: GlueRegistry
) -> None:
    version = registry.register("orders", "avro", ORDER)
    (path,), _ = new_topic_from_kafka(
        "orders",
        [(b"k1", glue_record(version, b"\2", is_compressed=True))],
        "shop",
        project.config,
        FoundTopic(partitions=3),
        registry.reader().version,
        is_enabled=False,
    )
    document = yaml.safe_load(path.read_text())
    assert document["schema"] == {"framing": "glue", "format": "avro"}
    assert document["key"] == {"format": "string"}


def test_new_spec_of_an_unknown_version_is_refused(
    project: Project, registry: GlueRegistry
) -> None:
    record = [(None, glue_record(UUID(int=5), b"\2"))]
    has = FoundTopic(partitions=3)
    given = record, "shop", project.config, has
    with pytest.raises(SpecError, match="which AWS Glue Schema Registry does not have in us-east"):
        new_topic_from_kafka("orders", *given, registry.reader().version, is_enabled=False)
    version = registry.register("orders", "avro", ORDER)
    config = project.config.model_copy(update={"glue_schema_registry": "team"})
    with pytest.raises(SpecError, match=f"of the registry {REGISTRY} of AWS Glue, not of team"):
        new_topic_from_kafka(
            "orders",
            [(None, glue_record(version, b"\2"))],
            "shop",
            config,
            has,
            registry.reader().version,
            is_enabled=False,
        )
