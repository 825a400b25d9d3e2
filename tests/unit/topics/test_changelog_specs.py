"""Specs of topics with the changes of a database's table, and of those with schemas in AWS Glue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import yaml
from debezium import ENVELOPE, KEY_SCHEMAS, captured_json, schemas
from glue_records import REGISTRY, GlueRegistry, glue_record
from memory_kafka import MemoryKafka, topic_of
from plain_topics import no_glue
from specs import Project, minimal
from strict_aws import strict_aws

from topicberg.errors import SpecError
from topicberg.formats.json.connect import json_schema, opening
from topicberg.kafka.discovery import discover
from topicberg.kafka.schemas import why_no_files
from topicberg.settings import Settings
from topicberg.tableflow.changelog.changes import envelope
from topicberg.tableflow.changelog.fold_state import (
    Deletion,
    FoldState,
    is_repetition,
    order_of,
    precedes,
)
from topicberg.tableflow.layout.layout import read_layout, row_columns, table_schema
from topicberg.topics import check_topics, load_topic
from topicberg.topics.discovery import FoundTopic, read_discovery
from topicberg.topics.new import inferred_schema, is_envelope, new_topic_from_kafka

ORDERS, TRANSACTION, MESSAGE = 24, 35, 58


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def changes(project: Project, **fields: Any) -> None:
    project.schema("changes.avsc", json.dumps(ENVELOPE))
    project.schema("key.avsc", json.dumps(KEY_SCHEMAS[0]))
    given = {
        "schema": {"format": "avro", "file": "changes.avsc"},
        "key": {"format": "avro", "file": "key.avsc"},
        "changelog": {"format": "debezium"},
        "write_mode": "upsert",
        **fields,
    }
    project.topic(minimal(**given))


def test_changelog_upsert_has_the_columns_of_the_row(project: Project) -> None:
    changes(project)
    spec = load_topic("trades", project.config)
    columns = list(spec.columns(project.config))
    assert columns[:3] == ["id", "v", "big"]
    assert columns[-2:] == ["$$source-timestamp", "$$source-position"]
    assert spec.cleanup_policy == "delete"


def test_changelog_append_has_both_rows(project: Project) -> None:
    changes(project, write_mode="append", key={"format": "none"})
    columns = load_topic("trades", project.config).columns(project.config)
    assert {columns["before"], columns["after"]} == {"struct"}
    assert columns["$$op"] == "string"


@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete"])
def test_changelog_any_cleanup_policy_is_valid(project: Project, policy: str) -> None:
    changes(project, topic_config={"cleanup.policy": policy})
    assert load_topic("trades", project.config).cleanup_policy == policy


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"key": {"format": "none"}}, "write_mode: upsert of a changelog needs key.format avro"),
        ({"key": {"format": "string"}}, "key.format: is string; the keys of a changelog are avro"),
        ({"changelog": {"format": "maxwell"}}, "changelog.format"),
        ({"changelog": {"format": "debezium", "columns": ["lsn"]}}, "changelog.columns"),
        ({"schema": {"format": "none"}}, "schema.format: is none; a changelog is read as avro"),
        ({"generator": {"kind": "stock_trades"}}, "generator: a changelog is written by Debezium"),
    ],
)
def test_changelog_that_does_not_fit_is_refused(
    project: Project, fields: dict[str, Any], expected: str
) -> None:
    changes(project, **fields)
    with pytest.raises(SpecError, match=expected):
        load_topic("trades", project.config)


def test_changelog_without_envelope_is_refused(project: Project) -> None:
    project.schema("row.avsc", json.dumps(KEY_SCHEMAS[0]))
    changes(project, schema={"format": "avro", "file": "row.avsc"})
    with pytest.raises(SpecError, match="not Debezium's envelope of a table's changes"):
        load_topic("trades", project.config)


@pytest.mark.parametrize(
    ("number", "expected"), [(ORDERS, True), (TRANSACTION, False), (MESSAGE, False)]
)
def test_envelope_captured_schema_is_recognized(number: int, expected: bool) -> None:
    assert is_envelope(json.dumps(schemas()[number])) is expected


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "record", "name": "R", "fields": [], "properties": 5}',
        '{"type": "record", "name": "R", "fields": 5}',
        '{"type": "record", "name": "R", "fields": [{"name": ["before"]}]}',
        '{"properties": [{}]}',
        "[" * 10_000 + "]" * 10_000,
    ],
    ids=["other properties", "no list", "no name", "no object", "deep"],
)
def test_envelope_schema_of_another_shape_is_none(text: str) -> None:
    assert not is_envelope(text)


@pytest.mark.parametrize(
    ("earlier", "later", "repeats"),
    [
        ((1_000, 900), (2_000, 5), False),  # after a failover, positions may start again lower
        ((1_000, None), (1_000, "0000002a:01"), True),
    ],
)
def test_order_is_that_of_time_then_position(earlier: Any, later: Any, repeats: bool) -> None:
    one, other = order_of(*earlier), order_of(*later)
    assert one is not None
    assert other is not None
    assert one < other
    assert precedes(one, other)
    assert (is_repetition(one, other), is_repetition(other, one)) == (repeats, False)
    assert order_of(None, None) is None


def test_state_of_unreadable_property_is_empty() -> None:
    state = FoldState(deletes={"k": Deletion(partition=1, micros=2, position=3)})
    assert FoldState.load({"topicberg.changelog": state.model_dump_json()}) == state
    assert FoldState.load({"topicberg.changelog": "nonsense"}) == FoldState()


def test_changelog_in_json_has_the_columns_of_the_row(project: Project) -> None:
    """The schema is what a connector writes into each record."""
    record, *_ = captured_json("djsons.shop.orders")
    for file, raw in (("changes.json", record.value), ("key.json", record.key)):
        begin = opening(raw or b"")
        assert begin.schema is not None
        project.schema(file, json_schema(begin.schema))
    changes(
        project,
        schema={"format": "json", "file": "changes.json"},
        key={"format": "json", "file": "key.json"},
    )
    columns = load_topic("trades", project.config).columns(project.config)
    assert {name: columns[name] for name in ("region", "no", "qty", "note")} == {
        "region": "string",
        "no": "int",
        "qty": "int",
        "note": "string",
    }


def test_inferred_schema_has_the_types_of_all_records() -> None:
    values = [one.value for one in captured_json("djson.shop.customers") if one.value]
    text, untyped = inferred_schema(values, "Envelope")
    assert is_envelope(text)
    row = json.loads(text)["properties"]["after"]["properties"]
    assert row == json.loads(text)["properties"]["before"]["properties"]
    assert row["id"] == {"type": ["null", "integer"]}
    assert row["bio"] == {"type": ["null", "string"]}
    assert row["arr"] == {"type": "array", "items": {"type": ["null", "integer"]}}
    assert untyped == ["pt.srid"]


@pytest.mark.parametrize("raw", [b"1", b"nonsense", b"\xff", b"[1]"])
def test_inferred_schema_of_other_records_is_refused(raw: bytes) -> None:
    with pytest.raises(SpecError, match="nor JSON objects"):
        inferred_schema([raw], "Envelope")


def test_new_topic_of_json_with_schemas_keeps_current_rows(project: Project) -> None:
    records = captured_json("djsons.shop.orders")
    read = [(one.key, one.value) for one in records]
    has = FoundTopic(partitions=3, is_compacted=True)
    (spec_file, *_), notes = new_topic_from_kafka(
        "shop.orders", read, "shop", project.config, has, no_glue, is_enabled=False
    )
    document = yaml.safe_load(spec_file.read_text())
    assert document["partitions"] == 3
    assert document["changelog"] == {"format": "debezium"}
    assert document["write_mode"] == "upsert"
    assert document["tableflow"] == {"enabled": False}
    assert document["schema"]["format"] == document["key"]["format"] == "json"
    assert "a schema of Kafka Connect in each record" in notes[0]


def test_new_topic_of_other_json_with_schemas_is_refused(project: Project) -> None:
    record = b'{"schema": {"type": "struct", "fields": []}, "payload": {"a": 1}}'
    found = FoundTopic(partitions=3, is_compacted=False)
    given = "shop.orders", [(None, record)], "shop", project.config, found, no_glue
    with pytest.raises(SpecError, match="not Debezium's envelope"):
        new_topic_from_kafka(*given, is_enabled=False)


@pytest.mark.parametrize("sparse", [{"1": "a"}, {"A": 1, "a": 2}, {"": 1}, [[1, "a"]]], ids=str)
def test_new_topic_of_json_without_schemas_is_valid(project: Project, sparse: Any) -> None:
    """A transaction that is null has no type, and one column's values are maps of any names."""
    source = {"ts_ms": 1, "lsn": 1, "snapshot": "false", "sequence": None}
    read = [
        (
            json.dumps({"id": number}).encode(),
            json.dumps(
                {
                    "before": None,
                    "after": {"id": number, "m": sparse if number == 3 else None},
                    "source": source,
                    "op": "c",
                    "transaction": None,
                }
            ).encode(),
        )
        for number in range(9)
    ]
    has = FoundTopic(partitions=3, is_compacted=False)
    new_topic_from_kafka("shop.m", read, "shop", project.config, has, no_glue, is_enabled=True)
    assert load_topic("shop.m", project.config).columns(project.config)["m"] in ("string", "list")
    written = json.loads((project.config.schemas_dir / "shop.m.json").read_text())
    assert written["properties"]["transaction"]["type"] == ["null", "object"]


def test_envelope_without_type_of_transaction_is_read(project: Project) -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}}}
    source = {"type": "object", "properties": {"lsn": {"type": "integer"}}}
    parts = {"after": row, "source": source, "op": {"type": "string"}, "transaction": {}}
    schema = {"type": "object", "properties": parts, "title": "e"}
    project.schema("changes.json", json.dumps(schema))
    own = {"format": "json", "file": "changes.json", "framing": "none"}
    changes(project, schema=own, write_mode="append", key={"format": "none"})
    spec = load_topic("trades", project.config)
    layout = read_layout(spec, cast("Any", None), project.config)
    rows = row_columns(spec, table_schema(spec, layout).fields)
    assert "transaction" not in [part.name for part in envelope(layout, rows)]


ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


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
    has, find = FoundTopic(partitions=3, is_compacted=True), registry.reader().version
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
    record, has = [(None, glue_record(UUID(int=5), b"\2"))], FoundTopic(partitions=3)
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
