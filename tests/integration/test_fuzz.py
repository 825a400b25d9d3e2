"""Random schemas and records: what DuckDB reads from the table is what was produced.

A few of each format by default; TOPICBERG_TEST_FUZZ=500 for that many in all.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import fuzz_avro
import fuzz_json
import fuzz_protobuf
import pytest
from confluent_kafka.schema_registry import Schema
from kafka_topics import Topic

from topicberg.query import run_query
from topicberg.tableflow.subjects import wire_prefix

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

SCHEMAS = int(os.environ.get("TOPICBERG_TEST_FUZZ", 6))
Case = tuple[Schema, list[bytes], list[dict[str, Any]]]


def avro_case(rng: random.Random) -> Case:
    """The schema, each record's bytes without the wire format's prefix, each record's row."""
    schema, records, rows = fuzz_avro.schema_and_records(rng)
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    payloads = []
    for record in records:
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, parsed, record)
        payloads.append(buffer.getvalue())
    return Schema(json.dumps(schema), "AVRO"), payloads, rows


def json_case(rng: random.Random) -> Case:
    schema, records = fuzz_json.schema_and_records(rng)
    payloads = [json.dumps(record, ensure_ascii=rng.random() < 0.5).encode() for record in records]
    rows = [fuzz_json.expected_row(schema, record) for record in records]
    return Schema(json.dumps(schema), "JSON"), payloads, rows


def protobuf_case(rng: random.Random) -> Case:
    sample = fuzz_protobuf.schema_and_records(rng)
    return Schema(sample.text, "PROTOBUF"), sample.payloads, sample.rows


CASES: dict[str, Callable[[random.Random], Case]] = {
    "avro": avro_case,
    "json": json_case,
    "protobuf": protobuf_case,
}


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_what_is_read_is_what_was_produced(make_topic: Callable[..., Topic], seed: int) -> None:
    kind = list(CASES)[seed % len(CASES)]
    schema, payloads, rows = CASES[kind](random.Random(seed))
    topic = make_topic(schema={"format": kind, "file": "from-the-registry"})
    registry = topic.endpoints.schema_registry_client()
    prefix = wire_prefix(registry.register_schema(topic.spec.value_subject, schema))
    topic.send_raw([prefix + payload for payload in payloads], partition=0)
    topic.ingest()
    cluster, name = topic.spec.table_identifier(topic.config)
    sql = f'SELECT * FROM lake."{cluster}"."{name}" ORDER BY "$$offset"'
    result = run_query(sql, "duckdb", topic.endpoints, topic.config)
    read = [dict(zip(result.columns, values, strict=True)) for values in result.rows]
    assert len(read) == len(rows)
    for number, expected in enumerate(rows):
        for column, value in expected.items():
            actual = read[number][column]
            assert same(value, actual), f"record {number}, {column}: {value!r} became {actual!r}"


def same(expected: Any, actual: Any) -> bool:
    """Equal values; a map may come as pairs, and NaN equals NaN."""
    if isinstance(expected, float) and isinstance(actual, float) and math.isnan(expected):
        return math.isnan(actual)
    if isinstance(expected, dict):
        found = dict(actual) if isinstance(actual, list) else actual
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(same(value, found[key]) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(map(same, expected, actual))
        )
    return type(expected) is type(actual) and bool(expected == actual)
