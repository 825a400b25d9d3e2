"""Compile what executes programs, and check it with a record."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.types import DoubleType, NestedField, StringType

from topicberg.formats import avro
from topicberg.formats import json as json_schema
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.decoding import decode
from topicberg.formats.columnar.program import ProgramCode, Programs, Shape
from topicberg.formats.contract import Format, ResolvedSchema
from topicberg.formats.framing import wire_prefix
from topicberg.formats.protobuf.program import emit_record
from topicberg.formats.protobuf.wire import Message, WireField
from topicberg.formats.subjects import RegisteredSchema, SchemaType

_DOUBLE = 1.7976931348623157
_FIELDS = (
    NestedField(1, "a", StringType(), required=False),
    NestedField(2, "b", DoubleType(), required=False),
)


def check() -> None:
    """Decode one record of each format; RuntimeError: the result is wrong."""
    double = struct.pack("<d", _DOUBLE)
    fields: list[object] = [
        {"name": "a", "type": ["null", "string"]},
        {"name": "b", "type": "double"},
    ]
    schema = {"type": "record", "name": "r", "fields": fields}
    _check("AVRO", partial(_of_format, avro, schema), b"\x02\x04ok" + double)
    properties = {"a": {"type": "string"}, "b": {"type": "number"}}
    _check(
        "JSON",
        partial(_of_format, json_schema, {"properties": properties}),
        b'{"a": "ok", "b": %a}' % _DOUBLE,
    )
    _check("PROTOBUF", _of_message, b"\0\x0a\x02ok\x11" + double)


def _of_format(its_format: Format, schema: object, code: ProgramCode, shape: Shape) -> None:
    language: SchemaType = "AVRO" if its_format is avro else "JSON"
    registered = RegisteredSchema(1, language, json.dumps(schema))
    places = {place.name: place for place in shape.places}
    its_format.program(code, places, ResolvedSchema(registered, registered, _FIELDS))


def _of_message(code: ProgramCode, shape: Shape) -> None:
    """Append a program without protoc, which takes long."""
    types = pa.string(), pa.float64()
    fields = WireField("a", 1, "string", 0, types[0]), WireField("b", 2, "double", 1, types[1])
    places = {place.name: place for place in shape.places}
    emit_record(code, Message(fields, ("a", "b")), [b"\0"], places, len(fields))


def _refused(record: int) -> dict[str, Any]:
    raise RuntimeError(f"compiled code refuses the record {record}")


def _check(
    language: SchemaType, program: Callable[[ProgramCode, Shape], None], payload: bytes
) -> None:
    shape, code = Shape(_FIELDS), ProgramCode()
    program(code, shape)
    programs, buffers = Programs.of(code, [(1, 0)], language), Buffers(shape, 1, 1024)
    data = np.frombuffer(wire_prefix(1) + payload, np.uint8).copy()
    offsets, present = np.array([0, len(data)], np.int64), np.ones(1, np.uint8)
    done = decode(programs, buffers, data, offsets, present, _refused).reached
    buffers.undo()
    if done != 1 or [column.to_pylist() for column in buffers.arrays()] != [["ok"], [_DOUBLE]]:
        raise RuntimeError(
            f"compiled code decodes a record of {language} incorrectly on this machine"
        )
