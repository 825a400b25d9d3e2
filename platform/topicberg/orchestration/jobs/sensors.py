"""The sensor on snapshots: what a new snapshot of a table affects is computed again downstream.

It reports every snapshot of a topic's table, and registers the tables that changed in Glue and
Snowflake. It requests runs: one that registers what a tick cannot, one
that checks what ticks registered, and those that compute what derived tables have not read.

Each derived table records what it has read (:mod:`topicberg.transforms.unread`), so a tick only has
to find out for which tables to ask: those that read a table with a new snapshot, and those that
were not complete when a tick last asked. A tick costs what changed. It loads tables whose writer
reports another snapshot than at the last look, and a few others in turn: no writer reports
maintenance, or an operator's rollback, and hours of the future become present ones.

===============================  ==================================================
:mod:`.jobs.watches`             what is watched, remembered of each table, and was requested
:mod:`.jobs.tick_computations`   the runs that compute partitions
:mod:`.jobs.registration`        what a tick registers, and the runs for the others
===============================  ==================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg
from dagster import AssetMaterialization, AssetObservation
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from topicberg.catalogs.glue import registered_state
from topicberg.dagster.executor import EXECUTOR
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError, safe
from topicberg.errors.meaning import classify
from topicberg.iceberg.snapshots import changes_rows, changes_since, report
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets import Lake, metadata, topics
from topicberg.orchestration.assets.registry import Table
from topicberg.orchestration.assets.tables import kafka_key
from topicberg.orchestration.jobs import pipelines, schedules, tick_computations
from topicberg.orchestration.jobs.registration import Registrar, Registrations
from topicberg.orchestration.jobs.watches import (
    MAX_LISTED,
    SENSOR,
    UNFINISHED,
    UNOBSERVED,
    UNREGISTERED,
    Cursor,
    RequestedRuns,
    TableCursor,
    TableWatch,
    short_hash,
    watches,
)
from topicberg.orchestration.resources import Lakehouse
from topicberg.settings import Settings
from topicberg.tableflow.service.wait import held_offsets
from topicberg.transforms.target import head_id
from topicberg.wording import listed

INTERVAL_SECONDS = 5
"""A tick costs Dagster some 50 ms, whatever it finds. Who waits for a topic's table waits for the
next one."""
OBSERVATION_SECONDS = 60  # Between two observations of a topic, which follow commits to its table.
AT_ONCE = 8  # Tables that a tick loads at once: most of the time is waiting for the catalog and S3.
BATCH_SECONDS = 10.0  # For which a tick looks at tables: others are registered in the usual time.
SWEEP = 20  # Tables that a tick loads in turn, whether or not anything says that they changed.
MAX_SILENT = 3  # After so many tables whose services did not answer, a tick asks for no more.
MAX_REPORTED = 200  # Snapshots of a table that one tick reports at most; the next tick continues.
Event = AssetMaterialization | AssetObservation


def snapshot_sensor(lake: Lake, registrar: Registrar | None = None) -> dg.SensorDefinition:
    """One for all tables, so that a run registers what changed at the same time."""
    watched = watches(lake)
    registers = registrar or Registrar()

    @dg.sensor(
        name=SENSOR,
        jobs=_jobs(watched.values()),
        minimum_interval_seconds=INTERVAL_SECONDS - 1,  # else Dagster skips every other one
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Watches the tables of all topics. Reports every snapshot of them as a "
        "materialization, registers the tables in Glue and Snowflake, and requests runs that "
        "check them and that compute the partitions of derived tables which snapshots touched.",
    )
    @schedules.skip_if_unavailable
    def snapshots(
        context: dg.SensorEvaluationContext, topicberg_lakehouse: Lakehouse
    ) -> dg.SensorResult | dg.SkipReason:
        endpoints = topicberg_lakehouse.peek()
        signals = topicberg_lakehouse.signals(lake.topics)
        tick = SensorTick(context, endpoints, lake.config, watched, signals, registers, _now())
        return tick.run()

    return snapshots


def _jobs(watched: Collection[TableWatch]) -> list[dg.UnresolvedAssetJobDefinition]:
    """The jobs of the runs that are requested; each run is for a part of its job's assets."""
    computed = [each.computation for each in watched if each.computation]
    runs = [
        *(
            (pipelines.REGISTER, each.registrations, each.registration_checks)
            for each in watched
            if each.registrations
        ),
        *((each.job, each.assets, each.checks) for each in computed),
    ]
    return [
        dg.define_asset_job(
            name,
            dg.AssetSelection.assets(*(key for job, keys, _ in runs if job == name for key in keys))
            | dg.AssetSelection.checks(
                *(k for job, _, checks in runs if job == name for k in checks)
            ),
            executor_def=EXECUTOR,
            description="Registers tables of topics in Glue and Snowflake, and checks them."
            if name == pipelines.REGISTER
            else "Computes partitions of derived tables, and registers the tables.",
        )
        for name in dict.fromkeys(job for job, _, _ in runs)
    ]


class SensorTick:
    """A tick of the sensor: what Dagster knows before, and what it is asked to do."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        endpoints: Endpoints,
        config: Settings,
        watched: Mapping[str, TableWatch],
        signals: Mapping[str, str],
        registrar: Registrar,
        now: float,
    ) -> None:
        """:param now: in seconds since 1970"""
        self.registrar = registrar
        self.context = context
        self.endpoints, self.catalog = endpoints, endpoints.catalog(config)
        self.watched, self.signals = watched, signals
        self.now, self.began = now, time.monotonic()
        self.cursor = Cursor.parse(context.cursor)
        self.states = self.cursor.states(watched)
        self.before = dict(self.states)
        self.tables: dict[tuple[str, str], IcebergTable | Exception] = {}
        self.changed: set[str] = set()  # Derived tables that read a table with a new snapshot.
        self.runs = RequestedRuns(context.instance, config.prefix, self.now)
        self.computations = tick_computations.Computations(watched, self.runs, self.now)
        self.registrations = Registrations(watched, self.states, self.runs, self.now)
        self.events: list[Event] = []
        self.problems: dict[str, Exception] = {}

    def run(self) -> dg.SensorResult | dg.SkipReason:
        """:raises Exception: a table could not be inspected, and nothing happened to the others"""
        swept = self.swept()
        self._look_at_sources([*self._due(swept)])
        self.events += self.registrations.move_pointers(self.registrar, self.context.log)
        self.began = time.monotonic()  # what takes long in the catalogs does not stop computations
        self._look_at_derived(swept)
        registration = self.registrations.registration_run()
        computations = self.computations.requests()
        checks = self.registrations.check_run(self.cursor.checked_at)
        requests = [run for run in (registration, *computations, checks) if run]
        for name, error in self.problems.items():
            self.context.log.error(f"{name}: {safe(error)}")
        idle = not (self.states != self.before or self.events or requests)
        if idle and self.problems:
            raise next(iter(self.problems.values()))
        if idle and self.context.cursor:
            return dg.SkipReason(self._idle_reason())
        checked_at = int(self.now) if checks else self.cursor.checked_at
        return dg.SensorResult(
            run_requests=requests,
            asset_events=self.events,
            cursor=Cursor.of(self.states, checked_at).model_dump_json(exclude_defaults=True),
            skip_reason=self._idle_reason() if idle else None,
        )

    def swept(self) -> set[str]:
        """Return the tables that this tick loads whatever is known of them, others in each tick."""
        names = [*self.watched]
        first = int(self.now // INTERVAL_SECONDS) * SWEEP % max(len(names), 1)
        return {*(names + names)[first : first + SWEEP]}

    def _state(self, watch: TableWatch) -> TableCursor:
        return self.states.get(watch.name, TableCursor())

    def _due(self, swept: set[str]) -> Iterator[TableWatch]:
        """Yield the tables to load that no run computes, beginning with another in each tick."""
        for watch in sorted(self.watched.values(), key=lambda each: each.name not in swept):
            state = self._state(watch)
            is_flagged = state.has(UNREGISTERED) or self._is_unobserved(state)
            moved = self._signal(watch) not in (None, state.signal)
            if not watch.computation and (watch.name in swept or moved or is_flagged):
                yield watch

    def _signal(self, watch: TableWatch) -> str | None:
        """Return a hash of what the writer reports; None: nothing."""
        signal = self.signals.get(watch.origin.root.name) if watch.origin.reported else None
        return None if signal is None else short_hash(signal, 6)

    def _is_unobserved(self, state: TableCursor) -> bool:
        return state.has(UNOBSERVED) and self.now // OBSERVATION_SECONDS > state.observed

    def _look_at_sources(self, due: Sequence[TableWatch]) -> None:
        for first in range(0, len(due), AT_ONCE):
            some = due[first : first + AT_ONCE]
            self._load(watch.origin.identifier for watch in some)
            for watch in some:
                self._guarded(watch, self._look_at_source)
            self._observe([each for each in some if self._is_unobserved(self._state(each))])
            if self._is_over():
                break

    def _look_at_source(self, watch: TableWatch) -> None:
        """Take note of everything that happened to a table since the last look."""
        iceberg, before = self._table(watch.origin.identifier), self._state(watch)
        if iceberg is None:
            self.states[watch.name] = before.flagged(UNREGISTERED, on=False)
            return
        snapshot, signal = head_id(iceberg), self._signal(watch)
        state = replace(before, signal=signal or "")
        if watch.origin.reported:
            events, reported = _reports(watch.origin, iceberg, before.snapshot)
            self.events += events
            state = state.flagged(UNOBSERVED) if events else state
            if reported != snapshot:  # the next tick continues
                snapshot, state = reported, replace(state, signal="")
        if is_new := snapshot != before.snapshot:
            self.changed |= {*watch.readers}
        self.states[watch.name] = replace(state, snapshot=snapshot)
        if watch.registrations and iceberg.current_snapshot():
            self.registrations.look(watch, registered_state(iceberg), is_new=is_new)

    def _look_at_derived(self, swept: set[str]) -> None:
        """Find out what derived tables have not read; those first that others are derived from."""
        derived = [watch for watch in self.watched.values() if watch.computation]
        if not self._is_over():
            self._load(
                name
                for watch in (each for each in derived if self._is_due(each, swept))
                if not self.computations.is_active(watch)
                for name in watch.ledger
            )
        for watch in (each for each in derived if self._is_due(each, swept)):
            if self.computations.is_active(watch) or self._is_over():
                self.states[watch.name] = self._state(watch).flagged(UNFINISHED)
            else:
                self._guarded(watch, self._look_at_ledger)

    def _is_due(self, watch: TableWatch, swept: set[str]) -> bool:
        name = watch.name
        return name in self.changed or name in swept or self._state(watch).has(UNFINISHED)

    def _look_at_ledger(self, watch: TableWatch) -> None:
        computation = watch.computation
        assert computation is not None  # noqa: S101  only derived tables are asked
        sources = computation.plan.source_tables(self._table)
        target, state = self._table(watch.origin.identifier), self._state(watch)
        snapshot = head_id(target)
        if snapshot != state.snapshot:
            self.changed |= {*watch.readers}
        unfinished = bool(sources) and self.computations.look(watch, computation, target, sources)
        state = replace(state, snapshot=snapshot).flagged(UNFINISHED, on=unfinished)
        self.states[watch.name] = state

    def _guarded(self, watch: TableWatch, look: Callable[[TableWatch], None]) -> None:
        """Look at a table; what is wrong with it stops no other."""
        try:
            look(watch)
        except Exception as error:
            self.problems[watch.name] = error
            if watch.computation:  # the next tick no longer knows that a source has changed
                self.states[watch.name] = self._state(watch).flagged(UNFINISHED)

    def _is_over(self) -> bool:
        """Return whether the tick looks at no further tables."""
        silent = sum(classify(error) is not None for error in self.problems.values())
        return silent >= MAX_SILENT or time.monotonic() - self.began > BATCH_SECONDS

    def _load(self, identifiers: Iterable[tuple[str, str]]) -> None:
        """Load tables, several at once."""
        new = [each for each in dict.fromkeys(identifiers) if each not in self.tables]

        def load(identifier: tuple[str, str]) -> IcebergTable | Exception:
            try:
                return self.catalog.load_table(identifier)
            except Exception as error:
                return error

        with ThreadPoolExecutor(AT_ONCE, "snapshots") as pool:
            self.tables.update(zip(new, pool.map(load, new), strict=True))

    def _table(self, identifier: tuple[str, str]) -> IcebergTable | None:
        """Return a table as it is in this tick; None: it does not exist."""
        self._load([identifier])
        table = self.tables[identifier]
        if isinstance(table, NoSuchTableError):
            return None
        if isinstance(table, Exception):
            raise table
        return table

    def _observe(self, watched: Sequence[TableWatch]) -> None:
        """Observe the topics of tables in Kafka, and how far behind them the tables are."""
        minute = int(self.now // OBSERVATION_SECONDS)
        with ThreadPoolExecutor(AT_ONCE, "snapshots") as pool:
            for watch, observation in zip(watched, pool.map(self._observed, watched), strict=True):
                self.events += [observation] if observation else []
                state = self._state(watch).flagged(UNOBSERVED, on=observation is None)
                self.states[watch.name] = replace(state, observed=minute)

    def _observed(self, watch: TableWatch) -> AssetObservation | None:
        """Return where a topic is, and how far behind its table; None while it cannot be read."""
        iceberg, spec = self.tables[watch.origin.identifier], watch.origin.root
        if isinstance(iceberg, Exception):
            return None  # there is no table yet, or the look at it has reported why
        try:
            begin = kafka.beginning_offsets(self.endpoints, spec.name)
            end = kafka.end_offsets(self.endpoints, spec.name)
            offsets = held_offsets(iceberg, spec, self.endpoints, end)
        except TopicbergError as error:
            self.context.log.warning(str(error))
            return None
        except Exception as error:
            self.problems[watch.name] = error
            return None
        return AssetObservation(
            asset_key=kafka_key(spec),
            metadata={
                **topics.kafka_metadata(begin, end),
                **topics.consumer_lag_metadata(offsets, begin, end),
            },
            tags={"dagster/data_version": topics.kafka_data_version(end).value},
        )

    def _idle_reason(self) -> str:
        """Return why a tick that did nothing did nothing."""
        failed = {**self.computations.failed, **self.registrations.failed}
        if failed:
            due = datetime.fromtimestamp(min(run.due for run in failed.values()), UTC)
            return (
                f"runs failed for {listed(sorted(failed), MAX_LISTED)}; the next attempt is after "
                f"{due:%H:%M:%S} UTC"
            )
        flags = {flag for state in self.states.values() for flag in state.flags}
        return "a run is under way" if flags & {UNFINISHED, UNREGISTERED} else "no new snapshot"


def _now() -> float:
    return time.time()


def _reports(
    origin: Table, iceberg: IcebergTable, reported: int | None
) -> tuple[list[Event], int | None]:
    """Return the reports of the next snapshots, and the snapshot up to which they are."""
    changes = changes_since(iceberg, reported)
    batch = changes.new[:MAX_REPORTED]
    events = [
        _event(origin, iceberg, snapshot, gap=changes.gap and snapshot is batch[0])
        for snapshot in batch
    ]
    is_complete = len(batch) == len(changes.new)
    return events, head_id(iceberg) if is_complete else batch[-1].snapshot_id


def _event(origin: Table, iceberg: IcebergTable, snapshot: Snapshot, *, gap: bool) -> Event:
    """Return the report of a snapshot: of one that leaves the rows as they are, no materialization.
    What Dagster derives from materializations would take a table for fresh after maintenance."""
    lost = "; snapshots before it were expired before they were reported" if gap else ""
    facts = report(snapshot)
    schema = iceberg.schemas().get(snapshot.schema_id or 0, iceberg.schema())
    report_as = AssetMaterialization if changes_rows(snapshot) else AssetObservation
    return report_as(
        asset_key=origin.key("iceberg"),
        description=f"snapshot {facts.snapshot_id}: {facts.operation}, "
        f"{facts.added_records:,} rows in, {facts.deleted_records:,} out{lost}",
        metadata={
            **metadata.snapshot_metadata(facts),
            **metadata.commit_lag_metadata(
                iceberg, snapshot, origin.root.metadata_column("timestamp")
            ),
            **metadata.skipped_metadata(iceberg),
            "dagster/column_schema": metadata.column_schema(schema),
            "dagster/uri": iceberg.location(),
        },
        tags={"dagster/data_version": str(facts.snapshot_id)},
    )
