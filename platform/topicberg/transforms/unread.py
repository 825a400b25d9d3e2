"""The part of its sources that a derived table has not computed yet.

Every snapshot that was computed records in its summary up to which state of each source the table
is complete, and except for which hours (:class:`Read`). This, the changes of the sources since, and
what other writers computed at the same time are sufficient. Neither sensors nor checks have to
remember anything, and it does not matter which snapshots expire.
"""

from __future__ import annotations

import json
import sys
import zlib
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain, pairwise
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from topicberg.iceberg import snapshots, summaries
from topicberg.iceberg.changes import Change, Changed, Mark, changed
from topicberg.iceberg.hours import BEFORE_EVERYTHING, FileHours, Hours, live_files_since, union
from topicberg.transforms.windows import FOREVER, WINDOW, Window, computations, reached

READ = "topicberg.read"  # Snapshot summary, JSON: source → :class:`Read`.
MAX_RANGES = 3000
"""The most ranges of :class:`Read`: beyond it, the narrowest gaps count as unread as well.
Late rows may be in any hours. A thousand ranges are 2 KB in each summary until they are computed.
"""
MAX_EXPIRED_RANGES = 30
"""The same, of hours past the data retention of a source: they are kept in case it gets longer."""
_EPOCH = 2**40


class Unread(NamedTuple):
    """Hours that changed and were not computed since. ``first`` and ``last``: the clock (see
    :class:`Read`) at the first and at the last such change; ``since`` and ``until``: their times in
    ms."""

    start: int
    stop: int
    first: int
    last: int
    since: int
    until: int

    @property
    def sequence(self) -> int:
        """The sequence number of the source at the last change."""
        return self.last % _EPOCH


def _packed(ranges: Iterable[Unread]) -> str:
    """Return ranges as text: of each field the differences, which repeat, compressed."""
    fields = [
        [after - before for before, after in pairwise((0, *numbers))]
        for numbers in zip(*ranges, strict=True)
    ]
    return b64encode(zlib.compress(json.dumps(fields).encode())).decode()


def _unpacked(ranges: Any) -> Any:
    """Return ranges from their text; those of a model that is made in code are a list."""
    if not isinstance(ranges, str):
        return ranges
    return [*zip(*map(accumulate, json.loads(zlib.decompress(b64decode(ranges)))), strict=True)]


Ranges = Annotated[list[Unread], BeforeValidator(_unpacked), PlainSerializer(_packed)]


class SourceState(BaseModel):
    """The state of a source that was read."""

    mark: Mark
    epoch: int = 0  # How often the source was found to be rolled back or replaced.

    @property
    def clock(self) -> int:
        """Orders what was read: sequence numbers do not, after a rollback."""
        return self.epoch * _EPOCH + self.mark.sequence


class Read(SourceState):
    """How far a source is read: all of a state, except for some hours."""

    unread: Ranges = []
    late: Ranges = []  # Further ones: rows of these came later than the table computes them.
    new: bool = Field(default=False, exclude=True)
    """The source was never read, so it is not known since when it is unread."""

    def without(self, windows: Sequence[Hours], clock: int) -> Read:
        """Return what remains unread when some hours were computed from a state of the source."""
        left = {name: _left(getattr(self, name), windows, clock) for name in ("unread", "late")}
        return self.model_copy(update=left)


class Known(BaseModel):
    """What was found about a derived table."""

    head: int | None  # Its newest snapshot at that time.
    read: dict[str, Read]

    def holds(self, target: Table | None) -> bool:
        """Return whether what the table had computed then is still part of it."""
        return target is not None and any(
            s.snapshot_id == self.head for s in summaries.ancestry(target)
        )


@dataclass(frozen=True)
class SourceTable:
    """``reach``: how far after an hour that changed the derived table changes; ``lookahead``: how
    far before it."""

    table: Table
    time: str
    reach: timedelta = timedelta()
    lookahead: timedelta = timedelta()
    whole: bool = False  # It is a lookup.
    max_lateness: timedelta | None = None
    """How long after a time its rows are still computed when they arrive; None: for ever."""

    def reached(self, hours: Hours, now: datetime) -> Hours:
        """Return the hours of the derived table that follow from some hours of the source."""
        return reached(hours, self.reach, now, self.lookahead)


@dataclass(frozen=True)
class _Write:
    """Windows that were computed, and the states of the sources that were read for them."""

    windows: list[Hours]
    read: Mapping[str, Any]  # Source → JSON of :class:`Read`.


def unread(
    target: Table | None,
    time: str,
    sources: Mapping[str, SourceTable],
    first_hour: int = BEFORE_EVERYTHING,
    known: Known | None = None,
) -> dict[str, Read]:
    """Return how far each source is read at the moment, see also :func:`computable`.

    :param target: the derived table; None: it does not exist yet
    :param time: its event time
    :param first_hour: earlier hours are past a retention
    :param known: what was found before: more than the target's summaries record, if snapshots of a
        source expired since the newest of them
    """
    writes = list(_writes(target)) if target else []

    def since(before: Read | None, name: str) -> Read:
        """Return how far a source is read, by how far it was read before."""
        source = sources[name]
        news = changed(source.table, source.time, before.mark if before else None)
        epoch = before.epoch + (news.everything or news.rolled_back) if before else 0
        changes = [*_unread(news.changes, source.reached, epoch, is_new=before is None)]
        mark = Mark.of(source.table, source.table.current_snapshot())
        if news.everything:
            anywhere = _anywhere(mark.sequence, news, held(target, time, sources))
            changes += _unread(anywhere, lambda hours, _: hours, epoch, is_new=before is None)
        read = before or Read(mark=mark, new=True)
        # Nothing says when the rows of a new table came.
        late, rest = _by_lateness(changes, None if news.everything else source.max_lateness)
        ranges = {"unread": [*read.unread, *rest], "late": [*read.late, *late]}
        read = read.model_copy(update={"mark": mark, "epoch": epoch, **ranges})
        oldest = min((each.first for each in chain(read.unread, read.late)), default=sys.maxsize)
        for write in (write for write in writes if name in write.read):
            clock = SourceState.model_validate(write.read[name]).clock
            read = read.without(write.windows, clock) if clock >= oldest else read
        return read

    reads = dict[str, Read]()
    newest = writes[0].read if writes else {}
    for name in sources:
        read = since(Read.model_validate(newest[name]) if name in newest else None, name)
        if read.unread and known and name in known.read and known.holds(target):
            other = since(known.read[name], name)
            hours = union(Hours(each.start, each.stop) for each in read.unread)
            left = [each for part in hours for each in _within(part, other.unread)]
            read = read.model_copy(update={"unread": left, "late": other.late})
        ranges = _joined(read.unread)
        expired = _within(Hours(BEFORE_EVERYTHING, first_hour), ranges)
        rest = _within(Hours(first_hour, sys.maxsize), ranges)
        coarse = [*_coarse(expired, MAX_EXPIRED_RANGES), *_coarse(rest, MAX_RANGES)]
        late = _coarse(_joined(read.late), MAX_EXPIRED_RANGES)
        reads[name] = read.model_copy(update={"unread": coarse, "late": late})
    return reads


def computable(reads: Mapping[str, Read], first_hour: int) -> dict[str, Read]:
    """Return how far each source is read, without the hours past a retention."""
    left = Hours(first_hour, sys.maxsize)
    return {
        name: read.model_copy(update={"unread": [*_within(left, read.unread)]})
        for name, read in reads.items()
    }


def after(read: Mapping[str, Read], windows: Sequence[Window]) -> str:
    """Return :data:`READ` of a snapshot that computes windows from the states in ``read``."""
    computed = union(window.hours for window in windows)
    left = {name: each.without(computed, each.clock) for name, each in read.items()}
    return json.dumps({name: each.model_dump(mode="json") for name, each in left.items()})


def late_rows(source: SourceTable, late: Sequence[Unread]) -> int:
    """Return how many rows of a source came that some hours follow from, and that it still has.
    There may be fewer, as the rows of a file are counted together. What a rollback changed does not
    count, and neither do rows that a lookahead of :data:`FOREVER` only may need for these hours."""
    head = source.table.current_snapshot()
    since = [each.first % _EPOCH for each in late if each.first % _EPOCH]
    if head is None or not since:
        return 0
    file_hours, now = FileHours(source.table, source.time), datetime.now(UTC)
    ahead = timedelta() if source.lookahead == FOREVER else source.lookahead
    return sum(
        file.record_count
        for file, sequence in live_files_since(source.table, head, min(since) - 1)
        if file.content == DataFileContent.DATA
        and any(
            0 < unread.first % _EPOCH <= sequence
            and unread.start < hours.stop
            and hours.start < unread.stop
            for each in file_hours.of(file, head)
            for hours in (reached(each, source.reach, now, ahead),)
            for unread in late
        )
    )


def _writes(target: Table) -> Iterator[_Write]:
    """Yield the computed windows, the newest one first."""
    for snapshot, _ in computations(target):
        facts = summaries.summary(snapshot)
        if windows := facts.get(WINDOW):
            computed = union(window.hours for window in Window.parse_all(windows))
            yield _Write(computed, json.loads(facts.get(READ, "{}")))


def _unread(
    changes: Iterable[Change],
    follow: Callable[[Hours, datetime], Hours],
    epoch: int,
    *,
    is_new: bool,
) -> Iterator[Unread]:
    """:param is_new: nothing was read before: the first change may be the first of all"""
    for change in changes:
        until = datetime.fromtimestamp(change.until / 1000, UTC)
        hours, clock = follow(change.hours, until), epoch * _EPOCH + change.sequence
        first = min(clock, 1) if is_new else clock
        yield Unread(hours.start, hours.stop, first, clock, change.since, change.since)


def _by_lateness(
    changes: Iterable[Unread], limit: timedelta | None
) -> tuple[list[Unread], list[Unread]]:
    """Return the parts of changes later than a limit (None: for ever), and the rest."""
    late, rest = list[Unread](), list[Unread]()
    for change in changes:
        first_hour = BEFORE_EVERYTHING
        if limit is not None and limit != FOREVER:
            committed = datetime.fromtimestamp(change.since / 1000, UTC)
            first_hour = int((committed - limit).timestamp()) // 3600
        late += _within(Hours(BEFORE_EVERYTHING, first_hour), [change])
        rest += _within(Hours(first_hour, sys.maxsize), [change])
    return late, rest


def _anywhere(sequence: int, news: Changed, held: Iterable[Hours]) -> list[Change]:
    """Return changes of removed rows, which may have been in any hour that has rows anywhere."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    since = min((change.since for change in news.changes), default=now)
    return [Change(hours, sequence, since, now) for hours in held]


def held(target: Table | None, time: str, sources: Mapping[str, SourceTable]) -> list[Hours]:
    """Return the hours of which a derived table or one of its sources has rows."""
    tables = [(target, time)] if target else []
    tables += [(source.table, source.time) for source in sources.values()]
    return union(hours for table in tables for hours in snapshots.held_hours(*table))


def _within(hours: Hours, ranges: Iterable[Unread]) -> Iterator[Unread]:
    """Yield the parts of unread ranges that are within some hours."""
    for each in ranges:
        start, stop = max(each.start, hours.start), min(each.stop, hours.stop)
        if start < stop:
            is_whole = (start, stop) == (each.start, each.stop)
            yield each if is_whole else each._replace(start=start, stop=stop)


def _joined(unread: Iterable[Unread]) -> list[Unread]:
    """Return one unread range for each range of hours."""
    by_hours = dict[tuple[int, int], Unread]()
    for each in unread:
        by_hours[each[:2]] = _both(each, by_hours.get(each[:2], each))
    return list(by_hours.values())


def _both(one: Unread, other: Unread) -> Unread:
    picks = min, max, min, max, min, max
    return Unread(*(pick(*both) for pick, *both in zip(picks, one, other, strict=True)))


def _left(ranges: Iterable[Unread], windows: Sequence[Hours], clock: int) -> list[Unread]:
    """Return what remains unread when some hours, ascending and apart, were computed."""
    left, starts = [], [hours.start for hours in windows]
    for each in ranges:
        begin = each.start
        for hours in windows[max(0, bisect_right(starts, each.start) - 1) :]:
            if hours.start >= each.stop or clock < each.first:
                break
            start, stop = max(begin, hours.start), min(each.stop, hours.stop)
            if start >= stop:
                continue
            if begin < start:
                left.append(each._replace(start=begin, stop=start))
            if clock < each.last:
                left.append(Unread(start, stop, each.last, each.last, each.until, each.until))
            begin = stop
        if begin < each.stop:
            left.append(each if begin == each.start else each._replace(start=begin))
    return left


def _coarse(unread: Iterable[Unread], limit: int) -> list[Unread]:
    ordered = sorted(unread)
    if len(ordered) <= limit:
        return ordered
    gaps = sorted(after.start - before.stop for before, after in pairwise(ordered))
    merged = ordered[:1]
    for each in ordered[1:]:
        if each.start - merged[-1].stop > gaps[-limit]:
            merged.append(each)
        else:
            merged[-1] = _both(merged[-1], each)
    return merged
