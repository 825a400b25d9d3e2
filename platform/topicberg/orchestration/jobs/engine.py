"""The sensor that watches the engine, which watches all else (:mod:`topicberg.alerts.watch`).

It is a sensor of its own: it costs one request, and an alert may not wait for what the sensor
``alerts`` reads.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import dagster as dg

from topicberg.clients.liveness import SECONDS, Check, answers_http
from topicberg.documents import RUNBOOK, address_of
from topicberg.endpoints import runtime_file
from topicberg.settings import Settings, settings

INTERVAL_SECONDS = 20
CONFIRM_SECONDS = 10.0
"""Within this time, an engine that ended is started again."""
ENGINE = "tableflow"


def engine_sensor() -> dg.SensorDefinition:
    """Return the sensor."""

    @dg.sensor(
        name="engine",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Sends an alert when the engine of the local stack does not answer. The engine "
        "watches the other services, and Dagster.",
    )
    def engine(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        # They are read by the daemon only, and take a while to import.
        from topicberg.alerts.alert import AlertState
        from topicberg.alerts.channels import channels, deliver
        from topicberg.alerts.dagster_ui import ui_url
        from topicberg.alerts.decisions import read_decisions
        from topicberg.alerts.restarts import read_restarts, restart_problem, with_restarts
        from topicberg.alerts.settings import alert_settings
        from topicberg.alerts.watch import fault, how_to_restart, restarting_fault

        check, now = engine_check(settings()), datetime.now(UTC)
        restarts = read_restarts(settings())
        restarting = restart_problem(restarts, now.timestamp()) if check else None
        why = restarting or (confirmed(check) if check else None)
        state, faults, chosen = AlertState.parse(context.cursor), {}, alert_settings()
        if why is not None:
            if restarting is not None:
                alert = restarting_fault(ENGINE, restarting, now)
            else:
                message = with_restarts(why, restarts, now.timestamp())
                alert = fault(ENGINE, message, now, how_to_restart(ENGINE))
            link = ui_url(settings(), chosen)
            runbook = address_of(RUNBOOK, link)
            faults[alert.key] = alert.model_copy(update={"link": link, "runbook": runbook})
        decisions = read_decisions(settings())
        state, problems = deliver(state, faults, channels(settings(), chosen), decisions)
        for problem in problems:
            context.log.warning(problem)
        context.update_cursor(state.model_dump_json())
        return dg.SkipReason("; ".join([why or "the engine answers", *problems]))

    return engine


def engine_check(config: Settings) -> Check | None:
    """Return the check of the stack's engine; None: the stack is stopped."""
    try:
        url = json.loads(runtime_file(config).read_text())["services"][ENGINE]["url"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return answers_http(f"{url.removesuffix('/metrics')}/health")


def confirmed(check: Check) -> str | None:
    """Return why the engine does not answer, twice in :data:`CONFIRM_SECONDS`."""
    if (why := check(SECONDS)) is None:
        return None
    time.sleep(CONFIRM_SECONDS)
    return check(SECONDS) and why
