"""The result of a check as data: what is wrong, since when, the remediation, and the cause."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from topicberg.security.redaction import redact
from topicberg.security.text import one_line

Severity = Literal["warning", "error"]


@dataclass(frozen=True)
class Finding:
    """The result of one evaluation of a check. The texts are plain text: whoever shows a finding
    escapes them for the destination."""

    what: str  # A sentence without its full stop.
    remediation: str | None = None  # How to fix it: a command in backticks, or a sentence.
    since: datetime | None = None
    severity: Severity = "error"
    cause: str | None = None
    """What is the reason for this one: a check (``iceberg/orders:tableflow``) that fails, or a
    service that does not answer (``service kafka``)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further values to show, and those that the next evaluation continues from."""
    passed: bool = False

    @property
    def lines(self) -> list[str]:
        """Everything for a person to read, in sentences."""
        return [
            f"{self.what}.",
            *([f"Since {moment(self.since)}."] if self.since and not self.passed else []),
            *([f"Fix: {self.remediation}"] if self.remediation and not self.passed else []),
        ]

    def to_json(self) -> dict[str, str | None]:
        """Return what an alert needs as JSON, without secrets; severity and facts are not in it."""
        return {
            "what": _public(self.what),
            "since": self.since.astimezone(UTC).isoformat() if self.since else None,
            "remediation": _public(self.remediation),
            "cause": self.cause,
        }


def _public(text: str | None) -> str | None:
    return one_line(redact(text)) if text else text


def good(sentence: str, **facts: Any) -> Finding:
    """Return the finding of a check that passed."""
    return Finding(passed=True, what=sentence, facts=facts)


def judge_delay(
    sentence: str,
    since: datetime,
    allowed_minutes: int,
    now: datetime,
    remediation: str,
    subject: str = "the table",
    **facts: Any,
) -> Finding:
    """Return whether a subject may still lack what its source has had since some time."""
    if now - since <= timedelta(minutes=allowed_minutes):
        return good(sentence, **facts)
    sentence = f"{subject} is stale: {sentence}; {allowed_minutes} min are allowed"
    return Finding(what=sentence, remediation=remediation, since=since, facts=facts)


def moment(time: datetime) -> str:
    """Return a time as in ``2026-01-31 12:00:05 UTC``."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def from_ms(milliseconds: int) -> datetime:
    """Return the time so many milliseconds after the beginning of 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def age(seconds: float) -> str:
    """Return a duration as in ``90 s``, ``2.5 min``, ``12 min``, ``3.5 h``, ``2.0 days``."""
    units = (
        (120, 1, ".0f", "s"),
        (600, 60, ".1f", "min"),
        (7200, 60, ".0f", "min"),
        (172_800, 3600, ".1f", "h"),
        (math.inf, 86_400, ".1f", "days"),
    )
    return next(f"{seconds / of:{form}} {unit}" for end, of, form, unit in units if seconds < end)
