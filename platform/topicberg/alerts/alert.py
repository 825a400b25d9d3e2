"""An alert, what is sent of it and decided about it, and what the evaluation remembers.

What users decide is in a file of the state directory, beside the alerts themselves: who works on
one, and which are not sent for a while. Each decision expires.
"""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from filelock import FileLock
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from topicberg.checks.finding import Severity, moment
from topicberg.errors import TopicbergError
from topicberg.files import replace_file
from topicberg.security.redaction import redact
from topicberg.security.text import code, markdown_line, one_line
from topicberg.settings import Settings
from topicberg.wording import count

Status = Literal["active", "acknowledged", "silenced", "consequence"]
Line = Annotated[str, AfterValidator(lambda text: one_line(redact(text)))]
"""One line without secrets, whoever wrote what it quotes: a record cannot add one of its own."""
logger = logging.getLogger(__name__)

DECISIONS_FILE = "alert-decisions.json"
DECISIONS_KEPT = timedelta(days=30)  # How long an expired decision stays in the file.


class Decision(BaseModel, frozen=True):
    """Who decided what, until when."""

    by: str
    reason: str = ""
    at: datetime
    until: datetime

    @property
    def by_whom(self) -> str:
        return f"{self.by} ({self.reason})" if self.reason else self.by


class Acknowledgement(Decision, frozen=True):
    """Someone works on a fault; it is sent again if it still exists when this expires."""


class Silence(Decision, frozen=True):
    """Alerts that match a pattern are not sent until it expires."""

    pattern: str

    def covers(self, key: str, assets: Collection[str]) -> bool:
        """Return whether the pattern, which may have ``*``, is the key, an asset or a table."""
        names = {key, *assets, *(asset.partition("/")[2] for asset in assets)}
        return any(fnmatchcase(name, self.pattern) for name in names)


class Decisions(BaseModel, frozen=True):
    """The decisions of a deployment."""

    acknowledged: dict[str, Acknowledgement] = {}  # By the key of the alert.
    silences: tuple[Silence, ...] = ()

    def silence_of(self, key: str, assets: Collection[str], moment: datetime) -> Silence | None:
        """Return the silence that covers an alert at a time, the longest one."""
        found = [one for one in self.silences if one.until > moment and one.covers(key, assets)]
        return max(found, key=lambda silence: silence.until, default=None)


class Alert(BaseModel, frozen=True):
    """One fault."""

    key: str  # The same for the same fault: ``check iceberg/orders:tableflow``.
    title: Line
    what: Line
    severity: Severity = "error"
    since: datetime
    link: str  # The page of the UI that shows it.
    remediation: Line | None = None  # How to fix it.
    cause: str | None = None  # Key of the fault that is the reason for this one, if it exists.
    assets: tuple[str, ...] = ()  # Such as ``iceberg/orders``; none: it concerns all of them.
    owners: tuple[str, ...] = ()  # Those of these assets.
    runbook: str | None = None  # The page that says what to do.
    waits: bool = Field(False, exclude=True)  # Whether it may only wait for a service that is away.


class Notice(BaseModel, frozen=True):
    """What is sent: a fault began, someone works on it, or it is resolved."""

    state: Literal["firing", "acknowledged", "resolved"]
    alert: Alert
    at: datetime
    by: Line | None = None  # Who acknowledged it, and why.

    @property
    def subject(self) -> str:
        mark = self.alert.severity if self.state == "firing" else self.state
        return f"[topicberg] {mark.upper()}: {self.alert.title}"

    @property
    def text(self) -> str:
        """For people; the last line is the link."""
        if self.state != "firing":
            by = f" by {self.by}" if self.by else ""
            return f"{self.state}{by}: {self.alert.title}\n{self.alert.link}"
        remedies = {"fix": self.alert.remediation, "runbook": self.alert.runbook}
        lines = (f"{name}: {text}" for name, text in remedies.items() if text)
        since = f"since {moment(self.alert.since)}"
        return "\n".join([self.alert.what, since, *lines, self.alert.link])


class Work(BaseModel, frozen=True):
    """What a run had to do, or has done."""

    kind: str  # Key of the alert that reports it.
    assets: frozenset[str] = frozenset()  # Empty: the next run of its kind does it.
    partitions: tuple[tuple[str, str], ...] = ()
    """First and last of each range of its partitions: keys that sort as text. Empty: none."""
    failed_at: datetime | None = None  # When its run failed; None: it has not failed.

    def after(self, done: Work) -> Work | None:
        """Return what is left of it to do after another run; None: nothing."""
        partitions = tuple(
            (first, last)
            for first, last in self.partitions
            if not any(begin <= first <= last <= end for begin, end in done.partitions)
        )
        assets = self.assets - done.assets
        if partitions:
            is_done = self.assets and not assets
            return self.model_copy(update={"partitions": partitions}) if is_done else self
        if not self.assets:
            return None if self.kind == done.kind else self
        return self.model_copy(update={"assets": assets}) if assets else None


class Outage(BaseModel, frozen=True):
    """A fault that something else reports, or reported minutes ago."""

    alert: Alert
    seen_at: datetime  # When it was active last.


class AlertState(BaseModel):
    """What the evaluation remembers: the sensor's cursor."""

    alerts: dict[str, Alert] = {}  # The faults that were reported and are not resolved yet, by key.
    unsent: dict[str, Alert] = {}
    """The faults that exist and were not sent: consequences of others, and silenced ones."""
    sent_at: dict[str, datetime] = {}  # When the faults in ``alerts`` were sent.
    reported: dict[str, frozenset[str]] = {}  # By key, of failed runs: the assets that were named.
    acknowledged: dict[str, datetime] = {}  # By key: acknowledgements that the channels know.
    undelivered: list[tuple[str, Notice]] = []
    """Channel and notice, of notices that a channel did not accept."""
    runs_until: float | None = None  # Runs that ended before (seconds since 1970) were evaluated.
    pending: list[Work] = []  # What failed runs had to do and no run has done; the newest last.
    counted: dict[str, int] = {}
    """What is a fault if it lasts → in how many evaluations in a row it was seen."""
    outages: dict[str, Outage] = {}
    """Faults that are reported elsewhere, and those that ended minutes ago: what follows from them
    is not sent."""
    suspected: dict[str, Alert] = {}  # Of the watch: what does not answer for a shorter time.
    shown: str = ""  # Digest of the list of alerts that the UI shows.
    rests_until: float | None = None  # The next evaluation begins after it (seconds since 1970).

    @staticmethod
    def parse(text: str | None) -> AlertState:
        """Return a stored state; of one that is damaged or of another version, nothing is known."""
        with suppress(ValidationError):
            return AlertState.model_validate_json(text or "{}")
        return AlertState()

    def acknowledgement_of(self, key: str, decisions: Decisions) -> Acknowledgement | None:
        """Return the acknowledgement of a fault, also if expired; not that of an earlier one."""
        given, sent_at = decisions.acknowledged.get(key), self.sent_at.get(key)
        return given if given and (sent_at is None or given.at >= sent_at) else None


def changes(
    state: AlertState, now: Mapping[str, Alert], decisions: Decisions, moment: datetime
) -> list[Notice]:
    """Return what is to be sent, resolved faults first.

    A fault is sent once when it begins and once when it is resolved; again when a warning becomes
    an error, and when its acknowledgement expires. One whose cause is active is not sent: whoever
    is paged fixes the cause. An error whose cause is only a warning is sent, as channels may take
    errors alone. What is silenced is not sent until the silence expires.
    """
    notices = [
        Notice(state="resolved", alert=alert, at=moment)
        for key, alert in state.alerts.items()
        if key not in now
    ]
    for key, alert in now.items():
        if decisions.silence_of(alert.key, alert.assets, moment) is not None:
            continue
        known = state.alerts.get(key)
        acknowledgement = state.acknowledgement_of(key, decisions)
        # Runs of one kind may fail for other tables, whose owners do not know of it.
        if known is None or {*alert.assets} - state.reported.get(key, {*alert.assets}):
            known_causes = {key: outage.alert for key, outage in state.outages.items()} | {**now}
            if not _is_consequence(alert, known_causes, decisions, moment):
                notices.append(Notice(state="firing", alert=alert, at=moment))
        elif alert.severity == "error" and known.severity == "warning":
            notices.append(Notice(state="firing", alert=alert, at=moment))
        elif acknowledgement and acknowledgement.until <= moment:
            notices.append(Notice(state="firing", alert=known, at=moment))
        elif acknowledgement and state.acknowledged.get(key) != acknowledgement.at:
            by = acknowledgement.by_whom
            notices.append(Notice(state="acknowledged", alert=known, at=moment, by=by))
    return notices


def after(
    state: AlertState, notices: Iterable[Notice], now: Mapping[str, Alert], decisions: Decisions
) -> AlertState:
    """Return the state once the notices are sent; the alerts are as the faults are now. Their times
    and severities stay those that were sent: a warning may become an error."""
    alerts = {
        key: now.get(key, sent).model_copy(update={"since": sent.since, "severity": sent.severity})
        for key, sent in state.alerts.items()
    }
    sent_at, acknowledged = dict(state.sent_at), dict(state.acknowledged)
    reported = {key: assets for key, assets in state.reported.items() if key in now}
    for notice in notices:
        key = notice.alert.key
        if notice.state == "acknowledged":
            acknowledged[key] = decisions.acknowledged[key].at
            continue
        for known in (alerts, sent_at, acknowledged):
            known.pop(key, None)
        if notice.state == "firing":
            alerts[key], sent_at[key] = notice.alert, notice.at
            if key.startswith("run "):
                reported[key] = reported.get(key, frozenset()) | {*notice.alert.assets}
    unsent = {key: alert for key, alert in now.items() if key not in alerts}
    update = {"alerts": alerts, "unsent": unsent, "sent_at": sent_at, "acknowledged": acknowledged}
    return state.model_copy(update=update | {"reported": reported})


def _is_consequence(
    alert: Alert, causes: Mapping[str, Alert], decisions: Decisions, moment: datetime
) -> bool:
    """Return whether another fault is reported in place of this one, or is silenced with it."""
    if alert.cause is None or alert.cause == alert.key or alert.cause not in causes:
        return False
    cause = causes[alert.cause]
    is_worse = alert.severity == "error" and cause.severity == "warning"
    return not is_worse or decisions.silence_of(cause.key, cause.assets, moment) is not None


@dataclass(frozen=True)
class ActiveAlert:
    """A fault that exists, and what a user decided about it."""

    alert: Alert
    status: Status
    decision: Decision | None = None

    @property
    def shown_status(self) -> str:
        """The status, with who decided it and until when."""
        if self.decision is None:
            return self.status
        return f"{self.status} by {self.decision.by_whom} until {moment(self.decision.until)}"

    @property
    def concerned(self) -> str:
        """The tables, or that it concerns all of them."""
        return ", ".join(self.alert.assets) or "all tables"

    @property
    def document(self) -> dict[str, Any]:
        """All of it for programs, as JSON."""
        decided = self.decision and self.decision.model_dump(mode="json")
        return {**self.alert.model_dump(mode="json"), "status": self.status, "decision": decided}


def active_alerts(
    states: Iterable[AlertState], decisions: Decisions, moment: datetime
) -> list[ActiveAlert]:
    """Return the active alerts: errors first, then those that are not taken care of, the oldest."""
    alerts = []
    for state in states:
        for key, alert in {**state.unsent, **state.alerts}.items():
            acknowledgement = state.acknowledgement_of(key, decisions)
            if silence := decisions.silence_of(alert.key, alert.assets, moment):
                alerts.append(ActiveAlert(alert, "silenced", silence))
            elif key in state.unsent and alert.cause is not None:
                alerts.append(ActiveAlert(alert, "consequence"))
            elif key in state.alerts and acknowledgement and acknowledgement.until > moment:
                alerts.append(ActiveAlert(alert, "acknowledged", acknowledgement))
            else:
                alerts.append(ActiveAlert(alert, "active"))
    order = ("active", "acknowledged", "consequence", "silenced")
    return sorted(
        alerts,
        key=lambda active: (
            active.alert.severity != "error",
            order.index(active.status),
            active.alert.since,
            active.alert.key,
        ),
    )


def markdown(alerts: Sequence[ActiveAlert]) -> str:
    """Return the list as the UI shows it; texts of others are plain text in it."""
    if not alerts:
        return "No active alerts."
    errors = sum(active.alert.severity == "error" for active in alerts)
    parts = [f"{count(len(alerts), 'active alert')}, {count(errors, 'error')}"]
    for active in alerts:
        alert = active.alert
        pages = {"open": alert.link, "runbook": alert.runbook}
        lines = [
            f"**{alert.severity}**: {markdown_line(alert.title)}",
            f"{code(active.concerned)}, since {moment(alert.since)}; "
            f"{markdown_line(active.shown_status)}",
            markdown_line(alert.what),
            *([f"Cause: {code(alert.cause)}"] if alert.cause else []),
            *([f"Fix: {markdown_line(alert.remediation)}"] if alert.remediation else []),
            " · ".join(f"[{name}](<{url}>)" for name, url in pages.items() if url),
        ]
        parts.append("  \n".join(lines))
    return "\n\n".join(parts)


def read_decisions(config: Settings) -> Decisions:
    """Return the decisions; none if the file is damaged, so that every alert is sent."""
    path = config.state_dir / DECISIONS_FILE
    try:
        return Decisions.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        if not isinstance(error, FileNotFoundError):
            logger.warning("%s cannot be read, so no alert is silenced: %s", path, error)
        return Decisions()


def acknowledge(config: Settings, key: str, reason: str, lasting: timedelta) -> Acknowledgement:
    """Note that the user works on a fault; raise TopicbergError if the file cannot be written."""
    given = Acknowledgement(**_by_now(reason, lasting))
    _change(
        config,
        lambda known: known.model_copy(update={"acknowledged": {**known.acknowledged, key: given}}),
    )
    return given


def silence(config: Settings, pattern: str, reason: str, lasting: timedelta) -> Silence:
    """Silence alerts, in place of an earlier silence of the pattern, as :func:`acknowledge`."""
    given = Silence(pattern=pattern, **_by_now(reason, lasting))
    _change(config, lambda known: _silenced(known, pattern, (given,)))
    return given


def end_silence(config: Settings, pattern: str) -> None:
    """End the silence of a pattern now, if there is one, as :func:`acknowledge`."""
    _change(config, lambda known: _silenced(known, pattern))


def _silenced(known: Decisions, pattern: str, given: tuple[Silence, ...] = ()) -> Decisions:
    others = (one for one in known.silences if one.pattern != pattern)
    return known.model_copy(update={"silences": (*others, *given)})


def _by_now(reason: str, lasting: timedelta) -> dict[str, object]:
    now = datetime.now(UTC)
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # in a container, a user may have no name
        user = f"user {os.getuid()}"
    return {"by": user, "reason": reason, "at": now, "until": now + lasting}


def _change(config: Settings, change: Callable[[Decisions], Decisions]) -> None:
    path, oldest = config.state_dir / DECISIONS_FILE, datetime.now(UTC) - DECISIONS_KEPT
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            known = change(read_decisions(config))
            kept = Decisions(
                acknowledged={k: a for k, a in known.acknowledged.items() if a.until > oldest},
                silences=tuple(silence for silence in known.silences if silence.until > oldest),
            )
            replace_file(path, kept.model_dump_json(indent=2))
    except OSError as error:
        raise TopicbergError(
            f"{path} cannot be written: {error.strerror}",
            hint="free disk space or fix the permissions; TOPICBERG_STATE_DIR sets another folder",
        ) from None
