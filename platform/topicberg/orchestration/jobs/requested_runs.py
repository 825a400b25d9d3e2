"""How the runs are that the snapshot sensor has requested."""

from __future__ import annotations

from functools import cache, partial

import dagster as dg

from topicberg.orchestration.assets.run_kinds import REGISTRATION
from topicberg.orchestration.jobs.schedules import duration, run_with_key
from topicberg.orchestration.jobs.snapshot_cursor import RunState, TableCursor
from topicberg.orchestration.jobs.watches import TableWatch

_FAILURE_REASON, _STEP_FAILED = "dagster/failure_reason", "STEP_FAILURE"
"""Dagster's tag of a failed run, and the value that says that one of its steps failed."""
_FINISHED: dict[dg.DagsterRunStatus, RunState] = {
    dg.DagsterRunStatus.SUCCESS: "succeeded",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "killed",
    dg.DagsterRunStatus.NOT_STARTED: "missing",
}


class RequestedRuns:
    """Runs by their keys, each of which a tick reads once from Dagster."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._run = cache(partial(run_with_key, instance))

    def state(self, run_key: str) -> RunState:
        """Return how a run is."""
        run = self._run(run_key)
        state = _FINISHED.get(run.status, "active") if run else "missing"
        if run and state == "failed" and run.tags.get(_FAILURE_REASON) != _STEP_FAILED:
            return "killed"
        return state

    def states(self, watch: TableWatch, cursor: TableCursor) -> dict[str, RunState]:
        """Return how the runs are that were requested for a table, by their keys.

        A run of registrations that failed has succeeded for the tables that it registered.
        """
        states: dict[str, RunState] = {}
        for wanted in (cursor.request, cursor.registration):
            for key in wanted.ranges if wanted else ():
                state, run = self.state(key), self._run(key)
                has_failed = state in ("failed", "killed") and key.startswith(f"{REGISTRATION}:")
                if run and has_failed and self._has_registered(watch, run):
                    state = "succeeded"
                states[key] = state
        return states

    def any_ended(self, watch: TableWatch, cursor: TableCursor) -> bool:
        """Return whether a run that was requested for a table has ended, or was never launched."""
        return any(state != "active" for state in self.states(watch, cursor).values())

    def seconds(self, run_key: str) -> float:
        """Return how long a run took that has ended; 0: it never began."""
        run = self._run(run_key)
        record = self._instance.get_run_record_by_id(run.run_id) if run else None
        return max(0.0, duration(record).total_seconds()) if record else 0.0

    def _has_registered(self, watch: TableWatch, run: dg.DagsterRun) -> bool:
        selected = run.asset_selection  # None: the whole job
        keys = [key for key in watch.registrations if selected is None or key in selected]
        last = [self._instance.get_latest_materialization_event(key) for key in keys]
        return all(event is not None and event.run_id == run.run_id for event in last)
