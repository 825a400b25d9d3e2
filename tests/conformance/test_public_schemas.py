"""Public schemas: the table of each, and every value of random records of them.

A few by default, and all of them with ``-m slow``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import public_schemas
import pytest
from confluent_kafka.schema_registry import Schema
from history import History
from judge import wire
from kafka_topics import Topic
from versions import Version

from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.query import run_query
from topicberg.settings import settings

pytestmark = pytest.mark.integration

OFTEN = {
    "datahub/StructuredPropertyDefinition.avsc",
    "google/longrunning/operations.proto Operation",
    "google/bigtable/v2/data.proto Value",
    "schemastore/github-discussion.json",
}


def cases(names: list[str]) -> list[object]:
    return [
        pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow], id=name)
        for name in names
    ]


def version(name: str) -> Version:
    path, _, message = name.partition(" ")
    return public_schemas.protobuf(path, message) if message else public_schemas.avro(path)


NAMES = [*public_schemas.AVRO, *(" ".join(one) for one in public_schemas.PROTOBUF)]


@pytest.mark.parametrize(
    "name", cases([name for name in NAMES if name not in public_schemas.REFUSED])
)
def test_public_schema_has_all_values(stack: Endpoints, name: str) -> None:
    result = History(len(name), stack, settings(), stages=2, only=version(name)).run()
    assert result.problems == []
    assert result.records > 0


@pytest.mark.parametrize("name", cases(list(public_schemas.REFUSED)))
def test_public_schema_without_table_is_refused(stack: Endpoints, name: str) -> None:
    history = History(1, stack, settings(), only=version(name))
    error = history.refusal()
    assert isinstance(error, TableflowError)
    assert any(why in str(error) for why in public_schemas.REFUSED[name].split("|"))


@pytest.mark.parametrize("name", cases(public_schemas.JSON))
def test_public_json_schema_keeps_all_values(make_topic: Callable[..., Topic], name: str) -> None:
    """Every record that the reference finds valid has a row, which says what the record says."""
    records = public_schemas.JsonRecords(name)
    sent = records.some(random.Random(name), 40)
    assert len(sent) == 40
    topic = make_topic(schema={"format": "json", "file": "from-the-registry"})
    registry = topic.endpoints.schema_registry_client()
    schema_id = registry.register_schema(topic.spec.value_subject, Schema(records.text, "JSON"))
    payloads = [json.dumps(record, ensure_ascii=False).encode() for record in sent]
    topic.send_raw([wire(schema_id, payload) for payload in payloads], partition=0)
    assert topic.ingest() == len(sent)
    cluster, table = topic.spec.table_identifier(topic.config)
    sql = f'SELECT * FROM lake."{cluster}"."{table}" ORDER BY "$$offset"'
    found = run_query(sql, "duckdb", topic.endpoints, topic.config)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert len(rows) == len(sent)
    declared = records.schema["properties"].keys()
    for record, row in zip(sent, rows, strict=True):
        assert declared <= row.keys()
        values = {key: value for key, value in record.items() if key in declared}
        columns = {key: row[key] for key in values}
        assert public_schemas.kept(values, columns) is None
