"""What a table is derived from, and what its function reads for a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.transforms.unread import SourceTable
from topicberg.transforms.windows import FOREVER, Window

AT_ONCE = 48  # Parts of a window that one job of Spark computes, and one commit replaces.
RETENTION_MARGIN = timedelta(hours=1)
"""A requested window is computed within this time; later it may be past its retention."""
Transform = Callable[..., "DataFrame"]
"""The user's function: a DataFrame for each source in, rows of the derived table out."""
TableName = tuple[str, str]  # Namespace and name.
_HOURS = {"hour": 1, "day": 24}  # Iceberg transform of the event time → hours of a partition.


@dataclass(frozen=True)
class Source:
    """A table that is read: the window of its event time, or as a whole."""

    table: TableName
    time: str | None  # None: it is read as a whole, and its changes trigger nothing.
    whole: bool = False
    kept: timedelta | None = None  # Its data retention, by Kafka's time; None: for ever.
    ahead: timedelta = timedelta()
    """How long after Kafka's time its event times may be: so much earlier rows are deleted."""
    lookback: timedelta | None = None
    """How far before the window it is read; None: the function gets only the window."""
    lookahead: timedelta | None = None  # How far after the window it is read.

    @property
    def name(self) -> str:
        return ".".join(self.table)


@dataclass(frozen=True)
class Derivation:
    """How a table is derived from its sources."""

    sources: tuple[Source, ...]
    target: TableName
    transform: Transform
    target_time: str  # The event time in the target, by which a window is replaced.
    partitioned_by: str = "hour"  # Transform of ``target_time``; windows consist of partitions.
    first: datetime | None = None  # When the first partition begins; it also has everything before.
    format_version: int = 2  # Iceberg's format version of a new table.
    version: str | None = None  # Of the function and its settings; None: it is not recorded.
    descriptions: tuple[tuple[str, str], ...] = ()
    """Columns and what the table says of them; others have the sources' descriptions."""
    max_lateness: timedelta | None = None
    """How long after a time its rows are still computed when they arrive; None: for ever."""

    @property
    def name(self) -> str:
        return ".".join(self.target)

    @property
    def windowed(self) -> list[Source]:
        """The sources that are not read as a whole."""
        return [source for source in self.sources if not source.whole]

    @property
    def reads_around(self) -> bool:
        """Whether a partition follows from other partitions of a source as well."""
        return any(source.lookback or source.lookahead for source in self.windowed)

    def reach(self, source: Source) -> timedelta:
        """Return how far after an hour that changed in a source the table changes. For a source
        that is read as a whole, this is not known."""
        return FOREVER if source.whole else self.back(source)

    def back(self, source: Source) -> timedelta:
        """Return the lookback of a source in whole partitions, as its rows are checked in these."""
        return self._whole(source.lookback)

    def ahead(self, source: Source) -> timedelta:
        """Return the lookahead of a source in whole partitions."""
        return timedelta() if source.whole else self._whole(source.lookahead)

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

    def calls(self, window: Window) -> list[Window]:
        """Return the windows that are computed by a call of the function each. A call computes one
        partition: what it reads depends on nothing else. Several partitions have one call where it
        reads everything for each of them."""
        is_one = all(self.read(source, window) is None for source in self.windowed)
        return [window] if is_one else [*window.cut(self.hours, self.first)]

    def read(self, source: Source, window: Window) -> Window | None:
        """Return what the call that computes a window reads of a source; None: everything."""
        back, ahead = self.back(source), self.ahead(source)
        if source.whole or source.time is None or FOREVER in (back, ahead):
            return None
        return Window(window.start - back if window.start else None, window.end + ahead)

    def partitions(self, window: Window) -> Iterator[Window]:
        """Yield the partitions of a window; of the first one, what lies before it separately."""
        for part in window.cut(self.hours, self.first):
            if part.start is None and self.first and self.first < part.end:
                yield Window(None, self.first)
                yield Window(self.first, part.end)
            else:
                yield part

    def placed(self, partition: Window, sources: Sequence[Source]) -> Window:
        """Return where the rows may be that follow from some sources' rows of a partition. Those of
        before the first partition change no other one."""
        back, ahead = max(map(self.back, sources)), max(map(self.ahead, sources))
        if partition.start is None and partition.end == self.first:
            return Window(None, self.first + timedelta(hours=self.hours))
        if partition.start == self.first:
            ahead = FOREVER
        start = None if partition.start is None or ahead == FOREVER else partition.start - ahead
        return Window(start, partition.end + (timedelta() if back == FOREVER else back))

    def source_tables(self, find: Callable[[TableName], Table | None]) -> dict[str, SourceTable]:
        """Return the sources that exist and have an event time, by their names. A table that is
        read both by windows and as a whole reaches as far as both together."""
        tables = dict[str, SourceTable]()
        for each in self.sources:
            if each.time is None or (table := find(each.table)) is None:
                continue
            source = SourceTable(
                table, each.time, self.reach(each), self.ahead(each), each.whole, self.max_lateness
            )
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
        """How long all sources have what a window reads, after it; None: for ever."""
        kept = (
            each.kept - each.ahead - (each.lookback or timedelta())
            for each in self.windowed
            if each.kept is not None and each.lookback != FOREVER
        )
        return min(kept, default=None)

    def first_hour(self, now: datetime) -> int:
        """Return the first hour since 1970 that may be computed again without a request. It begins
        a partition. Hours of earlier ones are past the data retention of a source, or about to be:
        computing them again would remove what was computed from rows that are deleted since."""
        if (kept := self.kept) is None:
            return BEFORE_EVERYTHING
        first = now - kept + RETENTION_MARGIN
        return -int(-first.timestamp() // (3600 * self.hours)) * self.hours
