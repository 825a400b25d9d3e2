"""The runs of computations that a tick of the snapshot sensor requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dagster as dg

from topicberg.orchestration.assets.partitions import (
    RANGE_END,
    RANGE_START,
    SCATTERED,
    Span,
    described_range,
    partition_count,
    scattered,
)
from topicberg.orchestration.assets.run_kinds import COMPUTATION, KIND, NOT_RETRIED
from topicberg.orchestration.catalogs.catalog import ICEBERG
from topicberg.orchestration.jobs.changes import Tick
from topicberg.orchestration.jobs.snapshot_cursor import postpone, share
from topicberg.orchestration.jobs.snapshot_store import Cursors
from topicberg.orchestration.jobs.watches import (
    HOURS,
    MAX_LISTED,
    TABLES,
    TableWatch,
    listed_tables,
)
from topicberg.wording import listed

MAX_RUNS = 4
"""Runs that one tick requests: Dagster makes each in a second or more, before the next tick."""
MAX_PLANNED = 500
"""Events of their partitions, which Dagster writes meanwhile; see :func:`.scattered`."""


class Computations:
    """What tables want to have computed. What several want of the same partitions is one run."""

    def __init__(self) -> None:
        self._wanted: list[tuple[TableWatch, str, tuple[Span, ...], bool]] = []
        """Watch, run key, partitions, and whether no other table may share the run."""

    def add(self, watch: TableWatch, tick: Tick) -> None:
        """Add what a table wants."""
        self._wanted += ((watch, key, spans, tick.alone) for key, spans in tick.runs.items())

    def spans(self) -> dict[str, set[tuple[Span, ...]]]:
        """Return the wanted partitions by job."""
        spans: dict[str, set[tuple[Span, ...]]] = {}
        for watch, _, of_watch, _ in self._wanted:
            spans.setdefault(watch.job, set()).add(of_watch)
        return spans

    def joining(self, watched: Iterable[TableWatch]) -> Iterator[TableWatch]:
        """Yield what else follows from the tables that want something, in the same jobs."""
        wanted = {(watch.job, watch.origin.name) for watch, *_ in self._wanted}
        for watch in watched:
            if (watch.job, watch.origin.name) in wanted:
                yield watch

    def requests(self, cursors: Cursors) -> list[dg.RunRequest]:
        """Return a run for the same partitions, after noting it in the tables' cursors.

        Dagster makes the runs before the next tick, so a tick requests a few, and the next one
        others.
        """
        requests: list[dg.RunRequest] = []
        shared: dict[tuple[str, tuple[Span, ...], str], list[tuple[TableWatch, str]]] = {}
        planned = 0
        for watch, key, spans, alone in self._wanted:
            group = watch.job, spans, watch.name if alone else ""
            shared.setdefault(group, []).append((watch, key))
        for (_, spans, _), members in shared.items():
            watched = [watch for watch, _ in members]
            if len(requests) == MAX_RUNS:
                for watch in watched:
                    cursors.note(watch.name, postpone(cursors[watch.name]))
                continue
            run_key = members[0][1]
            for watch, key in members[1:]:
                cursors.note(watch.name, share(cursors[watch.name], key, run_key))
            events = _planned_events(watched, spans)
            is_planned = len(spans) == 1 and planned + events <= MAX_PLANNED
            planned += events if is_planned else 0
            requests.append(_computation(run_key, spans, watched, is_planned=is_planned))
        return requests


def _planned_events(watched: Sequence[TableWatch], spans: Sequence[Span]) -> int:
    """Return how many events Dagster writes when it makes a run for partitions."""
    partitions, keys = watched[0].partitions, {key for watch in watched for key in watch.derived}
    assert partitions is not None  # noqa: S101  it wants partitions
    tables = sum(key.path[0] == ICEBERG for key in keys)
    return tables * sum(partition_count(partitions, span) for span in spans)


def _computation(
    run_key: str, spans: Sequence[Span], watched: Sequence[TableWatch], *, is_planned: bool
) -> dg.RunRequest:
    """Return a run that computes partitions of what follows from some tables.

    :param is_planned: Dagster shows the partitions as in progress and, where they are, as failed
    """
    partitions, first, last = watched[0].partitions, spans[0].first, spans[-1].last
    assert partitions is not None  # noqa: S101  it wants partitions
    requested = {RANGE_START: first, RANGE_END: last}
    if not is_planned:
        requested = {RANGE_START: last, RANGE_END: last, SCATTERED: scattered(partitions, spans)}
    hours = [described_range(span.first, span.last) for span in spans]
    derived = list(dict.fromkeys(key for watch in watched for key in watch.derived))
    return dg.RunRequest(
        run_key=run_key,
        job_name=watched[0].job,
        asset_selection=derived,
        asset_check_keys=list(
            dict.fromkeys(key for watch in watched for key in watch.derived_checks)
        ),
        tags={
            KIND: COMPUTATION,
            TABLES: listed_tables(derived),
            HOURS: listed(hours, MAX_LISTED),
            "dagster/priority": "2" if any(watch.reported for watch in watched) else "1",
            **NOT_RETRIED,
            **requested,
        },
    )
