"""``topicberg alerts``: the active alerts, who works on one, and what is not sent for a while."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.checks.finding import moment
from topicberg.cli.output import AsJson, complain, echo, echo_json, exit_if, settings, warn
from topicberg.errors import SpecError, TopicbergError
from topicberg.wording import count, suggestion

if TYPE_CHECKING:
    from topicberg.alerts.alert import ActiveAlert
    from topicberg.settings import Settings

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_OLD = timedelta(minutes=5)
"""The sensor evaluates alerts four times a minute, those of very many tables once."""

app = typer.Typer(help="The active alerts, and decisions about them.", invoke_without_command=True)


@app.callback()
def alerts(context: typer.Context, as_json: AsJson = False) -> None:
    """List the active alerts: tables, since when, cause, fix and runbook.

    Exits with 1 if an error is active that is neither acknowledged nor silenced.
    """
    if context.invoked_subcommand is not None:
        return
    active_alerts, evaluated_at = _active(settings())
    if as_json:
        echo_json([active.document for active in active_alerts])
    else:
        _print(active_alerts)
        _report_age(evaluated_at)
    exit_if(any(a.status == "active" and a.alert.severity == "error" for a in active_alerts))


Lasting = Annotated[
    str, typer.Option("--for", metavar="DURATION", help="For how long: 30m, 8h or 2d.")
]
Reason = Annotated[str, typer.Option(help="Why; shown with the alert.")]


@app.command()
def acknowledge(
    key: Annotated[str, typer.Argument(help="Key of the alert, as `topicberg alerts` shows it.")],
    lasting: Lasting = "24h",
    reason: Reason = "",
) -> None:
    """Say that you work on an alert. It is sent again if it is still active after the duration."""
    from topicberg.alerts import alert as decisions

    config, duration = settings(), _duration(lasting)
    known = [active.alert.key for active in _active(config)[0]]
    if key not in known:
        raise TopicbergError(
            f"no active alert {key!r}{suggestion(key, known)}",
            hint="run `topicberg alerts` to see the keys of the active alerts",
        )
    given = decisions.acknowledge(config, key, reason, duration)
    echo(f"{key}: acknowledged by {given.by_whom} until {moment(given.until)}")


@app.command()
def silence(
    pattern: Annotated[
        str, typer.Argument(help="An alert's key, an asset or a table; * is any text.")
    ],
    lasting: Lasting = "1h",
    reason: Reason = "",
) -> None:
    """Do not send alerts for a while; those that are still active afterwards are sent then."""
    from topicberg.alerts import alert as decisions

    config = settings()
    given = decisions.silence(config, pattern, reason, _duration(lasting))
    covered = sum(given.covers(a.alert.key, a.alert.assets) for a in _active(config)[0])
    echo(
        f"{pattern}: silenced by {given.by_whom} until {moment(given.until)}; it covers "
        f"{count(covered, 'active alert')}"
    )


@app.command()
def unsilence(pattern: Annotated[str, typer.Argument(help="As it was silenced.")]) -> None:
    """End a silence now."""
    from topicberg.alerts import alert as decisions

    config, now = settings(), datetime.now(UTC)
    silences = decisions.read_decisions(config).silences
    known = [silence.pattern for silence in silences if silence.until > now]
    if pattern not in known:
        raise TopicbergError(
            f"nothing is silenced by {pattern!r}{suggestion(pattern, known)}",
            hint="run `topicberg alerts` to see what is silenced",
        )
    decisions.end_silence(config, pattern)
    echo(f"{pattern}: no longer silenced")


@app.command("test")
def send_test() -> None:
    """Send a test alert to every channel and route, and resolve it."""
    from topicberg.alerts.alert import Alert, Notice
    from topicberg.alerts.channels import channels, send_by
    from topicberg.alerts.dagster_processes import ui_url
    from topicberg.alerts.settings import alert_settings

    config, chosen, now = settings(), alert_settings(), datetime.now(UTC)
    alert = Alert(
        key="test",
        title="a test of the channels",
        what="nothing is wrong: `topicberg alerts test` sent this",
        severity="error",
        since=now,
        link=ui_url(config, chosen),
    )
    failed = 0
    for channel in channels(config, chosen):
        try:
            send_by(channel, Notice(state="firing", alert=alert, at=now))
            send_by(channel, Notice(state="resolved", alert=alert, at=now))
            echo(f"{channel.name}: sent")
        except TopicbergError as error:
            failed += 1
            complain(str(error))
    exit_if(failed)


def _active(config: Settings) -> tuple[list[ActiveAlert], datetime | None]:
    """Return the active alerts, and when the sensor evaluated them last; None: never."""
    from topicberg.alerts.alert import active_alerts, read_decisions
    from topicberg.dagster.home import opened_instance
    from topicberg.orchestration.jobs.alerts import evaluated_at, stored_states

    with opened_instance(config) as instance:
        states = stored_states(instance, config).values()
        evaluation_time = evaluated_at(instance)
    return active_alerts(states, read_decisions(config), datetime.now(UTC)), evaluation_time


def _print(active_alerts: Sequence[ActiveAlert]) -> None:
    for active in active_alerts:
        alert = active.alert
        color = "red" if alert.severity == "error" else "yellow"
        echo(f"{alert.severity}: {alert.title}", fg=color, bold=active.status == "active")
        rows = {
            "key": alert.key,
            "tables": active.concerned,
            "since": moment(alert.since),
            "status": active.shown_status,
            "what": alert.what,
            "cause": alert.cause,
            "fix": alert.remediation,
            "owners": ", ".join(alert.owners),
            "runbook": alert.runbook,
            "link": alert.link,
        }
        echo(f"  {name:<8}{text}" for name, text in rows.items() if text)
    errors = sum(active.alert.severity == "error" for active in active_alerts)
    numbers = f"{count(len(active_alerts), 'active alert')}, {count(errors, 'error')}"
    echo(numbers if active_alerts else "no active alerts")


def _report_age(evaluated_at: datetime | None) -> None:
    """Say that the list is old: a daemon that does not run reports nothing."""
    what = "has never run, so only what the engine watches is listed"
    if evaluated_at is not None:
        what = f"ran last at {moment(evaluated_at)}: the list is that old"
    if evaluated_at is None or datetime.now(UTC) - evaluated_at > _OLD:
        start = "run `topicberg ui`, or start Dagster's daemon and turn the sensor on"
        warn(f"the sensor `alerts` {what}; {start}")


def _duration(text: str) -> timedelta:
    """:raises SpecError: it is not a duration"""
    found = re.fullmatch(r"(\d{1,6})([mhd])", text)
    duration = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta()
    if not timedelta() < duration <= timedelta(days=365):
        raise SpecError(
            f"--for {text}: expected a duration of at most 365d",
            hint="write minutes, hours or days: 30m, 8h or 2d",
        )
    return duration
