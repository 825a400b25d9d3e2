"""Checks of every Iceberg table: its readers, no equality deletes, as many rows as usual."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from topicberg.checks.check import READABLE_BY, TableCheck
from topicberg.checks.finding import Finding, from_ms, good
from topicberg.iceberg import files, position_deletes, snapshots, summaries
from topicberg.iceberg.readers import READ_ALL_FILES, TableReader, configured
from topicberg.wording import count

HISTORY = timedelta(days=7)
MIN_HISTORY = {timedelta(days=1): 6, timedelta(hours=1): 24}
"""How many periods are needed to know what is usual: of hours a day of them, as many topics have
fewer records at night."""
MIN_HISTORY_OF_OTHERS = 12
MIN_ROWS = 100  # A period with fewer rows than this, where fewer are usual, differs by chance.
GRACE = timedelta(minutes=10)  # How long after the end of a period its rows may still be added.
SLOT = timedelta(minutes=10)  # The period of tables that are not partitioned by time.
_SPREAD = 4.0  # Robust standard deviations that are still usual.
_MAD = 1.4826  # A normal distribution's standard deviation, in median absolute deviations.


def readable_by_check() -> TableCheck:
    return TableCheck(
        READABLE_BY,
        "All readers of the deployment can read a table of this format version and its columns.",
        lambda probe: check_readable_by(probe.iceberg, configured(probe.config)),
    )


def check_readable_by(table: Table, readers: Sequence[TableReader]) -> Finding:
    """Return whether all readers can read the table; :mod:`topicberg.iceberg.readers` has facts."""
    version = table.format_version
    reasons = {reader.name: reader.reason(table) for reader in readers}
    misses = {reader.name: reader.misses(table) for reader in readers if not reasons[reader.name]}
    facts = {"format_version": version, "readers": ", ".join(reasons)}
    wrong, missing = (
        ", ".join(f"{name} ({reason})" for name, reason in each.items() if reason)
        for each in (reasons, misses)
    )
    if not wrong and not missing:
        return good(f"all readers can read format version {version}", **facts)
    faults = (
        (
            wrong,
            f"is of format version {version}, and cannot be read by {wrong}",
            "use the other readers, or drop the table and create it again with a format version "
            "and types that all readers support (`table.format_version` in the spec)",
        ),
        (
            missing,
            f"is not read completely by {missing}",
            "query it with `topicberg query`, which reads all rows; in DuckDB itself, run "
            f"`{READ_ALL_FILES}` first",
        ),
    )
    problems, remedies = zip(*(texts for is_so, *texts in faults if is_so), strict=True)
    message = f"the table {'; it '.join(problems)}"
    return Finding(message, "; ".join(remedies), severity="warning", facts=facts)


def partition_values_check(topic: str) -> TableCheck:
    return TableCheck(
        "partition_values",
        "Files are in the partitions of floats and doubles that their rows have.",
        lambda probe: check_partition_values(probe.iceberg, topic),
    )


def check_partition_values(table: Table, topic: str) -> Finding:
    """Return whether the bounds of files agree with their partitions of floats and doubles."""
    if not (misplaced := position_deletes.misplaced_files(table)):
        return good("all files are in the partitions of their rows")
    return Finding(
        what=f"{count(misplaced, 'file')} in partitions of other values than their rows have: "
        "readers show these values, and find no rows by their own",
        remediation=f"run `topicberg tableflow maintain {topic}`, which corrects them; stop others "
        "that write to the table with PyIceberg up to 0.12, which reads doubles as floats",
        facts={"misplaced_files": misplaced},
    )


def equality_deletes_check(*, of_confluent: bool = False) -> TableCheck:
    """:param of_confluent: Confluent's Tableflow writes the table, and it alone may rewrite it"""
    return TableCheck(
        "equality_deletes",
        "The table has no equality deletes, which Snowflake reads incorrectly without an error.",
        lambda probe: check_equality_deletes(
            probe.iceberg, None if of_confluent else probe.table.apply_deletes
        ),
        # Nothing documents which delete files Confluent's upserts write. Spark, which computes what
        # is downstream, applies all kinds.
        blocking=not of_confluent,
    )


def check_equality_deletes(table: Table, rewrite: str | None) -> Finding:
    """Return whether the table has equality deletes, which Snowflake does not apply.

    :param rewrite: the statement that rewrites the table; None: only Confluent does
    """
    head = table.current_snapshot()
    if head is None:
        return good("the table has no files yet")
    deletes = [m for m in head.manifests(table.io) if m.content == ManifestContent.DELETES]
    added_in = [
        table.snapshot_by_id(entry.snapshot_id or 0)
        for entry in files.entries(table.io, deletes)
        if entry.data_file.content == DataFileContent.EQUALITY_DELETES
    ]
    facts = {"equality_delete_files": len(added_in)}
    if not added_in:
        return good("the table has no equality deletes", **facts)
    message = f"the table has {count(len(added_in), 'file')} of equality deletes"
    since = min((from_ms(snapshot.timestamp_ms) for snapshot in added_in if snapshot), default=None)
    if rewrite is None:
        return Finding(
            f"{message}, written by Confluent's Tableflow: Snowflake and other readers that do not "
            "apply them count rows that are deleted or replaced",
            "read the table with Spark, which applies them, until Confluent compacts it; the check "
            "`parity` compares the rows that Snowflake counts",
            since,
            "warning",
            facts=facts,
        )
    return Finding(
        f"{message}: Snowflake and other readers count rows that are deleted",
        f"stop the other writer that added them, then run in Spark: `{rewrite}`",
        since,
        facts=facts,
    )


def volume_check(factor: float) -> TableCheck:
    return TableCheck(
        "volume",
        "As many rows as usual were added in the last full hour or day.",
        lambda probe: check_volume(probe.iceberg, factor, probe.now),
    )


def check_volume(table: Table, factor: float, now: datetime) -> Finding:
    """Return whether the last full period has about as many rows as those before it. That is a
    partition (an hour or a day of event time), else ten minutes of commits."""
    return judge_volume(*_series(table, now), factor)


def judge_volume(
    series: Sequence[int], period: timedelta, start: datetime, factor: float
) -> Finding:
    """Return whether the last of the periods, which began at ``start``, is like those before it."""
    minutes = period.total_seconds() / 60
    unit = {60.0: "hour", 24 * 60.0: "day"}.get(minutes, f"{minutes:.0f} minutes")
    needed = MIN_HISTORY.get(period, MIN_HISTORY_OF_OTHERS)
    if len(series) <= needed:
        return good(
            f"too little history to know what is usual: {len(series)} full periods ({unit}); more "
            f"than {needed} are needed"
        )
    last, usual = series[-1], statistics.median(series[:-1])
    low, high = usual_range(series[:-1], factor)
    facts = {"rows": last, "usual_rows": usual, "least": round(low), "most": round(high)}
    text = (
        f"{count(last, 'row')} in the {unit} from {start:%Y-%m-%d %H:%M} UTC; usual are "
        f"{usual:,.0f}"
    )
    if not any(series[:-1]):
        return good(f"{text}: too little history to know what is usual", **facts)
    if max(last, usual) < MIN_ROWS:
        return good(f"{text}: fewer than {MIN_ROWS} are not compared", **facts)
    if low <= last <= high:
        return good(text, **facts)
    return Finding(
        what=f"{text}; {low:,.0f} to {high:,.0f} are expected",
        since=start,
        severity="warning",
        remediation="ask the owner of the producer whether that is intended; the limit "
        "is `checks.volume_factor` in the spec",
        facts=facts,
    )


def usual_range(history: Sequence[int], factor: float) -> tuple[float, float]:
    """Return the bounds of what is usual: the factor of the median, the spread, or what is common.
    A tenth of the periods with as few or as many rows is common. Most periods of a rare topic have
    no rows: a burst is compared with the most rows of one."""
    usual = statistics.median(history)
    spread = _SPREAD * _MAD * statistics.median(abs(rows - usual) for rows in history)
    in_order, tenth = sorted(history), math.ceil(len(history) / 10)
    if usual < 1:
        return 0, in_order[-1] * factor
    low = min(usual / factor, usual - spread, in_order[min(tenth, len(history) - 1)])
    return low, max(usual * factor, usual + spread, in_order[max(-1 - tenth, -len(history))])


def _series(table: Table, now: datetime) -> tuple[list[int], timedelta, datetime]:
    """Return rows of each full period, oldest first, length of a period, start of the last one."""
    by_partition = snapshots.rows_by_partition(table, int((now - HISTORY).timestamp()) // 3600)
    if by_partition is None:
        rows, period = _rows_by_slot(table), SLOT
    else:
        hours, width = by_partition
        rows, period = {h // width: n for h, n in hours.items()}, timedelta(hours=width)
    seconds = period.total_seconds()
    last = int((now - GRACE).timestamp() // seconds) - 1
    full = [number for number in rows if number <= last]
    start = datetime.fromtimestamp(last * seconds, UTC)
    numbers = range(min(full, default=last + 1), last + 1)
    return [rows.get(number, 0) for number in numbers], period, start


def _rows_by_slot(table: Table) -> dict[int, int]:
    """Return ten minutes of commits since 1970 → rows added, as far as snapshots are kept."""
    rows = Counter[int]()
    for facts in map(snapshots.report, summaries.ancestry(table)):
        slot = int(facts.committed_at.timestamp() // SLOT.total_seconds())
        rows[slot] += 0 if facts.operation == Operation.REPLACE.value else facts.added_records
    return rows
