"""Schedules, and sensors, of which one run at a time is enough."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import ParamSpec, TypeVar

import dagster as dg

from topicberg.dagster.runs import UNFINISHED
from topicberg.errors import TopicbergError, safe
from topicberg.errors.meaning import classify, is_refused, to_report
from topicberg.orchestration.resources import Lakehouse
from topicberg.settings import settings

PROJECT = "topicberg/project"
"""Tag of runs that schedules start: the prefix of the project. Another project in the instance has
jobs of the same names, and a schedule does not know its code location."""
_EXPECTED = (TopicbergError, OSError)  # Errors of a deployment that is not there, or is stopped.


def under_way(instance: dg.DagsterInstance, unfinished: dg.RunsFilter) -> dg.SkipReason | None:
    """Why to skip a tick, if there is such a run."""
    runs = instance.get_runs(unfinished, limit=1)
    return dg.SkipReason(f"run {runs[0].run_id} is still under way") if runs else None


def duration(run: dg.RunRecord) -> timedelta:
    """Return how long a run that ended took; nothing if it never started."""
    return timedelta(seconds=(run.end_time or 0.0) - (run.start_time or run.end_time or 0.0))


P = ParamSpec("P")
Found = TypeVar("Found")


def skip_if_unavailable(tick: Callable[P, Found]) -> Callable[P, Found | dg.SkipReason]:
    """Skip the tick of a sensor, instead of failing it, while the deployment is not available. The
    checks report the service once. A login or certificate that is not accepted fails the tick:
    nothing is checked without it. No secret is shown."""

    @wraps(tick)
    def skipping(*args: P.args, **kwargs: P.kwargs) -> Found | dg.SkipReason:
        try:
            return tick(*args, **kwargs)
        except Exception as error:
            reported, is_expected = safe(to_report(error)), isinstance(error, _EXPECTED)
            if classify(error) is None and (is_refused(error) or not is_expected):
                raise reported  # noqa: B904  a cause would show what was taken out
            return dg.SkipReason(str(reported))

    return skipping


def schedule_name(job: str) -> str:
    return f"{job}_schedule"


def _resting(instance: dg.DagsterInstance, runs: dg.RunsFilter, rest: int) -> dg.SkipReason | None:
    """Why to skip a tick, if a run of the job took long and ended only a moment ago."""
    for run in instance.get_run_records(runs, limit=1) if rest else ():
        took = duration(run)
        until = datetime.fromtimestamp(run.end_time or 0.0, UTC) + rest * took
        if datetime.now(UTC) < until:
            return dg.SkipReason(
                f"the last run took {took.total_seconds():.0f} s, so the next one begins after "
                f"{until:%H:%M:%S} UTC: runs take at most 1/{rest + 1} of the time"
            )
    return None


def schedule_unless_busy(job: str, cron: str, rest: int = 0) -> dg.ScheduleDefinition:
    """:param rest: the next run waits for this many times as long as the last one took"""

    @dg.schedule(
        name=schedule_name(job),
        job_name=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def schedule(
        context: dg.ScheduleEvaluationContext, topicberg_lakehouse: Lakehouse
    ) -> dg.RunRequest | dg.SkipReason:
        try:
            topicberg_lakehouse.peek()
        except TopicbergError as error:
            return dg.SkipReason(str(error))
        tags = {PROJECT: settings().prefix}
        return (
            under_way(context.instance, dg.RunsFilter(job_name=job, tags=tags, statuses=UNFINISHED))
            or _resting(context.instance, dg.RunsFilter(job_name=job, tags=tags), rest)
            or dg.RunRequest()
        )

    return schedule
