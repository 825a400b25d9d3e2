"""An alert, what is sent of it, and what the evaluation remembers from one time to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from topicberg.checks.finding import Severity, moment
from topicberg.security.redaction import redact
from topicberg.security.text import one_line

Line = Annotated[str, AfterValidator(lambda text: one_line(redact(text)))]
"""One line without secrets, whoever wrote what it quotes: a record cannot add one of its own."""


class Alert(BaseModel):
    """One fault."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    key: str
    """The same for the same fault: ``check iceberg/orders:tableflow``."""
    title: Line
    what: Line
    severity: Severity
    since: datetime
    link: str
    """The page of the UI that shows it."""
    remediation: Line | None = Field(None, validation_alias=AliasChoices("remediation", "mend"))
    """How to fix it. Its key was ``mend`` in cursors of earlier versions."""
    cause: str | None = None
    """Key of the fault that is the reason for this one, if that one exists."""


State = Annotated[
    Literal["firing", "resolved"],
    # It was "recovered" in cursors of earlier versions.
    BeforeValidator(lambda value: "resolved" if value == "recovered" else value),
]


class Notice(BaseModel, frozen=True):
    """What is sent: a fault began, or is resolved."""

    state: State
    alert: Alert
    at: datetime

    @property
    def subject(self) -> str:
        mark = "RESOLVED" if self.state == "resolved" else self.alert.severity.upper()
        return f"[topicberg] {mark}: {self.alert.title}"

    @property
    def text(self) -> str:
        """For people; the last line is the link."""
        if self.state == "resolved":
            return f"resolved: {self.alert.title}\n{self.alert.link}"
        lines = [self.alert.what, f"since {moment(self.alert.since)}"]
        if self.alert.remediation:
            lines.append(f"fix: {self.alert.remediation}")
        return "\n".join([*lines, self.alert.link])


class Work(BaseModel, frozen=True):
    """What a run had to do, or has done."""

    kind: str
    """Key of the alert that reports it."""
    assets: frozenset[str] = frozenset()
    """Empty: the next run of its kind does it."""
    first: str = ""
    last: str = ""
    """Its partitions, whose keys sort as text; empty: it has none."""

    def after(self, done: Work) -> Work | None:
        """Return what is left of it to do after another run; None: nothing."""
        if self.first and not done.first <= self.first <= self.last <= done.last:
            return self
        if not self.assets:
            return None if self.kind == done.kind else self
        left = self.assets - done.assets
        return self.model_copy(update={"assets": left}) if left else None


class AlertState(BaseModel):
    """What the evaluation remembers: the sensor's cursor."""

    model_config = ConfigDict(populate_by_name=True)

    alerts: dict[str, Alert] = {}
    """The faults that were reported and are not resolved yet, by key."""
    undelivered: list[tuple[str, Notice]] = []
    """Channel and notice, of notices that a channel did not accept."""
    runs_until: float | None = None
    """Runs that ended before this time (seconds since 1970) were evaluated."""
    pending: list[Work] = Field([], validation_alias=AliasChoices("pending", "undone"))
    """What failed runs had to do and no run has done since; the newest last."""
    unchecked: int = 0
    """How many evaluations in a row found that no check was evaluated recently."""

    @staticmethod
    def parse(text: str | None) -> AlertState:
        return AlertState.model_validate_json(text) if text else AlertState()


def changes(now: Mapping[str, Alert], reported: Mapping[str, Alert], at: datetime) -> list[Notice]:
    """Return what is to be sent, resolved faults first.

    A fault is sent once when it begins and once when it is resolved, and again when a warning
    becomes an error. One whose cause is active is not sent: whoever is paged fixes the cause.
    """
    resolved = [alert for key, alert in reported.items() if key not in now]
    worse = [
        alert
        for key, alert in now.items()
        if key in reported and alert.severity == "error" and reported[key].severity == "warning"
    ]
    begun = [a for key, a in now.items() if key not in reported and not _is_consequence(a, now)]
    return [
        *(Notice(state="resolved", alert=alert, at=at) for alert in resolved),
        *(Notice(state="firing", alert=alert, at=at) for alert in (*worse, *begun)),
    ]


def after(reported: Mapping[str, Alert], notices: Iterable[Notice]) -> dict[str, Alert]:
    """Return the faults that are reported once the notices are sent."""
    alerts = dict(reported)
    for notice in notices:
        if notice.state == "resolved":
            alerts.pop(notice.alert.key, None)
        else:
            alerts[notice.alert.key] = notice.alert
    return alerts


def _is_consequence(alert: Alert, now: Mapping[str, Alert]) -> bool:
    return alert.cause is not None and alert.cause != alert.key and alert.cause in now
