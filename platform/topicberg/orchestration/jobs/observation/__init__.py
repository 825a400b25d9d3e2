"""Reads an :class:`topicberg.alerts.observation.Observation` from a Dagster instance, the specs and
the engine's statuses.
"""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg

from topicberg.alerts.alert import AlertState
from topicberg.alerts.observation import Observation
from topicberg.orchestration.jobs.observation import checks, runs
from topicberg.settings import settings
from topicberg.topics.kept import specs_in_use


def observe(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    state: AlertState,
    wrong: str | None = None,
    location: str | None = None,
) -> Observation:
    """Read what is there now, since the last evaluation, and the runs of a code location or of any.

    :param wrong: the mistakes in the topic specs when the code location was loaded
    """
    now, config, graph = datetime.now(UTC), settings(), repository.asset_graph
    ended, until = runs.ended_runs(instance, repository, location, state, now)
    specs, spec_errors = specs_in_use(config)
    return Observation(
        at=now,
        check_runs=runs.check_runs(instance, repository, config, location),
        assets=frozenset(key.to_user_string() for key in graph.get_all_asset_keys()),
        owners={
            key.to_user_string(): tuple(owners)
            for key in graph.get_all_asset_keys()
            if (owners := graph.get(key).owners)
        },
        failed_checks=[*checks.failed_checks(instance, repository, config, specs, now)],
        stale_assets=[*checks.stale_assets(instance, repository)],
        runs=ended,
        materialized=runs.materialized_at(instance, state),
        runs_until=until,
        queued=runs.queued_runs(instance, location),
        active=[*runs.active_runs(instance)],
        automations=[*runs.automations(instance, repository, location)],
        shared=[*runs.shared_tables(instance, repository, location, now)],
        spec_errors=spec_errors,
        spec_errors_at_load=wrong,
    )
