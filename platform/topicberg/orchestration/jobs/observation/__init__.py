"""Reads an :class:`topicberg.alerts.observation.Observation` from a Dagster instance, the specs and
the engine's statuses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import dagster as dg

from topicberg.alerts.alert import AlertState
from topicberg.alerts.observation import Observation
from topicberg.orchestration.checks.evaluations import Evaluation, last_evaluations
from topicberg.orchestration.jobs.observation import checks, runs
from topicberg.settings import settings
from topicberg.topics.kept import SpecsInUse

REREAD_SECONDS = 60.0  # Evaluations may also be reported without a run.


@dataclass
class ReadBefore:
    """What one evaluation of the alerts reads, and the next one only after a change: that of all
    checks takes a second of CPU time for 200 topics."""

    specs: SpecsInUse = field(default_factory=SpecsInUse)
    checks: Mapping[dg.AssetCheckKey, Evaluation] = field(default_factory=dict)
    checks_at: float = -math.inf


def observe(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    state: AlertState,
    wrong: str | None = None,
    location: str | None = None,
    before: ReadBefore | None = None,
) -> Observation:
    """Read what is there now, since the last evaluation, and the runs of a code location or of any.

    :param wrong: the mistakes in the topic specs when the code location was loaded
    :param before: what the last evaluation read, if this process did it
    """
    before = before or ReadBefore()
    now, config, graph = datetime.now(UTC), settings(), repository.asset_graph
    ended, until = runs.ended_runs(instance, repository, location, state, now)
    specs, spec_errors = before.specs.read(config)
    active = [*runs.active_runs(instance)]
    is_late = time.monotonic() > before.checks_at + REREAD_SECONDS
    if is_late or active or until != state.runs_until:
        before.checks_at = time.monotonic()
        before.checks = last_evaluations(instance, graph.asset_check_keys, before.checks)
    return Observation(
        at=now,
        check_runs=runs.check_runs(instance, repository, config, location),
        assets=frozenset(key.to_user_string() for key in graph.get_all_asset_keys()),
        owners={
            key.to_user_string(): tuple(owners)
            for key in graph.get_all_asset_keys()
            if (owners := graph.get(key).owners)
        },
        failed_checks=[*checks.failed_checks(before.checks, graph, config, specs, now)],
        stale_assets=[*checks.stale_assets(instance, graph, before.checks)],
        runs=ended,
        materialized=runs.materialized_at(instance, state),
        runs_until=until,
        queued=runs.queued_runs(instance, location),
        active=active,
        automations=[*runs.automations(instance, repository, location)],
        shared=[*runs.shared_tables(instance, repository, location, now)],
        spec_errors=spec_errors,
        spec_errors_at_load=wrong,
    )
