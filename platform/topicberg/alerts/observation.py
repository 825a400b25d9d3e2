"""What the evaluation of alerts gets to see. ``jobs/observation/`` reads it from Dagster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from topicberg.alerts.alert import Alert
from topicberg.checks.finding import Finding, Severity
from topicberg.endpoints import stopped
from topicberg.errors.table import class_of

CHECKED_WITHIN = timedelta(minutes=10)  # The schedule requests one every five minutes.
SILENT_AFTER, SILENT_INTERVALS = timedelta(minutes=3), 5
"""For how long a sensor may begin no tick: a tick of a busy daemon may take a minute."""
HANGING_AFTER = timedelta(seconds=30)  # How long a tick may last: Dagster ends it after a minute.
CHECKS_REST = 9
"""After a run of the checks, the schedule waits for this many times as long as the run took, so
that the checks of very many tables take at most a tenth of the time."""


@dataclass(frozen=True)
class FailedCheck:
    """A check whose last evaluation failed; its finding has a time since when."""

    asset: str
    name: str
    finding: Finding
    is_early: bool = False  # The engine's status says so, and the check was not evaluated since.


@dataclass(frozen=True)
class CheckRuns:
    """Whether the checks run."""

    job: str
    schedule: str
    scheduled: bool  # Whether the code location has such a schedule.
    stack_stopped: bool  # Whether this is a local stack that the user stopped, or never started.
    ended_at: datetime | None
    """When a run of the checks ended last, successful or not: a failed run has its own alert."""
    took: timedelta = timedelta()  # How long this run took.

    def overdue(self, now: datetime) -> bool:
        """Return whether the schedule should have evaluated the checks, and did not."""
        return self.scheduled and (
            self.ended_at is None or now - self.ended_at > CHECKED_WITHIN + CHECKS_REST * self.took
        )


@dataclass(frozen=True)
class StaleAsset:
    """An asset past its freshness policy."""

    asset: str
    severity: Severity
    since: datetime
    checks: tuple[datetime | None, ...]
    """For each of its checks that say why an asset is stale: the last evaluation."""


_STOPPED = f"{class_of(stopped())}: {stopped().message}"  # As Dagster stores it.


@dataclass(frozen=True)
class StepError:
    """The error of a step or a tick, with those that caused it."""

    chain: tuple[str, ...]  # As Dagster stores it (``module.Class: message``), outermost first.
    of_blocking_check: bool = False  # The step failed only because a blocking check did.

    @property
    def is_no_fault(self) -> bool:
        """Whether the alert of a check reports it, or a user stopped the stack."""
        return self.of_blocking_check or any(text.startswith(_STOPPED) for text in self.chain)


@dataclass(frozen=True)
class EndedRun:
    """A run that succeeded or failed."""

    id: str
    kind: str  # Its job, the sensor that requested it, or its assets.
    succeeded: bool
    retried: bool  # It failed, and Dagster starts it again.
    ended_at: datetime
    planned: frozenset[str]
    materialized: frozenset[str]  # The planned assets that it has materialized or observed.
    partitions: tuple[tuple[str, str], ...] = ()
    """First and last of each range of its partitions: keys that sort as text. Empty: none."""
    left: tuple[tuple[str, str], ...] = ()  # Those of the assets that it has not materialized.
    errors: tuple[StepError, ...] = ()


@dataclass(frozen=True)
class QueuedRuns:
    """Runs that have not started."""

    count: int
    oldest: str
    oldest_kind: str
    since: datetime


@dataclass(frozen=True)
class ActiveRun:
    """A run that has begun and not ended."""

    id: str
    kind: str
    since: datetime
    assets: tuple[str, ...] = ()  # Those that it is to materialize, if its request names them.
    frozen: int | None = None  # The id of its process that is stopped (SIGSTOP).
    loading: int | None = None  # The id of its process that has long not begun the run.


@dataclass(frozen=True)
class Automation:
    """A sensor or schedule, and its last tick that ended."""

    name: str
    kind: Literal["sensor", "schedule"]
    running: bool
    is_on_by_default: bool = False  # Whether the code turns it on: if it is off, a user did it.
    failed_at: datetime | None = None  # When its last tick ended, if that failed.
    error: StepError | None = None
    skip_reason: str | None = None
    ticked_at: datetime | None = None  # When its last tick began, whether or not that has ended.
    in_progress: bool = False  # Whether its last tick has not ended.
    interval: timedelta | None = None  # How often a sensor ticks; None: a schedule.

    @property
    def is_turned_off(self) -> bool:
        """Return whether a user has turned it off."""
        return self.is_on_by_default and not self.running

    def hangs(self, now: datetime) -> bool:
        """Return whether its last tick should have ended, and is not left by a killed daemon."""
        return (
            self.running
            and self.in_progress
            and self.ticked_at is not None
            and HANGING_AFTER < now - self.ticked_at < SILENT_AFTER
        )

    def is_silent(self, now: datetime) -> bool:
        """Return whether a sensor that is on should have begun a tick, and did not."""
        return (
            self.running
            and self.ticked_at is not None
            and self.interval is not None
            and now - self.ticked_at > max(SILENT_AFTER, SILENT_INTERVALS * self.interval)
        )


@dataclass(frozen=True)
class SharedTables:
    """Tables that another code location of the instance has as well."""

    location: str
    tables: tuple[str, ...]  # Their assets.


@dataclass(frozen=True)
class Observation:
    """The state of everything that alerts report, at one time."""

    at: datetime
    check_runs: CheckRuns
    assets: frozenset[str] = frozenset()  # All assets that exist.
    owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Asset → its owners.
    failed_checks: Sequence[FailedCheck] = ()
    stale_assets: Sequence[StaleAsset] = ()
    elsewhere: Mapping[str, Alert] = field(default_factory=dict)
    """Key → fault that something else reports: the engine's watch, or the sensor ``engine``."""
    runs: Sequence[EndedRun] = ()
    """Those that ended since the last evaluation, the oldest first; successful ones only if they
    may have resolved something."""
    materialized: Mapping[str, datetime] = field(default_factory=dict)
    """Asset → when it was materialized last, of those that failed runs have left: the sensor
    ``snapshots`` registers tables without a run."""
    runs_until: float = 0.0  # The time (seconds since 1970) until which ended runs were read.
    queued: QueuedRuns | None = None
    active: Sequence[ActiveRun] = ()  # The oldest ones that are in progress.
    automations: Sequence[Automation] = ()
    shared: Sequence[SharedTables] = ()
    """Tables of which another project of topicberg in the instance has the same assets."""
    spec_errors: str | None = None  # Mistakes in topic specs.
    spec_errors_at_load: str | None = None  # Those when the code location was loaded.
