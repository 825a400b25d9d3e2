"""A component that stays down, or hangs: what is reported, once, by name and with a fix.

Every other component works meanwhile, records are produced, and the operator's checks and alerts
run. Then it is back by itself: all that was reported is reported as resolved, and both tables
hold every record once. As in the cloud, who looks starts nothing; the last two drills are
about the local stack, where the checks do.

With TOPICBERG_TEST_DRILL_RESULTS=<file>, each drill adds a line of JSON there, of which
``tests/drills/table.py`` makes the second table in docs/contributing/drills.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import dagster as dg
import pytest
from faults import down, note, robbed, stopped
from load import Load, paused_load
from operators import Operator
from waiting import wait_until

from topicberg.alerts.alert import Notice
from topicberg.catalogs.snowflake.session import TIMEOUTS
from topicberg.checks import topic as topic_checks
from topicberg.clients import catalog
from topicberg.endpoints import Endpoints, model
from topicberg.errors.table import Kind
from topicberg.kafka import topics as kafka
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.topics import TopicSpec
from topicberg_local import health
from topicberg_local import stack as local_stack

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENCE_SECONDS = 180.0
LAG = "check iceberg/…:kafka_lag"


@dataclass(frozen=True)
class Lasting:
    """A fault, and what must be reported of it: key of the alert → what its text says."""

    component: str
    reported: dict[str, str] = field(default_factory=dict)
    fault: Callable[[str], AbstractContextManager[None]] = down
    max_lag_records: int = 100_000

    def __str__(self) -> str:
        return f"{self.component}-{self.fault.__name__}"


FAULTS = (
    Lasting("kafka", {"service kafka": "Kafka at .* does not answer"}),
    Lasting("schema_registry", {"service schema_registry": "the schema registry does not answer"}),
    # The catalog is silent as well: it tries for minutes to read a table's metadata.
    Lasting("s3", {"service s3": r"the object store \(s3\)"}),
    Lasting("iceberg_rest", {"service iceberg_rest": "Iceberg's catalog does not answer"}),
    Lasting("spark", {"service spark": "Spark does not answer"}),
    Lasting("aws", {"service aws": "aws does not answer"}),
    Lasting("snowflake", {"service snowflake": "snowflake does not answer"}),
    Lasting("confluent", {"service confluent": "confluent does not answer"}),
    Lasting(
        "tableflow",
        {LAG: "records behind Kafka(?s:.*)shows what the engine does"},
        max_lag_records=100,
    ),
    # It takes connections, and does not answer.
    Lasting("iceberg_rest", {"service iceberg_rest": "Iceberg's catalog does not answer"}, stopped),
)


@pytest.fixture(scope="module")
def load(stack: Endpoints) -> Iterator[Load]:
    with paused_load(stack, "lasting", rate=100) as load:
        yield load


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing waits for long: what is tried again is so twice, at once; clients give up soon."""
    monkeypatch.setattr(Kind, "wait", lambda *_: 0.1)
    monkeypatch.setattr(topic_checks, "PATIENCE_MS", 3000)
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 3.0)
    monkeypatch.setattr(catalog, "TIMEOUT_SECONDS", (3.0, 3.0))
    monkeypatch.setitem(TIMEOUTS, "login_timeout", 5)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    model._catalog.cache_clear()
    yield
    model._catalog.cache_clear()


@pytest.fixture
def unassisted(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects starts nothing, as in the cloud."""
    monkeypatch.setattr(local_stack, "ensure_running", lambda _: None)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


@pytest.mark.parametrize("lasting", FAULTS, ids=str)
def test_fault_that_lasts(
    load: Load, lasting: Lasting, instance: dg.DagsterInstance, unassisted: None
) -> None:
    _settle(load)
    operator = Operator(instance, _spec(load, lasting.max_lag_records), services=True)
    assert not operator.failing()
    assert not operator.alerts()
    expected = {key.replace("…", load.append): says for key, says in lasting.reported.items()}
    load.go()
    began = time.monotonic()
    with lasting.fault(lasting.component):
        reported, seconds_reported = _told(operator, set(expected)), time.monotonic() - began
        again = _round(operator)
    began = time.monotonic()
    _settle(load)
    resolved, seconds_back = _resolved(operator), time.monotonic() - began
    lost, twice = load.lost_and_twice()
    _record(str(lasting), reported, seconds_reported, seconds_back, lost, twice)
    assert sorted(notice.alert.key for notice in reported) == sorted(expected)
    for notice in reported:
        _assert_useful(notice, expected[notice.alert.key])
    assert not again, again
    assert sorted(notice.alert.key for notice in resolved) == sorted(expected)
    assert (lost, twice) == (0, 0)


def test_who_looks_starts_what_was_stopped(
    load: Load, instance: dg.DagsterInstance, hasty: None
) -> None:
    """In the local stack the checks themselves start what does not run; nothing is reported."""
    _settle(load)
    operator = Operator(instance, _spec(load))
    with down("aws"):
        assert not operator.failing()
        assert not operator.alerts()
        assert all(service.running for service in local_stack.status(settings()))


def test_a_component_that_cannot_start(
    load: Load, instance: dg.DagsterInstance, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program has its port, say: its own last words are reported."""
    monkeypatch.setattr(health, "EXITS", 1)  # the supervisor waits longer from start to start
    _settle(load)
    operator, began = Operator(instance, _spec(load), services=True), time.monotonic()
    with robbed("aws"):
        reported, seconds_reported = _told(operator, {"service aws"}), time.monotonic() - began
        again = _round(operator)
    began, resolved = time.monotonic(), _resolved(operator)
    _record(
        "aws-robbed", reported, seconds_reported, time.monotonic() - began, *load.lost_and_twice()
    )
    assert [notice.alert.key for notice in reported] == ["service aws"]
    assert not again, again
    assert [notice.alert.key for notice in resolved] == ["service aws"]


def _settle(load: Load) -> None:
    """Everything runs, and every catalog has every record."""
    local_stack.up(settings())
    load.pause()
    assert load.caught_up(PATIENCE_SECONDS)
    assert load.to_snowflake() == load.sent


def _spec(load: Load, max_lag_records: int = 100_000) -> TopicSpec:
    """Of the append topic, which has no file."""
    spec = control.find_topic(settings(), load.append)
    checks = spec.checks.model_copy(update={"max_lag_records": max_lag_records})
    return spec.model_copy(update={"checks": checks})


def _round(operator: Operator) -> list[Notice]:
    operator.look()
    operator.check()
    return operator.alerts()


def _told(operator: Operator, expected: set[str]) -> list[Notice]:
    """What is reported until all that is expected was."""
    deadline, reported = time.monotonic() + PATIENCE_SECONDS, _round(operator)
    while not expected <= {notice.alert.key for notice in reported}:
        assert time.monotonic() < deadline, reported
        time.sleep(2)
        reported += _round(operator)
    assert all(notice.state == "firing" for notice in reported), reported
    return reported


def _resolved(operator: Operator) -> list[Notice]:
    """What is reported once every check comes to a verdict again, and is content."""

    def green() -> bool:
        result = operator.check()
        return result.success and all(e.passed for e in result.get_asset_check_evaluations())

    wait_until(green, PATIENCE_SECONDS, pause=1)
    reported = operator.alerts()
    assert all(notice.state == "resolved" for notice in reported), reported
    assert not _round(operator)
    return reported


def _assert_useful(notice: Notice, says: str) -> None:
    """It names the component and a fix, and is no stack trace."""
    assert re.search(says, notice.text), notice.text
    assert "`topicberg " in (notice.alert.remediation or ""), notice.alert.remediation
    assert "\tat " not in notice.text
    assert "Traceback" not in notice.text


def _record(
    fault: str,
    reported: list[Notice],
    seconds_reported: float,
    seconds_back: float,
    lost: int,
    twice: int,
) -> None:
    alerts = [notice.alert for notice in reported]
    note(
        lasting=fault,
        reported=[(a.key, a.severity, a.what, a.remediation) for a in alerts],
        seconds_reported=round(seconds_reported, 1),
        seconds_back=round(seconds_back, 1),
        lost=lost,
        twice=twice,
    )
