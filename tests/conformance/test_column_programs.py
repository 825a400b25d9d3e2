"""Programs of Avro records against the oracle, without a stack.

A program may refuse any record, which the reference decoder then decodes. What it accepts must be
exactly the oracle's value.
"""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from avro_oracle import AvroSchema
from avro_random import AvroSchemas, datum
from program_runner import NUMBER, ProgramRunner
from shapes import Malformed, Refused, difference

from topicberg.errors import TableflowError
from topicberg.formats import avro
from topicberg.formats.columnar.memory import forget_stale
from topicberg.formats.columnar.program import NotCoveredError
from topicberg.formats.contract import Format
from topicberg.formats.subjects import RegisteredSchema

TIME = {"type": "int", "logicalType": "date"}


class Decoder(ProgramRunner):
    def __init__(self, schema: Any, latest: Any = None) -> None:
        """:param latest: a later version, which the table follows; None: there is none"""
        writer, newest = (
            RegisteredSchema(number, "AVRO", json.dumps(one))
            for number, one in ((NUMBER, schema), (NUMBER + 1, latest or schema))
        )
        super().__init__(cast("Format", avro), writer, newest, 256 * 1024)


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
