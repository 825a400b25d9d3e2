"""Decodes records by programs, and those that programs refuse by the format's reference decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.columnar import avro, json_reader, protobuf_reader
from topicberg.formats.columnar.columns import Buffers, BuffersFullError
from topicberg.formats.columnar.memory import WORD, address, compiled
from topicberg.formats.columnar.program import Programs
from topicberg.formats.columnar.records import end_value, schema_of, start_of, tables
from topicberg.formats.framing import WIRE_BYTES
from topicberg.formats.reasons import MalformedError
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
def execute(reader, data, offsets, present, programs, buffers, first, work):  # type: ignore[no-untyped-def]
    """Decode records; see :func:`decode`.

    :param reader: its number
    :param programs, buffers: see :attr:`Programs.arrays` and :attr:`Buffers.tables`
    :param work: words of memory that are 0
    :returns: the first record that is refused, or has no place in the buffers; else their number
    """
    base, memory = address(data), address(work)
    instructions, targets, text_offsets, texts, writers = programs
    number, start = np.int64(-1), np.int64(-1)
    nested = np.int64(0)  # objects or messages of the records so far
    program = address(instructions), address(targets), address(text_offsets), address(texts)
    columns, ending = tables(*buffers)
    records = min(len(offsets) - 1, first + buffers[3][1, 0] - buffers[2][0])
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
                nested = json_reader.record(
                    position, end, start, program, columns, ending, memory, len(targets), nested
                )
            else:
                nested = protobuf_reader.record(
                    position, end, start, program, columns, ending, memory, nested
                )
            if nested < 0:
                return record
        end_value(0, *ending)
    return records


class Rejected(NamedTuple):
    """A record that does not become a row."""

    record: int
    reason: MalformedError


@dataclass(frozen=True)
class Decoded:
    """What became of records."""

    reached: int  # The record to continue with when the buffers are empty again.
    rejected: list[Rejected]


def decode(
    programs: Programs | None,
    buffers: Buffers,
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    present: NDArray[np.uint8],
    reference: Callable[[int], Mapping[str, Any]],
    first: int = 0,
) -> Decoded:
    """Decode records into buffers: a stretch by programs, then the next one by the reference.

    The rows in the buffers are those of the records up to ``reached`` that are not rejected.

    :param data: the bytes of all keys, or all values, with the wire format's five bytes
    :param offsets: where each record begins, and where the last one ends
    :param present: 0 for a record without bytes, whose columns are null
    :param reference: returns the stored values of a record, or raises :class:`MalformedError`
    :param first: the record to begin with
    :raises BuffersFullError: the row of the first record does not fit into empty buffers
    """
    # Compiled code reads words, also at the end of the last record.
    if len(data) < offsets[-1] + WORD:
        data = np.concatenate([data, np.zeros(WORD, np.uint8)])
    count = len(offsets) - 1
    rejected: list[Rejected] = []
    if programs is not None:
        reader, words = READERS[programs.language]
        work = np.zeros(words(len(programs.targets)), np.int64)
    while first < count:
        if programs is not None:
            work.fill(0)
            arrays, tables_of = programs.arrays, buffers.tables
            first = execute(reader, data, offsets, present, arrays, tables_of, first, work)
            if first == count:
                break
            buffers.undo()
            # Perhaps the record is refused only because it does not fit.
            if buffers.is_nearly_full:
                break
        try:
            buffers.append(reference(first) if present[first] else {})
        except MalformedError as reason:
            # Frames would keep what was decoded in memory, and the garbage collector busy.
            reason.__context__ = None
            rejected.append(Rejected(first, reason.with_traceback(None)))
        except BuffersFullError:
            if not buffers.counts[0] and not rejected:
                raise
            break
        first += 1
    return Decoded(first, rejected)
