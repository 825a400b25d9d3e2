"""Checks of derived tables and upsert views: they were computed from what their sources hold.

The finding is based on the metadata of the tables (:mod:`topicberg.transforms.unread`), not on what
sensors have seen. Earlier evaluations only keep it from being too strict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from pydantic import BaseModel
from pyiceberg.table import Table

from topicberg.checks import check
from topicberg.checks.finding import Finding, age, from_ms, good, judge_delay
from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours, common, gaps, union
from topicberg.iceberg.snapshots import changes_rows, changes_since, held_hours
from topicberg.iceberg.summaries import summary
from topicberg.topics import TopicSpec
from topicberg.transforms import derivation, publish, target, upsert_view, windows
from topicberg.transforms.unread import (
    Known,
    Read,
    SourceTable,
    computable,
    held,
    late_rows,
    unread,
)
from topicberg.transforms.versions import computed_by, outdated, unused_columns
from topicberg.wording import count

ALLOWED_MINUTES = 30  # How stale a table may be if the spec of its topic sets no limit.
MEMORY = "unread"  # Metadata of an evaluation: :class:`Memory`.


class Memory(BaseModel):
    """What the next evaluation needs of this one."""

    table: str | None  # The derived table's UUID; None: it did not exist.
    since: int | None  # Since when (ms) there is a source that was never read; None: there is none.
    known: Known


def derived_check(
    name: str,
    reads: Sequence[str],
    allowed_minutes: int,
    plan: derivation.Derivation,
    partitions: Callable[[Iterable[Hours], datetime, int], Sequence[str]],
    topics: Sequence[str] = (),
) -> check.TableCheck:
    """:param reads: names of its sources and lookups
    :param topics: the assets of the topics that it is published to
    :param partitions: some hours, the present and the first hour that may be computed again → the
        keys of their existing partitions, in order
    """

    def chosen(keys: Sequence[str]) -> str:
        return f" --partition-range '{keys[0]}...{keys[-1]}'" if keys else ""

    def evaluate(probe: check.Probe) -> Finding:
        last, first_hour = probe.last("up_to_date"), plan.first_hour(probe.now)
        return check_up_to_date(
            probe.find(probe.table.identifier),
            plan.target_time,
            plan.source_tables(probe.find),
            allowed_minutes,
            probe.now,
            last.facts.get(MEMORY) if last else None,
            lambda hours: partitions(hours, probe.now, first_hour),
            lambda keys: check.computation_remediation(name, chosen(keys), topics),
            first_hour,
            plan.version,
            lambda keys: (
                f"compute them again: {check.computation_command(name, chosen(keys), topics)}"
            ),
            plan.first_partition,
        )

    names = ", ".join(f"`{source}`" for source in reads)
    aheads = {source.table[1]: plan.ahead(source) for source in plan.windowed}
    limits = ", of ".join(
        f"`{source}` up to {age(ahead.total_seconds())} after it"
        for source, ahead in aheads.items()
        if ahead and ahead != windows.FOREVER
    )
    description = (
        f"Everything that {names} held {allowed_minutes} minutes ago was read, by the version of "
        "the function that the code has."
        + (f" A partition reads rows of {limits}, and joins no later ones." if limits else "")
    )
    return check.TableCheck("up_to_date", description, evaluate)


def check_up_to_date(
    table: Table | None,
    time: str,
    sources: Mapping[str, SourceTable],
    allowed_minutes: int,
    now: datetime,
    before: Any,
    partitions: Callable[[Iterable[Hours]], Sequence[str]],
    remediation: Callable[[Sequence[str]], str],
    first_hour: int = BEFORE_EVERYTHING,
    version: str | None = None,
    recomputation: Callable[[Sequence[str]], str] | None = None,
    first_partition: Hours | None = None,
) -> Finding:
    """Return whether all that the sources held some time ago was computed, by the newest version.

    :param time: the table's event time
    :param sources: by their names, with the namespace
    :param before: the metadata :data:`MEMORY` of the last evaluation, if there was one
    :param partitions: some hours → the keys of their existing partitions, in order
    :param remediation: partitions → how to compute them
    :param first_hour: earlier hours are past the retention of a source, and not computed again
    :param version: the function's; None: it is not known
    :param recomputation: partitions that another version computed → how to compute them again
    """
    memory = _memory(before)
    uuid = table.metadata.table_uuid.hex if table else None
    if memory and memory.table and table is None:
        message = "the table is missing: it existed before, and was dropped"
        facts: dict[str, Any] = {MEMORY: memory.model_dump(mode="json")}
        return Finding(message, remediation(partitions(held(None, time, sources))), facts=facts)
    same = memory if memory and memory.table == uuid else None
    everything = unread(table, time, sources, first_hour, same.known if same else None)
    read = computable(everything, first_hour)
    now_ms = int(now.timestamp() * 1000)
    known_since = same.since if same and same.since is not None else now_ms
    since = known_since if any(each.new for each in read.values()) else None
    this_hour = now_ms // 3_600_000
    due = [
        (hours, since if progress.new and since is not None else hours.since)
        for progress in read.values()
        for hours in progress.unread
        if hours.start <= this_hour
    ]
    keys = partitions(Hours(each.start, min(each.stop, this_hour + 1)) for each, _ in due)
    memory = Memory(
        table=uuid, since=since, known=Known(head=target.head_id(table), read=everything)
    )
    old_keys: Sequence[str] = ()
    if table and (versions := outdated(computed_by(table), version, first_partition)):
        pending = union(Hours(*each[:2]) for progress in read.values() for each in progress.unread)
        old_keys = partitions(
            _outdated_hours(table, time, sources, versions, now, first_hour, pending)
        )
    names = unused_columns(table)
    facts = {
        "unread_partitions": len(keys),
        "outdated_partitions": len(old_keys),
        MEMORY: memory.model_dump(mode="json"),
        **({"unused_columns": ", ".join(names)} if names else {}),
    }
    if old_keys:
        return _outdated(old_keys, keys, names, version, recomputation or remediation, facts)
    if not keys:
        expired = {
            name: [hours for hours in progress.unread if hours.start < first_hour]
            for name, progress in everything.items()
        }
        rows = {
            name: late_rows(source, [*expired[name], *everything[name].late])
            for name, source in sources.items()
        }
        later = partitions(_later_hours(sources, read, this_hour + 1))
        facts |= {"late_rows": sum(rows.values()), "later_partitions": len(later)}
        until = first_hour if any(expired.values()) else None
        is_late = any(progress.late for progress in everything.values())
        message = _all_read(names, until, rows, is_late=is_late)
        if later:
            number = count(len(later), "partition")
            message += f"; rows of later hours in {number} ({_range(later)}) wait for their time"
        return good(message, **facts)
    # Hours that look back at a row may lie in the future; they can be computed when they come.
    oldest = from_ms(min(max(start, each.start * 3_600_000) for each, start in due))
    unread_sources = ", ".join(name for name, progress in read.items() if progress.unread)
    message = (
        f"rows of {unread_sources} in {count(len(keys), 'partition')} ({_range(keys)}) were not "
        f"read yet, the oldest for {age((now - oldest).total_seconds())}"
    )
    return judge_delay(message, oldest, allowed_minutes, now, remediation(keys), **facts)


def _range(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"


def _later_hours(
    sources: Mapping[str, SourceTable], read: Mapping[str, Read], start: int
) -> Iterator[Hours]:
    """Yield the hours from one on of which sources have rows that were not read."""
    for name, source in sources.items():
        later = [Hours(max(each.start, start), each.stop) for each in read[name].unread]
        if any(later) and not source.whole:
            yield from common(held_hours(source.table, source.time), later)


def _all_read(
    unused: Sequence[str], expired_until: int | None, rows: Mapping[str, int], *, is_late: bool
) -> str:
    """:param expired_until: the hour until which rows that were not read are past a retention
    :param rows: source → how many of its rows came too late to be read
    :param is_late: some of them came later than the table computes them
    """
    message = "everything that its sources hold was read"
    counted = [f"up to {count(number, 'row')} of {name}" for name, number in rows.items() if number]
    reasons = {
        f"rows of before {from_ms((expired_until or 0) * 3_600_000):%F %H:%M}, which are past the "
        "data retention of a source, or soon will be": expired_until is not None,
        "rows that came later than its `max_lateness`": is_late and counted,
    }
    if any(reasons.values()):
        message += f", but for {' and '.join(filter(reasons.get, reasons))}"
        message += f" ({', '.join(counted)})" if counted else ""
    if unused:
        message += (
            f"; of {', '.join(unused)}, which its function no longer returns, only rows that "
            "cannot be computed again have values"
        )
    return message


def _outdated(
    keys: Sequence[str],
    unread: Sequence[str],
    unused: Sequence[str],
    version: str | None,
    recomputation: Callable[[Sequence[str]], str],
    facts: Mapping[str, Any],
) -> Finding:
    """:param keys: partitions that another version of the function computed
    :param unread: partitions with rows that were not read
    :param unused: columns that the function no longer returns
    """
    was = "was" if len(keys) == 1 else "were"
    message = (
        f"{count(len(keys), 'partition')} ({_range(keys)}) {was} computed by another version of "
        f"its function, or from other columns or partitions; it is {version} now"
    )
    if unused:
        message += (
            f"; when all are computed again, {', '.join(unused)}, which it no longer returns, "
            "will be dropped"
        )
    if unread:
        message += (
            f"; rows in {count(len(unread), 'partition')} ({_range(unread)}) were not read yet"
        )
    return Finding(message, recomputation(sorted({*keys, *unread})), facts=facts)


def _outdated_hours(
    table: Table,
    time: str,
    sources: Mapping[str, SourceTable],
    old: Sequence[Hours],
    now: datetime,
    first_hour: int,
    pending: Sequence[Hours],
) -> list[Hours]:
    """Return which of the old hours, up to now, have rows here, or rows in sources and are not
    pending: an hour that was never computed has only the version of the hours before it."""
    ranges, rest = [*held_hours(table, time)], [*gaps(pending)]
    for source in sources.values():
        if not source.whole:
            hours = (source.reached(hour, now) for hour in held_hours(source.table, source.time))
            ranges += common(hours, rest)
    end = int(now.timestamp()) // 3600 + 1
    shared = (
        Hours(max(hours.start, other.start, first_hour), min(hours.stop, other.stop, end))
        for hours in union(ranges)
        for other in old
    )
    return union(each for each in shared if each)


def _memory(before: Any) -> Memory | None:
    """Return the memory; None: there is none, or another version wrote it."""
    try:
        return Memory.model_validate(before) if before else None
    except ValueError:
        return None


def view_check(
    spec: TopicSpec, allowed_minutes: int, view: upsert_view.UpsertView
) -> check.TableCheck:
    return check.delay_check(
        spec,
        allowed_minutes,
        f"Every record that the topic's own table held {allowed_minutes} minutes ago was merged, "
        "by the keys and the event time of the spec.",
        partial(check_merged, view),
    )


def check_merged(
    view: upsert_view.UpsertView,
    table: Table | None,
    source: Table,
    allowed_minutes: int,
    now: datetime,
    remediation: str,
) -> Finding:
    """Return whether the table of an upsert view shows what its source held some time ago."""
    if table and not upsert_view.defined_alike(table, view):
        return Finding(
            f"it was computed by other keys or another order than {', '.join(view.keys)} and "
            f"{view.order[0]}, which the spec has now",
            remediation,
        )
    return _judge_read(
        source,
        upsert_view.merged(table, source.name()) if table else None,
        "the table",
        "every record that the topic's table holds was read",
        allowed_minutes,
        now,
        remediation,
    )


def published_check(name: str, topics: Mapping[str, str], allowed_minutes: int) -> check.TableCheck:
    """:param topics: those that the table is published to, and their assets"""

    def evaluate(probe: check.Probe) -> Finding:
        table, findings = probe.iceberg, list[Finding]()
        for topic, asset in topics.items():
            last = publish.published_snapshot(table, topic, probe.endpoints)
            remediation = (
                "see whether a run that publishes it is queued or in progress, or why it failed "
                f"(Runs); to publish manually: `{check.materialization([f'kafka/{asset}'])}`"
            )
            subject, complete = f"topic {topic}", f"topic {topic} has every row of the table"
            finding = _judge_read(
                table, last, subject, complete, allowed_minutes, probe.now, remediation
            )
            findings.append(finding)
        failed = (finding for finding in findings if not finding.passed)
        return next(failed, good("; ".join(each.what for each in findings)))

    names = ", ".join(f"`{topic}`" for topic in topics)
    description = f"What the table held {allowed_minutes} minutes ago was published to {names}."
    return check.TableCheck("published", description, evaluate)


def _judge_read(
    source: Table,
    last: int | None,
    subject: str,
    complete: str,
    allowed_minutes: int,
    now: datetime,
    remediation: str,
) -> Finding:
    """Return whether a subject that follows from a table shows what that held some time ago.

    :param last: the snapshot that it shows; None: it shows nothing
    """
    changes, head = changes_since(source, last), source.current_snapshot()
    missing = [snapshot for snapshot in changes.new if changes_rows(snapshot)]
    rolled_back = [snapshot for snapshot in changes.rolled_back if changes_rows(snapshot)]
    has_rows = head is not None and int(summary(head).get("total-records", 0)) > 0
    gap = changes.gap and (last is not None or has_rows)
    if not missing and not rolled_back and not gap:
        return good(complete)
    first = (changes.new[:1] if gap else missing[:1]) or ([head] if head else [])
    since = from_ms(first[0].timestamp_ms if first else source.metadata.last_updated_ms)
    ago = age((now - since).total_seconds())
    if rolled_back:
        message = f"a rollback removed {count(len(rolled_back), 'snapshot')} that it has read"
    elif gap:
        message = (
            "snapshots that it has not read are expired, the oldest that is left was committed "
            f"{ago} ago"
        )
    else:
        message = f"not read yet: {count(len(missing), 'snapshot')}, the oldest for {ago}"
    return judge_delay(message, since, allowed_minutes, now, remediation, subject)
