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

from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.iceberg.hours import BEFORE_EVERYTHING, NO_TIME, Hours
from topicberg.iceberg.read_tags import reading
from topicberg.iceberg.snapshots import added_rows, held_hours
from topicberg.iceberg.summaries import SOURCE_SNAPSHOTS, ancestry, summary
from topicberg.iceberg.tables import find_table
from topicberg.project_code import OF_DRIVER
from topicberg.retry import conflicts, retry_conflicts
from topicberg.spark import missing_module, quote
from topicberg.transforms.derivation import AT_ONCE, Derivation, Source
from topicberg.transforms.placement import REFUSED, check_places, misplaced, refusing
from topicberg.transforms.spark_tables import rows_at_head, serializable, spark_name, time_type
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
from topicberg.transforms.windows import WINDOW, Window

logger = logging.getLogger(__name__)
ATTEMPTS = 5


@dataclass(frozen=True)
class WrittenWindow:
    """A window that was written.

    ``window``: what is left of the requested one; None: all of it is past a retention.
    ``rows_by_hour``: first hour of a partition (since 1970) → rows. ``sources``: table → snapshot
    that was read. There is no snapshot if no source has one yet; nothing was written then.
    """

    window: Window | None
    rows: int = 0
    rows_by_hour: Mapping[int, int] = field(default_factory=dict)
    snapshot_id: int | None = None
    sources: Mapping[str, int | None] = field(default_factory=dict)

    def followed_by(self, other: WrittenWindow) -> WrittenWindow:
        """Return both as one, of which the other was written later."""
        return replace(
            other,
            rows=self.rows + other.rows,
            rows_by_hour=Counter(self.rows_by_hour) + Counter(other.rows_by_hour),
            snapshot_id=other.snapshot_id or self.snapshot_id,
            sources=other.sources or self.sources,
        )


def write_window(
    spark: SparkSession,
    catalog: Catalog,
    derivation: Derivation,
    window: Window,
    *,
    keep_expired: bool = False,
) -> WrittenWindow:
    """Compute a window from the heads of the sources and replace it in the target.

    A long window is replaced in several commits, of whole partitions each. Of the first partition,
    which has everything before it, hours past the data retention of a source stay as they are.

    :param keep_expired: other hours past the retention stay as well: no user requested them
    :raises TopicbergError: a source does not exist, or the function lost the time column or returns
        rows where no run would look for them
    :raises CommitConflictError: other writers kept changing the same window
    """
    left = _without_expired(catalog, derivation, window, keep_expired=keep_expired)
    if left is None:
        return WrittenWindow(None)
    first, *others = _portions(catalog, derivation, left)
    try:
        written = _write(spark, catalog, derivation, first)
        for portion in others:
            written = written.followed_by(_write(spark, catalog, derivation, portion))
    except TopicbergError:
        raise
    except Exception as error:
        if module := missing_module(str(error)):
            raise lacking(f"table {derivation.name}", module) from error
        raise
    return replace(written, window=left)


def lacking(subject: str, module: str) -> TopicbergError:
    """Return the error of a function whose module the workers of Spark cannot import.

    :param subject: names the table
    """
    if module.partition(".")[0] in OF_DRIVER:
        hint = (
            "move what runs on the workers into a module of the project that does not import "
            f"{', '.join(sorted(OF_DRIVER))}"
        )
    else:
        hint = (
            f"install {module} for the Python of the workers; for EMR Serverless, add it to "
            "`dependencies` in pyproject.toml, then run `topicberg deploy create`. A module of the "
            "project must be in a package that its pipelines import: see docs/project.md"
        )
    return TopicbergError(f"{subject}: the workers of Spark have no module {module}", hint=hint)


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
        table_hours = held_hours(table, derivation.target_time) if table else []
        if not any(hours != NO_TIME and hours.start < first for hours in table_hours):
            return window
    elif not keep_expired or (window.start is not None and start <= window.start):
        return window
    logger.info(
        "table %s: rows of before %s stay, as its sources may have deleted theirs",
        derivation.name,
        f"{start:%F %H:%M}",
    )
    return Window(start, window.end) if start < window.end else None


def _portions(catalog: Catalog, derivation: Derivation, window: Window) -> list[Window]:
    """Return the parts of a window that are computed by a job of Spark each."""
    calls = derivation.calls(window)
    if len(calls) <= AT_ONCE:
        return [window]
    source_hours = _held(derivation, _load(catalog, derivation))
    portions, start, number = list[Window](), window.start, 0
    for call in calls:
        if number == AT_ONCE:
            portions.append(Window(start, call.start or call.end))
            start, number = call.start, 0
        number += _is_read(derivation, source_hours, call)
    return [*portions, Window(start, window.end)]


def _write(
    spark: SparkSession, catalog: Catalog, derivation: Derivation, window: Window
) -> WrittenWindow:
    partition = derivation.target_time, derivation.partitioned_by

    def attempt() -> WrittenWindow:
        before = find_table(catalog, derivation.target)
        sources = _load(catalog, derivation)
        # Another thread creates and removes the tags: each takes as long as what is done meanwhile.
        with (
            conflicts(f"table {derivation.name}"),
            ExitStack() as tags,
            ThreadPoolExecutor(1) as beside,
        ):
            tagged = beside.submit(tags.enter_context, reading(sources.values(), derivation.name))
            try:
                computed, columns = _computed(spark, derivation, sources, window)
            finally:
                tagged.result()  # where a source's snapshot is expired, this error is the reason
            table = ensure_table(
                catalog, derivation.target, columns, partition, derivation.format_version, before
            )
            if not any(map(head_id, sources.values())) and not has_rows(table):
                return WrittenWindow(window)
            names = [field.name for field in table.schema().fields]
            unused = [name for name in names if name not in columns.names]
            summary_ = summary_of(derivation, table, sources, window, unused)
            properties = {**summary_, WRITE_ID: uuid.uuid4().hex}
            try:
                _overwrite(spark, table, derivation, window, computed, properties)
            except Exception as error:
                if refused := REFUSED.search(str(error)):
                    raise misplaced(derivation, *refused.groups()) from error
                raise
            beside.submit(tags.close)
            written = _written(derivation, window, table, sources, properties[WRITE_ID])
            _drop_unused(derivation, table, unused)
            return written

    exhausted = CommitConflictError(
        f"table {derivation.name}: {ATTEMPTS} attempts conflicted with another writer of {window}",
        hint="materialize the partitions again when the other run has ended",
    )
    return retry_conflicts(attempt, ATTEMPTS, exhausted=exhausted)


def _written(
    derivation: Derivation,
    window: Window,
    table: Table,
    sources: Mapping[str, Table],
    write_id: str,
) -> WrittenWindow:
    """Return what a commit wrote.

    :param table: as it was before
    """
    snapshot = next(
        candidate
        for candidate in ancestry(table.refresh())
        if summary(candidate).get(WRITE_ID) == write_id
    )
    rows = int(summary(snapshot).get("added-records", 0))
    if len(window.hours) == 1:  # then no partition is shorter
        by_hour = {window.hours.start: rows} if rows else {}
    else:
        by_hour = added_rows(table, snapshot, derivation.target_time)
    return WrittenWindow(
        window,
        rows=rows,
        rows_by_hour=by_hour,
        snapshot_id=snapshot.snapshot_id,
        sources={name: head_id(each) for name, each in sources.items()},
    )


def _drop_unused(derivation: Derivation, table: Table, unused: Sequence[str]) -> None:
    """Drop columns that the function no longer returns, once no row has another version's value."""
    if not unused or derivation.version is None:
        return
    table_hours = held_hours(table, derivation.target_time)
    for hours in outdated(computed_by(table), derivation.version, derivation.first_partition):
        if any(each.start < hours.stop and hours.start < each.stop for each in table_hours):
            return
    with table.update_schema() as update:
        for name in unused:
            update.delete_column(name)
    logger.info(
        "table %s: dropped %s, which its function no longer returns",
        derivation.name,
        ", ".join(unused),
    )


def summary_of(
    derivation: Derivation,
    target: Table,
    sources: Mapping[str, Table],
    window: Window,
    unused: Sequence[str],
) -> dict[str, str]:
    """Return the summary properties of a snapshot that computes a window of the sources' heads.

    :param unused: columns of the target that the function does not return
    """
    tables = derivation.source_tables(lambda name: sources[".".join(name)])
    first_hour = derivation.first_hour(datetime.now(UTC))
    read = unread(target, derivation.target_time, tables, first_hour)
    version = derivation.version
    versions, first = dict[str, str](), derivation.first_partition
    if version:
        versions = recorded(computed_by(target), version, window, unused, first)
    return {
        **versions,
        SOURCE_SNAPSHOTS: json.dumps({name: head_id(table) for name, table in sources.items()}),
        WINDOW: str(window),
        READ: after(read, window),
    }


def _load(catalog: Catalog, derivation: Derivation) -> dict[str, Table]:
    """Return the sources by their names.

    :raises TopicbergError: one does not exist
    """
    tables: dict[str, Table] = {}
    for source in derivation.sources:
        if (table := find_table(catalog, source.table)) is None:
            raise TopicbergError(
                f"table {derivation.name}: its source {source.name} does not exist yet",
                hint="materialize the Iceberg asset of the source first",
            )
        tables[source.name] = table
    return tables


def _computed(
    spark: SparkSession, derivation: Derivation, sources: Mapping[str, Table], window: Window
) -> tuple[DataFrame, pa.Schema]:
    """Return the rows of a window, and the columns that the function returns.

    :raises TopicbergError: no run would look for some of the rows where they are
    """
    calls, parts = derivation.calls(window), [*derivation.partitions(window)]
    if len(parts) > 1:
        source_hours = _held(derivation, sources)
        calls = [call for call in calls if _is_read(derivation, source_hours, call)] or calls[-1:]
        parts = [
            part for part in parts if any(_meets(each, part) for each in source_hours.values())
        ]
    frames = {
        source.name: rows_at_head(spark, sources[source.name]) for source in derivation.sources
    }

    def result(read: Callable[[Source], Window | None]) -> DataFrame:
        """Return what the function makes of a part of each source."""
        return derivation.transform(
            *(
                _rows(source, frames[source.name], sources[source.name], read(source))
                for source in derivation.sources
            )
        )

    results = [result(partial(derivation.read, window=call)) for call in calls]
    schema, time = results[0].schema, derivation.target_time  # a request to Spark
    if time not in schema.names:
        raise TopicbergError(
            f"table {derivation.name}: its function returns no column {time}",
            hint=f"name the event-time column: the function returns {', '.join(schema.names)}",
        )
    kind = schema[time].dataType
    pairs = [*zip(results, calls, strict=True)]
    if derivation.reads_around:
        check_places(derivation, result, kind, parts)
        rows = [each.filter(part.condition(time, kind)) for each, part in pairs]
    else:
        rows = [refusing(each, time, kind, part) for each, part in pairs]
    columns = optional(described(results[0], derivation.descriptions))
    return reduce(lambda combined, other: combined.unionByName(other), rows), columns


def _held(derivation: Derivation, sources: Mapping[str, Table]) -> dict[Source, list[Hours] | None]:
    """Return the hours in which each source has rows; None: they are not known."""
    return {
        source: held_hours(sources[source.name], source.time) if source.time else None
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
    window: Window,
    computed: DataFrame,
    properties: dict[str, str],
) -> None:
    """:param computed: the rows of the window"""
    time, target = derivation.target_time, spark_name(derivation.target)
    # Other columns are of an earlier version of the function.
    names = [field.name for field in table.schema().fields]
    earlier = set(names) - set(computed.columns)
    columns = spark.table(target).schema if earlier else StructType()
    frame = computed.select(
        *(
            F.lit(None).cast(columns[name].dataType).alias(name)
            if name in earlier
            else F.col(quote(name))
            for name in names
        )
    )
    head = table.current_snapshot()
    assert head is not None  # noqa: S101  see ensure_table
    writer = serializable(frame.writeTo(target), head.snapshot_id, properties)
    writer.overwrite(window.condition(time, time_type(table, time)))


def _rows(source: Source, frame: DataFrame, table: Table, window: Window | None) -> DataFrame:
    """Return the rows of a source that a call reads.

    :param frame: all rows
    """
    if source.time is None or source.whole or window is None:
        return frame
    return frame.filter(window.condition(source.time, time_type(table, source.time)))
