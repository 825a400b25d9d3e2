"""The sensors of the alerts.

``alerts`` reads the state of everything (:mod:`.jobs.observation`), ``engine`` asks the engine,
which watches all else (:mod:`topicberg.alerts.watch`). :mod:`topicberg.alerts` decides on alerts.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg

from topicberg.alerts.alert import ActiveAlert, AlertState, active_alerts, markdown
from topicberg.alerts.outages import DISK
from topicberg.alerts.settings import alert_settings
from topicberg.clients.liveness import SECONDS, Check, answers_http
from topicberg.dagster.runs import location_of_automation, location_of_sensor
from topicberg.documents import RUNBOOK, address_of
from topicberg.endpoints import is_stopped, runtime_file
from topicberg.orchestration.assets.alerts import alerts_event, alerts_key
from topicberg.orchestration.jobs.observation import ReadBefore, observe
from topicberg.settings import Settings, settings

INTERVAL_SECONDS = 15
"""With :data:`topicberg.checks.topic.PATIENCE_MS`, a failure of the engine is sent in a minute."""
LONG_SECONDS, REST_SECONDS = 5.0, 60.0
"""After an evaluation that took so long, as of thousands of tables, the next one begins a minute
later: they take a tenth of the time."""
NUMBERS_SECONDS = 300  # How often the list in the UI is reported while only numbers in it change.
SENSOR, ENGINE_SENSOR = "alerts", "engine"
ENGINE_INTERVAL_SECONDS = 20
CONFIRM_SECONDS = 10.0  # Within this time, an engine that ended is started again.
ENGINE = "tableflow"


def alert_sensor(wrong: str | None = None) -> dg.SensorDefinition:
    """:param wrong: the mistakes in the topic specs when the code location was loaded"""
    before = ReadBefore()

    @dg.sensor(
        name=SENSOR,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports what keeps the engine from committing, failing checks, stale tables, "
        "failing runs, sensors and schedules: "
        "once when a fault begins and once when it is resolved. Always to `alerts.jsonl` in the "
        "state directory; to a webhook, Slack, Teams, PagerDuty or by e-mail if TOPICBERG_ALERT_… "
        "is set. The asset `alerts/…` lists the active ones, and so does `topicberg alerts`.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        # They are read by the daemon only, and take a while to import.
        from topicberg.alerts import channels, dagster_processes, evaluation, watch
        from topicberg.alerts.alert import read_decisions

        assert context.repository_def is not None  # noqa: S101  the daemon always gives it
        config, chosen, state = settings(), alert_settings(), AlertState.parse(context.cursor)
        began = time.time()
        if state.rests_until is not None and began < state.rests_until <= began + REST_SECONDS:
            return dg.SensorResult(skip_reason="the last evaluation took long")
        location = location_of_sensor(context)
        others = stored_states(context.instance, config, location)
        others.pop(SENSOR, None)
        # Others have seen also those that began and ended since the last evaluation.
        outages = dict(ChainMap(*(other.outages for other in others.values()), state.outages))
        state = state.model_copy(update={"outages": outages})
        elsewhere = watch.reported_faults(others.values())
        is_watched = config.deployment == "local" and "watch" in others
        if is_watched and (disk := watch.disk_fault(config)):  # which the watch cannot write then
            outage = state.outages.get(DISK)
            elsewhere.setdefault(DISK, outage.alert if outage else disk)
        seen = observe(context.instance, context.repository_def, state, wrong, location, before)
        ui, seen = dagster_processes.ui_url(config, chosen), replace(seen, elsewhere=elsewhere)
        state, faults = evaluation.evaluate(state, seen, ui, address_of(RUNBOOK, ui))
        ended, decisions = time.time(), read_decisions(config)  # a slow channel is no evaluation
        to = channels.channels(config, chosen)
        state, problems = channels.deliver(state, faults, to, decisions)
        for problem in problems:
            context.log.warning(problem)
        listed = active_alerts([state, *others.values()], decisions, datetime.now(UTC))
        shown = _digest(listed, began)
        has_list = context.repository_def.asset_graph.has(alerts_key(config))
        events = [alerts_event(config, listed)] if has_list and _is_news(state.shown, shown) else []
        changes = {
            "shown": shown if events else state.shown,
            "rests_until": ended + REST_SECONDS if ended - began > LONG_SECONDS else None,
        }
        return dg.SensorResult(
            skip_reason="; ".join(
                [", ".join(sorted(state.alerts)) or "no active alerts", *problems]
            ),
            cursor=state.model_copy(update=changes).model_dump_json(),
            asset_events=events,
        )

    return alerts


def _digest(alerts: Sequence[ActiveAlert], now: float) -> str:
    """Return what is the same for the same alerts, for the same list, and for some minutes."""
    keys = repr([(active.alert.key, active.shown_status) for active in alerts])
    digests = (hashlib.sha256(t.encode()).hexdigest()[:8] for t in (keys, markdown(alerts)))
    return ":".join([*digests, f"{now // NUMBERS_SECONDS:.0f}"])


def _is_news(shown: str, digest: str) -> bool:
    """Return whether other alerts are active, or the numbers of those changed minutes ago."""
    before, now = shown.split(":"), digest.split(":")
    return before[0] != now[0] or (before[1:2] != now[1:2] and before[2:] != now[2:])


def stored_states(
    instance: dg.DagsterInstance, config: Settings, location: str | None = None
) -> dict[str, AlertState]:
    """Return what the sensors, of a code location or any, and the engine's watch have stored."""
    from topicberg.alerts.watch import STATE_FILE, read_state

    states = {} if is_stopped(config) else {"watch": read_state(config.state_dir / STATE_FILE)}
    for state in instance.all_instigator_state():
        name = state.instigator_name
        if name in (SENSOR, ENGINE_SENSOR) and location in (None, location_of_automation(state)):
            states[name] = AlertState.parse(getattr(state.instigator_data, "cursor", None))
    return states


def evaluated_at(instance: dg.DagsterInstance) -> datetime | None:
    """Return when the sensor evaluated the alerts last; None: never."""
    times = [
        ticks[0].timestamp
        for state in instance.all_instigator_state()
        if state.instigator_name == SENSOR
        and (ticks := instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1))
    ]
    return datetime.fromtimestamp(max(times), UTC) if times else None


def engine_sensor() -> dg.SensorDefinition:
    """Return the sensor that watches the engine, which watches all else. It costs one request: its
    alert may not wait for what the sensor ``alerts`` reads."""

    @dg.sensor(
        name=ENGINE_SENSOR,
        minimum_interval_seconds=ENGINE_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Sends an alert when the engine of the local stack does not answer. The engine "
        "watches the other services, and Dagster.",
    )
    def engine(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        # They are read by the daemon only, and take a while to import.
        from topicberg.alerts import channels, dagster_processes, watch
        from topicberg.alerts.alert import read_decisions

        config, chosen, now = settings(), alert_settings(), datetime.now(UTC)
        check, restarts = engine_check(config), watch.read_restarts(config)
        restarting = watch.restart_problem(restarts, now.timestamp()) if check else None
        why = restarting or (confirmed(check) if check else None)
        state, faults = AlertState.parse(context.cursor), {}
        if why is not None:
            if restarting is not None:
                alert = watch.restarting_fault(ENGINE, restarting, now)
            else:
                message = watch.with_restarts(why, restarts, now.timestamp())
                alert = watch.fault(ENGINE, message, now, watch.how_to_restart(ENGINE))
            link = dagster_processes.ui_url(config, chosen)
            faults[alert.key] = alert.model_copy(
                update={"link": link, "runbook": address_of(RUNBOOK, link)}
            )
        decisions, to = read_decisions(config), channels.channels(config, chosen)
        state, problems = channels.deliver(state, faults, to, decisions)
        for problem in problems:
            context.log.warning(problem)
        context.update_cursor(state.model_dump_json())
        fine = "the engine answers" if check else "the local stack is stopped"
        return dg.SkipReason("; ".join([why or fine, *problems]))

    return engine


def engine_check(config: Settings) -> Check | None:
    """Return the check of the stack's engine; None: the stack is stopped."""
    if is_stopped(config):
        return None
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
