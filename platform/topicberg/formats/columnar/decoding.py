"""Decodes records by programs, with the compiled code of their format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.columnar import avro, json_reader, protobuf_reader
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.program import Programs
from topicberg.formats.subjects import SchemaType

_EXECUTORS: dict[SchemaType, Callable[..., Any]] = {
    "AVRO": avro.execute,
    "JSON": json_reader.execute,
    "PROTOBUF": protobuf_reader.execute,
}
WORD = 8


def decode(
    programs: Programs,
    buffers: Buffers,
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    present: NDArray[np.uint8],
    first: int = 0,
) -> int:
    """Decode records into buffers.

    :param data: the bytes of all keys, or all values, with the wire format's five bytes
    :param offsets: where each record begins, and where the last one ends
    :param present: 0 for a record without bytes, whose columns are null
    :param first: the record to begin with
    :returns: the record that was not decoded, or how many there are: the buffers are full, or, if
        it is the first one, it is not covered
    """
    starts, rows = buffers.shape.ends()
    # Compiled code reads words, also at the end of the last record.
    if len(data) < offsets[-1] + WORD:
        data = np.concatenate([data, np.zeros(WORD, np.uint8)])
    done: int = _EXECUTORS[programs.language](
        data,
        offsets,
        present,
        programs.instructions,
        programs.targets,
        *programs.texts,
        programs.writers,
        buffers.addresses,
        buffers.used,
        buffers.counts,
        buffers.rooms,
        starts,
        rows,
        first,
    )
    return done
