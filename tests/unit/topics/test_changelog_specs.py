"""Specs of topics with the changes of a database's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from debezium import ENVELOPE, KEY_SCHEMAS, schemas
from specs import Project, minimal

from topicberg.errors import SpecError
from topicberg.tableflow.folding import Deletion, State, order_of
from topicberg.topics import load_topic
from topicberg.topics.new import is_envelope

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
    spec = load_topic("trades", project.config)
    columns = spec.columns(project.config)
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


def test_order_time_decides_before_position() -> None:
    """After a failover, positions may start again at lower numbers."""
    earlier, later = order_of(1_000, 900), order_of(2_000, 5)
    assert earlier is not None
    assert later is not None
    assert earlier < later
    assert order_of(None, None) is None


def test_state_of_unreadable_property_is_empty() -> None:
    state = State(deletes={"k": Deletion(partition=1, micros=2, position=3)})
    assert State.load({"topicberg.changelog": state.model_dump_json()}) == state
    assert State.load({"topicberg.changelog": "nonsense"}) == State()
