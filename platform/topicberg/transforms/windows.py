"""Windows of event time, and those that the snapshots of a derived table computed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from math import ceil
from operator import or_

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.iceberg.summaries import SOURCE_SNAPSHOTS, ancestry, summary
from topicberg.spark import quote
from topicberg.wording import listed

WINDOW = "topicberg.window"  # Snapshot summary: what it computed, see :meth:`Window.parse_all`.
FOREVER = timedelta.max  # A lookback over everything before, or a lookahead over everything after.
MAX_DESCRIBED = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def reached(
    hours: Hours, lookback: timedelta, now: datetime, lookahead: timedelta = timedelta()
) -> Hours:
    """Return the hours whose rows follow from those of an hour range.

    :param lookback: how much later than these hours they are at most
    :param now: when the hours changed, or later
    :param lookahead: how much earlier they are at most
    """
    hour, start = timedelta(hours=1), BEFORE_EVERYTHING
    if lookahead != FOREVER:
        start = max(start, hours.start - ceil(lookahead / hour))
    until = max(hours.stop, int(now.timestamp()) // 3600 + 1)
    return Hours(start, until if lookback == FOREVER else hours.stop + ceil(lookback / hour))


@dataclass(frozen=True)
class Window:
    """Event times from ``start`` up to, not including, ``end``. Without ``start``: everything
    before ``end``, and the rows without a time."""

    start: datetime | None
    end: datetime

    def condition(self, column: str, kind: DataType) -> Column:
        """:param kind: the column's type; a literal of another one would hinder pruning"""

        def at(moment: datetime) -> Column:
            # F.lit would ask Spark for the type of a time, in a request of its own.
            return F.expr(f"TIMESTAMP '{moment.isoformat()}'").cast(kind)

        time = F.col(quote(column))
        before = time < at(self.end)
        return before | time.isNull() if self.start is None else (time >= at(self.start)) & before

    def back(self, lookback: timedelta) -> Window:
        """Return the window, extended by what lies before it."""
        if self.start is None or lookback == FOREVER:
            return Window(None, self.end)
        return Window(self.start - lookback, self.end)

    def cut(self, hours: int, first: datetime | None = None) -> Iterator[Window]:
        """Yield the parts of the window in a grid that begins in 1970.

        What lies before ``first`` and up to the next line of the grid is one part.

        :param hours: between two lines of the grid
        """
        step, start = timedelta(hours=hours), self.start
        while start is None or start < self.end:
            begin = first if start is None else start
            end = min(begin + step - (begin - _EPOCH) % step, self.end) if begin else self.end
            yield Window(start, end)
            start = end

    @property
    def hours(self) -> Hours:
        """The hours of the window, which begins and ends with an hour."""
        start = int(self.start.timestamp()) // 3600 if self.start else BEFORE_EVERYTHING
        return Hours(start, int(self.end.timestamp()) // 3600)

    @property
    def described(self) -> str:
        """The window for people: ``2026-03-01 03:00 to 04:00``."""
        if self.start is None:
            return f"before {self.end:%F %H:%M}"
        is_one_day = self.start.date() == self.end.date()
        return f"{self.start:%F %H:%M} to {self.end:{'%H:%M' if is_one_day else '%F %H:%M'}}"

    def __str__(self) -> str:
        return f"{self.start.isoformat() if self.start else ''}/{self.end.isoformat()}"

    @staticmethod
    def parse_all(text: str) -> list[Window]:
        """Parse the texts of windows, with commas; raise a ValueError if one is none."""
        return list(map(Window.parse, text.split(",")))

    @staticmethod
    def parse(text: str) -> Window:
        """Parse the text of a window; raise a ValueError if it is none."""
        start, _, end = text.partition("/")
        return Window(datetime.fromisoformat(start) if start else None, datetime.fromisoformat(end))


def described_windows(windows: Sequence[Window]) -> str:
    """Return windows for people: the first ones."""
    return listed([window.described for window in windows], MAX_DESCRIBED)


def joined(windows: Iterable[Window]) -> list[Window]:
    """Return windows that are in order, as one where one begins with the end of another."""
    windows_in_order = list[Window]()
    for window in windows:
        if windows_in_order and windows_in_order[-1].end == window.start:
            windows_in_order[-1] = Window(windows_in_order[-1].start, window.end)
        else:
            windows_in_order.append(window)
    return windows_in_order


def within(windows: Iterable[Window], column: str, kind: DataType) -> Column:
    """Return the condition of rows in any of some windows, see :meth:`Window.condition`."""
    return reduce(or_, (window.condition(column, kind) for window in windows))


def computations(table: Table) -> Iterator[tuple[Snapshot, dict[str, int | None]]]:
    """Yield computed snapshots, the newest one first: source → the snapshot that was read."""
    computed = ((each, summary(each).get(SOURCE_SNAPSHOTS)) for each in ancestry(table))
    return ((snapshot, json.loads(text)) for snapshot, text in computed if text)
