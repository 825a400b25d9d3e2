"""Executes programs for many records, by the reader of their format."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from topicberg.formats.columnar import avro, json_reader, protobuf_reader
from topicberg.formats.columnar.memory import address, compiled
from topicberg.formats.columnar.records import end_value, schema_of, start_of, tables
from topicberg.formats.framing import WIRE_BYTES
from topicberg.formats.subjects import SchemaType

_AVRO, _JSON, _PROTOBUF = range(3)
READERS: dict[SchemaType, tuple[int, Callable[[int], int]]] = {
    "AVRO": (_AVRO, avro.words),
    "JSON": (_JSON, json_reader.words),
    "PROTOBUF": (_PROTOBUF, protobuf_reader.words),
}
"""The number of each reader in compiled code, and the words of memory that it works in, by how many
targets its programs have."""


@compiled
def execute(  # type: ignore[no-untyped-def]
    reader,
    data,
    offsets,
    present,
    instructions,
    targets,
    text_offsets,
    texts,
    writers,
    addresses,
    used,
    counts,
    rooms,
    starts,
    ends,
    first,
    work,
):
    """Decode records; see :func:`topicberg.formats.columnar.decoding.decode`.

    :param reader: its number
    :param work: words of memory that are 0
    :returns: the first record that is refused, or has no place in the buffers; else their number
    """
    base, memory = address(data), address(work)
    number, start = np.int64(-1), np.int64(-1)
    nested = np.int64(0)  # objects or messages of the records so far
    program = address(instructions), address(targets), address(text_offsets), address(texts)
    columns, ending = tables(addresses, used, counts, rooms, starts, ends)
    records = min(len(offsets) - 1, first + rooms[1, 0] - counts[0])
    for record in range(first, records):
        if present[record]:
            position, end = offsets[record], offsets[record + 1]
            schema_id = schema_of(data, position, end)
            if schema_id != number:
                number, start = schema_id, start_of(writers, schema_id)
            if number < 0 or start < 0:
                return record
            position, end = base + position + WIRE_BYTES, base + end
            if reader == _AVRO:
                if not avro.record(position, end, start, program, columns, ending, memory):
                    return record
            elif reader == _JSON:
                size = len(targets)
                nested = json_reader.record(
                    position, end, start, program, columns, ending, memory, size, nested
                )
            else:
                nested = protobuf_reader.record(
                    position, end, start, program, columns, ending, memory, nested
                )
            if nested < 0:
                return record
        end_value(0, *ending)
    return records
