"""Specs by pattern: which topics they are for, what each topic gets, and what is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_kafka import MemoryKafka, topic_of
from repository import PROJECT_ROOT

from topicberg.cli.topics import _new_from_kafka
from topicberg.errors import SpecError, StackError
from topicberg.kafka import topics as kafka
from topicberg.settings import Settings
from topicberg.tableflow.service import control
from topicberg.topics import check_topics
from topicberg.topics.discovery import (
    Discovery,
    FoundSchema,
    FoundTopic,
    index_file,
    read_discovery,
    schema_file,
    write_discovery,
)
from topicberg.topics.kept import build_with_kept
from topicberg.topics.loader import wanted_topics
from topicberg.topics.new import new_pattern
from topicberg.topics.patterns import TopicPattern

AVSC = (PROJECT_ROOT / "platform" / "schemas" / "stock_trades.avsc").read_text()
PATTERN = """\
topics:
  match: "orders.*"
  exclude: "*.dlq"
  defaults:
    pipeline: shop
    table: {partitioning: [hour($$timestamp)]}
    checks: {not_null: [symbol]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    for folder in ("topics", "schemas"):
        (tmp_path / folder).mkdir(parents=True)
    return Settings(project_root=tmp_path, state_dir=tmp_path / "state")


def write(config: Settings, name: str, text: str) -> None:
    (config.topics_dir / f"{name}.yaml").write_text(text)


def found(config: Settings, *names: str, **more: object) -> None:
    """Let these topics be those that were found, with a schema of their values."""
    fields = {"partitions": 3, "is_compacted": False, **more}
    fields.setdefault("value", FoundSchema(format="avro", version=1))
    topics = {name: FoundTopic.model_validate(fields) for name in names}
    write_discovery(config, Discovery(topics=read_discovery(config).topics | topics))
    for name in names:
        schema_file(config, name, "value", "avro").write_text(AVSC)


def test_new_pattern_while_the_stack_is_down_writes_no_file(config: Settings) -> None:
    """What was written would be in the way of the next try."""
    with pytest.raises(StackError):
        _new_from_kafka("shop", "orders.*", None, config, is_enabled=True)
    assert not [*config.topics_dir.iterdir()]


def test_pattern_gives_a_spec_to_each_topic_that_matches(config: Settings) -> None:
    write(config, "shop", PATTERN)
    found(config, "orders.eu", "orders.us", "orders.eu.dlq", "ordersx", "payments")
    found(config, "orders.now", is_compacted=True)
    specs, problems = check_topics(config)
    assert problems == []
    assert [spec.name for spec in specs] == ["orders.eu", "orders.now", "orders.us"]
    eu, now, _ = specs
    assert (eu.pipeline, eu.partitions, eu.write_mode) == ("shop", 3, "append")
    assert (eu.external, eu.value_schema.format, eu.value_schema.file) == (True, "avro", None)
    assert eu.columns(config)["symbol"] == "string"
    assert (now.write_mode, now.key.format) == ("upsert", "bytes")


def test_regular_expression_stands_between_slashes(config: Settings) -> None:
    write(config, "fleet", 'topics: {match: "/fleet_[0-9]+/"}')
    found(config, "fleet_1", "fleet_22", "fleet_x")
    assert [spec.name for spec in check_topics(config)[0]] == ["fleet_1", "fleet_22"]


def test_own_spec_of_a_topic_takes_precedence(config: Settings) -> None:
    write(config, "shop", PATTERN)
    write(config, "orders.eu", "{name: orders.eu, pipeline: own, schema: {format: none}}")
    write(config, "orders.us", "name: orders.us\npipeline: [\n")
    found(config, "orders.eu", "orders.us", "orders.asia")
    specs, problems = check_topics(config)
    assert {spec.name: spec.pipeline for spec in specs} == {
        "orders.asia": "shop",
        "orders.eu": "own",
    }
    assert {problem.file for problem in problems} == {"topics/orders.us.yaml"}


def test_topic_of_two_patterns_is_reported_alone(config: Settings) -> None:
    write(config, "shop", PATTERN)
    write(config, "west", 'topics: {match: ["*.eu", "*.us"], exclude: "orders.us"}')
    found(config, "orders.eu", "orders.us", "payments.eu")
    specs, (problem,) = check_topics(config)
    assert [spec.name for spec in specs] == ["orders.us", "payments.eu"]
    assert str(problem) == (
        "topics/shop.yaml: topic orders.eu: also matches topics/west.yaml: "
        "exclude it in all of them but one, or write orders.eu.yaml"
    )
    assert problem.names == {"orders.eu"}


@given(st.sampled_from(["_", "__", "topicberg."]), st.text("abc._-", max_size=8))
def test_internal_topics_never_match(prefix: str, rest: str) -> None:
    assert not TopicPattern.model_validate({"match": ["*", "/.*/"]}).matches(prefix + rest)


def test_dead_letter_topics_never_match(config: Settings) -> None:
    write(
        config,
        "all",
        'topics: {match: "*", defaults: {tableflow: {error_handling: '
        "{mode: LOG, target: shop_errors}}}}",
    )
    found(config, "orders", "error_log", "shop_errors")
    specs = {spec.name: spec for spec in check_topics(config)[0]}
    assert specs.keys() == {"orders", "shop_errors"}
    assert not specs["shop_errors"].external


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('topics: {match: "_*"}', "topics.match.0: '_*' can only match internal topics"),
        ('topics: {match: "/(/"}', "topics.match.0: '/(/' is not a regular expression"),
        ("topics: {matches: a}", "topics.matches: unknown field; did you mean match?"),
        ("topics: {match: a}\nname: a", "move name to topics.defaults"),
        (
            "topics: {match: a, defaults: {partitions: 3}}",
            "topics.defaults: partitions: the topics",
        ),
        ("topics: {match: a, defaults: {schema: {file: a.avsc}}}", "schema.file: the topics exist"),
        (
            "topics: {match: a, defaults: {write_mod: append}}",
            "topics.defaults.write_mod: unknown field; did you mean write_mode?",
        ),
        (
            "topics: {match: a, defaults: {tableflow: {retention_ms: 1}}}",
            "topics.defaults.tableflow.retention_ms: must be greater than or equal to 86400000",
        ),
    ],
)
def test_mistake_in_a_pattern_is_reported_once(config: Settings, text: str, reason: str) -> None:
    write(config, "shop", text)
    write(config, "mine", "{name: mine, pipeline: own, schema: {format: none}}")
    found(config, "a", "aa")
    specs, problems = check_topics(config)
    assert [spec.name for spec in specs] == ["mine"]
    assert any(reason in str(problem) for problem in problems)
    assert {problem.file for problem in problems} == {"topics/shop.yaml"}
    assert len(problems) <= 2


def test_topic_without_a_schema_is_left_out(config: Settings) -> None:
    write(config, "shop", PATTERN)
    found(config, "orders.eu")
    found(config, "orders.raw", value=None)
    specs, (problem,) = check_topics(config)
    assert [spec.name for spec in specs] == ["orders.eu"]
    assert "topic orders.raw: the registry has no subject orders.raw-value" in str(problem)
    write(config, "shop", 'topics: {match: "orders.*", defaults: {schema: {format: none}}}')
    specs, problems = check_topics(config)
    assert problems == []
    assert {spec.value_schema.format for spec in specs} == {"none"}


def test_one_topic_that_does_not_fit_stops_no_other(config: Settings) -> None:
    """Its schema lacks a column that the defaults name."""
    write(config, "shop", PATTERN)
    found(config, "orders.eu", "orders.us")
    other = '{"type": "record", "name": "O", "fields": [{"name": "n", "type": "int"}]}'
    schema_file(config, "orders.us", "value", "avro").write_text(other)
    specs, problems = check_topics(config)
    assert [spec.name for spec in specs] == ["orders.eu"]
    assert "topic orders.us: checks.not_null" in str(problems[0])
    assert control.usable_topics(config)[1].keys() == {"orders.us"}


def test_topic_that_cannot_be_read_is_reported(config: Settings) -> None:
    write(config, "shop", PATTERN)
    found(config, "orders.eu")
    found(config, "orders.us", problem="Kafka refused", value=None)
    specs, (problem,) = check_topics(config)
    assert [spec.name for spec in specs] == ["orders.eu"]
    assert str(problem) == "topics/shop.yaml: topic orders.us: Kafka refused"


@pytest.mark.parametrize("text", ["{", "[" * 10_000], ids=["no JSON", "deep"])
def test_unreadable_schema_of_one_topic_stops_no_other(config: Settings, text: str) -> None:
    write(config, "shop", PATTERN)
    found(config, "orders.eu", "orders.us")
    schema_file(config, "orders.us", "value", "avro").write_text(text)
    specs, wrong = control.usable_topics(config)
    assert (list(specs), list(wrong)) == (["orders.eu"], ["orders.us"])


def test_topics_that_would_be_one_table_concern_only_themselves(config: Settings) -> None:
    write(config, "shop", PATTERN)
    found(config, "orders.a.b", "orders.a_b", "orders.c")
    specs, (problem,) = check_topics(config)
    assert [spec.name for spec in specs] == ["orders.a.b", "orders.c"]
    assert "would be one table" in str(problem)
    write(config, "Orders.A-B", "name: Orders.A-B\npublishes: orders_by_day\nkey: {format: none}\n")
    assert any("orders.a.b and Orders.A-B of" in str(one) for one in check_topics(config)[1]), (
        "its table has another name in Snowflake, and the same one in Unity Catalog"
    )


def test_changes_of_a_database_become_current_rows(config: Settings) -> None:
    write(config, "shop", 'topics: {match: "shop.*"}')
    envelope = FoundSchema(format="avro", version=1, is_envelope=True)
    found(config, "shop.a", value=envelope, key=FoundSchema(format="avro", version=1))
    found(config, "shop.b", value=envelope)
    for name in ("shop.a", "shop.b"):
        schema_file(config, name, "value", "avro").unlink()
    a, b = check_topics(config)[0]
    assert a.changelog is not None
    assert (a.write_mode, b.write_mode) == ("upsert", "append")


def test_definitions_keep_a_topic_while_a_pattern_is_invalid(config: Settings) -> None:
    write(config, "shop", PATTERN)
    found(config, "orders.eu")
    assert build_with_kept(config, lambda known: [s.name for s in known.specs]) == ["orders.eu"]
    write(config, "west", 'topics: {match: "*.eu"}')
    known = build_with_kept(config, lambda known: known)
    assert [spec.name for spec in known.specs] == ["orders.eu"]
    assert "also matches" in (known.problem or "")


@pytest.mark.parametrize("text", ["topics: [\n", "topics: {match: 7}", "topics: {}"])
def test_invalid_pattern_takes_no_topic_away(config: Settings, text: str) -> None:
    """From the definitions, the engine, or the discovery."""
    write(config, "shop", PATTERN)
    write(config, "other", 'topics: {match: "payments.*"}')
    found(config, "orders.eu", "payments.eu")
    build_with_kept(config, lambda known: known)
    write(config, "shop", text)
    assert build_with_kept(config, lambda known: [s.name for s in known.specs]) == [
        "orders.eu",
        "payments.eu",
    ]
    usable, wrong = control.usable_topics(config)
    assert usable.keys() == {"payments.eu"}
    assert "orders.eu" in wrong
    wanted = wanted_topics(config, read_discovery(config).topics)
    assert "orders.eu" in wanted
    assert "orders.new" not in wanted


@pytest.mark.parametrize("damage", [b"{", b"\xff"])
def test_discovery_that_is_damaged_is_empty(config: Settings, damage: bytes) -> None:
    found(config, "orders.eu")
    index_file(config).write_bytes(damage)
    assert read_discovery(config) == Discovery()
    found(config, "orders.us")
    assert read_discovery(config).topics.keys() == {"orders.us"}


def test_engine_reads_a_new_discovery(config: Settings) -> None:
    write(config, "shop", PATTERN)
    requested = control.Requested(config)
    assert requested.topics()[0] == {}
    found(config, "orders.eu")
    assert requested.topics()[0].keys() == {"orders.eu"}


def test_external_topic_is_never_created(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write(config, "shop", PATTERN)
    found(config, "orders.eu")
    (spec,) = check_topics(config)[0]
    broker = MemoryKafka({"orders.eu": topic_of(3)}).serve(monkeypatch)  # refuses any change
    assert not kafka.ensure_topic(spec, broker.endpoints, config).created


def test_new_pattern_is_a_file_that_loads(config: Settings) -> None:
    path = new_pattern("shop", "orders.*", "shop", config, is_enabled=True)
    found(config, "orders.eu")
    assert [spec.pipeline for spec in check_topics(config)[0]] == ["shop"]
    with pytest.raises(SpecError, match="exists already"):
        new_pattern("shop", "orders.*", "shop", config, is_enabled=True)
    path.unlink()
    with pytest.raises(SpecError, match="can only match internal topics"):
        new_pattern("shop", "_*", "shop", config, is_enabled=True)
    assert not path.exists()
