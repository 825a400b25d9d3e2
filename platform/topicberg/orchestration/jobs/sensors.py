"""The sensor on snapshots: what a new snapshot of a table affects is computed again downstream.

It reports every snapshot of a topic's table, and registers the tables that changed in Glue and
Snowflake (:mod:`.jobs.registration`). It requests runs: one that registers what a tick cannot, one
that checks what ticks registered, and for each table one for the affected partitions of everything
that follows from it alone. A derived table with a lookback follows from more: its source is watched
for it again, which also requests the partitions after those that it affects, as far as the
lookback reaches. So is that of one with a lookup, for everything after them. What a tick requests
of the same partitions is one run, unless the last one failed.

A tick costs what changed. It loads tables whose writer reports another snapshot than at the last
look, those whose runs have ended, and a few others in turn: no writer reports maintenance, or an
operator's rollback.

===============================  ==================================================
:mod:`.jobs.watches`             what is watched
:mod:`.jobs.changes`             what changed in a table
:mod:`.jobs.requested_runs`      how the runs are that earlier ticks requested
:mod:`.jobs.tick_computations`   the runs that compute partitions
:mod:`.jobs.tick_registrations`  what a tick registers, and the runs for the others
===============================  ==================================================
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat

import dagster as dg
from dagster import AssetMaterialization, AssetObservation
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table as IcebergTable

from topicberg.dagster.executor import EXECUTOR
from topicberg.dagster.locations import location_of_sensor
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError, safe
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.partitions import Span
from topicberg.orchestration.assets.tables import kafka_key
from topicberg.orchestration.assets.topics import (
    consumer_lag_metadata,
    kafka_data_version,
    kafka_metadata,
)
from topicberg.orchestration.jobs.changes import BATCH_SECONDS, Tick, advance
from topicberg.orchestration.jobs.pipelines import REGISTER
from topicberg.orchestration.jobs.registration import Registrar
from topicberg.orchestration.jobs.requested_runs import RequestedRuns
from topicberg.orchestration.jobs.schedules import skip_if_unavailable
from topicberg.orchestration.jobs.snapshot_cursor import (
    MAX_ATTEMPTS,
    RunState,
    TableCursor,
    settle_registration,
)
from topicberg.orchestration.jobs.snapshot_store import SENSOR, Cursors, Position, load
from topicberg.orchestration.jobs.tick_computations import Computations
from topicberg.orchestration.jobs.tick_registrations import Registrations
from topicberg.orchestration.jobs.watches import MAX_LISTED, TableWatch, watches
from topicberg.orchestration.resources import Lakehouse
from topicberg.retry import classify
from topicberg.settings import Settings
from topicberg.tableflow.service.wait import held_offsets
from topicberg.wording import listed

INTERVAL_SECONDS, LOOKING_BACK_SECONDS = 5, 60
"""A tick costs Dagster some 50 ms, whatever it finds. Who waits for a topic's table waits for the
first; the second is for what is computed beyond the touched hours, if no run of the first does it.
"""
OBSERVATION_SECONDS = 60
"""Between two observations of a topic in Kafka, which follow commits to its table."""
AT_ONCE = 8
"""Tables that a tick inspects at once: most of the time is waiting for the catalog and S3."""
SWEEP = 20
"""Tables that a tick loads in turn, whether or not anything says that they changed."""
MAX_SILENT = 3
"""After so many tables whose services did not answer, a tick asks for no further ones."""


def snapshot_sensor(lake: Lake, registrar: Registrar | None = None) -> dg.SensorDefinition:
    """One for all tables, so that a run registers what changed at the same time."""
    watched = {watch.name: watch for watch in watches(lake)}
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
    @skip_if_unavailable
    def snapshots(
        context: dg.SensorEvaluationContext, topicberg_lakehouse: Lakehouse
    ) -> dg.SensorResult | dg.SkipReason:
        endpoints = topicberg_lakehouse.peek()
        signals = topicberg_lakehouse.signals(lake.topics)
        return _Evaluation(context, endpoints, lake.config, watched, signals, registers).run()

    return snapshots


def _jobs(watched: Iterable[TableWatch]) -> list[dg.UnresolvedAssetJobDefinition]:
    """The jobs of the runs that are requested; each run is for a part of its job's assets."""
    keys: dict[str, list[dg.AssetKey]] = {}
    checks: dict[str, list[dg.AssetCheckKey]] = {}
    for each in watched:
        if each.registrations:
            keys.setdefault(REGISTER, []).extend(each.registrations)
            checks.setdefault(REGISTER, []).extend(each.registration_checks)
        if each.derived:
            keys.setdefault(each.job, []).extend(each.derived)
            checks.setdefault(each.job, []).extend(each.derived_checks)
    return [
        dg.define_asset_job(
            name,
            dg.AssetSelection.assets(*keys[name]) | dg.AssetSelection.checks(*checks[name]),
            executor_def=EXECUTOR,
            description="Registers tables of topics in Glue and Snowflake, and checks them."
            if name == REGISTER
            else "Computes partitions of derived tables, and registers the tables.",
        )
        for name in keys
    ]


class _Evaluation:
    """A tick of the sensor: what Dagster knows before, and what it is asked to do."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        endpoints: Endpoints,
        config: Settings,
        watched: Mapping[str, TableWatch],
        signals: Mapping[str, str],
        registrar: Registrar,
    ) -> None:
        self.registrar = registrar
        self.context = context
        self.endpoints, self.catalog = endpoints, endpoints.catalog(config)
        self.watched, self.signals = watched, signals
        location = location_of_sensor(context)
        self.position = Position.parse(context.cursor)
        self.cursors = Cursors(load(context.instance, self.position, watched, location))
        self.runs = RequestedRuns(context.instance)
        self.computations = Computations()
        self.events: list[AssetMaterialization | AssetObservation] = []
        self.problems: dict[str, Exception] = {}

    def run(self) -> dg.SensorResult | dg.SkipReason:
        """:raises Exception: a table could not be inspected, and nothing happened to the others"""
        now, began = _now(), time.monotonic()
        looks_back = now - self.position.looked_back_at >= LOOKING_BACK_SECONDS
        due = [*self._due(now, looks_back)]
        self._look_at(due, now, began)
        looked_at = {watch.name for watch in due}
        joining = self.computations.joining(self.watched.values())
        others = [watch for watch in joining if watch.name not in looked_at]
        self._look_at(others, now, began, self.computations.spans())
        computations = self.computations.requests(self.cursors)
        registrations = Registrations(self.watched, self.cursors, self.position, self.runs)
        self.events += registrations.move_pointers(self.registrar, self.context.log, now)
        runs = registrations.registration_run(), *computations, registrations.check_run(now)
        requests = [run for run in runs if run]
        for name, error in self.problems.items():
            self.context.log.error(f"{name}: {safe(error)}")
        idle = not (self.cursors.changed or self.events or requests)
        if idle and self.problems:
            raise next(iter(self.problems.values()))
        stored = not self.position.changed  # else the next tick's cursor is small again
        if idle and stored and not looks_back and self.context.cursor:
            return dg.SkipReason(_idle_reason(self.cursors))
        position = registrations.position.model_copy(
            update={
                "changed": self.cursors.changed,
                "looked_back_at": now if looks_back else self.position.looked_back_at,
            }
        )
        return dg.SensorResult(
            run_requests=requests,
            asset_events=self.events,
            cursor=position.model_dump_json(exclude_defaults=True),
            skip_reason=_idle_reason(self.cursors) if idle else None,
        )

    def _look_at(
        self,
        watched: Sequence[TableWatch],
        now: float,
        began: float,
        joins: Mapping[str, Set[tuple[Span, ...]]] | None = None,
    ) -> None:
        """Look at some tables, as far as there is time.

        :param joins: the partitions, by job, to which their runs are limited; None: they are not
        """
        with ThreadPoolExecutor(AT_ONCE, "snapshots") as pool:
            for first in range(0, len(watched), AT_ONCE):
                at_once = watched[first : first + AT_ONCE]
                befores = [self._before(watch) for watch in at_once]
                spans = [None if joins is None else joins[watch.job] for watch in at_once]
                looks = pool.map(self._look, at_once, befores, repeat(now), spans)
                for watch, before, look in zip(at_once, befores, looks, strict=True):
                    self._note_look(watch, before, look)
                silent = sum(classify(error) is not None for error in self.problems.values())
                if silent >= MAX_SILENT or time.monotonic() - began > BATCH_SECONDS:
                    break

    def _due(self, now: float, looks_back: bool) -> Iterator[TableWatch]:
        """Yield the tables to load, beginning with another one in each tick."""
        due = [each for each in self.watched.values() if each.reported or looks_back]
        first = int(now // INTERVAL_SECONDS) * SWEEP % max(len(due), 1)
        for place, watch in enumerate([*due[first:], *due[:first]]):
            cursor, signal = self._cursor(watch), self._signal(watch)
            moved = signal is not None and cursor.signal != signal
            if place < SWEEP or moved or self.runs.any_ended(watch, cursor):
                yield watch

    def _cursor(self, watch: TableWatch) -> TableCursor:
        return self.cursors.get(watch.name) or TableCursor(life=self.position.life)

    def _signal(self, watch: TableWatch) -> str | None:
        return self.signals.get(watch.origin.root.name) if watch.origin.reported else None

    def _before(self, watch: TableWatch) -> tuple[TableCursor, dict[str, RunState]]:
        """Return the cursor of a table, and how the runs are that were requested for it."""
        cursor = self._cursor(watch)
        return cursor, self.runs.states(watch, cursor)

    def _look(
        self,
        watch: TableWatch,
        before: tuple[TableCursor, Mapping[str, RunState]],
        now: float,
        joins: Set[tuple[Span, ...]] | None,
    ) -> Tick | Exception | None:
        """Return what happened to a table, or what is wrong with it; None: it does not exist.

        Threads do this for several tables at once.
        """
        try:
            iceberg = self.catalog.load_table(watch.origin.identifier)
            tick = advance(*before, iceberg, watch, self.catalog, joins)
            head, cursor = iceberg.current_snapshot(), tick.cursor
            if cursor.registration is None and head and cursor.snapshot == head.snapshot_id:
                cursor = cursor.replace(signal=self._signal(watch))
            if tick.events and watch.reported:
                cursor = cursor.replace(unobserved=True)
            if cursor.unobserved and now - cursor.observed_at >= OBSERVATION_SECONDS:
                observation = _kafka_observation(self.context, watch, self.endpoints, iceberg)
                tick.events.extend([observation] if observation else [])
                cursor = cursor.replace(unobserved=observation is None, observed_at=now)
            return replace(tick, cursor=cursor)
        except NoSuchTableError:
            return None
        except Exception as error:
            return error

    def _note_look(
        self,
        watch: TableWatch,
        before: tuple[TableCursor, Mapping[str, RunState]],
        look: Tick | Exception | None,
    ) -> None:
        """Take note of it; what is wrong with a table stops no other."""
        if isinstance(look, Tick):
            self.events += look.events
            self.computations.add(watch, look)
            self.cursors.note(watch.name, look.cursor)
            return
        cursor = settle_registration(*before)
        if look is None:
            cursor = cursor.replace(dirty=False)
        else:
            self.problems[watch.name] = look
        if watch.name in self.cursors:
            self.cursors.note(watch.name, cursor)


def _idle_reason(cursors: Cursors) -> str:
    """Return why a tick that did nothing did nothing."""
    given_up = [
        name
        for name, cursor in cursors.items()
        if max(cursor.failures, cursor.registration_failures) >= MAX_ATTEMPTS
    ]
    if given_up:
        return (
            f"{MAX_ATTEMPTS} runs failed for {listed(given_up, MAX_LISTED)}; fix the cause, the "
            "next snapshot or a manual materialization resumes it"
        )
    if any(cursor.request or cursor.registration for cursor in cursors.values()):
        return "a run is under way"
    return "no new snapshot"


def _now() -> float:
    return time.time()


def _kafka_observation(
    context: dg.SensorEvaluationContext,
    watch: TableWatch,
    endpoints: Endpoints,
    iceberg: IcebergTable,
) -> AssetObservation | None:
    """Where the topic is, and how far behind its table; None while Kafka does not answer."""
    topic = watch.origin.root.name
    try:
        begin = kafka.beginning_offsets(endpoints, topic)
        end = kafka.end_offsets(endpoints, topic)
        offsets = held_offsets(iceberg, watch.origin.root, endpoints, end)
    except TopicbergError as error:
        context.log.warning(str(error))
        return None
    return AssetObservation(
        asset_key=kafka_key(watch.origin.root),
        metadata={**kafka_metadata(begin, end), **consumer_lag_metadata(offsets, begin, end)},
        tags={"dagster/data_version": kafka_data_version(end).value},
    )
