"""Steps of the engine before a topic's first record, without Kafka and Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, NestedField

from topicberg import kafka
from topicberg.errors import TableflowError
from topicberg.iceberg.summaries import END_OFFSETS, TOPIC_ID
from topicberg.kafka import TopicLog
from topicberg.kafka.offsets import Offsets, dump_offsets
from topicberg.settings import Settings
from topicberg.tableflow.batch_start import adopt_start, first_offsets
from topicberg.tableflow.commit import Committed
from topicberg.tableflow.engine import Ingestor
from topicberg.topics import TopicSpec


def ingestor_of(catalog: SqlCatalog, folder: Path, **tableflow: Any) -> Ingestor:
    """Return the engine of a topic whose table has only the column of the partition."""
    fields = {"name": "orders", "pipeline": "shop", "schema": {"format": "none"}}
    spec = TopicSpec.model_validate({**fields, "tableflow": tableflow})
    config = Settings(project_root=folder, state_dir=folder / "state")
    identifier = spec.table_identifier(config)
    catalog.create_namespace_if_not_exists(identifier[0])
    partition = NestedField(1, "$$partition", IntegerType(), required=False)
    catalog.create_table_if_not_exists(identifier, Schema(partition))
    endpoints = SimpleNamespace(
        catalog=lambda _: catalog, schema_registry_client=lambda: None, spark_connect=""
    )
    return Ingestor(spec, cast(Any, endpoints), config)


def test_start_at_the_latest_is_that_of_the_first_attempt(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingestor = ingestor_of(catalog, tmp_path, start_position="latest")
    monkeypatch.setattr(kafka, "topic_log", lambda *_: TopicLog("id", {0: 3}, {0: 7}))
    assert ingestor.step().end_offsets == {0: 7}
    log = TopicLog("id", {0: 3}, {0: 9})
    given = ingestor.spec, ingestor.endpoints, ingestor.table(), Committed(), log
    assert first_offsets(*given) == {0: 7}
    monkeypatch.setattr(kafka, "topic_log", lambda *_: TopicLog("id", {0: 8}, {0: 9}))
    with pytest.raises(TableflowError, match="the next record is 7, the first one kept is 8"):
        ingestor.step()


@pytest.mark.parametrize(("position", "first"), [("latest", {0: 0}), (1_000, {0: 2})])
def test_topic_created_again_before_its_first_commit_loses_nothing(
    catalog: SqlCatalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    position: str | int,
    first: Offsets,
) -> None:
    ingestor = ingestor_of(catalog, tmp_path, start_position=position)
    monkeypatch.setattr(kafka, "offsets_at", lambda *_: {0: 7})
    monkeypatch.setattr(kafka, "topic_log", lambda *_: TopicLog("old", {0: 0}, {0: 7}))
    assert ingestor.step().end_offsets == {0: 7}
    monkeypatch.setattr(kafka, "offsets_at", lambda *_: {0: 2})
    new = TopicLog("new", {0: 0}, {0: 9})
    for _ in range(2):
        given = ingestor.spec, ingestor.endpoints, ingestor.table(), Committed(), new
        assert first_offsets(*given) == first


@pytest.mark.parametrize("began", ["latest", "earliest"])
def test_history_begins_where_the_topics_table_began(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    ingestor = ingestor_of(catalog, tmp_path, start_position="latest")
    own = ingestor.table()
    history = catalog.create_table((own.name()[-2], "history"), own.schema())
    log = TopicLog("id", {0: 3}, {0: 7})
    if began == "latest":
        assert first_offsets(ingestor.spec, ingestor.endpoints, own, Committed(), log) == {0: 7}
    else:
        own.append(
            own.schema().as_arrow().empty_table(),
            snapshot_properties={END_OFFSETS: dump_offsets({0: 7}), TOPIC_ID: "id"},
        )
    for _ in range(2):
        adopt_start(history, own)
    later = TopicLog("id", {0: 3}, {0: 50})
    first = first_offsets(ingestor.spec, ingestor.endpoints, history, Committed(), later)
    assert first == ({0: 7} if began == "latest" else {})
    left = TopicLog("id", {0: 9}, {0: 50})
    first = first_offsets(ingestor.spec, ingestor.endpoints, history, Committed(), left)
    assert first == ({0: 9} if began == "latest" else {}), "what Kafka still has"


def test_step_beside_another_engine_that_adds_columns(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "topic_log", lambda *_: TopicLog("id", {0: 0}, {0: 0}))
    one, two = (ingestor_of(catalog, tmp_path) for _ in range(2))
    load = catalog.load_table
    others = [two.table]

    def loading(name: Any) -> Table:
        table = load(name)
        if others:
            others.pop()()
        return table

    monkeypatch.setattr(catalog, "load_table", loading)
    assert one.step().records == 0
    assert others == []
    assert "value" in one.table().schema().column_names
