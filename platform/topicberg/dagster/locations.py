"""Which code location a run or an automation belongs to: an instance of Dagster may have several.

A code location is named as Dagster labels its runs: ``repository@location``.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

_LABEL = ".dagster/repository"
"""Tag of every run that the daemon launches."""


def location_of_run(run: dg.DagsterRun) -> str | None:
    """Return the code location of a run; None: a command has executed it in its own process."""
    origin = run.remote_job_origin
    return origin.repository_origin.get_label() if origin else None


def location_of_sensor(context: dg.SensorEvaluationContext) -> str | None:
    """Return the code location of a sensor; None: no daemon evaluates it."""
    origin = context.code_location_origin
    return f"{context.repository_name}@{origin.location_name}" if origin else None


def location_of_automation(state: Any) -> str:
    """Return the code location of a sensor or a schedule.

    :param state: as Dagster's instance has stored it; its class is not public
    """
    return str(state.origin.repository_origin.get_label())


def location_tags(location: str | None) -> dict[str, str]:
    """Return tags that select the runs of a code location; None: those of all."""
    return {_LABEL: location} if location else {}
