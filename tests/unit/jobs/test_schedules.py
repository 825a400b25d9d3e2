"""Schedules of which one run at a time is enough."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._utils.error import serializable_error_info_from_exc_info
from lakehouses import lakehouse_of

from topicberg.alerts.observation import CHECKED_WITHIN, CHECKS_REST, CheckRuns
from topicberg.errors import LoginError, TopicbergError
from topicberg.orchestration.jobs.schedules import (
    PROJECT,
    schedule_unless_busy,
    skip_if_unavailable,
)
from topicberg.settings import settings

JOB = "look"


@dg.op
def slow() -> None:
    time.sleep(0.5)


@dg.job(name=JOB)
def look() -> None:
    slow()


def tick(instance: dg.DagsterInstance, rest: int) -> object:
    schedule = schedule_unless_busy(JOB, "* * * * *", rest)
    context = dg.build_schedule_context(instance, resources={"topicberg_lakehouse": lakehouse_of()})
    return schedule(context)


def test_schedule_rests_after_a_run_as_long_as_it_says() -> None:
    with dg.instance_for_test() as instance:
        assert isinstance(tick(instance, 1000), dg.RunRequest)
        look.execute_in_process(instance=instance, tags={PROJECT: settings().prefix})
        skipped = tick(instance, 1000)
        assert isinstance(skipped, dg.SkipReason)
        assert "at most 1/1001 of the time" in (skipped.skip_message or "")
        assert isinstance(tick(instance, 0), dg.RunRequest)
        (run,) = instance.get_run_records()
        assert run.end_time
        assert run.start_time
        wait = run.end_time - run.start_time - (time.time() - run.end_time)
        time.sleep(max(0.0, wait) + 0.1)
        assert isinstance(tick(instance, 1), dg.RunRequest)


def test_checks_that_took_long_are_overdue_later() -> None:
    now, took = datetime.now(UTC), timedelta(minutes=2)
    for age, is_overdue in ((timedelta(), False), (CHECKS_REST * took, False)):
        runs = CheckRuns("job", "schedule", True, False, now - CHECKED_WITHIN - age, took)
        assert runs.overdue(now) is is_overdue
    late = CHECKED_WITHIN + CHECKS_REST * took + timedelta(seconds=1)
    assert CheckRuns("job", "schedule", True, False, now - late, took).overdue(now)
    assert not CheckRuns("job", "schedule", False, False, now - late, took).overdue(now)


def test_skipped_tick_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_PASSWORD", "never-in-a-tick")
    error = ConnectionError("refused: Authorization: never-in-a-tick")
    skipped = skip_if_unavailable(Mock(side_effect=error))()
    assert isinstance(skipped, dg.SkipReason)
    assert "Authorization: [redacted]" in (skipped.skip_message or "")


def test_failed_tick_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_PASSWORD", "never-in-a-tick")

    def tick() -> None:
        raise ValueError("refused: Authorization: never-in-a-tick")

    with pytest.raises(TopicbergError) as failed:
        skip_if_unavailable(tick)()
    shown = str(serializable_error_info_from_exc_info((failed.type, failed.value, failed.tb)))
    assert "Authorization: [redacted]" in shown
    assert "never-in-a-tick" not in shown


@pytest.mark.parametrize("error", [TopicbergError("the stack is stopped"), OSError("no state")])
def test_tick_without_its_deployment_is_skipped(error: Exception) -> None:
    def tick() -> None:
        raise error

    skipped = skip_if_unavailable(tick)()
    assert isinstance(skipped, dg.SkipReason)
    assert skipped.skip_message == str(error)


def test_tick_whose_login_is_refused_fails() -> None:
    def tick() -> None:
        raise LoginError("the catalog refuses the login")

    with pytest.raises(LoginError):
        skip_if_unavailable(tick)()
