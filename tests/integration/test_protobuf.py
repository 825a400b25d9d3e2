"""Protobuf from the registry through Spark Connect: random records and broken ones, in one job."""

from __future__ import annotations

import itertools
import random
import uuid

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from fuzz_protobuf import Sample, comparable, schema_and_records
from pyspark.sql import functions as F

from topicberg.endpoints import Endpoints
from topicberg.formats import DECODED, Pairing, protobuf
from topicberg.formats.subjects import RegisteredSchema, SubjectReader
from topicberg.spark import new_session

pytestmark = pytest.mark.integration

BROKEN = [b"", b"\x00\x08", b"\x00\x0e", b"\x04\x02\x00", b"\x00\x0a\xff\xff\xff\xff\x0f", b"\xff"]


def registered(stack: Endpoints, text: str, *references: SchemaReference) -> RegisteredSchema:
    """The schema as the registry gives it back."""
    name = f"protobuf-{uuid.uuid4().hex[:8]}"
    client = stack.schema_registry_client()
    client.register_schema(name, Schema(text, "PROTOBUF", list(references)))
    return SubjectReader(client).read(name).latest


def with_reference(stack: Endpoints) -> tuple[RegisteredSchema, Sample]:
    line = 'syntax = "proto3"; package lib; message Line { int32 n = 1; }'
    shared = f"line-{uuid.uuid4().hex[:8]}"
    stack.schema_registry_client().register_schema(shared, Schema(line, "PROTOBUF"))
    text = 'syntax = "proto3"; import "lib/line.proto"; message T { lib.Line line = 1; }'
    schema = registered(stack, text, SchemaReference("lib/line.proto", shared, 1))
    return schema, Sample(text, [b"\x00\x0a\x02\x08\x05"], [{"line": {"n": 5}}])


def test_random_records_through_spark(stack: Endpoints) -> None:
    samples = [schema_and_records(random.Random(seed), 20) for seed in range(100, 105)]
    topics = [(registered(stack, sample.text), sample) for sample in samples]
    topics.append(with_reference(stack))
    rows = [
        (topic, place, None if payload is None else bytearray(payload))
        for topic, (_, sample) in enumerate(topics)
        for place, payload in enumerate([*sample.payloads, *BROKEN, None])
    ]
    session = new_session(stack.spark_connect)
    try:
        frame = session.createDataFrame(rows, "topic int, place int, payload binary")
        decoded = []
        for topic, (schema, _) in enumerate(topics):
            payload = F.when(F.col("topic") == topic, F.col("payload"))
            columns = protobuf.fields("s", schema, itertools.count(1))
            frame, record = protobuf.decode(frame, payload, Pairing(schema, schema, columns))
            decoded.append(record.alias(f"record{topic}"))
        table = frame.coalesce(2).select("topic", "place", *decoded).toArrow()
    finally:
        session.stop()
    found = {
        (row["topic"], row["place"]): row[f"record{row['topic']}"]
        for row in table.to_pylist(maps_as_pydicts="strict")
    }
    assert len(found) == len(rows)
    for topic, (_, sample) in enumerate(topics):
        for place, expected in enumerate(sample.rows):
            record = found[topic, place]
            assert record.pop(DECODED)
            assert comparable(record) == comparable(expected), sample.text
        *broken, tombstone = (
            found[topic, len(sample.rows) + place] for place in range(len(BROKEN) + 1)
        )
        assert [record[DECODED] for record in broken] == [False] * len(BROKEN)
        assert tombstone is None
