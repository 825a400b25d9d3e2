"""Decodes records by programs, and those that programs refuse by the format's reference decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.columnar.columns import Buffers, BuffersFullError
from topicberg.formats.columnar.execution import READERS, execute
from topicberg.formats.columnar.memory import WORD
from topicberg.formats.columnar.program import Programs
from topicberg.formats.reasons import MalformedError


class Rejected(NamedTuple):
    """A record that does not become a row."""

    record: int
    reason: MalformedError


@dataclass(frozen=True)
class Decoded:
    """What became of records."""

    reached: int
    """The record to continue with when the buffers are empty again."""
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

    :param programs: None: there are none
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
            first = execute(
                reader,
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
                buffers.starts,
                buffers.ends,
                first,
                work,
            )
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
