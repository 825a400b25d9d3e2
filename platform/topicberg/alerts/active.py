"""The alerts that are active, as a list for the terminal, for programs and for the UI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from topicberg.alerts.alert import Alert, AlertState
from topicberg.alerts.decisions import Decision, Decisions
from topicberg.checks.finding import moment
from topicberg.security.text import code, markdown_line
from topicberg.wording import count

Status = Literal["active", "acknowledged", "silenced", "consequence"]


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
        decision = self.decision.model_dump(mode="json") if self.decision else None
        return {**self.alert.model_dump(mode="json"), "status": self.status, "decision": decision}


def active_alerts(
    states: Iterable[AlertState], decisions: Decisions, moment: datetime
) -> list[ActiveAlert]:
    """Return the active alerts: errors first, then those that are not taken care of, the oldest.

    :param states: those of everything that sends alerts
    """
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
        lines = [
            f"**{alert.severity}**: {markdown_line(alert.title)}",
            f"{code(active.concerned)}, since {moment(alert.since)}; "
            f"{markdown_line(active.shown_status)}",
            markdown_line(alert.what),
        ]
        if alert.cause:
            lines.append(f"Cause: {code(alert.cause)}")
        if alert.remediation:
            lines.append(f"Fix: {markdown_line(alert.remediation)}")
        pages = {"open": alert.link, "runbook": alert.runbook}
        lines.append(" · ".join(f"[{name}](<{url}>)" for name, url in pages.items() if url))
        parts.append("  \n".join(lines))
    return "\n\n".join(parts)
