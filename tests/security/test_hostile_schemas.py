"""Random hostile schemas, and records of them, in every format, without a stack."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress

import pytest
from hostile import AVRO, SCHEMAS, VALID, Kind, records, schemas, zigzag

from topicberg.errors import TableflowError
from topicberg.formats import Pairing, as_record, format_of, is_union, json_sql
from topicberg.formats.subjects import RegisteredSchema

COUNT = int(os.environ.get("TOPICBERG_TEST_ATTACKS", "60"))
SEED = int(os.environ.get("TOPICBERG_TEST_SEED", "19"))
SECONDS = 20.0


@pytest.mark.parametrize("kind", SCHEMAS)
def test_hostile_schema_is_refused_or_read(kind: Kind) -> None:
    """As a topic's own, and as one of another subject that a record names."""
    latest = RegisteredSchema(1, kind, SCHEMAS[kind])
    columns = format_of(latest).fields("s", latest, itertools.count(1))
    count = COUNT if kind != "PROTOBUF" else COUNT // 5  # each one runs protoc
    for text in schemas(kind, count, SEED):
        schema, began = RegisteredSchema(2, kind, text), time.process_time()
        form = format_of(schema)
        with suppress(TableflowError):
            form.fields("s", schema, itertools.count(1))
        with suppress(TableflowError):
            form.identity(schema)
        with suppress(TableflowError):
            form.written(schema, latest)
        with suppress(TableflowError):
            is_union(as_record(schema, "key"))
        for record in (VALID[kind], b"", b"\x02" + zigzag(2**31)):
            assert form.explain(record, Pairing(schema, latest, columns))
        assert time.process_time() - began < SECONDS, text[:1_000]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_hostile_record_is_explained_in_bounded_time(kind: Kind) -> None:
    schema = RegisteredSchema(1, kind, SCHEMAS[kind])
    form = format_of(schema)
    columns = form.fields("s", schema, itertools.count(1))
    for record in records(kind, COUNT, SEED):
        began = time.process_time()
        reason = form.explain(record, Pairing(schema, schema, columns))
        assert len(reason) < 1_000
        assert time.process_time() - began < SECONDS, record[:1_000]


def test_large_decimal_is_explained_in_bounded_time() -> None:
    """To convert a number of a megabyte to a decimal takes minutes."""
    schema = RegisteredSchema(1, "AVRO", SCHEMAS["AVRO"])
    columns = format_of(schema).fields("s", schema, itertools.count(1))
    size = 4_000_000
    record = b"\x02\x00\x00" + zigzag(size) + b"\x7f" * size + b"\x00\x00\x00"
    began = time.process_time()
    reason = format_of(schema).explain(record, Pairing(schema, schema, columns))
    assert (
        reason == f"field price (decimal(9,2)): the value has {size} bytes, exceeds the precision"
    )
    assert time.process_time() - began < SECONDS
    assert AVRO["fields"][3]["name"] == "price"


@pytest.mark.parametrize("digits", [json_sql.DIGITS, json_sql.TEXT_DIGITS])
def test_pattern_of_numbers_has_bounded_repetitions(digits: int) -> None:
    """Java matches a repeated group recursively: a long number would end Spark."""
    assert not any(mark in json_sql.inexact(digits) for mark in (")+", ")*", ",}"))
