"""The sensor on snapshots: what a new snapshot of a table touched is computed again downstream.

It reports every snapshot of a topic's table, and requests runs: one that registers all tables that
changed, and for each table one for the affected partitions of everything that follows from it
alone. A derived table with a lookback follows from more: its source is watched for it once more,
which also requests the partitions after those that were touched, as far as the lookback reaches. So
is that of one with a lookup, for everything after them.

A tick costs what changed. It loads tables whose writer reports another snapshot than at the last
look, those whose runs have ended, and a few others in turn: no writer reports maintenance, or an
operator's rollback. :mod:`jobs.watches` has what is watched, :mod:`jobs.changes` what changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg
from dagster import AssetMaterialization, AssetObservation, DagsterRunStatus
from pyiceberg.exceptions import NoSuchTableError

from assets.checks import COMPUTATION, REGISTRATION
from assets.lake import Lake
from assets.partitions import RANGE_END, RANGE_START, Span
from assets.tables import kafka_key
from assets.topics import consumer_lag_metadata, kafka_data_version, kafka_metadata
from jobs.changes import BATCH_SECONDS, advance
from jobs.pipelines import REGISTER
from jobs.schedules import run_with_key, skip_if_unavailable
from jobs.snapshot_cursor import (
    MAX_ATTEMPTS,
    Cursor,
    Request,
    RunState,
    register,
    wants_registration,
)
from jobs.snapshot_store import Position, begin, load
from jobs.watches import Watch, watches
from resources import Lakehouse
from topicberg import kafka
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.retry import classify
from topicberg.settings import Settings
from topicberg.tableflow.wait import held_offsets

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

SENSOR = "snapshots"
INTERVAL_SECONDS, LOOKING_BACK_SECONDS = 5, 60
"""A tick costs Dagster some 50 ms, whatever it finds. Who waits for a topic's table waits for the
first; the second is for what is computed beyond the touched hours.
"""
SWEEP = 20
"""Tables that a tick loads in turn, whether or not anything says that they changed."""
MAX_SILENT = 3
"""After so many tables whose services did not answer, a tick asks for no further one."""
REGISTERED_AT_ONCE = 100
"""Tables that one run registers at most; what changes meanwhile is registered by the next run."""
REGISTRATION_SECONDS = 900
"""A run that registers for longer is ended: the tables that it left are registered by the next."""
_FINISHED: dict[DagsterRunStatus, RunState] = {
    DagsterRunStatus.SUCCESS: "succeeded",
    DagsterRunStatus.FAILURE: "failed",
    DagsterRunStatus.CANCELED: "failed",
    DagsterRunStatus.NOT_STARTED: "missing",
}


def snapshot_sensor(lake: Lake) -> dg.SensorDefinition:
    """One for all tables, so that a run registers what changed at the same time."""
    watched = {watch.name: watch for watch in watches(lake)}

    @dg.sensor(
        name=SENSOR,
        jobs=_jobs(watched.values()),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Watches the tables of all topics. Reports every snapshot of them as a "
        "materialization, registers the tables in Glue and Snowflake, and computes the partitions "
        "of derived tables that new snapshots touched.",
    )
    @skip_if_unavailable
    def snapshots(
        context: dg.SensorEvaluationContext, lakehouse: Lakehouse
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            endpoints = lakehouse.peek()
            signals = lakehouse.signals(lake.topics)
            return _Evaluation(context, endpoints, lake.config, watched, signals).run()
        except (TopicbergError, OSError) as error:
            return dg.SkipReason(str(error))

    return snapshots


def _jobs(watched: Iterable[Watch]) -> list[dg.UnresolvedAssetJobDefinition]:
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
            description="Registers tables of topics in Glue and Snowflake."
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
        watched: Mapping[str, Watch],
        signals: Mapping[str, str],
    ) -> None:
        self.context, self.instance = context, context.instance
        self.endpoints, self.catalog = endpoints, endpoints.catalog(config)
        self.watched, self.signals = watched, signals
        self.position = Position.parse(context.cursor) or begin(self.instance, watched)
        self.cursors = load(self.instance, self.position, watched)
        self.runs: dict[str, dg.DagsterRun | None] = {}
        self.changed: dict[str, Cursor] = {}
        self.events: list[AssetMaterialization | AssetObservation] = []
        self.requests: list[dg.RunRequest] = []
        self.problems: dict[str, Exception] = {}

    def run(self) -> dg.SensorResult | dg.SkipReason:
        """:raises Exception: a table could not be inspected, and nothing happened to the others"""
        now, began = _now(), time.monotonic()
        looks_back = now - self.position.looked_back_at >= LOOKING_BACK_SECONDS
        for watch in self._due(now, looks_back):
            self._inspect(watch)
            silent = sum(classify(error) is not None for error in self.problems.values())
            if silent >= MAX_SILENT or time.monotonic() - began > BATCH_SECONDS:
                break
        registrations = self.position.registrations + self._register()
        for name, error in self.problems.items():
            self.context.log.error(f"{name}: {error}")
        idle = not (self.changed or self.events or self.requests)
        if idle and self.problems:
            raise next(iter(self.problems.values()))
        stored = not self.position.changed  # else the next tick's cursor is small again
        if idle and stored and not looks_back and self.context.cursor:
            return dg.SkipReason(self._idle())
        position = Position(
            life=self.position.life,
            changed=self.changed,
            looked_back_at=now if looks_back else self.position.looked_back_at,
            registrations=registrations,
        )
        return dg.SensorResult(
            run_requests=self.requests,
            asset_events=self.events,
            cursor=position.model_dump_json(exclude_defaults=True),
        )

    def _due(self, now: float, looks_back: bool) -> Iterator[Watch]:
        """Yield the tables to load, beginning with another one in each tick."""
        due = [each for each in self.watched.values() if each.reported or looks_back]
        first = int(now // INTERVAL_SECONDS) * SWEEP % max(len(due), 1)
        for place, watch in enumerate([*due[first:], *due[:first]]):
            cursor = self.cursors.get(watch.name)
            signal = self._signal(watch)
            moved = signal is not None and (cursor is None or cursor.signal != signal)
            if place < SWEEP or moved or self._ended(watch, cursor):
                yield watch

    def _ended(self, watch: Watch, cursor: Cursor | None) -> bool:
        keys = _keys(cursor) if cursor else []
        return any(self._state(watch, key) != "active" for key in keys)

    def _signal(self, watch: Watch) -> str | None:
        return self.signals.get(watch.origin.root.name) if watch.of_topic else None

    def _inspect(self, watch: Watch) -> None:
        """Take note of what happened to a table; what is wrong with it stops no other."""
        before = self.cursors.get(watch.name) or Cursor(life=self.position.life)
        try:
            iceberg = self.catalog.load_table(watch.origin.table.identifier)
            states = {key: self._state(watch, key) for key in _keys(before)}
            found = advance(before, states, iceberg, watch, self.catalog)
        except NoSuchTableError:
            return
        except Exception as error:
            self.problems[watch.name] = error
            return
        head, cursor = iceberg.current_snapshot(), found.cursor
        if cursor.registration is None and head and cursor.snapshot == head.snapshot_id:
            cursor = cursor.model_copy(update={"signal": self._signal(watch)})
        events = found.events
        if events and (
            observation := _kafka_observation(self.context, watch, self.endpoints, iceberg)
        ):
            events.append(observation)
        self.events += events
        if found.computation:
            self.requests += _computations(found.computation, found.runs, watch)
        self._note(watch.name, cursor)

    def _note(self, name: str, cursor: Cursor) -> None:
        if cursor != self.cursors.get(name):
            self.cursors[name] = self.changed[name] = cursor

    def _register(self) -> int:
        """Request a run that registers the tables that changed; return how many were requested."""
        if any(cursor.registration for cursor in self.cursors.values()):
            return 0
        chosen = [
            watch
            for name, watch in self.watched.items()
            if watch.registrations
            and name in self.cursors
            and wants_registration(self.cursors[name])
        ][:REGISTERED_AT_ONCE]
        if not chosen:
            return 0
        # Dagster launches no key twice: after a tick of which nothing was kept, another selection
        # needs another key.
        selection = [(watch.name, self.cursors[watch.name].snapshot) for watch in chosen]
        digest = hashlib.sha256(json.dumps(selection).encode()).hexdigest()[:12]
        number = self.position.registrations
        run_key = f"{REGISTRATION}:{self.position.life}-{number}-{digest}"
        for watch in chosen:
            self._note(watch.name, register(self.cursors[watch.name], run_key))
        self.requests.append(
            dg.RunRequest(
                run_key=run_key,
                job_name=REGISTER,
                asset_selection=[key for watch in chosen for key in watch.registrations],
                asset_check_keys=[key for watch in chosen for key in watch.registration_checks],
                tags={
                    "topicberg/kind": REGISTRATION,
                    "topicberg/tables": str(len(chosen)),
                    "dagster/priority": "2",
                    "dagster/max_runtime": str(REGISTRATION_SECONDS),
                },
            )
        )
        return 1

    def _state(self, watch: Watch, key: str) -> RunState:
        """Return how a run is; of one that failed, whether it registered this table."""
        if key not in self.runs:
            self.runs[key] = run_with_key(self.instance, key)
        run = self.runs[key]
        state: RunState = _FINISHED.get(run.status, "active") if run else "missing"
        if run and state == "failed" and key.startswith(f"{REGISTRATION}:"):
            return "succeeded" if self._registered(watch, run) else "failed"
        return state

    def _registered(self, watch: Watch, run: dg.DagsterRun) -> bool:
        last = [self.instance.get_latest_materialization_event(k) for k in watch.registrations]
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


def _keys(cursor: Cursor) -> list[str]:
    """Return the keys of the runs that were requested."""
    return [
        key for wanted in (cursor.request, cursor.registration) if wanted for key in wanted.ranges
    ]


def _computations(wanted: Request, runs: Sequence[Span], watch: Watch) -> Iterator[dg.RunRequest]:
    """A run for each range."""
    for key, run in zip(wanted.ranges, runs, strict=True):
        span = {RANGE_START: run.first, RANGE_END: run.last}
        yield dg.RunRequest(
            run_key=key,
            job_name=watch.job,
            asset_selection=watch.derived,
            asset_check_keys=watch.derived_checks,
            tags={
                "topicberg/kind": COMPUTATION,
                "topicberg/snapshot": str(wanted.snapshot),
                "dagster/priority": "1" if watch.reported else "0",
                **span,
            },
        )


def _kafka_observation(
    context: dg.SensorEvaluationContext, watch: Watch, endpoints: Endpoints, iceberg: IcebergTable
) -> AssetObservation | None:
    """Where the topic is, and how far behind its table; None while Kafka does not answer."""
    topic = watch.origin.root.name
    try:
        begin = kafka.beginning_offsets(endpoints, topic)
        end = kafka.end_offsets(endpoints, topic)
        held = held_offsets(iceberg, watch.origin.root, endpoints, end)
    except TopicbergError as error:
        context.log.warning(str(error))
        return None
    return AssetObservation(
        asset_key=kafka_key(watch.origin.root),
        metadata={**kafka_metadata(begin, end), **consumer_lag_metadata(held, begin, end)},
        tags={"dagster/data_version": kafka_data_version(end).value},
    )
