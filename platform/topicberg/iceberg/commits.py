"""Commits that are refused if another one came first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from topicberg.errors import CommitConflictError

if TYPE_CHECKING:
    from pyiceberg.table.update.snapshot import _SnapshotProducer


def commit_on_head(
    table: Table,
    change: _SnapshotProducer[Any],
    properties: Mapping[str, str] | None = None,
    dropped: Collection[str] = (),
    more: Collection[TableUpdate] = (),
) -> None:
    """Commit a snapshot on ``main`` if the head is still the one that ``table`` has.

    (A transaction of PyIceberg would apply the change to whatever the head is by then.)

    :param properties: table properties that change in the same commit
    :param dropped: table properties that the same commit removes
    :param more: other updates in the same commit
    :raises CommitConflictError: another commit came first; nothing was committed
    """
    updates, requirements = change._commit()
    more = (*property_updates(table, properties, dropped), *more)
    unchanged = AssertTableUUID(uuid=table.metadata.table_uuid)
    try:
        table.catalog.commit_table(table, (unchanged, *requirements), (*updates, *more))
    except (CommitFailedException, RESTError) as error:
        # Not every catalog reports a conflict with the error that the specification requires.
        head = table.current_snapshot()
        now = table.refresh().current_snapshot()
        if isinstance(error, RESTError) and now == head:
            raise
        name = ".".join(table.name())
        raise CommitConflictError(f"table {name}: another commit came first: {error}") from error


def property_updates(
    table: Table, properties: Mapping[str, str] | None, dropped: Collection[str]
) -> list[TableUpdate]:
    updates: list[TableUpdate] = []
    if properties:
        updates.append(SetPropertiesUpdate(updates=dict(properties)))
    if removals := sorted(set(dropped) & table.properties.keys()):
        updates.append(RemovePropertiesUpdate(removals=removals))
    return updates
