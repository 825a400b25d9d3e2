"""What Dagster+ refuses of its storage is left out, and one line of the log says what."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
)
from dagster._core.storage.event_log import EventLogStorage, InMemoryEventLogStorage
from memory_instance import memory_instance

from topicberg.alerts.alert import AlertState
from topicberg.dagster import compatibility
from topicberg.orchestration.checks.evaluations import last_evaluations
from topicberg.orchestration.jobs.observation import ReadBefore, observe
from topicberg.orchestration.jobs.retention import retention_job

REFUSED = """watch end_watch get_freshness_state_records update_asset_cached_status_data
get_concurrency_run_ids get_asset_check_execution_history get_asset_check_partition_info"""
"""In ``dagster_cloud/storage/event_logs/storage.py`` of dagster-cloud 1.13.27."""
ORDERS = dg.AssetKey("orders")
ROWS = dg.AssetCheckKey(ORDERS, "rows")


def _passed_on(name: str) -> Any:
    def call(storage: Any, *args: Any, **kwargs: Any) -> Any:
        if name in REFUSED.split():
            raise NotImplementedError("Not callable from user cloud")
        return getattr(storage.inner, name)(*args, **kwargs)

    return call


METHODS = (name for name, member in vars(EventLogStorage).items() if callable(member))
MEMBERS = {name: _passed_on(name) for name in METHODS if not name.startswith("__")}
MEMBERS["is_persistent"] = property(lambda _: False)
HostedStorage: Any = type("HostedStorage", (EventLogStorage,), MEMBERS)


@dg.asset(freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1)))
def orders() -> None: ...


@dg.asset_check(asset=orders)
def rows() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, description="there are none")


REPOSITORY = dg.Definitions([orders], asset_checks=[rows]).get_repository_def()


@pytest.fixture
def hosted() -> Iterator[dg.DagsterInstance]:
    compatibility._logged.clear()
    events = HostedStorage()
    events.inner = InMemoryEventLogStorage()
    with memory_instance(events) as instance:
        events.inner.register_instance(instance)
        yield instance


def test_failed_check_stays_failed_while_it_is_evaluated(
    hosted: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor do assets past their freshness policies keep the alerts from being evaluated."""
    before = ReadBefore()

    def failed() -> list[str]:
        before.checks_at = -1e9
        seen = observe(hosted, REPOSITORY, AlertState(), before=before)
        assert [*seen.stale_assets] == []
        return [each.finding.what for each in seen.failed_checks]

    with caplog.at_level(logging.WARNING, compatibility.logger.name):
        dg.materialize([orders, rows], instance=hosted)
        assert failed() == ["there are none"]
        planned = dg.DagsterEvent(
            dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
            "checks",
            event_specific_data=AssetCheckEvaluationPlanned(asset_key=ORDERS, check_name="rows"),
        )
        untyped: Any = dg.EventLogEntry
        entry = untyped(None, 10, "", "other", time.time(), dagster_event=planned)
        hosted.event_log_storage.store_event(entry)
        assert last_evaluations(hosted, [ROWS]) == {}, "it is planned"
        assert [failed(), failed()] == [["there are none"]] * 2
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[2].partition(" (")[0] for line in lines] == [
        "no alert names assets past their freshness policies",
        "a check has no last result while it is evaluated",
    ]


def test_runs_and_their_logs_stay(
    hosted: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    dg.materialize([orders], instance=hosted)
    forget = retention_job({ORDERS}).execute_in_process(instance=hosted)
    assert forget.output_for_node("forget") == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert line.endswith("nothing is forgotten (it deletes runs and events by its own settings)")
