"""Runs the program of a schema on records, without a stack."""

from __future__ import annotations

import itertools
from typing import Any

from compiled import decode_by_programs

from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.program import ProgramCode, Programs, Shape
from topicberg.formats.contract import Format, ResolvedSchema
from topicberg.formats.framing import wire_prefix
from topicberg.formats.subjects import RegisteredSchema

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
        table: RegisteredSchema | None = None,
    ) -> None:
        """:param it: the format
        :param latest: a later version, which the table follows; None: there is none
        :param table: the version that the columns are of; None: the writer's
        :param size: bytes of a column's texts
        """
        fields = it.fields("test", table or writer, itertools.count(1))
        self._compile(it, ResolvedSchema(writer, latest or writer, fields), size)

    def _compile(self, it: Format, pairing: ResolvedSchema, size: int) -> None:
        self.fields = pairing.fields
        self.shape, code = Shape(self.fields), ProgramCode()
        it.program(code, {place.name: place for place in self.shape.places}, pairing)
        self._programs = Programs.of(code, [(NUMBER, 0)], pairing.writer.schema_type)
        self.buffers = Buffers(self.shape, 64, size)

    def rows(self, payloads: list[bytes]) -> list[dict[str, Any]]:
        """The rows of the first records: those before the one that is refused."""
        records = [PREFIX + payload for payload in payloads]
        self.buffers.clear()
        done = decode_by_programs(self._programs, self.buffers, records)
        found = self.rows_in_buffers()
        assert len(found) == done
        return found

    def rows_in_buffers(self) -> list[dict[str, Any]]:
        columns = [array.to_pylist() for array in self.buffers.arrays()]
        names = [place.name for place in self.shape.places]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def row(self, payload: bytes) -> dict[str, Any] | None:
        """The row of a record; None: it is refused."""
        return next(iter(self.rows([payload])), None)

    def row_of_each(self, payloads: list[bytes]) -> list[dict[str, Any] | None]:
        """The rows of records, decoded together as far as none is refused; None: it is refused."""
        found: list[dict[str, Any] | None] = []
        while rest := payloads[len(found) : len(found) + 64]:
            found += (rows := self.rows(rest))
            if len(rows) < len(rest):  # it is refused, or the buffers were full
                found.append(self.row(payloads[len(found)]))
        return found
