"""Runs the program of a schema on records, without a stack."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa

from topicberg.formats import Format, Pairing
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.decoding import decode
from topicberg.formats.columnar.program import Code, Programs, Shape
from topicberg.formats.subjects import RegisteredSchema, wire_prefix

NUMBER = 7
PREFIX = wire_prefix(NUMBER)


class ProgramRunner:
    """The program of one schema.

    :raises NotCoveredError: it has none
    """

    def __init__(
        self,
        it: Format,
        writer: RegisteredSchema,
        latest: RegisteredSchema | None = None,
        size: int = 64 * 1024,
    ) -> None:
        """:param it: the format
        :param latest: a later version, which the table follows; None: there is none
        :param size: bytes of a column's texts
        """
        self.fields = it.fields("test", writer, itertools.count(1))
        self.shape, code = Shape(self.fields), Code()
        places = {place.name: place for place in self.shape.places}
        it.program(code, places, Pairing(writer, latest or writer, self.fields))
        self._programs = Programs.of(code, [(NUMBER, 0)], writer.schema_type)
        self.buffers = Buffers(self.shape, 64, size)

    def rows(self, payloads: list[bytes]) -> list[dict[str, Any]]:
        """The rows of the first records: those before the one that is refused."""
        records = [PREFIX + payload for payload in payloads]
        data = np.frombuffer(b"".join(records), np.uint8).copy()
        offsets = np.cumsum([0, *map(len, records)], dtype=np.int64)
        self.buffers.clear()
        present = np.ones(len(records), np.uint8)
        done = decode(self._programs, self.buffers, data, offsets, present)
        columns = [array.to_pylist() for array in self.buffers.arrays()]
        assert all(len(column) == done for column in columns)
        names = [place.name for place in self.shape.places]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def row(self, payload: bytes) -> dict[str, Any] | None:
        """The row of a record; None: it is refused."""
        try:
            return next(iter(self.rows([payload])), None)
        except pa.ArrowInvalid:  # a text is not UTF-8
            return None
