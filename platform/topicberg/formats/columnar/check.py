"""Compile what executes programs, and check it with a record."""

from __future__ import annotations

import itertools
import json

import numpy as np
from pyiceberg.types import StringType

from topicberg.formats import avro
from topicberg.formats.columnar.avro import decode
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.program import Code, Programs, Shape
from topicberg.formats.subjects import RegisteredSchema, wire_prefix


def check() -> None:
    """Decode one record.

    :raises RuntimeError: the result is wrong
    """
    text = json.dumps(
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "string"]}]}
    )
    schema = RegisteredSchema(1, "AVRO", text)
    fields = avro.fields("check", schema, itertools.count(1))
    shape, code = Shape(fields), Code()
    avro.program(code, {place.name: place for place in shape.places}, schema, schema, fields)
    assert isinstance(fields[0].field_type, StringType)  # noqa: S101
    record = wire_prefix(1) + b"\x02\x04ok"
    buffers = Buffers(shape, 1, 1024)
    data = np.frombuffer(record, np.uint8).copy()
    offsets, present = np.array([0, len(record)], np.int64), np.ones(1, np.uint8)
    done = decode(Programs.of(code, [(1, 0)]), buffers, data, offsets, present)
    if done != 1 or buffers.arrays()[0].to_pylist() != ["ok"]:
        raise RuntimeError("compiled code decodes a record incorrectly on this machine")
