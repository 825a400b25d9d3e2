"""What a table is derived from, and what its function reads for a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.transforms.unread import SourceTable
from topicberg.transforms.windows import FOREVER, Window

AT_ONCE = 48
"""Parts of a window that one job of Spark computes, and one commit replaces."""
RETENTION_MARGIN = timedelta(hours=1)
"""A requested window is computed within this time; later it may be past its retention."""
Transform = Callable[..., "DataFrame"]
"""The user's function: a DataFrame for each source in, rows of the derived table out."""
TableName = tuple[str, str]
"""Namespace and name."""
_HOURS = {"hour": 1, "day": 24}
"""Iceberg transform of the event time → hours of a partition."""


@dataclass(frozen=True)
class Source:
    """A table that is read: the window of its event time, or as a whole."""

    table: TableName
    time: str | None
    """None: it is read as a whole, and its changes trigger nothing."""
    whole: bool = False
    kept: timedelta | None = None
    """Its data retention, by Kafka's time; None: for ever."""
    ahead: timedelta = timedelta()
    """How long after Kafka's time its event times may be: so much earlier rows are deleted."""

    @property
    def name(self) -> str:
        return ".".join(self.table)


@dataclass(frozen=True)
class Derivation:
    """How a table is derived from its sources."""

    sources: tuple[Source, ...]
    target: TableName
    transform: Transform
    target_time: str
    """The event time in the target, by which a window is replaced."""
    lookback: timedelta | None = None
    """How far before the window the sources are read; None: the function gets only the window."""
    lookahead: timedelta | None = None
    """How far after the window the sources are read."""
    partitioned_by: str = "hour"
    """Iceberg transform of ``target_time``; windows begin and end with its partitions."""
    first: datetime | None = None
    """When the first partition begins; it also has everything before."""
    format_version: int = 2
    """Iceberg's format version of a new table."""
    version: str | None = None
    """Of the function and its settings; None: it is not recorded."""
    descriptions: tuple[tuple[str, str], ...] = ()
    """Columns and what the table says of them; others have the sources' descriptions."""

    @property
    def name(self) -> str:
        return ".".join(self.target)

    def reach(self, source: Source) -> timedelta:
        """Return how far after an hour that changed in a source the table changes.

        For a source that is read as a whole, this is not known.
        """
        return FOREVER if source.whole else self.back

    @property
    def back(self) -> timedelta:
        """The lookback in whole partitions: what follows from their rows is checked in these."""
        return self._whole(self.lookback)

    @property
    def ahead(self) -> timedelta:
        """The lookahead in whole partitions."""
        return self._whole(self.lookahead)

    def _whole(self, duration: timedelta | None) -> timedelta:
        if duration is None or duration == FOREVER:
            return duration or timedelta()
        partition = timedelta(hours=self.hours)
        return ceil(duration / partition) * partition

    @property
    def hours(self) -> int:
        """The hours of a partition."""
        return _HOURS[self.partitioned_by]

    @property
    def first_partition(self) -> Hours | None:
        """The hours of the first partition, without those before it that it has as well."""
        if self.first is None:
            return None
        start = int(self.first.timestamp()) // 3600
        return Hours(start, start + self.hours)

    def calls(self, window: Window) -> list[Call]:
        """Return the calls of the function that compute a window."""
        back, ahead = self.back, self.ahead
        if FOREVER in (back, ahead):
            return [Call(window, None)]
        calls = list[Call]()
        step = max(self.hours, max(back, ahead) // timedelta(hours=1))
        for part in window.cut(self.hours, self.first):
            block = part.around(step)
            read = Window(block.start - back if block.start else None, block.end + ahead)
            if calls and calls[-1].read == read:
                part = Window(calls.pop().window.start, part.end)
            calls.append(Call(part, read))
        return calls

    def partitions(self, window: Window) -> Iterator[Window]:
        """Yield the partitions of a window; of the first one, what lies before it separately."""
        for part in window.cut(self.hours, self.first):
            if part.start is None and self.first and self.first < part.end:
                yield Window(None, self.first)
                yield Window(self.first, part.end)
            else:
                yield part

    def placed(self, partition: Window) -> Window:
        """Return where the rows may be that follow from a source's rows of a partition.

        Those of before the first partition change no other one.
        """
        back, ahead = self.back, self.ahead
        if partition.start is None and partition.end == self.first:
            return Window(None, self.first + timedelta(hours=self.hours))
        if partition.start == self.first:
            ahead = FOREVER
        start = None if partition.start is None or ahead == FOREVER else partition.start - ahead
        return Window(start, partition.end + (timedelta() if back == FOREVER else back))

    def source_tables(self, find: Callable[[TableName], Table | None]) -> dict[str, SourceTable]:
        """Return the sources that exist and have an event time, by their names.

        A table that is read both by windows and as a whole reaches as far as both together.
        """
        tables = dict[str, SourceTable]()
        for each in self.sources:
            if each.time is None or (table := find(each.table)) is None:
                continue
            ahead = timedelta() if each.whole else self.ahead
            source = SourceTable(table, each.time, self.reach(each), ahead, each.whole)
            other = tables.get(each.name, source)
            tables[each.name] = replace(
                source,
                reach=max(source.reach, other.reach),
                lookahead=max(source.lookahead, other.lookahead),
                whole=source.whole and other.whole,
            )
        return tables

    @property
    def kept(self) -> timedelta | None:
        """How long all sources have the rows of an hour after it; None: for ever."""
        kept = [
            each.kept - each.ahead
            for each in self.sources
            if each.kept is not None and not each.whole
        ]
        return min(kept, default=None)

    def first_hour(self, now: datetime) -> int:
        """Return the first hour since 1970 that may be computed again without a request.

        It begins a partition. Hours of earlier ones are past the data retention of a source, or
        about to be: computing them again would remove what was computed from rows that are deleted
        since.
        """
        if (kept := self.kept) is None:
            return BEFORE_EVERYTHING
        back = self.lookback if self.lookback and self.lookback != FOREVER else timedelta()
        first = now - kept + back + RETENTION_MARGIN
        return -int(-first.timestamp() // (3600 * self.hours)) * self.hours


class Call(NamedTuple):
    """A call of the function: the window that is kept of its result, and what it reads."""

    window: Window
    read: Window | None
    """None: everything."""
