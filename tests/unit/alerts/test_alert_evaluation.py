"""Which faults exist, from observations alone; an outage is one alert, whatever it stops."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from topicberg.alerts.alert import Alert, AlertState, Notice
from topicberg.alerts.channels import Channel, deliver
from topicberg.alerts.evaluation import HANGING_EVALUATIONS, MAX_PENDING, evaluate
from topicberg.alerts.observation import (
    HANGING_AFTER,
    SILENT_AFTER,
    Automation,
    CheckRuns,
    EndedRun,
    FailedCheck,
    Observation,
    StaleAsset,
    StepError,
)
from topicberg.alerts.outages import LEFTOVER, MARGIN
from topicberg.checks.finding import Finding
from topicberg.checks.topic import check_engine
from topicberg.endpoints import stopped
from topicberg.errors import TopicbergError, UnreachableError, split_hint
from topicberg.tableflow.service.status import TopicStatus, Unavailable
from topicberg.topics import load_topic

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


@pytest.mark.parametrize(("minutes", "is_fault"), [((), True), ((-1,), True), ((1,), False)])
def test_stale_asset_is_a_fault_unless_a_later_check_explains_it(
    minutes: tuple[int, ...], is_fault: bool
) -> None:
    since = NOW - timedelta(hours=1)
    checks = tuple(since + timedelta(minutes=each) for each in minutes)
    stale = [StaleAsset("iceberg/orders", "error", since, checks)]
    assert bool(faults(replace(QUIET, stale_assets=stale))) == is_fault


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
        assert ended.counted == {}


def test_wrong_spec_is_a_fault_that_quotes_it() -> None:
    (alert,) = faults(replace(QUIET, spec_errors="orders.yaml: partitions"))
    assert "orders.yaml: partitions" in alert.what
    (alert,) = faults(replace(QUIET, spec_errors_at_load="orders.yaml: partitions"))
    assert "reload" in (alert.remediation or "")


@pytest.mark.parametrize("hint", [None, "`fix it`"])
def test_split_hint_is_the_inverse_of_the_text(hint: str | None) -> None:
    assert split_hint(str(TopicbergError("a: b", hint=hint))) == ("a: b", hint)


def test_schedule_of_the_checks_that_is_off_is_the_cause_of_no_checks() -> None:
    off = Automation("check_tables_schedule", "schedule", False, is_on_by_default=True)
    seen = replace(QUIET, check_runs=replace(RUNNING, ended_at=None), automations=(off,))
    causes = {
        alert.key: alert.cause for alert in faults(seen, AlertState(counted={"checks": 1_000}))
    }
    key = "silent check_tables_schedule"
    assert causes == {"checks": key, key: None}


TABLES = [f"iceberg/t{number}" for number in range(60)]
TEXTS = {
    "service iceberg_rest": "topic t: Iceberg's catalog does not answer: Connection refused",
    "service kafka": "Kafka at 127.0.0.1:9092 does not answer (list the topics)",
    "service schema_registry": "the schema registry does not answer (shop-value (v1)): timed out",
    "service s3": "topic t: the object store does not answer: AWS Error NETWORK_CONNECTION",
    "service spark": "Spark does not answer at sc://h:15002: UNAVAILABLE",
    "service snowflake": "Snowflake does not answer: 250001",
    "service aws": "AWS does not answer: Could not connect to the endpoint URL",
    "service disk": "topic t: a disk is full: that of the engine, of Spark or of the object store",
    "service supervisor": "iceberg/t1: /my state/ports.json is damaged (ValidationError)",
}


class Operator:
    """Evaluates and sends as the sensor does; ``sent`` is what the channels got."""

    def __init__(self) -> None:
        self.state = AlertState()
        self.sent: list[tuple[str, str]] = []

    def tick(self, seen: Observation) -> list[tuple[str, str]]:
        self.state, faults = evaluate(self.state, seen, "http://ui")
        notices: list[Notice] = []
        self.state, _ = deliver(self.state, faults, [Channel("test", notices.append)])
        sent: list[tuple[str, str]] = [(notice.state, notice.alert.key) for notice in notices]
        self.sent += sent
        return sent


def failing(text: str, since: datetime = NOW, cause: str | None = None) -> list[FailedCheck]:
    what = f"Tableflow keeps failing and retries: {text}"
    finding = Finding(what, "run `topicberg status`", since, cause=cause)
    return [FailedCheck(table, "tableflow", finding) for table in TABLES]


def failed_run(text: str, at: datetime = NOW, kind: str = "check_tables") -> EndedRun:
    errors = (StepError((f"topicberg.errors.UnreachableError: {text}",)),)
    orders = frozenset({"iceberg/orders"})
    return EndedRun("r1", kind, False, False, at, orders, frozenset(), errors=errors)


def watched(key: str, since: datetime = NOW) -> dict[str, Alert]:
    return {key: Alert(key=key, title="", what="", severity="error", since=since, link="")}


def test_run_that_finds_the_supervisor_silent_follows_from_it_also_afterwards() -> None:
    operator, text = Operator(), "the supervisor of the local stack does not answer"
    operator.tick(replace(QUIET, elsewhere=watched("service supervisor")))
    operator.tick(replace(QUIET, at=NOW + timedelta(seconds=30), runs=[failed_run(text)]))
    assert operator.sent == []


def test_failure_of_other_tables_is_sent_beside_one_that_lasts() -> None:
    operator, one, two = Operator(), failed_run("a"), failed_run("a")
    other = replace(two, planned=frozenset({"iceberg/orders", "iceberg/users"}))
    assert operator.tick(replace(QUIET, runs=[one])) == [("firing", "run check_tables")]
    assert operator.tick(replace(QUIET, runs=[two])) == []
    assert operator.tick(replace(QUIET, runs=[other])) == [("firing", "run check_tables")]
    assert operator.state.alerts["run check_tables"].assets == ("iceberg/orders", "iceberg/users")
    assert operator.tick(replace(QUIET, runs=[one, other])) == []
    done = EndedRun("r2", "check_tables", True, False, NOW, other.planned, other.planned)
    assert operator.tick(replace(QUIET, runs=[done])) == [("resolved", "run check_tables")]


def test_failure_of_other_tables_in_an_outage_ends_with_the_one_that_was_sent() -> None:
    operator, one, text = Operator(), failed_run("a"), TEXTS["service kafka"]
    other = replace(failed_run(text), planned=frozenset({"iceberg/orders", "iceberg/users"}))
    assert operator.tick(replace(QUIET, runs=[one])) == [("firing", "run check_tables")]
    assert operator.tick(replace(QUIET, elsewhere=watched("service kafka"), runs=[other])) == []
    done = EndedRun("r2", "check_tables", True, False, NOW, other.planned, other.planned)
    assert operator.tick(replace(QUIET, runs=[done])) == [("resolved", "run check_tables")]


def test_run_that_fails_as_a_user_stopped_the_stack_is_no_fault() -> None:
    chain = ("dagster.StepError: a step failed", text(stopped()))
    assert faults(replace(QUIET, runs=[run(*chain)])) == []


@pytest.mark.parametrize("key", TEXTS)
def test_outage_without_a_watch_is_one_alert_until_all_are_back(key: str) -> None:
    operator, run, first = Operator(), failed_run(TEXTS[key]), failing(TEXTS[key])[:1]
    assert operator.tick(replace(QUIET, failed_checks=first)) == [("firing", key)]
    seen = replace(QUIET, failed_checks=failing(TEXTS[key]), runs=[run])
    assert operator.tick(seen) == []
    sent = operator.state.alerts[key]
    assert len(sent.assets) == 61
    assert "(61 faults of this cause)" in sent.what
    assert "Tableflow" not in sent.what
    assert sent.remediation == "run `topicberg status`"
    done = EndedRun("r2", "check_tables", True, False, NOW, run.planned, run.planned)
    assert operator.tick(replace(seen, failed_checks=first, runs=[done])) == []
    assert operator.tick(QUIET) == [("resolved", key)]


def test_outage_of_the_supervisor_does_not_follow_from_a_damaged_request_of_a_topic() -> None:
    damaged = failing("/my state/tableflow/requests/t0.json is damaged")[:1]
    assert Operator().tick(replace(QUIET, failed_checks=damaged)) == [
        ("firing", "check iceberg/t0:tableflow")
    ]


@pytest.mark.parametrize("key", TEXTS)
def test_outage_that_the_watch_reports_is_sent_by_no_sensor_not_even_afterwards(key: str) -> None:
    operator = Operator()
    seen = replace(QUIET, elsewhere=watched(key), failed_checks=failing(TEXTS[key]))
    operator.tick(replace(seen, runs=[failed_run(TEXTS[key])]))
    for seconds in (1, 15, 300):  # the engine tries again in seconds, the checks in minutes
        at = NOW + timedelta(seconds=seconds)
        left = failing(TEXTS[key]) if seconds == 1 else []
        operator.tick(replace(QUIET, at=at, failed_checks=left))
    assert operator.sent == []


def test_consequence_that_stays_after_the_outage_is_sent() -> None:
    operator, text = Operator(), TEXTS["service snowflake"]
    seen = replace(QUIET, elsewhere=watched("service snowflake"), runs=[failed_run(text)])
    assert (operator.tick(seen), operator.tick(replace(QUIET, at=NOW + LEFTOVER / 2))) == ([], [])
    at = NOW + LEFTOVER
    assert operator.tick(replace(QUIET, at=at)) == [("firing", "run check_tables")]


def test_fault_that_began_after_the_outage_is_sent() -> None:
    operator, text = Operator(), TEXTS["service s3"]
    operator.tick(replace(QUIET, elsewhere=watched("service s3")))
    since = NOW + MARGIN + timedelta(seconds=1)
    seen = replace(QUIET, at=since, failed_checks=failing(text, since))
    assert operator.tick(seen) == [("firing", "service s3")]


def test_suspended_topics_and_quoted_texts_are_faults_of_their_own() -> None:
    text = "Tableflow is suspended: a record says 'x: Kafka does not answer'"
    failed = [FailedCheck(table, "tableflow", Finding(text, None, NOW)) for table in TABLES[:2]]
    keys = [key for _, key in Operator().tick(replace(QUIET, failed_checks=failed))]
    assert keys == [f"check {table}:tableflow" for table in TABLES[:2]]


def test_service_that_fails_for_one_table_is_no_outage() -> None:
    text = "the schema registry fails (t-value): status 500"
    one = replace(QUIET, failed_checks=failing(text)[:1])
    assert Operator().tick(one) == [("firing", f"check {TABLES[0]}:tableflow")]
    several = replace(QUIET, failed_checks=failing(text))
    assert Operator().tick(several) == [("firing", "service schema_registry")]


@pytest.mark.parametrize(
    ("text", "key", "title"),
    [
        ("the login to Kafka at h:9 failed: no", "kafka", "the login to Kafka failed"),
        ("topic t: the object store refuses the credentials: no", "s3", "the object store refuses"),
        ("aws ends as soon as it starts: in use", "aws", "aws ends as soon as it starts"),
        ("Kafka cannot be reached (x): the host name h does not resolve", "kafka", "Kafka cannot"),
    ],
)
def test_service_that_refuses_or_is_not_found_is_one_alert(text: str, key: str, title: str) -> None:
    operator, seen = Operator(), replace(QUIET, failed_checks=failing(text)[:1])
    assert operator.tick(seen) == [("firing", f"service {key}")]
    assert operator.state.alerts[f"service {key}"].title.startswith(title)


def test_run_that_failed_long_ago_does_not_say_that_its_cause_lasts() -> None:
    text, operator = TEXTS["service spark"], Operator()
    assert operator.tick(replace(QUIET, runs=[failed_run(text)])) == [("firing", "service spark")]
    sent = operator.tick(replace(QUIET, at=NOW + LEFTOVER))
    assert sent == [("resolved", "service spark"), ("firing", "run check_tables")]


def test_any_fault_that_begins_while_the_disk_is_full_follows_from_it() -> None:
    operator, runs = Operator(), [failed_run("sqlite3.OperationalError: disk I/O error")]
    seen = replace(QUIET, elsewhere=watched("service disk"), runs=runs)
    seen = replace(seen, failed_checks=failing("OSError: whatever"))
    assert operator.tick(seen) == []
    assert operator.tick(
        replace(seen, failed_checks=failing("OSError: whatever", NOW - timedelta(hours=1))[:1])
    ) == [("firing", f"check {TABLES[0]}:tableflow")]


def test_hanging_tick_follows_from_the_service_that_is_away() -> None:
    began = NOW - timedelta(seconds=60)
    tick = Automation("snapshots", "sensor", True, ticked_at=began, in_progress=True)
    operator = Operator()
    seen = replace(QUIET, automations=[tick], elsewhere=watched("service iceberg_rest"))
    assert [operator.tick(seen) for _ in range(3)] == [[], [], []]
    ended = NOW + timedelta(seconds=20)
    rpc = StepError(('grpc._channel._InactiveRpcError: <\n  details = "Deadline Exceeded"\n>',))
    failed = replace(tick, in_progress=False, failed_at=ended, error=rpc)
    assert operator.tick(replace(QUIET, at=ended, automations=[failed])) == [], "Dagster ended it"
    assert Operator().tick(replace(QUIET, automations=[failed])) == [("firing", "tick snapshots")]
    late = StepError(("dagster.Error: The tick timed out due to taking longer than 60 s",))
    for error in (rpc, late):  # of code that ended, and that hangs
        failed = replace(tick, in_progress=False, failed_at=NOW, error=error)
        away = replace(QUIET, automations=[failed], elsewhere=watched("service dagster_code"))
        assert Operator().tick(away) == []
    alone, operator = replace(seen, elsewhere={}), Operator()
    assert [operator.tick(alone) for _ in range(2)][-1] == [("firing", "tick snapshots")]


def test_run_that_does_not_start_follows_from_what_is_away_also_in_later_evaluations() -> None:
    text = "dagster.RunFailure: Run timed out due to taking longer than 180 seconds to start."
    failed = replace(failed_run("x"), errors=(StepError((text,)),))
    operator = Operator()
    seen = replace(QUIET, elsewhere=watched("service dagster_daemon"))
    assert operator.tick(replace(seen, runs=[failed])) == operator.tick(seen) == []
    assert Operator().tick(replace(QUIET, runs=[failed])) == [("firing", "run check_tables")]


def test_text_of_an_outage_is_that_of_its_service() -> None:
    """A topic's failure was of another service than that which its engine misses."""
    other, own = TEXTS["service s3"], TEXTS["service kafka"]
    mixed = [*failing(other, cause="service kafka")[:2], *failing(own, cause="service kafka")[2:]]
    operator = Operator()
    assert operator.tick(replace(QUIET, failed_checks=mixed)) == [("firing", "service kafka")]
    assert operator.state.alerts["service kafka"].what.startswith("Kafka")
    sent_apart = Operator().tick(replace(QUIET, failed_checks=mixed[:2]))
    assert sent_apart == [("firing", f"check {table}:tableflow") for table in TABLES[:2]]


def test_lag_follows_from_an_engine_that_is_away() -> None:
    lag = [FailedCheck("iceberg/orders", "kafka_lag", Finding("5 records behind", None, NOW))]
    seen = replace(QUIET, failed_checks=lag, elsewhere=watched("service tableflow"))
    assert Operator().tick(seen) == []


def test_missing_service_is_the_cause_of_whatever_the_topic_says() -> None:
    """The engine knows it from the watch; what a turn says may name something else."""
    spec = load_topic("airline.sunset")
    status = TopicStatus(topic=spec.name).failing(UnreachableError("odd"), since_ms=1)
    missing = Unavailable("Kafka does not answer", 1, "kafka")
    finding = check_engine(spec, status.without(missing), NOW)
    assert finding.cause == "service kafka"
    assert "Kafka does not answer" in finding.what, "and not the odd one"
    assert check_engine(spec, status, NOW).cause is None
    failed = [FailedCheck("iceberg/airline_sunset", "tableflow", finding)]
    seen = replace(QUIET, failed_checks=failed, elsewhere=watched("service kafka"))
    assert Operator().tick(seen) == []
