"""How the columns of an existing table follow a schema, and what follows when it is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from memory_topic import MemoryTopic, memory_topic, text_topic
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
)
from specs import minimal

from topicberg.errors import TableflowError, TopicbergError
from topicberg.tableflow.service import control
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.tableflow.table.table import _evolve
from topicberg.topics import TopicSpec
from topicberg.topics.discovery import FoundSchema, FoundTopic
from topicberg.transforms.target import ensure_table

DECIMAL = DecimalType(10, 2)


SPEC = TopicSpec.model_validate(minimal())


def of(kind: IcebergType) -> Schema:
    return Schema(NestedField(1, "d", kind, required=False))


def nested(kind: IcebergType) -> IcebergType:
    inner = ListType(4, kind, element_required=False)
    fields = StructType(NestedField(5, "x", inner, required=False))
    return MapType(2, StringType(), 3, fields, value_required=False)


@pytest.mark.parametrize("wrap", [lambda kind: kind, nested])
@pytest.mark.parametrize("new", [(12, 3), (10, 3), (12, 0), (8, 1), (38, 10)])
def test_decimal_of_another_scale_is_refused(
    catalog: SqlCatalog, new: tuple[int, int], wrap: type
) -> None:
    """PyIceberg gives the column the new scale, if it has as many digits or more."""
    table = catalog.create_table(("shop", "prices"), of(wrap(DECIMAL)))
    with pytest.raises(TableflowError, match="the scale of a column cannot change"):
        _evolve(table, SPEC, of(wrap(DecimalType(*new))), ())
    assert str(table.refresh().schema().find_type("d")) == str(
        catalog.create_table(("shop", "same"), of(wrap(DECIMAL))).schema().find_type("d")
    )


@pytest.mark.parametrize(("new", "column"), [((12, 2), (12, 2)), ((8, 2), (10, 2))])
def test_decimal_of_the_same_scale_only_widens(
    catalog: SqlCatalog, new: tuple[int, int], column: tuple[int, int]
) -> None:
    table = catalog.create_table(("shop", "prices"), of(DECIMAL))
    _evolve(table, SPEC, of(DecimalType(*new)), ())
    assert table.schema().find_type("d") == DecimalType(*column)


@pytest.mark.parametrize("new", [pa.decimal128(12, 3), pa.binary()])
def test_derived_table_refuses_what_iceberg_forbids(catalog: SqlCatalog, new: pa.DataType) -> None:
    old = pa.string() if new == pa.binary() else pa.decimal128(10, 2)
    catalog.create_table(("shop", "totals"), pa.schema([("d", old)]))
    with pytest.raises(TopicbergError, match="column d"):
        ensure_table(catalog, ("shop", "totals"), pa.schema([("d", new)]), None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "topics restore-schema trades"),
        ({"external": True, "schema": {"format": "avro"}}, "let the owner of the topic's schemas"),
        (
            {
                "external": True,
                "schema": {"format": "json", "file": "s.json", "framing": "none"},
                "key": {"format": "string"},
            },
            "change s.json back",
        ),
    ],
    ids=["own", "external", "plain"],
)
def test_evolve_hint_names_what_the_topic_allows(
    catalog: SqlCatalog, given: dict[str, Any], expected: str
) -> None:
    table = catalog.create_table(("shop", "prices"), of(DECIMAL))
    spec = TopicSpec.model_validate(minimal(**given))
    with pytest.raises(TableflowError) as refused:
        _evolve(table, spec, of(DecimalType(12, 3)), ())
    assert expected in (refused.value.hint or "")
    assert ("restore-schema" in (refused.value.hint or "")) == (not given)


FOUND = FoundTopic(partitions=1, value=FoundSchema(format="avro", version=1))


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    return text_topic(tmp_path, monkeypatch)


def started(topic: MemoryTopic) -> Ingestion:
    """Return the ingestion of an engine that just started, after its first turn."""
    unused: Any = None
    one = Ingestion(topic.spec, topic.endpoints, topic.config, unused)
    one.turn()
    return one


def drop(topic: MemoryTopic) -> None:
    topic.catalog.drop_table(topic.spec.table_identifier(topic.config))


def delete_records(topic: MemoryTopic, before: int) -> None:
    """Let Kafka's retention pass."""
    topic.beginning = {0: before}


def values(topic: MemoryTopic) -> list[str]:
    return sorted(row["value"] for row in topic.rows())


@pytest.mark.parametrize("restarts", [True, False])
def test_table_that_cannot_come_back_whole_suspends_its_topic(
    topic: MemoryTopic, restarts: bool
) -> None:
    one = started(topic)
    assert values(topic) == ["a", "b"]
    drop(topic)
    delete_records(topic, 1)
    topic.produce(0, None, b"c")
    one = started(topic) if restarts else one
    one.turn()
    one.turn()
    status = one.report.status
    assert status.suspended
    assert "does not exist or is empty, and topicberg did not drop it" in str(status.error_message)
    assert "before offset 1 of partition 0" in str(status.error_message)
    assert "tableflow continue" in str(status.error_message)
    assert not topic.catalog.table_exists(topic.spec.table_identifier(topic.config))


def test_an_empty_table_in_its_place_is_not_filled(topic: MemoryTopic) -> None:
    started(topic)
    drop(topic)
    topic.ingestor().table()  # as Dagster's asset does
    delete_records(topic, 1)
    assert started(topic).report.status.suspended


def test_idle_topic_whose_records_are_gone_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a table without rows: no record was ever read."""
    idle = memory_topic(tmp_path, monkeypatch, schema={"format": "text"})
    for _ in range(9):
        idle.produce(0, None, b"gone")
    delete_records(idle, 9)
    for _ in range(2):
        assert started(idle).report.status.phase == "RUNNING"


def test_table_is_made_again_while_kafka_has_everything(topic: MemoryTopic) -> None:
    started(topic)
    drop(topic)
    assert started(topic).report.status.phase == "RUNNING"
    assert values(topic) == ["a", "b"]


def test_table_that_topicberg_dropped_begins_again(topic: MemoryTopic) -> None:
    one = started(topic)
    control.enable(topic.config, topic.spec.name, discovered=FOUND, command=True)
    control.disable(topic.config, topic.spec.name)
    drop(topic)
    control.table_dropped(topic.config, topic.spec.name)
    control.enable(topic.config, topic.spec.name, discovered=FOUND, command=True)
    delete_records(topic, 1)
    one.turn()  # the engine did not notice
    one.turn()
    assert one.report.status.phase == "RUNNING"
    assert values(topic) == ["b"]
    drop(topic)
    delete_records(topic, 2)
    topic.produce(0, None, b"c")
    assert started(topic).report.status.suspended, "later, by someone else"
