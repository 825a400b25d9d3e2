"""The last change of each key in a batch: the one that says what becomes of its row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topicberg.tableflow.change_batch import ByKey


def last_changes(by_key: ByKey) -> tuple[NDArray[np.intp], pa.Table]:
    """Return the last change of each key, and its partition, offset, time, position, operation.

    A tombstone has time and position of the deletion before it.
    """
    facts = by_key.facts
    ends = np.flatnonzero(by_key.is_last)
    known = by_key.newest(facts.has("m", "p"), by_key.starts)[ends]
    places = facts.table(["partition", "offset", "op"], ends)
    places = places.set_column(2, "op", pc.fill_null(places.column("op"), "d"))
    order = facts.table(["m", "p"], np.maximum(known, 0))
    is_known = pa.array(known >= 0)
    for name in ("m", "p"):
        nothing = pa.scalar(None, facts.of_type(name))
        places = places.append_column(name, pc.if_else(is_known, order.column(name), nothing))
    starts = np.flatnonzero(by_key.is_new_key[by_key.starts[ends]])  # the first group of a key
    if len(starts) == len(ends):
        return ends, places
    bounds = [*starts.tolist(), len(ends)]
    chosen = np.array(
        [
            first if end == first + 1 else _latest(places, first, end)
            for first, end in pairwise(bounds)
        ],
        np.intp,
    )
    return ends[chosen], places.take(pa.array(chosen))


def _latest(places: pa.Table, first: int, end: int) -> int:
    """Return the latest of the last changes of one key in several partitions."""

    def age(number: int) -> tuple[Any, ...]:
        m, p, offset = (places.column(name)[number].as_py() for name in ("m", "p", "offset"))
        empty: Any = "" if isinstance(p, str) else 0
        return m is not None, m or 0, p is not None, p or empty, offset

    return max(range(first, end), key=age)


def as_read(chosen: NDArray[np.intp], order: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return some places in the order in which their changes were read.

    :param order: the numbers of the changes in that order
    :param count: of all changes
    """
    found = np.full(count, -1, np.intp)
    found[order] = chosen
    return found[found >= 0]
