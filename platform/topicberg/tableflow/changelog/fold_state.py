"""What is known of a database's changes between batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from pydantic import BaseModel, ValidationError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg.summaries import END_OFFSETS, LOG, ancestry, checkpoint, summary
from topicberg.kafka.offsets import Offsets, parse_offsets

STATE = "topicberg.changelog"
"""Table property, and property of a batch's snapshot: see :class:`FoldState`."""
_MAX_NOTED = 1_000
"""The most characters of what a snapshot has: every commit writes the summaries of all."""
MAX_DELETES = 1_000
"""How many deleted keys are known: more would make the table's metadata large. If keys have changes
in several partitions, it is ten times as many."""
_MAX_LOST = 1_000
"""How many keys of changes that were left out are known; of others, only how far they may reach."""
Order = tuple[int, int, str]
"""Time in microseconds, and position, in the source: a number, or text. -1 and no text: none."""


def order_of(micros: int | None, position: Any) -> Order | None:
    """Return what orders changes of different partitions; None: nothing does."""
    if micros is None and position is None:
        return None
    # A change may have no position where others of its source have text.
    number, text = (-1, position) if isinstance(position, str) else (position, "")
    return -1 if micros is None else micros, -1 if number is None else number, text


def precedes(change: Order, other: Order) -> bool:
    """Return whether one change of a key came before another change of the same key.

    A snapshot reads rows as they were at its position, but with the time of the reading: changes
    after this position may have earlier times.
    """
    return change < other or (bool(change[2]) == bool(other[2]) and change[1:] < other[1:])


def is_repetition(change: Order, newest: Order) -> bool:
    """Return whether a change of a key is from before one that was read earlier."""
    return change < newest and not precedes(newest, change)


def is_comparable(position: Any, other: Any) -> bool:
    """Return whether one log orders two positions: each MySQL server has names of its own."""
    if isinstance(position, str) and isinstance(other, str):
        return position.rpartition(".")[0] == other.rpartition(".")[0]
    return isinstance(position, int) and isinstance(other, int)


def is_read_before(position: Any, other: Any) -> bool:
    """Return whether a snapshot read a row at a position before that of a change.

    It has read all of a change at its own position, whose last part is the row or the place in the
    transaction.
    """
    if not is_comparable(position, other):
        return False
    if isinstance(position, str):
        position, other = (text.rpartition(":")[0] or text for text in (position, other))
    return bool(position < other)


class _Change(BaseModel):
    """A change, by its time and position in the source."""

    micros: int | None
    position: int | str | None

    @property
    def order(self) -> Order | None:
        return order_of(self.micros, self.position)


class Deletion(_Change):
    """A truncate of the source's table, or the deletion of one row."""

    partition: int


class Lost(BaseModel):
    """A change that was left out. ``key``: its hash; None: of any key of the partition."""

    partition: int
    offset: int
    key: str | None = None

    def is_before(self, partition: int, offset: int) -> bool:
        """Return whether it may be before a change: one of another partition may."""
        return self.partition != partition or self.offset < offset


class Move(_Change):
    """A deleted row whose values an insertion may need that is still to come.

    Most are deletions by a change of the primary key, applied before the insertion with the new
    key. ``key``: the hash of the deleted key. ``snapshot``: the last one that had the row; None:
    none did. ``lacks``: whether a change of the row was left out before the deletion; None: not
    known.
    """

    key: str
    snapshot: int | None
    lacks: bool | None = None


class ReadState(BaseModel):
    """What is known of the rows that snapshots of the source read."""

    streamed: dict[int, tuple[int | None, int | str | None]] = {}
    """Time and position of the last change of each partition that is not such a row: its position
    is lower than that of earlier ones if the source's log began again."""
    outdated: dict[int, int | str] = {}
    """The newest position, by partition, for which such a row was ignored."""
    ignored: int = 0
    """How many such rows were ignored: their keys had newer changes."""
    doubtful: int = 0
    """How many others may be older than what they replaced or than the deletion of their key."""
    forgotten: int | str | None = None
    """The newest position of a deletion that is not known any more."""

    def restarted(self) -> list[int]:
        """Return the partitions whose positions began again after rows were ignored."""
        return [
            partition
            for partition, position in sorted(self.outdated.items())
            if is_read_before(self.streamed.get(partition, (None, None))[1], position)
        ]


class FoldState(BaseModel):
    """What is known of the changes so far.

    The table's property has all of it, as of the newest batch. Each batch's snapshot has it too, if
    it is not too large and without ``deletes``: it counts after a rollback of ``main``.
    """

    truncates: list[Deletion] = []
    """The newest one of each partition."""
    lacking: list[str] = []
    """The columns of whose values the connector did not have some."""
    partitions: int = 0
    """How many partitions the topic had at the first batch."""
    deletes: dict[str, Deletion] = {}
    """The newest deletions by key: changes from before them may still be read, from other
    partitions or by a snapshot of the source."""
    reads: ReadState = ReadState()
    lost: list[Lost] = []
    """Changes that were left out: of rows from before them, some values are not the newest."""
    moves: list[Move] = []
    """Whose insertions may lack values that only an earlier snapshot has."""
    reverted: dict[str, Move] = {}
    """Rows that the repetition of an earlier change replaced or deleted, by the hash of their key,
    with time and position of their own change: their insertion is repeated too, and may lack their
    values."""
    reached: dict[int, tuple[int | None, int | str | None]] = {}
    """Time and position of the newest change by partition: a connector that starts again repeats
    changes."""

    offsets: Offsets = {}
    """Up to where the topic was read by then."""
    log: int = 0
    ended: Offsets = {}
    """By partition: before which offsets rows may be of a former log, see :mod:`.values.logs`."""

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> FoldState:
        """Return what a table's properties, or a snapshot's, say."""
        try:
            return cls.model_validate_json(properties.get(STATE, "{}"))
        except ValidationError:  # written manually
            return cls()

    @classmethod
    def of(cls, table: Table, head: Snapshot | None) -> FoldState:
        """Return what is known at the head of a table, or raise TableflowError after a rollback."""
        newest, latest = checkpoint(table, head), cls.load(table.properties)
        if newest is None:
            return cls()
        properties = summary(newest)
        reached = int(properties.get(LOG, 0)), parse_offsets(properties[END_OFFSETS])
        if (latest.log, latest.offsets) == reached:
            return latest
        if STATE in properties:
            return cls.load(properties).model_copy(update={"deletes": latest.deletes})
        return latest.rolled_back({each.snapshot_id for each in ancestry(table, head)})

    def rolled_back(self, line: Set[int]) -> FoldState:
        """Return what of a state is still right at an earlier batch, of these snapshots. Truncates
        and deletions of keys are read again, and so is what they delete. A change that was left out
        may be applied now, and until then its row counts as outdated."""
        moves = [move for move in self.moves if move.snapshot in line]
        reverted = {key: row for key, row in self.reverted.items() if row.snapshot in line}
        return self.model_copy(
            update={"moves": moves, "reverted": reverted, "reached": {}, "reads": ReadState()}
        )

    def continued(self, log: int, ends: Offsets, starts: Offsets, *, is_proved: bool) -> FoldState:
        """Return what is known where a table continues with another log.

        :param ends: of the former log; ``starts``: of the other one
        :param is_proved: whether that has the changes after those of the former log
        """
        changes: dict[str, Any] = {"log": log, "offsets": starts}
        changes["ended"] = {p: max(end, self.ended.get(p, 0)) for p, end in ends.items()}
        if len(starts) != len(ends):  # keys may have moved
            changes["partitions"] = 1
        if not is_proved:
            changes |= {"reached": {}, "reads": ReadState()}
        return self.model_copy(update=changes)

    def after_rows(self, lost: Iterable[Lost]) -> list[Lost]:
        """Return changes that were left out, each after all rows that may be of a former log."""
        ends = self.ended
        return [
            change.model_copy(update={"offset": max(change.offset, ends.get(change.partition, 0))})
            for change in lost
        ]

    def noted(self) -> dict[str, str]:
        """Return what the summary of the batch's snapshot has of it."""
        for excluded in ({"deletes", "offsets"}, {"deletes", "offsets", "reached"}):
            text = self.model_dump_json(exclude=excluded, exclude_defaults=True)
            if len(text) <= _MAX_NOTED:
                return {STATE: text}
        return {}

    def has_fewer_partitions(self, number: int) -> bool:
        """Return whether the topic had fewer partitions at the first batch."""
        return 0 < self.partitions < number

    def has_reached(self, partition: int, order: Order | None) -> bool:
        """Return whether a partition's changes were read as far as one."""
        reached = order_of(*self.reached.get(partition, (None, None)))
        return order is not None and reached is not None and order <= reached


class LostChanges:
    """Changes that were left out, so that rows from before them lack their values."""

    def __init__(self, lost: Sequence[Lost]) -> None:
        self._known = list(lost)
        self._of_key, self._of_any = dict[str, Lost](), dict[int, int]()
        for change in lost:
            if change.key is not None:
                newest = self._of_key.setdefault(change.key, change)
                is_newer = change.partition != newest.partition or change.offset > newest.offset
                self._of_key[change.key] = change if is_newer else newest
            else:
                of_any = self._of_any.get(change.partition, -1)
                self._of_any[change.partition] = max(change.offset, of_any)

    def __bool__(self) -> bool:
        return bool(self._known)

    def is_after(self, key: str | None, partition: int, offset: int) -> bool:
        """Return whether a change of a key was left out after a record of the key."""
        one = self._of_key.get(key or "")
        is_of_key = one is not None and (one.partition != partition or one.offset > offset)
        return is_of_key or self._of_any.get(partition, -1) > offset

    def after(self, more: Sequence[Lost]) -> list[Lost]:
        """Return what is known after a batch, whose changes ``more`` were left out."""
        both = LostChanges([*self._known, *more])
        newest = list(both._of_key.values())
        for one in newest[:-_MAX_LOST]:
            both._of_any[one.partition] = max(one.offset, both._of_any.get(one.partition, -1))
        others = [Lost(partition=p, offset=at) for p, at in sorted(both._of_any.items())]
        return [*newest[-_MAX_LOST:], *others]


def newest_truncates(truncates: Iterable[Deletion]) -> list[Deletion]:
    """Return the newest truncate of each partition."""
    newest: dict[int, Deletion] = {}
    for truncate in truncates:
        known = newest.setdefault(truncate.partition, truncate).order
        if truncate.order is not None and (known is None or truncate.order > known):
            newest[truncate.partition] = truncate
    return list(newest.values())
