"""Decodes records by programs and the reference decoder together, as the engine does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import stored_values
from numpy.typing import NDArray
from program_runner import PREFIX, ProgramRunner

from topicberg.formats.columnar.decoding import decode
from topicberg.formats.contract import Format, ResolvedSchema
from topicberg.formats.reasons import MalformedError

Row = dict[str, Any]


class Decoders(ProgramRunner):
    """Both decoders of a writer's records; they must agree.

    :raises NotCoveredError: the writer has no program
    """

    def __init__(self, format_: Format, pairing: ResolvedSchema, size: int = 256 * 1024) -> None:
        """:param size: bytes of a column's texts"""
        self._reference = format_.record_decoder(pairing)
        self._compile(format_, pairing, size)
        self.accepted: list[bool] = []
        """Whether the program decoded each record, of the last ones."""

    def decoded(self, payloads: Sequence[bytes]) -> list[Row | None]:
        """Return the rows of records, by the reference decoder; None: the record is malformed. What
        both decoders write into the buffers is compared with what the reference decoder alone
        writes."""
        stored = [self._stored(payload) for payload in payloads]
        records = [PREFIX + payload for payload in payloads]
        data = np.frombuffer(b"".join(records), np.uint8).copy()
        offsets: NDArray[np.int64] = np.cumsum([0, *map(len, records)], dtype=np.int64)
        present, refused = np.ones(len(records), np.uint8), set[int]()

        def reference(record: int) -> Mapping[str, Any]:
            refused.add(record)
            return self._reference(payloads[record])

        first = 0
        while first < len(records):
            self.buffers.clear()
            done = decode(self._programs, self.buffers, data, offsets, present, reference, first)
            batch, found = range(first, done.reached), self._columns()
            self.buffers.clear()
            for record in batch:
                if (row := stored[record]) is not None:
                    self.buffers.append(row)
            assert found == self._columns(), [payloads[record] for record in batch]
            rejected = [record for record in batch if stored[record] is None]
            assert [one.record for one in done.rejected] == rejected
            first = done.reached
        self.accepted = [record not in refused for record in range(len(records))]
        return [None if row is None else stored_values.row(row, self.fields) for row in stored]

    def _stored(self, payload: bytes) -> Mapping[str, Any] | None:
        try:
            return self._reference(payload)
        except MalformedError:
            return None

    def _columns(self) -> list[str]:
        """Return the columns in the buffers as text: NaN equals itself then, and -0.0 not 0.0."""
        arrays = self.buffers.arrays()
        for array in arrays:
            array.validate(full=True)
        return [repr(array.to_pylist()) for array in arrays]
