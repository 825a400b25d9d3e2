"""An outage is one alert, whatever it stops; what it caused is not sent when it has ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from topicberg.alerts.alert import Alert, AlertState, Notice
from topicberg.alerts.channels import Channel, deliver
from topicberg.alerts.evaluation import evaluate
from topicberg.alerts.observation import (
    Automation,
    CheckRuns,
    EndedRun,
    FailedCheck,
    Observation,
    StepError,
)
from topicberg.alerts.outages import LEFTOVER, MARGIN
from topicberg.checks.finding import Finding
from topicberg.checks.topic import check_engine
from topicberg.errors import UnreachableError
from topicberg.tableflow.service.status import TopicStatus, Unavailable
from topicberg.topics import load_topic

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
RUNNING = CheckRuns("check_tables", "check_tables_schedule", True, False, NOW)
QUIET = Observation(at=NOW, check_runs=RUNNING, assets=frozenset({"iceberg/orders"}))
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
    alert = Alert(key=key, title="", what="", severity="error", since=since, link="")
    return {key: alert}


@pytest.mark.parametrize("key", TEXTS)
def test_outage_without_a_watch_is_one_alert_until_all_are_back(key: str) -> None:
    operator = Operator()
    run = failed_run(TEXTS[key])
    first = failing(TEXTS[key])[:1]
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
    assert operator.tick(seen) == []
    assert operator.tick(replace(QUIET, at=NOW + LEFTOVER / 2)) == []
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
    operator = Operator()
    seen = replace(QUIET, failed_checks=failing(text)[:1])
    assert operator.tick(seen) == [("firing", f"service {key}")]
    assert operator.state.alerts[f"service {key}"].title.startswith(title)


def test_run_that_failed_long_ago_does_not_say_that_its_cause_lasts() -> None:
    text = TEXTS["service spark"]
    operator = Operator()
    assert operator.tick(replace(QUIET, runs=[failed_run(text)])) == [("firing", "service spark")]
    sent = operator.tick(replace(QUIET, at=NOW + LEFTOVER))
    assert sent == [("resolved", "service spark"), ("firing", "run check_tables")]


def test_any_fault_that_begins_while_the_disk_is_full_follows_from_it() -> None:
    operator = Operator()
    runs = [failed_run("sqlite3.OperationalError: disk I/O error")]
    seen = replace(QUIET, elsewhere=watched("service disk"), runs=runs)
    seen = replace(seen, failed_checks=failing("OSError: whatever"))
    assert operator.tick(seen) == []
    earlier = failing("OSError: whatever", NOW - timedelta(hours=1))[:1]
    assert operator.tick(replace(seen, failed_checks=earlier)) == [
        ("firing", f"check {TABLES[0]}:tableflow")
    ]


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
    alone = replace(seen, elsewhere={})
    operator = Operator()
    assert [operator.tick(alone) for _ in range(2)][-1] == [("firing", "tick snapshots")]


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
    assert check_engine(spec, status, NOW).cause is None
    failed = [FailedCheck("iceberg/airline_sunset", "tableflow", finding)]
    seen = replace(QUIET, failed_checks=failed, elsewhere=watched("service kafka"))
    assert Operator().tick(seen) == []
