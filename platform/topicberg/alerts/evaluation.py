"""Which faults exist now: from the state of everything, not from events.

So nothing is missed while the daemon was down, nothing is reported twice, and what is resolved is
noticed. Pure functions of an observation and the state of the last evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from topicberg.alerts.alert import Alert, AlertState, Work
from topicberg.alerts.observation import (
    CHECKED_WITHIN,
    Automation,
    CheckRuns,
    EndedRun,
    Observation,
    StepError,
)
from topicberg.alerts.outages import SERVICE, with_outages
from topicberg.checks.finding import moment
from topicberg.errors import split_hint
from topicberg.wording import listed

MAX_PENDING = 100  # Failed runs whose work is known; of older ones, only that their kind failed.
UNCHECKED_TICKS = 40  # For how many evaluations more the checks may not run: four each minute.
SILENT_EVALUATIONS = 8  # In how many evaluations in a row a sensor has not ticked.
HANGING_EVALUATIONS = EARLY_EVALUATIONS = 2
QUEUED_TOO_LONG = timedelta(minutes=15)
MAX_SHOWN = 5  # Assets that an alert names.
_RPC = re.compile(r'_InactiveRpcError.*?details = "([^"]*)"', re.DOTALL)
"""What gRPC says to Dagster's daemon of a code location's server that ended or hangs."""
_RPC_MESSAGE = "the server of the code location does not answer"
_RPC_HINT = (
    "wait a minute: Dagster starts a server that ended again, and ends a tick that hangs; if it "
    "stays, restart the code location, locally: end `topicberg ui` and start it again"
)
_PLACE = re.compile(r'File "(.+?)", line (\d+)')  # How Python begins the text of a SyntaxError.


def evaluate(
    state: AlertState, seen: Observation, ui_url: str, runbook: str | None = None
) -> tuple[AlertState, dict[str, Alert]]:
    """Return the state with what was seen now, and key → fault.

    :param ui_url: address of the Dagster UI, ``runbook``: of the page that says what to do
    """
    ui, counted = ui_url.rstrip("/"), _counted(state.counted, seen)
    state, runs = _runs(state.model_copy(update={"counted": counted}), seen, ui)
    faults = [
        *_checks(counted, seen, ui),
        *_unchecked(counted, seen, ui),
        *_stale(seen, ui),
        *runs,
        *_queue(seen, ui),
        *_stuck(seen, ui),
        *_automations(seen, ui),
        *_hanging(counted, seen, ui),
        *_silent(counted, seen, ui),
        *_specs(seen, ui),
        *_shared(seen, ui),
    ]
    state, faults = with_outages(state, faults, seen)
    return state, {alert.key: _completed(alert, seen, runbook) for alert in faults}


def _completed(alert: Alert, seen: Observation, runbook: str | None) -> Alert:
    """Return an alert with the owners of its assets."""
    owners = {owner for asset in alert.assets for owner in seen.owners.get(asset, ())}
    return alert.model_copy(update={"owners": tuple(sorted(owners)), "runbook": runbook})


def _counted(before: Mapping[str, int], seen: Observation) -> dict[str, int]:
    """Return what is a fault if it lasts → in how many evaluations in a row it was seen. They are
    counted, not time: after the daemon was down, everything needs a moment."""
    runs, time = seen.check_runs, seen.at
    now = [
        *(f"check {check.asset}:{check.name}" for check in seen.failed_checks if check.is_early),
        *(["checks"] if runs.overdue(time) and not runs.stack_stopped else []),
        *(f"silent {each.name}" for each in seen.automations if each.is_silent(time)),
        *(_tick(each) for each in seen.automations if each.failed_at is None and each.hangs(time)),
    ]
    return {key: before.get(key, 0) + 1 for key in now}


def _tick(automation: Automation) -> str:
    return f"tick {automation.name} {automation.ticked_at}"


def _checks(counted: Mapping[str, int], seen: Observation, ui: str) -> Iterator[Alert]:
    """The checks that fail; of what a status says before them, what two evaluations have seen."""
    for check in seen.failed_checks:
        key, finding = f"check {check.asset}:{check.name}", check.finding
        if check.is_early and counted[key] < EARLY_EVALUATIONS:
            continue
        yield Alert(
            key=key,
            title=f"check {check.name} of {check.asset} failed",
            what=finding.what,
            severity=finding.severity,
            since=finding.since or seen.at,
            link=f"{ui}/assets/{check.asset}?view=checks&checkDetail={check.name}",
            remediation=finding.remediation,
            # A service, or a check.
            cause=f"check {cause}"
            if (cause := finding.cause) and not cause.startswith(SERVICE)
            else cause,
            assets=(check.asset,),
        )


def _unchecked(counted: Mapping[str, int], seen: Observation, ui: str) -> Iterator[Alert]:
    """The checks do not run: their results do not change, whatever happens to the tables."""
    if counted.get("checks", 0) < UNCHECKED_TICKS:
        return
    runs = seen.check_runs
    schedule = next((each for each in seen.automations if each.name == runs.schedule), None)
    is_turned_off = schedule is not None and schedule.is_turned_off
    reason, remediation = _why_unchecked(runs, schedule)
    yield Alert(
        key="checks",
        title="the checks do not run",
        what=f"no table is checked: {reason}",
        since=runs.ended_at or seen.at,
        link=f"{ui}/automation",
        remediation=remediation or f"see {runs.schedule} (Automation) and the runs of {runs.job}",
        cause=f"{'silent' if is_turned_off else 'tick'} {runs.schedule}",
    )


def _why_unchecked(runs: CheckRuns, schedule: Automation | None) -> tuple[str, str | None]:
    """Return the reason, and the remediation if it is known."""
    if schedule and not schedule.running:
        return f"{runs.schedule} is off", f"turn it on: Automation, {runs.schedule}"
    if schedule and schedule.skip_reason:
        message, hint = _message_and_hint(schedule.skip_reason)
        return f"{runs.schedule} was skipped: {message}", hint
    return f"no run of {runs.job} has ended", None


def _stale(seen: Observation, ui: str) -> Iterator[Alert]:
    is_overdue = seen.check_runs.overdue(seen.at)
    for stale in seen.stale_assets:
        # A check reports why it is stale, or will soon. A check that passes all the same means that
        # the topic has no new records: the topic's own check reports that. That the checks do not
        # run is an alert of its own.
        will_report = is_overdue or seen.at - stale.since < CHECKED_WITHIN
        if any(will_report or (time is not None and time > stale.since) for time in stale.checks):
            continue
        yield Alert(
            key=f"freshness {stale.asset}",
            title=f"{stale.asset} is stale",
            what=f"{stale.asset} was not materialized within its freshness policy",
            severity=stale.severity,
            since=stale.since,
            link=f"{ui}/assets/{stale.asset}",
            remediation="inspect its checks, and find out why the last run of "
            f"{seen.check_runs.job} did not evaluate them",
            assets=(stale.asset,),
        )


def _runs(state: AlertState, seen: Observation, ui: str) -> tuple[AlertState, list[Alert]]:
    """The kinds of runs that failed, until what they had to do is done."""
    known_alerts = {**state.unsent, **state.alerts}.items()
    alerts = {key: alert for key, alert in known_alerts if key.startswith("run ")}
    without_work = alerts.keys() - {work.kind for work in state.pending}
    known = [work for work in state.pending if not work.assets or work.assets & seen.assets]
    pending = [*(Work(kind=key) for key in sorted(without_work)), *known]
    resolved: set[str] = set()
    for run in seen.runs:
        key = f"run {run.kind}"
        done = Work(
            kind=key if run.succeeded else "",
            assets=run.planned if run.succeeded else run.materialized,
            partitions=run.partitions,
        )
        open_assets = run.planned - run.materialized
        left = Work(kind=key, assets=open_assets, partitions=run.left, failed_at=run.ended_at)
        pending = [rest for work in pending if (rest := work.after(done))]
        resolved |= alerts.keys() - {work.kind for work in pending}
        if run.succeeded or run.retried:
            continue
        if run.errors and all(error.is_no_fault for error in run.errors):
            continue
        others = [work for work in pending if work.kind != key or work.after(left)]
        pending, alerts[key] = [*others, left], _failure(run, key, ui)
    pending = [rest for work in pending if (rest := _left(work, alerts[work.kind], seen))]
    kinds = dict.fromkeys(work.kind for work in pending)
    # The outage that was their cause may have ended. What timed out may have waited for a service.
    faults = [
        alerts[kind].model_copy(update={"cause": None, "waits": _TIMED_OUT in alerts[kind].what})
        for kind in kinds
    ]
    # Resolved, and failed again since the last evaluation: that is another fault of the same key.
    again = resolved & {alert.key for alert in faults}
    update = {
        "alerts": {key: alert for key, alert in state.alerts.items() if key not in again},
        "runs_until": seen.runs_until,
        "pending": pending[-MAX_PENDING:],
    }
    return state.model_copy(update=update), faults


def _left(work: Work, alert: Alert, seen: Observation) -> Work | None:
    """Return what is left of the work of a failed run, some of which was done without a run."""
    if work.partitions or not work.assets:
        return work
    times, failed_at = seen.materialized, work.failed_at or alert.since
    done = {asset for asset in work.assets if asset in times and times[asset] > failed_at}
    return work.after(Work(kind="", assets=frozenset(done)))


def _failure(run: EndedRun, key: str, ui: str) -> Alert:
    message, hint = explained(run.errors)
    return Alert(
        key=key,
        title=f"a run of {run.kind} failed",
        what=message or "the run failed before its first step: see its log",
        since=run.ended_at,
        link=f"{ui}/runs/{run.id}",
        remediation=hint or "see on the page of the run what failed; re-execute it from failure",
        assets=tuple(sorted(run.planned - run.materialized)),
    )


def _queue(seen: Observation, ui: str) -> Iterator[Alert]:
    """Runs that do not start, as others take all slots."""
    queued = seen.queued
    if queued is None or seen.at - queued.since < QUEUED_TOO_LONG:
        return
    holders = "; ".join(
        f"{run.kind} since {moment(run.since)} (run {run.id[:8]})"
        for run in seen.active[:MAX_SHOWN]
    )
    yield Alert(
        key="queue",
        title="queued runs do not start",
        what=f"runs in the queue: {queued.count:,}; the oldest, of {queued.oldest_kind}, does not "
        f"start; in progress: {holders or 'no run'}",
        severity="warning",
        since=queued.since,
        link=f"{ui}/runs/{queued.oldest}",
        remediation="terminate a run in progress that hangs (its page, Terminate); else reduce the "
        "load: longer commit intervals or fewer pipelines, or add cores and slots (`concurrency` "
        "in dagster.yaml)"
        if seen.active
        else "see the log of Dagster's daemon, and the slots of the pools (Deployment, "
        "Concurrency): a run that was killed may have left some behind",
    )


def _stuck(seen: Observation, ui: str) -> Iterator[Alert]:
    """Runs whose process is stopped, or hangs before it begins them: they hold their slots, and
    Dagster takes them for running."""
    for run in seen.active:
        if (pid := run.frozen or run.loading) is None:
            continue
        name, title, why = "frozen", "is frozen", "is stopped by a signal (SIGSTOP)"
        fix = f"let it continue: `kill -CONT {pid}`; or"
        if not run.frozen:
            name, title = "loading", "does not begin"
            why = "has been loading the code of the project for minutes"
            fix = "see what an import of the project waits for, correct it, and"
        yield Alert(
            key=f"{name} {run.id[:8]}",
            title=f"a run of {run.kind} {title}",
            what=f"the process {pid} of a run of {run.kind} {why}; runs that wait for its slots do "
            "not start",
            since=seen.at,
            link=f"{ui}/runs/{run.id}",
            remediation=f"{fix} end it, `kill -9 {pid}`, after which Dagster starts the run again",
            assets=run.assets,
        )


def _automations(seen: Observation, ui: str) -> Iterator[Alert]:
    for automation in seen.automations:
        if automation.failed_at is None:
            continue
        named = f"{automation.kind} {automation.name}"
        message, hint = explained([automation.error] if automation.error else [])
        yield Alert(
            key=f"tick {automation.name}",
            title=f"{named} fails",
            what=message or f"the last tick of {named} failed",
            since=automation.failed_at,
            link=f"{ui}/automation",
            remediation=hint
            or f"see the error of its tick in the UI: Automation, {automation.name}",
            waits=message.startswith(_RPC_MESSAGE) or _TIMED_OUT in message,
        )


def _hanging(counted: Mapping[str, int], seen: Observation, ui: str) -> Iterator[Alert]:
    """The ticks that do not end in evaluations in a row: some were left by an earlier daemon."""
    hanging = (
        each for each in seen.automations if counted.get(_tick(each), 0) >= HANGING_EVALUATIONS
    )
    for automation in hanging:
        named, since = f"{automation.kind} {automation.name}", automation.ticked_at or seen.at
        yield Alert(
            key=f"tick {automation.name}",
            title=f"a tick of {named} hangs",
            what=f"a tick of the {named} has been in progress since {moment(since)}: it waits for "
            "something, or has much to do",
            since=since,
            link=f"{ui}/automation",
            remediation="a service for which it waits has an alert of its own; without one, it may "
            "be busy: wait until it ends, and see the error of its tick if it fails: Automation, "
            f"{automation.name}",
            waits=True,
        )


def _silent(counted: Mapping[str, int], seen: Observation, ui: str) -> Iterator[Alert]:
    """The sensors that are on and do not tick, while this one does: their thread hangs. And what
    someone has turned off in the UI: what it does is not done, and nothing else says so."""
    for automation in seen.automations:
        name, last = automation.name, automation.ticked_at
        key, since, link = f"silent {name}", last or seen.at, f"{ui}/automation"
        if counted.get(key, 0) >= SILENT_EVALUATIONS:
            yield Alert(
                key=key,
                title=f"sensor {name} does not tick",
                what=f"the sensor {name} is on and has begun no tick since {moment(since)}",
                since=since,
                link=link,
                remediation="see whether its last tick is in progress (Automation); restart "
                "Dagster's daemon and the code location, locally: end `topicberg ui` and start it "
                "again",
                waits=True,
            )
        if automation.is_turned_off:
            yield Alert(
                key=key,
                title=f"{automation.kind} {name} is off",
                what=f"the {automation.kind} {name} was turned off"
                + (f"; its last tick was at {moment(last)}" if last else ""),
                severity="warning",
                since=since,
                link=link,
                remediation=f"turn it on: Automation, {name}; or, if it is to stay off, "
                f'`topicberg alerts silence "{key}" --for 30d`',
            )


def _specs(seen: Observation, ui: str) -> Iterator[Alert]:
    if not (errors := seen.spec_errors or seen.spec_errors_at_load):
        return
    message, remediation = errors, "fix the file: `topicberg topics validate` shows every mistake"
    if not seen.spec_errors:
        message = f"the code location was loaded while a spec was wrong: {errors}"
        remediation = "reload the code location: Deployment, Reload"
    yield Alert(
        key="specs",
        title="a topic spec is wrong",
        what=message,
        since=seen.at,
        link=f"{ui}/deployment/locations",
        remediation=remediation,
    )


def _shared(seen: Observation, ui: str) -> Iterator[Alert]:
    for shared in seen.shared:
        yield Alert(
            key=f"shared {shared.location}",
            title="two projects have the same tables",
            what=f"the code location {shared.location} also has "
            f"{listed(shared.tables, MAX_SHOWN)}; in Dagster, the assets of both are the same",
            since=seen.at,
            link=f"{ui}/deployment/locations",
            remediation="rename the topics of one project, or load it into another instance of "
            "Dagster",
            assets=shared.tables,
        )


_TIMED_OUT = "timed out due to taking longer than"  # Dagster's, of a tick or a run.


def explained(errors: Iterable[StepError]) -> tuple[str, str | None]:
    """Return what the first error says, and its hint: of the innermost cause, or of topicberg's."""
    for error in errors:
        own = [t for t in error.chain if t.startswith("topicberg.") or _TIMED_OUT in t]
        if not own and (rpc := _RPC.search(error.chain[-1])):
            return f"{_RPC_MESSAGE}: {rpc[1][:200]}", _RPC_HINT
        name, _, text = (own or error.chain)[-1].strip().partition(": ")
        message, hint = _message_and_hint(text)
        if place := _PLACE.match(name):
            return f"{place[1]}, line {place[2]}: {message}", hint
        return message or " ".join(name.split()), hint
    return "", None


def _message_and_hint(text: str) -> tuple[str, str | None]:
    message, hint = split_hint(text)
    return " ".join(message.split())[:500], hint
