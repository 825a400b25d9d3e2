"""Changes of a database's table as its current rows.

Of each key's changes in a batch, the last one counts: by offset within a partition, and by the
source's time and position between partitions, where a key may have changes too, because the schema
of the key or the number of partitions changed. A truncate deletes what came before it: the rows of
its own partition, and those of other partitions that are older in the source.

All changes are handled as arrays. Only changes that lack values, and keys that have changes in
several partitions, cost more: see :mod:`topicberg.tableflow.changelog.old_values`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topicberg.iceberg.position_deletes import FileRows
from topicberg.kafka.offsets import PartitionOffset
from topicberg.tableflow.changelog.change_batch import (
    PLACES,
    ByKey,
    ChangeBatch,
    Facts,
    NewRows,
    as_read,
    last_changes,
    newest_by_partition,
)
from topicberg.tableflow.changelog.changes import FACTS, LIVE, READ
from topicberg.tableflow.changelog.current_rows import FoldTarget, OldRows, Truncates, together
from topicberg.tableflow.changelog.fold_state import (
    MAX_DELETES,
    Deletion,
    FoldState,
    Lost,
    LostChanges,
    Move,
    Order,
    is_read_before,
    is_repetition,
    order_of,
)
from topicberg.tableflow.changelog.old_values import BatchCutError, BatchProgress, OldValues
from topicberg.tableflow.changelog.stale_reads import stale_reads
from topicberg.tableflow.upsert.key_files import Keys
from topicberg.tableflow.values.arrays import flags, whole
from topicberg.tableflow.values.offsets import end_before

_MAX_MOVES = 10_000
"""How many deletions by a change of the primary key are known."""


@dataclass(frozen=True)
class Folded:
    """What a batch changes.

    ``rows``: the rows to add. ``replaced``: the rows of the table that they replace, and those that
    are deleted. ``state``: what is known of the changes after it. ``refused``: changes that cannot
    be applied, and why. ``repeated``: changes that were read before, of rows that are not there any
    more.
    """

    rows: NewRows
    replaced: list[FileRows]
    state: FoldState
    refused: dict[PartitionOffset, str]
    repeated: frozenset[PartitionOffset]


@dataclass(frozen=True)
class Moves:
    """Changes of the primary key in a batch.

    ``inserted``: time and position of those whose insertion is in the batch. ``alone``: the other
    deletions, with their keys, partition, offset, time and position. ``keys``: the numbers of these
    keys.
    """

    inserted: set[tuple[Any, Any]]
    alone: pa.Table
    keys: NDArray[np.intp]


@dataclass
class Folding:
    """The folding of one batch."""

    target: FoldTarget
    progress: BatchProgress
    changes: ChangeBatch
    lost_records: pa.Table
    """The malformed records that have a key: partition, offset, and the columns of the key, see
    :attr:`.FoldTarget.key_columns`, which are null if the key is malformed."""

    def __post_init__(self) -> None:
        self.state = FoldState.of(self.target.table, self.target.head)
        skipped = [Lost(partition=p, offset=at) for p, at in sorted(self.progress.batch.skipped)]
        self.lost = LostChanges([*self.state.lost, *self.state.after_rows(skipped)])
        facts, may_move = self.changes.facts, self.progress.may_move
        self.reads = stale_reads(self.target, self.state, facts, may_move=may_move)

    def fold(self) -> Folded:
        """Return what the batch changes.

        :raises BatchCutError: only an earlier part of the batch can be applied now
        :raises LaterRecordsError: nothing can be applied now
        :raises TableflowError: the changes have no order
        """
        refused, repeated = dict[PartitionOffset, str](), frozenset[PartitionOffset]()
        while True:
            folded = self._fold(refused, repeated)
            if not folded.refused and not folded.repeated:
                return replace(folded, refused=refused, repeated=repeated)
            refused |= folded.refused
            repeated |= folded.repeated

    def _fold(
        self, refused: Mapping[PartitionOffset, str], repeated: frozenset[PartitionOffset]
    ) -> Folded:
        """Return what the batch changes without some changes, and which have to be left out too."""
        facts = self.changes.facts
        stays = ~facts.at({*refused, *repeated}) & ~self.reads.is_ignored
        no_order = facts.has("op") & ~facts.has("m", "p") & stays
        truncates = Truncates.of(
            self.target, self.progress.batch, self.state.truncates, facts, stays & facts.is_op("t")
        )
        is_tombstone = ~facts.has("op") & facts.has_key
        wanted = stays & (is_tombstone | facts.is_live | facts.is_op("d"))
        if truncates:
            truncates.check_order(int(np.count_nonzero(no_order)))
            wanted &= is_tombstone | ~truncates.precede(facts)
        counts = np.atleast_1d((facts.missing & stays & facts.is_live).any(axis=1))
        missing = sorted(
            name
            for name, placeholders in zip(self.target.toast, counts, strict=True)
            if placeholders
        )
        has_moves = bool((stays & facts.has("new_key", "old_key")).any())
        changes = self.changes.chosen(wanted)
        if self.progress.may_move and (missing or has_moves):
            self.progress.look(changes.facts)  # before the batch is cut
        lost = self._lost(refused)
        if lost and missing:
            self._cut_after_lost(changes, lost)
        by_key = ByKey.of(changes.facts)
        if has_moves and missing:
            self._cut_before_repeated(by_key)
        moves = self._moves(changes, by_key) if has_moves and self.target.toast else None
        return self._applied(changes, by_key, missing, truncates, moves, lost)

    def _moves(self, changes: ChangeBatch, by_key: ByKey) -> Moves:
        """Return the halves of changes of the primary key. A deletion whose insertion is not in the
        batch must find the row in the table, for the insertion may need it: so no change of the row
        comes before it (else BatchCutError)."""
        facts = by_key.facts
        # A tombstone has the headers of its deletion.
        places = np.flatnonzero(facts.has("new_key", "old_key") & facts.has("op"))
        before = by_key.count(facts.is_live) - facts.is_live
        rows = list(zip(*(facts.values(name, places) for name in ("op", "m", "p")), strict=True))
        inserted = {(m, p) for op, m, p in rows if op in LIVE}
        is_alone = [op == "d" and (m, p) not in inserted for op, m, p in rows]
        numbers = places[np.array(is_alone, np.bool_)]
        _cut_before(facts, numbers[before[numbers] > 0])
        table = facts.table([*PLACES, *FACTS], numbers)
        keys = self._with_keys(table, changes, by_key.order[numbers])
        return Moves(inserted, keys, by_key.key_numbers[numbers])

    def _cut_before_repeated(self, by_key: ByKey) -> None:
        """End the batch before the repetition of a change, after a later insertion of its key. The
        insertion took values from the row of an old key. It is repeated too, and by then only a
        snapshot has them."""
        facts = by_key.facts
        takes = by_key.is_insertion & facts.has("old_key") & facts.missing.any(axis=0)
        last = by_key.newest(takes, by_key.starts)
        places = np.flatnonzero(facts.has("op") & ~facts.is_op(READ) & (last >= 0))
        is_repeated = [
            own is not None and other is not None and is_repetition(own, other)
            for own, other in zip(_orders(facts, places), _orders(facts, last[places]), strict=True)
        ]
        _cut_before(facts, places[np.array(is_repeated, np.bool_)])

    def _with_keys(
        self, table: pa.Table, changes: ChangeBatch, numbers: NDArray[np.intp]
    ) -> pa.Table:
        """Return a table of some changes, given by their numbers, with their keys."""
        keys = changes.rows.select(list(self.target.keys)).take(pa.array(numbers))
        names = [*table.column_names, *self.target.key_columns]
        return pa.table([*table.columns, *keys.columns], names=names)

    def _lost(self, refused: Mapping[PartitionOffset, str]) -> list[Lost]:
        """Return the batch's changes that are left out; a record without a key is not a change."""
        lost, facts = self.lost_records, self.changes.facts
        if refused:
            places = np.flatnonzero(facts.at(refused) & facts.has_key)
            table = facts.table(["partition", "offset"], places)
            table = self._with_keys(table, self.changes, places).cast(lost.schema)
            lost = pa.concat_tables([lost, table])
        hashes = self.target.hashed(lost.select(self.target.key_columns))
        rows = lost.select(["partition", "offset"]).to_pylist()
        return [Lost(**row, key=hashes.get(number)) for number, row in enumerate(rows)]

    def _cut_after_lost(self, changes: ChangeBatch, lost: Sequence[Lost]) -> None:
        """End the batch after a change that is left out, if a later one needs values of its row. So
        all values that the changes of a batch take from each other are the newest."""
        facts = changes.facts
        places = np.flatnonzero(facts.is_live & facts.missing.any(axis=0))
        keys = changes.rows.select(list(self.target.keys)).take(pa.array(places))
        hashes = self.target.hashed(keys)
        last: dict[tuple[int, str | None], int] = {}
        for number, place in enumerate(places):
            partition, offset = int(facts.partition[place]), int(facts.offset[place])
            for key in (hashes.get(number), None):
                last[partition, key] = max(offset, last.get((partition, key), -1))
        has_moved = bool(facts.has("old_key")[places].any())
        batch_end = self.progress.batch.end
        _cut(
            (change.partition, change.offset + 1)
            for change in lost
            if last.get((change.partition, change.key), -1) > change.offset
            or (has_moved and batch_end[change.partition] > change.offset + 1)
        )

    def _applied(
        self,
        changes: ChangeBatch,
        by_key: ByKey,
        missing: Sequence[str],
        truncates: Truncates,
        moves: Moves | None,
        lost: Sequence[Lost],
    ) -> Folded:
        ends, places = last_changes(by_key)
        keys, truncated, target = by_key.hashes.chosen(ends), truncates.rows(), self.target
        keyed_rows = target.keyed_rows(keys) if places.num_rows else []
        old_rows = OldRows(target, keyed_rows, target.toast if missing else [], truncated)
        replaced, stale = old_rows.replaced_by(places)
        deletes, late = self._deletes(places, keys)
        is_live = flags(pc.not_equal(places.column("op"), "d"))
        is_live &= ~by_key.facts.at({*stale, *late})[ends]
        chosen = as_read(np.flatnonzero(is_live), by_key.order[ends[is_live]], len(changes))
        live = ends[chosen]
        values = OldValues(target, self.progress, self.state, self.lost, old_rows, changes, by_key)
        new = NewRows(changes, by_key.order[live], by_key.hashes.chosen(live))
        if missing:
            known = self._with_keys(places.take(pa.array(chosen)), changes, by_key.order[live])
            new = self._resolved(values, by_key, chosen, live, known, new)
        state = FoldState(
            truncates=truncates.newest,
            lacking=sorted({*self.state.lacking, *missing}),
            partitions=self.state.partitions or len(self.progress.batch.end),
            deletes=deletes,
            moves=self.state.moves if moves is None else self._known_moves(moves, values, lost),
            reverted=self._reverted(places, keys, old_rows)
            if missing or self.state.lacking
            else {},
            reached=self._reached(places),
            lost=self.lost.after(self.state.after_rows(lost)),
            reads=self.reads.state,
        )
        all_replaced = together(replaced, truncated)
        return Folded(new, all_replaced, state, values.refused, frozenset(values.repeated))

    def _known_moves(self, moves: Moves, values: OldValues, lost: Sequence[Lost]) -> list[Move]:
        """Return the deletions whose insertions are still to come, or raise BatchCutError."""
        if self.progress.may_move:
            values.check_moves(moves.alone, moves.keys)
        pending_moves = {
            (move.micros, move.position, move.key): move
            for move in self.state.moves
            if (move.micros, move.position) not in moves.inserted
        }
        snapshot = self.target.head.snapshot_id if self.target.head else None
        hashes = self.target.hashed(moves.alone.select(self.target.key_columns))
        rows = values.rows.matches(moves.keys).tolist()
        columns = moves.alone.select(["partition", "offset", "m", "p"]).to_pydict().values()
        for number, (*time_and_position, m, p) in enumerate(zip(*columns, strict=True)):
            if (m is not None or p is not None) and (key := hashes.get(number)):
                before = LostChanges(
                    self.state.after_rows(c for c in lost if c.is_before(*time_and_position))
                )
                lacks = rows[number] >= 0 and any(
                    lost_changes.is_after(key, *values.rows.place(rows[number]))
                    for lost_changes in (self.lost, before)
                )
                move = Move(micros=m, position=p, key=key, snapshot=snapshot, lacks=lacks)
                pending_moves.setdefault((m, p, key), move)
        return list(pending_moves.values())[-_MAX_MOVES:]

    def _reverted(self, places: pa.Table, keys: Keys, old: OldRows) -> dict[str, Move]:
        """Return the rows that repetitions of earlier changes replaced, and that are not back."""
        reverted = dict(self.state.reverted)
        known = np.array([int(key[:16], 16) for key in reverted], np.uint64)
        for which in map(int, np.flatnonzero(np.isin(keys.high, known))):
            key, place = keys.text(which), places.slice(which, 1).to_pylist()[0]
            order = order_of(place["m"], place["p"])
            newest = reverted[key].order if key in reverted else None
            if order is not None and newest is not None and not is_repetition(order, newest):
                del reverted[key]
        matches = old.matches(np.arange(len(places)))
        for which in map(int, old.maybe_newer(places, matches)):
            place, (row, newest) = places.slice(which, 1).to_pylist()[0], old.row(matches[which])
            order, key = order_of(place["m"], place["p"]), keys.text(which)
            partition, micros_column, position = (row[name] for name in self.target.order_columns)
            if order is None or newest is None or self.target.head is None or key in reverted:
                continue
            if is_repetition(order, newest):
                reverted[key] = Move(
                    micros=None if micros_column is None else newest[0],
                    position=position,
                    key=key,
                    snapshot=self.target.head.snapshot_id,
                    lacks=self.lost.is_after(key, partition, row[self.target.offset_column]),
                )
        return dict(list(reverted.items())[-_MAX_MOVES:])

    def _reached(self, places: pa.Table) -> dict[int, tuple[int | None, int | str | None]]:
        """Return time and position of the newest change by partition, but those of read rows."""
        reached = dict(self.state.reached)
        counts = pc.not_equal(places.column("op"), READ)
        newest = newest_by_partition(places.filter(counts).select(["partition", "m", "p"]))
        for partition, *order in zip(*newest.to_pydict().values(), strict=True):
            own, other = order_of(*order), order_of(*reached.get(partition, (None, None)))
            if own is not None and (other is None or own > other):
                reached[partition] = order[0], order[1]
        return reached

    def _deletes(
        self, places: pa.Table, keys: Keys
    ) -> tuple[dict[str, Deletion], list[PartitionOffset]]:
        """Return the deleted keys to remember, and the changes from before such a deletion."""
        deletes, most = dict(self.state.deletes), MAX_DELETES * (1 + 9 * self.progress.may_move)
        late: list[PartitionOffset] = []
        is_delete = flags(pc.equal(places.column("op"), "d"))
        newest = np.flatnonzero(is_delete & ~flags(places.column("m").is_null()))
        ages = [(name, "ascending") for name in ("m", "p", "offset")]
        newest = newest[pc.sort_indices(places.take(pa.array(newest)), ages).to_numpy()]
        self._forget(places.column("p").take(pa.array(newest[:-most])).to_pylist())
        held_high = np.array([int(key[:16], 16) for key in deletes], np.uint64)
        known, newest = np.flatnonzero(np.isin(keys.high, held_high)), newest[-most:]
        chosen = np.append(np.setdiff1d(known, newest), newest)
        for which, row in zip(chosen, places.take(pa.array(chosen)).to_pylist(), strict=True):
            key = keys.text(which)
            order, deletion = order_of(row["m"], row["p"]), deletes.get(key)
            if (
                deletion is not None
                and deletion.partition != row["partition"]
                and (order is None or (deletion.order is not None and order < deletion.order))
            ):
                late.append((row["partition"], row["offset"]))
                continue
            deletes.pop(key, None)
            if order is not None:
                moment = {"micros": row["m"], "position": row["p"]}
                deletion = Deletion(partition=row["partition"], **moment)
            if row["op"] == "d" and deletion is not None:
                deletes[key] = deletion  # without an order, a tombstone after the deletion
        kept = list(deletes.items())
        self._forget([deletion.position for _, deletion in kept[:-most]])
        return dict(kept[-most:]), late

    def _forget(self, positions: Sequence[Any]) -> None:
        """Note the positions of deletions that are not known any more."""
        for position in positions:
            if position is not None and not is_read_before(position, self.reads.state.forgotten):
                self.reads.state.forgotten = position

    def _resolved(
        self,
        old: OldValues,
        by_key: ByKey,
        wanted: NDArray[np.intp],
        live: NDArray[np.intp],
        places: pa.Table,
        new: NewRows,
    ) -> NewRows:
        """Return the rows with values of changes before them in the batch, and of older rows.

        :param wanted: the numbers of the keys whose rows exist after the batch
        :param live: the last changes of these keys, and ``places`` what is known of them
        """
        facts, starts = by_key.facts, by_key.life_starts
        origins: dict[str, NDArray[np.intp]] = {}
        left = np.zeros((len(live), len(self.target.toast)), np.bool_)
        for number, name in enumerate(self.target.toast):
            lacks = facts.missing[number]
            if not lacks[live].any():
                continue
            has_value = by_key.newest(facts.is_live & ~lacks, starts)[live]
            origins[name] = np.where(has_value < 0, -1, by_key.order[has_value])
            left[:, number] = has_value < 0
        new = replace(new, origins=origins)
        lacking = np.flatnonzero(left.any(axis=1))
        if not len(lacking):
            return new
        moved = by_key.newest(facts.is_live & facts.has("old_key"), starts)[live[lacking]]
        keys = facts.table(["old_key", "m", "p"], np.maximum(moved, 0))
        origin = pa.StructArray.from_arrays(
            [whole(column) for column in keys.columns], ["key", "m", "p"], mask=pa.array(moved < 0)
        )
        ends = np.cumsum(left[lacking].sum(axis=1), dtype=np.int32)
        names = pa.array(self.target.toast).take(pa.array(np.nonzero(left)[1]))
        more = {
            "kafka_ms": facts.table(["kafka_ms"], live[lacking]).column(0),
            "missing": pa.ListArray.from_arrays(np.append(np.int32(0), ends), names),
            "life": pa.array(by_key.lives[live[lacking]]),
            "origin": origin,
        }
        taken = places.take(pa.array(lacking))
        names = [*taken.column_names, *more]
        needs = pa.table([*taken.columns, *more.values()], names=names)
        numbers, fills = old.fills(needs, wanted[lacking])
        return replace(new, fills=fills, filled=lacking[numbers])


def _cut_before(facts: Facts, places: NDArray[np.intp]) -> None:
    """:raises BatchCutError: there are changes, before which the batch has to end"""
    _cut(zip(facts.partition[places].tolist(), facts.offset[places].tolist(), strict=True))


def _cut(offsets: Iterable[PartitionOffset]) -> None:
    """:raises BatchCutError: there are offsets at which the batch has to end"""
    ends: dict[int, int] = {}
    for partition, offset in offsets:
        end_before(ends, partition, offset)
    if ends:
        raise BatchCutError(ends)


def _orders(facts: Facts, places: NDArray[np.intp]) -> list[Order | None]:
    """Return what orders some changes of different partitions."""
    return [*map(order_of, *(facts.values(name, places) for name in ("m", "p")))]
