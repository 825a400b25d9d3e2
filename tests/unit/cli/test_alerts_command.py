"""``topicberg alerts``: the list, and what users decide about an alert."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from topicberg.alerts.alert import Alert, AlertState
from topicberg.alerts.watch import STATE_FILE
from topicberg.cli import app
from topicberg.endpoints import runtime_file
from topicberg.errors import TopicbergError
from topicberg.settings import Settings

KAFKA = Alert(
    key="service kafka",
    title="kafka does not answer",
    what="kafka does not answer: nothing listens",
    severity="error",
    since=datetime(2026, 3, 1, 12, tzinfo=UTC),
    link="http://ui",
    remediation="end it",
    runbook="http://ui/docs",
)


@pytest.fixture(autouse=True)
def state(new_project: Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a deployment whose Kafka does not answer, as the engine reports."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    found = AlertState(alerts={KAFKA.key: KAFKA}, sent_at={KAFKA.key: KAFKA.since})
    (new_project.state_dir / STATE_FILE).write_text(found.model_dump_json())
    runtime_file(new_project).touch()  # the stack runs
    return new_project.state_dir


def alerts(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["alerts", *arguments])


def documents() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(alerts("--json").stdout)
    return found


def test_list_shows_tables_since_cause_fix_and_runbook() -> None:
    shown = alerts()
    assert shown.exit_code == 1, "an error is active"
    for text in (
        "error: kafka does not answer",
        "tables  all tables",
        "since   2026-03-01 12:00:00 UTC",
        "status  active",
        "what    kafka does not answer: nothing listens",
        "fix     end it",
        "runbook http://ui/docs",
        "1 active alert, 1 error",
        "the sensor `alerts` has never run",
    ):
        assert text in shown.output
    (document,) = documents()
    assert Alert.model_validate(document) == KAFKA
    assert document["status"] == "active"


def test_acknowledged_error_is_listed_and_is_no_failure() -> None:
    done = alerts("acknowledge", "service kafka", "--for", "2h", "--reason", "disk is full")
    assert done.exit_code == 0, done.output
    assert "acknowledged by" in done.output
    shown = alerts()
    assert shown.exit_code == 0
    assert "(disk is full) until" in shown.output


def test_silence_is_listed_and_ends_by_command() -> None:
    assert "it covers 1 active alert" in alerts("silence", "service *", "--for", "30m").output
    assert documents()[0]["status"] == "silenced"
    assert alerts("unsilence", "service *").exit_code == 0
    assert documents()[0]["status"] == "active"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("acknowledge", "service kafk"), "did you mean service kafka", "run `topicberg alerts`"),
        (("unsilence", "x"), "nothing is silenced by 'x'", "run `topicberg alerts`"),
        (("silence", "x", "--for", "1w"), "--for 1w: expected a duration", "30m, 8h or 2d"),
        (("silence", "x", "--for", "0h"), "--for 0h: expected a duration", "30m, 8h or 2d"),
        (("silence", "x", "--for", "999999d"), "at most 365d", "30m, 8h or 2d"),
    ],
)
def test_wrong_decision_is_an_error_with_a_hint(
    arguments: tuple[str, ...], message: str, hint: str
) -> None:
    error = alerts(*arguments).exception
    assert isinstance(error, TopicbergError)
    assert message in error.message
    assert hint in (error.hint or "")


def test_test_sends_to_every_channel_and_names_what_fails(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICBERG_ALERT_SLACK_URL", "http://127.0.0.1:9/hook")
    done = alerts("test")
    assert done.exit_code == 1
    assert "file: sent" in done.output
    assert "the alert channel slack does not accept notices" in done.output
    lines = (state / "alerts.jsonl").read_text().splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["firing", "resolved"]
