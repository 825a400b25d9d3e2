"""Acknowledged and silenced alerts: what is sent, what is listed, and when that ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicberg.alerts.alert import (
    DECISIONS_FILE,
    Acknowledgement,
    Alert,
    AlertState,
    Decisions,
    Notice,
    Silence,
    acknowledge,
    active_alerts,
    after,
    changes,
    end_silence,
    markdown,
    read_decisions,
    silence,
)
from topicberg.alerts.channels import Channel, deliver
from topicberg.alerts.evaluation import evaluate
from topicberg.alerts.observation import CheckRuns, EndedRun, Observation
from topicberg.settings import Settings

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def alert(key: str, **fields: object) -> Alert:
    given: dict[str, object] = {
        **{"title": key, "what": "w", "severity": "error", "since": T0, "link": "http://ui/"},
        **fields,
    }
    return Alert.model_validate({"key": key, **given})


ORDERS = alert("check iceberg/orders:tableflow", assets=("iceberg/orders",))


class Desk:
    """Evaluates alerts at any time."""

    def __init__(self, *faults: Alert) -> None:
        self.now = {one.key: one for one in faults}
        self.state, self.decisions, self.at = AlertState(), Decisions(), T0

    def tick(self, passed: timedelta = timedelta(minutes=1)) -> list[tuple[str, str]]:
        self.at += passed
        notices = changes(self.state, self.now, self.decisions, self.at)
        self.state = after(self.state, notices, self.now, self.decisions)
        self.state = AlertState.parse(self.state.model_dump_json())  # as the sensor keeps it
        return [(notice.state, notice.alert.key) for notice in notices]

    def acknowledge(self, key: str, lasting: timedelta) -> None:
        given = Acknowledgement(by="ann", reason="on it", at=self.at, until=self.at + lasting)
        known = self.decisions.acknowledged
        self.decisions = self.decisions.model_copy(update={"acknowledged": {**known, key: given}})

    def silence(self, pattern: str, lasting: timedelta) -> None:
        given = Silence(pattern=pattern, by="ann", at=self.at, until=self.at + lasting)
        self.decisions = self.decisions.model_copy(update={"silences": (given,)})

    def listed(self) -> list[tuple[str, str]]:
        found = active_alerts([self.state], self.decisions, self.at)
        return [(one.alert.key, one.status) for one in found]


def test_acknowledgement_is_sent_once_and_ends_with_the_fault() -> None:
    desk = Desk(ORDERS)
    assert desk.tick() == [("firing", ORDERS.key)]
    desk.acknowledge(ORDERS.key, 24 * HOUR)
    assert desk.tick() == [("acknowledged", ORDERS.key)]
    assert (desk.tick(), desk.listed()) == ([], [(ORDERS.key, "acknowledged")])
    desk.now = {}
    assert desk.tick() == [("resolved", ORDERS.key)]
    desk.now = {ORDERS.key: ORDERS}
    assert desk.tick() == [("firing", ORDERS.key)], "another fault, which nobody works on"
    assert (desk.tick(), desk.listed()) == ([], [(ORDERS.key, "active")])


def test_listed_fault_has_its_current_numbers() -> None:
    desk = Desk(ORDERS)
    desk.tick()
    later = {"what": "50 records wait", "since": ORDERS.since + HOUR}
    desk.now = {ORDERS.key: ORDERS.model_copy(update=later)}
    assert desk.tick() == []
    (listed,) = active_alerts([desk.state], desk.decisions, desk.at)
    assert (listed.alert.what, listed.alert.since) == ("50 records wait", ORDERS.since)


def test_fault_that_outlasts_its_acknowledgement_is_sent_again_once() -> None:
    desk = Desk(ORDERS)
    desk.tick()
    desk.acknowledge(ORDERS.key, HOUR)
    desk.tick()
    assert (desk.tick(HOUR), desk.tick()) == ([("firing", ORDERS.key)], [])
    assert desk.listed() == [(ORDERS.key, "active")]
    desk.acknowledge(ORDERS.key, HOUR)
    assert desk.tick() == [("acknowledged", ORDERS.key)]


def test_acknowledged_warning_that_becomes_an_error_is_sent() -> None:
    desk = Desk(ORDERS.model_copy(update={"severity": "warning"}))
    desk.tick()
    desk.acknowledge(ORDERS.key, HOUR)
    desk.tick()
    desk.now = {ORDERS.key: ORDERS}
    assert desk.tick() == [("firing", ORDERS.key)]


@pytest.mark.parametrize("pattern", [ORDERS.key, "iceberg/orders", "orders", "ord*", "check *"])
def test_silenced_fault_is_listed_and_sent_when_the_silence_ends(pattern: str) -> None:
    desk = Desk(ORDERS)
    desk.silence(pattern, HOUR)
    assert desk.tick() == desk.tick() == []
    assert desk.listed() == [(ORDERS.key, "silenced")]
    assert (desk.tick(HOUR), desk.listed()) == ([("firing", ORDERS.key)], [(ORDERS.key, "active")])


@pytest.mark.parametrize("pattern", ["order", "ice", "iceberg/order?s", "glue/*"])
def test_silence_of_something_else_silences_nothing(pattern: str) -> None:
    desk = Desk(ORDERS)
    desk.silence(pattern, HOUR)
    assert desk.tick() == [("firing", ORDERS.key)]


def test_fault_that_ends_while_it_is_silenced_is_resolved_if_it_was_sent() -> None:
    desk = Desk(ORDERS)
    desk.tick()
    desk.silence("orders", HOUR)
    other = alert("check iceberg/orders:schema", assets=("iceberg/orders",))
    desk.now[other.key] = other
    assert desk.tick() == []
    desk.now = {}
    assert (desk.tick(), desk.tick(2 * HOUR)) == ([("resolved", ORDERS.key)], [])


def test_error_whose_cause_is_a_warning_is_sent_to_channels_of_errors() -> None:
    sent: list[Notice] = []
    pages = Channel("pagerduty", sent.append, least="error")
    cause = alert("silent check_tables_schedule", severity="warning")
    follows = alert("checks", cause=cause.key)
    state, _ = deliver(AlertState(), {cause.key: cause, follows.key: follows}, [pages])
    assert [notice.alert.key for notice in sent] == [follows.key]
    state, _ = deliver(state, {cause.key: cause}, [pages])
    assert [notice.state for notice in sent] == ["firing", "resolved"]


def test_consequence_that_becomes_worse_than_its_cause_is_sent() -> None:
    cause = alert("tick snapshots", severity="warning")
    follows = alert("check iceberg/orders:freshness", severity="warning", cause=cause.key)
    desk = Desk(cause, follows)
    assert desk.tick() == [("firing", cause.key)]
    desk.now[follows.key] = follows.model_copy(update={"severity": "error"})
    assert desk.tick() == [("firing", follows.key)]


def test_consequence_of_a_silenced_warning_is_not_sent() -> None:
    cause = alert("silent check_tables_schedule", severity="warning")
    desk = Desk(cause, alert("checks", cause=cause.key))
    desk.silence(cause.key, HOUR)
    assert desk.tick() == []
    assert desk.listed() == [("checks", "consequence"), (cause.key, "silenced")]
    assert sorted(desk.tick(HOUR)) == [("firing", "checks"), ("firing", cause.key)]


@given(st.lists(st.sampled_from(["tick", "fault", "end", "ack", "silence", "hour"]), max_size=30))
def test_every_fault_is_sent_and_ends_whatever_is_decided(steps: list[str]) -> None:
    """Who gets the notices knows, once nothing is silenced, exactly the faults that exist."""
    desk, known = Desk(), set[str]()

    def tick(passed: timedelta = timedelta(minutes=1)) -> None:
        for state, key in desk.tick(passed):
            if state == "firing":
                known.add(key)
            else:
                assert key in known
                known.discard(key) if state == "resolved" else None

    for step in steps:
        if step in ("tick", "hour"):
            tick(HOUR if step == "hour" else timedelta(minutes=1))
        elif step == "fault":
            desk.now = {ORDERS.key: ORDERS}
        elif step == "end":
            desk.now = {}
        elif step == "ack":
            desk.acknowledge(ORDERS.key, HOUR)
        else:
            desk.silence("orders", HOUR)
    tick()
    assert known <= desk.now.keys()
    tick(2 * HOUR)
    assert known == desk.now.keys()
    assert {key for key, _ in desk.listed()} == known


def test_failed_run_that_is_silenced_is_known_until_its_work_is_done() -> None:
    desk = Desk()
    desk.silence("run *", HOUR)
    runs = CheckRuns("check_tables", "s", scheduled=False, stack_stopped=False, ended_at=None)

    def tick(*ended: EndedRun) -> list[tuple[str, str]]:
        seen = Observation(at=desk.at, check_runs=runs, assets=frozenset({"a"}), runs=ended)
        desk.state, desk.now = evaluate(desk.state, seen, "http://ui")
        return desk.tick()

    def run(*, succeeded: bool) -> EndedRun:
        return EndedRun("1", "shop", succeeded, False, T0, frozenset({"a"}), frozenset())

    assert tick(run(succeeded=False)) == tick() == []
    assert desk.listed() == [("run shop", "silenced")]
    desk.at += HOUR
    assert tick() == [("firing", "run shop")]
    assert tick(run(succeeded=True)) == [("resolved", "run shop")]


def test_decisions_are_kept_in_the_state_directory_until_they_expire(tmp_path: Path) -> None:
    config = Settings(state_dir=tmp_path)
    assert read_decisions(config) == Decisions()
    given = acknowledge(config, "k", "on it", HOUR)
    silence(config, "orders", "", HOUR)
    longer = silence(config, "orders", "deploy", 2 * HOUR)
    silence(config, "old", "", -timedelta(days=40))
    assert read_decisions(config) == Decisions(acknowledged={"k": given}, silences=(longer,))
    assert longer.by_whom.endswith(" (deploy)")
    end_silence(config, "orders")
    assert read_decisions(config).silences == ()
    assert (tmp_path / DECISIONS_FILE).stat().st_mode & 0o777 == 0o600


def test_damaged_decisions_silence_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Settings(state_dir=tmp_path)
    (tmp_path / DECISIONS_FILE).write_text('{"silences": 1}')
    assert read_decisions(config) == Decisions()
    assert "no alert is silenced" in caplog.text


def test_state_that_is_damaged_is_an_empty_one() -> None:
    assert AlertState.parse(None) == AlertState.parse('{"alerts": 1}') == AlertState()


def test_list_shows_what_is_needed_at_a_glance() -> None:
    full = ORDERS.model_copy(
        update={"remediation": "run `topicberg tableflow resume orders`", "runbook": "http://ui/d"}
    )
    desk = Desk(full, alert("check iceberg/a:volume", severity="warning"))
    desk.tick()
    text = markdown(active_alerts([desk.state], desk.decisions, desk.at))
    assert text.startswith("2 active alerts, 1 error\n\n**error**")
    assert "`iceberg/orders`, since 2026-03-01 12:00:00 UTC; active" in text
    assert "Fix: run `topicberg tableflow resume orders`" in text
    assert "[open](<http://ui/>) · [runbook](<http://ui/d>)" in text
    assert markdown([]) == "No active alerts."
