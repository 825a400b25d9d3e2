"""Alerts of a Dagster instance: each fault once, once that it is resolved, and no secret."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import dagster as dg
import psutil
import pytest
from clocks import Clock
from dagster._core.definitions.freshness import FreshnessState, FreshnessStateChange
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
    TickData,
    TickStatus,
)
from dagster_shared.error import SerializableErrorInfo
from memory_instance import memory_instance
from security.corpus import TEXTS
from waiting import wait_until

from topicberg.alerts.alert import (
    ActiveAlert,
    Alert,
    AlertState,
    Decisions,
    Notice,
    Outage,
    changes,
    silence,
)
from topicberg.alerts.channels import ALERTS_FILE, Channel, channels, deliver
from topicberg.alerts.evaluation import SILENT_EVALUATIONS, UNCHECKED_TICKS, evaluate
from topicberg.alerts.settings import AlertSettings
from topicberg.alerts.watch import fault
from topicberg.checks.finding import Finding
from topicberg.dagster.runs import PROCESS
from topicberg.endpoints import runtime_file
from topicberg.errors import TopicbergError
from topicberg.orchestration.assets.alerts import alerts_key
from topicberg.orchestration.assets.partitions import RANGE_END, RANGE_START
from topicberg.orchestration.assets.tables import COMPUTATION, KIND
from topicberg.orchestration.checks.adapter import result
from topicberg.orchestration.checks.evaluations import finding_of
from topicberg.orchestration.jobs.alerts import (
    NUMBERS_SECONDS,
    REST_SECONDS,
    _digest,
    _is_news,
    alert_sensor,
)
from topicberg.orchestration.jobs.observation import REREAD_SECONDS, ReadBefore, observe
from topicberg.orchestration.jobs.table_jobs import CHECK, check_schedule
from topicberg.orchestration.jobs.watches import ATTEMPT
from topicberg.orchestration.resources import RESOURCES
from topicberg.settings import Settings, settings
from topicberg.tableflow.service.status import TopicStatus, note_observation, write_status
from topicberg.topics import TopicSpec, load_topic
from topicberg.topics.kept import SpecsInUse

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


ORDERS, INVOICES = dg.AssetKey(["iceberg", "orders"]), dg.AssetKey(["iceberg", "invoices"])
HOURS = dg.HourlyPartitionsDefinition("2026-01-01-00:00")
SECRET = "never-in-an-alert"  # part of the address of a channel

ERROR = SerializableErrorInfo("topicberg.errors.TopicbergError: no\n  → `fix it`", [], None)
ORIGIN = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("topicberg"), "__repository__")

AWAY = fault("iceberg_rest", "frozen", datetime.now(UTC), "end it")

verdicts: dict[str, Finding] = {}
broken: set[str] = set()


@dg.asset(key=ORDERS, group_name="shop", partitions_def=HOURS)
def orders() -> None:
    if "away" in broken:
        raise TopicbergError("Iceberg's catalog does not answer: refused")
    if "orders" in broken:
        try:
            raise RuntimeError("org.example.DiskException: 28 at java.base/Thread.run")
        except RuntimeError as error:
            raise TopicbergError("the disk is full", hint="`free it`") from error


@dg.asset(key=INVOICES, group_name="shop", partitions_def=HOURS)
def invoices() -> None:
    if "invoices" in broken:
        raise TopicbergError("the bucket is gone")


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec("tableflow", asset=ORDERS),
        dg.AssetCheckSpec("kafka_lag", asset=ORDERS),
        dg.AssetCheckSpec("blocks", asset=ORDERS, blocking=True),
    ]
)
def checks() -> Iterator[dg.AssetCheckResult]:
    for name in ("tableflow", "kafka_lag", "blocks"):
        yield result(ORDERS, name, verdicts.get(name, Finding(passed=True, what="fine")), None)


JOB = dg.define_asset_job("shop", selection=dg.AssetSelection.all())
DEFS = dg.Definitions(
    assets=[orders, invoices], asset_checks=[checks], jobs=[JOB], sensors=[alert_sensor()],
    executor=dg.in_process_executor,
)  # fmt: skip


CHECKED, UNCHECKED = dg.AssetKey(["iceberg", "totals"]), dg.AssetKey("report")
POLICY = dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=30))


@dg.asset(key=CHECKED, freshness_policy=POLICY)
def totals() -> None: ...


@dg.asset(key=UNCHECKED, freshness_policy=POLICY)
def report() -> None: ...


@dg.asset_check(asset=CHECKED)
def up_to_date() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)


LATE = dg.Definitions(assets=[totals, report], asset_checks=[up_to_date])
WATCHED = dg.Definitions(
    assets=[totals, report], asset_checks=[up_to_date],
    jobs=[dg.define_asset_job(CHECK, selection=dg.AssetSelection.checks(up_to_date))],
    schedules=[check_schedule()], resources=RESOURCES, executor=dg.in_process_executor,
)  # fmt: skip


class Desk:
    """Runs the job and ticks the sensor; ``notices``: what the file has."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.cursor: str | None = None
        self._seen = 0
        self.tick()

    def run(self, partitions: tuple[str, str] | None = None) -> None:
        DEFS.resolve_job_def("shop").execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            tags=dict(zip((RANGE_START, RANGE_END), partitions, strict=True)) if partitions else {},
        )

    def materialize(self, *keys: dg.AssetKey) -> None:
        """By hand, as in the UI."""
        DEFS.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance, raise_on_error=False, asset_selection=[*keys]
        )

    def tick(self) -> list[tuple[str, str]]:
        """State and key of the notices of this tick."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, repository_def=DEFS.get_repository_def()
        )
        tick = DEFS.get_repository_def().get_sensor_def("alerts").evaluate_tick(context)
        self.cursor = tick.cursor or self.cursor
        fresh = self.notices()[self._seen :]
        self._seen += len(fresh)
        return [(notice.state, notice.alert.key) for notice in fresh]

    def ticked(self, kind: InstigatorType, name: str, status: TickStatus, **more: Any) -> None:
        """As the daemon notes the tick of a sensor or schedule that is on."""
        cron = ScheduleInstigatorData("*/5 * * * *") if kind == InstigatorType.SCHEDULE else None
        state = InstigatorState(
            RemoteInstigatorOrigin(ORIGIN, name), kind, InstigatorStatus.DECLARED_IN_CODE, cron
        )
        origin, now = state.instigator_origin_id, time.time()
        if self.instance.get_instigator_state(origin, state.selector_id) is None:
            self.instance.add_instigator_state(state)
        tick = TickData(origin, name, kind, status, now, selector_id=state.selector_id, **more)
        self.instance.create_tick(tick)

    def notices(self) -> list[Notice]:
        file = settings().state_dir / ALERTS_FILE
        lines = file.read_text().splitlines() if file.exists() else []
        return [Notice.model_validate_json(line) for line in lines]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    verdicts.clear()
    broken.clear()
    with monkeypatch.context() as patch, memory_instance() as instance:
        patch.setenv("TOPICBERG_STATE_DIR", str(tmp_path))
        settings.cache_clear()
        yield Desk(instance)
    settings.cache_clear()


def bad(what: str, **more: Any) -> Finding:
    return Finding(passed=False, what=what, **more)


def test_fault_is_sent_once_and_once_when_resolved(desk: Desk) -> None:
    since = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    verdicts["tableflow"] = bad("it is suspended", remediation="`fix it`", since=since)
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:tableflow")]
    reported = desk.notices()[-1]
    assert reported.alert.what == "it is suspended"
    assert (reported.alert.remediation, reported.alert.since) == ("`fix it`", since)
    assert reported.alert.link.endswith("/assets/iceberg/orders?view=checks&checkDetail=tableflow")
    assert "`fix it`" in reported.text
    assert "2026-01-02 03:04:05 UTC" in reported.text
    desk.run()
    assert desk.tick() == []
    verdicts.clear()
    desk.run()
    assert desk.tick() == [("resolved", "check iceberg/orders:tableflow")]
    assert desk.tick() == []


def test_consequence_is_sent_when_its_cause_is_resolved(desk: Desk) -> None:
    verdicts["tableflow"] = bad("it is suspended")
    verdicts["kafka_lag"] = bad("it is late", cause="iceberg/orders:tableflow", severity="warning")
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:tableflow")]
    verdicts["tableflow"] = Finding(passed=True, what="fine")
    desk.run()
    assert desk.tick() == [
        ("resolved", "check iceberg/orders:tableflow"),
        ("firing", "check iceberg/orders:kafka_lag"),
    ]


def test_run_that_keeps_failing_is_one_fault(desk: Desk) -> None:
    broken.add("orders")
    desk.run()
    desk.run()
    assert desk.tick() == [("firing", "run shop")]
    reported = desk.notices()[-1].alert
    assert (reported.what, reported.remediation) == ("the disk is full", "`free it`")
    assert "/runs/" in reported.link
    desk.run()
    assert desk.tick() == []
    broken.clear()
    desk.run()
    assert desk.tick() == [("resolved", "run shop")]


def test_run_that_fails_is_sent_though_another_ended_in_the_future(desk: Desk) -> None:
    """The clock was ahead, and is right again."""
    later = AlertState.parse(desk.cursor).model_copy(update={"runs_until": time.time() + 86_400})
    desk.cursor = later.model_dump_json()
    assert desk.tick() == []
    broken.add("orders")
    desk.run()
    assert desk.tick() == [("firing", "run shop")]


def test_failed_run_is_resolved_by_one_of_its_partitions(desk: Desk) -> None:
    """A sensor asks for several runs of one kind at once: one that succeeds mends no other."""
    early, late = ("2026-01-01-00:00", "2026-01-01-05:00"), ("2026-01-02-00:00", "2026-01-02-01:00")
    broken.add("orders")
    desk.run(early)
    broken.clear()
    desk.run(late)
    assert desk.tick() == [("firing", "run shop")]
    desk.run(late)
    desk.run(("2026-01-01-01:00", "2026-01-01-05:00"))  # of six partitions, the first is missing
    assert desk.tick() == []
    broken.add("orders")
    desk.run(early)
    desk.run(("2026-01-01-00:00", "2026-01-01-06:00"))  # tried again, with what came meanwhile
    assert desk.tick() == []
    assert len(AlertState.parse(desk.cursor).pending) == 1
    broken.clear()
    desk.run((early[0], late[1]))
    assert desk.tick() == [("resolved", "run shop")]


def test_failed_run_of_before_the_first_partition_is_resolved_by_that(desk: Desk) -> None:
    """The partitions began earlier when it failed."""
    broken.add("orders")
    desk.run(("2025-12-31-03:00", "2025-12-31-04:00"))
    assert desk.tick() == [("firing", "run shop")]
    broken.clear()
    desk.run(("2026-01-01-01:00", "2026-01-01-02:00"))
    assert desk.tick() == []
    desk.run(("2026-01-01-00:00", "2026-01-01-00:00"))
    assert desk.tick() == [("resolved", "run shop")]


def test_failed_run_is_resolved_by_runs_of_its_assets(desk: Desk) -> None:
    by_hand = "run iceberg/invoices, iceberg/orders"
    broken.update(("orders", "invoices"))
    desk.materialize(ORDERS, INVOICES)
    assert desk.tick() == [("firing", by_hand)]
    broken.discard("orders")
    desk.materialize(ORDERS, INVOICES)  # from failure: a run that fails as well makes some of it
    assert desk.tick() == []
    broken.clear()
    desk.materialize(INVOICES)
    assert desk.tick() == [("resolved", by_hand)]
    broken.add("orders")
    desk.materialize(ORDERS)
    assert desk.tick() == [("firing", "run iceberg/orders")]
    broken.clear()
    desk.run()  # the job of the whole group
    assert desk.tick() == [("resolved", "run iceberg/orders")]
    broken.add("orders")
    desk.run()  # which keeps what it materialized
    broken.clear()
    assert desk.tick() == [("firing", "run shop")]
    desk.materialize(ORDERS)
    assert desk.tick() == [("resolved", "run shop")]


def test_run_that_fails_again_once_resolved_has_its_link(desk: Desk) -> None:
    """Both may end between two ticks."""
    broken.add("orders")
    desk.materialize(ORDERS)
    assert desk.tick() == [("firing", "run iceberg/orders")]
    before = desk.notices()[-1].alert
    broken.clear()
    desk.run()
    broken.add("orders")
    desk.materialize(ORDERS)
    assert desk.tick() == [("firing", "run iceberg/orders")]
    after = desk.notices()[-1].alert
    assert after.link != before.link
    assert after.since > before.since


def test_run_stopped_by_a_blocking_check_is_its_alert(desk: Desk) -> None:
    verdicts["blocks"] = bad("the rows are wrong")
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:blocks")]


def test_result_of_a_lasting_fault_keeps_its_since(desk: Desk) -> None:
    first = result(ORDERS, "tableflow", bad("broken"), None)
    before = dg.AssetCheckEvaluation(
        asset_key=ORDERS, check_name="tableflow", passed=False, metadata=first.metadata
    )
    again = result(ORDERS, "tableflow", bad("broken"), finding_of(before))
    assert again.metadata["since"] == first.metadata["since"]
    assert "Since 20" in (first.description or "")
    assert again.description == first.description


def test_queued_runs_that_do_not_start_are_a_fault(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = desk.instance.create_run_for_job(
        DEFS.resolve_job_def("shop"),
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=RemoteJobOrigin(ORIGIN, "shop"),
    )
    assert desk.tick() == []
    monkeypatch.setattr("topicberg.alerts.evaluation.QUEUED_TOO_LONG", timedelta(0))
    assert desk.tick() == [("firing", "queue")]
    assert "runs in the queue: 1; the oldest, of shop" in desk.notices()[-1].text
    assert run.run_id in desk.notices()[-1].alert.link
    desk.instance.report_run_canceled(run)
    assert desk.tick() == [("resolved", "queue")]


@pytest.fixture
def sleeping() -> Iterator[psutil.Popen]:
    process = psutil.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def run_of(desk: Desk, process: psutil.Popen, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    began = psutil.Process(process.pid).create_time()
    return desk.instance.create_run_for_job(
        DEFS.resolve_job_def("shop"),
        status=status,
        tags={PROCESS: f"{process.pid}:{began}"},
        remote_job_origin=RemoteJobOrigin(ORIGIN, "shop"),
    )


def test_run_that_is_stopped_by_a_signal_is_a_fault(desk: Desk, sleeping: psutil.Popen) -> None:
    key = f"frozen {run_of(desk, sleeping, dg.DagsterRunStatus.STARTED).run_id[:8]}"
    assert desk.tick() == []
    sleeping.suspend()
    wait_until(lambda: sleeping.status() == psutil.STATUS_STOPPED, 10)
    assert desk.tick() == [("firing", key)]
    assert f"`kill -CONT {sleeping.pid}`" in (desk.notices()[-1].alert.remediation or "")
    sleeping.resume()
    wait_until(lambda: sleeping.status() != psutil.STATUS_STOPPED, 10)
    assert desk.tick() == [("resolved", key)]


def test_run_whose_code_never_loads_is_a_fault(
    desk: Desk, sleeping: psutil.Popen, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(desk, sleeping, dg.DagsterRunStatus.STARTING)
    assert desk.tick() == []
    monkeypatch.setattr("topicberg.dagster.runs.BEGIN_SECONDS", 0.0)
    key = f"loading {run.run_id[:8]}"
    assert desk.tick() == [("firing", key)]
    assert f"the process {sleeping.pid} of a run of shop" in desk.notices()[-1].text
    desk.instance.report_run_failed(run)
    assert ("resolved", key) in desk.tick()


def test_failing_sensor_is_a_fault_while_it_exists(desk: Desk) -> None:
    """Dagster remembers the last tick of a sensor whose topic is gone, and shows no page of it."""
    desk.ticked(InstigatorType.SENSOR, "alerts", TickStatus.FAILURE, error=ERROR)
    desk.ticked(InstigatorType.SENSOR, "gone_snapshots", TickStatus.FAILURE, error=ERROR)
    assert desk.tick() == [("firing", "tick alerts")]
    assert desk.notices()[-1].alert.remediation == "`fix it`"
    desk.ticked(InstigatorType.SENSOR, "alerts", TickStatus.SKIPPED)
    assert desk.tick() == [("resolved", "tick alerts")]


def test_sensor_that_stopped_ticking_is_a_fault(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last tick hangs, as its code location was stopped by a signal, for instance."""
    Clock(monkeypatch, time.time() - 600, of=["time"])
    desk.ticked(InstigatorType.SENSOR, "alerts", TickStatus.STARTED)
    monkeypatch.undo()
    monkeypatch.setenv("TOPICBERG_STATE_DIR", str(settings().state_dir))
    ticks = [desk.tick() for _ in range(SILENT_EVALUATIONS)]
    assert ticks == [[]] * (SILENT_EVALUATIONS - 1) + [[("firing", "silent alerts")]]
    desk.ticked(InstigatorType.SENSOR, "alerts", TickStatus.SKIPPED, skip_reason="none")
    assert desk.tick() == [("resolved", "silent alerts")]


@pytest.mark.parametrize("attempt", [None, "0", "1"])
def test_run_whose_process_was_killed_says_so(desk: Desk, attempt: str | None) -> None:
    """The sensor that requested it requests it again, so that the first time is not reported."""
    run = desk.instance.create_run_for_job(
        DEFS.resolve_job_def("shop"),
        status=dg.DagsterRunStatus.STARTED,
        remote_job_origin=RemoteJobOrigin(ORIGIN, "shop"),
        tags={KIND: COMPUTATION, ATTEMPT: attempt} if attempt else {},
    )
    desk.instance.report_run_failed(run, "The process was terminated by signal 9 (SIGKILL).")
    assert desk.tick() == ([] if attempt == "0" else [("firing", "run shop")])
    if attempt != "0":
        what = desk.notices()[-1].alert.what
        assert what == "The process was terminated by signal 9 (SIGKILL)."


def test_failed_run_is_resolved_when_a_sensor_has_done_its_work(desk: Desk) -> None:
    broken.add("orders")
    desk.run()
    assert desk.tick() == [("firing", "run shop")]
    desk.instance.report_runless_asset_event(dg.AssetMaterialization(ORDERS))
    assert desk.tick() == [("resolved", "run shop")]


def faults(
    desk: Desk, defs: dg.Definitions, state: AlertState
) -> tuple[AlertState, dict[str, Alert]]:
    return evaluate(state, observe(desk.instance, defs.get_repository_def(), state), "http://ui")


def late(desk: Desk, key: dg.AssetKey, since: datetime) -> None:
    change = FreshnessStateChange(
        key=key,
        new_state=FreshnessState.FAIL,
        previous_state=FreshnessState.PASS,
        state_change_timestamp=since.timestamp(),
    )
    desk.instance._report_runless_asset_event(change)


def test_stale_table_is_reported_by_check_else_by_policy(desk: Desk) -> None:
    """A table whose check was evaluated is not reported twice, nor one whose source is late."""

    def reported(since: datetime) -> list[str]:
        late(desk, CHECKED, since)
        late(desk, UNCHECKED, since)
        return sorted(faults(desk, LATE, AlertState())[1])

    now = datetime.now(UTC)
    checked, unchecked = (f"freshness {key.to_user_string()}" for key in (CHECKED, UNCHECKED))
    assert reported(now) == [unchecked]  # the next evaluation of the check says why
    assert reported(now - timedelta(hours=1)) == [checked, unchecked]  # its check was not evaluated
    desk.instance.report_runless_asset_event(dg.AssetCheckEvaluation(CHECKED, "up_to_date", True))
    assert reported(now - timedelta(hours=1)) == [unchecked]  # nothing came to compute it with
    desk.instance.report_runless_asset_event(dg.AssetCheckEvaluation(CHECKED, "up_to_date", False))
    assert reported(now - timedelta(hours=1)) == ["check iceberg/totals:up_to_date", unchecked]


# --- checks that do not run ---


class Watch:
    """Looks at an instance whose checks have a schedule."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.reported = AlertState()
        runtime_file(settings()).touch()

    def faults(self, ticks: int = 1) -> dict[str, Alert]:
        """After so many ticks."""
        now: dict[str, Alert] = {}
        for _ in range(ticks):
            self.reported, now = faults(
                self.desk, WATCHED, AlertState.parse(self.reported.model_dump_json())
            )
        return now

    def check(self) -> None:
        WATCHED.resolve_job_def(CHECK).execute_in_process(instance=self.desk.instance)

    def skipped(self, reason: str) -> None:
        self.desk.ticked(
            InstigatorType.SCHEDULE, f"{CHECK}_schedule", TickStatus.SKIPPED, skip_reason=reason
        )


@pytest.fixture
def watch(desk: Desk) -> Watch:
    return Watch(desk)


def test_checks_that_do_not_run_quote_the_skip_reason(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.skipped("Secrets Manager refuses the credentials: they are expired\n  → `aws sso login`")
    assert watch.faults(UNCHECKED_TICKS - 1) == {}  # the daemon has just begun
    fault = watch.faults()["checks"]
    assert "Secrets Manager refuses the credentials: they are expired" in fault.what
    assert fault.remediation == "`aws sso login`"
    watch.check()
    assert watch.faults() == {}
    monkeypatch.setattr("topicberg.alerts.observation.CHECKED_WITHIN", timedelta(0))
    monkeypatch.setattr("topicberg.alerts.observation.CHECKS_REST", 0)
    assert watch.faults(UNCHECKED_TICKS - 1) == {}
    assert list(watch.faults()) == ["checks"]


def test_stopped_local_stack_is_not_a_fault(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    late(watch.desk, CHECKED, datetime.now(UTC) - timedelta(hours=1))
    runtime_file(settings()).unlink()
    assert watch.faults(2 * UNCHECKED_TICKS) == {}
    monkeypatch.setenv("TOPICBERG_DEPLOYMENT", "cloud")
    settings.cache_clear()
    assert list(watch.faults(UNCHECKED_TICKS)) == ["checks"]


def test_consequences_of_checks_not_running_are_not_sent(watch: Watch) -> None:
    late(watch.desk, CHECKED, datetime.now(UTC) - timedelta(hours=1))
    assert list(watch.faults(UNCHECKED_TICKS)) == ["checks"]
    schedule = f"{CHECK}_schedule"
    watch.desk.ticked(InstigatorType.SCHEDULE, schedule, TickStatus.FAILURE, error=ERROR)
    now = watch.faults()
    assert list(now) == ["checks", f"tick {schedule}"]
    notices = changes(AlertState(), now, Decisions(), datetime.now(UTC))
    assert [notice.alert.key for notice in notices] == [f"tick {schedule}"]


def test_checks_are_read_again_after_a_run_or_a_minute(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, before, state = Mock(return_value={}), ReadBefore(), AlertState(runs_until=time.time())
    monkeypatch.setattr("topicberg.orchestration.jobs.observation.last_evaluations", read)

    def look() -> int:
        observe(desk.instance, DEFS.get_repository_def(), state, before=before)
        return read.call_count

    assert [look(), look()] == [1, 1]
    before.checks_at -= REREAD_SECONDS
    assert [look(), look()] == [2, 2]
    desk.run()
    assert look() == 3


# --- what the engine reports now ---


def use_specs(patch: pytest.MonkeyPatch, *specs: TopicSpec) -> None:
    """Let these be the topics of the project."""
    patch.setattr(SpecsInUse, "read", lambda *_: ([*specs], None))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write the status of a topic, as the engine does; ``returns`` has no asset yet."""
    spec = load_topic("stock_trades")
    specs = [spec.model_copy(update={"name": name}) for name in ("orders", "returns")]
    use_specs(monkeypatch, *specs)

    def write(
        error: str | None = None, seconds: float = 0.0, *, topic: str = "orders", **fields: Any
    ) -> None:
        since = int((time.time() - seconds) * 1000) if error else None
        phase: Any = "PENDING" if error else "RUNNING"
        status = TopicStatus(
            topic=topic, phase=phase, error_message=error, failing_since_ms=since, **fields
        )
        write_status(settings(), status)

    return write


def test_failure_of_the_engine_is_sent_without_a_run_of_the_checks(
    desk: Desk, engine: Callable[..., None]
) -> None:
    key = "check iceberg/orders:tableflow"
    engine()
    assert desk.tick() == []
    engine("the store refuses\n  → `fix it`", seconds=5)
    assert desk.tick() == [], "a retry may resolve it"
    engine("the store refuses\n  → `fix it`", seconds=25)
    assert desk.tick() == [("firing", key)]
    alert = desk.notices()[-1].alert
    assert alert.what == "Tableflow keeps failing and retries: the store refuses"
    assert alert.remediation == "`fix it`"
    engine()
    assert desk.tick() == [("resolved", key)]


def test_topic_that_suspends_before_the_code_location_is_reloaded_has_an_alert(
    desk: Desk, engine: Callable[..., None]
) -> None:
    engine()
    engine("a record is malformed\n  → `fix it`", topic="returns", suspended=True)
    assert desk.tick() == [("firing", "check iceberg/returns:tableflow")]
    assert desk.notices()[-1].alert.what == "Tableflow is suspended: a record is malformed"
    engine(topic="returns")
    assert desk.tick() == [("resolved", "check iceberg/returns:tableflow")]


def test_outage_that_the_watch_has_sent_is_sent_by_no_topic(
    desk: Desk, engine: Callable[..., None]
) -> None:
    path = settings().state_dir / "watch.json"
    runtime_file(settings()).write_text("{}")
    path.write_text(AlertState(alerts={AWAY.key: AWAY}).model_dump_json())
    for topic in ("orders", "returns"):
        engine("Iceberg's catalog does not answer: refused", seconds=25, topic=topic)
    assert desk.tick() == []
    path.unlink()
    assert desk.tick() == [], "the engine tries again in seconds"


@pytest.mark.parametrize("is_known", [True, False])
def test_outage_between_two_evaluations_is_the_cause_of_a_run_that_failed_in_it(
    desk: Desk, is_known: bool
) -> None:
    """Only the watch has seen it."""
    outages = {AWAY.key: Outage(alert=AWAY, seen_at=datetime.now(UTC))} if is_known else {}
    runtime_file(settings()).write_text("{}")
    (settings().state_dir / "watch.json").write_text(AlertState(outages=outages).model_dump_json())
    broken.add("away")
    desk.run()
    assert desk.tick() == ([] if is_known else [("firing", AWAY.key)])
    broken.clear()
    desk.run()
    assert desk.tick() == ([] if is_known else [("resolved", AWAY.key)])


def test_full_disk_that_the_watch_cannot_write_is_the_cause_of_what_follows(
    desk: Desk, engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime_file(settings()).write_text("{}")
    engine("database or disk is full", seconds=25)
    disk = SimpleNamespace(f_bavail=0, f_frsize=4096, f_files=9, f_favail=9)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    assert desk.tick() == []
    disk.f_bavail = 10**6
    assert desk.tick() == [], "the engine tries again in seconds"


def test_failure_of_the_engine_that_passed_is_not_what_the_checks_have_stored(
    desk: Desk, engine: Callable[..., None]
) -> None:
    """What followed from it is sent only if the next run of the checks still finds it."""
    verdicts["tableflow"] = Finding("the store refuses", "`fix it`")
    verdicts["kafka_lag"] = Finding("far behind", "`wait`", cause="iceberg/orders:tableflow")
    desk.run()
    engine()
    assert desk.tick() == []
    verdicts.pop("tableflow")
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:kafka_lag")]


def test_lag_is_sent_before_the_checks_run_and_resolved_by_the_status(
    desk: Desk, engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "check iceberg/orders:kafka_lag"
    spec = load_topic("stock_trades").model_copy(update={"name": "orders"})
    limits = spec.checks.model_copy(update={"max_lag_records": 10})
    spec = spec.model_copy(update={"checks": limits, "freshness": None})
    use_specs(monkeypatch, spec)
    now = int(time.time() * 1000)
    status = TopicStatus(topic="orders", phase="RUNNING", committed_at_ms=now, lag={0: 30, 1: 2})
    write_status(settings(), status)
    assert desk.tick() == [], "no engine is known to keep the statuses up to date"
    note_observation(settings())
    assert [desk.tick(), desk.tick()] == [[], [("firing", key)]], "the next commit may resolve it"
    assert "the table is 32 records behind Kafka; 10 are allowed" in desk.notices()[-1].alert.what
    write_status(settings(), status.model_copy(update={"lag": {0: 3}}))
    assert desk.tick() == [("resolved", key)]
    verdicts["kafka_lag"] = Finding("far behind", "`wait`")
    desk.run()
    os.utime(observed := settings().state_dir / "tableflow" / "observed", (1e9, 1e9))
    assert desk.tick() == [("firing", key)], "as the checks have stored it"
    os.utime(observed, (time.time() + 5, time.time() + 5))
    assert desk.tick() == [("resolved", key)]


def test_topic_of_which_no_engine_here_reports_has_its_stored_result(
    desk: Desk, engine: Callable[..., None]
) -> None:
    verdicts["tableflow"] = Finding("suspended", "`resume it`")
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:tableflow")]


def test_sensor_that_is_turned_off_is_sent_and_resolved(desk: Desk) -> None:
    desk.ticked(InstigatorType.SENSOR, "alerts", TickStatus.SKIPPED)
    (state,) = desk.instance.all_instigator_state()
    desk.instance.update_instigator_state(state.with_status(InstigatorStatus.STOPPED))
    assert desk.tick() == [("firing", "silent alerts")]
    desk.instance.update_instigator_state(state)
    assert desk.tick() == [("resolved", "silent alerts")]


def test_evaluation_that_took_long_is_followed_by_one_in_a_minute(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topicberg.orchestration.jobs.alerts.LONG_SECONDS", 0.0)
    verdicts["blocks"] = Finding("wrong", "`fix it`")
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:blocks")]
    verdicts.clear()
    desk.run()
    assert desk.tick() == []
    Clock(monkeypatch, time.time() + REST_SECONDS + 1, of=["time"])
    assert desk.tick() == [("resolved", "check iceberg/orders:blocks")]


# --- the list ---


def test_list_of_alerts_is_reported_when_it_changes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = dg.Definitions(
        assets=[orders, invoices, dg.AssetSpec(alerts_key(settings()))],
        asset_checks=[checks],
        sensors=[alert_sensor()],
    ).get_repository_def()
    cursor: str | None = None

    def tick() -> list[Any]:
        nonlocal cursor
        context = dg.build_sensor_context(
            instance=desk.instance, cursor=cursor, repository_def=listed
        )
        data = listed.get_sensor_def("alerts").evaluate_tick(context)
        cursor = data.cursor
        return [event.metadata for event in data.asset_events]

    (none,) = tick()
    assert none["alerts"].value == "No active alerts."
    assert tick() == []
    verdicts["tableflow"] = bad("suspended", remediation="`resume it`")
    desk.run()
    (event,) = tick()
    assert event["active_alerts"].value == event["errors"].value == 1
    assert "suspended" in event["alerts"].value
    assert tick() == []
    silence(settings(), "orders", "a deploy", timedelta(hours=1))
    (silenced,) = tick()
    assert "silenced by" in silenced["alerts"].value


def test_list_of_alerts_has_current_numbers_after_minutes() -> None:
    def digest(what: str, seconds: float, key: str = "specs") -> str:
        alert = fault(key, what, NOON, "fix it")
        return _digest([ActiveAlert(alert, "active")], NOON.timestamp() + seconds)

    first = digest("5 records", 0)
    assert not _is_news(first, digest("6 records", 15))
    assert _is_news(first, digest("6 records", NUMBERS_SECONDS))
    assert not _is_news(first, digest("5 records", NUMBERS_SECONDS))
    assert _is_news(first, digest("5 records", 15, key="queue"))


# --- channels ---


class Hook(ThreadingHTTPServer):
    """A webhook that answers with ``status`` and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        self.most = 100_000
        """Characters that it takes at most."""
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = 400 if len(body) > hook.most else hook.status
                if status == 200:
                    hook.got.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/services/{SECRET}"


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


FAULT = Alert(
    key="k", title="t", what="w", severity="error", since=datetime.now(UTC), link="http://ui/"
)


def test_channel_that_was_down_gets_the_notice_later(tmp_path: Path, hook: Hook) -> None:
    config = Settings(state_dir=tmp_path)
    chosen = AlertSettings(webhook_url=hook.url, slack_url=hook.url)
    hook.status = 503
    reported, problems = deliver(AlertState(), {"k": FAULT}, channels(config, chosen))
    assert len(problems) == 2
    assert SECRET not in "".join(problems)
    reported = AlertState.parse(reported.model_dump_json())  # as the sensor keeps it
    assert SECRET not in reported.model_dump_json()
    hook.status = 200
    reported, problems = deliver(reported, {"k": FAULT}, channels(config, chosen))
    assert not problems
    webhook, slack = sorted(hook.got, key=lambda body: "state" not in body)
    assert webhook["state"] == "firing"
    assert "t" in slack["text"]
    assert len((tmp_path / ALERTS_FILE).read_text().splitlines()) == 1
    reported, _ = deliver(reported, {"k": FAULT}, channels(config, chosen))
    assert len(hook.got) == 2


@pytest.mark.parametrize("what", TEXTS)
def test_slack_message_of_any_fault_only_links_to_the_ui(
    what: str, tmp_path: Path, hook: Hook
) -> None:
    chosen = AlertSettings(slack_url=hook.url)
    fault = FAULT.model_copy(update={"what": what, "title": what, "remediation": what})
    deliver(AlertState(), {"k": fault}, channels(Settings(state_dir=tmp_path), chosen))
    (body,) = hook.got
    (block,) = body["blocks"]
    assert block["text"]["verbatim"]
    for text in (body["text"], block["text"]["text"]):
        assert re.findall("<.*?>", text) == ["<http://ui/>"]


def test_notice_that_is_refused_holds_back_no_other(tmp_path: Path, hook: Hook) -> None:
    config, chosen = Settings(state_dir=tmp_path), AlertSettings(webhook_url=hook.url)
    hook.most = 1000
    long = FAULT.model_copy(update={"key": "long", "title": "long", "what": "w" * 1000})
    faults = {"long": long, "k": FAULT}
    reported, (problem,) = deliver(AlertState(), faults, channels(config, chosen))
    assert [body["alert"]["key"] for body in hook.got] == ["k"]
    assert "ERROR: long: HTTP status 400" in problem
    assert deliver(reported, faults, channels(config, chosen)) == (reported, [])


def test_file_that_cannot_be_written_stops_no_channel(tmp_path: Path, hook: Hook) -> None:
    """The disk is full: the very fault that has to be reported."""
    config, chosen = Settings(state_dir=tmp_path), AlertSettings(webhook_url=hook.url)
    (tmp_path / ALERTS_FILE).mkdir()  # not even root can append to it
    reported, (problem,) = deliver(AlertState(), {"k": FAULT}, channels(config, chosen))
    assert [body["state"] for body in hook.got] == ["firing"]
    assert str(tmp_path / ALERTS_FILE) in problem
    (tmp_path / ALERTS_FILE).rmdir()
    reported, problems = deliver(reported, {"k": FAULT}, channels(config, chosen))
    assert not problems
    assert len((tmp_path / ALERTS_FILE).read_text().splitlines()) == len(hook.got) == 1
    assert not reported.undelivered


def test_channel_with_any_exception_stops_no_other(tmp_path: Path, hook: Hook) -> None:
    def fail(notice: Notice) -> None:
        raise ValueError(SECRET)

    config, chosen = Settings(state_dir=tmp_path), AlertSettings(webhook_url=hook.url)
    ways = [Channel("broken", fail), *channels(config, chosen)]
    reported, (problem,) = deliver(AlertState(), {"k": FAULT}, ways)
    assert [body["state"] for body in hook.got] == ["firing"]
    assert [name for name, _ in reported.undelivered] == ["broken"]
    assert "broken" in problem
    assert "ValueError" in problem
    assert SECRET not in problem


def test_slow_channels_get_each_notice_once_and_delay_neither_the_file_nor_the_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster ends a tick after a minute, and the next one would send the same again."""
    monkeypatch.setattr(import_module("topicberg.alerts.channels"), "BEGIN_SECONDS", 0.5)
    faults = {key: FAULT.model_copy(update={"key": key}) for key in "abcde"}
    got, state, ticks = list[tuple[str, str]](), AlertState(), 0

    def send(name: str, notice: Notice) -> None:
        time.sleep(0.3)
        got.append((name, notice.alert.key))

    while not ticks or state.undelivered:
        began, ticks = time.monotonic(), ticks + 1
        slow = [Channel(name, partial(send, name)) for name in ("x", "y")]
        ways = [*channels(Settings(state_dir=tmp_path), AlertSettings()), *slow]
        state, _ = deliver(state, faults, ways)
        assert time.monotonic() - began < 1.4, "five take 1.5 s"
        assert len((tmp_path / ALERTS_FILE).read_text().splitlines()) == 5
    assert sorted(got) == [(name, key) for name in ("x", "y") for key in faults]
    assert ticks > 1


def test_channel_that_hangs_is_sent_a_notice_again_once_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = import_module("topicberg.alerts.channels")
    for name in ("TIMEOUT_SECONDS", "BEGIN_SECONDS", "SENDING_SECONDS"):
        monkeypatch.setattr(module, name, 0.1)
    hang, answers = Mock(side_effect=[ValueError, None]), Event()
    ways = [Channel("hanging", lambda notice: hang(notice, answers.wait(9))), Channel("x", Mock())]
    state, (problem,) = deliver(AlertState(), {"k": FAULT}, ways)
    assert "hanging does not accept notices: no answer yet" in problem
    assert deliver(state, {"k": FAULT}, ways) == (state, []), "it may still accept it"
    answers.set()
    wait_until(lambda: bool(module._LATE))
    deliver(state, {"k": FAULT}, ways)
    assert hang.call_count == 2


def test_notice_that_a_channel_never_accepts_keeps_no_other_from_it() -> None:
    send = Mock(side_effect=lambda notice: 1 / (notice.alert.key != "a"))
    faults, state = {key: FAULT.model_copy(update={"key": key}) for key in "abc"}, AlertState()
    for _ in range(2):
        state, _ = deliver(state, faults, [Channel("fails for a", send)])
    assert [each.args[0].alert.key for each in send.call_args_list] == ["a", "b", "c", "a"]
    assert [notice.alert.key for _, notice in state.undelivered] == ["a"]


def test_warnings_stay_in_the_file_if_least_is_error(tmp_path: Path, hook: Hook) -> None:
    config = Settings(state_dir=tmp_path)
    chosen = AlertSettings(webhook_url=hook.url, least="error")
    warning = FAULT.model_copy(update={"severity": "warning"})
    deliver(AlertState(), {"k": warning}, channels(config, chosen))
    assert not hook.got
    assert (tmp_path / ALERTS_FILE).exists()


def test_channel_error_has_no_address(tmp_path: Path) -> None:
    chosen = AlertSettings(
        webhook_url=f"http://127.0.0.1:9/{SECRET}", email_to="a@example.com",
        smtp={"host": "127.0.0.1", "port": 9, "user": "u", "password": SECRET},
    )  # fmt: skip
    ways = channels(Settings(state_dir=tmp_path), chosen)
    _, problems = deliver(AlertState(), {"k": FAULT}, ways)
    assert len(problems) == 2
    assert SECRET not in "".join(problems)
    assert SECRET not in repr(chosen)


def test_alerts_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("topicberg.alerts.channels")  # the package has a function of that name
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 1000)
    (way,) = channels(Settings(state_dir=tmp_path), AlertSettings())
    for _ in range(50):
        way.send(Notice(state="firing", alert=FAULT, at=datetime.now(UTC)))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 4000


def test_line_after_half_a_line_is_whole(tmp_path: Path) -> None:
    """A writer was killed, or its disk was full."""
    (way,) = channels(Settings(state_dir=tmp_path), AlertSettings())
    (tmp_path / "alerts.jsonl").write_text('{"state": "fir')
    for _ in range(2):
        way.send(Notice(state="firing", alert=FAULT, at=datetime.now(UTC)))
    lines = (tmp_path / "alerts.jsonl").read_text().splitlines()
    assert [Notice.model_validate_json(line).alert for line in lines[1:]] == [FAULT, FAULT]
