"""A process that is stopped (SIGSTOP): reported within a minute, and resolved when it continues.

Of each service of the local stack, and of the engine; Dagster's are in :mod:`test_bad_night`. Their
ports accept connections all the while.
"""

from __future__ import annotations

import time

import dagster as dg
import pytest
from faults import stopped
from waiting import wait_until

from topicberg.alerts.alert import Notice
from topicberg.alerts.channels import alerts_file
from topicberg.endpoints import Endpoints
from topicberg.orchestration.jobs.alerts import engine_sensor
from topicberg.settings import settings
from topicberg.tableflow.service.status import read_status
from topicberg.topics import check_topics
from topicberg_local import health
from topicberg_local import stack as local_stack
from topicberg_local.answers import unanswered
from topicberg_local.engine import NEEDED

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

ALERT_SECONDS, PATIENCE_SECONDS = 60.0, 180.0
SERVICES = [name for name in local_stack.SERVICES if name != "tableflow"]


def notices(name: str, since: int) -> list[Notice]:
    lines = alerts_file(settings()).read_text().splitlines()[since:]
    found = map(Notice.model_validate_json, lines)
    return [notice for notice in found if notice.alert.key == f"service {name}"]


def sent() -> int:
    file = alerts_file(settings())
    file.touch()
    return len(file.read_text().splitlines())


def state(name: str) -> tuple[str, str | None]:
    config = settings()
    found = [*local_stack.status(config), *health.dagster_status(config)]
    return next((one.state, one.problem) for one in found if one.name == name)


def phases() -> set[str]:
    """Of the topics with tables, whether or not the engine has them yet."""
    config = settings()
    specs = [spec for spec in check_topics(config)[0] if spec.has_table(config)]
    return {read_status(config, spec.name).phase for spec in specs}


def is_answered() -> bool:
    return not unanswered({one.name: one.answers for one in local_stack.services(settings())})


@pytest.mark.parametrize("name", SERVICES)
def test_frozen_service_is_reported_within_a_minute(stack: Endpoints, name: str) -> None:
    wait_until(is_answered, PATIENCE_SECONDS)
    if name in NEEDED:
        wait_until(lambda: "FAILED" not in phases(), PATIENCE_SECONDS)
    since, began = sent(), time.monotonic()
    with stopped(name):
        # The proxy of Kafka and the registry cannot answer without them: not a second alert.
        wait_until(lambda: notices(name, since), ALERT_SECONDS)
        assert time.monotonic() - began <= ALERT_SECONDS
        assert state(name)[0] == "unresponsive"
        if name in NEEDED:
            wait_until(lambda: phases() == {"FAILED"}, PATIENCE_SECONDS)
    wait_until(lambda: notices(name, since)[-1].state == "resolved", PATIENCE_SECONDS)
    assert [notice.state for notice in notices(name, since)] == ["firing", "resolved"]
    assert state(name) == ("running", None)


def test_frozen_engine_is_reported_by_the_sensor(stack: Endpoints) -> None:
    instance = dg.DagsterInstance.ephemeral()
    sensor, cursor = engine_sensor(), None

    def tick() -> str:
        nonlocal cursor
        context = dg.build_sensor_context(instance=instance, cursor=cursor)
        result = sensor.evaluate_tick(context)
        cursor = result.cursor
        return str(result.skip_message)

    assert tick() == "the engine answers"
    since = sent()
    with stopped("tableflow"):
        assert tick() == "no answer within 5 s"
        assert [one.state for one in notices("tableflow", since)] == ["firing"]
        assert state("tableflow")[0] == "unresponsive"
    wait_until(lambda: tick() == "the engine answers", PATIENCE_SECONDS)
    assert [one.state for one in notices("tableflow", since)] == ["firing", "resolved"]
