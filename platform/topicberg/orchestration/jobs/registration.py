"""Registers tables of topics in Glue and Snowflake within a tick of the snapshot sensor.

To move a pointer takes some 20 ms of CPU. A run of Dagster that does the same takes 240 ms for each
table, and before it begins, it waits for the queue and for the project to load. With 40 topics that
commit every ten seconds, records were in Snowflake after 34 seconds with runs (median).

A table that cannot be registered here, or not in time, is registered by a run, which retries and
shows why. A tick of which nothing is kept has done no harm: registering a table again changes
nothing. Source: ``tests/benchmarks/fleet.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from logging import Logger

import dagster as dg

from topicberg.dagster import BACKGROUND
from topicberg.errors import safe
from topicberg.errors.meaning import classify
from topicberg.orchestration.assets.tables import NOT_RETRIED, REGISTRATION, LakeTable
from topicberg.orchestration.catalogs.catalog import catalogs
from topicberg.orchestration.jobs.pipelines import REGISTER
from topicberg.orchestration.jobs.watches import (
    ATTEMPT,
    TABLES,
    UNCHECKED,
    UNREGISTERED,
    WANTED,
    RequestedRun,
    RequestedRuns,
    TableCursor,
    TableWatch,
    listed_tables,
    short_hash,
)
from topicberg.orchestration.resources.lakehouse import RunningLakehouse
from topicberg.orchestration.resources.snowflake import lasting

AT_ONCE = 8  # Tables that are registered at once: most of the time is waiting for the vendor.
SECONDS = 3.0
"""For which a tick begins to register tables. The others are left for the next tick: one that lasts
longer than the sensor's interval of five seconds delays it by another interval."""
PATIENCE_SECONDS = 15.0  # For which a tick waits for those that it began.
PAUSE_SECONDS = 60.0  # After a tick without an answer of the catalogs: only runs register tables.
REGISTERED_AT_ONCE = 100
"""Tables that one run registers at most; what changes meanwhile is registered by the next run."""
REGISTRATION_SECONDS = 900
"""A run that registers for longer is ended: the tables that it left are registered by the next."""
CHECK_SECONDS, CHECK_SHARE = 60, 10
"""Between two runs that check the tables that ticks registered; and if they take long, they take at
most a tenth of the time."""
_STATES = ".dagster/topicberg/registered"  # Tag of a run: hashes of tables and states.

Move = Callable[[LakeTable], list[dg.AssetMaterialization]]


@dataclass(frozen=True)
class Registered:
    """What came of the tables, by their names; those in neither field are for the next tick."""

    events: dict[str, list[dg.AssetMaterialization]] = field(default_factory=dict)
    failed: dict[str, BaseException] = field(default_factory=dict)  # Why a run is needed.


class Registrar:
    """Registers tables in the threads of this process, with connections that outlast a tick."""

    def __init__(self, move: Move | None = None) -> None:
        """:param move: registers a table, and returns the materializations of its assets"""
        self._move = move or _move
        self._pool: ThreadPoolExecutor | None = None
        self._paused_until = 0.0

    def register(self, tables: Sequence[LakeTable]) -> Registered:
        """Register the tables, the first ones first, as far as there is time."""
        if not tables:
            return Registered()
        if time.monotonic() < self._paused_until:
            why = TimeoutError("the catalogs did not answer a moment ago")
            return Registered(failed={table.name: why for table in tables})
        self._pool = self._pool or ThreadPoolExecutor(AT_ONCE, "registration")
        futures = {self._pool.submit(self._move, table): table.name for table in tables}
        wait(futures, SECONDS)
        wait([future for future in futures if not future.cancel()], PATIENCE_SECONDS)
        registered = Registered()
        for future, name in futures.items():
            if future.cancelled():
                continue
            if not future.done():
                late = TimeoutError(f"not registered after {PATIENCE_SECONDS:.0f} s")
                registered.failed[name] = late
            elif error := future.exception():
                registered.failed[name] = error
            else:
                registered.events[name] = future.result()
        if any(not future.done() for future in futures):
            self._pool = None  # its threads wait for what does not answer; they end when it does
        if not registered.events and all(classify(error) for error in registered.failed.values()):
            self._paused_until = time.monotonic() + PAUSE_SECONDS
        return registered


def _move(table: LakeTable) -> list[dg.AssetMaterialization]:
    lakehouse = RunningLakehouse()
    return [
        dg.AssetMaterialization(asset_key=result.asset_key, metadata=result.metadata)
        for result in [each.register(table, lakehouse, lasting()) for each in catalogs().values()]
        if result.asset_key is not None
    ]


class Registrations:
    """Registers tables within a tick, and requests the runs that register and check the others."""

    def __init__(
        self,
        watched: Mapping[str, TableWatch],
        states: dict[str, TableCursor],
        runs: RequestedRuns,
        now: float,
    ) -> None:
        self._watched, self._states, self._runs, self._now = watched, states, runs, now
        self._wanted: dict[str, tuple[bool, str]] = {}
        """Table → whether it has not waited yet, and the hash of its metadata."""
        self._moved: set[str] = set()
        self._postponed: set[str] = set()
        """What this tick had no time to register, and the next one registers."""
        self.failed: dict[str, RequestedRun] = {}
        """Tables whose last run failed, and that wait for the next attempt."""

    def look(self, watch: TableWatch, metadata: str, *, is_new: bool) -> None:
        """Take note of the state of a table, as far as it concerns the catalogs.

        Maintenance changes it without a snapshot of ``main``; Glue and Snowflake then point to a
        file that will be deleted one day. Such a change counts when the next tick still sees it: a
        batch that the engine has staged is published a moment later.
        """
        state, metadata = self._states[watch.name], short_hash(metadata)
        differs, has_waited = state.registered != metadata, state.has(UNREGISTERED)
        self._flag(watch.name, UNREGISTERED, on=differs)
        if differs and (is_new or has_waited):
            self._wanted[watch.name] = not has_waited, metadata

    def move_pointers(self, registrar: Registrar, log: Logger) -> list[dg.AssetMaterialization]:
        """Register tables in this tick if that only moves pointers; return materializations."""
        events: list[dg.AssetMaterialization] = []
        self._leave_registered()
        watched = [each for each in self._wanting() if each.pointers]
        registered = registrar.register([table for each in watched for table in each.pointers])
        for name, error in registered.failed.items():
            log.warning(f"{name}: a run registers it, as this failed: {safe(error)}")
        for watch in watched:
            moved = {table.name for table in watch.pointers}
            if moved <= registered.events.keys():
                events += [event for name in sorted(moved) for event in registered.events[name]]
                self._moved.add(watch.name)
                self._flag(watch.name, UNCHECKED)
                if not watch.computed_registrations:
                    self._note_registered(watch.name)
            elif not moved & registered.failed.keys():
                self._postponed.add(watch.name)
        return events

    def registration_run(self) -> dg.RunRequest | None:
        """Return the run that registers what the tick could not; None: there is nothing."""
        wanting = [each for each in self._wanting() if each.name not in self._postponed]
        chosen = wanting[:REGISTERED_AT_ONCE]
        if not chosen or any(run.is_active for run in self._of_tables()):
            return None
        keys: list[dg.AssetKey] = []
        for watch in chosen:
            is_moved = watch.name in self._moved
            keys += watch.computed_registrations if is_moved else watch.registrations
            self._flag(watch.name, UNCHECKED, on=False)
        states = sorted(map(self._hash, chosen))
        wanted = short_hash(str(states))
        attempt = self._runs.attempt(REGISTRATION, wanted)
        if attempt is None:
            return None
        tags = {
            WANTED: wanted,
            ATTEMPT: str(attempt),
            _STATES: ",".join(states),
            "dagster/priority": "3",
            **NOT_RETRIED,
        }
        return self._request(f"{REGISTRATION}:{wanted}:{attempt}", chosen, keys, tags)

    def check_run(self, checked_at: int) -> dg.RunRequest | None:
        """Return the run that checks what ticks registered; None: it is not time for one."""
        unchecked = [
            self._watched[name] for name, state in self._states.items() if state.has(UNCHECKED)
        ]
        since = self._now - checked_at
        if not unchecked or since < CHECK_SECONDS:
            return None
        last = self._runs.last_run({**self._runs.tags(REGISTRATION), BACKGROUND: "true"})
        if last and (last.is_active or since < CHECK_SHARE * (last.ended - last.started)):
            return None
        selection = [(watch.name, self._states[watch.name].registered) for watch in unchecked]
        for watch in unchecked:
            self._flag(watch.name, UNCHECKED, on=False)
        # Dagster launches no key twice: another selection needs another key.
        run_key = f"checks:{int(self._now)}:{short_hash(str(selection))}"
        return self._request(run_key, unchecked, [], {BACKGROUND: "true"})

    def _wanting(self) -> list[TableWatch]:
        """Return the tables that are not registered, those first that have waited."""
        return [self._watched[name] for name in sorted(self._wanted, key=self._wanted.__getitem__)]

    def _leave_registered(self) -> None:
        """Leave out the tables that runs have registered, or register, or may only later."""
        newest: dict[str, RequestedRun] = {}
        for run in self._of_tables() if self._wanted else ():
            for state in run.run.tags[_STATES].split(","):
                newest.setdefault(state, run)
        for watch in self._wanting():
            if (last := newest.get(self._hash(watch))) is None:
                continue
            if last.is_active:
                del self._wanted[watch.name]
            elif last.has_failed and not self._has_registered(watch, last):
                if last.due > self._now:
                    self.failed[watch.name] = last
                    del self._wanted[watch.name]
            elif last.run.is_finished:
                self._note_registered(watch.name)

    def _of_tables(self) -> Iterable[RequestedRun]:
        return (each for each in self._runs.registrations if _STATES in each.run.tags)

    def _has_registered(self, watch: TableWatch, run: RequestedRun) -> bool:
        """Return whether a run that failed has succeeded for a table."""
        keys = (key for key in watch.registrations if key in (run.run.asset_selection or ()))
        events = map(self._runs.instance.get_latest_materialization_event, keys)
        return all(event is not None and event.run_id == run.run.run_id for event in events)

    def _note_registered(self, name: str) -> None:
        _, metadata = self._wanted.pop(name)
        self._states[name] = replace(self._states[name], registered=metadata)
        self._flag(name, UNREGISTERED, on=False)

    def _flag(self, name: str, flag: str, *, on: bool = True) -> None:
        self._states[name] = self._states[name].flagged(flag, on=on)

    def _hash(self, watch: TableWatch) -> str:
        return short_hash(f"{watch.name} {self._wanted[watch.name][1]}")

    def _request(
        self,
        run_key: str,
        chosen: Sequence[TableWatch],
        keys: Sequence[dg.AssetKey],
        tags: Mapping[str, str],
    ) -> dg.RunRequest:
        return dg.RunRequest(
            run_key=run_key,
            job_name=REGISTER,
            asset_selection=[*keys],
            asset_check_keys=[key for watch in chosen for key in watch.registration_checks],
            tags={
                **self._runs.tags(REGISTRATION),
                TABLES: listed_tables([watch.origin.key("iceberg") for watch in chosen]),
                "dagster/max_runtime": str(REGISTRATION_SECONDS),
                **tags,
            },
        )
