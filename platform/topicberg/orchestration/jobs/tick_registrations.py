"""The tables that a tick of the snapshot sensor registers, and the runs of registrations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import Logger

import dagster as dg

from topicberg.dagster import BACKGROUND
from topicberg.errors import safe
from topicberg.orchestration.assets.run_kinds import KIND, NOT_RETRIED, REGISTRATION
from topicberg.orchestration.jobs.pipelines import REGISTER
from topicberg.orchestration.jobs.registration import Registrar
from topicberg.orchestration.jobs.requested_runs import RequestedRuns
from topicberg.orchestration.jobs.snapshot_cursor import (
    TableCursor,
    is_moved,
    move,
    register,
    wants_move,
    wants_registration,
)
from topicberg.orchestration.jobs.snapshot_store import Cursors, Position
from topicberg.orchestration.jobs.watches import TABLES, TableWatch, listed_tables

REGISTERED_AT_ONCE = 100
"""Tables that one run registers at most; what changes meanwhile is registered by the next run."""
REGISTRATION_SECONDS = 900
"""A run that registers for longer is ended: the tables that it left are registered by the next."""
CHECK_SECONDS, CHECK_SHARE = 60, 10
"""Between two runs that check the tables that ticks registered; and if they take long, they take at
most a tenth of the time."""


class Registrations:
    """Registers tables within a tick, and requests the runs that register and check the others."""

    def __init__(
        self,
        watched: Mapping[str, TableWatch],
        cursors: Cursors,
        position: Position,
        runs: RequestedRuns,
    ) -> None:
        self._watched, self._cursors, self._runs = watched, cursors, runs
        self._postponed: set[str] = set()
        """What this tick had no time to register, and the next one registers."""
        self.position = position
        """Of the sensor, with the runs that were requested."""

    def move_pointers(
        self, registrar: Registrar, log: Logger, now: float
    ) -> list[dg.AssetMaterialization]:
        """Register tables within this tick, as far as that only moves pointers.

        :returns: the materializations of their assets
        """
        events: list[dg.AssetMaterialization] = []
        watched = [watch for watch in self._wanting(wants_move) if watch.pointers]
        registered = registrar.register([table for each in watched for table in each.pointers])
        for name, error in registered.failed.items():
            log.warning(f"{name}: a run registers it, as this failed: {safe(error)}")
        for watch in watched:
            moved = {table.name for table in watch.pointers}
            if moved <= registered.events.keys():
                events += [event for name in sorted(moved) for event in registered.events[name]]
                is_all = not watch.computed_registrations
                cursor = move(self._cursors[watch.name], now, is_all=is_all)
                self._cursors.note(watch.name, cursor)
            elif not moved & registered.failed.keys():
                self._postponed.add(watch.name)
        return events

    def registration_run(self) -> dg.RunRequest | None:
        """Return the run that registers what the tick could not; None: there is nothing."""
        if any(cursor.registration for cursor in self._cursors.values()):
            return None
        wanting = self._wanting(wants_registration)
        chosen = [w for w in wanting if w.name not in self._postponed][:REGISTERED_AT_ONCE]
        if not chosen:
            return None
        keys: list[dg.AssetKey] = []
        for watch in chosen:
            done = watch.pointers and is_moved(self._cursors[watch.name])
            keys += watch.computed_registrations if done else watch.registrations
        number = self.position.registrations
        run_key = self._run_key(REGISTRATION, number, chosen)
        for watch in chosen:
            self._cursors.note(watch.name, register(self._cursors[watch.name], run_key))
        self.position = self.position.model_copy(update={"registrations": number + 1})
        return _request(run_key, chosen, keys, {"dagster/priority": "3", **NOT_RETRIED})

    def check_run(self, now: float) -> dg.RunRequest | None:
        """Return the run that checks what ticks registered; None: it is not time for one."""
        unchecked = self._wanting(lambda cursor: cursor.unchecked)
        since, last = now - self.position.checked_at, self.position.checks_key
        if not unchecked or since < CHECK_SECONDS:
            return None
        if last and (
            self._runs.state(last) == "active" or since < CHECK_SHARE * self._runs.seconds(last)
        ):
            return None
        run_key = self._run_key("checks", int(now), unchecked)
        for watch in unchecked:
            cursor = self._cursors[watch.name]
            self._cursors.note(watch.name, cursor.replace(unchecked=False))
        self.position = self.position.model_copy(update={"checks_key": run_key, "checked_at": now})
        return _request(run_key, unchecked, [], {BACKGROUND: "true"})

    def _wanting(self, wants: Callable[[TableCursor], bool]) -> list[TableWatch]:
        """Return the tables with registrations, the one first whose last one is the longest ago."""
        wanting = [
            (cursor.moved_at, name)
            for name, watch in self._watched.items()
            if watch.registrations and (cursor := self._cursors.get(name)) and wants(cursor)
        ]
        return [self._watched[name] for _, name in sorted(wanting)]

    def _run_key(self, kind: str, number: int, chosen: Iterable[TableWatch]) -> str:
        """Return a key that no other selection of tables has.

        Dagster launches no key twice: after a tick of which nothing was kept, another selection
        needs another key.
        """
        selection = [(watch.name, self._cursors[watch.name].snapshot) for watch in chosen]
        digest = hashlib.sha256(json.dumps(selection).encode()).hexdigest()[:12]
        return f"{kind}:{self.position.life}-{number}-{digest}"


def _request(
    run_key: str, chosen: Sequence[TableWatch], keys: list[dg.AssetKey], tags: Mapping[str, str]
) -> dg.RunRequest:
    return dg.RunRequest(
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
