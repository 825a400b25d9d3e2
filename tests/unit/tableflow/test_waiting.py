"""Changes of a spec that a saved file does not apply: who reports them, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from memory_kafka import MemoryKafka, topic_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from typer.testing import CliRunner, Result

from topicberg.cli import app
from topicberg.errors import SpecError, TableflowError, TableFormatError, UnreachableError
from topicberg.kafka import topics as kafka
from topicberg.logins.catalog import LOCATIONS
from topicberg.settings import Settings
from topicberg.tableflow.layout import waiting
from topicberg.tableflow.layout.waiting import find_waiting, unapplied
from topicberg.tableflow.table import table as tables
from topicberg.tableflow.table.table import ensure_table
from topicberg.topics import TopicSpec

Serve = Callable[[object], None]
COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "$$timestamp", TimestamptzType(), required=False),
    NestedField(4, "$$partition", LongType(), required=False),
    NestedField(5, "$$headers", MapType(6, StringType(), 7, BinaryType(), False), required=False),
)
PARTITIONING = ("hour($$timestamp)", "bucket[4](id)")


def spec(**fields: Any) -> TopicSpec:
    document: dict[str, Any] = {
        "name": "orders",
        "pipeline": "shop",
        "schema": {"format": "avro", "file": "o.avsc"},
    }
    document |= {"table": {"partitioning": list(PARTITIONING)}, "partitions": 6}
    return TopicSpec.model_validate({**document, **fields})


@pytest.fixture
def config(new_project: Settings) -> Settings:
    return new_project


def catalog_in(folder: Path) -> SqlCatalog:
    """Return a catalog that chooses the locations of tables."""
    return SqlCatalog(
        "unit",
        uri=f"sqlite:///{folder}/c.db",
        warehouse=f"file://{folder}/lake",
        **{LOCATIONS: "catalog"},
    )


@pytest.fixture
def held(config: Settings, tmp_path: Path) -> Table:
    """The table that the engine created by :func:`spec`."""
    return ensure_table(catalog_in(tmp_path), spec(), config, COLUMNS)


def changes(held: Table, /, **fields: Any) -> list[str]:
    return [f"{one.what}; {one.remediation}" for one in unapplied(held, spec(**fields))]


def test_unapplied_of_the_same_spec_is_nothing(held: Table) -> None:
    assert changes(held) == []
    assert changes(held, table={"partitioning": ["bucket[4](id)", "hour($$timestamp)"]}) == []
    assert changes(held, key={"format": "bytes"}) == [], "the same column"


@pytest.mark.parametrize(
    ("fields", "what", "remedy"),
    [
        (
            {"table": {"partitioning": ["region"]}},
            "is partitioned by hour($$timestamp), bucket[4](id), the spec says region",
            "set `table.partitioning: [hour($$timestamp), bucket[4](id)]`, or run `topicberg "
            "tableflow disable orders --drop-table`",
        ),
        ({"table": {}}, "the spec says nothing", "set `table.partitioning: [hour"),
        (
            {"schema": {"format": "json", "file": "o.json"}},
            "was created with schema.format avro, the spec says json",
            "set `schema.format: avro`, or run `topicberg tableflow disable orders --drop-table`",
        ),
        (
            {"key": {"format": "avro", "file": "k.avsc"}},
            "was created with key.format none, the spec says avro",
            "set `key.format: none`",
        ),
        (
            {"table": {"partitioning": list(PARTITIONING), "format_version": 3}},
            "has format version 2, the spec says 3",
            "run `topicberg tableflow upgrade orders`, which cannot be undone",
        ),
        (
            {
                "table": {"partitioning": list(PARTITIONING)},
                "tableflow": {"data_retention_ms": 30 * 86_400_000},
            },
            "the spec keeps rows for 30 days, its table for longer",
            "run `topicberg tableflow maintain orders` to delete older rows from now on",
        ),
        (
            {"table": {"partitioning": list(PARTITIONING), "headers": "list"}},
            "the column $$headers of its table is a map, the spec says list",
            "set `table.headers: map`, or run `topicberg tableflow disable orders --drop-table`",
        ),
    ],
    ids=[
        "partitioning",
        "no partitioning",
        "schema.format",
        "key.format",
        "format_version",
        "data_retention_ms",
        "headers",
    ],
)
def test_change_of_an_existing_table_is_reported_with_what_to_do(
    held: Table,
    config: Settings,
    fields: dict[str, Any],
    what: str,
    remedy: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the engine once, and by the function of `validate` and `status`."""
    (change,) = changes(held, **fields)
    assert what in change
    assert remedy in change
    tables._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            ensure_table(held.catalog, spec(**fields), config, COLUMNS)
    assert caplog.messages == [f"topic orders: {change}"]


@pytest.mark.parametrize("kind", ["map", "list"])
def test_headers_of_a_table_stay_what_they_are(config: Settings, tmp_path: Path, kind: str) -> None:
    pair = StructType(*(NestedField(8 + n, name, BinaryType()) for n, name in enumerate("kv")))
    headers = NestedField(5, "$$headers", ListType(6, pair, element_required=False), required=False)
    lists = Schema(*COLUMNS.fields[:4], headers)
    columns, other = (COLUMNS, lists) if kind == "map" else (lists, COLUMNS)
    catalog, table = catalog_in(tmp_path), {"partitioning": list(PARTITIONING)}
    before = ensure_table(catalog, spec(table=table | {"headers": kind}), config, columns)
    changed = {"map": "list", "list": "map"}[kind]
    after = ensure_table(catalog, spec(table=table | {"headers": changed}), config, other)
    assert after.schema() == before.schema()
    assert len([*unapplied(after, spec(table=table | {"headers": changed}))]) == 1
    assert not [*unapplied(after, spec(table=table | {"headers": kind}))]


@pytest.mark.parametrize(
    ("field", "reason"),
    [("nation", "the table has no column nation"), ("hour(region)", "hour of a string is not")],
)
def test_partitioning_that_is_impossible_is_refused_before_the_table_is_created(
    config: Settings, tmp_path: Path, field: str, reason: str
) -> None:
    """An external topic's spec may be checked before its columns are known."""
    catalog = catalog_in(tmp_path)
    with pytest.raises(TableflowError, match=reason):
        ensure_table(catalog, spec(table={"partitioning": [field]}), config, COLUMNS)
    assert not catalog.table_exists(spec().table_identifier(config))


# --- partitions of the topic ---


@given(partitions=st.integers(1, 20), wanted=st.integers(1, 20))
def test_partition_drift_names_both_numbers_and_a_way_out(partitions: int, wanted: int) -> None:
    drift = kafka.partition_drift(spec(partitions=wanted), partitions)
    if partitions == wanted:
        assert drift is None
        return
    assert f"its spec has {wanted}" in drift.message
    assert f"set `partitions: {partitions}`" in (drift.hint or "")
    can_grow = isinstance(drift, kafka.WaitingDriftError)
    assert can_grow == (wanted > partitions)
    assert ("`topicberg topics grow orders`" in (drift.hint or "")) == can_grow


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topic_must_not_grow(policy: str) -> None:
    for topic, known in ((spec(), policy), (spec(write_mode="upsert"), None)):
        drift = kafka.partition_drift(topic, 3, known)
        assert not isinstance(drift, kafka.WaitingDriftError)
        assert "move the keys" in (drift.hint or "")


def write(config: Settings, **fields: Any) -> None:
    import yaml

    document = {"name": "orders", "pipeline": "shop", "schema": {"format": "none"}, **fields}
    (config.topics_dir / "orders.yaml").write_text(yaml.safe_dump(document))


def run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=answer)


def test_saved_file_does_not_grow_the_topic(
    config: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(6)
    broker = MemoryKafka({"orders": topic}).serve(monkeypatch)
    write(config, partitions=8)
    grown = spec(schema={"format": "none"}, partitions=8, table={})
    with caplog.at_level(logging.WARNING):
        ensured = kafka.ensure_topic(grown, broker.endpoints, config)
    assert (ensured.partitions, len(topic.ends)) == (6, 6)
    assert "`topicberg topics grow orders`" in caplog.text


def test_grow_asks_then_adds_partitions(
    config: Settings, monkeypatch: pytest.MonkeyPatch, serve_endpoints: Serve
) -> None:
    topic = topic_of(6)
    serve_endpoints(MemoryKafka({"orders": topic}).serve(monkeypatch).endpoints)
    write(config, partitions=8)
    refused = run("topics", "grow", "orders", answer="n\n")
    assert (refused.exit_code, len(topic.ends)) == (1, 6)
    assert "Add 2 partitions to topic orders, so that it has 8? It cannot be undone" in (
        refused.output
    )
    assert "no longer read them in order" in refused.output
    assert run("topics", "grow", "orders").exit_code == 1, "the user does not answer"
    assert (run("topics", "grow", "orders", answer="y\n").exit_code, len(topic.ends)) == (0, 8)
    assert "as its spec says" in run("topics", "grow", "orders").output


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"partitions": 3}, "has 6 partitions, its spec has 3"),
        ({"partitions": 8, "external": True}, "orders is external"),
    ],
)
def test_grow_refuses_what_must_not_be(
    config: Settings,
    monkeypatch: pytest.MonkeyPatch,
    serve_endpoints: Serve,
    fields: dict[str, Any],
    reason: str,
) -> None:
    topic = topic_of(6)
    serve_endpoints(MemoryKafka({"orders": topic}).serve(monkeypatch).endpoints)
    write(config, **fields)
    assert reason in str(run("topics", "grow", "orders", "--yes").exception)
    assert len(topic.ends) == 6


@given(before=st.integers(-1, 9), wanted=st.integers(-1, 9))
def test_losing_configs_are_those_that_keep_less(before: int, wanted: int) -> None:
    has, wants = {"retention.ms": str(before)}, {"retention.ms": str(wanted), "segment.ms": "1"}
    loses = wanted >= 0 and (before < 0 or wanted < before)
    assert kafka.losing_configs(wants, has) == ({"retention.ms": str(wanted)} if loses else {})


def test_hint_for_what_waits_is_yaml_that_keeps_what_the_topic_has() -> None:
    """A list of policies too, which is not a flow mapping; blanks in the spec's change nothing."""
    wanted = {"cleanup.policy": "delete, compact", "min.compaction.lag.ms": "1"}
    has = {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "9"}
    drift = kafka.config_drift(spec(schema={"format": "none"}, topic_config=wanted, table={}), has)
    assert drift is not None
    assert "or set `min.compaction.lag.ms: 9` in its `topic_config`" in (drift.hint or "")
    assert kafka.losing_configs({"cleanup.policy": "compact, delete"}, {"cleanup.policy": "delete"})


def test_saved_file_lets_kafka_delete_nothing_until_it_is_asked_for(
    config: Settings, monkeypatch: pytest.MonkeyPatch, serve_endpoints: Serve
) -> None:
    """What the topic keeps longer is applied at once; a shorter retention is shown, and asked."""
    known = {"retention.ms": "86400000", "retention.bytes": "1000", "segment.ms": "7"}
    topic = topic_of(6)
    topic.kafka_settings |= known
    broker = MemoryKafka({"orders": topic}).serve(monkeypatch)
    serve_endpoints(broker.endpoints)
    wanted = {"retention.ms": "1000", "retention.bytes": "-1", "segment.ms": "9"}
    write(config, partitions=6, topic_config=wanted)
    saved = spec(schema={"format": "none"}, topic_config=wanted, table={})
    kafka.ensure_topic(saved, broker.endpoints, config)
    applied = {"cleanup.policy": "delete", **wanted, "retention.ms": "86400000"}
    assert topic.kafka_settings == applied
    monkeypatch.setattr(waiting, "_of_tables", lambda *_: [])
    (change,), _ = find_waiting([saved], broker.endpoints, config)
    assert "has retention.ms: 86400000, its spec has retention.ms: 1000" in change.what
    assert "`topicberg topics configure orders`" in change.remediation
    assert run("topics", "configure", "orders", answer="n\n").exit_code == 1
    assert topic.kafka_settings == applied
    assert run("topics", "configure", "orders", answer="y\n").exit_code == 0
    assert topic.kafka_settings["retention.ms"] == "1000"
    assert "deletes records that Kafka keeps" in run("topics", "configure", "orders").output


def test_validate_and_status_say_what_waits(
    config: Settings, held: Table, monkeypatch: pytest.MonkeyPatch, serve_endpoints: Serve
) -> None:
    write(config, partitions=8, table={"partitioning": ["key"]})
    broker = MemoryKafka({"orders": topic_of(6)}).serve(monkeypatch)
    own = {"catalog": lambda _: held.catalog, "schema_registry": "http://127.0.0.1"}
    serve_endpoints(SimpleNamespace(**vars(broker.endpoints), **own))
    monkeypatch.setattr("topicberg.kafka.schemas.compare_all", lambda *_: [])
    monkeypatch.setattr("topicberg.cli.tableflow._engines", lambda *_: {})
    for arguments in (("topics", "validate"), ("tableflow", "status")):
        result = run(*arguments)
        assert result.exit_code == 0, result.output
        assert "topic orders has 6 partitions, its spec has 8" in result.output
        assert "run `topicberg topics grow orders`" in result.output
        assert "the spec says key" in result.output
        assert "was created with schema.format avro, the spec says none" in result.output


def test_service_that_does_not_answer_hides_no_other_change(
    config: Settings, held: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise UnreachableError("the catalog does not answer")

    broker = MemoryKafka({"orders": topic_of(9)}, failure=KafkaError._TRANSPORT).serve(monkeypatch)
    endpoints: Any = SimpleNamespace(**vars(broker.endpoints), catalog=lambda _: held.catalog)
    found, unknown = find_waiting([spec(table={})], endpoints, config)
    assert ["partitioned by" in one.what for one in found] == [True]
    assert "does not list its topics" in unknown[0]
    mode = find_waiting([spec(write_mode="upsert", key={"format": "string"})], endpoints, config)
    assert "its table is in write mode append" in mode[0][0].what
    portable = spec(tableflow={"metadata_column_naming_scheme": "PORTABLE"})
    assert "another tableflow.metadata_column_naming_scheme" in str(
        find_waiting([portable], endpoints, config)[0]
    )
    broker.failure, endpoints.catalog = None, silent
    found, unknown = find_waiting([spec()], endpoints, config)
    assert ["9 partitions" in one.what for one in found] == [True]
    assert "the catalog does not answer" in unknown[0]


def test_table_that_cannot_be_read_hides_no_other(
    config: Settings, held: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: object, identifier: tuple[str, str]) -> Table:
        if identifier[1] == "newer":
            raise TableFormatError("table newer has format version 4", hint="upgrade topicberg")
        return held

    monkeypatch.setattr(waiting, "find_table", find)
    broker = MemoryKafka({}).serve(monkeypatch)
    endpoints: Any = SimpleNamespace(**vars(broker.endpoints), catalog=lambda _: None)
    found, unknown = find_waiting([spec(name="newer"), spec(table={})], endpoints, config)
    assert [one.topic for one in found] == ["newer", "orders"]
    assert (found[0].remediation, unknown) == ("upgrade topicberg", [])


# --- versions of schemas ---


class Registry:
    """A registry in which the schema of the spec is version 1 of 3."""

    def __init__(self) -> None:
        self.versions = [1, 2, 3]

    def schema_registry_client(self) -> Registry:
        return self

    def lookup_schema(self, *_: object) -> Any:
        return SimpleNamespace(version=1)

    def get_versions(self, _: str) -> list[int]:
        return self.versions

    def delete_version(self, _: str, version: int) -> None:
        self.versions = [one for one in self.versions if one != version]


def test_restore_schema_asks_before_it_deletes(config: Settings, serve_endpoints: Serve) -> None:
    registry = Registry()
    serve_endpoints(registry)
    text = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    (config.schemas_dir / "o.avsc").write_text(text)
    write(config, schema={"format": "avro", "file": "o.avsc"})
    refused = run("topics", "restore-schema", "orders", answer="n\n")
    assert "orders-value: version 3 will be deleted" in refused.output
    assert (refused.exit_code, registry.versions) == (1, [1, 2, 3])
    silent = run("topics", "restore-schema", "orders")
    assert (silent.exit_code, registry.versions) == (1, [1, 2, 3]), "the user does not answer"
    assert run("topics", "restore-schema", "orders", "--yes").exit_code == 0
    assert registry.versions == [1]
    assert "no version after" in run("topics", "restore-schema", "orders").output


def test_restore_schema_of_an_external_topic_is_refused(
    config: Settings, serve_endpoints: Serve
) -> None:
    serve_endpoints(Registry())
    write(config, schema={"format": "avro"}, external=True)
    result = run("topics", "restore-schema", "orders", "--yes")
    assert isinstance(result.exception, SpecError)
    assert "names no schema file" in str(result.exception)
