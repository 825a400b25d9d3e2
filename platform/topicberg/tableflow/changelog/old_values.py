"""Values that a database's connector did not have: those of the row before the change.

The row is the table's, or a change before in the batch has the value. Half of a change of the
primary key is the deletion of the old key, half an insertion, perhaps in another partition: what
the insertion lacks is the old key's, which may be deleted by then. An earlier snapshot has it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topicberg.errors import TopicbergError
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.tableflow.changelog.change_batch import PLACES, ByKey, ChangeBatch, Facts
from topicberg.tableflow.changelog.changes import FACTS, LIVE, READ
from topicberg.tableflow.changelog.current_rows import FoldTarget, OldRows
from topicberg.tableflow.changelog.fold_state import (
    FoldState,
    LostChanges,
    Move,
    Order,
    order_of,
    precedes,
)
from topicberg.tableflow.values.offsets import Batch, end_before

CERTAIN_MS = 150_000
"""After this time, a producer has sent a record or given up (Kafka's ``delivery.timeout.ms``, and
some more): no older change comes from another partition."""
PATIENCE_MS = CERTAIN_MS
"""How long an insertion waits for the deletion of its old key, by the record's timestamp."""


class BatchCutError(Exception):
    """The batch has to end earlier; ``ends``: offset by partition."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        super().__init__("the batch has to end earlier")
        self.ends = dict(ends)


class LaterRecordsError(TopicbergError):
    """A change cannot be applied before another one is in Kafka: the topic is tried again."""


@dataclass
class BatchProgress:
    """How far the topic is read.

    ``log_end``: where the log of each partition ended when the batch was planned. ``unread``: of
    partitions in which an attempt before this one read on, the oldest change behind the batch.
    ``may_move``: whether keys have changes in several partitions, because the schema of the key or
    the number of partitions changed.
    """

    batch: Batch
    log_end: Offsets
    unread: dict[int, Order]
    may_move: bool
    passed: dict[int, Order] = field(default_factory=dict)
    """The newest change of each partition in the batch."""
    _facts: Facts | None = None

    def look(self, facts: Facts) -> None:
        """Note the newest change of each partition, without rows that a snapshot read."""
        self._facts = facts
        for partition in map(int, np.unique(facts.partition)):
            if (at := _extreme(facts, facts.partition == partition, pc.max)) is not None:
                self.passed[partition] = at

    def end_at(self, ends: Mapping[int, int]) -> None:
        """Note the oldest change of each partition behind an earlier end."""
        if (facts := self._facts) is None:
            return
        for partition, end in ends.items():
            behind = (facts.partition == partition) & (facts.offset >= end)
            if (at := _extreme(facts, behind, pc.min)) is not None:
                self.unread[partition] = min(at, self.unread.get(partition, at))

    def has_read(self, partition: int, order: Order | None) -> bool:
        """Return whether a change of a partition shows that all before an order are read."""
        changes = self.passed.get(partition), self.unread.get(partition)
        return order is not None and any(at is not None and at >= order for at in changes)


def _extreme(facts: Facts, chosen: NDArray[np.bool_], choose: Any) -> Order | None:
    """Return the least or the greatest order of changes, without rows that a snapshot read."""
    own = facts.table(["m", "p"], np.flatnonzero(chosen & facts.has("op") & ~facts.is_op(READ)))
    micros = choose(own.column("m")).as_py()
    if micros is not None:
        own = own.filter(pc.equal(own.column("m"), micros))
    return order_of(micros, choose(own.column("p")).as_py())


class OldValues:
    """Values that changes lack, from the table's rows and from the rows of old keys."""

    def __init__(
        self,
        target: FoldTarget,
        progress: BatchProgress,
        state: FoldState,
        lost: LostChanges,
        rows: OldRows,
        changes: ChangeBatch,
        by_key: ByKey,
    ) -> None:
        """:param by_key: the facts of the changes of the batch"""
        self.target, self.progress, self.state, self.lost = target, progress, state, lost
        self.rows, self.changes, self.by_key = rows, changes, by_key
        self.known: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        """The changes of the batch by key, in order; only of keys that were looked up."""
        self.refused: dict[PartitionOffset, str] = {}
        """The changes for which there is no value, and why."""
        self.repeated: set[PartitionOffset] = set()
        """The changes for which there is no value any more."""

    def fills(self, needs: pa.Table, keys: NDArray[np.intp]) -> tuple[NDArray[np.intp], pa.Table]:
        """Return a value for each missing column of the changes that have one, and their places."""
        target, old = self.target, self.rows
        matches = old.matches(keys)
        has_row = matches >= 0
        matches[has_row] = np.where(old.is_truncated[matches[has_row]], -1, matches[has_row])
        origin = needs.column("origin").is_valid().to_numpy(zero_copy_only=False)
        life = needs.column("life").to_numpy(zero_copy_only=False)
        plain = ~origin & (life == 0) & (matches >= 0)
        waiting, resolved = dict[int, int](), dict[int, dict[str, Any]]()
        if plain.any() and (self.lost or self.progress.may_move):
            plain &= self._usable(needs, matches, plain, waiting)
        for number in map(int, np.flatnonzero(~plain)):
            need = self._need(needs.slice(number, 1).to_pylist()[0])
            place = need["place"]
            if place in self.refused or place[1] >= waiting.get(place[0], 1 << 62):
                continue
            try:
                values = self._values(need, int(matches[number]))
            except _WaitError as wait:
                if wait.is_needed or self._may_wait(need):
                    end_before(waiting, *place)
                    continue
                values = None
            if values is not None:
                resolved[number] = values
            elif self._is_repeated(need):
                self.repeated.add(place)
            else:
                self.refused[place] = _lacking(
                    target, need, "the row from before the change is not known"
                )
        self._wait(waiting)
        taken = old.values.select(target.toast).take(pa.array(matches[plain]))
        columns = [
            pa.array([values.get(name) for values in resolved.values()], kind)
            for name, kind in zip(target.toast, target.types(target.toast), strict=True)
        ]
        numbers = np.concatenate([np.flatnonzero(plain), np.array([*resolved], np.intp)])
        return numbers, pa.concat_tables([taken, pa.table(columns, names=target.toast)])

    def _usable(
        self,
        needs: pa.Table,
        matches: NDArray[np.int64],
        chosen: NDArray[np.bool_],
        waiting: dict[int, int],
    ) -> NDArray[np.bool_]:
        """Return which changes may take values of the table's rows; sort out the others."""
        target, old = self.target, self.rows
        hashes = target.hashed(needs.select(target.key_columns))
        partitions = old.values.column(target.order_columns[0]).to_pylist()
        offsets = old.values.column(target.offset_column).to_pylist()
        own = needs.column("partition").to_pylist()
        usable = np.ones(needs.num_rows, np.bool_)
        for number in map(int, np.flatnonzero(chosen)):
            row = int(matches[number])
            has_moved = self.progress.may_move and partitions[row] != own[number]
            is_lost = self.lost.is_after(hashes.get(number), partitions[row], offsets[row])
            if not (is_lost or has_moved):
                continue
            need = self._need(needs.slice(number, 1).to_pylist()[0])
            if is_lost:
                self.refused[need["place"]] = _lacking(
                    target, need, "a change of the row that may have had it was left out"
                )
            elif not self._is_certain(need):
                end_before(waiting, *need["place"])
            elif not self._is_changed_before(need):
                continue
            usable[number] = False
        return usable

    def _is_repeated(self, need: Mapping[str, Any]) -> bool:
        """Return whether a change was read before, and later ones deleted its row."""
        has_reached = self.state.has_reached(need["partition"], need["order"])
        return has_reached and self._reverted_row(need["key"]) is None

    def _is_changed_before(self, need: Mapping[str, Any]) -> bool:
        """Return whether another partition of the batch has changes of the key from before."""
        return need["order"] is not None and any(
            event["partition"] != need["partition"] and event["order"] < need["order"]
            for event in self._events(need["key"])
        )

    def _is_certain(self, need: Mapping[str, Any]) -> bool:
        """Return whether all changes from before one are read, in all partitions."""
        progress = self.progress
        is_old = time.time() * 1000 - (need["kafka_ms"] or 0) > CERTAIN_MS
        return all(
            partition == need["partition"]
            or progress.has_read(partition, need["order"])
            or (is_old and end >= progress.log_end.get(partition, 0))
            for partition, end in progress.batch.end.items()
        )

    def check_moves(self, alone: pa.Table, keys: NDArray[np.intp]) -> None:
        """Let deletions of old keys wait for changes in other partitions, by a BatchCutError."""
        waiting: dict[int, int] = {}
        for need, row in zip(
            map(self._need, alone.to_pylist()), self.rows.matches(keys).tolist(), strict=True
        ):
            partition, order = need["partition"], need["order"]
            is_elsewhere = order is not None and any(
                event["op"] in LIVE and event["partition"] != partition and event["order"] < order
                for event in self._events(need["key"])
            )
            has_moved = row < 0 or self.rows.place(row)[0] != partition
            if is_elsewhere or (has_moved and not self._is_certain(need)):
                end_before(waiting, *need["place"])
        self._wait(waiting)

    def _need(self, change: dict[str, Any]) -> dict[str, Any]:
        """Return a change that lacks values, with its place, key and order."""
        return change | {
            "place": (change["partition"], change["offset"]),
            "key": tuple(change[name] for name in self.target.key_columns),
            "order": order_of(change["m"], change["p"]),
        }

    def _may_wait(self, need: Mapping[str, Any]) -> bool:
        earlier = self.progress.batch.until({need["partition"]: need["offset"]})
        return earlier.records > 0 or time.time() * 1000 - (need["kafka_ms"] or 0) < PATIENCE_MS

    def _wait(self, waiting: Mapping[int, int]) -> None:
        if not waiting:
            return
        name, batch = self.target.topic, self.progress.batch
        if batch.until(waiting).records:
            raise BatchCutError(waiting)
        partition, offset = next(iter(waiting.items()))
        raise LaterRecordsError(
            f"topic {name}, partition {partition}, offset {offset}: the row has a new key, or its "
            "key has moved to another partition, and changes from before may not be in Kafka yet",
            hint="wait: the engine tries it again",
        )

    def _values(self, need: Mapping[str, Any], row: int) -> dict[str, Any] | None:
        """Return the values that a change, with this row of its key or -1, lacks, or None."""
        if need["origin"] is None:
            if need["life"]:
                return None
            if self.progress.may_move and not self._is_certain(need):
                raise _WaitError(is_needed=True)
            return self._before(need["key"], need["order"], need["missing"], is_moved=True)
        origin = need["origin"]
        moved = order_of(origin["m"], origin["p"])
        if row >= 0:  # the same insertion again, delivered twice
            row_values, row_order = self.rows.row(row)
            if row_order is not None and moved is not None and row_order >= moved:
                return {name: row_values[name] for name in need["missing"]}
        if moved is not None and (reverted := self._reverted(need, moved)) is not None:
            return reverted
        old_key = self.target.old_keys.read(origin["key"])
        return None if old_key is None else self._before(old_key, moved, need["missing"])

    def _reverted(self, need: Mapping[str, Any], moved: Order) -> dict[str, Any] | None:
        """Return values of a row that a repeated change replaced; ``moved``: of the insertion."""
        if (reverted := self._reverted_row(need["key"])) is None or reverted.lacks:
            return None
        row = self._ordered_row(need["key"], reverted.snapshot)
        if row is None or row[1] is None or row[1] < moved:
            return None
        return {name: row[0][name] for name in need["missing"]}

    def _reverted_row(self, key: tuple[Any, ...]) -> Move | None:
        reverted = self.state.reverted
        return reverted.get(self.target.hash_of(key) or "") if reverted else None

    def _before(
        self,
        key: tuple[Any, ...],
        order: Order | None,
        names: Sequence[str],
        *,
        is_moved: bool = False,
    ) -> dict[str, Any] | None:
        """Return values of a key's row as it was before an order of the source, or wait.

        :param is_moved: the key's own changes, in other partitions; else those of an old key, which
            was deleted at this order
        :raises _WaitError: the deletion of the key is not read yet
        """
        if order is None:
            return None
        if not is_moved and (move := self._move(key, order)) is not None:
            row = self._row(key, order, move.snapshot, move.lacks)
            return None if row is None else {name: row[name] for name in names}
        events = self._events(key)
        deletion = next((e for e in events if e["op"] == "d" and e["order"] == order), None)
        if not is_moved and deletion is None:
            raise _WaitError
        left, values = list(names), dict[str, Any]()
        for event in reversed([e for e in events if e["order"] < order]):
            if event["op"] == "d":
                return None
            self._check_partition(event["partition"], deletion)
            values |= {n: event["values"][n] for n in left if n not in event["missing"]}
            left = [name for name in left if name in event["missing"]]
            if not left:
                return values
            if event["op"] in ("c", "r"):
                header = event["old_key"]
                old_key = self.target.old_keys.read(header) if header else None
                row = self._row_between(key, event["order"], order)
                if row is not None:  # the same insertion again, delivered twice
                    return values | {name: row[name] for name in left}
                if old_key is None:
                    return None
                more = self._before(old_key, event["order"], left)
                return None if more is None else values | more
        if (deletion is None and not is_moved) or self.target.head is None:
            return None
        row = self._row(key, order, self.target.head.snapshot_id)
        if row is None:
            return None
        self._check_partition(row[self.target.order_columns[0]], deletion)
        return values | {name: row[name] for name in left}

    def _row_between(
        self, key: tuple[Any, ...], first: Order, last: Order
    ) -> dict[str, Any] | None:
        """Return the table's row of a key if its change is between two orders, both included."""
        head = self.target.head
        row = self._ordered_row(key, head.snapshot_id if head else None)
        if row is None or row[1] is None or not first <= row[1] <= last:
            return None
        return None if self._lacks(key, row[0]) else row[0]

    def _check_partition(self, partition: int, deletion: Mapping[str, Any] | None) -> None:
        """:raises _WaitError: newer changes of the key may be to come from other partitions"""
        has_moved = deletion is not None and partition != deletion["partition"]
        if deletion is not None and has_moved and not self._is_certain(deletion):
            raise _WaitError(is_needed=True)

    def _move(self, key: tuple[Any, ...], order: Order) -> Move | None:
        """Return the deletion of an old key, if it was applied before this batch."""
        of_order = [move for move in self.state.moves if move.order == order]
        hashed = self.target.hash_of(key) if of_order else None
        return next((move for move in of_order if move.key == hashed), None)

    def _events(self, key: tuple[Any, ...]) -> list[dict[str, Any]]:
        if key in self.known:
            return self.known[key]
        target, by_key = self.target, self.by_key
        hashed = target.hash_of(key)
        halves = None if hashed is None else (int(hashed[:16], 16), int(hashed[16:], 16))
        places = np.empty(0, np.intp) if halves is None else by_key.of_key(*halves)
        events = []
        for event, values, lacking in zip(
            by_key.facts.table([*PLACES, *FACTS], places).to_pylist(),
            self.changes.rows.select(target.toast).take(pa.array(by_key.order[places])).to_pylist(),
            by_key.facts.chosen(places).missing.T.tolist(),
            strict=True,
        ):
            order = order_of(event["m"], event["p"])
            if event["op"] is not None and order is not None:
                names = [*compress(target.toast, lacking)]
                events.append(event | {"order": order, "values": values, "missing": names})
        others = [event["order"] for event in events if event["op"] != READ]
        for read in [event for event in events if event["op"] == READ]:
            micros, *position = read["order"]
            later = [other[0] for other in others if precedes(read["order"], other)]
            read["order"] = (min([micros, *later]), *position)
        events.sort(key=lambda e: (e["order"], e["partition"], e["offset"]))
        self.known[key] = events
        return events

    def _row(
        self, key: tuple[Any, ...], order: Order, snapshot_id: int | None, lacks: bool | None = None
    ) -> dict[str, Any] | None:
        """Return a key's row of a snapshot, of before an order and not ``lacks`` a lost change."""
        if (ordered := self._ordered_row(key, snapshot_id)) is None:
            return None
        row, row_order = ordered
        if row_order is None or not precedes(row_order, order):
            return None
        return None if (self._lacks(key, row) if lacks is None else lacks) else row

    def _ordered_row(
        self, key: tuple[Any, ...], snapshot_id: int | None
    ) -> tuple[dict[str, Any], Order | None] | None:
        """Return a key's row of a snapshot, and its order; None: it has none, or has expired."""
        target = self.target
        snapshot = target.table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        keys = target.index.hasher.hashes(target.of_key(key).columns)
        rows = target.keyed_rows(keys, snapshot) if snapshot is not None else []
        return OldRows(target, rows, target.toast, []).row(0) if rows else None

    def _lacks(self, key: tuple[Any, ...], row: Mapping[str, Any]) -> bool:
        """Return whether a change after a row was left out."""
        partition, offset = row[self.target.order_columns[0]], row[self.target.offset_column]
        return bool(self.lost) and self.lost.is_after(self.target.hash_of(key), partition, offset)


class _WaitError(Exception):
    """The change that a value depends on is not read yet."""

    def __init__(self, *, is_needed: bool = False) -> None:
        """:param is_needed: it is waited for, however long that takes"""
        super().__init__()
        self.is_needed = is_needed


def _lacking(target: FoldTarget, need: Mapping[str, Any], why: str) -> str:
    name = need["missing"][0]
    kind = target.table.schema().find_field(name).field_type
    return f"field after.{name} ({kind}): the connector did not have the value, and {why}"
