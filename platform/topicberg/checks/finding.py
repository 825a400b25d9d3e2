"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

Severity = Literal["warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One verdict; of a fault it says what is wrong, since when, and how to mend it."""

    passed: bool
    what: str
    """A sentence without its full stop."""
    mend: str | None = None
    """What to do: a command in backticks, or a sentence."""
    since: datetime | None = None
    severity: Severity = "error"
    cause: str | None = None
    """The check (``iceberg/orders:tableflow``) whose fault this one follows from."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """Everything, in sentences."""
        lines = [f"{self.what}."]
        if not self.passed and self.since:
            lines.append(f"Since {moment(self.since)}.")
        if not self.passed and self.mend:
            lines.append(f"Mend: {self.mend}")
        return lines

    @property
    def text(self) -> str:
        """Everything as one text."""
        return "  \n".join(self.lines)


def good(what: str, **facts: Any) -> Finding:
    return Finding(passed=True, what=what, facts=facts)


def late(
    said: str, since: datetime, allowed_minutes: int, now: datetime, mend: str, **facts: Any
) -> Finding:
    """The verdict on what a table has not read since some time: late if that is not allowed."""
    if now - since <= timedelta(minutes=allowed_minutes):
        return good(said, **facts)
    what = f"the table is late: {said}; {allowed_minutes} min are allowed"
    return Finding(passed=False, what=what, mend=mend, since=since, facts=facts)


def moment(time: datetime) -> str:
    """``2026-01-31 12:00:05 UTC``."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def from_ms(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def age(seconds: float) -> str:
    """``90 s``, ``2.5 min``, ``12 min``, ``3.5 h``, ``2.0 days``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 600:
        return f"{seconds / 60:.1f} min"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"
