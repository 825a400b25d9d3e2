"""The runs that the snapshot sensor has requested, and when those that failed are tried again.

Dagster launches no run with a key twice. So a run's key ends with its attempt, and the next one is
some time after the end of the last: what there is to know is in the tags of Dagster's runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import dagster as dg

from topicberg.orchestration.assets.run_kinds import COMPUTATION, KIND, REGISTRATION
from topicberg.orchestration.jobs.schedules import PROJECT, UNFINISHED

WANTED = ".dagster/topicberg/wanted"
"""Tag of a run: what it is to do, which its other attempts have as well."""
ATTEMPT = "topicberg/attempt"
"""Tag of a run: how many there were for the same before."""
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 10.0, 900.0
"""Between the end of a run that failed and the next attempt; each one waits twice as long."""
_FAILURE_REASON, _STEP_FAILED = "dagster/failure_reason", "STEP_FAILURE"
"""Dagster's tag of a failed run, and the value that says that one of its steps failed."""
_MAX_RUNS, _MAX_REGISTRATIONS = 500, 50
"""Runs that a tick reads."""
_FAILED = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_ACTIVE = [*UNFINISHED, dg.DagsterRunStatus.CANCELING]


@dataclass(frozen=True)
class RequestedRun:
    """A run that a tick has requested; times are seconds since 1970."""

    run: dg.DagsterRun
    started: float
    ended: float

    @property
    def is_active(self) -> bool:
        return self.run.status in _ACTIVE

    @property
    def has_failed(self) -> bool:
        return self.run.status in _FAILED

    @property
    def was_killed(self) -> bool:
        """Whether none of its steps failed, so that no table is to blame."""
        return self.has_failed and self.run.tags.get(_FAILURE_REASON) != _STEP_FAILED

    @property
    def attempts(self) -> int:
        """How many runs there were for the same, with this one, if it began."""
        is_launched = self.run.status != dg.DagsterRunStatus.NOT_STARTED
        return int(self.run.tags.get(ATTEMPT, "0")) + is_launched

    @property
    def due(self) -> float:
        """When the next attempt is."""
        delay = FIRST_DELAY_SECONDS * 2.0 ** min(self.attempts - 1, 20)
        return self.ended + min(delay, MAX_DELAY_SECONDS)


class RequestedRuns:
    """The runs of the sensor of a project; a tick reads what it needs of them once."""

    def __init__(self, instance: dg.DagsterInstance, project: str, now: float) -> None:
        """:param project: the prefix of its names: an instance may have several projects"""
        self.instance, self._project, self._now = instance, project, now

    def tags(self, kind: str) -> dict[str, str]:
        """Return the tags of all requested runs of a kind."""
        return {KIND: kind, PROJECT: self._project}

    @cached_property
    def active(self) -> frozenset[dg.AssetKey]:
        """What runs are computing."""
        runs = self._runs(self.tags(COMPUTATION), _ACTIVE, _MAX_RUNS)
        return frozenset(key for each in runs for key in each.run.asset_selection or ())

    @cached_property
    def _failed(self) -> list[RequestedRun]:
        since = datetime.fromtimestamp(self._now - 2 * MAX_DELAY_SECONDS, UTC)
        return self._runs(self.tags(COMPUTATION), _FAILED, _MAX_RUNS, since)

    def failed(self, key: dg.AssetKey) -> Iterator[RequestedRun]:
        """Yield the runs that failed to compute an asset a short time ago, the newest one first."""
        return (each for each in self._failed if key in (each.run.asset_selection or ()))

    @cached_property
    def registrations(self) -> list[RequestedRun]:
        """The newest runs that registered tables, the newest one first."""
        return self._runs(self.tags(REGISTRATION), None, _MAX_REGISTRATIONS)

    def attempt(self, kind: str, wanted: str, at_least: int = 0) -> int | None:
        """Return the number of the next attempt to do something; None: it is not time for one."""
        for newest in self._runs({**self.tags(kind), WANTED: wanted}, None, 1):
            if newest.is_active or (newest.run.is_finished and self._now < newest.due):
                return None
            return max(newest.attempts, at_least)
        return at_least

    def last_run(self, tags: Mapping[str, str]) -> RequestedRun | None:
        """Return the newest run with some tags."""
        return next(iter(self._runs(tags, None, 1)), None)

    def _runs(
        self,
        tags: Mapping[str, str],
        statuses: Sequence[dg.DagsterRunStatus] | None,
        limit: int,
        since: datetime | None = None,
    ) -> list[RequestedRun]:
        chosen = dg.RunsFilter(tags=tags, statuses=statuses, updated_after=since)
        return [
            RequestedRun(
                record.dagster_run,
                record.start_time or record.create_timestamp.timestamp(),
                record.end_time or record.update_timestamp.timestamp(),
            )
            for record in self.instance.get_run_records(chosen, limit=limit)
        ]
