"""Programs of Avro records against the oracle, without a stack.

A program may refuse any record, which the reference decoder then decodes. What it accepts must be
exactly the oracle's value.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from program_runner import NUMBER, ProgramRunner

from topicberg.formats import avro
from topicberg.formats.columnar.memory import forget_stale
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
