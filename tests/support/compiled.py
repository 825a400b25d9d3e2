"""Decodes records by their programs only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.decoding import decode
from topicberg.formats.columnar.program import Programs


class _RefusedError(Exception):
    pass


def decode_by_programs(programs: Programs, buffers: Buffers, records: list[bytes]) -> int:
    """Fill the buffers, and return the first record that is refused, or how many there are."""
    data = np.frombuffer(b"".join(records), np.uint8).copy()
    offsets: NDArray[np.int64] = np.cumsum([0, *map(len, records)], dtype=np.int64)

    def refuse(record: int) -> Mapping[str, Any]:
        raise _RefusedError(record)

    try:
        present = np.ones(len(records), np.uint8)
        return decode(programs, buffers, data, offsets, present, refuse).reached
    except _RefusedError as error:
        return int(error.args[0])
