"""The changes of one batch, in memory, in the order of their keys, and the last one of each key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topicberg.kafka.offsets import PartitionOffset
from topicberg.tableflow.changelog.changes import LIVE, READ
from topicberg.tableflow.upsert.key_files import Keys, in_order
from topicberg.tableflow.values.arrays import flags, whole

PLACES = ("partition", "offset", "kafka_ms")
"""Of a record: where it is in Kafka, and its time there."""
_NO_TIME = np.iinfo(np.int64).min
_ROWS_AT_ONCE = 131_072
"""Of the rows that are written."""


@dataclass(frozen=True)
class Facts:
    """What is known of changes, besides their rows."""

    read: pa.Table
    """Of changes as they were read: :data:`PLACES`, :data:`.changes.FACTS`, ``has_key``: the record
    has one, and ``high`` and ``low``: the two halves of the hash of the key's columns."""
    lacks: NDArray[np.bool_]
    """For each column that may lack values: whether the change that was read does."""
    places: NDArray[np.intp] | None = None
    """The numbers of these changes among those that were read; None: they are these."""

    def __len__(self) -> int:
        return int(self.read.num_rows) if self.places is None else len(self.places)

    def chosen(self, places: NDArray[np.intp]) -> Facts:
        """Return those of some changes, by their numbers."""
        return Facts(self.read, self.lacks, self._of(places))

    def table(self, names: Sequence[str], places: NDArray[np.intp]) -> pa.Table:
        """Return facts of some changes, by their numbers."""
        return self.read.select(list(names)).take(pa.array(self._of(places)))

    def _of(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        return places if self.places is None else self.places[places]

    def _own(self, of_read: NDArray[Any]) -> NDArray[Any]:
        """Return what is known of the changes that were read, for these changes."""
        return of_read if self.places is None else of_read[..., self.places]

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """For each column that may lack values: whether the change does."""
        return self._own(self.lacks)

    def at(self, places: Collection[PartitionOffset]) -> NDArray[np.bool_]:
        """Return which changes are at some places."""
        found = np.zeros(len(self), np.bool_)
        for partition in {partition for partition, _ in places}:
            offsets = [offset for p, offset in places if p == partition]
            found |= (self.partition == partition) & np.isin(self.offset, offsets)
        return found

    @cached_property
    def partition(self) -> NDArray[np.int32]:
        return self._numbers("partition")

    @cached_property
    def offset(self) -> NDArray[np.int64]:
        return self._numbers("offset")

    @cached_property
    def high(self) -> NDArray[np.uint64]:
        return self._numbers("high")

    @cached_property
    def low(self) -> NDArray[np.uint64]:
        return self._numbers("low")

    @cached_property
    def has_key(self) -> NDArray[np.bool_]:
        return flags(self.column("has_key"))

    @cached_property
    def is_live(self) -> NDArray[np.bool_]:
        """Whether the row exists after the change."""
        return self.is_op(*LIVE)

    def is_op(self, *names: str) -> NDArray[np.bool_]:
        return self._own(flags(pc.is_in(whole(self.read.column("op")), pa.array(names))))

    def has(self, *names: str) -> NDArray[np.bool_]:
        """Return which changes have one of some facts."""
        found = np.zeros(len(self), np.bool_)
        for given in map(self.read.column, names):
            if given.null_count < len(given):
                found |= self._own(given.is_valid().to_numpy())
        return found

    def values(self, name: str, places: NDArray[np.intp]) -> list[Any]:
        """Return a fact of some changes."""
        return list(self.table([name], places).column(0).to_pylist())

    def column(self, name: str) -> pa.Array:
        """Return a fact of all changes."""
        found = self.read.column(name)
        return whole(found if self.places is None else found.take(pa.array(self.places)))

    def _numbers(self, name: str) -> NDArray[Any]:
        return self._own(self.read.column(name).to_numpy())


@dataclass(frozen=True)
class ChangeBatch:
    """Changes in the order in which they were read: of a partition, by offset."""

    rows: pa.Table
    """The table's columns after each change."""
    facts: Facts

    def __len__(self) -> int:
        return len(self.facts)

    @classmethod
    def joined(cls, parts: Sequence[ChangeBatch]) -> ChangeBatch:
        rows = pa.concat_tables([part.rows for part in parts]).unify_dictionaries()
        facts = pa.concat_tables([part.facts.read for part in parts]).combine_chunks()
        return cls(rows, Facts(facts, np.concatenate([part.facts.lacks for part in parts], axis=1)))

    def chosen(self, which: NDArray[np.bool_]) -> ChangeBatch:
        """Return some changes, by a truth value for each."""
        if which.all():
            return self
        places = np.flatnonzero(which)
        return ChangeBatch(self.rows.take(pa.array(places)), self.facts.chosen(places))


@dataclass(frozen=True)
class ByKey:
    """Changes in the order of their keys; of a key, by partition and offset.

    A *group* has the changes of one key in one partition. A *life* of a group begins with an
    insertion, or with the group: values of before do not belong to the same row.
    """

    facts: Facts
    """In this order."""
    order: NDArray[np.intp]
    """The number of each change in the order in which they were read."""
    hashes: Keys
    """Of the keys, in this order."""

    @classmethod
    def of(cls, facts: Facts) -> ByKey:
        keys = in_order(facts.high, facts.low)
        order = keys.position.astype(np.intp)
        partition = facts.partition[order]
        if (~keys.is_last()[:-1] & (partition[1:] != partition[:-1])).any():
            order = np.lexsort((facts.offset, facts.partition, facts.low, facts.high))
            keys = Keys(facts.high[order], facts.low[order], order.astype(np.uint32))
        return cls(facts.chosen(order), order, keys)

    @cached_property
    def is_new_key(self) -> NDArray[np.bool_]:
        """Whether a change is the first one of its key."""
        return np.append(True, self.hashes.is_last())[:-1]

    @cached_property
    def key_numbers(self) -> NDArray[np.intp]:
        """The number of each change's key."""
        return np.cumsum(self.is_new_key) - 1

    @cached_property
    def is_new_group(self) -> NDArray[np.bool_]:
        found, partition = self.is_new_key.copy(), self.facts.partition
        found[1:] |= partition[1:] != partition[:-1]
        return found

    @cached_property
    def is_last(self) -> NDArray[np.bool_]:
        """Whether a change is the last one of its group."""
        return np.append(self.is_new_group[1:], True)[: len(self.facts)]

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """Where the group of each change begins."""
        return _last_true(self.is_new_group)

    @cached_property
    def is_insertion(self) -> NDArray[np.bool_]:
        return self.facts.is_op("c", "r")

    @cached_property
    def life_starts(self) -> NDArray[np.intp]:
        """Where the life of each change begins."""
        return _last_true(self.is_new_group | self.is_insertion)

    @cached_property
    def lives(self) -> NDArray[np.int64]:
        """How many insertions of its group there are up to each change."""
        return self.count(self.is_insertion)

    def count(self, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return how many flags of its group there are up to each change."""
        total = np.cumsum(flags, dtype=np.int64)
        return total - (total - flags)[self.starts]

    def newest(self, flags: NDArray[np.bool_], starts: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the last change up to each one that has a flag; -1: none since it starts."""
        last = _last_true(flags)
        last[last < starts] = -1
        return last

    def of_key(self, high: int, low: int) -> NDArray[np.intp]:
        """Return the changes of one key."""
        first = np.searchsorted(self.hashes.high, np.uint64(high), side="left")
        inside = np.arange(first, np.searchsorted(self.hashes.high, np.uint64(high), side="right"))
        return np.asarray(inside[self.hashes.low[inside] == np.uint64(low)], np.intp)


@dataclass(frozen=True)
class NewRows:
    """The rows that changes leave.

    ``places``: the change of each row, by its number in ``changes``, ascending. ``keys``: of the
    rows. ``origins``: for columns that lack values: from which change each row has the value; -1:
    ``fills`` has it, if any does. ``filled``: the numbers of the rows of ``fills``.
    """

    changes: ChangeBatch
    places: NDArray[np.intp]
    keys: Keys
    origins: dict[str, NDArray[np.intp]] = field(default_factory=dict)
    fills: pa.Table | None = None
    filled: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))

    def parts(self, first: int, end: int) -> Iterator[tuple[dict[str, pa.Array], Keys]]:
        """Yield rows from ``first`` to before ``end``, in parts, as columns, and their keys."""
        behind = 0  # changes
        for batch in self.changes.rows.to_batches(_ROWS_AT_ONCE):
            before, behind = behind, behind + len(batch)
            to = min(end, int(np.searchsorted(self.places, behind)))
            if to <= first:
                continue
            inside = slice(first, to)
            taken = batch.take(pa.array(self.places[inside] - before))
            columns = dict(zip(taken.schema.names, taken.columns, strict=True))
            for name, origin in self.origins.items():
                columns[name] = self._filled(name, columns[name], origin[inside], first)
            yield columns, self.keys.chosen(np.arange(first, to))
            first = to

    def _filled(self, name: str, own: pa.Array, origin: NDArray[np.intp], first: int) -> pa.Array:
        """Return a column with the values of other changes, and those of older rows."""
        column = self.changes.rows.column(name)
        values = [whole(column.take(pa.array(origin, mask=origin < 0))).cast(own.type)]
        chosen = np.arange(len(origin), dtype=np.int64)
        if self.fills is not None and (unknown := np.flatnonzero(origin < 0)).size:
            place = pc.index_in(pa.array(unknown + first), value_set=pa.array(self.filled))
            is_known = place.is_valid().to_numpy(zero_copy_only=False)
            known = whole(self.fills.column(name).take(place.drop_null())).cast(own.type)
            values.append(known)
            chosen[unknown[is_known]] = len(origin) + np.arange(len(known))
        return pa.concat_arrays(values).take(pa.array(chosen))


def newest_by_partition(changes: pa.Table) -> pa.Table:
    """Return partition, time and position of the newest change of each; no time is oldest."""
    partition = changes.column("partition").to_numpy()
    micros = changes.column("m").fill_null(_NO_TIME).to_numpy()
    latest = np.full(partition.max(initial=-1) + 1, _NO_TIME)
    np.maximum.at(latest, partition, micros)
    newest = changes.filter(pa.array(micros == latest[partition])).group_by("partition")
    newest = newest.aggregate([("m", "max"), ("p", "max")])
    return newest.rename_columns(["partition", "m", "p"])


def _last_true(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return for each place the last one up to it that has a flag; -1: none."""
    return np.asarray(np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1)), np.intp)


def last_changes(by_key: ByKey) -> tuple[NDArray[np.intp], pa.Table]:
    """Return each key's last change: partition, offset, operation, time, position.

    A tombstone has time and position of the deletion before it.
    """
    facts, ends = by_key.facts, np.flatnonzero(by_key.is_last)
    known = by_key.newest(facts.has("m", "p"), by_key.starts)[ends]
    places = facts.table(["partition", "offset", "op"], ends)
    places = places.set_column(2, "op", pc.fill_null(places.column("op"), "d"))
    order = facts.table(["m", "p"], np.maximum(known, 0))
    is_known = pa.array(known >= 0)
    for name in ("m", "p"):
        places = places.append_column(name, pc.if_else(is_known, order.column(name), None))
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
    columns.append(("partition", "descending"))
    age = pc.sort_indices(changes, columns, null_placement="at_start")
    in_order = changes.column("key").take(age).to_numpy()
    latest = several[age.to_numpy()[np.append(in_order[1:] != in_order[:-1], True)]]
    chosen = np.sort(np.concatenate([np.flatnonzero(is_only), latest]))
    return ends[chosen], places.take(pa.array(chosen))


def as_read(chosen: NDArray[np.intp], order: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return some places in the order in which their changes, of ``count``, were read."""
    found = np.full(count, -1, np.intp)
    found[order] = chosen
    return found[found >= 0]
