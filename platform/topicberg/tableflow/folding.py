"""Changes of a database's table as its current rows.

Of each key's changes in a batch, the last one counts: by offset within a partition, and by the
source's time and position between partitions, where a key may have changes too, because the schema
of the key or the number of partitions changed. A truncate deletes what came before it: the rows of
its own partition, and those of other partitions that are older in the source.

Spark does this for all changes. Only changes that lack values cost more: see
:mod:`topicberg.tableflow.old_values`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topicberg.errors import TableflowError
from topicberg.iceberg.position_deletes import FileRows
from topicberg.kafka.offsets import Place
from topicberg.spark import F, Window, quote
from topicberg.tableflow.changes import CHANGE, LIVE, READ
from topicberg.tableflow.current_rows import OldRows, Target, together
from topicberg.tableflow.fold_state import (
    STATE,
    Deletion,
    Lost,
    LostChanges,
    Move,
    State,
    newest_truncates,
    order_of,
)
from topicberg.tableflow.offsets import end_before
from topicberg.tableflow.old_values import BatchCutError, OldValues, Progress
from topicberg.tableflow.rows import ROW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MAX_DELETES = 10_000
"""How many deleted keys are known: more would make the table's metadata large."""
_MAX_MOVES = 10_000
"""How many deletions by a change of the primary key are known."""


@dataclass(frozen=True)
class Folded:
    """What a batch changes.

    ``rows``: the rows to add. ``replaced``: the rows of the table that they replace, and those that
    are deleted. ``refused``: changes that cannot be applied, and why. ``repeated``: changes that
    were read before, of rows that are not there any more.
    """

    rows: DataFrame
    replaced: list[FileRows]
    properties: dict[str, str]
    refused: dict[Place, str]
    repeated: frozenset[Place]


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
    target: Target
    progress: Progress
    frame: DataFrame
    """The records, with :data:`ROW`, :data:`CHANGE`, and ``left_out`` of the malformed ones;
    persisted."""

    def __post_init__(self) -> None:
        self.state = State.load(self.target.table.properties)
        skipped = [Lost(partition=p, offset=at) for p, at in sorted(self.progress.batch.skipped)]
        self.lost = LostChanges([*self.state.lost, *skipped])
        self._persisted: list[DataFrame] = []

    @cached_property
    def _columns(self) -> list[str]:
        """The columns of a row; a request to Spark, which only batches that lack values need."""
        return self.frame.select(f"{ROW}.*").columns

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
                return replace(found, refused=refused, repeated=repeated)
            refused |= found.refused
            repeated |= found.repeated

    def _fold(self, refused: Mapping[Place, str], repeated: Iterable[Place]) -> Folded:
        """Return what the batch changes without some changes, and which have to be left out too."""
        frame = self._without(self.frame, [*refused, *repeated])
        facts = self._facts(frame)
        frame = frame.filter("NOT left_out")
        truncates = [
            Deletion(partition=each["partition"], micros=each["m"], position=each["p"])
            for each in facts["truncates"]
        ]
        change = F.col(CHANGE)
        is_tombstone = F.col("no_value") & ~F.col("no_key")
        wanted = frame.filter(is_tombstone | change.op.isin(*LIVE, "d"))
        if truncates or self.state.truncates:
            self._check_order(facts)
            wanted = wanted.filter(is_tombstone | ~self._is_before(facts, truncates))
        if self.progress.may_move and (facts["missing"] or facts["moves"]):
            self.progress.look(wanted)  # before the batch is cut
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
            *self._keys(self.target.key_columns),
        )
        moves = self._moves(events) if facts["moves"] and self.target.toast else None
        newest = self._newest(self._filled(events) if facts["missing"] else events).persist()
        self._persisted.append(newest)
        return self._applied(events, newest, facts["missing"], truncates, moves, lost)

    def _keys(self, names: Sequence[str]) -> list[Column]:
        """Return the columns of the key, under other names."""
        pairs = zip(self.target.keys, names, strict=True)
        return [F.col(f"{ROW}.{quote(key)}").alias(name) for key, name in pairs]

    def _without(self, frame: DataFrame, places: Iterable[Place]) -> DataFrame:
        if not (listed := list(places)):
            return frame
        left_out = self.spark.createDataFrame(listed, "partition int, offset bigint")
        return frame.join(left_out, ["partition", "offset"], "left_anti")

    def _facts(self, frame: DataFrame) -> dict[str, Any]:
        """Return what decides how the batch is folded; computes and persists the batch."""
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
            F.count_if(change.new_key.isNotNull() | change.old_key.isNotNull()).alias("moves"),
            F.count_if(change.op.isNotNull() & ~has_order).alias("unordered"),
            F.count_if(F.col("left_out") & ~F.col("no_key")).alias("lost"),
        ).collect()[0]
        return dict(row.asDict())

    def _check_order(self, facts: Mapping[str, Any]) -> None:
        if len(self.progress.batch.end) > 1 and facts["unordered"]:
            raise TableflowError(
                f"topic {self.target.spec.name}: its table was truncated, and "
                f"{facts['unordered']} changes have no position in the source: whether changes of "
                "other partitions came before the truncate is not known",
                hint="let the connector write to a topic of one partition, or leave truncates out "
                "(skipped.operations=t)",
            )

    def _is_before(self, facts: Mapping[str, Any], truncates: Sequence[Deletion]) -> Column:
        """Return whether a change came before a truncate of this batch or an earlier one."""
        change, found = F.col(CHANGE), F.lit(False)
        last: dict[int, int] = {}
        for one in facts["truncates"]:
            last[one["partition"]] = max(one["offset"], last.get(one["partition"], 0))
        for partition, offset in last.items():
            found = found | ((F.col("partition") == partition) & (F.col("offset") < offset))
        micros = F.coalesce(change.micros, F.lit(-1))
        for each in newest_truncates([*self.state.truncates, *truncates]):
            limit = F.lit(-1 if each.micros is None else each.micros)
            is_earlier = micros < limit
            if each.position is not None:
                is_before = (micros == limit) & (change.position < F.lit(each.position))
                is_earlier = is_earlier | is_before
            is_other = F.col("partition") != each.partition
            found = found | F.coalesce(is_other & is_earlier, F.lit(False))
        return found

    def _moves(self, events: DataFrame) -> Moves:
        """Return the halves of changes of the primary key.

        A deletion whose insertion is not in the batch must find the row in the table, for the
        insertion may need it: so no change of the row comes before it in the batch.

        :raises BatchCutError: one does
        """
        change = F.col(CHANGE)
        by_key = Window.partitionBy(*self.target.key_columns, "partition").orderBy("offset")
        before = by_key.rowsBetween(Window.unboundedPreceding, -1)
        halves = (
            events.select(
                *self.target.key_columns,
                *("partition", "offset", "kafka_ms"),
                change.op.alias("op"),
                change.micros.alias("m"),
                change.position.alias("p"),
                (change.new_key.isNotNull() | change.old_key.isNotNull()).alias("is_half"),
            )
            .withColumn("changes", F.sum(F.col("op").isin(*LIVE).cast("int")).over(before))
            .filter("is_half AND op IS NOT NULL")  # a tombstone has the headers of its deletion
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
                    end_before(ends, partition, offset)
        if ends:
            raise BatchCutError(ends)
        return Moves(inserted, halves.take(pa.array(alone, pa.int64())))

    def _lost(self, refused: Mapping[Place, str]) -> list[Lost]:
        """Return the batch's changes that are left out; a record without a key is not a change."""
        found, is_lost = self.frame, "left_out AND NOT no_key"
        if refused:
            places = [(*place, True) for place in refused]
            marked = self.spark.createDataFrame(
                places, "partition int, offset bigint, is_refused boolean"
            )
            found = found.join(marked, ["partition", "offset"], "left")
            is_lost += " OR is_refused"
        found = found.filter(is_lost)
        rows = found.select("partition", "offset", *self._keys(self.target.keys)).toArrow()
        hashes = self.target.hashed(rows.select(list(self.target.keys)))
        pairs = zip(*(rows.column(name).to_pylist() for name in rows.column_names[:2]), strict=True)
        return [Lost(partition=p, offset=at, key=hashes.get(n)) for n, (p, at) in enumerate(pairs)]

    def _cut_after_lost(self, wanted: DataFrame, lost: Sequence[Lost]) -> None:
        """End the batch after a change that is left out, if a later one needs values of its row.

        So all values that the changes of a batch take from each other are the newest.

        :raises BatchCutError: there is such a change
        """
        change = F.col(CHANGE)
        moved = change.old_key.isNotNull().alias("moved")
        needs = (
            wanted.filter(change.op.isin(*LIVE) & (F.size(change.missing) > 0))
            .select("partition", "offset", moved, *self._keys(self.target.keys))
            .toArrow()
        )
        hashes = self.target.hashed(needs.select(list(self.target.keys)))
        places = [needs.column(name).to_pylist() for name in ("partition", "offset", "moved")]
        last: dict[tuple[int, str | None], int] = {}
        for number, (partition, offset, _) in enumerate(zip(*places, strict=True)):
            for key in (hashes.get(number), None):
                last[partition, key] = max(offset, last.get((partition, key), -1))
        has_moved = any(places[2])
        ends: dict[int, int] = {}
        for one in lost:
            after = last.get((one.partition, one.key), -1) > one.offset
            if after or (has_moved and self.progress.batch.end[one.partition] > one.offset + 1):
                end_before(ends, one.partition, one.offset + 1)
        if ends:
            raise BatchCutError(ends)

    # --- in Spark ---

    def _filled(self, events: DataFrame) -> DataFrame:
        """Return the changes with values that changes before them in the batch have.

        Adds ``origin``: the old key from which a row came, if it lacks values of before.
        """
        change = F.col(CHANGE)
        keys = self.target.key_columns
        by_key = Window.partitionBy(*keys, "partition").orderBy("offset")
        is_start = F.col("op").isin("c", "r").cast("int")
        events = events.withColumn("life", F.sum(is_start).over(by_key))
        of_life = Window.partitionBy(*keys, "partition", "life").orderBy("offset")
        is_live = F.col("op").isin(*LIVE)
        missing = change.missing
        fills = self.target.fills
        filled = {
            fill: F.last(
                F.when(
                    is_live & ~F.array_contains(missing, name),
                    F.struct(F.col(f"{ROW}.{quote(name)}").alias("v")),
                ),
                ignorenulls=True,
            ).over(of_life)
            for name, fill in fills.items()
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
            F.when(F.array_contains(missing, name) & F.col(fill).isNull(), F.lit(name))
            for name, fill in fills.items()
        ]
        row = self._row_with({name: F.col(fill).v for name, fill in fills.items()}, missing)
        columns = {ROW: row, "missing": F.array_compact(F.array(*left))}
        return events.withColumns(columns).drop(*filled)

    def _row_with(self, values: Mapping[str, Column], missing: Column) -> Column:
        """Return the row with other values of the missing columns."""
        members = []
        for column in self._columns:
            own = F.col(f"{ROW}.{quote(column)}")
            if column in values:
                is_missing = F.array_contains(missing, column)
                own = F.when(is_missing, values[column]).otherwise(own)
            members.append(own.alias(column))
        return F.struct(*members)

    def _newest(self, events: DataFrame) -> DataFrame:
        """Return the last change of each key; ``m`` and ``p``: its time and position.

        A tombstone has those of the deletion before it.
        """
        change = F.col(CHANGE)
        keys = self.target.key_columns
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
        if len(self.progress.batch.ranges) > 1:
            order = (F.desc_nulls_last("m"), F.desc_nulls_last("p"), F.desc("offset"))
            across = Window.partitionBy(*keys).orderBy(*order)
            found = found.withColumn("age", F.row_number().over(across)).filter("age = 1")
        return found.drop("age", "known")

    # --- against the table ---

    def _applied(
        self,
        events: DataFrame,
        newest: DataFrame,
        missing: Sequence[str],
        truncates: Sequence[Deletion],
        moves: Moves | None,
        lost: Sequence[Lost],
    ) -> Folded:
        # Of the last change of each key.
        places = newest.select(
            *self.target.key_columns, "partition", "offset", "m", "p", "op"
        ).toArrow()
        truncated = self._truncated_rows(truncates)
        found: list[FileRows] = []
        if self.target.head is not None and places.num_rows:
            found = self.target.rows_of(self.target.head, places.select(self.target.key_columns))
        toast = self.target.toast if missing else []
        rows = OldRows(self.target, found, toast, truncated)
        replaced, stale = rows.replaced_by(places)
        deletes, late = self._deletes(places)
        live = self._without(newest.filter(F.col("op") != "d"), [*stale, *late])
        values = OldValues(self.target, self.progress, self.state, self.lost, rows, events)
        if missing:
            live = self._resolved(values, live)
        state = State(
            truncates=newest_truncates([*self.state.truncates, *truncates]),
            lacking=sorted({*self.state.lacking, *missing}),
            partitions=self.state.partitions or len(self.progress.batch.end),
            deletes=deletes,
            moves=self.state.moves if moves is None else self._known_moves(moves, values),
            reached=self._reached(places),
            lost=self.lost.after(lost),
        )
        return Folded(
            rows=live.select(f"{ROW}.*"),
            replaced=together(replaced, truncated),
            properties={STATE: state.model_dump_json()} if state != self.state else {},
            refused=values.refused,
            repeated=frozenset(values.repeated),
        )

    def _known_moves(self, moves: Moves, values: OldValues) -> list[Move]:
        """Return the deletions whose insertions are still to come.

        :raises BatchCutError: changes in other partitions have to come first
        """
        if self.progress.may_move:
            values.check_moves(moves.alone)
        found = {
            (each.micros, each.position, each.key): each
            for each in self.state.moves
            if (each.micros, each.position) not in moves.inserted
        }
        hashes = self.target.hashed(moves.alone.select(self.target.key_columns))
        places = (moves.alone.column(name).to_pylist() for name in ("m", "p"))
        for number, (m, p) in enumerate(zip(*places, strict=True)):
            if (m is not None or p is not None) and (key := hashes.get(number)):
                snapshot = self.target.head.snapshot_id if self.target.head else None
                move = Move(micros=m, position=p, key=key, snapshot=snapshot)
                found.setdefault((m, p, key), move)
        return list(found.values())[-_MAX_MOVES:]

    def _reached(self, places: pa.Table) -> dict[int, tuple[int | None, int | str | None]]:
        """Return time and position of the newest change by partition.

        Rows that a snapshot read do not count: their time is that of the reading.
        """
        found = dict(self.state.reached)
        by_order = [("m", "ascending"), ("p", "ascending")]
        newest = (
            places.filter(pc.not_equal(places.column("op"), READ))
            .select(["partition", "m", "p"])
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

    def _deletes(self, places: pa.Table) -> tuple[dict[str, Deletion], list[Place]]:
        """Return the deleted keys to remember, and the changes from before such a deletion."""
        known, may_move = self.state.deletes, self.progress.may_move
        if not known and not may_move:
            return {}, []
        found = dict(known)
        late: list[Place] = []
        hashes = self.target.index.hashes(places.select(self.target.key_columns).columns)
        is_delete = np.array(pc.equal(places.column("op"), "d"), np.bool_)[hashes.position]
        held_high = np.array([int(key[:16], 16) for key in known], np.uint64)
        rows = places.select(["partition", "offset", "m", "p", "op"])
        for which in np.flatnonzero(np.isin(hashes.high, held_high) | (is_delete & may_move)):
            row = rows.slice(int(hashes.position[which]), 1).to_pylist()[0]
            key = hashes.text(int(which))
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
        if not truncates or self.target.head is None:
            return []
        found = []
        for of_file in self.target.index.all_rows(self.target.table, self.target.head):
            columns = self.target.read(of_file, self.target.order_columns)
            gone = self._came_before(columns, truncates)
            if gone.any():
                found.append(FileRows(of_file.file, of_file.positions[gone]))
        return found

    def _came_before(self, rows: pa.Table, truncates: Sequence[Deletion]) -> NDArray[np.bool_]:
        """Return which rows, given by partition, time and position, came before a truncate."""
        partition, time_, position = rows.columns
        micros = pc.fill_null(time_.cast(pa.int64()), -1)
        unordered = pc.and_(time_.is_null(), position.is_null())
        gone = pc.is_in(partition, pa.array({t.partition for t in truncates}, partition.type))
        for each in newest_truncates(truncates):
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

    def _resolved(self, old: OldValues, live: DataFrame) -> DataFrame:
        """Return the changes with the values of the table's rows."""
        columns = ("partition", "offset", "kafka_ms", "missing", "origin", "m", "p", "life")
        lacking = live.filter(F.size("missing") > 0)
        needs = lacking.select(*self.target.key_columns, *columns).toArrow()
        if not needs.num_rows or (fills := old.fills(needs)) is None:
            return live
        # Spark Connect compares names regardless of their origin.
        frame = self.spark.createDataFrame(fills)
        joined = live.join(frame, ["partition", "offset"], "left")
        values = {name: F.col(fill) for name, fill in self.target.fills.items()}
        return joined.withColumn(ROW, self._row_with(values, F.col("missing")))
