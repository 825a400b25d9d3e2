"""The columns of the sources with which derived tables are compiled."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topicberg.orchestration.assets.compilation import Compiled, compile_tables
from topicberg.orchestration.assets.derived import derived_table
from topicberg.orchestration.assets.lake import Lake
from topicberg.settings import Settings
from topicberg.topics import check_topics
from topicberg.topics.discovery import (
    Discovery,
    FoundSchema,
    FoundTopic,
    schema_file,
    write_discovery,
)

SPEC = """
name: orders
pipeline: shop
external: true
schema: {format: avro}
key: {format: avro}
derived_partitions: {granularity: hourly, start: "2026-01-01"}
"""
ROW = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "amount", "type": "int", "doc": "in pennies"}],
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "fields": [
        {"name": "connector", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "ts_ms", "type": "long"},
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Order"], "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


def totals(orders: Any) -> Any:
    return orders


def compiled(
    config: Settings, spec: str, value: dict[str, Any] | None, key: object = "long"
) -> Compiled:
    """Return a table of a topic whose schemas were read from the registry; None: not yet."""
    config.topics_dir.mkdir(parents=True)
    (config.topics_dir / "orders.yaml").write_text(spec)
    avro = FoundSchema(format="avro", version=1)
    topic = FoundTopic(partitions=1, is_compacted=False, value=avro, key=avro)
    write_discovery(config, Discovery(topics={"orders": topic}))
    for part, schema in (("value", value), ("key", key)):
        if schema is not None:
            schema_file(config, "orders", cast("Any", part), "avro").write_text(json.dumps(schema))
    specs, problems = check_topics(config)
    assert problems == []
    declared = derived_table(source="orders", time_column="$$timestamp")(totals)
    lake = Lake(config, tuple(specs), (declared,))
    spark: Any = SimpleNamespace(createDataFrame=lambda _, schema: SimpleNamespace(schema=schema))
    (table,) = compile_tables(lake, spark)
    return table


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(project_root=tmp_path, state_dir=tmp_path / "state")


def test_source_with_schemas_in_the_registry_has_their_columns(config: Settings) -> None:
    table = compiled(config, SPEC, ROW)
    assert table.problem is None
    columns = {column.name: (column.type, column.description) for column in table.columns}
    assert columns["amount"] == ("int", "in pennies")
    assert columns["key"] == ("bigint", None)
    assert "value" not in columns


def test_source_of_changes_has_the_columns_of_rows(config: Settings) -> None:
    changelog = f"{SPEC}changelog: {{format: debezium}}\nwrite_mode: upsert\n"
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    table = compiled(config, changelog, ENVELOPE, key)
    assert table.problem is None
    columns = {column.name for column in table.columns}
    assert {"amount", "id"} <= columns
    assert not {"before", "after", "op"} & columns


def test_source_with_a_schema_that_is_not_known_is_a_problem(config: Settings) -> None:
    table = compiled(config, SPEC, None)
    assert table.problem == "topic orders: its schema orders-value is not known yet"
    assert "topicberg topics validate" in (table.hint or "")
