"""Updates of a commit of the catalog."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from topicberg.errors.retry import conflicts
from topicberg.iceberg.summaries import MAIN


def property_updates(
    table: Table, properties: Mapping[str, str] | None, dropped: Collection[str]
) -> list[TableUpdate]:
    """Return the updates that change and remove table properties."""
    updates: list[TableUpdate] = []
    if properties:
        updates.append(SetPropertiesUpdate(updates=dict(properties)))
    if removals := sorted(set(dropped) & table.properties.keys()):
        updates.append(RemovePropertiesUpdate(removals=removals))
    return updates


def set_ref(name: str, snapshot_id: int, max_age_ms: int | None = None) -> SetSnapshotRefUpdate:
    """Return the update that lets a tag point to a snapshot.

    :param max_age_ms: of the snapshot, after which the expiry of any tool removes the tag
    """
    fields = {"ref-name": name, "type": SnapshotRefType.TAG, "snapshot-id": snapshot_id}
    return SetSnapshotRefUpdate.model_validate({**fields, "max-ref-age-ms": max_age_ms})


def move_main(table: Table, snapshot_id: int) -> SetSnapshotRefUpdate:
    """Return the update that lets ``main`` point to a snapshot, and retains what a user set."""
    ref = table.metadata.refs.get(MAIN)
    fields = ref.model_dump(by_alias=True) if ref else {"type": SnapshotRefType.BRANCH}
    return SetSnapshotRefUpdate.model_validate(
        {**fields, "ref-name": MAIN, "snapshot-id": snapshot_id}
    )


def commit_update(table: Table, update: TableUpdate) -> None:
    """Commit one update, whatever the table's head is.

    :raises CommitConflictError: another commit came first
    """
    unchanged = AssertTableUUID(uuid=table.metadata.table_uuid)
    with conflicts(f"table {'.'.join(table.name())}"):
        table.catalog.commit_table(table, (unchanged,), (update,))
