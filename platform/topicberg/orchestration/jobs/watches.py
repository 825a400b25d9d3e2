"""What is watched: the tables whose snapshots matter, what follows from them, and what the snapshot
sensor remembers of each: what it has reported and registered.

What must be computed is in the derived tables themselves (:mod:`topicberg.transforms.unread`), and
how often that was tried in the tags of Dagster's runs: Dagster launches no run with a key twice, so
a key ends with its attempt, and the next one is some time after the end of the last. A reset of the
cursor therefore reports and registers again, and computes nothing again. Dagster stores the cursor
with every tick, so a table has at most 60 bytes in it.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import dagster as dg
from pydantic import BaseModel, Field, ValidationError

from topicberg.dagster.runs import ACTIVE
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.partitions import TimePartitions, time_partitions
from topicberg.orchestration.assets.registry import Table
from topicberg.orchestration.assets.tables import COMPUTATION, KIND, REGISTRATION
from topicberg.orchestration.catalogs.catalog import catalogs, systems
from topicberg.orchestration.checks.adapter import CheckKeys
from topicberg.orchestration.jobs import schedules
from topicberg.orchestration.jobs.pipelines import compute_job, keys_of
from topicberg.transforms.derivation import Derivation
from topicberg.wording import listed

TABLES, HOURS = "topicberg/tables", "topicberg/hours"
"""Tags of runs that sensors request: what they compute or register, for people."""
MAX_LISTED = 5
SENSOR = "snapshots"
UNREGISTERED, UNCHECKED, UNOBSERVED, UNFINISHED = "r", "c", "o", "w"
"""Flags: the table differs from what the catalogs have; a tick has registered it, which no run has
checked yet; its topic is to be observed in Kafka; not all of it is computed."""
WANTED = ".dagster/topicberg/wanted"  # Tag of a run: what it, like its other attempts, is to do.
ATTEMPT = "topicberg/attempt"  # Tag of a run: how many there were for the same before.
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 10.0, 900.0
"""Between the end of a run that failed and the next attempt; each one waits twice as long."""
_FAILURE_REASON, _STEP_FAILED = "dagster/failure_reason", "STEP_FAILURE"
"""Dagster's tag of a failed run, and the value that says that one of its steps failed."""
_MAX_RUNS, _MAX_REGISTRATIONS = 500, 50  # Runs that a tick reads.
_FAILED = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


@dataclass(frozen=True)
class Computation:
    """How a run computes a derived table."""

    plan: Derivation
    partitions: TimePartitions
    job: str
    assets: tuple[dg.AssetKey, ...]  # The table in Iceberg, then in the catalogs, and its topics.
    checks: tuple[dg.AssetCheckKey, ...]
    """Of the run; a blocking one of a source that fails stops what is downstream of it."""
    downstream: tuple[str, ...] = ()
    """The tables that change in the same partitions and in no others, in the order in which they
    can be computed: the same run computes them."""


@dataclass(frozen=True)
class TableWatch:
    """A table whose snapshots are watched."""

    origin: Table
    readers: tuple[str, ...] = ()  # The names of the derived tables that read it.
    registrations: tuple[dg.AssetKey, ...] = ()
    """Unpartitioned assets that follow every snapshot. Catalogs do not wait for computations: these
    assets are materialized by the sensor or in a run of their own."""
    registration_checks: tuple[dg.AssetCheckKey, ...] = ()
    pointers: tuple[Table, ...] = ()
    """The tables among the registrations of which only pointers are moved: nothing is computed."""
    computation: Computation | None = None  # None: the engine computes it, or a registration.

    @property
    def name(self) -> str:
        return self.origin.name

    @property
    def ledger(self) -> list[tuple[str, str]]:
        """The tables that say what is to be computed of a derived one."""
        sources = self.computation.plan.sources if self.computation else ()
        return [self.origin.identifier, *(source.table for source in sources)]

    @property
    def computed_registrations(self) -> tuple[dg.AssetKey, ...]:
        """The registrations of the other tables."""
        moved = {table.name for table in self.pointers}
        return tuple(key for key in self.registrations if key.path[-1] not in moved)


def watches(lake: Lake) -> dict[str, TableWatch]:
    """Return what there is to watch, by name; a derived table comes after what it reads."""
    checks = CheckKeys(lake)
    requested: dict[str, list[Table]] = {}
    for table in lake.tables:
        if table.requested_with_topic != "nothing":
            requested.setdefault(table.root.name, []).append(table)
    names = {table.source: table.name for table in lake.tables if table.source}
    readers: dict[str, list[str]] = {}
    for derived in lake.derived:
        for source in {*derived.reads}:
            readers.setdefault(names[source], []).append(derived.name)
    watched: dict[str, TableWatch] = {}
    for table in lake.tables:
        of_table = tuple(sorted(readers.get(table.name, ())))
        if not table.has_snapshot_sensor or not (table.reported or of_table):
            continue
        registered = requested[table.root.name] if table.reported else []
        watched[table.name] = TableWatch(
            table,
            of_table,
            registrations=tuple(
                each.key(system)
                for each in registered
                for system in (systems() if each.requested_with_topic == "all" else catalogs())
            ),
            registration_checks=tuple(checks.of_runs([each.name for each in registered])),
            pointers=tuple(each for each in registered if each.requested_with_topic == "catalogs"),
        )
    for derived in lake.in_order:
        sources = [lake.origin(name).name for name in derived.reads]
        watched[derived.name] = TableWatch(
            lake.table(derived),
            tuple(sorted(readers.get(derived.name, ()))),
            computation=Computation(
                lake.plan_of(derived.name),
                time_partitions(lake.root(derived)),
                compute_job(lake, derived),
                tuple(keys_of(lake, derived)),
                (
                    *(key for source in sources for key in checks.blocking(source)),
                    *checks.of_runs([derived.name]),
                ),
                tuple(each.name for each in lake.downstream(derived.name)),
            ),
        )
    return watched


def listed_tables(keys: Iterable[dg.AssetKey]) -> str:
    """Return the names of the tables of some assets, as the tag of a run: the first of them."""
    return listed([*dict.fromkeys(key.path[-1] for key in keys)], MAX_LISTED)


def short_hash(text: str, length: int = 8) -> str:
    """Return some characters of a hash of a text, six bits each."""
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()[:length]


@dataclass(frozen=True)
class TableCursor:
    """A table as a tick has left it."""

    snapshot: int | None = None
    """The last one that was reported, and whose changes were looked for in derived tables."""
    registered: str = ""  # Hash of the metadata that Glue and Snowflake have.
    signal: str = ""  # Hash of what the table's writer reported at the last look.
    flags: str = ""
    observed: int = 0  # The minute since 1970 when the topic was observed.

    @staticmethod
    def parse(text: str) -> TableCursor:
        """:raises ValueError: no tick has written it"""
        snapshot, registered, signal, flags, observed = text.split(".")
        number = int.from_bytes(urlsafe_b64decode(snapshot + "="), signed=True)
        return TableCursor(
            number if snapshot else None, registered, signal, flags, int(observed, 16)
        )

    def __str__(self) -> str:
        number = b"" if self.snapshot is None else self.snapshot.to_bytes(8, signed=True)
        snapshot = urlsafe_b64encode(number).decode().rstrip("=")
        return f"{snapshot}.{self.registered}.{self.signal}.{self.flags}.{self.observed:x}"

    def has(self, flag: str) -> bool:
        return flag in self.flags

    def flagged(self, flag: str, *, on: bool = True) -> TableCursor:
        flags = {*self.flags} - {flag} | ({flag} if on else set())
        return replace(self, flags="".join(sorted(flags)))


class Cursor(BaseModel):
    """The sensor's cursor."""

    tables: dict[str, str] = Field(default_factory=dict, description="hash of its name → its state")
    checked_at: int = Field(default=0, description="when a run was requested that checks tables")

    @staticmethod
    def parse(text: str | None) -> Cursor:
        """Return the cursor; an empty one if there is none, or one that is not of this version."""
        with suppress(ValidationError):
            return Cursor.model_validate_json(text or "{}")
        return Cursor()

    def states(self, names: Iterable[str]) -> dict[str, TableCursor]:
        """Return the states of those of the tables that have one."""
        states: dict[str, TableCursor] = {}
        for name in names:
            with suppress(ValueError):
                if text := self.tables.get(short_hash(name)):
                    states[name] = TableCursor.parse(text)
        return states

    @staticmethod
    def of(states: dict[str, TableCursor], checked_at: int) -> Cursor:
        return Cursor(
            tables={short_hash(n): str(s) for n, s in states.items()}, checked_at=checked_at
        )


@dataclass(frozen=True)
class RequestedRun:
    """A run that a tick has requested; times are seconds since 1970."""

    run: dg.DagsterRun
    started: float
    ended: float

    @property
    def is_active(self) -> bool:
        return self.run.status in ACTIVE

    @property
    def has_failed(self) -> bool:
        return self.run.status in _FAILED

    @property
    def was_killed(self) -> bool:
        """Whether none of its steps failed, so that no table is to blame."""
        return self.has_failed and self.run.tags.get(_FAILURE_REASON) != _STEP_FAILED

    @property
    def attempts(self) -> int:
        """How many runs there were for the same, with this one, if it began."""
        is_launched = self.run.status != dg.DagsterRunStatus.NOT_STARTED
        return int(self.run.tags.get(ATTEMPT, "0")) + is_launched

    @property
    def due(self) -> float:
        """When the next attempt is."""
        delay = FIRST_DELAY_SECONDS * 2.0 ** min(self.attempts - 1, 20)
        return self.ended + min(delay, MAX_DELAY_SECONDS)


class RequestedRuns:
    """The runs of the sensor of a project; a tick reads what it needs of them once."""

    def __init__(self, instance: dg.DagsterInstance, project: str, now: float) -> None:
        """:param project: the prefix of its names: an instance may have several projects"""
        self.instance, self._project, self._now = instance, project, now

    def tags(self, kind: str) -> dict[str, str]:
        """Return the tags of all requested runs of a kind."""
        return {KIND: kind, schedules.PROJECT: self._project}

    @cached_property
    def active(self) -> frozenset[dg.AssetKey]:
        """What runs are computing."""
        return frozenset(
            key
            for each in self._runs(self.tags(COMPUTATION), ACTIVE, _MAX_RUNS)
            for key in each.run.asset_selection or ()
        )

    @cached_property
    def _failed(self) -> list[RequestedRun]:
        since = datetime.fromtimestamp(self._now - 2 * MAX_DELAY_SECONDS, UTC)
        return self._runs(self.tags(COMPUTATION), _FAILED, _MAX_RUNS, since)

    def failed(self, key: dg.AssetKey) -> Iterator[RequestedRun]:
        """Yield the runs that failed to compute an asset a short time ago, the newest one first."""
        return (each for each in self._failed if key in (each.run.asset_selection or ()))

    @cached_property
    def registrations(self) -> list[RequestedRun]:
        """The newest runs that registered tables, the newest one first."""
        return self._runs(self.tags(REGISTRATION), None, _MAX_REGISTRATIONS)

    def attempt(self, kind: str, wanted: str, at_least: int = 0) -> int | None:
        """Return the number of the next attempt to do something; None: it is not time for one."""
        for newest in self._runs({**self.tags(kind), WANTED: wanted}, None, 1):
            if newest.is_active or (newest.run.is_finished and self._now < newest.due):
                return None
            return max(newest.attempts, at_least)
        return at_least

    def last_run(self, tags: Mapping[str, str]) -> RequestedRun | None:
        """Return the newest run with some tags."""
        return next(iter(self._runs(tags, None, 1)), None)

    def _runs(
        self,
        tags: Mapping[str, str],
        statuses: Sequence[dg.DagsterRunStatus] | None,
        limit: int,
        since: datetime | None = None,
    ) -> list[RequestedRun]:
        chosen = dg.RunsFilter(tags=tags, statuses=statuses, updated_after=since)
        return [
            RequestedRun(
                record.dagster_run,
                record.start_time or record.create_timestamp.timestamp(),
                record.end_time or record.update_timestamp.timestamp(),
            )
            for record in self.instance.get_run_records(chosen, limit=limit)
        ]
