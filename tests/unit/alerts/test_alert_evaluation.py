"""Which faults exist, from observations alone: no Dagster is needed to decide it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from topicberg.alerts.alert import Alert, AlertState
from topicberg.alerts.evaluation import (
    HANGING_EVALUATIONS,
    MAX_PENDING,
    QUEUED_TOO_LONG,
    SILENT_EVALUATIONS,
    UNCHECKED_TICKS,
    evaluate,
)
from topicberg.alerts.observation import (
    HANGING_AFTER,
    SILENT_AFTER,
    ActiveRun,
    Automation,
    CheckRuns,
    EndedRun,
    FailedCheck,
    Observation,
    QueuedRuns,
    StaleAsset,
    StepError,
)
from topicberg.checks.finding import Finding
from topicberg.errors import TopicbergError, split_hint

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
RUNNING = CheckRuns("check_tables", "check_tables_schedule", True, False, NOW)
QUIET = Observation(at=NOW, check_runs=RUNNING, assets=frozenset({"iceberg/orders"}))


def faults(seen: Observation, state: AlertState | None = None) -> list[Alert]:
    return [*evaluate(state or AlertState(), seen, "http://ui/")[1].values()]


def text(error: TopicbergError) -> str:
    """As Dagster stores an error."""
    return f"topicberg.errors.{type(error).__name__}: {error}"


def run(*chain: str, kind: str = "shop") -> EndedRun:
    orders = frozenset({"iceberg/orders"})
    errors = (StepError(chain),) if chain else ()
    return EndedRun("r1", kind, not chain, False, NOW, orders, frozenset(), errors=errors)


def test_alert_of_a_check_has_its_finding_as_it_is() -> None:
    finding = Finding(
        passed=False,
        what="a|b *c* <d> [e](f)",
        remediation="run `topicberg sync orders` *now*",
        since=NOW - timedelta(hours=1),
        severity="warning",
        cause="iceberg/orders:tableflow",
    )
    failed = [FailedCheck("glue/orders", "pointer", finding)]
    (alert,) = faults(replace(QUIET, failed_checks=failed))
    assert alert.key == "check glue/orders:pointer"
    assert (alert.what, alert.remediation) == (finding.what, finding.remediation)
    assert (alert.since, alert.severity) == (finding.since, "warning")
    assert alert.cause == "check iceberg/orders:tableflow"
    assert alert.link == "http://ui/assets/glue/orders?view=checks&checkDetail=pointer"


def test_alert_of_a_run_quotes_the_innermost_own_error() -> None:
    inner = TopicbergError("the disk is full", hint="`free it`")
    chain = ("dagster.StepError: a step failed", text(inner), "java.io.IOException: 28")
    (alert,) = faults(replace(QUIET, runs=[run(*chain)]))
    assert (alert.key, alert.what, alert.remediation) == (
        "run shop",
        "the disk is full",
        "`free it`",
    )
    (alert,) = faults(replace(QUIET, runs=[run("a.B: one", "c.D: two")]))
    assert alert.what == "two"
    assert "re-execute it from failure" in (alert.remediation or "")


def test_failed_run_is_a_fault_until_a_run_did_its_work() -> None:
    state, now = evaluate(AlertState(), replace(QUIET, runs=[run("a.B: one")]), "http://ui")
    assert list(now) == ["run shop"]
    state = state.model_copy(update={"alerts": now})
    assert len(faults(QUIET, state)) == 1
    assert faults(replace(QUIET, runs=[run(kind="other")]), state) == []
    assert faults(replace(QUIET, assets=frozenset()), state) == []


def test_failed_run_is_resolved_by_a_materialization_without_a_run() -> None:
    """The sensor of the snapshots registers tables in its ticks."""
    state, now = evaluate(AlertState(), replace(QUIET, runs=[run("a.B: one")]), "http://ui")
    state = state.model_copy(update={"alerts": now})
    earlier, later = NOW - timedelta(minutes=1), NOW + timedelta(minutes=1)
    assert len(faults(replace(QUIET, materialized={"iceberg/orders": earlier}), state)) == 1
    assert faults(replace(QUIET, materialized={"iceberg/orders": later}), state) == []
    hour = replace(run("a.B: one"), partitions=(key := (("2026-01-01-00",) * 2,)), left=key)
    state, now = evaluate(AlertState(), replace(QUIET, runs=[hour]), "http://ui")
    state = state.model_copy(update={"alerts": now})
    seen = replace(QUIET, materialized={"iceberg/orders": later})
    assert len(faults(seen, state)) == 1, "it may be another partition"


def test_many_failed_runs_keep_a_bounded_state() -> None:
    days = [f"2026-01-{day:02}" for day in range(1, 29)]
    runs = [
        replace(run("a.B: one"), partitions=(key := ((f"{day}-{hour:02}",) * 2,)), left=key)
        for day in days
        for hour in range(24)
    ]
    state, now = evaluate(AlertState(), replace(QUIET, runs=runs), "http://ui")
    assert len(state.pending) == MAX_PENDING
    assert list(now) == ["run shop"]


@pytest.mark.parametrize("stopped", [False, True])
def test_checks_that_do_not_run_are_a_fault_in_time(stopped: bool) -> None:
    silent = replace(RUNNING, ended_at=NOW - timedelta(hours=1), stack_stopped=stopped)
    off = Automation(RUNNING.schedule, "schedule", running=False)
    seen, state = replace(QUIET, check_runs=silent, automations=[off]), AlertState()
    for _ in range(UNCHECKED_TICKS - 1):
        state, now = evaluate(state, seen, "http://ui")
        assert now == {}
    now = evaluate(state, seen, "http://ui")[1]
    assert list(now) == ([] if stopped else ["checks"])
    if not stopped:
        assert "check_tables_schedule is off" in now["checks"].what
        assert now["checks"].since == silent.ended_at


def test_stale_asset_is_a_fault_unless_a_check_explains_it() -> None:
    since = NOW - timedelta(hours=1)

    def reported(*checks: datetime | None) -> bool:
        stale = [StaleAsset("iceberg/orders", "error", since, checks)]
        return bool(faults(replace(QUIET, stale_assets=stale)))

    assert reported()
    assert reported(None)
    assert reported(since - timedelta(minutes=1))
    assert not reported(since + timedelta(minutes=1))


def test_queue_is_a_fault_when_its_oldest_run_waits() -> None:
    queued = QueuedRuns(7, "r9", "shop", NOW - QUEUED_TOO_LONG)
    (alert,) = faults(replace(QUIET, queued=queued))
    assert "runs in the queue: 7; the oldest, of shop" in alert.what
    assert "in progress: no run" in alert.what
    assert "slots of the pools" in (alert.remediation or "")
    holder = ActiveRun("0123456789", "bars", NOW - timedelta(hours=2))
    (alert,) = faults(replace(QUIET, queued=queued, active=[holder]))
    assert "in progress: bars since 2026-03-04 10:30" in alert.what
    assert "(run 01234567)" in alert.what
    assert "Terminate" in (alert.remediation or "")
    assert faults(replace(QUIET, queued=replace(queued, since=NOW))) == []


def test_run_whose_process_is_stopped_is_a_fault_until_it_continues() -> None:
    active = ActiveRun("0123456789", "bars", NOW, ("iceberg/bars",))
    assert faults(replace(QUIET, active=[active])) == []
    (alert,) = faults(replace(QUIET, active=[replace(active, frozen=77)]))
    assert (alert.key, alert.assets) == ("frozen 01234567", ("iceberg/bars",))
    assert "the process 77 of a run of bars is stopped by a signal" in alert.what
    assert "`kill -CONT 77`" in (alert.remediation or "")
    assert alert.link == "http://ui/runs/0123456789"


def test_tick_that_hangs_is_not_called_a_server_that_does_not_answer() -> None:
    hangs = "The sensor tick timed out due to taking longer than 60 seconds to execute the sensor"
    rpc = (
        "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n"
        '\tstatus = StatusCode.DEADLINE_EXCEEDED\n\tdetails = "Deadline Exceeded"\n>'
    )
    error = StepError((f"dagster.DagsterUserCodeUnreachableError: {hangs}", rpc))
    failing = Automation("engine", "sensor", True, failed_at=NOW, error=error)
    (alert,) = faults(replace(QUIET, automations=[failing]))
    assert alert.what == hangs


def test_server_of_the_code_that_was_killed_is_named_in_plain_words() -> None:
    text = (
        "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n"
        '\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "failed to connect to all addresses"\n'
        '\tdebug_error_string = "UNAVAILABLE:…"\n>'
    )
    error = StepError(("dagster.DagsterUserCodeUnreachableError: Could not reach", text))
    failing = Automation("engine", "sensor", True, failed_at=NOW, error=error)
    (alert,) = faults(replace(QUIET, automations=[failing]))
    assert alert.what == (
        "the server of the code location does not answer: failed to connect to all addresses"
    )
    assert "wait a minute" in (alert.remediation or "")


def test_tick_that_does_not_end_is_a_fault_before_dagster_ends_it() -> None:
    began = NOW - HANGING_AFTER - timedelta(seconds=1)
    sensor = Automation("snapshots", "sensor", True, ticked_at=began, in_progress=True)
    seen, state = replace(QUIET, automations=[sensor]), AlertState()
    for _ in range(HANGING_EVALUATIONS):
        state, now = evaluate(state, seen, "http://ui")
    (alert,) = now.values()
    assert (alert.key, alert.title) == ("tick snapshots", "a tick of sensor snapshots hangs")
    assert "has been in progress since 2026-03-04 12:29" in alert.what
    for other in (
        replace(sensor, in_progress=False),
        replace(sensor, running=False),
        replace(sensor, ticked_at=NOW - SILENT_AFTER),  # left behind by a killed daemon
    ):
        seen = replace(QUIET, automations=[other])
        ended, now = evaluate(state, seen, "http://ui")
        assert now == {}
        assert ended.hanging == {}


def test_failing_sensor_is_a_fault_with_its_hint() -> None:
    error = StepError((text(TopicbergError("no key", hint="`set it`")),))
    failing = Automation("orders_snapshots", "sensor", True, failed_at=NOW, error=error)
    (alert,) = faults(replace(QUIET, automations=[failing]))
    assert (alert.title, alert.what) == ("sensor orders_snapshots fails", "no key")
    assert alert.remediation == "`set it`"


def test_wrong_spec_is_a_fault_that_quotes_it() -> None:
    (alert,) = faults(replace(QUIET, spec_errors="orders.yaml: partitions"))
    assert "orders.yaml: partitions" in alert.what
    (alert,) = faults(replace(QUIET, spec_errors_at_load="orders.yaml: partitions"))
    assert "reload" in (alert.remediation or "")


@pytest.mark.parametrize("hint", [None, "`fix it`"])
def test_split_hint_is_the_inverse_of_the_text(hint: str | None) -> None:
    assert split_hint(str(TopicbergError("a: b", hint=hint))) == ("a: b", hint)


def test_sensor_that_a_user_turned_off_is_a_warning_at_once() -> None:
    """Nothing else reports what it does not do; one that the code leaves off is as it should be."""
    on = Automation("snapshots", "sensor", True, is_on_by_default=True, ticked_at=NOW)
    off, optional = replace(on, running=False), Automation("optional", "sensor", False)
    assert faults(replace(QUIET, automations=(on, optional))) == []
    (alert,) = faults(replace(QUIET, automations=(off, optional)))
    assert (alert.key, alert.severity, alert.since) == ("silent snapshots", "warning", NOW)
    assert alert.what == (
        "the sensor snapshots was turned off; its last tick was at 2026-03-04 12:30:00 UTC"
    )
    assert '`topicberg alerts silence "silent snapshots" --for 30d`' in (alert.remediation or "")


def test_schedule_of_the_checks_that_is_off_is_the_cause_of_no_checks() -> None:
    off = Automation("check_tables_schedule", "schedule", False, is_on_by_default=True)
    never = replace(RUNNING, ended_at=None)
    seen = replace(QUIET, check_runs=never, automations=(off,))
    causes = {alert.key: alert.cause for alert in faults(seen, AlertState(unchecked=1_000))}
    key = "silent check_tables_schedule"
    assert causes == {"checks": key, key: None}


def test_sensor_that_does_not_tick_is_a_fault_after_some_evaluations() -> None:
    """After the daemon was down, the first evaluation finds all of them so."""
    minute = timedelta(minutes=1)
    hangs = Automation("snapshots", "sensor", True, ticked_at=NOW, interval=minute / 2)
    rare = Automation("rare", "sensor", True, ticked_at=NOW, interval=10 * minute)
    off = Automation("off", "sensor", False, ticked_at=NOW, interval=minute)
    nightly = Automation("nightly", "schedule", True, ticked_at=NOW)
    state, found = AlertState(), list[list[str]]()
    for passed in range(1, SILENT_EVALUATIONS + 5):
        seen = Observation(
            at=NOW + passed * minute, check_runs=RUNNING, automations=(hangs, rare, off, nightly)
        )
        state, now = evaluate(AlertState.parse(state.model_dump_json()), seen, "http://ui")
        found.append(list(now))
    assert found == [[]] * (SILENT_EVALUATIONS + 2) + [["silent snapshots"]] * 2
    assert "2026" in now["silent snapshots"].what
    ticks = replace(hangs, ticked_at=seen.at)
    state, now = evaluate(state, replace(seen, automations=(ticks,)), "http://ui")
    assert now == {}
    assert state.silent == {}
