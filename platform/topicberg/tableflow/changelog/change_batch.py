"""The changes of one batch, in memory, in the order of their keys, and the last one of each key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topicberg.kafka.offsets import PartitionOffset
from topicberg.tableflow.changelog.changes import LIVE, READ
from topicberg.tableflow.upsert.key_files import Keys, in_order, is_last
from topicberg.tableflow.values.arrays import flags, whole

PLACES = ("partition", "offset", "kafka_ms")
"""Of a record: where it is in Kafka, and its time there."""
_NO_TIME = np.iinfo(np.int64).min


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

    def of_type(self, name: str) -> pa.DataType:
        """Return the type of a fact."""
        return self.read.schema.field(name).type

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
        by_partition: dict[int, list[int]] = {}
        for partition, offset in places:
            by_partition.setdefault(partition, []).append(offset)
        for partition, offsets in by_partition.items():
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
        for name in names:
            given = self.read.column(name)
            if given.null_count < len(given):
                found |= self._own(given.is_valid().to_numpy())
        return found

    def values(self, name: str, places: NDArray[np.intp]) -> list[Any]:
        """Return a fact of some changes."""
        values: list[Any] = self.table([name], places).column(0).to_pylist()
        return values

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
        lacks = np.concatenate([part.facts.lacks for part in parts], axis=1)
        return cls(rows, Facts(facts, lacks))

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
        if (~is_last(keys)[:-1] & (partition[1:] != partition[:-1])).any():
            order = np.lexsort((facts.offset, facts.partition, facts.low, facts.high))
            keys = Keys(facts.high[order], facts.low[order], order.astype(np.uint32))
        return cls(facts.chosen(order), order, keys)

    @cached_property
    def is_new_key(self) -> NDArray[np.bool_]:
        """Whether a change is the first one of its key."""
        ends = is_last(self.hashes)
        return np.append(True, ends[:-1])[: len(ends)]

    @cached_property
    def key_numbers(self) -> NDArray[np.intp]:
        """The number of each change's key."""
        return np.cumsum(self.is_new_key) - 1

    @cached_property
    def is_new_group(self) -> NDArray[np.bool_]:
        found = self.is_new_key.copy()
        partition = self.facts.partition
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
        before = total - flags
        return total - before[self.starts]

    def newest(self, flags: NDArray[np.bool_], starts: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the last change up to each one that has a flag; -1: none since it starts."""
        last = _last_true(flags)
        found: NDArray[np.intp] = np.where(last >= starts, last, -1)
        return found

    def of_key(self, high: int, low: int) -> NDArray[np.intp]:
        """Return the changes of one key."""
        first = np.searchsorted(self.hashes.high, np.uint64(high), side="left")
        last = np.searchsorted(self.hashes.high, np.uint64(high), side="right")
        found: NDArray[np.intp] = first + np.flatnonzero(
            self.hashes.low[first:last] == np.uint64(low)
        )
        return found


def newest_by_partition(changes: pa.Table) -> pa.Table:
    """Return partition, time and position of the newest of some changes of each partition.

    Without a time, a change is older than all that have one.
    """
    partition = changes.column("partition").to_numpy()
    micros = changes.column("m").fill_null(_NO_TIME).to_numpy()
    latest = np.full(partition.max(initial=-1) + 1, _NO_TIME)
    np.maximum.at(latest, partition, micros)
    newest = changes.filter(pa.array(micros == latest[partition]))
    return (
        newest.group_by("partition")
        .aggregate([("m", "max"), ("p", "max")])
        .rename_columns(["partition", "m", "p"])
    )


def _last_true(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return for each place the last one up to it that has a flag; -1: none."""
    places = np.where(flags, np.arange(len(flags)), -1)
    found: NDArray[np.intp] = np.maximum.accumulate(places)
    return found


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
