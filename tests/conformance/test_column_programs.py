"""Programs of the columnar path against the reference decoder, without a stack.

A program may refuse any record, which Spark's path then decodes. What it accepts must be exactly
the reference's value.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from avro_oracle import AvroSchema
from avro_random import AvroSchemas, datum
from shapes import Malformed, Refused, difference

from topicberg.errors import TableflowError
from topicberg.formats import avro
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.decoding import decode
from topicberg.formats.columnar.memory import forget_stale
from topicberg.formats.columnar.program import Code, NotCoveredError, Programs, Shape
from topicberg.formats.subjects import RegisteredSchema, wire_prefix

NUMBER = 7
TIME = {"type": "int", "logicalType": "date"}
PREFIX = wire_prefix(NUMBER)


class Decoder:
    """The program of one schema."""

    def __init__(self, schema: Any, latest: Any = None) -> None:
        """:param latest: a later version, which the table follows; None: there is none"""
        registered = RegisteredSchema(NUMBER, "AVRO", json.dumps(schema))
        newest = RegisteredSchema(NUMBER + 1, "AVRO", json.dumps(latest or schema))
        fields = avro.fields("test", registered, itertools.count(1))
        self.shape, code = Shape(fields), Code()
        places = {place.name: place for place in self.shape.places}
        avro.program(code, places, registered, newest, fields)
        self.programs = Programs.of(code, [(NUMBER, 0)], "AVRO")
        self.buffers = Buffers(self.shape, 64, 256 * 1024)

    def rows(self, payloads: list[bytes]) -> list[dict[str, Any]]:
        """The rows of the first records: those before the one that is refused."""
        records = [PREFIX + payload for payload in payloads]
        data = np.frombuffer(b"".join(records), np.uint8).copy()
        offsets = np.cumsum([0, *map(len, records)], dtype=np.int64)
        self.buffers.clear()
        present = np.ones(len(records), np.uint8)
        done = decode(self.programs, self.buffers, data, offsets, present)
        arrays = self.buffers.arrays()
        names = [place.name for place in self.shape.places]
        columns = [array.to_pylist() for array in arrays]
        assert all(len(column) == done for column in columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def covered(seed: int) -> tuple[AvroSchema, Decoder, Any, random.Random] | None:
    rng = random.Random(seed)
    schema = AvroSchemas(rng).root()
    oracle = AvroSchema(json.dumps(schema))
    try:
        shape = oracle.shape
        return (oracle, Decoder(schema), schema, rng) if shape else None
    except (NotCoveredError, Refused, TableflowError):
        return None


def expected(oracle: AvroSchema, payload: bytes) -> Any:
    """The reference's row; None: the record is malformed."""
    try:
        return oracle.decode(payload)
    except Malformed:
        return None


@pytest.mark.parametrize(
    ("was", "became", "value"),
    [("double", "float", 1e308), ("long", "int", 2**62), ("float", "int", 1.5)],
)
def test_member_of_a_union_that_was_narrowed_keeps_its_values(
    was: str, became: str, value: float
) -> None:
    """As those of a field that is not a union: the column is still of the wider type."""
    old, new = (
        {"type": "record", "name": "R", "fields": [{"name": "u", "type": [TIME, kind]}]}
        for kind in (was, became)
    )
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(old), {"u": value})
    rows = Decoder(old, new).rows([buffer.getvalue()])
    assert rows == [{"u": {"member0": None, "member1": value}}]


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_sound_records_of_random_schemas_equal_the_reference(start: int) -> None:
    seen = 0
    for seed in range(start, start + 50):
        found = covered(seed)
        if found is None:
            continue
        oracle, decoder, schema, rng = found
        payloads = [oracle.encode(datum(rng, schema, {})) for _ in range(30)]
        sound = [one for one in payloads if expected(oracle, one) is not None]
        rows = decoder.rows(sound)
        assert len(rows) == len(sound), f"seed {seed}: record {len(rows)} is refused"
        for payload, row in zip(sound, rows, strict=True):
            why = difference(expected(oracle, payload), row)
            assert why is None, f"seed {seed}: {why}"
        seen += len(sound)
    assert seen > 300


@pytest.mark.parametrize("start", range(1000, 1200, 50))
def test_damaged_records_are_refused_or_equal_the_reference(start: int) -> None:
    refused = 0
    for seed in range(start, start + 50):
        found = covered(seed)
        if found is None:
            continue
        oracle, decoder, schema, rng = found
        for _ in range(20):
            payload = bytearray(oracle.encode(datum(rng, schema, {}, odd=0.1)))
            match rng.randrange(4):
                case 0 if payload:
                    payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
                case 1:
                    del payload[rng.randrange(len(payload) + 1) :]
                case 2:
                    payload += rng.randbytes(rng.randint(1, 3))
            try:
                rows = decoder.rows([bytes(payload)])
            except Exception as error:
                assert "UTF8" in str(error), f"seed {seed}: {error}"  # noqa: PT017
                rows = []
            if not rows:
                refused += 1
                continue
            wanted = expected(oracle, bytes(payload))
            assert wanted is not None, f"seed {seed}: {payload.hex()} is malformed"
            why = difference(wanted, rows[0])
            assert why is None, f"seed {seed}: {payload.hex()}: {why}"
    assert refused > 50


def test_stored_code_is_deleted_if_a_source_is_newer(tmp_path: Path) -> None:
    stored, source = tmp_path / "__pycache__" / "a.nbi", tmp_path / "b.py"
    stored.parent.mkdir()
    for file, time in ((source, 1_000), (stored, 2_000)):
        file.touch()
        os.utime(file, (time, time))
    forget_stale(tmp_path)
    assert stored.exists()
    os.utime(source, (3_000, 3_000))
    forget_stale(tmp_path)
    assert not stored.exists()
