"""What holds for a derived table: it was computed of what its sources hold.

Every snapshot of a source touched some hours, and every write of the derived table computed a
window of some states of its sources. What was touched and not computed since is unread. Snapshots
expire, on both sides, so an evaluation leaves to the next one what is unread, in its metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel
from pyiceberg.table.snapshots import Operation

from topicberg.checks.finding import Finding, age, from_ms, good, late
from topicberg.derived import WINDOW, Window, computations, reached
from topicberg.snapshots import Hours, changes_since, held_hours, touched_hours
from topicberg.tableflow.commit import ancestry, summary
from topicberg.upsert_view import merged

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

ALLOWED_MINUTES = 30
"""How late a table may be whose topic's spec says nothing."""
UNREAD = "unread"
"""Metadata of an evaluation: :class:`Memory`."""
MAX_RANGES = 1000
"""That are remembered: of more, the narrowest gaps count as unread as well."""


class Unread(NamedTuple):
    """Hours of a source that were touched and not computed since.

    Times are in ms: ``since`` of the first state that is not read, ``until`` of the last one.
    """

    start: int
    stop: int
    since: int
    until: int


class Looked(BaseModel):
    """``last``: the newest snapshot of a source that was looked at; ``until``: its time, in ms."""

    last: int
    until: int
    unread: list[Unread]


class Memory(BaseModel):
    """What an evaluation leaves to the next one; ``table``: the UUID, None if there was none."""

    at: int
    table: str | None
    sources: dict[str, Looked]


@dataclass(frozen=True)
class SourceTable:
    """``reach``: how far beyond a touched hour the derived table changes."""

    table: Table
    time: str
    reach: timedelta = timedelta()


@dataclass(frozen=True)
class _Write:
    """A window that was computed, of which snapshots of the sources, and when (in ms)."""

    hours: Hours
    read: Mapping[str, int | None]
    at: int


def check_up_to_date(
    table: Table | None,
    sources: Mapping[str, SourceTable],
    allowed_minutes: int,
    now: datetime,
    before: Any,
    partitions: Callable[[Iterable[Hours]], Sequence[str]],
    mend: Callable[[Sequence[str]], str],
) -> Finding:
    """Whether everything that the sources held some time ago was computed.

    :param sources: by their names, with the namespace
    :param before: the metadata :data:`UNREAD` of the last evaluation, if there was one
    :param partitions: keys of the partitions of some hours that there are, in their order
    :param mend: the command for some partitions
    """
    memory = Memory.model_validate(before) if before else None
    made = table.metadata.table_uuid.hex if table else None
    if memory and memory.table and made is None:
        return Finding(
            passed=False,
            what="the table is gone: it was there before, and somebody dropped it",
            mend=mend(partitions(_held(sources.values()))),
            facts={UNREAD: memory.model_dump(mode="json")},
        )
    if memory and (memory.table not in (None, made) or (table and _forgotten(table, memory.at))):
        memory = None
    writes = list(_writes(table)) if table else []
    looked = {
        name: _look(name, source, table, writes, memory.sources.get(name) if memory else None, now)
        for name, source in sources.items()
    }
    left = Memory(at=_ms(now), table=made, sources=looked)
    this_hour = _ms(now) // 3_600_000
    due = [each for one in looked.values() for each in one.unread if each.start <= this_hour]
    keys = partitions(Hours(each.start, min(each.stop, this_hour + 1)) for each in due)
    facts = {"unread_partitions": len(keys), UNREAD: left.model_dump(mode="json")}
    if not keys:
        return good("everything that its sources hold was read", **facts)
    # What looks back at a row has its hour still to come, and can be computed from then on.
    oldest = from_ms(min(max(each.since, each.start * 3_600_000) for each in due))
    which = keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
    names = ", ".join(name for name, one in looked.items() if one.unread)
    said = f"rows of {names} in {len(keys):,} partitions ({which}) were not read yet, the oldest "
    said += f"for {age((now - oldest).total_seconds())}"
    return late(said, oldest, allowed_minutes, now, mend(keys), **facts)


def check_merged(
    view: Table | None, source: Table, allowed_minutes: int, now: datetime, mend: str
) -> Finding:
    """Whether an upsert view has read everything that its source held some time ago."""
    last = merged(view, source.name()) if view else None
    missing = [each for each in changes_since(source, last).new if _adds_rows(each)]
    if not missing:
        return good("every record that the topic's table holds was read")
    since = from_ms(missing[0].timestamp_ms)
    said = f"{len(missing):,} snapshots were not read yet, the oldest for "
    said += age((now - since).total_seconds())
    return late(said, since, allowed_minutes, now, mend)


def _adds_rows(snapshot: Snapshot) -> bool:
    if snapshot.summary and snapshot.summary.operation == Operation.REPLACE:
        return False
    return int(summary(snapshot).get("added-records", 0)) > 0


def _look(
    name: str,
    source: SourceTable,
    table: Table | None,
    writes: Sequence[_Write],
    before: Looked | None,
    now: datetime,
) -> Looked:
    """What is unread of one source."""
    line = [*ancestry(source.table)][::-1]
    # Of two writers the one whose clock is slow may come second.
    times = dict(
        zip(
            (snapshot.snapshot_id for snapshot in line),
            accumulate((snapshot.timestamp_ms for snapshot in line), max),
            strict=True,
        )
    )
    if not times:
        return Looked(last=0, until=0, unread=[])
    oldest = min(times.values())

    def read_until(write: _Write) -> int:
        found = write.read.get(name)
        if found is None:
            return -1
        if found in times:
            return times[found]
        undone = source.table.snapshot_by_id(found)
        # One that expired is older than those that are left.
        return undone.timestamp_ms if undone else min(write.at, oldest - 1)

    computed = [(write.hours, read_until(write)) for write in writes]
    known: list[Unread] = []
    new = line
    if before and before.last in times:
        known = before.unread
        new = line[[*times].index(before.last) + 1 :]
    elif before:
        known = before.unread
        new = [snapshot for snapshot in line if times[snapshot.snapshot_id] > before.until]
    elif table and _forgotten(table):  # what the writes that expired have read, nobody knows
        expired = min((read for _, read in computed), default=max(times.values()))
        new = [snapshot for snapshot in line if times[snapshot.snapshot_id] > expired]
    else:  # all hours that there are must have been computed; what came later has its snapshots
        since = _made(table) if table else _ms(now)
        held = _union(held_hours(source.table, source.time))
        known = _left((Unread(hours.start, hours.stop, since, 0) for hours in held), computed)
    touched: list[Unread] = []
    for snapshot in new:
        time, committed = times[snapshot.snapshot_id], from_ms(snapshot.timestamp_ms)
        hours = touched_hours(source.table, snapshot, source.time)
        ranges = _union(reached(each, source.reach, committed) for each in hours)
        touched += [Unread(each.start, each.stop, time, time) for each in ranges]
    left = _left(_joined([*known, *touched]), computed)
    return Looked(
        last=line[-1].snapshot_id,
        until=max(times.values()),
        unread=_coarse(_joined(left)),
    )


def _left(unread: Iterable[Unread], computed: Iterable[tuple[Hours, int]]) -> list[Unread]:
    """What is left of it; ``computed``: hours, and the time of the state that was read."""
    left = list(unread)
    for hours, read in computed:
        left = [rest for each in left for rest in _without(each, hours, read)]
    return left


def _writes(table: Table) -> Iterator[_Write]:
    """From the newest on."""
    for snapshot, read in computations(table):
        if window := summary(snapshot).get(WINDOW):
            yield _Write(Window.parse(window).hours, read, snapshot.timestamp_ms)


def _forgotten(table: Table, since: int | None = None) -> bool:
    """Whether snapshots of the table expired (that came after a time, in ms)."""
    oldest = min(ancestry(table), key=lambda each: each.sequence_number or 0, default=None)
    if oldest is None or (oldest.sequence_number or 0) <= 1:
        return False
    return since is None or oldest.timestamp_ms > since


def _made(table: Table) -> int:
    return min((each.timestamp_ms for each in table.metadata.snapshots), default=0)


def _held(sources: Iterable[SourceTable]) -> Iterator[Hours]:
    for source in sources:
        yield from held_hours(source.table, source.time)


def _union(ranges: Iterable[Hours]) -> list[Hours]:
    """The same hours in as few ranges as there can be."""
    found: list[Hours] = []
    for hours in sorted(ranges, key=lambda each: each.start):
        if found and hours.start <= found[-1].stop:
            found[-1] = Hours(found[-1].start, max(found[-1].stop, hours.stop))
        else:
            found.append(hours)
    return found


def _joined(unread: Iterable[Unread]) -> list[Unread]:
    """One for each range of hours."""
    found: dict[tuple[int, int], Unread] = {}
    for each in unread:
        other = found.get((each.start, each.stop), each)
        since, until = min(each.since, other.since), max(each.until, other.until)
        found[each.start, each.stop] = Unread(each.start, each.stop, since, until)
    return list(found.values())


def _without(unread: Unread, hours: Hours, read: int) -> Iterator[Unread]:
    """What is left when some hours were computed from a state of the source."""
    start, stop = max(unread.start, hours.start), min(unread.stop, hours.stop)
    if start >= stop or read < min(unread.since, unread.until):
        yield unread
        return
    if unread.start < start:
        yield unread._replace(stop=start)
    if read < unread.until:
        yield Unread(start, stop, unread.until, unread.until)
    if stop < unread.stop:
        yield unread._replace(start=stop)


def _coarse(unread: Collection[Unread]) -> list[Unread]:
    ordered = sorted(unread)
    if len(ordered) <= MAX_RANGES:
        return ordered
    gaps = sorted(after.start - before.stop for before, after in pairwise(ordered))
    found = ordered[:1]
    for each in ordered[1:]:
        last = found[-1]
        if each.start - last.stop > gaps[-MAX_RANGES]:
            found.append(each)
        else:
            stop = max(last.stop, each.stop)
            since, until = min(last.since, each.since), max(last.until, each.until)
            found[-1] = Unread(last.start, stop, since, until)
    return found


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
