"""The asset graph of a project: factories of assets, checks, jobs, sensors and resources.

:func:`definitions` puts all of them together; a project that wants to choose, or to add, calls them
by name, as ``assets/``, ``jobs/`` and ``resources/`` of topicberg's own repository do, inside
:func:`build`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import dagster as dg

from topicberg.garbage import no_search
from topicberg.orchestration.assets import Lake, lake_assets
from topicberg.orchestration.assets.lake import lake_of
from topicberg.orchestration.checks.adapter import lake_checks
from topicberg.orchestration.jobs import lake_jobs, lake_schedules, lake_sensors
from topicberg.orchestration.resources import RESOURCES, Lakehouse, Snowflake, Spark
from topicberg.project import VARIABLE
from topicberg.settings import emr_settings, settings
from topicberg.topics.kept import build_with_kept

__all__ = [
    "Lake",
    "Lakehouse",
    "Snowflake",
    "Spark",
    "build",
    "definitions",
    "lake_assets",
    "lake_checks",
    "lake_jobs",
    "lake_schedules",
    "lake_sensors",
]


def definitions(project: str | Path | None = None) -> dg.Definitions:
    """Return everything of a project, to be merged with other definitions of a code location.

    ::

        defs = dg.Definitions.merge(topicberg.definitions(project=Path(__file__).parents[2]), own)

    :param project: its root, for this process; None: ``TOPICBERG_PROJECT_ROOT``, or the nearest
        ``pyproject.toml`` with a table ``[tool.topicberg]``
    :raises TopicbergError: there is no project, or its specs, settings or modules are wrong
    """
    if project is not None:
        os.environ[VARIABLE] = str(Path(project).resolve())
        settings.cache_clear()
    return _made(
        lambda lake: dg.Definitions(
            assets=list(lake_assets(lake)),
            asset_checks=list(lake_checks(lake)),
            jobs=list(lake_jobs(lake)),
            schedules=list(lake_schedules(lake)),
            sensors=list(lake_sensors(lake)),
            resources=RESOURCES,
        )
    )


def build(make: Callable[[Lake], dg.Definitions]) -> dg.Definitions:
    """Return the definitions that a function makes of the lake, as a code location of its own.
    While a spec file is invalid, the lake has the last valid version of that spec."""
    with no_search():
        made = _made(make)
        made.get_repository_def()  # which Dagster needs in every process, and which it keeps
    return made


def _made(make: Callable[[Lake], dg.Definitions]) -> dg.Definitions:
    config = settings()
    emr_settings()  # what is wrong with them is reported here, not by the first run
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)  # of Pipes, about itself
    return build_with_kept(
        config,
        lambda known: dg.Definitions.merge(make(lake := lake_of(config, known)), *lake.additions),
    )
