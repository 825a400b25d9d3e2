"""Deletes events outside of runs and results of checks, which Dagster keeps for ever.

A table that commits every ten seconds leaves a materialization of seven kilobytes for each commit,
and every run of checks its results. Dagster deletes neither, and has no call for it; the tables are
Dagster's own, on SQLite as on Postgres.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from dagster import AssetKey, DagsterEventType, EventLogEntry, deserialize_value
from sqlalchemy import ColumnElement, Connection, DateTime, column, func, inspect, select, table

CHECKS = table(
    "asset_check_executions",
    *map(column, ("id", "asset_key", "check_name", "partition", "execution_status")),
    *map(column, ("evaluation_event_storage_id", "materialization_event_storage_id")),
    column("create_timestamp", DateTime()),
)
EVENTS = table(
    "event_logs",
    *map(column, ("id", "run_id", "asset_key", "dagster_event_type", "partition", "event")),
    column("timestamp", DateTime()),
)
TAGS = table("asset_event_tags", column("event_id"))
"""What is used of Dagster's tables; another version may have others."""
RUNLESS_RUN_ID = ""  # Of events outside of runs.
ENDED = ("SUCCEEDED", "FAILED")  # States of a check that has a result.
BATCH = 500  # Rows of a transaction: other processes write events meanwhile.


def forget_events(storage: Any, before: datetime, assets: Collection[AssetKey]) -> int:
    """Delete events outside of runs, and results of checks; return how many.

    The newest event of each kind, asset and partition is kept, and of each check its newest result
    and its newest completed one: the UI and the next run need them.

    :param storage: Dagster's, with its events in tables
    :param before: in UTC
    :param assets: those of which events are deleted; the instance may have others
    :raises ImportError: the tables of this version of Dagster are others
    """
    before = before.replace(tzinfo=None)  # as Dagster stores it
    keys = {key.to_string() for key in assets}
    with storage.index_connection() as connection:
        _check_tables(connection)
        results, needed = _newest_results(connection)
    old = CHECKS.c.create_timestamp < before
    forgotten = _delete(storage.index_connection, CHECKS, old, keys, results)
    runless = EVENTS.c.run_id == RUNLESS_RUN_ID
    newest = select(func.max(EVENTS.c.id)).where(runless)
    kinds = EVENTS.c.asset_key, EVENTS.c.dagster_event_type, EVENTS.c.partition
    with storage.index_connection() as connection:
        needed |= {*connection.scalars(newest.group_by(*kinds))}
    old = runless & (EVENTS.c.timestamp < before)
    forgotten += _delete(storage.index_connection, EVENTS, old, keys, needed)
    if storage.is_run_sharded:  # a second copy, which is never queried for the newest
        _delete(lambda: storage.run_connection(RUNLESS_RUN_ID), EVENTS, old, keys, ())
    return forgotten


def _check_tables(connection: Connection) -> None:
    tables = (CHECKS, EVENTS, TAGS)
    columns = inspect(connection).get_multi_columns(filter_names=[each.name for each in tables])
    for each in tables:
        names = {one["name"] for one in columns.get((None, each.name), ())}
        if missing := sorted({*each.c.keys()} - names):
            raise ImportError(f"table {each.name} has no {', '.join(missing)}")


def _newest_results(connection: Connection) -> tuple[set[int], set[int]]:
    """Return ids of the results of checks that are kept, and of the events that they name."""
    of_checks = CHECKS.c
    newest = select(func.max(of_checks.id)).group_by(
        of_checks.asset_key, of_checks.check_name, of_checks.partition
    )
    ended = newest.where(of_checks.execution_status.in_(ENDED))
    stay = {*connection.scalars(newest), *connection.scalars(ended)}
    ids, named = sorted(stay), set[int]()
    for first in range(0, len(ids), BATCH):
        chosen = of_checks.id.in_(ids[first : first + BATCH])
        for event in (
            of_checks.evaluation_event_storage_id,
            of_checks.materialization_event_storage_id,
        ):
            named |= {*connection.scalars(select(event).where(chosen, event.is_not(None)))}
    return stay, named


def _delete(
    connect: Any, rows_of: Any, old: ColumnElement[bool], assets: set[str], stay: Collection[int]
) -> int:
    """Delete rows of these assets in small transactions; return how many."""
    last, deleted = -1, 0
    while True:
        with connect() as connection:
            columns = select(rows_of.c.id, rows_of.c.asset_key)
            following = columns.where(old, rows_of.c.id > last).order_by(rows_of.c.id)
            rows = connection.execute(following.limit(BATCH)).all()
            if not rows:
                return deleted
            last = rows[-1].id
            keys = {row.id: row.asset_key for row in rows}
            if rows_of is EVENTS:
                keys |= _checked(connection, [row.id for row in rows if row.asset_key is None])
            expired = [row for row, key in keys.items() if key in assets and row not in stay]
            connection.execute(rows_of.delete().where(rows_of.c.id.in_(expired)))
            if rows_of is EVENTS:
                connection.execute(TAGS.delete().where(TAGS.c.event_id.in_(expired)))
            deleted += len(expired)


def _checked(connection: Connection, ids: list[int]) -> dict[int, str]:
    """Return the assets of evaluations of checks: Dagster stores them in the event only."""
    events = select(EVENTS.c.id, EVENTS.c.event).where(
        EVENTS.c.id.in_(ids),
        EVENTS.c.dagster_event_type == DagsterEventType.ASSET_CHECK_EVALUATION.value,
    )
    assets = {}
    for row in connection.execute(events) if ids else ():
        event = deserialize_value(row.event, EventLogEntry).dagster_event
        if event is not None:
            assets[row.id] = event.asset_check_evaluation_data.asset_key.to_string()
    return assets
