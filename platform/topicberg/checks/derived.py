"""What holds for a derived table: it was computed of what its sources hold.

The verdict comes from the metadata of the tables (:mod:`topicberg.transforms.unread`), not from
what sensors have seen. Earlier evaluations only keep it from being too strict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pyiceberg.table.snapshots import Operation

from topicberg.checks.finding import Finding, age, from_ms, good, late
from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.iceberg.snapshots import changes_since, held_hours
from topicberg.iceberg.summaries import DATA_TTL_RUN, summary
from topicberg.transforms.unread import Known, SourceTable, unread
from topicberg.transforms.upsert_view import merged
from topicberg.wording import count

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

ALLOWED_MINUTES = 30
"""How late a table may be whose topic's spec says nothing."""
MEMORY = "unread"
"""Metadata of an evaluation: :class:`Memory`."""


class Memory(BaseModel):
    """What an evaluation leaves to the next one."""

    table: str | None
    """The derived table's UUID; None: it did not exist."""
    since: int | None
    """Since when (in ms) there is a source that was never read; None: there is none."""
    known: Known


def check_up_to_date(
    table: Table | None,
    time: str,
    sources: Mapping[str, SourceTable],
    allowed_minutes: int,
    now: datetime,
    before: Any,
    partitions: Callable[[Iterable[Hours]], Sequence[str]],
    mend: Callable[[Sequence[str]], str],
    first_hour: int = BEFORE_EVERYTHING,
) -> Finding:
    """Whether everything that the sources held some time ago was computed.

    :param time: the table's event time
    :param sources: by their names, with the namespace
    :param before: the metadata :data:`MEMORY` of the last evaluation, if there was one
    :param partitions: keys of the partitions of some hours that there are, in their order
    :param mend: the command for some partitions
    :param first_hour: earlier hours are past the retention of a source, and not computed again
    """
    memory = _memory(before)
    uuid = table.metadata.table_uuid.hex if table else None
    if memory and memory.table and table is None:
        held = (hours for each in sources.values() for hours in held_hours(each.table, each.time))
        return Finding(
            passed=False,
            what="the table is gone: it was there before, and somebody dropped it",
            mend=mend(partitions(held)),
            facts={MEMORY: memory.model_dump(mode="json")},
        )
    same = memory if memory and memory.table == uuid else None
    read = unread(table, time, sources, first_hour, same.known if same else None)
    now_ms = int(now.timestamp() * 1000)
    since = None
    if any(each.new for each in read.values()):
        since = same.since if same and same.since is not None else now_ms
    this_hour = now_ms // 3_600_000
    due = [
        (hours, since if one.new and since is not None else hours.since)
        for one in read.values()
        for hours in one.unread
        if hours.start <= this_hour
    ]
    keys = partitions(Hours(each.start, min(each.stop, this_hour + 1)) for each, _ in due)
    head = table.current_snapshot() if table else None
    known = Known(head=head.snapshot_id if head else None, read=read)
    memory = Memory(table=uuid, since=since, known=known)
    facts = {"unread_partitions": len(keys), MEMORY: memory.model_dump(mode="json")}
    if not keys:
        return good("everything that its sources hold was read", **facts)
    # What looks back at a row has its hour still to come, and can be computed from then on.
    oldest = from_ms(min(max(start, each.start * 3_600_000) for each, start in due))
    which = keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
    names = ", ".join(name for name, one in read.items() if one.unread)
    said = f"rows of {names} in {count(len(keys), 'partition')} ({which}) were not read yet, "
    said += f"the oldest for {age((now - oldest).total_seconds())}"
    return late(said, oldest, allowed_minutes, now, mend(keys), **facts)


def _memory(before: Any) -> Memory | None:
    """None: there is none, or it is of another version."""
    try:
        return Memory.model_validate(before) if before else None
    except ValueError:
        return None


def check_merged(
    view: Table | None, source: Table, allowed_minutes: int, now: datetime, mend: str
) -> Finding:
    """Whether an upsert view shows what its source held some time ago."""
    last = merged(view, source.name()) if view else None
    changes, head = changes_since(source, last), source.current_snapshot()
    missing = [each for each in changes.new if _changes_rows(each)]
    undone = [each for each in changes.rolled_back if _changes_rows(each)]
    rows = int(summary(head).get("total-records", 0)) if head else 0
    gap = changes.gap and (last is not None or rows > 0)
    if not missing and not undone and not gap:
        return good("every record that the topic's table holds was read")
    first = (changes.new[:1] if gap else missing[:1]) or ([head] if head else [])
    since = from_ms(first[0].timestamp_ms if first else source.metadata.last_updated_ms)
    ago = age((now - since).total_seconds())
    if undone:
        said = f"a rollback undid {count(len(undone), 'snapshot')} that it has read"
    elif gap:
        said = "snapshots that it has not read are expired, the oldest that is left "
        said += f"was committed {ago} ago"
    else:
        said = f"not read yet: {count(len(missing), 'snapshot')}, the oldest for {ago}"
    return late(said, since, allowed_minutes, now, mend)


def _changes_rows(snapshot: Snapshot) -> bool:
    """Whether the view changes with it: rows past their retention stay there."""
    if snapshot.summary and snapshot.summary.operation == Operation.REPLACE:
        return False
    facts = summary(snapshot)
    if DATA_TTL_RUN in facts:
        return False
    kinds = ("added-records", "deleted-records", "added-delete-files")
    return any(int(facts.get(kind, 0)) for kind in kinds)
