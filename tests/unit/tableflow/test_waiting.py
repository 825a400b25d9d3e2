"""Changes of a spec that a saved file does not apply: who reports them, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from typer.testing import CliRunner, Result

from topicberg import kafka
from topicberg.cli import app
from topicberg.errors import SpecError, TableflowError, TableFormatError, UnreachableError
from topicberg.logins.catalog import LOCATIONS
from topicberg.settings import Settings, settings
from topicberg.tableflow import table as tables
from topicberg.tableflow import waiting
from topicberg.tableflow.table import ensure_table
from topicberg.tableflow.waiting import find_waiting, unapplied
from topicberg.topics import TopicSpec

COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "$$timestamp", TimestamptzType(), required=False),
    NestedField(4, "$$partition", LongType(), required=False),
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
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    for folder in ("topics", "schemas"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("TOPICBERG_PROJECT_ROOT", str(tmp_path))
    monkeypatch.setenv("TOPICBERG_STATE_DIR", str(tmp_path / "state"))
    settings.cache_clear()
    yield settings()
    settings.cache_clear()


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
    ],
    ids=["partitioning", "no partitioning", "schema.format", "key.format", "format_version"],
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
    assert drift is not None
    assert f"its spec has {wanted}" in drift.message
    assert f"set `partitions: {partitions}`" in (drift.hint or "")
    assert drift.can_grow == (wanted > partitions)
    assert ("`topicberg topics grow orders`" in (drift.hint or "")) == drift.can_grow


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topic_must_not_grow(policy: str) -> None:
    for topic, known in ((spec(), policy), (spec(write_mode="upsert"), None)):
        drift = kafka.partition_drift(topic, 3, known)
        assert drift is not None
        assert not drift.can_grow
        assert "move the keys" in (drift.hint or "")


class Broker:
    """Kafka with one topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
        self.partitions = partitions
        self.policy = "delete"
        self.altered: list[str] = []
        monkeypatch.setattr(kafka, "_describe", lambda *_: SimpleNamespace(partitions=self.logs))
        monkeypatch.setattr(kafka, "topic_config", lambda *_: {"cleanup.policy": self.policy})
        monkeypatch.setattr(kafka, "admin_client", lambda *_, **__: self)
        monkeypatch.setattr(kafka, "result_of", lambda *_: None)

    @property
    def logs(self) -> list[int]:
        return list(range(self.partitions))

    def create_partitions(self, grow: list[Any], request_timeout: float) -> dict[str, None]:
        self.partitions = grow[0].new_total_count
        return {grow[0].topic: None}


def write(config: Settings, **fields: Any) -> None:
    import yaml

    document = {"name": "orders", "pipeline": "shop", "schema": {"format": "none"}, **fields}
    (config.topics_dir / "orders.yaml").write_text(yaml.safe_dump(document))


def run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=answer)


def test_saved_file_does_not_grow_the_topic(
    config: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(monkeypatch, 6)
    write(config, partitions=8)
    grown = spec(schema={"format": "none"}, partitions=8, table={})
    with caplog.at_level(logging.WARNING):
        ensured = kafka.ensure_topic(grown, cast(Any, None), config)
    assert (ensured.partitions, broker.partitions) == (6, 6)
    assert "`topicberg topics grow orders`" in caplog.text


def test_grow_asks_then_adds_partitions(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, 6)
    monkeypatch.setattr("topicberg.cli.topics.load_endpoints", lambda _: None)
    write(config, partitions=8)
    refused = run("topics", "grow", "orders", answer="n\n")
    assert (refused.exit_code, broker.partitions) == (1, 6)
    assert "Add 2 partitions to topic orders, so that it has 8? It cannot be undone" in (
        refused.output
    )
    done = run("topics", "grow", "orders", answer="y\n")
    assert (done.exit_code, broker.partitions) == (0, 8)
    assert "as its spec says" in run("topics", "grow", "orders").output


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"partitions": 3}, "has 6 partitions, its spec has 3"),
        ({"partitions": 8, "external": True}, "orders is external"),
    ],
)
def test_grow_refuses_what_must_not_be(
    config: Settings, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], reason: str
) -> None:
    broker = Broker(monkeypatch, 6)
    monkeypatch.setattr("topicberg.cli.topics.load_endpoints", lambda _: None)
    write(config, **fields)
    result = run("topics", "grow", "orders", "--yes")
    assert reason in str(result.exception)
    assert broker.partitions == 6


def test_validate_and_status_say_what_waits(
    config: Settings, held: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(config, partitions=8, table={"partitioning": ["key"]})
    endpoints = SimpleNamespace(catalog=lambda _: held.catalog, schema_registry="http://127.0.0.1")
    for module in ("topics", "tableflow"):
        monkeypatch.setattr(f"topicberg.cli.{module}.load_endpoints", lambda _: endpoints)
    monkeypatch.setattr(waiting, "list_topics", lambda _: {"orders": 6})
    monkeypatch.setattr("topicberg.kafka.registration.compare_all", lambda *_: [])
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
        raise UnreachableError("Kafka does not answer")

    monkeypatch.setattr(waiting, "list_topics", silent)
    endpoints = cast(Any, SimpleNamespace(catalog=lambda _: held.catalog))
    found, unknown = find_waiting([spec(table={})], endpoints, config)
    assert ["partitioned by" in one.what for one in found] == [True]
    assert "Kafka does not answer" in unknown[0]
    mode = find_waiting([spec(write_mode="upsert", key={"format": "string"})], endpoints, config)
    assert "its table is in write mode append" in mode[0][0].what
    monkeypatch.setattr(waiting, "list_topics", lambda _: {"orders": 9})
    found, unknown = find_waiting([spec()], cast(Any, SimpleNamespace(catalog=silent)), config)
    assert ["9 partitions" in one.what for one in found] == [True]
    assert "Kafka does not answer" in unknown[0]


def test_table_that_cannot_be_read_hides_no_other(
    config: Settings, held: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: object, identifier: tuple[str, str]) -> Table:
        if identifier[1] == "newer":
            raise TableFormatError("table newer has format version 4", hint="upgrade topicberg")
        return held

    monkeypatch.setattr(waiting, "find_table", find)
    monkeypatch.setattr(waiting, "list_topics", lambda _: {})
    endpoints = cast(Any, SimpleNamespace(catalog=lambda _: None))
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


def test_restore_schema_asks_before_it_deletes(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry()
    monkeypatch.setattr("topicberg.cli.topics.load_endpoints", lambda _: registry)
    text = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    (config.schemas_dir / "o.avsc").write_text(text)
    write(config, schema={"format": "avro", "file": "o.avsc"})
    refused = run("topics", "restore-schema", "orders", answer="n\n")
    assert "orders-value: version 3 will be deleted" in refused.output
    assert (refused.exit_code, registry.versions) == (1, [1, 2, 3])
    assert run("topics", "restore-schema", "orders", "--yes").exit_code == 0
    assert registry.versions == [1]
    assert "no version after" in run("topics", "restore-schema", "orders").output


def test_restore_schema_of_an_external_topic_is_refused(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topicberg.cli.topics.load_endpoints", lambda _: Registry())
    write(config, schema={"format": "avro"}, external=True)
    result = run("topics", "restore-schema", "orders", "--yes")
    assert isinstance(result.exception, SpecError)
    assert "names no schema file" in str(result.exception)
