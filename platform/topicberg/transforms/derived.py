"""A derived table: for a window of event time, exactly the result of its function on its sources.

What the function gets for a partition never depends on the window that a run computes: it is called
for each partition separately, with what the lookback and the lookahead of each source reach. Which
rows it may return for the rows of a partition is checked for each partition. So a range may be
divided into runs in any way.

Writing a window replaces it, so writing it twice changes nothing. Of two concurrent writers, the
one that read the newer sources wins: each records the head of the target *before* it reads the
sources, and Iceberg refuses an overwrite of a window in which others wrote since that head. A
writer that is refused computes again.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial, reduce

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topicberg.errors import CommitConflictError, TopicbergError, first_line
from topicberg.errors.meaning import classify, is_refused, to_report
from topicberg.errors.retry import conflicts, retry
from topicberg.iceberg import read_tags, snapshots, summaries
from topicberg.iceberg.hours import BEFORE_EVERYTHING, NO_TIME, Hours, common
from topicberg.iceberg.tables import find_table
from topicberg.shipping.project import OF_DRIVER
from topicberg.spark import missing_module, quote
from topicberg.transforms import placement
from topicberg.transforms.derivation import AT_ONCE, Derivation, Source
from topicberg.transforms.spark_tables import overwrite, rows_at_head, spark_name, time_type
from topicberg.transforms.target import (
    WRITE_ID,
    described,
    ensure_table,
    has_rows,
    head_id,
    optional,
)
from topicberg.transforms.unread import READ, after, unread
from topicberg.transforms.versions import computed_by, outdated, recorded
from topicberg.transforms.windows import WINDOW, Window, described_windows, joined, within
from topicberg.wording import count

logger = logging.getLogger(__name__)
_RAISED = re.compile(r"^\w[\w.]*(?:Error|Exception)\b.*", re.MULTILINE)
ATTEMPTS = 5
MAX_FAILED = 5  # Partitions that cannot be computed, after which no other one is tried.


@dataclass(frozen=True)
class WrittenWindow:
    """Windows that were written.

    ``windows``: what is left of the requested ones; none: all of them are past a retention.
    ``rows_by_hour``: first hour of a partition (since 1970) → rows. ``sources``: table → snapshot
    that was read. There is no snapshot if no source has one yet; nothing was written then.
    """

    windows: Sequence[Window]
    rows: int = 0
    rows_by_hour: Mapping[int, int] = field(default_factory=dict)
    snapshot_id: int | None = None
    sources: Mapping[str, int | None] = field(default_factory=dict)

    def followed_by(self, other: WrittenWindow) -> WrittenWindow:
        """Return both as one, of which the other was written later."""
        return replace(
            other,
            windows=(*self.windows, *other.windows),
            rows=self.rows + other.rows,
            rows_by_hour=Counter(self.rows_by_hour) + Counter(other.rows_by_hour),
            snapshot_id=other.snapshot_id or self.snapshot_id,
            sources=other.sources or self.sources,
        )


class FailedPartitionsError(TopicbergError):
    """Partitions cannot be computed; ``written``: the others, which are."""

    written: WrittenWindow

    @classmethod
    def of(
        cls,
        derivation: Derivation,
        written: WrittenWindow,
        failed: Sequence[tuple[Window, Exception]],
        *,
        is_all: bool,
    ) -> FailedPartitionsError:
        """Return the error of some partitions.

        :param is_all: all others were tried
        """
        windows, (first, *_) = zip(*failed, strict=True)
        cause = to_report(first)
        known = cause if isinstance(cause, TopicbergError) else None
        error = cls(
            f"table {derivation.name}: {count(len(windows), 'partition')} cannot be computed "
            f"({described_windows(windows)}): {known.message if known else _reason(cause)}; "
            + ("all others are computed" if is_all else "no further one was tried"),
            hint=(known.hint if known else None)
            or "correct the function of the table, or the rows of its sources in these partitions, "
            "then materialize them",
        )
        error.written, error.__cause__ = written, known.__cause__ if known else cause
        return error


def _reason(error: BaseException) -> str:
    """Return what an error says: of one in a worker of Spark, the last line of its trace."""
    text = str(error).partition("JVM stacktrace:")[0]
    raised = _RAISED.findall(text) if type(error).__module__.startswith("pyspark") else []
    return str(raised[-1]) if raised else f"{type(error).__name__}: {first_line(error)}"


def write_window(
    spark: SparkSession,
    catalog: Catalog,
    derivation: Derivation,
    *windows: Window,
    keep_expired: bool = False,
) -> WrittenWindow:
    """Compute windows from the heads of the sources and replace them in the target.

    Long or many windows are replaced in several commits, of whole partitions each. Of the first
    partition, which has everything before it, hours past the data retention of a source stay as
    they are. Where the rows of a partition cannot be computed, all others are.

    :param windows: ascending and apart
    :param keep_expired: other hours past the retention stay as well: no user requested them
    :raises FailedPartitionsError: partitions cannot be computed, and the others are
    :raises TopicbergError: a source does not exist, or the function lost the time column or returns
        rows where no run would look for them
    :raises CommitConflictError: other writers kept changing the same window
    """
    unexpired = partial(_without_expired, catalog, derivation, keep_expired=keep_expired)
    left = [window for window in map(unexpired, windows) if window]
    written, failed = WrittenWindow(()), list[tuple[Window, Exception]]()
    portions = _portions(catalog, derivation, left) if left else []
    while portions:
        portion = portions.pop(0)
        try:
            written = written.followed_by(_write(spark, catalog, derivation, portion))
        except Exception as error:
            if module := missing_module(str(error)):
                raise lacking(f"table {derivation.name}", module) from error
            if classify(error) is not None or is_refused(error):  # whatever the partitions are
                raise
            smaller = _halves(derivation, portion)
            portions[:0] = smaller
            failed += [] if smaller else [(portion[0], error)]
            if len(failed) == MAX_FAILED:
                break
    if failed:
        if not written.windows and isinstance(failed[0][1], TopicbergError):
            raise failed[0][1]
        raise FailedPartitionsError.of(derivation, written, failed, is_all=not portions)
    return replace(written, windows=left)


def lacking(subject: str, module: str) -> TopicbergError:
    """Return the error of a subject whose module the workers of Spark cannot import."""
    return TopicbergError(
        f"{subject}: the workers of Spark have no module {module}",
        hint="move what runs on the workers into a module of the project that does not import "
        f"{', '.join(sorted(OF_DRIVER))}"
        if module.partition(".")[0] in OF_DRIVER
        else f"install {module} for the Python of the workers; for EMR Serverless, add it to "
        "`dependencies` in pyproject.toml, then run `topicberg deploy create`. A module of the "
        "project must be in a package that its pipelines import: see docs/project.md",
    )


def _without_expired(
    catalog: Catalog, derivation: Derivation, window: Window, *, keep_expired: bool
) -> Window | None:
    """Return a window without the hours whose rows a source may no longer have.

    Partitions that are past a retention are computed only if a user requests them; the first one is
    requested for its own hours, too.

    :param keep_expired: no user requested them: they were not past it when the window was requested
    :return: None: nothing is left
    """
    first = derivation.first_hour(datetime.now(UTC))
    if derivation.first is None or first == BEFORE_EVERYTHING:
        return window
    start = datetime.fromtimestamp(first * 3600, UTC)
    if window.start is None and start <= derivation.first:
        table = find_table(catalog, derivation.target)
        table_hours = snapshots.held_hours(table, derivation.target_time) if table else []
        if not any(hours != NO_TIME and hours.start < first for hours in table_hours):
            return window
    elif not keep_expired or (window.start is not None and start <= window.start):
        return window
    message = "table %s: rows of before %s stay, as its sources may have deleted theirs"
    logger.info(message, derivation.name, f"{start:%F %H:%M}")
    return Window(start, window.end) if start < window.end else None


def _portions(
    catalog: Catalog, derivation: Derivation, windows: Sequence[Window]
) -> list[list[Window]]:
    """Return the parts of windows that are computed by a job of Spark each."""
    calls = [(window, derivation.calls(window)) for window in windows]
    if sum(len(of_window) for _, of_window in calls) <= AT_ONCE:
        return [[*windows]]
    source_hours = _held(derivation, _load(catalog, derivation))
    portions, number = [list[Window]()], 0
    for window, of_window in calls:
        start = window.start
        for call in of_window:
            if number == AT_ONCE:
                if start != call.start:
                    portions[-1].append(Window(start, call.start or call.end))
                portions.append([])
                start, number = call.start, 0
            number += _is_read(derivation, source_hours, call)
        portions[-1].append(Window(start, window.end))
    return portions


def _halves(derivation: Derivation, windows: Sequence[Window]) -> list[list[Window]]:
    """Return the partitions of windows in two parts; of a single one, none."""
    parts = [part for each in windows for part in each.cut(derivation.hours, derivation.first)]
    middle = len(parts) // 2
    return [joined(parts[:middle]), joined(parts[middle:])] if middle else []


def _write(
    spark: SparkSession, catalog: Catalog, derivation: Derivation, windows: Sequence[Window]
) -> WrittenWindow:
    partition = derivation.target_time, derivation.partitioned_by

    def attempt() -> WrittenWindow:
        before, sources = find_table(catalog, derivation.target), _load(catalog, derivation)
        # Another thread creates and removes the tags: each takes as long as what is done meanwhile.
        with (
            conflicts(f"table {derivation.name}"),
            ExitStack() as tags,
            ThreadPoolExecutor(1) as beside,
        ):
            tagged = beside.submit(
                tags.enter_context, read_tags.reading(sources.values(), derivation.name)
            )
            try:
                computed, columns = _computed(spark, derivation, sources, windows)
            finally:
                tagged.result()  # where a source's snapshot is expired, this error is the reason
            table = ensure_table(
                catalog, derivation.target, columns, partition, derivation.format_version, before
            )
            if not any(map(head_id, sources.values())) and not has_rows(table):
                return WrittenWindow(windows)
            names = [field.name for field in table.schema().fields]
            unused = [name for name in names if name not in columns.names]
            summary_ = summary_of(derivation, table, sources, windows, unused)
            properties = {**summary_, WRITE_ID: uuid.uuid4().hex}
            try:
                _overwrite(spark, table, derivation, windows, computed, properties)
            except Exception as error:
                if refused := placement.REFUSED.search(str(error)):
                    raise placement.misplaced(derivation, *refused.groups()) from error
                raise
            beside.submit(tags.close)
            written = _written(derivation, windows, table, sources, properties[WRITE_ID])
            _drop_unused(derivation, table, unused)
            return written

    exhausted = CommitConflictError(
        f"table {derivation.name}: {ATTEMPTS} attempts conflicted with another writer of "
        f"{described_windows(windows)}",
        hint="materialize the partitions again when the other run has ended",
    )
    return retry(attempt, ATTEMPTS, exhausted=exhausted)


def _written(
    derivation: Derivation,
    windows: Sequence[Window],
    table: Table,
    sources: Mapping[str, Table],
    write_id: str,
) -> WrittenWindow:
    """Return what a commit wrote to a table, which is as it was before."""
    line = summaries.ancestry(table.refresh())
    snapshot = next(each for each in line if summaries.summary(each).get(WRITE_ID) == write_id)
    rows = int(summaries.summary(snapshot).get("added-records", 0))
    hours = [window.hours for window in windows]
    if sum(map(len, hours)) == 1:  # then no partition is shorter
        by_hour = {hours[0].start: rows} if rows else {}
    else:
        by_hour = snapshots.added_rows(table, snapshot, derivation.target_time)
    return WrittenWindow(
        windows,
        rows=rows,
        rows_by_hour=by_hour,
        snapshot_id=snapshot.snapshot_id,
        sources={name: head_id(each) for name, each in sources.items()},
    )


def _drop_unused(derivation: Derivation, table: Table, unused: Sequence[str]) -> None:
    """Drop columns that the function no longer returns, once no row has another version's value."""
    if not unused or derivation.version is None:
        return
    others = outdated(computed_by(table), derivation.version, derivation.first_partition)
    if common(snapshots.held_hours(table, derivation.target_time), others):
        return
    with table.update_schema() as update:
        for name in unused:
            update.delete_column(name)
    message = "table %s: dropped %s, which its function no longer returns"
    logger.info(message, derivation.name, ", ".join(unused))


def summary_of(
    derivation: Derivation,
    target: Table,
    sources: Mapping[str, Table],
    windows: Sequence[Window],
    unused: Sequence[str],
) -> dict[str, str]:
    """Return the summary of a snapshot of windows; ``unused`` columns its function lacks."""
    tables = derivation.source_tables(lambda name: sources[".".join(name)])
    read = unread(target, derivation.target_time, tables, derivation.first_hour(datetime.now(UTC)))
    version, first = derivation.version, derivation.first_partition
    return {
        **(recorded(computed_by(target), version, windows, unused, first) if version else {}),
        summaries.SOURCE_SNAPSHOTS: json.dumps(
            {name: head_id(table) for name, table in sources.items()}
        ),
        WINDOW: ",".join(map(str, windows)),
        READ: after(read, windows),
    }


def _load(catalog: Catalog, derivation: Derivation) -> dict[str, Table]:
    """Return the sources by their names; raise an error if one does not exist."""
    tables = dict[str, Table]()
    for source in derivation.sources:
        if (table := find_table(catalog, source.table)) is None:
            raise TopicbergError(
                f"table {derivation.name}: its source {source.name} does not exist yet",
                hint="materialize the Iceberg asset of the source first",
            )
        tables[source.name] = table
    return tables


def _computed(
    spark: SparkSession,
    derivation: Derivation,
    sources: Mapping[str, Table],
    windows: Sequence[Window],
) -> tuple[DataFrame, pa.Schema]:
    """Return the rows of windows, where runs look for them, and the columns of the function."""
    calls = [call for window in windows for call in derivation.calls(window)]
    parts = [part for window in windows for part in derivation.partitions(window)]
    if len(parts) > 1:
        source_hours = _held(derivation, sources)
        calls = [call for call in calls if _is_read(derivation, source_hours, call)] or calls[-1:]
        parts = [
            part for part in parts if any(_meets(each, part) for each in source_hours.values())
        ]
    frames = {each.name: rows_at_head(spark, sources[each.name]) for each in derivation.sources}

    def result(read: Callable[[Source], Window | None]) -> DataFrame:
        """Return what the function makes of a part of each source."""
        return derivation.transform(
            *(
                _rows(source, frames[source.name], sources[source.name], read(source))
                for source in derivation.sources
            )
        )

    groups = dict[object, list[Window]]()
    for call in calls:  # those that read the same have one result
        reads = [derivation.read(source, call) for source in derivation.sources]
        groups.setdefault((*reads,) if derivation.reads_around else call, []).append(call)
    results = [result(partial(derivation.read, window=first)) for first, *_ in groups.values()]
    schema, time = results[0].schema, derivation.target_time  # a request to Spark
    if time not in schema.names:
        raise TopicbergError(
            f"table {derivation.name}: its function returns no column {time}",
            hint=f"name the event-time column: the function returns {', '.join(schema.names)}",
        )
    kind = schema[time].dataType
    pairs = [*zip(results, groups.values(), strict=True)]
    if derivation.reads_around:
        placement.check_places(derivation, result, kind, parts)
        rows = [each.filter(within(parts, time, kind)) for each, parts in pairs]
    else:
        rows = [placement.refusing(each, time, kind, part) for each, (part,) in pairs]
    columns = optional(described(results[0], derivation.descriptions))
    return reduce(lambda combined, other: combined.unionByName(other), rows), columns


def _held(derivation: Derivation, sources: Mapping[str, Table]) -> dict[Source, list[Hours] | None]:
    """Return the hours in which each source has rows; None: they are not known."""
    return {
        source: snapshots.held_hours(sources[source.name], source.time) if source.time else None
        for source in derivation.windowed
    }


def _is_read(
    derivation: Derivation, held: Mapping[Source, list[Hours] | None], call: Window
) -> bool:
    """Return whether there may be rows in what a call reads."""
    return any(_meets(hours, derivation.read(each, call)) for each, hours in held.items())


def _meets(held: list[Hours] | None, window: Window | None) -> bool:
    """Return whether there may be rows in a window."""
    if held is None or window is None:
        return True
    hours = window.hours
    return any(each.start < hours.stop and hours.start < each.stop for each in held)


def _overwrite(
    spark: SparkSession,
    table: Table,
    derivation: Derivation,
    windows: Sequence[Window],
    computed: DataFrame,
    properties: dict[str, str],
) -> None:
    """:param computed: the rows of the windows"""
    time, names = derivation.target_time, [field.name for field in table.schema().fields]
    # What the function no longer returns is null.
    earlier = set(names) - set(computed.columns)
    columns = spark.table(spark_name(derivation.target)).schema if earlier else StructType()
    frame = computed.select(
        *(
            F.lit(None).cast(columns[name].dataType).alias(name)
            if name in earlier
            else F.col(quote(name))
            for name in names
        )
    )
    overwrite(frame, table, within(windows, time, time_type(table, time)), properties)


def _rows(source: Source, frame: DataFrame, table: Table, window: Window | None) -> DataFrame:
    """Return those of all rows of a source that a call reads."""
    if source.time is None or source.whole or window is None:
        return frame
    return frame.filter(window.condition(source.time, time_type(table, source.time)))
