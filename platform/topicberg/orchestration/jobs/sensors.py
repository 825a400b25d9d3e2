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
operator's rollback. :mod:`.jobs.watches` has what is watched, :mod:`.jobs.changes` what changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat

import dagster as dg
from dagster import AssetMaterialization, AssetObservation, DagsterRunStatus
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table as IcebergTable

from topicberg import kafka
from topicberg.dagster import BACKGROUND
from topicberg.dagster.executor import EXECUTOR
from topicberg.dagster.locations import location_of_sensor
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError, safe
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.partitions import (
    RANGE_END,
    RANGE_START,
    Span,
    described_range,
)
from topicberg.orchestration.assets.tables import kafka_key
from topicberg.orchestration.assets.topics import (
    consumer_lag_metadata,
    kafka_data_version,
    kafka_metadata,
)
from topicberg.orchestration.checks.adapter import COMPUTATION, KIND, REGISTRATION
from topicberg.orchestration.jobs.changes import BATCH_SECONDS, Tick, advance
from topicberg.orchestration.jobs.pipelines import REGISTER
from topicberg.orchestration.jobs.registration import Registrar
from topicberg.orchestration.jobs.schedules import run_with_key, skip_if_unavailable
from topicberg.orchestration.jobs.snapshot_cursor import (
    MAX_ATTEMPTS,
    RunState,
    TableCursor,
    is_moved,
    move,
    register,
    settle_registration,
    share,
    wants_move,
    wants_registration,
)
from topicberg.orchestration.jobs.snapshot_store import SENSOR, Position, begin, load
from topicberg.orchestration.jobs.watches import (
    HOURS,
    TABLES,
    TableWatch,
    listed_tables,
    watches,
)
from topicberg.orchestration.resources import Lakehouse
from topicberg.retry import classify, is_refused, with_service
from topicberg.settings import Settings
from topicberg.tableflow.wait import held_offsets

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
REGISTERED_AT_ONCE = 100
"""Tables that one run registers at most; what changes meanwhile is registered by the next run."""
REGISTRATION_SECONDS = 900
"""A run that registers for longer is ended: the tables that it left are registered by the next."""
CHECK_SECONDS, CHECK_SHARE = 60, 10
"""Between two runs that check the tables that ticks registered; and if they take long, they take at
most a tenth of the time."""
_FINISHED: dict[DagsterRunStatus, RunState] = {
    DagsterRunStatus.SUCCESS: "succeeded",
    DagsterRunStatus.FAILURE: "failed",
    DagsterRunStatus.CANCELED: "failed",
    DagsterRunStatus.NOT_STARTED: "missing",
}


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
        try:
            endpoints = topicberg_lakehouse.peek()
            signals = topicberg_lakehouse.signals(lake.topics)
            return _Evaluation(context, endpoints, lake.config, watched, signals, registers).run()
        except (TopicbergError, OSError) as error:
            if is_refused(error):
                raise
            return dg.SkipReason(str(safe(with_service(error))))

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
        self.context, self.instance = context, context.instance
        self.endpoints, self.catalog = endpoints, endpoints.catalog(config)
        self.watched, self.signals = watched, signals
        location = location_of_sensor(context)
        self.position = Position.parse(context.cursor) or begin()
        self.cursors = load(self.instance, self.position, watched, location)
        self.runs: dict[str, dg.DagsterRun | None] = {}
        self.changed: dict[str, TableCursor] = {}
        self.events: list[AssetMaterialization | AssetObservation] = []
        self.requests: list[dg.RunRequest] = []
        self.computations: list[tuple[TableWatch, str, Span]] = []
        """What tables want to have computed, and by which runs: watch, run key, partitions."""
        self.problems: dict[str, Exception] = {}
        self.postponed: set[str] = set()
        """What this tick had no time to register, and the next one registers."""

    def run(self) -> dg.SensorResult | dg.SkipReason:
        """:raises Exception: a table could not be inspected, and nothing happened to the others"""
        now, began = _now(), time.monotonic()
        looks_back = now - self.position.looked_back_at >= LOOKING_BACK_SECONDS
        due = [*self._due(now, looks_back)]
        self._look_at(due, now, began)
        self._look_at([*self._joining(due)], now, began, self._requested_spans())
        self._request_computations()
        self._move_pointers(now)
        registrations = self.position.registrations + self._register()
        position = self._check(now)
        for name, error in self.problems.items():
            self.context.log.error(f"{name}: {safe(error)}")
        idle = not (self.changed or self.events or self.requests)
        if idle and self.problems:
            raise next(iter(self.problems.values()))
        stored = not self.position.changed  # else the next tick's cursor is small again
        if idle and stored and not looks_back and self.context.cursor:
            return dg.SkipReason(self._idle())
        position = position.model_copy(
            update={
                "changed": self.changed,
                "looked_back_at": now if looks_back else position.looked_back_at,
                "registrations": registrations,
            }
        )
        return dg.SensorResult(
            run_requests=self.requests,
            asset_events=self.events,
            cursor=position.model_dump_json(exclude_defaults=True),
            skip_reason=self._idle() if idle else None,
        )

    def _look_at(
        self,
        watched: Sequence[TableWatch],
        now: float,
        began: float,
        joins: Mapping[str, Set[Span]] | None = None,
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

    def _requested_spans(self) -> dict[str, set[Span]]:
        """Return the partitions that this tick has requested so far, by job."""
        requested: dict[str, set[Span]] = {}
        for watch, _, span in self.computations:
            requested.setdefault(watch.job, set()).add(span)
        return requested

    def _joining(self, due: Iterable[TableWatch]) -> Iterator[TableWatch]:
        """Yield what else follows from the tables for which this tick requests runs.

        :param due: at which it has looked
        """
        requested = {(watch.job, watch.origin.name) for watch, _, _ in self.computations}
        looked_at = {watch.name for watch in due}
        for watch in self.watched.values():
            if (watch.job, watch.origin.name) in requested and watch.name not in looked_at:
                yield watch

    def _due(self, now: float, looks_back: bool) -> Iterator[TableWatch]:
        """Yield the tables to load, beginning with another one in each tick."""
        due = [each for each in self.watched.values() if each.reported or looks_back]
        first = int(now // INTERVAL_SECONDS) * SWEEP % max(len(due), 1)
        for place, watch in enumerate([*due[first:], *due[:first]]):
            cursor = self.cursors.get(watch.name)
            signal = self._signal(watch)
            moved = signal is not None and (cursor is None or cursor.signal != signal)
            if place < SWEEP or moved or self._ended(watch, cursor):
                yield watch

    def _ended(self, watch: TableWatch, cursor: TableCursor | None) -> bool:
        keys = _keys(cursor) if cursor else []
        return any(self._state(watch, key) != "active" for key in keys)

    def _signal(self, watch: TableWatch) -> str | None:
        return self.signals.get(watch.origin.root.name) if watch.origin.reported else None

    def _before(self, watch: TableWatch) -> tuple[TableCursor, dict[str, RunState]]:
        """Return the cursor of a table, and how the runs are that were requested for it."""
        cursor = self.cursors.get(watch.name) or TableCursor(life=self.position.life)
        return cursor, {key: self._state(watch, key) for key in _keys(cursor)}

    def _look(
        self,
        watch: TableWatch,
        before: tuple[TableCursor, Mapping[str, RunState]],
        now: float,
        joins: Set[Span] | None,
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
            if look.computation:
                keys = look.computation.ranges
                self.computations += zip(repeat(watch), keys, look.runs)
            self._note(watch.name, look.cursor)
            return
        cursor = settle_registration(*before)
        if look is None:
            cursor = cursor.replace(dirty=False)
        else:
            self.problems[watch.name] = look
        if watch.name in self.cursors:
            self._note(watch.name, cursor)

    def _note(self, name: str, cursor: TableCursor) -> None:
        if cursor != self.cursors.get(name):
            self.cursors[name] = self.changed[name] = cursor

    def _request_computations(self) -> None:
        """Request a run for each range of partitions, for all tables that want it."""
        shared: dict[tuple[str, Span, str], list[tuple[TableWatch, str]]] = {}
        for watch, key, span in self.computations:
            alone = watch.name if self.cursors[watch.name].failures else ""
            shared.setdefault((watch.job, span, alone), []).append((watch, key))
        for (_, span, _), members in shared.items():
            run_key = members[0][1]
            for watch, key in members[1:]:
                self._note(watch.name, share(self.cursors[watch.name], key, run_key))
            self.requests.append(_computation(run_key, span, [watch for watch, _ in members]))

    def _wanting(self, wants: Callable[[TableCursor], bool]) -> list[TableWatch]:
        """Return the tables with registrations, the one first whose last one is the longest ago."""
        found = [
            (cursor.moved_at, name)
            for name, watch in self.watched.items()
            if watch.registrations and (cursor := self.cursors.get(name)) and wants(cursor)
        ]
        return [self.watched[name] for _, name in sorted(found)]

    def _move_pointers(self, now: float) -> None:
        """Register tables within this tick, as far as that only moves pointers."""
        watched = [watch for watch in self._wanting(wants_move) if watch.pointers]
        registered = self.registrar.register([table for each in watched for table in each.pointers])
        for name, error in registered.failed.items():
            self.context.log.warning(f"{name}: a run registers it, as this failed: {safe(error)}")
        for watch in watched:
            moved = {table.name for table in watch.pointers}
            if moved <= registered.events.keys():
                self.events += [
                    event for name in sorted(moved) for event in registered.events[name]
                ]
                cursor = self.cursors[watch.name]
                is_all = not watch.computed_registrations
                self._note(watch.name, move(cursor, now, is_all=is_all))
            elif not moved & registered.failed.keys():
                self.postponed.add(watch.name)

    def _register(self) -> int:
        """Request a run that registers what this tick could not; return how many were requested."""
        if any(cursor.registration for cursor in self.cursors.values()):
            return 0
        wanting = self._wanting(wants_registration)
        chosen = [w for w in wanting if w.name not in self.postponed][:REGISTERED_AT_ONCE]
        if not chosen:
            return 0
        keys: list[dg.AssetKey] = []
        for watch in chosen:
            done = watch.pointers and is_moved(self.cursors[watch.name])
            keys += watch.computed_registrations if done else watch.registrations
        run_key = self._run_key(REGISTRATION, self.position.registrations, chosen)
        for watch in chosen:
            self._note(watch.name, register(self.cursors[watch.name], run_key))
        self._request(run_key, chosen, keys, {"dagster/priority": "2"})
        return 1

    def _check(self, now: float) -> Position:
        """Request a run that checks what ticks registered; return the position with its number."""
        unchecked = self._wanting(lambda cursor: cursor.unchecked)
        before = self.position
        if not unchecked or now - before.checked_at < CHECK_SECONDS:
            return before
        if before.checks_key:
            if self._run_state(before.checks_key) == "active":
                return before
            took = self._seconds(before.checks_key)
            if now - before.checked_at < CHECK_SHARE * took:
                return before
        run_key = self._run_key("checks", int(now), unchecked)
        for watch in unchecked:
            self._note(watch.name, self.cursors[watch.name].replace(unchecked=False))
        self._request(run_key, unchecked, [], {BACKGROUND: "true"})
        return before.model_copy(update={"checks_key": run_key, "checked_at": now})

    def _run_key(self, kind: str, number: int, chosen: Iterable[TableWatch]) -> str:
        """Return a key that no other selection of tables has.

        Dagster launches no key twice: after a tick of which nothing was kept, another selection
        needs another key.
        """
        selection = [(watch.name, self.cursors[watch.name].snapshot) for watch in chosen]
        digest = hashlib.sha256(json.dumps(selection).encode()).hexdigest()[:12]
        return f"{kind}:{self.position.life}-{number}-{digest}"

    def _request(
        self,
        run_key: str,
        chosen: Sequence[TableWatch],
        keys: list[dg.AssetKey],
        tags: Mapping[str, str],
    ) -> None:
        self.requests.append(
            dg.RunRequest(
                run_key=run_key,
                job_name=REGISTER,
                asset_selection=keys,
                asset_check_keys=[key for watch in chosen for key in watch.registration_checks],
                tags={
                    KIND: REGISTRATION,
                    TABLES: listed_tables([watch.origin.key("iceberg") for watch in chosen]),
                    "dagster/max_runtime": str(REGISTRATION_SECONDS),
                    **tags,
                },
            )
        )

    def _state(self, watch: TableWatch, key: str) -> RunState:
        """Return how a run is; of one that failed, whether it registered this table."""
        state, run = self._run_state(key), self.runs[key]
        if run and state == "failed" and key.startswith(f"{REGISTRATION}:"):
            return "succeeded" if self._registered(watch, run) else "failed"
        return state

    def _run_state(self, key: str) -> RunState:
        if key not in self.runs:
            self.runs[key] = run_with_key(self.instance, key)
        run = self.runs[key]
        return _FINISHED.get(run.status, "active") if run else "missing"

    def _seconds(self, key: str) -> float:
        """Return how long a run took that has ended; 0: it never began."""
        run = self.runs[key]
        record = self.instance.get_run_record_by_id(run.run_id) if run else None
        began, ended = (record.start_time, record.end_time) if record else (None, None)
        return ended - began if began and ended else 0.0

    def _registered(self, watch: TableWatch, run: dg.DagsterRun) -> bool:
        selected = run.asset_selection  # None: the whole job
        keys = [key for key in watch.registrations if selected is None or key in selected]
        last = [self.instance.get_latest_materialization_event(key) for key in keys]
        return all(event is not None and event.run_id == run.run_id for event in last)

    def _idle(self) -> str:
        given_up = [
            name
            for name, cursor in self.cursors.items()
            if max(cursor.failures, cursor.registration_failures) >= MAX_ATTEMPTS
        ]
        if given_up:
            shown, more = ", ".join(given_up[:5]), len(given_up) - 5
            shown += f" and {more} more" if more > 0 else ""
            return (
                f"{MAX_ATTEMPTS} runs failed for {shown}; fix the cause, the next snapshot or a "
                "manual materialization resumes it"
            )
        if any(cursor.request or cursor.registration for cursor in self.cursors.values()):
            return "a run is under way"
        return "no new snapshot"


def _now() -> float:
    return time.time()


def _keys(cursor: TableCursor) -> list[str]:
    """Return the keys of the runs that were requested."""
    return [
        key for wanted in (cursor.request, cursor.registration) if wanted for key in wanted.ranges
    ]


def _computation(run_key: str, span: Span, watched: Sequence[TableWatch]) -> dg.RunRequest:
    """Return a run that computes a range of partitions of what follows from some tables."""
    derived = list(dict.fromkeys(key for watch in watched for key in watch.derived))
    return dg.RunRequest(
        run_key=run_key,
        job_name=watched[0].job,
        asset_selection=derived,
        asset_check_keys=list(
            dict.fromkeys(key for watch in watched for key in watch.derived_checks)
        ),
        tags={
            KIND: COMPUTATION,
            TABLES: listed_tables(derived),
            HOURS: described_range(span.first, span.last),
            "dagster/priority": "1" if any(watch.reported for watch in watched) else "0",
            RANGE_START: span.first,
            RANGE_END: span.last,
        },
    )


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
