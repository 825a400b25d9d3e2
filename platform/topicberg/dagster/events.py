"""Deletes events outside of runs and results of checks, which Dagster keeps for ever.

A table that commits every ten seconds leaves a materialization of seven kilobytes for each commit,
and every run of checks its results. Dagster deletes neither, and has no call for it; the tables are
Dagster's own, on SQLite as on Postgres.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any

from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from sqlalchemy import ColumnElement, Connection, func, select

from topicberg.dagster.compatibility import require_attributes

RUNLESS_RUN_ID = ""
"""Of events outside of runs."""
ENDED = ("SUCCEEDED", "FAILED")
"""States of a check that has a result."""
BATCH = 500
"""Rows of a transaction: other processes write events meanwhile."""


def forget_events(storage: object, before: datetime) -> int:
    """Delete events outside of runs, and results of checks; return how many.

    The newest event of each kind, asset and partition is kept, and of each check its newest result
    and its newest completed one: the UI and the next run need them.

    :param storage: Dagster's; nothing is deleted if its events are not in tables
    :param before: in UTC
    """
    if not isinstance(storage, SqlEventLogStorage):
        return 0
    before = before.replace(tzinfo=None)  # as Dagster stores it
    with storage.index_connection() as connection:
        results, needed = _newest_results(connection)
    checks, events = AssetCheckExecutionsTable, SqlEventLogStorageTable
    old = checks.c.create_timestamp < before
    forgotten = _delete(storage.index_connection, checks, old, results)
    with storage.index_connection() as connection:
        needed |= _newest_events(connection)
    old = (events.c.run_id == RUNLESS_RUN_ID) & (events.c.timestamp < before)
    forgotten += _delete(storage.index_connection, events, old, needed)
    if storage.is_run_sharded:  # a second copy, which is never queried for the newest
        _delete(lambda: storage.run_connection(RUNLESS_RUN_ID), events, old, ())
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


def _delete(connect: Any, table: Any, old: ColumnElement[bool], stay: Collection[int]) -> int:
    """Delete rows in small transactions; return how many."""
    last, deleted = -1, 0
    while True:
        with connect() as connection:
            following = select(table.c.id).where(old, table.c.id > last).order_by(table.c.id)
            found = [*connection.scalars(following.limit(BATCH))]
            if not found:
                return deleted
            last = found[-1]
            expired = [number for number in found if number not in stay]
            connection.execute(table.delete().where(table.c.id.in_(expired)))
            if table is SqlEventLogStorageTable:
                tags = AssetEventTagsTable
                connection.execute(tags.delete().where(tags.c.event_id.in_(expired)))
            deleted += len(expired)


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
    *("id", "run_id", "asset_key", "dagster_event_type", "partition", "timestamp"),
)
require_attributes(AssetEventTagsTable.c, "event_id")
