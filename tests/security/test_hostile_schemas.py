"""Random hostile schemas, and records of them, in every format, without a stack."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress

import pytest
from hostile import AVRO, SCHEMAS, VALID, Kind, records, schemas, zigzag
from reasons import reason

from topicberg.errors import TableflowError
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.dispatch import as_record, format_of, is_union
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
            with suppress(TableflowError):
                reason(form, record, ResolvedSchema(schema, latest, columns))
        assert time.process_time() - began < SECONDS, text[:1_000]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_hostile_record_is_explained_in_bounded_time(kind: Kind) -> None:
    schema = RegisteredSchema(1, kind, SCHEMAS[kind])
    form = format_of(schema)
    columns, malformed = form.fields("s", schema, itertools.count(1)), 0
    for record in records(kind, COUNT, SEED):
        began = time.process_time()
        found = reason(form, record, ResolvedSchema(schema, schema, columns))
        assert found is None or 0 < len(found) < 1_000
        malformed += found is not None
        assert time.process_time() - began < SECONDS, record[:1_000]
    assert malformed > 30


def test_large_decimal_is_explained_in_bounded_time() -> None:
    """To convert a number of a megabyte to a decimal takes minutes."""
    schema = RegisteredSchema(1, "AVRO", SCHEMAS["AVRO"])
    columns, size = format_of(schema).fields("s", schema, itertools.count(1)), 4_000_000
    record = b"\x02\x00\x00" + zigzag(size) + b"\x7f" * size + b"\x00\x00\x00"
    began = time.process_time()
    found = reason(format_of(schema), record, ResolvedSchema(schema, schema, columns))
    assert found == f"field price (decimal(9,2)): the value has {size} bytes, exceeds the precision"
    assert time.process_time() - began < SECONDS
    assert AVRO["fields"][3]["name"] == "price"
