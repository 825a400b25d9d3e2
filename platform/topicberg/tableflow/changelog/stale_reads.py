"""Rows that a snapshot of the source read before newer changes of their keys.

A snapshot may read from a replica that lags behind, or write its rows late. A row that it read is
ignored if its position is below that of the last change before it in its partition *and* below that
of its key's row, deletion or truncate. The first condition tells such a row from one of a source
whose log began again, at lower positions: there, the change before it has a lower position too.
Changes that are not read by a snapshot are never compared so: their offsets order them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from topicberg.tableflow.changelog.change_batch import ByKey, Facts
from topicberg.tableflow.changelog.changes import READ
from topicberg.tableflow.changelog.current_rows import FoldTarget, OldRows
from topicberg.tableflow.changelog.fold_state import (
    FoldState,
    ReadState,
    is_comparable,
    is_read_before,
)
from topicberg.tableflow.values.arrays import whole

_NO_TIME = np.iinfo(np.int64).min


class _At(NamedTuple):
    """Time and position of a change."""

    micros: int | None
    position: Any

    def is_after_read(self, read: _At) -> bool:
        return is_read_before(read.position, self.position)

    def may_be_after_read(self, read: _At) -> bool:
        """Return whether only the time says that the change is newer."""
        return (
            not is_comparable(read.position, self.position)
            and read.micros is not None
            and self.micros is not None
            and read.micros < self.micros
        )


@dataclass(frozen=True)
class StaleReads:
    """``is_ignored``: which changes of a batch are ignored. ``state``: what is known after it."""

    is_ignored: NDArray[np.bool_]
    state: ReadState


def stale_reads(
    target: FoldTarget, state: FoldState, facts: Facts, *, may_move: bool
) -> StaleReads:
    """Return which rows of a batch a snapshot read before newer changes of their keys."""
    reads = state.reads.model_copy(deep=True)
    is_ignored, is_suspect = np.zeros((2, len(facts)), np.bool_)
    suspects = _suspects(facts, reads, may_move=may_move)
    if not len(suspects):
        return StaleReads(is_ignored, reads)
    is_suspect[suspects] = True
    numbers = np.flatnonzero(np.isin(facts.high, facts.high[suspects]) & facts.has_key)
    by_key = ByKey.of(facts.chosen(numbers))
    rows = _rows(target, state, by_key)
    truncates = [_At(truncate.micros, truncate.position) for truncate in state.truncates]
    truncates += _changes(facts, np.flatnonzero(facts.is_op("t")))
    columns = by_key.facts.table(["partition", "op"], np.arange(len(numbers))).to_pylist()
    ordered = _changes(by_key.facts, np.arange(len(numbers)))
    newest: _At | None = None
    for place, (change, order) in enumerate(zip(columns, ordered, strict=True)):
        if by_key.is_new_group[place]:
            newest = rows.get(int(by_key.key_numbers[place]))
        number = numbers[by_key.order[place]]
        if is_suspect[number]:
            others = filter(None, (newest, *truncates))
            if newer := [other for other in others if other.is_after_read(order)]:
                is_ignored[number] = True
                reads.ignored += 1
                for position in [other.position for other in newer]:
                    known = reads.outdated.get(change["partition"])
                    if known is None or is_read_before(known, position):
                        reads.outdated[change["partition"]] = position
                continue
            forgotten = newest is None and is_read_before(order.position, reads.forgotten)
            reads.doubtful += forgotten or (newest is not None and newest.may_be_after_read(order))
        if order != (None, None):  # a tombstone has neither
            newest = order
    return StaleReads(is_ignored, reads)


def _suspects(facts: Facts, reads: ReadState, *, may_move: bool) -> NDArray[np.intp]:
    """Return the rows that a snapshot may have read too early; record the last other changes."""
    is_read = facts.is_op(READ) & facts.has_key
    is_streamed = facts.has("op") & ~facts.is_op(READ) & facts.has("m", "p")
    suspects = [np.empty(0, np.intp)]
    for partition in map(int, np.unique(facts.partition)):
        inside = facts.partition == partition
        own, streamed = np.flatnonzero(inside & is_read), np.flatnonzero(inside & is_streamed)
        # The changes that are the last one before some row.
        used, place = np.unique(np.searchsorted(streamed, own), return_inverse=True)
        last = _changes(facts, streamed[used[used > 0] - 1])
        if 0 in used:
            last.insert(0, _At(*reads.streamed.get(partition, (None, None))))
        if any(change != (None, None) for change in last):
            suspects.append(own[_may_be_outdated(facts, own, last, place)])
        if len(streamed):
            (reads.streamed[partition],) = _changes(facts, streamed[-1:])
    if may_move:  # the newer change may be in another partition
        own = np.flatnonzero(is_read)
        for change in map(_At._make, reads.streamed.values()):
            suspects.append(own[_may_be_outdated(facts, own, [change], np.zeros_like(own))])
    return np.unique(np.concatenate(suspects))


def _may_be_outdated(
    facts: Facts, numbers: NDArray[np.intp], changes: Sequence[_At], place: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return which rows may be older than the change before each, at ``place`` in ``changes``."""
    # A snapshot has many rows at few positions.
    positions = whole(facts.table(["p"], numbers).column(0)).dictionary_encode("encode")
    distinct = positions.dictionary.to_pylist()
    pairs, pair = np.unique(
        place * len(distinct) + positions.indices.to_numpy(), return_inverse=True
    )
    compared = [(distinct[n % len(distinct)], changes[n // len(distinct)]) for n in pairs.tolist()]
    is_before = np.array([is_read_before(p, change.position) for p, change in compared], np.bool_)
    is_known = np.array([is_comparable(p, change.position) for p, change in compared], np.bool_)
    micros = (change.micros for change in changes)
    times = np.array([_NO_TIME if time is None else time for time in micros], np.int64)
    own = pc.fill_null(facts.table(["m"], numbers).column(0), -_NO_TIME - 1).to_numpy()
    return np.asarray(is_before[pair] | (~is_known[pair] & (own < times[place])), np.bool_)


def _changes(facts: Facts, numbers: NDArray[np.intp]) -> list[_At]:
    """Return time and position of some changes."""
    return [*map(_At, *(facts.values(name, numbers) for name in ("m", "p")))]


def _rows(target: FoldTarget, state: FoldState, by_key: ByKey) -> dict[int, _At]:
    """Return time and position of the row, or of the deletion, of each key."""
    keys = by_key.hashes.chosen(by_key.is_new_key)
    orders = {
        number: _At(deletion.micros, deletion.position)
        for number in (range(len(keys.high)) if state.deletes else ())
        if (deletion := state.deletes.get(keys.text(number))) is not None
    }
    old = OldRows(target, target.keyed_rows(keys), [], [])
    matches = old.matches(np.arange(len(keys.high)))
    numbers = np.flatnonzero(matches >= 0)
    orders |= zip(numbers.tolist(), map(_At._make, old.changes(matches[numbers])), strict=True)
    return orders
