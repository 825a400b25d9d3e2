"""The checks that fail, and the assets that are stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import dagster as dg

from topicberg.alerts.observation import FailedCheck, StaleAsset
from topicberg.checks.finding import Finding
from topicberg.checks.topic import ENGINE_CHECK, check_engine, status_findings
from topicberg.dagster.compatibility import warn_degraded
from topicberg.orchestration.checks.evaluations import Evaluation
from topicberg.settings import Settings
from topicberg.tableflow.service.status import (
    OBSERVED_SECONDS,
    TopicStatus,
    observed_at,
    read_status,
    status_file,
)
from topicberg.topics import TopicSpec

_EXPLAINING = ("freshness", "up_to_date")  # Names of checks that say why their asset is stale.


def failed_checks(
    stored: Mapping[dg.AssetCheckKey, Evaluation],
    graph: Any,
    config: Settings,
    specs: Iterable[TopicSpec],
    now: datetime,
) -> Iterator[FailedCheck]:
    """Yield the checks whose last evaluation failed, or that fail by the engine's statuses."""
    keys = graph.asset_check_keys
    statuses = [  # Of an engine on this machine.
        (_check_key(spec, ENGINE_CHECK), spec, read_status(config, spec.name))
        for spec in specs
        if config.own_engine and status_file(config, spec.name).exists()
    ]
    # Stored results of the check are older; of a topic that the code location will have when it is
    # loaded again, there are none.
    current = {
        key: check_engine(spec, status, now)
        for key, spec, status in statuses
        if key in keys or not graph.has(key.asset_key)
    }
    outdated = {
        f"{key.asset_key.to_user_string()}:{key.name}"
        for key, finding in current.items()
        if finding.passed and key in stored and not stored[key].finding.passed
    }
    early = _early_findings(keys, config, statuses, stored, now)
    for key, finding in chain(current.items(), early.items()):
        if not finding.passed:
            name = key.asset_key.to_user_string()
            yield FailedCheck(name, key.name, finding, is_early=key in early)
    for key, evaluation in stored.items():
        finding = evaluation.finding
        if key in early and (finding.passed or early[key].passed):
            continue  # the stored status is newer
        # The next run of the checks says whether what followed from the engine's failure is
        # resolved as well.
        if finding.passed or key in current or finding.cause in outdated:
            continue
        if finding.since is None and (of := evaluation.event.target_materialization_data):
            finding = replace(finding, since=datetime.fromtimestamp(of.timestamp, UTC))
        yield FailedCheck(key.asset_key.to_user_string(), key.name, finding)


def stale_assets(
    instance: dg.DagsterInstance, graph: Any, stored: Mapping[dg.AssetCheckKey, Evaluation]
) -> Iterator[StaleAsset]:
    """Yield the assets past their freshness policies."""
    keys = [key for key in graph.get_all_asset_keys() if graph.get(key).freshness_policy]
    try:
        records = instance.get_freshness_state_records(keys)
    except NotImplementedError as error:
        warn_degraded("no alert names assets past their freshness policies", error)
        return
    stale = {
        key: record
        for key, record in records.items()
        if record.freshness_state.value in ("WARN", "FAIL")
    }
    checks = graph.asset_check_keys
    explaining = {key: [dg.AssetCheckKey(key, name) for name in _EXPLAINING] for key in stale}
    for key, record in stale.items():
        yield StaleAsset(
            asset=key.to_user_string(),
            severity="error" if record.freshness_state.value == "FAIL" else "warning",
            since=record.updated_at,
            checks=tuple(
                stored[check].at if check in stored else None
                for check in explaining[key]
                if check in checks
            ),
        )


def _early_findings(
    keys: Set[dg.AssetCheckKey],
    config: Settings,
    statuses: Iterable[tuple[dg.AssetCheckKey, TopicSpec, TopicStatus]],
    stored: Mapping[dg.AssetCheckKey, Evaluation],
    now: datetime,
) -> dict[dg.AssetCheckKey, Finding]:
    """Return what the statuses say of other checks, if it is newer than the last evaluation and
    differs: the checks run every five minutes."""
    findings: dict[dg.AssetCheckKey, Finding] = {}
    observed = observed_at(config) or 0.0
    if abs(now.timestamp() - observed) > OBSERVED_SECONDS:
        return findings
    for _, spec, status in statuses:
        for name, finding in status_findings(spec, status, now):
            key = _check_key(spec, name)
            last = stored.get(key)
            has_failed = last is not None and not last.finding.passed
            is_newer = last is None or not has_failed or observed > last.at.timestamp()
            if key in keys and finding.passed == has_failed and is_newer:
                findings[key] = finding
    return findings


def _check_key(spec: TopicSpec, name: str) -> dg.AssetCheckKey:
    """Return the key of a check of a topic's table."""
    return dg.AssetCheckKey(dg.AssetKey(["iceberg", spec.table_name]), name)
