"""Changes of a database's table as its current rows.

Of each key's changes in a batch, the last one counts: by offset within a partition, and by the
source's time and position between partitions, where a key may have changes too, because the schema
of the key or the number of partitions changed. A truncate deletes what came before it: the rows of
its own partition, and those of other partitions that are older in the source.

Spark does this for all changes. Two kinds need more, and only they cost more:

- A value that the connector did not have (PostgreSQL's unchanged TOAST) is the one of the change
  before, in this batch, or of the table's row.
- Half of a change of the primary key is the deletion of the old key, half an insertion, perhaps in
  another partition. If the insertion lacks a value, it is the old key's, which may be deleted by
  then: an earlier snapshot has it. A batch is cut where the deletion is not read yet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from topicberg.errors import TableflowError, TopicbergError
from topicberg.iceberg.position_deletes import FileRows
from topicberg.kafka.offsets import Offsets, Place
from topicberg.spark import quote
from topicberg.tableflow.changes import CHANGE, LIVE, row_columns, toastable
from topicberg.tableflow.keys import Keys, merged
from topicberg.tableflow.rows import ROW
from topicberg.topics.spec import OFFSET, PARTITION, SOURCE_POSITION, SOURCE_TIMESTAMP

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import Column, DataFrame, SparkSession

    from topicberg.tableflow.keys import KeyIndex
    from topicberg.tableflow.offsets import Batch
    from topicberg.topics import TopicSpec

STATE = "topicberg.changelog"
"""Table property: see :class:`State`."""
PATIENCE_MS = 60_000
"""How long an insertion waits for the deletion of its old key, by the record's timestamp."""
CERTAIN_MS = 150_000
"""After this time, a producer has sent a record or given up (Kafka's ``delivery.timeout.ms``, and
some more): no older change comes from another partition."""
_MAX_LOST = 1_000
"""How many keys of changes that were left out are known; of others, only how far they may reach."""
_MAX_DELETES = 10_000
"""How many deleted keys are known: more would make the table's metadata large."""
_MAX_MOVES = 1_000
"""How many deletions by a change of the primary key are known."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEY = "__topicberg_key_"
_FILL = "__topicberg_fill_"
Order = tuple[int, Any]
"""Time in microseconds, and position, in the source."""


class BatchCutError(Exception):
    """The batch has to end earlier; ``ends``: offset by partition."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        super().__init__("the batch has to end earlier")
        self.ends = dict(ends)


class WaitingError(TopicbergError):
    """A change cannot be applied before another one is in Kafka: the topic is tried again."""


class Deletion(BaseModel):
    """A truncate of the source's table, or the deletion of one row."""

    partition: int
    micros: int | None
    position: int | str | None

    @property
    def order(self) -> Order | None:
        return order_of(self.micros, self.position)


class Lost(BaseModel):
    """A change that was left out. ``key``: its hash; None: of any key of the partition."""

    partition: int
    offset: int
    key: str | None = None


class Move(BaseModel):
    """A deletion by a change of the primary key, applied before the insertion with the new key.

    ``key``: the hash of the old key. ``snapshot``: the last one that had the row; None: none did.
    """

    micros: int | None
    position: int | str | None
    key: str
    snapshot: int | None


class State(BaseModel):
    """What is known of the changes so far."""

    truncates: list[Deletion] = []
    """The newest one of each partition."""
    lacking: list[str] = []
    """The columns of whose values the connector did not have some."""
    partitions: int = 0
    """How many partitions the topic had at the first batch."""
    deletes: dict[str, Deletion] = {}
    """Deleted keys, if keys may have moved to other partitions: changes from before the deletion
    may still be read from there."""
    lost: list[Lost] = []
    """Changes that were left out: of rows from before them, some values are not the newest."""
    moves: list[Move] = []
    """Whose insertions may lack values that only an earlier snapshot has."""
    reached: dict[int, tuple[int | None, int | str | None]] = {}
    """Time and position of the newest change by partition: a connector that starts again repeats
    changes."""

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> State:
        try:
            return cls.model_validate_json(properties.get(STATE, "{}"))
        except ValidationError:  # written manually
            return cls()


def order_of(micros: int | None, position: Any) -> Order | None:
    """Return what orders changes of different partitions; None: nothing does."""
    if micros is None and position is None:
        return None
    empty: Any = "" if isinstance(position, str) else -1
    return (-1 if micros is None else micros, empty if position is None else position)


@dataclass(frozen=True)
class Folded:
    """What a batch changes.

    ``rows``: the rows to add. ``replaced``: the rows of the table that they replace, and those that
    are deleted. ``refused``: changes that cannot be applied, and why. ``repeated``: changes that
    were read before, of rows that are not there any more.
    """

    rows: DataFrame
    replaced: list[FileRows]
    state: State
    refused: dict[Place, str] = field(default_factory=dict)
    repeated: frozenset[Place] = frozenset()
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Moves:
    """Changes of the primary key in a batch.

    ``inserted``: time and position of those whose insertion is in the batch. ``alone``: the other
    deletions, with their keys, partition, offset, time and position.
    """

    inserted: set[tuple[Any, Any]]
    alone: pa.Table


@dataclass
class Folding:
    """The folding of one batch."""

    spark: SparkSession
    spec: TopicSpec
    table: Table
    head: Snapshot | None
    index: KeyIndex
    keys: Sequence[str]
    may_move: bool
    """Whether keys have several schemas, so that Kafka's partition of a key may have changed."""
    batch: Batch
    log_end: Offsets
    """Where the log of each partition ended when the batch was planned."""
    passed: dict[int, Order]
    """The newest change that was seen of each partition, in this attempt or in one before it with
    more records."""
    frame: DataFrame
    """The records, with :data:`ROW`, :data:`CHANGE`, and ``left_out`` of the malformed ones;
    persisted."""

    def __post_init__(self) -> None:
        self.state = State.load(self.table.properties)
        columns = row_columns(self.spec, self.table.schema().fields)
        self.toast = [each.name for each in columns if toastable(each)]
        names = (PARTITION, SOURCE_TIMESTAMP, SOURCE_POSITION)
        self.order_columns = [self.spec.metadata_column(name) for name in names]
        self.offset_column = self.spec.metadata_column(OFFSET)
        skipped = [Lost(partition=p, offset=at) for p, at in sorted(self.batch.skipped)]
        self.lost = LostChanges([*self.state.lost, *skipped])
        known = self.state.partitions or 1 << 31
        self.may_move = self.may_move or len(self.batch.end) > known
        self.old_rows: _OldRows | None = None
        self._persisted: list[DataFrame] = []

    def close(self) -> None:
        """Free what Spark holds of the batch."""
        for frame in self._persisted:
            frame.unpersist()

    # --- the batch ---

    def fold(self) -> Folded:
        """Return what the batch changes.

        :raises BatchCutError: only an earlier part of the batch can be applied now
        :raises WaitingError: nothing can be applied now
        :raises TableflowError: the changes have no order
        """
        refused: dict[Place, str] = {}
        repeated: frozenset[Place] = frozenset()
        while True:
            found = self._fold(refused, repeated)
            if not found.refused and not found.repeated:
                return replace(found, refused=refused)
            refused |= found.refused
            repeated |= found.repeated

    def _fold(self, refused: Mapping[Place, str], repeated: Iterable[Place]) -> Folded:
        """Return what the batch changes without some changes, and which have to be left out too."""
        from pyspark.sql import functions as F

        frame = self._without(self.frame, [*refused, *repeated])
        facts = self._facts(frame)
        frame = frame.filter("NOT left_out")
        truncates = self._truncates(facts)
        change = F.col(CHANGE)
        is_tombstone = F.col("no_value") & ~F.col("no_key")
        wanted = frame.filter(is_tombstone | change.op.isin(*LIVE, "d"))
        if truncates or self.state.truncates:
            self._check_order(facts)
            wanted = wanted.filter(is_tombstone | ~self._is_before(truncates))
        lost = self._lost(refused) if refused or facts["lost"] else []
        if lost and facts["missing"]:
            self._cut_after_lost(wanted, lost)
        events = wanted.select(
            "partition",
            "offset",
            F.unix_millis("timestamp").alias("kafka_ms"),
            ROW,
            CHANGE,
            F.coalesce(change.op, F.lit("d")).alias("op"),
            *(F.col(f"{ROW}.{quote(k)}").alias(f"{_KEY}{n}") for n, k in enumerate(self.keys)),
        )
        moves = self._moves(events) if facts["moves"] and self.toast else None
        has_missing = bool(facts["missing"])
        newest = self._newest(self._filled(events) if has_missing else events).persist()
        self._persisted.append(newest)
        found = self._applied(events, newest, facts, truncates, moves, has_missing)
        state = found.state.model_copy(update={"lost": self.lost.after(lost)})
        properties = {STATE: state.model_dump_json()} if state != self.state else {}
        return replace(found, properties=properties)

    def _without(self, frame: DataFrame, places: Iterable[Place]) -> DataFrame:
        if not (listed := list(places)):
            return frame
        left_out = self.spark.createDataFrame(listed, "partition int, offset bigint")
        return frame.join(left_out, ["partition", "offset"], "left_anti")

    def _facts(self, frame: DataFrame) -> dict[str, Any]:
        """Return what decides how the batch is folded; computes and persists the batch."""
        from pyspark.sql import functions as F

        change = F.when(~F.col("left_out"), F.col(CHANGE))
        is_truncate = change.op == "t"
        place = F.struct(
            "partition", "offset", change.micros.alias("m"), change.position.alias("p")
        )
        is_live = change.op.isin(*LIVE)
        has_order = change.micros.isNotNull() | change.position.isNotNull()
        row = frame.agg(
            F.collect_list(F.when(is_truncate, place)).alias("truncates"),
            F.array_sort(
                F.array_distinct(F.flatten(F.collect_set(F.when(is_live, change.missing))))
            ).alias("missing"),
            F.count(F.when(change.new_key.isNotNull() | change.old_key.isNotNull(), 1)).alias(
                "moves"
            ),
            F.count(F.when(change.op.isNotNull() & ~has_order, 1)).alias("unordered"),
            F.count(F.when(F.col("left_out") & ~F.col("no_key"), 1)).alias("lost"),
        ).collect()[0]
        return dict(row.asDict())

    def _truncates(self, facts: Mapping[str, Any]) -> list[tuple[int, Deletion]]:
        """Return the offset of each truncate, and the truncate."""
        return [
            (
                each["offset"],
                Deletion(partition=each["partition"], micros=each["m"], position=each["p"]),
            )
            for each in facts["truncates"]
        ]

    def _check_order(self, facts: Mapping[str, Any]) -> None:
        if len(self.batch.end) > 1 and facts["unordered"]:
            raise TableflowError(
                f"topic {self.spec.name}: its table was truncated, and "
                f"{facts['unordered']} changes have no position in the source: whether changes of "
                "other partitions came before the truncate is not known",
                hint="let the connector write to a topic of one partition, or leave truncates out "
                "(skipped.operations=t)",
            )

    def _is_before(self, truncates: Sequence[tuple[int, Deletion]]) -> Column:
        """Return whether a change came before a truncate of this batch or an earlier one."""
        from pyspark.sql import functions as F

        change = F.col(CHANGE)
        conditions = [F.lit(False)]
        last: dict[int, int] = {}
        for offset, each in truncates:
            last[each.partition] = max(offset, last.get(each.partition, offset))
        for partition, offset in last.items():
            conditions.append((F.col("partition") == partition) & (F.col("offset") < offset))
        for each in _newest_truncates([*self.state.truncates, *(t for _, t in truncates)]):
            micros = F.coalesce(change.micros, F.lit(-1))
            is_earlier = micros < F.lit(-1 if each.micros is None else each.micros)
            if each.position is not None:
                is_same = micros == F.lit(-1 if each.micros is None else each.micros)
                is_earlier = is_earlier | (is_same & (change.position < F.lit(each.position)))
            conditions.append((F.col("partition") != each.partition) & is_earlier)
        found = conditions[0]
        for condition in conditions[1:]:
            found = found | F.coalesce(condition, F.lit(False))
        return found

    def _moves(self, events: DataFrame) -> Moves:
        """Return the halves of changes of the primary key.

        A deletion whose insertion is not in the batch must find the row in the table, for the
        insertion may need it: so no change of the row comes before it in the batch.

        :raises BatchCutError: one does
        """
        import pyarrow as pa
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        change = F.col(CHANGE)
        by_key = Window.partitionBy(*self._key_columns(), "partition").orderBy("offset")
        before = by_key.rowsBetween(Window.unboundedPreceding, -1)
        halves = (
            events.select(
                *self._key_columns(),
                *("partition", "offset", "kafka_ms", "op"),
                change.micros.alias("m"),
                change.position.alias("p"),
                (change.new_key.isNotNull() | change.old_key.isNotNull()).alias("is_half"),
            )
            .withColumn("changes", F.sum(F.col("op").isin(*LIVE).cast("int")).over(before))
            .filter("is_half")
            .toArrow()
        )
        columns = ("op", "m", "p", "partition", "offset", "changes")
        rows = list(zip(*(halves.column(name).to_pylist() for name in columns), strict=True))
        inserted = {(m, p) for op, m, p, *_ in rows if op in LIVE}
        alone: list[int] = []
        ends: dict[int, int] = {}
        for number, (op, m, p, partition, offset, changes) in enumerate(rows):
            if op == "d" and (m, p) not in inserted:
                alone.append(number)
                if changes:
                    ends[partition] = min(offset, ends.get(partition, offset))
        if ends:
            raise BatchCutError(ends)
        return Moves(inserted, halves.take(pa.array(alone, pa.int64())))

    def _lost(self, refused: Mapping[Place, str]) -> list[Lost]:
        """Return the batch's changes that are left out.

        A record without a key is not a change of a row.
        """
        from pyspark.sql import functions as F

        names = [F.col(f"{ROW}.{quote(name)}").alias(name) for name in self.keys]
        found, is_lost = self.frame, "left_out AND NOT no_key"
        if refused:
            places = [(*place, True) for place in refused]
            marked = self.spark.createDataFrame(
                places, "partition int, offset bigint, is_refused boolean"
            )
            found = found.join(marked, ["partition", "offset"], "left")
            is_lost += " OR is_refused"
        found = found.filter(is_lost)
        rows = found.select("partition", "offset", *names).toArrow()
        hashes = dict(self._hashed(rows.select(list(self.keys))))
        pairs = zip(*(rows.column(name).to_pylist() for name in rows.column_names[:2]), strict=True)
        return [Lost(partition=p, offset=at, key=hashes.get(n)) for n, (p, at) in enumerate(pairs)]

    def _hashed(self, keys: pa.Table) -> list[tuple[int, str]]:
        """Return number and hash of each key; a key with a null has none."""
        if not keys.num_rows:
            return []
        hashes = self.index.hashes(keys.columns)
        whole = np.ones(keys.num_rows, np.bool_)
        for column in keys.columns:
            whole &= column.is_valid().to_numpy(zero_copy_only=False)
        parts = zip(hashes.position, hashes.high, hashes.low, strict=True)
        return [(int(n), f"{int(h):016x}{int(low):016x}") for n, h, low in parts if whole[n]]

    def _cut_after_lost(self, wanted: DataFrame, lost: Sequence[Lost]) -> None:
        """End the batch after a change that is left out, if a later one needs values of its row.

        So all values that the changes of a batch take from each other are the newest.

        :raises BatchCutError: there is such a change
        """
        from pyspark.sql import functions as F

        change = F.col(CHANGE)
        needs = (
            wanted.filter(change.op.isin(*LIVE) & (F.size(change.missing) > 0))
            .select(
                "partition",
                "offset",
                change.old_key.isNotNull().alias("moved"),
                *(F.col(f"{ROW}.{quote(name)}").alias(name) for name in self.keys),
            )
            .toArrow()
        )
        hashes = dict(self._hashed(needs.select(list(self.keys))))
        places = [needs.column(name).to_pylist() for name in ("partition", "offset", "moved")]
        last: dict[tuple[int, str | None], int] = {}
        for number, (partition, offset, _) in enumerate(zip(*places, strict=True)):
            for key in (hashes.get(number), None):
                last[partition, key] = max(offset, last.get((partition, key), -1))
        has_moved = any(places[2])
        ends: dict[int, int] = {}
        for one in lost:
            after = last.get((one.partition, one.key), -1) > one.offset
            if after or (has_moved and self.batch.end[one.partition] > one.offset + 1):
                end = one.offset + 1
                ends[one.partition] = min(end, ends.get(one.partition, end))
        if ends:
            raise BatchCutError(ends)

    # --- in Spark ---

    def _key_columns(self) -> list[str]:
        return [f"{_KEY}{number}" for number in range(len(self.keys))]

    def _filled(self, events: DataFrame) -> DataFrame:
        """Return the changes with values that changes before them in the batch have.

        Adds ``origin``: the old key from which a row came, if it lacks values of before.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        change = F.col(CHANGE)
        by_key = Window.partitionBy(*self._key_columns(), "partition").orderBy("offset")
        is_start = F.col("op").isin("c", "r").cast("int")
        events = events.withColumn("life", F.sum(is_start).over(by_key))
        of_life = Window.partitionBy(*self._key_columns(), "partition", "life").orderBy("offset")
        is_live = F.col("op").isin(*LIVE)
        missing = change.missing
        filled = {
            f"{_FILL}{number}": F.last(
                F.when(
                    is_live & ~F.array_contains(missing, name),
                    F.struct(F.col(f"{ROW}.{quote(name)}").alias("v")),
                ),
                ignorenulls=True,
            ).over(of_life)
            for number, name in enumerate(self.toast)
        }
        moved = F.when(
            is_live & change.old_key.isNotNull(),
            F.struct(
                change.old_key.alias("key"), change.micros.alias("m"), change.position.alias("p")
            ),
        )
        events = events.withColumns(
            {**filled, "origin": F.last(moved, ignorenulls=True).over(of_life)}
        )
        left = [
            F.when(
                F.array_contains(missing, name) & F.col(f"{_FILL}{number}").isNull(), F.lit(name)
            )
            for number, name in enumerate(self.toast)
        ]
        values = {
            name: F.when(F.array_contains(missing, name), F.col(f"{_FILL}{number}").v)
            for number, name in enumerate(self.toast)
        }
        return events.withColumns(
            {
                ROW: self._row_with(values, lambda name: F.array_contains(missing, name)),
                "missing": F.array_compact(F.array(*left)),
            }
        ).drop(*filled)

    def _row_with(self, values: Mapping[str, Column], is_missing: Any) -> Column:
        """Return the row with other values where a column's is missing."""
        from pyspark.sql import functions as F

        members = []
        for column in self.spark.table(self._target).schema.names:
            own = F.col(f"{ROW}.{quote(column)}")
            if column in values:
                own = F.when(is_missing(column), values[column]).otherwise(own)
            members.append(own.alias(column))
        return F.struct(*members)

    @property
    def _target(self) -> str:
        from topicberg.endpoints import CATALOG

        return f"{CATALOG}.{quote(*self.table.name())}"

    def _newest(self, events: DataFrame) -> DataFrame:
        """Return the last change of each key; ``m`` and ``p``: its time and position.

        A tombstone has those of the deletion before it.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        change = F.col(CHANGE)
        keys = self._key_columns()
        latest = Window.partitionBy(*keys, "partition").orderBy(F.desc("offset"))
        whole = latest.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        known = F.when(
            change.micros.isNotNull() | change.position.isNotNull(),
            F.struct(change.micros.alias("m"), change.position.alias("p")),
        )
        found = events.withColumns(
            {
                "age": F.row_number().over(latest),
                "known": F.first(known, ignorenulls=True).over(whole),
            }
        ).filter("age = 1")
        found = found.withColumns({"m": F.col("known.m"), "p": F.col("known.p")})
        if len(self.batch.ranges) > 1:
            order = (F.desc_nulls_last("m"), F.desc_nulls_last("p"), F.desc("offset"))
            across = Window.partitionBy(*keys).orderBy(*order)
            found = found.withColumn("age", F.row_number().over(across)).filter("age = 1")
        return found.drop("age", "known")

    # --- against the table ---

    def _applied(
        self,
        events: DataFrame,
        newest: DataFrame,
        facts: Mapping[str, Any],
        truncates: Sequence[tuple[int, Deletion]],
        moves: Moves | None,
        has_missing: bool,
    ) -> Folded:
        from pyspark.sql import functions as F

        places = newest.select(
            *self._key_columns(), "partition", "offset", "m", "p", "op"
        ).toArrow()
        truncated = self._truncated_rows([each for _, each in truncates])
        replaced: list[FileRows] = []
        stale: list[Place] = []
        if self.head is not None and places.num_rows:
            toast = self.toast if has_missing else []
            rows = self.index.rows_of(self.table, self.head, places.select(self._key_columns()))
            self.old_rows = _OldRows(self, rows, toast, truncated)
            replaced, stale = self.old_rows.replaced_by(places)
        deletes, late = self._deletes(places)
        live = self._without(newest.filter(F.col("op") != "d"), [*stale, *late])
        chain = _Chain(self, events)
        if has_missing:
            lacking = live.filter(F.size("missing") > 0)
            live = self._resolved(chain, live, lacking)
        state = State(
            truncates=_newest_truncates([*self.state.truncates, *(t for _, t in truncates)]),
            lacking=sorted({*self.state.lacking, *facts["missing"]}),
            partitions=self.state.partitions or len(self.batch.end),
            deletes=deletes,
            moves=self.state.moves if moves is None else self._known_moves(moves, chain),
            reached=self._reached(places),
        )
        return Folded(
            live.select(f"{ROW}.*"),
            _together(replaced, truncated),
            state,
            chain.refused,
            frozenset(chain.repeated),
        )

    def _known_moves(self, moves: Moves, chain: _Chain) -> list[Move]:
        """Return the deletions whose insertions are still to come.

        :raises BatchCutError: changes in other partitions have to come first
        """
        if self.may_move:
            chain.check_moves(moves.alone)
        found = {
            (each.micros, each.position, each.key): each
            for each in self.state.moves
            if (each.micros, each.position) not in moves.inserted
        }
        hashes = dict(self._hashed(moves.alone.select(self._key_columns())))
        places = (moves.alone.column(name).to_pylist() for name in ("m", "p"))
        for number, (m, p) in enumerate(zip(*places, strict=True)):
            if (m is not None or p is not None) and (key := hashes.get(number)):
                snapshot = self.head.snapshot_id if self.head else None
                move = Move(micros=m, position=p, key=key, snapshot=snapshot)
                found.setdefault((m, p, key), move)
        return list(found.values())[-_MAX_MOVES:]

    def _reached(self, places: pa.Table) -> dict[int, tuple[int | None, int | str | None]]:
        """Return time and position of the newest change by partition.

        :param places: of the last change of each key
        """
        found = dict(self.state.reached)
        by_order = [("m", "ascending"), ("p", "ascending")]
        newest = (
            places.select(["partition", "m", "p"])
            .sort_by(by_order)
            .group_by("partition", use_threads=False)
            .aggregate([("m", "last"), ("p", "last")])
        )
        for row in newest.to_pylist():
            order, held = (row["m_last"], row["p_last"]), found.get(row["partition"], (None, None))
            one, other = order_of(*order), order_of(*held)
            if one is not None and (other is None or one > other):
                found[row["partition"]] = order
        return found

    def is_repeated(self, partition: int, order: Order | None) -> bool:
        """Return whether a change was read before this batch."""
        reached = order_of(*self.state.reached.get(partition, (None, None)))
        return order is not None and reached is not None and order <= reached

    def _deletes(self, places: pa.Table) -> tuple[dict[str, Deletion], list[Place]]:
        """Return the deleted keys to remember, and the changes from before such a deletion.

        :param places: of the last change of each key
        """
        import pyarrow.compute as pc

        known, may_move = self.state.deletes, self.may_move
        if not known and not may_move:
            return {}, []
        found = dict(known)
        late: list[Place] = []
        hashes = self.index.hashes(places.select(self._key_columns()).columns)
        is_delete = np.array(pc.equal(places.column("op"), "d"), np.bool_)[hashes.position]
        held_high = np.array([int(key[:16], 16) for key in known], np.uint64)
        rows = places.select(["partition", "offset", "m", "p", "op"])
        for which in np.flatnonzero(np.isin(hashes.high, held_high) | (is_delete & may_move)):
            row = rows.slice(int(hashes.position[which]), 1).to_pylist()[0]
            key = f"{int(hashes.high[which]):016x}{int(hashes.low[which]):016x}"
            order, held = order_of(row["m"], row["p"]), known.get(key)
            is_elsewhere = held is not None and held.partition != row["partition"]
            at = held.order if held is not None else None
            if is_elsewhere and (order is None or (at is not None and order < at)):
                late.append((row["partition"], row["offset"]))
                continue
            found.pop(key, None)
            if row["op"] == "d" and order is not None and may_move:
                found[key] = Deletion(
                    partition=row["partition"], micros=row["m"], position=row["p"]
                )
            elif row["op"] == "d" and held is not None:
                found[key] = held  # a tombstone after the deletion
        return dict(list(found.items())[-_MAX_DELETES:]), late

    def _truncated_rows(self, truncates: Sequence[Deletion]) -> list[FileRows]:
        """Return the table's rows that came before a truncate of this batch."""
        if not truncates or self.head is None:
            return []
        found = []
        for of_file in self.index.all_rows(self.table, self.head):
            columns = _read(self.table, of_file, self.order_columns)
            gone = self._came_before(columns, truncates)
            if gone.any():
                found.append(FileRows(of_file.file, of_file.positions[gone]))
        return found

    def _came_before(self, rows: pa.Table, truncates: Sequence[Deletion]) -> NDArray[np.bool_]:
        """Return which rows, given by partition, time and position, came before a truncate."""
        import pyarrow as pa
        import pyarrow.compute as pc

        partition, time_, position = rows.columns
        micros = pc.fill_null(time_.cast(pa.int64()), -1)
        unordered = pc.and_(time_.is_null(), position.is_null())
        gone = pc.is_in(partition, pa.array({t.partition for t in truncates}, partition.type))
        for each in _newest_truncates(truncates):
            other = pc.not_equal(partition, each.partition)
            if each.order is None or pc.any(pc.and_(other, unordered)).as_py():
                self._check_order({"unordered": 1})
            limit = -1 if each.micros is None else each.micros
            earlier = pc.less(micros, limit)
            if each.position is not None:
                lower = pc.fill_null(pc.less(position, each.position), True)
                earlier = pc.or_(earlier, pc.and_(pc.equal(micros, limit), lower))
            gone = pc.or_(gone, pc.and_(other, earlier))
        return np.asarray(gone.to_numpy(zero_copy_only=False), np.bool_)

    # --- values that the connector did not have ---

    def _resolved(self, chain: _Chain, live: DataFrame, lacking: DataFrame) -> DataFrame:
        """Return the changes with the values of the table's rows.

        :param lacking: the changes that lack values
        """
        from pyspark.sql import functions as F

        columns = ("partition", "offset", "kafka_ms", "missing", "origin", "m", "p", "life")
        needs = lacking.select(*self._key_columns(), *columns).toArrow()
        if not needs.num_rows:
            return live
        if (fills := chain.fills(needs)) is None:
            return live
        # Spark Connect compares names regardless of their origin.
        frame = self.spark.createDataFrame(fills)
        joined = live.join(frame, ["partition", "offset"], "left")
        values = {name: F.col(f"{_FILL}{number}") for number, name in enumerate(self.toast)}
        row = self._row_with(values, lambda name: F.array_contains("missing", name))
        return joined.withColumn(ROW, row)


class _OldRows:
    """The rows of the table that have the keys of a batch."""

    def __init__(
        self,
        folding: Folding,
        rows: Sequence[FileRows],
        toast: Sequence[str],
        truncated: Sequence[FileRows],
    ) -> None:
        import pyarrow as pa

        self.folding = folding
        self.rows = list(rows)
        self.toast = list(toast)
        places = [*folding.order_columns, folding.offset_column]
        wanted = list(dict.fromkeys([*folding.keys, *places, *toast]))
        parts = [_read(folding.table, of_file, wanted) for of_file in self.rows]
        self.values: pa.Table | None = pa.concat_tables(parts) if parts else None
        gone = {each.file.file_path: each.positions for each in truncated}
        self.is_truncated = np.concatenate(
            [np.isin(r.positions, gone.get(r.file.file_path, [])) for r in self.rows]
            or [np.empty(0, np.bool_)]
        )

    def matches(self, keys: pa.Table) -> NDArray[np.int64]:
        """Return, for each key, the number of its row; -1: it has none."""
        found = np.full(keys.num_rows, -1, np.int64)
        if self.values is None:
            return found
        index = self.folding.index
        own = index.hashes([self.values.column(name) for name in self.folding.keys])
        return _matched(index.hashes(keys.columns), own, found)

    def row(self, number: int) -> tuple[dict[str, Any], Order | None]:
        """Return the columns of one row, and its order."""
        assert self.values is not None  # noqa: S101  it has this row
        found: dict[str, Any] = self.values.slice(number, 1).to_pylist()[0]
        _, micros, position = self.folding.order_columns
        return found, order_of(_micros(found[micros]), found[position])

    def replaced_by(self, places: pa.Table) -> tuple[list[FileRows], list[Place]]:
        """Return the rows that changes replace, and the changes that are older than their row.

        :param places: of the changes, with their keys, partition, offset, time and position
        """
        if self.values is None:
            return [], []
        matches = self.matches(places.select(self.folding._key_columns()))
        partition, micros, position = (
            self.values.column(name) for name in self.folding.order_columns
        )
        held = partition.to_numpy(zero_copy_only=False)
        new = places.column("partition").to_numpy(zero_copy_only=False)
        keeps = np.zeros(len(held), np.bool_)
        stale: list[Place] = []
        has_row = matches >= 0
        moved = np.flatnonzero(has_row & (held[matches] != new) if len(held) else has_row)
        for number in moved:
            row = int(matches[number])
            if self.is_truncated[row]:
                continue
            change = order_of(
                places.column("m")[number].as_py(), places.column("p")[number].as_py()
            )
            old = order_of(_micros(micros[row].as_py()), position[row].as_py())
            if change is not None and old is None:
                raise TableflowError(
                    f"topic {self.folding.spec.name}: a key has changes in the partitions "
                    f"{held[row]} and {new[number]}, without a position in the source",
                    hint="let the connector write to a topic of one partition",
                )
            if change is None or (old is not None and change < old):
                keeps[row] = True
                stale.append((int(new[number]), places.column("offset")[number].as_py()))
        replaced, first = [], 0
        for of_file in self.rows:
            stay = keeps[first : first + len(of_file.positions)]
            first += len(of_file.positions)
            if not stay.all():
                replaced.append(FileRows(of_file.file, of_file.positions[~stay]))
        return replaced, stale


class LostChanges:
    """Changes that were left out, so that rows from before them lack their values."""

    def __init__(self, lost: Sequence[Lost]) -> None:
        self._known = list(lost)
        self._of_key: dict[str, Lost] = {}
        self._of_any: dict[int, int] = {}
        for one in lost:
            if one.key is not None:
                held = self._of_key.setdefault(one.key, one)
                is_newer = one.partition != held.partition or one.offset > held.offset
                self._of_key[one.key] = one if is_newer else held
            else:
                of_any = self._of_any.get(one.partition, -1)
                self._of_any[one.partition] = max(one.offset, of_any)

    def __bool__(self) -> bool:
        return bool(self._known)

    def is_after(self, key: str | None, partition: int, offset: int) -> bool:
        """Return whether a change of a key was left out after a record of the key."""
        one = self._of_key.get(key or "")
        if one is not None and (one.partition != partition or one.offset > offset):
            return True
        return self._of_any.get(partition, -1) > offset

    def after(self, more: Sequence[Lost]) -> list[Lost]:
        """Return what is known after a batch, whose changes ``more`` were left out."""
        both = LostChanges([*self._known, *more])
        newest = list(both._of_key.values())
        for one in newest[:-_MAX_LOST]:
            reach = max(one.offset, both._of_any.get(one.partition, -1))
            both._of_any[one.partition] = reach
        others = [Lost(partition=p, offset=at) for p, at in sorted(both._of_any.items())]
        return [*newest[-_MAX_LOST:], *others]


class _Chain:
    """Values that changes lack, from the table's rows and from the rows of old keys."""

    def __init__(self, folding: Folding, events: DataFrame) -> None:
        self.folding = folding
        self.events = events
        self.known: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        """The changes of the batch by key, in order; only of keys that were looked up."""
        self.refused: dict[Place, str] = {}
        """The changes for which there is no value, and why."""
        self.repeated: set[Place] = set()
        """The changes for which there is no value any more."""
        self._has_looked = False

    def fills(self, needs: pa.Table) -> pa.Table | None:
        """Return a value for each missing column of the changes that have one."""
        import pyarrow as pa

        folding = self.folding
        types = _arrow_fields(folding.table, folding.toast)
        old = folding.old_rows
        matches = np.full(needs.num_rows, -1, np.int64)
        if old is not None:
            matches = old.matches(needs.select(folding._key_columns()))
            matches[matches >= 0] = np.where(
                old.is_truncated[matches[matches >= 0]], -1, matches[matches >= 0]
            )
        origin = needs.column("origin").is_valid().to_numpy(zero_copy_only=False)
        life = needs.column("life").to_numpy(zero_copy_only=False)
        plain = ~origin & (life == 0) & (matches >= 0)
        parts = []
        waiting: dict[int, int] = {}
        if plain.any() and (folding.lost or folding.may_move):
            plain &= self._usable(needs, matches, plain, waiting)
        if plain.any():
            assert old is not None  # noqa: S101  a row was found
            assert old.values is not None  # noqa: S101
            taken = old.values.select(folding.toast).take(pa.array(matches[plain]))
            parts.append(self._part(needs.filter(pa.array(plain)), taken.columns, types))
        resolved: list[tuple[Place, dict[str, Any]]] = []
        for number in np.flatnonzero(~plain):
            need = needs.slice(int(number), 1).to_pylist()[0]
            place = (need["partition"], need["offset"])
            if place in self.refused or place[1] >= waiting.get(place[0], 1 << 62):
                continue
            try:
                row = matches[number]
                values = self._values(need, None if row < 0 else int(row))
            except _WaitError as wait:
                if wait.is_needed or self._may_wait(need):
                    waiting[place[0]] = min(place[1], waiting.get(place[0], place[1]))
                    continue
                values = None
            if values is not None:
                resolved.append((place, values))
            elif folding.is_repeated(place[0], order_of(need["m"], need["p"])):
                self.repeated.add(place)
            else:
                self.refused[place] = _unresolved(folding, need["missing"][0])
        if waiting:
            self._wait(waiting)
        if resolved:
            columns = [[values.get(name) for _, values in resolved] for name in folding.toast]
            arrays = [pa.array(c, t) for c, t in zip(columns, types, strict=True)]
            rows = pa.table(
                {
                    "partition": pa.array([place[0] for place, _ in resolved], pa.int32()),
                    "offset": pa.array([place[1] for place, _ in resolved], pa.int64()),
                }
            )
            parts.append(self._part(rows, arrays, types))
        return pa.concat_tables(parts) if parts else None

    def _usable(
        self,
        needs: pa.Table,
        matches: NDArray[np.int64],
        chosen: NDArray[np.bool_],
        waiting: dict[int, int],
    ) -> NDArray[np.bool_]:
        """Return which changes may take values of the table's rows; sort out the others."""
        folding, old = self.folding, self.folding.old_rows
        assert old is not None  # noqa: S101  rows were found
        assert old.values is not None  # noqa: S101
        hashes = dict(folding._hashed(needs.select(folding._key_columns())))
        partitions = old.values.column(folding.order_columns[0]).to_pylist()
        offsets = old.values.column(folding.offset_column).to_pylist()
        own = needs.column("partition").to_pylist()
        usable = np.ones(needs.num_rows, np.bool_)
        for number in map(int, np.flatnonzero(chosen)):
            row = int(matches[number])
            has_moved = folding.may_move and partitions[row] != own[number]
            is_lost = folding.lost.is_after(hashes.get(number), partitions[row], offsets[row])
            if not (is_lost or has_moved):
                continue
            need = needs.slice(number, 1).to_pylist()[0]
            place = (need["partition"], need["offset"])
            if is_lost:
                self.refused[place] = _lost_before(folding, need["missing"][0])
            elif self._is_certain(need):
                continue
            else:
                waiting[place[0]] = min(place[1], waiting.get(place[0], place[1]))
            usable[number] = False
        return usable

    def _is_certain(self, need: Mapping[str, Any]) -> bool:
        """Return whether all changes from before one are read, in all partitions."""
        from pyspark.sql import functions as F

        batch, passed, change = self.folding.batch, self.folding.passed, F.col(CHANGE)
        if not self._has_looked:
            self._has_looked = True
            ends = F.max(F.struct(change.micros.alias("m"), change.position.alias("p")))
            rows = self.events.filter(change.op.isNotNull()).groupBy("partition")
            for row in rows.agg(ends.alias("at")).collect():
                at = order_of(row["at"]["m"], row["at"]["p"])
                if at is not None:
                    passed[row["partition"]] = max(at, passed.get(row["partition"], at))
        order = order_of(need["m"], need["p"])
        is_old = time.time() * 1000 - (need["kafka_ms"] or 0) > CERTAIN_MS
        for partition, end in batch.end.items():
            reached = passed.get(partition)
            has_passed = order is not None and reached is not None and reached > order
            is_at_end = is_old and end >= self.folding.log_end.get(partition, 0)
            if partition != need["partition"] and not has_passed and not is_at_end:
                return False
        return True

    def check_moves(self, alone: pa.Table) -> None:
        """Let deletions by changes of the primary key wait for changes in other partitions.

        :raises BatchCutError: there are such changes, or may be
        """
        old, waiting = self.folding.old_rows, dict[int, int]()
        keys = alone.select(self.folding._key_columns())
        matches = old.matches(keys) if old is not None else np.full(alone.num_rows, -1, np.int64)
        for number, need in enumerate(alone.to_pylist()):
            place, order = (need["partition"], need["offset"]), order_of(need["m"], need["p"])
            key = tuple(need[name] for name in keys.column_names)
            is_elsewhere = any(
                event["op"] in LIVE and event["partition"] != place[0] and event["order"] < order
                for event in (self._events(key) if order is not None else [])
            )
            if old is not None and old.values is not None and matches[number] >= 0:
                held = old.values.column(self.folding.order_columns[0])[int(matches[number])]
                has_moved = held.as_py() != place[0]
            else:
                has_moved = True
            if is_elsewhere or (has_moved and not self._is_certain(need)):
                waiting[place[0]] = min(place[1], waiting.get(place[0], place[1]))
        if waiting:
            self._wait(waiting)

    def _part(self, places: pa.Table, columns: Sequence[Any], types: Sequence[Any]) -> pa.Table:
        import pyarrow as pa

        arrays = [
            places.column("partition").cast(pa.int32()),
            places.column("offset").cast(pa.int64()),
            *(column.cast(kind) for column, kind in zip(columns, types, strict=True)),
        ]
        names = ["partition", "offset", *(f"{_FILL}{n}" for n in range(len(types)))]
        return pa.table(arrays, names=names)

    def _may_wait(self, need: Mapping[str, Any]) -> bool:
        batch = self.folding.batch
        cut = batch.until({need["partition"]: need["offset"]})
        if cut.records:
            return True
        age = time.time() * 1000 - (need["kafka_ms"] or 0)
        return bool(age < PATIENCE_MS)

    def _wait(self, waiting: Mapping[int, int]) -> None:
        name, batch = self.folding.spec.name, self.folding.batch
        if batch.until(waiting).records:
            raise BatchCutError(waiting)
        partition, offset = next(iter(waiting.items()))
        raise WaitingError(
            f"topic {name}, partition {partition}, offset {offset}: the row has a new key, or its "
            "key has moved to another partition, and changes from before may not be in Kafka yet",
            hint="wait: the engine tries it again",
        )

    def _values(self, need: Mapping[str, Any], row: int | None) -> dict[str, Any] | None:
        """Return the values that a change lacks; None: there are none."""
        folding = self.folding
        key = tuple(need[name] for name in folding._key_columns())
        order = order_of(need["m"], need["p"])
        if need["origin"] is None:
            if need["life"]:
                return None
            if folding.may_move and not self._is_certain(need):
                raise _WaitError(is_needed=True)
            return self._before(key, order, need["missing"], is_moved=True)
        origin = need["origin"]
        moved = order_of(origin["m"], origin["p"])
        if row is not None:  # the same insertion again, delivered twice
            assert folding.old_rows is not None  # noqa: S101  it has this row
            held, at = folding.old_rows.row(row)
            if at is not None and moved is not None and at >= moved:
                return {name: held[name] for name in need["missing"]}
        old_key = self._parsed(origin["key"])
        if old_key is None or moved is None:
            return None
        return self._before(old_key, moved, need["missing"])

    def _before(
        self,
        key: tuple[Any, ...],
        order: Order | None,
        names: Sequence[str],
        *,
        is_moved: bool = False,
    ) -> dict[str, Any] | None:
        """Return values of a key's row as it was before an order of the source.

        :param is_moved: the key's own changes, in other partitions; else those of an old key, which
            was deleted at this order
        :raises _WaitError: the deletion of the key is not read yet
        """
        if order is None:
            return None
        if not is_moved and (move := self._move(key, order)) is not None:
            row = self._row(key, order, move.snapshot)
            return None if row is None else {name: row[name] for name in names}
        events = self._events(key)
        deletion = next((e for e in events if e["op"] == "d" and e["order"] == order), None)
        if not is_moved and deletion is None:
            raise _WaitError
        left, found = list(names), {}
        for event in reversed([e for e in events if e["order"] < order]):
            if event["op"] == "d":
                return None
            self._check_partition(event["partition"], deletion)
            for name in [one for one in left if one not in event["missing"]]:
                found[name] = event["values"][name]
                left.remove(name)
            if not left:
                return found
            if event["op"] in ("c", "r"):
                old_key = self._parsed(event["old_key"]) if event["old_key"] else None
                if old_key is None:
                    return None
                more = self._before(old_key, event["order"], left)
                return None if more is None else found | more
        if deletion is None or self.folding.head is None:
            return None
        row = self._row(key, order, self.folding.head.snapshot_id)
        if row is None:
            return None
        self._check_partition(row[self.folding.order_columns[0]], deletion)
        return found | {name: row[name] for name in left}

    def _check_partition(self, partition: int, deletion: Mapping[str, Any] | None) -> None:
        """:raises _WaitError: newer changes of the key may be to come from other partitions"""
        has_moved = deletion is not None and partition != deletion["partition"]
        if deletion is not None and has_moved and not self._is_certain(deletion):
            raise _WaitError(is_needed=True)

    def _move(self, key: tuple[Any, ...], order: Order) -> Move | None:
        """Return the deletion of an old key, if it was applied before this batch."""
        folding = self.folding
        of_order = [m for m in folding.state.moves if order_of(m.micros, m.position) == order]
        if not of_order:
            return None
        hashes = dict(folding._hashed(self._table_of(key)))
        return next((move for move in of_order if move.key == hashes.get(0)), None)

    def _events(self, key: tuple[Any, ...]) -> list[dict[str, Any]]:
        from pyspark.sql import functions as F

        if key in self.known:
            return self.known[key]
        change = F.col(CHANGE)
        folding = self.folding
        matching = self.events
        for number, name in enumerate(folding.keys):
            kind = dict(folding.spark.table(folding._target).dtypes)[name]
            matching = matching.filter(F.col(f"{_KEY}{number}") == F.lit(key[number]).cast(kind))
        rows = matching.filter(change.op.isNotNull()).select(
            "partition",
            "offset",
            "kafka_ms",
            "op",
            change.micros.alias("m"),
            change.position.alias("p"),
            change.missing.alias("missing"),
            change.old_key.alias("old_key"),
            *(
                F.col(f"{ROW}.{quote(name)}").alias(f"{_FILL}{number}")
                for number, name in enumerate(folding.toast)
            ),
        )
        found = []
        for event in rows.toArrow().to_pylist():
            order = order_of(event["m"], event["p"])
            if order is not None:
                values = {
                    name: event[f"{_FILL}{number}"] for number, name in enumerate(folding.toast)
                }
                found.append(event | {"order": order, "values": values})
        found.sort(key=lambda e: (e["order"], e["partition"], e["offset"]))
        self.known[key] = found
        return found

    def _row(
        self, key: tuple[Any, ...], order: Order, snapshot_id: int | None
    ) -> dict[str, Any] | None:
        """Return a key's row of a snapshot; None: it has none of before an order, or has expired.

        A row from before a change that was left out does not count either.
        """
        folding = self.folding
        snapshot = folding.table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        if snapshot is None:
            return None
        rows = folding.index.rows_of(folding.table, snapshot, self._table_of(key))
        if not rows:
            return None
        found, at = _OldRows(folding, rows, folding.toast, []).row(0)
        return None if at is None or at >= order or self._lacks(key, found) else found

    def _lacks(self, key: tuple[Any, ...], row: Mapping[str, Any]) -> bool:
        """Return whether a change after a row was left out."""
        folding = self.folding
        if not folding.lost:
            return False
        hashed = dict(folding._hashed(self._table_of(key))).get(0)
        partition, offset = row[folding.order_columns[0]], row[folding.offset_column]
        return folding.lost.is_after(hashed, partition, offset)

    def _table_of(self, key: tuple[Any, ...]) -> pa.Table:
        import pyarrow as pa

        types = _arrow_fields(self.folding.table, self.folding.keys)
        columns = [pa.array([one], kind) for one, kind in zip(key, types, strict=True)]
        return pa.table(columns, names=list(self.folding.keys))

    def _parsed(self, text: str) -> tuple[Any, ...] | None:
        """Return a key from the JSON of a header; None: it cannot be read."""
        import pyarrow as pa

        folding = self.folding
        try:
            parsed = json.loads(text)
            if parsed.keys() == {"schema", "payload"}:  # by a JsonConverter of headers
                parsed = parsed["payload"]
            types = _arrow_fields(folding.table, folding.keys)
            values = [parsed[name] for name in folding.keys]
            arrays = [pa.array([v]).cast(t) for v, t in zip(values, types, strict=True)]
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException):
            return None
        return tuple(array[0].as_py() for array in arrays)


class _WaitError(Exception):
    """The change that a value depends on is not read yet."""

    def __init__(self, *, is_needed: bool = False) -> None:
        """:param is_needed: it is waited for, however long that takes"""
        super().__init__()
        self.is_needed = is_needed


def _unresolved(folding: Folding, name: str) -> str:
    kind = folding.table.schema().find_field(name).field_type
    return (
        f"field after.{name} ({kind}): the connector did not have the value, and the row from "
        "before the change is not known"
    )


def _lost_before(folding: Folding, name: str) -> str:
    kind = folding.table.schema().find_field(name).field_type
    return (
        f"field after.{name} ({kind}): the connector did not have the value, and a change of the "
        "row that may have had it was left out"
    )


def _newest_truncates(truncates: Iterable[Deletion]) -> list[Deletion]:
    """Return the newest truncate of each partition."""
    found: dict[int, Deletion] = {}
    for each in truncates:
        held = found.setdefault(each.partition, each)
        if each.order is not None and (held.order is None or each.order > held.order):
            found[each.partition] = each
    return list(found.values())


def _micros(value: datetime | None) -> int | None:
    """Return microseconds since 1970."""
    return None if value is None else (value - _EPOCH) // timedelta(microseconds=1)


def _matched(keys: Keys, held: Keys, found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each key the place of its row, which has an equal hash."""
    rows = merged([held])
    first = np.searchsorted(rows.high, keys.high, side="left")
    for step in range(len(rows.high)):
        place = first + step
        inside = place < len(rows.high)
        same = np.zeros(len(keys.high), np.bool_)
        same[inside] = rows.high[place[inside]] == keys.high[inside]
        if not same.any():
            break
        equal = np.zeros(len(keys.high), np.bool_)
        equal[same] = rows.low[place[same]] == keys.low[same]
        found[keys.position[equal]] = rows.position[place[equal]]
    return found


def _together(one: Sequence[FileRows], other: Sequence[FileRows]) -> list[FileRows]:
    """Return the rows of both, each once."""
    found: dict[str, FileRows] = {}
    for each in (*one, *other):
        path = each.file.file_path
        if path in found:
            positions = np.union1d(found[path].positions, each.positions).astype(np.uint32)
            each = FileRows(each.file, positions)
        found[path] = each
    return list(found.values())


def _arrow_fields(table: Table, names: Sequence[str]) -> list[Any]:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    arrow = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return [arrow.field(name).type for name in names]


def _read(table: Table, rows: FileRows, names: Sequence[str]) -> pa.Table:
    """Return columns of some rows of a data file, with the types of the table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = _arrow_fields(table, names)
    ids = [table.schema().find_field(name).field_id for name in names]
    with table.io.new_input(rows.file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        known = {
            int((one.metadata or {}).get(b"PARQUET:field_id", -1)): one.name
            for one in parquet.schema_arrow
        }
        held = _rows_at(parquet, rows.positions, [known[one] for one in ids if one in known])
    columns = []
    for number, kind in zip(ids, types, strict=True):
        if number in known:
            columns.append(held.column(known[number]).cast(kind))
        else:
            columns.append(pa.chunked_array([pa.nulls(len(rows.positions), kind)]))
    return pa.table(columns, names=list(names))


def _rows_at(parquet: Any, positions: NDArray[np.uint32], columns: Sequence[str]) -> pa.Table:
    """Return some rows of a file, given by ascending positions; reads only their row groups."""
    import pyarrow as pa

    parts, first = [], 0
    for group in range(parquet.num_row_groups):
        last = first + parquet.metadata.row_group(group).num_rows
        inside = positions[(positions >= first) & (positions < last)]
        if len(inside):
            part = parquet.read_row_group(group, columns=list(columns))
            parts.append(part.take(pa.array(inside - first)))
        first = last
    return pa.concat_tables(parts)
