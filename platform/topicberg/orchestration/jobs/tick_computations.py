"""The runs of computations that a tick of the snapshot sensor requests."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce

import dagster as dg
from cachetools import LRUCache, cached
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg.hours import Hours, common, union, without
from topicberg.iceberg.summaries import summary
from topicberg.orchestration.assets.partitions import (
    RANGE_END,
    RANGE_START,
    SCATTERED,
    Span,
    TimePartitions,
    described_range,
    partition_count,
    requested_windows,
    scattered,
    spans,
)
from topicberg.orchestration.assets.tables import COMPUTATION, NOT_RETRIED
from topicberg.orchestration.catalogs.catalog import ICEBERG
from topicberg.orchestration.jobs.watches import (
    ATTEMPT,
    HOURS,
    MAX_LISTED,
    TABLES,
    WANTED,
    Computation,
    RequestedRun,
    RequestedRuns,
    TableWatch,
    listed_tables,
    short_hash,
)
from topicberg.transforms import derivation, windows
from topicberg.transforms.unread import SourceTable, computable, unread
from topicberg.wording import listed

MAX_RANGES = 250  # Ranges of partitions of one run, as its tag can name; the next run has others.
MAX_RUNS = 4  # Runs that one tick requests: Dagster takes a second or more for each.
MAX_PLANNED = 500  # Events of partitions that Dagster writes for them; see :func:`.scattered`.
MAX_KILLED = 2  # Runs killed in a row, after which a table shares none: it may be what ends them.


@dataclass(frozen=True)
class _Wanted:
    """What is to be computed of a table."""

    watch: TableWatch
    computation: Computation
    head: Snapshot | None  # The newest snapshot of the table.
    spans: tuple[Span, ...]  # Empty: all is computed, but not in the catalogs.
    attempts: int = 0
    is_alone: bool = False
    """The run is for this table only: what failed for it would fail the others again and again."""


class Computations:
    """What derived tables have not read; the same partitions of several tables are one run."""

    def __init__(self, watched: Mapping[str, TableWatch], runs: RequestedRuns, now: float) -> None:
        self._watched, self._runs = watched, runs
        self._now = datetime.fromtimestamp(now, UTC)
        self._wanted: list[_Wanted] = []
        self.failed: dict[str, RequestedRun] = {}
        """Tables whose last run failed, and that wait for the next attempt."""

    def is_active(self, watch: TableWatch) -> bool:
        """Return whether a run computes the table."""
        return watch.origin.key(ICEBERG) in self._runs.active

    def look(
        self,
        watch: TableWatch,
        computation: Computation,
        target: IcebergTable | None,
        sources: Mapping[str, SourceTable],
    ) -> bool:
        """Take note of what a table, if there is one, has not read; return whether that is any."""
        now = self._now
        first = computation.plan.first_hour(now)
        hours = unread_hours(computation.plan, target, sources, int(now.timestamp()) // 3600)
        wanted, _ = spans(computation.partitions, hours, now, len(hours) + 1, first)
        if not wanted:
            return self._look_at_catalogs(watch, computation, target)
        failures = [
            (left, run)
            for run in self._runs.failed(watch.origin.key(ICEBERG))
            if (left := common(hours, _left(computation, run, target)))
        ]
        waiting = [each for left, run in failures if run.due > now.timestamp() for each in left]
        failed = union(each for left, _ in failures for each in left)
        # What never failed comes first: it does not wait for what fails again and again.
        for chosen in (failed, waiting):
            ready = reduce(without, chosen, [span.hours for span in wanted])
            some, _ = spans(computation.partitions, ready, now, MAX_RANGES, first)
            if some:
                break
        else:
            self.failed[watch.name] = failures[0][1]
            return True
        again = [run for left, run in failures if common(left, (span.hours for span in some))]
        self._wanted.append(
            _Wanted(
                watch,
                computation,
                _head(target),
                tuple(some),
                max((run.attempts for run in again), default=0),
                any(not run.was_killed or run.attempts >= MAX_KILLED for run in again),
            )
        )
        return True

    def _look_at_catalogs(
        self, watch: TableWatch, computation: Computation, target: IcebergTable | None
    ) -> bool:
        """Take note of a table that is computed, if the run failed to register it afterwards."""
        head, failed = _head(target), self._runs.failed(watch.origin.key(ICEBERG))
        committed = head.timestamp_ms / 1000 if head else 0.0
        last = next((run for run in failed if run.started <= committed), None)
        events = map(self._runs.instance.get_latest_materialization_event, computation.assets[1:])
        if last is None or all(event and event.timestamp >= last.started for event in events):
            return False
        if last.due > self._now.timestamp():
            self.failed[watch.name] = last
        else:
            self._wanted.append(_Wanted(watch, computation, head, (), last.attempts, is_alone=True))
        return True

    def requests(self) -> list[dg.RunRequest]:
        """Return a run for the same partitions; a few: Dagster makes them before the next tick."""
        groups: dict[tuple[str, tuple[Span, ...], str], list[_Wanted]] = {}
        taken: set[str] = set()
        for wanted in self._wanted:
            name = wanted.watch.name
            group = wanted.computation.job, wanted.spans, name if wanted.is_alone else ""
            if name in taken and not any(
                name in each.computation.downstream for each in groups.get(group, ())
            ):
                continue  # a run of this tick computes it for other partitions
            groups.setdefault(group, []).append(wanted)
            taken |= {*wanted.computation.downstream} if wanted.spans else set()
        requests: list[dg.RunRequest] = []
        planned = 0
        for (_, of_group, _), members in groups.items():
            if len(requests) == MAX_RUNS:
                break
            first, wanted_id = members[0], _wanted_id(members)
            at_least = max(each.attempts for each in members)
            attempt = self._runs.attempt(COMPUTATION, wanted_id, at_least)
            if attempt is None:
                continue
            computed = self._computed(members)
            partitions, tags = first.computation.partitions, dict[str, str]()
            if of_group:
                events = len(computed) * sum(partition_count(partitions, each) for each in of_group)
                is_planned = len(of_group) == 1 and planned + events <= MAX_PLANNED
                planned += events if is_planned else 0
                tags = _partition_tags(partitions, of_group, is_planned=is_planned)
            requests.append(
                self._request(wanted_id, attempt, computed, tags, has_tables=bool(of_group))
            )
        return requests

    def _computed(self, members: Sequence[_Wanted]) -> list[Computation]:
        """Return what a run computes: these tables, and those that change where these do."""
        names = dict.fromkeys(each.watch.name for each in members)
        for each in members:
            if each.spans:
                names |= dict.fromkeys(each.computation.downstream)
        watched = (self._watched[name] for name in names)
        return [
            each.computation for each in watched if each.computation and not self.is_active(each)
        ]

    def _request(
        self,
        wanted_id: str,
        attempt: int,
        computed: Sequence[Computation],
        tags: Mapping[str, str],
        *,
        has_tables: bool,
    ) -> dg.RunRequest:
        """:param has_tables: else they are only registered"""
        keys = [key for each in computed for key in each.assets[0 if has_tables else 1 :]]
        return dg.RunRequest(
            run_key=f"{wanted_id}:{attempt}",
            job_name=computed[0].job,
            asset_selection=list(dict.fromkeys(keys)),
            asset_check_keys=list(dict.fromkeys([key for each in computed for key in each.checks])),
            tags={
                **self._runs.tags(COMPUTATION),
                WANTED: wanted_id,
                ATTEMPT: str(attempt),
                TABLES: listed_tables(keys),
                "dagster/priority": "1"
                if all(each.plan.reads_around for each in computed)
                else "2",
                **NOT_RETRIED,
                **tags,
            },
        )


# Neither changes once it is written, and a table that fails is looked at in every tick.
@cached(
    LRUCache(1000),
    key=lambda plan, target, sources, hour: (
        plan.name,
        target.metadata_location if target else None,
        tuple((name, source.table.metadata_location) for name, source in sources.items()),
        hour,
    ),
    lock=threading.Lock(),
)
def unread_hours(
    plan: derivation.Derivation,
    target: IcebergTable | None,
    sources: Mapping[str, SourceTable],
    hour: int,
) -> list[Hours]:
    """Return the hours of a table that changed since they were computed, and may be now."""
    first = plan.first_hour(datetime.fromtimestamp(hour * 3600, UTC))
    reads = computable(unread(target, plan.target_time, sources, first), first)
    return union(Hours(each.start, each.stop) for read in reads.values() for each in read.unread)


def _left(computation: Computation, run: RequestedRun, target: IcebergTable | None) -> list[Hours]:
    """Return the hours that a run was to compute and that no run has computed since it began."""
    hours = union(w.hours for w in requested_windows(computation.partitions, run.run.tags))
    for snapshot, _ in windows.computations(target) if target else ():
        if snapshot.timestamp_ms < run.started * 1000:
            break
        if text := summary(snapshot).get(windows.WINDOW):
            hours = reduce(
                without, (window.hours for window in windows.Window.parse_all(text)), hours
            )
    return hours


def _wanted_id(members: Sequence[_Wanted]) -> str:
    """Return the beginning of a run key: snapshot and partitions of the first, a hash of all."""
    snapshots = [each.head.snapshot_id if each.head else None for each in members]
    name, of_run = members[0].watch.name, members[0].spans
    every = short_hash(str([*(each.watch.name for each in members), *snapshots, *of_run]))
    partitions = f"{of_run[0].first}..{of_run[-1].last}" if of_run else "catalogs"
    return f"{name}:{snapshots[0]}:{partitions}:{every}"


def _head(target: IcebergTable | None) -> Snapshot | None:
    return target.current_snapshot() if target else None


def _partition_tags(
    partitions: TimePartitions, of_run: Sequence[Span], *, is_planned: bool
) -> dict[str, str]:
    """:param is_planned: Dagster shows the partitions as in progress and, if they are, as failed"""
    first, last = of_run[0].first, of_run[-1].last
    hours = [described_range(span.first, span.last) for span in of_run]
    unplanned = {} if is_planned else {SCATTERED: scattered(partitions, of_run)}
    begin = first if is_planned else last
    return {HOURS: listed(hours, MAX_LISTED), RANGE_START: begin, RANGE_END: last, **unplanned}
