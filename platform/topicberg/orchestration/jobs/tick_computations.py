"""The runs of computations that a tick of the snapshot sensor requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dagster as dg

from topicberg.orchestration.assets.partitions import (
    RANGE_END,
    RANGE_START,
    Span,
    described_range,
)
from topicberg.orchestration.assets.run_kinds import COMPUTATION, KIND
from topicberg.orchestration.jobs.changes import Tick
from topicberg.orchestration.jobs.snapshot_cursor import share
from topicberg.orchestration.jobs.snapshot_store import Cursors
from topicberg.orchestration.jobs.watches import HOURS, TABLES, TableWatch, listed_tables


class Computations:
    """What tables want to have computed. What several want of the same partitions is one run."""

    def __init__(self) -> None:
        self._wanted: list[tuple[TableWatch, str, Span]] = []
        """Watch, run key, partitions."""

    def add(self, watch: TableWatch, tick: Tick) -> None:
        """Add what a table wants."""
        self._wanted += ((watch, key, span) for key, span in tick.runs.items())

    def spans(self) -> dict[str, set[Span]]:
        """Return the wanted partitions by job."""
        spans: dict[str, set[Span]] = {}
        for watch, _, span in self._wanted:
            spans.setdefault(watch.job, set()).add(span)
        return spans

    def joining(self, watched: Iterable[TableWatch]) -> Iterator[TableWatch]:
        """Yield what else follows from the tables that want something, in the same jobs."""
        wanted = {(watch.job, watch.origin.name) for watch, _, _ in self._wanted}
        for watch in watched:
            if (watch.job, watch.origin.name) in wanted:
                yield watch

    def requests(self, cursors: Cursors) -> list[dg.RunRequest]:
        """Return a run for each range of partitions, after noting it in the tables' cursors."""
        requests: list[dg.RunRequest] = []
        shared: dict[tuple[str, Span, str], list[tuple[TableWatch, str]]] = {}
        for watch, key, span in self._wanted:
            alone = watch.name if cursors[watch.name].failures else ""
            shared.setdefault((watch.job, span, alone), []).append((watch, key))
        for (_, span, _), members in shared.items():
            run_key = members[0][1]
            for watch, key in members[1:]:
                cursors.note(watch.name, share(cursors[watch.name], key, run_key))
            requests.append(_computation(run_key, span, [watch for watch, _ in members]))
        return requests


def _computation(run_key: str, span: Span, watched: Sequence[TableWatch]) -> dg.RunRequest:
    """Return a run that computes a range of partitions of what follows from some tables."""
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
            HOURS: described_range(span.first, span.last),
            "dagster/priority": "1" if any(watch.reported for watch in watched) else "0",
            RANGE_START: span.first,
            RANGE_END: span.last,
        },
    )
