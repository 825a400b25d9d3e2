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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import dagster as dg

from topicberg.errors.meaning import classify
from topicberg.orchestration.assets.tables import LakeTable
from topicberg.orchestration.catalogs.catalog import catalogs
from topicberg.orchestration.resources.lakehouse import RunningLakehouse
from topicberg.orchestration.resources.snowflake import lasting

AT_ONCE = 8
"""Tables that are registered at once: most of the time is waiting for the vendor."""
SECONDS = 3.0
"""For which a tick begins to register tables. The others are left for the next tick: one that lasts
longer than the sensor's interval of five seconds delays it by another interval."""
PATIENCE_SECONDS = 15.0
"""For which a tick waits for those that it began."""
PAUSE_SECONDS = 60.0
"""For which only runs register tables, after a tick in which the catalogs did not answer."""

Move = Callable[[LakeTable], list[dg.AssetMaterialization]]


@dataclass(frozen=True)
class Registered:
    """What came of the tables, by their names; those in neither field are for the next tick."""

    events: dict[str, list[dg.AssetMaterialization]] = field(default_factory=dict)
    failed: dict[str, BaseException] = field(default_factory=dict)
    """Why a run is needed."""


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
                why = TimeoutError(f"not registered after {PATIENCE_SECONDS:.0f} s")
                registered.failed[name] = why
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
    results = [each.register(table, lakehouse, lasting()) for each in catalogs().values()]
    return [
        dg.AssetMaterialization(asset_key=result.asset_key, metadata=result.metadata)
        for result in results
        if result.asset_key is not None
    ]
