"""Truncates of a database's table: which changes and which rows came before one.

A truncate deletes what came before it: in its own partition by the offset, and in the others by the
source's time and position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topicberg.errors import TableflowError
from topicberg.iceberg.position_deletes import FileRows, read_rows
from topicberg.tableflow.changelog.change_batch import Facts
from topicberg.tableflow.changelog.current_rows import FoldTarget
from topicberg.tableflow.changelog.fold_state import Deletion, newest_truncates
from topicberg.tableflow.values.arrays import flags
from topicberg.tableflow.values.offsets import Batch


@dataclass(frozen=True)
class Truncates:
    """The truncates that concern a batch: those of earlier batches, and ``new``, its own."""

    target: FoldTarget
    batch: Batch
    earlier: Sequence[Deletion]
    new: Sequence[Deletion]

    @classmethod
    def of(
        cls,
        target: FoldTarget,
        batch: Batch,
        earlier: Sequence[Deletion],
        facts: Facts,
        which: NDArray[np.bool_],
    ) -> Self:
        """:param which: the changes of the batch that are truncates"""
        places = np.flatnonzero(which)
        columns = (facts.values(name, places) for name in ("partition", "m", "p"))
        new = [
            Deletion(partition=partition, micros=m, position=p)
            for partition, m, p in zip(*columns, strict=True)
        ]
        return cls(target, batch, earlier, new)

    def __bool__(self) -> bool:
        return bool(self.earlier or self.new)

    @property
    def newest(self) -> list[Deletion]:
        """The newest ones, which are to be known after the batch."""
        return newest_truncates([*self.earlier, *self.new])

    def check_order(self, unordered: int) -> None:
        """:raises TableflowError: some changes have no order, and there are several partitions"""
        if len(self.batch.end) > 1 and unordered:
            raise TableflowError(
                f"topic {self.target.topic}: its table was truncated, and "
                f"{unordered} changes have no position in the source: whether changes of "
                "other partitions came before the truncate is not known",
                hint="let the connector write to a topic of one partition, or leave truncates out "
                "(skipped.operations=t)",
            )

    def precede(self, facts: Facts) -> NDArray[np.bool_]:
        """Return whether a change came before a truncate of this batch or an earlier one."""
        is_before = np.zeros(len(facts), np.bool_)
        for place in np.flatnonzero(facts.is_op("t")):
            own = facts.partition == facts.partition[place]
            is_before |= own & (facts.offset < facts.offset[place])
        for each in self.newest:
            columns = facts.column("m"), facts.column("p")
            is_earlier = _is_earlier(*columns, each, is_without=False)
            is_before |= (facts.partition != each.partition) & is_earlier
        return is_before

    def rows(self) -> list[FileRows]:
        """Return the table's rows that came before a truncate of this batch."""
        target = self.target
        if not self.new or target.head is None:
            return []
        truncated = []
        for of_file in target.index.all_rows(target.table, target.head):
            columns = read_rows(target.table, of_file, target.order_columns)
            gone = self._came_before(columns)
            if gone.any():
                truncated.append(FileRows(of_file.file, of_file.positions[gone]))
        return truncated

    def _came_before(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return which rows, given by partition, time and position, came before a truncate."""
        partition, time_, position = rows.columns
        unordered = pc.and_(time_.is_null(), position.is_null())
        gone = pc.is_in(partition, pa.array({t.partition for t in self.new}, partition.type))
        for each in newest_truncates(self.new):
            other = pc.not_equal(partition, each.partition)
            if each.order is None or pc.any(pc.and_(other, unordered)).as_py():
                self.check_order(1)
            micros = time_.cast(pa.int64())
            earlier = pa.array(_is_earlier(micros, position, each, is_without=True))
            gone = pc.or_(gone, pc.and_(other, earlier))
        return flags(gone)


def _is_earlier(
    micros: Any, position: Any, truncate: Deletion, *, is_without: bool
) -> NDArray[np.bool_]:
    """Return which times and positions are before those of a truncate.

    :param is_without: whether one of the same time without a position is
    """
    limit = -1 if truncate.micros is None else truncate.micros
    given = pc.fill_null(micros, -1)
    is_before = pc.less(given, limit)
    if truncate.position is not None:
        lower = pc.fill_null(pc.less(position, truncate.position), is_without)
        is_before = pc.or_(is_before, pc.and_(pc.equal(given, limit), lower))
    return flags(is_before)
