"""Deletes events outside of runs and results of checks, which Dagster keeps for ever.

A table that commits every ten seconds leaves a materialization of seven kilobytes for each commit,
and every run of checks its results. Dagster deletes neither, and has no call for it; the tables are
Dagster's own, on SQLite as on Postgres.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any

from dagster import AssetKey, DagsterEventType, EventLogEntry
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._serdes import deserialize_value
from sqlalchemy import ColumnElement, Connection, func, select

from topicberg.dagster.compatibility import require_attributes

RUNLESS_RUN_ID = ""
"""Of events outside of runs."""
ENDED = ("SUCCEEDED", "FAILED")
"""States of a check that has a result."""
BATCH = 500
"""Rows of a transaction: other processes write events meanwhile."""


def forget_events(storage: object, before: datetime, assets: Collection[AssetKey]) -> int:
    """Delete events outside of runs, and results of checks; return how many.

    The newest event of each kind, asset and partition is kept, and of each check its newest result
    and its newest completed one: the UI and the next run need them.

    :param storage: Dagster's; nothing is deleted if its events are not in tables
    :param before: in UTC
    :param assets: those of which events are deleted; the instance may have others
    """
    if not isinstance(storage, SqlEventLogStorage):
        return 0
    before = before.replace(tzinfo=None)  # as Dagster stores it
    keys = {key.to_string() for key in assets}
    with storage.index_connection() as connection:
        results, needed = _newest_results(connection)
    checks, events = AssetCheckExecutionsTable, SqlEventLogStorageTable
    old = checks.c.create_timestamp < before
    forgotten = _delete(storage.index_connection, checks, old, keys, results)
    with storage.index_connection() as connection:
        needed |= _newest_events(connection)
    old = (events.c.run_id == RUNLESS_RUN_ID) & (events.c.timestamp < before)
    forgotten += _delete(storage.index_connection, events, old, keys, needed)
    if storage.is_run_sharded:  # a second copy, which is never queried for the newest
        _delete(lambda: storage.run_connection(RUNLESS_RUN_ID), events, old, keys, ())
    return forgotten


def _newest_results(connection: Connection) -> tuple[set[int], set[int]]:
    """Return ids of the results of checks that are kept, and of the events that they name."""
    table = AssetCheckExecutionsTable
    groups = table.c.asset_key, table.c.check_name, table.c.partition
    newest = select(func.max(table.c.id)).group_by(*groups)
    ended = newest.where(table.c.execution_status.in_(ENDED))
    stay = {*connection.scalars(newest), *connection.scalars(ended)}
    named: set[int] = set()
    for ids in _batches(sorted(stay)):
        chosen = table.c.id.in_(ids)
        for column in (
            table.c.evaluation_event_storage_id,
            table.c.materialization_event_storage_id,
        ):
            named |= {*connection.scalars(select(column).where(chosen, column.is_not(None)))}
    return stay, named


def _newest_events(connection: Connection) -> set[int]:
    table = SqlEventLogStorageTable
    newest = (
        select(func.max(table.c.id))
        .where(table.c.run_id == RUNLESS_RUN_ID)
        .group_by(table.c.asset_key, table.c.dagster_event_type, table.c.partition)
    )
    return {*connection.scalars(newest)}


def _delete(
    connect: Any, table: Any, old: ColumnElement[bool], assets: set[str], stay: Collection[int]
) -> int:
    """Delete rows of these assets in small transactions; return how many."""
    last, deleted = -1, 0
    while True:
        with connect() as connection:
            columns = select(table.c.id, table.c.asset_key)
            following = columns.where(old, table.c.id > last).order_by(table.c.id)
            rows = connection.execute(following.limit(BATCH)).all()
            if not rows:
                return deleted
            last = rows[-1].id
            keys = {row.id: row.asset_key for row in rows}
            if table is SqlEventLogStorageTable:
                keys |= _checked(connection, [row.id for row in rows if row.asset_key is None])
            expired = [row for row, key in keys.items() if key in assets and row not in stay]
            connection.execute(table.delete().where(table.c.id.in_(expired)))
            if table is SqlEventLogStorageTable:
                tags = AssetEventTagsTable
                connection.execute(tags.delete().where(tags.c.event_id.in_(expired)))
            deleted += len(expired)


def _checked(connection: Connection, ids: list[int]) -> dict[int, str]:
    """Return the assets of evaluations of checks: Dagster stores them in the event only."""
    table, kind = SqlEventLogStorageTable, DagsterEventType.ASSET_CHECK_EVALUATION
    events = select(table.c.id, table.c.event).where(
        table.c.id.in_(ids), table.c.dagster_event_type == kind.value
    )
    assets = {}
    for row in connection.execute(events) if ids else ():
        event = deserialize_value(row.event, EventLogEntry).dagster_event
        if event is not None:
            assets[row.id] = event.asset_check_evaluation_data.asset_key.to_string()
    return assets


def _batches(ids: list[int]) -> Iterator[list[int]]:
    yield from (ids[first : first + BATCH] for first in range(0, len(ids), BATCH))


# What is used of Dagster's tables, and may be different in another version.
require_attributes(SqlEventLogStorage, "index_connection", "run_connection", "is_run_sharded")
require_attributes(
    AssetCheckExecutionsTable.c,
    *("id", "asset_key", "check_name", "partition", "create_timestamp", "execution_status"),
    *("evaluation_event_storage_id", "materialization_event_storage_id"),
)
require_attributes(
    SqlEventLogStorageTable.c,
    *("id", "run_id", "asset_key", "dagster_event_type", "partition", "timestamp", "event"),
)
require_attributes(AssetEventTagsTable.c, "event_id")
