"""What is told of a Dagster instance: each fault once, its recovery, no secret."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import dagster as dg
import pytest
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
from security.corpus import TEXTS

from assets.checks import result
from assets.partitions import RANGE_END, RANGE_START
from jobs.alerts import UNCHECKED_TICKS, State, alert_sensor
from jobs.checks import CHECK, check_schedule
from resources import RESOURCES
from topicberg.alerts import Alert, AlertSettings, Channel, Notice, Told, changes, channels, tell
from topicberg.alerts.channels import ALERTS_FILE, message_of
from topicberg.checks.finding import Finding
from topicberg.endpoints import runtime_file
from topicberg.errors import TopicbergError
from topicberg.settings import Settings, settings

ORDERS, INVOICES = dg.AssetKey(["iceberg", "orders"]), dg.AssetKey(["iceberg", "invoices"])
SECRET = "never-to-be-told"  # part of the address of a channel

ERROR = SerializableErrorInfo("topicberg.errors.TopicbergError: no\n  → `mend it`", [], None)
ORIGIN = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("topicberg"), "__repository__")

verdicts: dict[str, Finding] = {}
broken: set[str] = set()


@dg.asset(key=ORDERS, group_name="shop")
def orders() -> None:
    if "orders" in broken:
        try:
            raise RuntimeError("org.example.DiskException: 28 at java.base/Thread.run")
        except RuntimeError as error:
            raise TopicbergError("the disk is full", hint="`free it`") from error


@dg.asset(key=INVOICES, group_name="shop")
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
        finding = verdicts.get(name, Finding(passed=True, what="fine"))
        yield result(ORDERS, name, finding, None)


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
        job = DEFS.resolve_implicit_global_asset_job_def()
        job.execute_in_process(
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
        if (
            self.instance.get_instigator_state(state.instigator_origin_id, state.selector_id)
            is None
        ):
            self.instance.add_instigator_state(state)
        self.instance.create_tick(
            TickData(
                state.instigator_origin_id,
                name,
                kind,
                status,
                time.time(),
                selector_id=state.selector_id,
                **more,
            )
        )

    def notices(self) -> list[Notice]:
        file = settings().state_dir / ALERTS_FILE
        lines = file.read_text().splitlines() if file.exists() else []
        return [Notice.model_validate_json(line) for line in lines]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    verdicts.clear()
    broken.clear()
    with monkeypatch.context() as patch, dg.instance_for_test() as instance:
        patch.setenv("TOPICBERG_STATE_DIR", str(tmp_path))
        settings.cache_clear()
        yield Desk(instance)
    settings.cache_clear()


def bad(what: str, **more: Any) -> Finding:
    return Finding(passed=False, what=what, **more)


def test_nothing_is_told_while_nothing_is_wrong(desk: Desk) -> None:
    desk.run()
    assert desk.tick() == []
    assert desk.tick() == []


def test_a_fault_is_told_once_and_its_recovery(desk: Desk) -> None:
    since = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    verdicts["tableflow"] = bad("it is suspended", mend="`mend it`", since=since)
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:tableflow")]
    told = desk.notices()[-1]
    assert told.alert.what == "it is suspended."
    assert told.alert.mend == "`mend it`"
    assert told.alert.since == since
    assert told.alert.link.endswith("/assets/iceberg/orders?view=checks&checkDetail=tableflow")
    assert "`mend it`" in told.text
    assert "2026-01-02 03:04:05 UTC" in told.text
    desk.run()
    assert desk.tick() == []
    verdicts.clear()
    desk.run()
    assert desk.tick() == [("recovered", "check iceberg/orders:tableflow")]
    assert desk.tick() == []


def test_what_follows_from_another_fault_is_not_told_until_that_one_is_mended(desk: Desk) -> None:
    verdicts["tableflow"] = bad("it is suspended")
    verdicts["kafka_lag"] = bad("it is late", cause="iceberg/orders:tableflow", severity="warning")
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:tableflow")]
    verdicts["tableflow"] = Finding(passed=True, what="fine")
    desk.run()
    assert desk.tick() == [
        ("recovered", "check iceberg/orders:tableflow"),
        ("firing", "check iceberg/orders:kafka_lag"),
    ]


def test_a_warning_that_becomes_an_error_is_told_again(desk: Desk) -> None:
    verdicts["tableflow"] = bad("it is slow", severity="warning")
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:tableflow")]
    verdicts["tableflow"] = bad("it stands still")
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:tableflow")]
    assert desk.tick() == []


def test_a_run_that_fails_again_and_again_is_one_fault(desk: Desk) -> None:
    broken.add("orders")
    desk.run()
    desk.run()
    assert desk.tick() == [("firing", "run shop")]
    told = desk.notices()[-1].alert
    assert told.what == "the disk is full"
    assert told.mend == "`free it`"
    assert "/runs/" in told.link
    desk.run()
    assert desk.tick() == []
    broken.clear()
    desk.run()
    assert desk.tick() == [("recovered", "run shop")]


def test_a_failed_run_of_partitions_is_mended_by_one_that_covers_them(desk: Desk) -> None:
    """A sensor asks for several runs of one kind at once: one that succeeds mends no other."""
    early, late = ("2026-01-01-00:00", "2026-01-01-05:00"), ("2026-02-01-00:00", "2026-02-01-01:00")
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
    assert len(Told.parse(desk.cursor).undone) == 1
    broken.clear()
    desk.run((early[0], late[1]))
    assert desk.tick() == [("recovered", "run shop")]


def test_a_failed_run_is_mended_by_others_that_make_its_assets(desk: Desk) -> None:
    by_hand = "run iceberg/invoices, iceberg/orders"
    broken.update(("orders", "invoices"))
    desk.materialize(ORDERS, INVOICES)
    assert desk.tick() == [("firing", by_hand)]
    broken.discard("orders")
    desk.materialize(ORDERS)
    assert desk.tick() == []
    broken.clear()
    desk.materialize(INVOICES)
    assert desk.tick() == [("recovered", by_hand)]
    broken.add("orders")
    desk.materialize(ORDERS)
    assert desk.tick() == [("firing", "run iceberg/orders")]
    broken.clear()
    desk.run()  # the job of the whole group
    assert desk.tick() == [("recovered", "run iceberg/orders")]


def test_what_a_failed_run_has_made_need_not_be_made_again(desk: Desk) -> None:
    broken.add("orders")
    desk.run()
    assert desk.tick() == [("firing", "run shop")]
    broken.clear()
    desk.materialize(ORDERS)
    assert desk.tick() == [("recovered", "run shop")]


def test_what_was_mended_step_by_step_is_mended(desk: Desk) -> None:
    """Executed again from failure: a run that fails as well may have made some of it."""
    by_hand = "run iceberg/invoices, iceberg/orders"
    broken.update(("orders", "invoices"))
    desk.materialize(ORDERS, INVOICES)
    assert desk.tick() == [("firing", by_hand)]
    broken.discard("orders")
    desk.materialize(ORDERS, INVOICES)
    assert desk.tick() == []
    broken.clear()
    desk.materialize(INVOICES)
    assert desk.tick() == [("recovered", by_hand)]


def test_a_run_that_fails_again_after_it_was_mended_is_told_with_its_own_link(desk: Desk) -> None:
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


def test_failed_runs_that_an_older_memory_has_are_mended_by_their_kind(desk: Desk) -> None:
    broken.add("orders")
    desk.run()
    assert desk.tick() == [("firing", "run shop")]
    older = Told.parse(desk.cursor).model_dump(mode="json", exclude={"undone"})
    desk.cursor = json.dumps(older)
    assert desk.tick() == []
    broken.clear()
    desk.run()
    assert desk.tick() == [("recovered", "run shop")]


def test_the_memory_of_failed_runs_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.alerts.MAX_UNDONE", 2)
    broken.add("orders")
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        desk.run((day, day))
    assert desk.tick() == [("firing", "run shop")]
    assert len(Told.parse(desk.cursor).undone) == 2


def test_a_run_that_a_blocking_check_stopped_is_told_as_the_check(desk: Desk) -> None:
    verdicts["blocks"] = bad("the rows are wrong")
    desk.run()
    assert desk.tick() == [("firing", "check iceberg/orders:blocks")]


def test_since_when_stays_while_a_fault_lasts(desk: Desk) -> None:
    first = result(ORDERS, "tableflow", bad("broken"), None)
    before = dg.AssetCheckEvaluation(
        asset_key=ORDERS, check_name="tableflow", passed=False, metadata=first.metadata
    )
    again = result(ORDERS, "tableflow", bad("broken"), before)
    assert again.metadata["since"] == first.metadata["since"]
    assert "Since 20" in (first.description or "")
    assert again.description == first.description


def test_runs_that_do_not_begin(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run = desk.instance.create_run_for_job(
        DEFS.resolve_job_def("shop"),
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=RemoteJobOrigin(ORIGIN, "shop"),
    )
    assert desk.tick() == []
    monkeypatch.setattr("jobs.alerts.QUEUED_TOO_LONG", timedelta(0))
    assert desk.tick() == [("firing", "queue")]
    assert "runs in the queue: 1; the oldest, of shop" in desk.notices()[-1].text
    assert run.run_id in desk.notices()[-1].alert.link
    desk.instance.report_run_canceled(run)
    assert desk.tick() == [("recovered", "queue")]


def test_a_sensor_that_fails_is_told_while_there_is_one(desk: Desk) -> None:
    """Dagster remembers the last tick of a sensor whose topic is gone, and shows no page of it."""
    desk.ticked(InstigatorType.SENSOR, "alerts", TickStatus.FAILURE, error=ERROR)
    desk.ticked(InstigatorType.SENSOR, "gone_snapshots", TickStatus.FAILURE, error=ERROR)
    assert desk.tick() == [("firing", "tick alerts")]
    assert desk.notices()[-1].alert.mend == "`mend it`"
    desk.ticked(InstigatorType.SENSOR, "alerts", TickStatus.SKIPPED)
    assert desk.tick() == [("recovered", "tick alerts")]


def test_a_failed_run_of_assets_that_are_gone_is_told_no_more(desk: Desk) -> None:
    broken.add("orders")
    desk.run()
    assert desk.tick() == [("firing", "run shop")]
    told = Told.parse(desk.cursor)
    without = dg.Definitions(assets=[invoices]).get_repository_def()
    assert list(State(desk.instance, without, "http://ui").faults(told)[1]) == []


def late(desk: Desk, key: dg.AssetKey, since: datetime) -> None:
    change = FreshnessStateChange(
        key=key,
        new_state=FreshnessState.FAIL,
        previous_state=FreshnessState.PASS,
        state_change_timestamp=since.timestamp(),
    )
    desk.instance._report_runless_asset_event(change)


def test_a_late_table_is_told_by_its_check_or_else_by_its_policy(desk: Desk) -> None:
    """A table whose check was evaluated since is not told twice, nor one whose source is late."""

    def told(since: datetime) -> list[str]:
        late(desk, CHECKED, since)
        late(desk, UNCHECKED, since)
        state = State(desk.instance, LATE.get_repository_def(), "http://ui")
        return sorted(state.faults(Told())[1])

    now = datetime.now(UTC)
    checked, unchecked = (f"freshness {key.to_user_string()}" for key in (CHECKED, UNCHECKED))
    assert told(now) == [unchecked]  # the next evaluation of the check says why
    assert told(now - timedelta(hours=1)) == [checked, unchecked]  # its check was not evaluated
    desk.instance.report_runless_asset_event(dg.AssetCheckEvaluation(CHECKED, "up_to_date", True))
    assert told(now - timedelta(hours=1)) == [unchecked]  # nothing came to compute it with
    verdict = dg.AssetCheckEvaluation(CHECKED, "up_to_date", False)
    desk.instance.report_runless_asset_event(verdict)
    assert told(now - timedelta(hours=1)) == ["check iceberg/totals:up_to_date", unchecked]


# --- checks that do not run ---


class Watch:
    """Looks at an instance whose checks have a schedule."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.told = Told()
        runtime_file(settings()).touch()

    def faults(self, ticks: int = 1) -> dict[str, Alert]:
        """After so many ticks."""
        now: dict[str, Alert] = {}
        for _ in range(ticks):
            state = State(self.desk.instance, WATCHED.get_repository_def(), "http://ui")
            self.told, now = state.faults(Told.parse(self.told.model_dump_json()))
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


def test_checks_that_do_not_run_are_told_and_the_schedule_says_why(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.skipped("Secrets Manager refuses the credentials: they are expired\n  → `aws sso login`")
    assert watch.faults(UNCHECKED_TICKS - 1) == {}  # the daemon has just begun
    fault = watch.faults()["checks"]
    assert "Secrets Manager refuses the credentials: they are expired" in fault.what
    assert fault.mend == "`aws sso login`"
    watch.check()
    assert watch.faults() == {}
    monkeypatch.setattr("jobs.alerts.CHECKED_WITHIN", timedelta(0))
    assert watch.faults(UNCHECKED_TICKS - 1) == {}
    assert list(watch.faults()) == ["checks"]


def test_a_schedule_of_the_checks_that_is_off_is_told(watch: Watch) -> None:
    watch.skipped("the stack is not running")
    (state,) = watch.desk.instance.all_instigator_state()
    watch.desk.instance.update_instigator_state(state.with_status(InstigatorStatus.STOPPED))
    fault = watch.faults(UNCHECKED_TICKS)["checks"]
    assert "check_tables_schedule is off" in fault.what
    assert "turn it on" in (fault.mend or "")


def test_a_local_stack_that_was_stopped_is_no_fault(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(watch.desk, CHECKED, datetime.now(UTC) - timedelta(hours=1))
    runtime_file(settings()).unlink()
    assert watch.faults(2 * UNCHECKED_TICKS) == {}
    monkeypatch.setenv("TOPICBERG_DEPLOYMENT", "cloud")
    settings.cache_clear()
    assert list(watch.faults(UNCHECKED_TICKS)) == ["checks"]


def test_what_follows_from_checks_that_do_not_run_is_not_told_as_well(watch: Watch) -> None:
    late(watch.desk, CHECKED, datetime.now(UTC) - timedelta(hours=1))
    assert list(watch.faults(UNCHECKED_TICKS)) == ["checks"]
    schedule = f"{CHECK}_schedule"
    watch.desk.ticked(InstigatorType.SCHEDULE, schedule, TickStatus.FAILURE, error=ERROR)
    now = watch.faults()
    assert list(now) == ["checks", f"tick {schedule}"]
    assert [notice.alert.key for notice in changes(now, {}, datetime.now(UTC))] == [
        f"tick {schedule}"
    ]


# --- channels ---


class Hook(ThreadingHTTPServer):
    """A webhook that answers with ``status`` and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if hook.status == 200:
                    hook.got.append(json.loads(body))
                self.send_response(hook.status)
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
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


FAULT = Alert(
    key="k", title="t", what="w", severity="error", since=datetime.now(UTC), link="http://ui/"
)


def test_a_channel_that_was_down_gets_it_later_and_the_others_once(
    tmp_path: Path, hook: Hook
) -> None:
    config = Settings(state_dir=tmp_path)
    chosen = AlertSettings(webhook_url=hook.url, slack_url=hook.url)
    hook.status = 503
    told, problems = tell(Told(), {"k": FAULT}, channels(config, chosen))
    assert len(problems) == 2
    assert SECRET not in "".join(problems)
    told = Told.parse(told.model_dump_json())  # as the sensor keeps it
    assert SECRET not in told.model_dump_json()
    hook.status = 200
    told, problems = tell(told, {"k": FAULT}, channels(config, chosen))
    assert not problems
    assert [body.get("state", "slack") for body in hook.got] == ["firing", "slack"]
    assert "t" in hook.got[1]["text"]
    assert len((tmp_path / ALERTS_FILE).read_text().splitlines()) == 1
    told, _ = tell(told, {"k": FAULT}, channels(config, chosen))
    assert len(hook.got) == 2


@pytest.mark.parametrize("what", TEXTS)
def test_slack_message_of_any_fault_only_links_to_the_ui(
    what: str, tmp_path: Path, hook: Hook
) -> None:
    chosen = AlertSettings(slack_url=hook.url)
    fault = FAULT.model_copy(update={"what": what, "title": what, "mend": what})
    tell(Told(), {"k": fault}, channels(Settings(state_dir=tmp_path), chosen))
    (body,) = hook.got
    (block,) = body["blocks"]
    assert block["text"]["verbatim"]
    for text in (body["text"], block["text"]["text"]):
        assert re.findall("<.*?>", text) == ["<http://ui/>"]


@pytest.mark.parametrize("what", TEXTS)
def test_mail_of_any_fault_is_text_to_the_team_alone(what: str) -> None:
    fault = Alert(**{**FAULT.model_dump(), "title": what, "what": what})
    notice = Notice(state="firing", alert=fault, at=datetime.now(UTC))
    mail = message_of(AlertSettings(email_to="team@example.org"), notice)
    assert mail.get_content_type() == "text/plain"
    assert mail["To"] == "team@example.org"
    assert set(mail.keys()) == {
        *("Subject", "From", "To", "MIME-Version"),
        *("Content-Type", "Content-Transfer-Encoding"),
    }
    assert mail.as_bytes()


def test_a_file_that_cannot_be_written_does_not_silence_the_other_channels(
    tmp_path: Path, hook: Hook
) -> None:
    """The disk is full: the very fault that has to be told."""
    config, chosen = Settings(state_dir=tmp_path), AlertSettings(webhook_url=hook.url)
    (tmp_path / ALERTS_FILE).mkdir()  # not even root can append to it
    told, (problem,) = tell(Told(), {"k": FAULT}, channels(config, chosen))
    assert [body["state"] for body in hook.got] == ["firing"]
    assert str(tmp_path / ALERTS_FILE) in problem
    (tmp_path / ALERTS_FILE).rmdir()
    told, problems = tell(told, {"k": FAULT}, channels(config, chosen))
    assert not problems
    assert len((tmp_path / ALERTS_FILE).read_text().splitlines()) == len(hook.got) == 1
    assert not told.undelivered


def test_a_channel_that_fails_in_its_own_way_does_not_silence_the_others(
    tmp_path: Path, hook: Hook
) -> None:
    def fail(notice: Notice) -> None:
        raise ValueError(SECRET)

    config, chosen = Settings(state_dir=tmp_path), AlertSettings(webhook_url=hook.url)
    ways = [Channel("broken", fail), *channels(config, chosen)]
    told, (problem,) = tell(Told(), {"k": FAULT}, ways)
    assert [body["state"] for body in hook.got] == ["firing"]
    assert [name for name, _ in told.undelivered] == ["broken"]
    assert "broken" in problem
    assert "ValueError" in problem
    assert SECRET not in problem


def test_warnings_stay_in_the_file_if_only_errors_are_wanted(tmp_path: Path, hook: Hook) -> None:
    config, chosen = (
        Settings(state_dir=tmp_path),
        AlertSettings(webhook_url=hook.url, least="error"),
    )
    warning = FAULT.model_copy(update={"severity": "warning"})
    tell(Told(), {"k": warning}, channels(config, chosen))
    assert not hook.got
    assert (tmp_path / ALERTS_FILE).exists()


def test_an_address_is_in_no_error(tmp_path: Path) -> None:
    chosen = AlertSettings(
        webhook_url=f"http://127.0.0.1:9/{SECRET}", email_to="a@example.com", smtp_host="127.0.0.1",
        smtp_port=9, smtp_user="u", smtp_password=SECRET,
    )  # fmt: skip
    _, problems = tell(Told(), {"k": FAULT}, channels(Settings(state_dir=tmp_path), chosen))
    assert len(problems) == 2
    assert SECRET not in "".join(problems)
    assert SECRET not in repr(chosen)


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("topicberg.alerts.channels")  # the package has a function of that name
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 1000)
    (way,) = channels(Settings(state_dir=tmp_path), AlertSettings())
    for _ in range(50):
        way.send(Notice(state="firing", alert=FAULT, at=datetime.now(UTC)))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 4000
