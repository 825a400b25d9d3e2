"""What is told, and when: once when a fault begins, once when it is mended.

The faults of now are compared with those that were told. A fault that follows from another one
which is there as well is not told: who is paged mends the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel

from topicberg.checks.finding import Severity
from topicberg.security.redaction import redact
from topicberg.security.text import one_line

Line = Annotated[str, AfterValidator(lambda text: one_line(redact(text)))]
"""One line without secrets, whoever wrote what it quotes: a record cannot add one of its own."""


class Alert(BaseModel, frozen=True):
    """One fault."""

    key: str
    """The same for the same fault: ``check iceberg/orders:tableflow``."""
    title: Line
    what: Line
    severity: Severity
    since: datetime
    link: str
    """The page of the UI that shows it."""
    mend: Line | None = None
    cause: str | None = None
    """Key of the fault that this one follows from, if that is one."""


class Notice(BaseModel, frozen=True):
    """What is sent: a fault has begun, or is over."""

    state: Literal["firing", "recovered"]
    alert: Alert
    at: datetime

    @property
    def subject(self) -> str:
        mark = "RECOVERED" if self.state == "recovered" else self.alert.severity.upper()
        return f"[topicberg] {mark}: {self.alert.title}"

    @property
    def text(self) -> str:
        """For people."""
        if self.state == "recovered":
            return f"{self.alert.title} is all right again.\n{self.alert.link}"
        lines = [self.alert.what, f"since {self.alert.since:%Y-%m-%d %H:%M:%S} UTC"]
        if self.alert.mend:
            lines.append(f"mend: {self.alert.mend}")
        return "\n".join([*lines, self.alert.link])


class Work(BaseModel, frozen=True):
    """What a run was to do, or has done."""

    kind: str
    """Key of the alert that tells of it."""
    assets: frozenset[str] = frozenset()
    """None: it is done by the next run of its kind."""
    first: str = ""
    last: str = ""
    """Its partitions, whose keys sort as text; empty: it has none."""

    def after(self, done: Work) -> Work | None:
        """What is left of it to do after another run; None: nothing."""
        if self.first and not done.first <= self.first <= self.last <= done.last:
            return self
        if not self.assets:
            return None if self.kind == done.kind else self
        left = self.assets - done.assets
        return self.model_copy(update={"assets": left}) if left else None


class Told(BaseModel):
    """What a teller remembers."""

    alerts: dict[str, Alert] = {}
    """The faults that were told and are not mended yet, by key."""
    undelivered: list[tuple[str, Notice]] = []
    """Notices that a channel did not take."""
    runs_until: float | None = None
    """Runs that ended before this time (seconds since 1970) were looked at."""
    undone: list[Work] = []
    """What runs that failed were to do, and none has done since; the newest last."""
    unchecked: int = 0
    """Looks in a row at which the checks had not run for long."""

    @staticmethod
    def parse(text: str | None) -> Told:
        return Told.model_validate_json(text) if text else Told()


def changes(now: Mapping[str, Alert], told: Mapping[str, Alert], at: datetime) -> list[Notice]:
    """What is to be told; mended faults first."""
    over = [
        Notice(state="recovered", alert=alert, at=at)
        for key, alert in told.items()
        if key not in now
    ]
    begun = [
        Notice(state="firing", alert=alert, at=at)
        for key, alert in now.items()
        if key not in told and not _follows(alert, now)
    ]
    worse = [
        Notice(state="firing", alert=alert, at=at)
        for key, alert in now.items()
        if key in told and alert.severity == "error" and told[key].severity == "warning"
    ]
    return [*over, *worse, *begun]


def after(told: Mapping[str, Alert], notices: Iterable[Notice]) -> dict[str, Alert]:
    """The faults that are told now."""
    alerts = dict(told)
    for notice in notices:
        if notice.state == "recovered":
            alerts.pop(notice.alert.key, None)
        else:
            alerts[notice.alert.key] = notice.alert
    return alerts


def _follows(alert: Alert, now: Mapping[str, Alert]) -> bool:
    return alert.cause is not None and alert.cause != alert.key and alert.cause in now
