"""The last change of each key in a batch: the one that says what becomes of its row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topicberg.tableflow.changelog.change_batch import ByKey
from topicberg.tableflow.changelog.changes import READ


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
    is_first = by_key.is_new_key[by_key.starts[ends]]  # the first group of a key
    is_only = is_first & np.append(is_first[1:], True)[: len(ends)]
    if is_only.all():
        return ends, places
    several = np.flatnonzero(~is_only)
    changes = places.take(pa.array(several))
    changes = changes.append_column("key", pa.array(by_key.key_numbers[ends[several]]))
    # A snapshot reads rows as they were at its position, but with the time of the reading.
    streamed = changes.filter(pc.not_equal(changes.column("op"), READ))
    newest = streamed.group_by("key").aggregate([("p", "max")])
    position = newest.column("p_max").take(
        pc.index_in(changes.column("key"), value_set=newest.column("key"))
    )
    is_current = pc.invert(
        pc.and_(pc.equal(changes.column("op"), READ), pc.less(changes.column("p"), position))
    )
    changes = changes.append_column("is_current", pc.fill_null(is_current, fill_value=True))
    columns = [(name, "ascending") for name in ("key", "is_current", "m", "p", "offset")]
    age = pc.sort_indices(
        changes, [*columns, ("partition", "descending")], null_placement="at_start"
    )
    in_order = changes.column("key").take(age).to_numpy()
    latest = several[age.to_numpy()[np.append(in_order[1:] != in_order[:-1], True)]]
    chosen = np.sort(np.concatenate([np.flatnonzero(is_only), latest]))
    return ends[chosen], places.take(pa.array(chosen))


def as_read(chosen: NDArray[np.intp], order: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return some places in the order in which their changes were read.

    :param order: the numbers of the changes in that order
    :param count: of all changes
    """
    found = np.full(count, -1, np.intp)
    found[order] = chosen
    return found[found >= 0]
