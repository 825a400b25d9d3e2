"""The sensor that keeps the catalogs at the newest metadata of tables that no engine ingests.

The run that computes a derived table registers it; maintenance changes its metadata afterwards. A
table is registered again once its metadata has been another one than a catalog's for two ticks, and
until a run has succeeded: however one ended, the next follows, after a pause if several failed. A
pointer in Glue that was moved manually stays: the check ``pointer`` reports it.
"""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime

import dagster as dg
from pydantic import BaseModel
from pyiceberg.catalog import Catalog

from topicberg.catalogs import glue
from topicberg.dagster.runs import ACTIVE, location_of_sensor, location_tags
from topicberg.errors import TableFormatError, safe
from topicberg.errors.meaning import classify
from topicberg.iceberg.tables import find_table
from topicberg.orchestration.assets import Lake
from topicberg.orchestration.assets.tables import KIND, LakeTable
from topicberg.orchestration.catalogs.catalog import catalogs
from topicberg.orchestration.jobs import schedules
from topicberg.orchestration.jobs.watches import MAX_LISTED
from topicberg.orchestration.resources import Lakehouse
from topicberg.wording import listed

INTERVAL_SECONDS, MAX_PAUSE_SECONDS = 60, 900
ATTEMPTS = 3
"""In a row, one each tick; after them and each further one that fails, there is a longer pause."""
_TAGS = {KIND: "catalogs"}


class CatalogCursor(BaseModel):
    """Table → its state, as :func:`topicberg.catalogs.glue.registered_state` has it."""

    life: str = ""  # Of this cursor, and of none after a reset: makes run keys unique.
    settled: dict[str, str] = {}  # What catalogs have or had.
    seen: dict[str, str] = {}  # Of the last tick, where it was not settled.
    requested: dict[str, str] = {}
    run_key: str = ""
    failures: dict[str, int] = {}  # Runs in a row that failed to register a table.
    due: dict[str, float] = {}  # When the next one is, in seconds since 1970.
    requests: int = 0

    def run_ended(self, succeeded: bool) -> CatalogCursor:
        """Return the cursor after the run of the last request."""
        failures = {name: n for name, n in self.failures.items() if name not in self.requested}
        if succeeded:
            settled = {**self.settled, **self.requested}
            return self.model_copy(update={"settled": settled, "failures": failures})
        due, seen = dict(self.due), {**self.seen, **self.requested}
        for name in self.requested:
            failures[name] = count = self.failures.get(name, 0) + 1
            if count >= ATTEMPTS:
                pause = INTERVAL_SECONDS * 2 ** min(count - ATTEMPTS + 1, 10)
                due[name] = time.time() + min(pause, MAX_PAUSE_SECONDS)
        return self.model_copy(update={"failures": failures, "due": due, "seen": seen})


def catalog_sensor(lake: Lake) -> dg.SensorDefinition:
    tables = [table for table in lake.tables if not table.reported]
    keys = [table.key(system) for table in tables for system in catalogs()]

    @dg.sensor(
        name="catalogs",
        target=dg.AssetSelection.assets(*keys),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Registers derived tables in the catalogs again after maintenance or "
        "publishing has changed their metadata.",
    )
    @schedules.skip_if_unavailable
    def register_again(
        context: dg.SensorEvaluationContext, topicberg_lakehouse: Lakehouse
    ) -> dg.SensorResult | dg.SkipReason:
        tags = _TAGS | location_tags(location_of_sensor(context))
        if busy := schedules.under_way(context.instance, dg.RunsFilter(tags=tags, statuses=ACTIVE)):
            return busy  # what changes meanwhile is one request afterwards
        before = stored = CatalogCursor.model_validate_json(context.cursor or "{}")
        if before.requested:
            requested = dg.RunsFilter(tags={"dagster/run_key": before.run_key})
            runs = context.instance.get_runs(requested, limit=1)
            before = before.run_ended(any(run.is_success for run in runs))
        after = CatalogCursor(
            life=before.life or uuid.uuid4().hex[:8],
            settled=dict(before.settled),
            requests=before.requests,
        )
        behind, problems = list[LakeTable](), list[Exception]()
        catalog = topicberg_lakehouse.peek().catalog(topicberg_lakehouse.config)
        for table in tables:
            try:
                if _is_behind(topicberg_lakehouse, catalog, table, before, after):
                    behind.append(table)
            except Exception as error:  # it stops no other table
                if classify(error) is not None:
                    raise
                context.log.error(f"{table.name}: {safe(error)}")
                if not isinstance(error, TableFormatError):  # which a check reports
                    problems.append(error)
        idle = not behind and after.model_copy(update={"life": stored.life}) == stored
        if idle and problems:
            raise problems[0]
        if idle and after.due:
            due = datetime.fromtimestamp(min(after.due.values()), UTC)
            why = f"runs failed for {listed(sorted(after.due), MAX_LISTED)}"
            return dg.SkipReason(f"{why}; the next attempt is after {due:%H:%M:%S} UTC")
        if idle:
            return dg.SkipReason("the catalogs have the newest metadata of every table")
        requests = []
        if behind:  # one run for all: it takes longer to start than a table to be registered
            after.run_key = f"catalogs:{after.life}-{after.requests}"
            after.requests += 1
            selected = [table.key(system) for table in behind for system in catalogs()]
            requests.append(dg.RunRequest(after.run_key, asset_selection=selected, tags=_TAGS))
        return dg.SensorResult(run_requests=requests, cursor=after.model_dump_json())

    return register_again


def _is_behind(
    lakehouse: Lakehouse,
    catalog: Catalog,
    table: LakeTable,
    before: CatalogCursor,
    after: CatalogCursor,
) -> bool:
    """Return whether a table is to be registered; ``after`` takes note of its state."""
    iceberg = find_table(catalog, table.identifier)
    if iceberg is None or iceberg.current_snapshot() is None:  # its first run has not written yet
        return False
    name, state = table.name, glue.registered_state(iceberg)
    failures = before.failures.get(name, 0)
    if state == before.settled.get(name):
        return False
    has_waited = state == before.seen.get(name)
    due = before.due.get(name, 0.0) if has_waited else 0.0  # a new state is tried at once
    if not failures and all(c.is_current(table, iceberg, lakehouse) for c in catalogs().values()):
        after.settled[name] = state
        return False
    is_wanted = time.time() >= due and (failures > 0 or has_waited)
    (after.requested if is_wanted else after.seen)[name] = state
    if failures:
        after.failures[name] = failures
        after.due |= {} if is_wanted else {name: due}
    return is_wanted
