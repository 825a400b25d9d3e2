"""Updates of a commit of the catalog, and which format versions of tables topicberg commits to.

Spark appends to a table of any version that PyIceberg reads. Deletes, dropped files and empty
snapshots are written by topicberg itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyiceberg.table import Table, update
from pyiceberg.table.refs import SnapshotRefType

from topicberg.errors import TableFormatError
from topicberg.errors.retry import conflicts, retry
from topicberg.iceberg.summaries import MAIN

WRITTEN = (2, 3)
NEWEST = max(WRITTEN)
_ATTEMPTS = 5


def property_updates(
    table: Table, properties: Mapping[str, str] | None, dropped: Collection[str]
) -> list[update.TableUpdate]:
    """Return the updates that change and remove table properties."""
    removals = sorted(set(dropped) & table.properties.keys())
    return [
        *([update.SetPropertiesUpdate(updates=dict(properties))] if properties else []),
        *([update.RemovePropertiesUpdate(removals=removals)] if removals else []),
    ]


def set_ref(
    name: str, snapshot_id: int, max_age_ms: int | None = None
) -> update.SetSnapshotRefUpdate:
    """Return the update that sets a tag; a snapshot of ``max_age_ms`` loses it by any expiry."""
    fields = {"ref-name": name, "type": SnapshotRefType.TAG, "snapshot-id": snapshot_id}
    return update.SetSnapshotRefUpdate.model_validate({**fields, "max-ref-age-ms": max_age_ms})


def move_main(table: Table, snapshot_id: int) -> update.SetSnapshotRefUpdate:
    """Return the update that lets ``main`` point to a snapshot, and retains what a user set."""
    ref = table.metadata.refs.get(MAIN)
    fields = ref.model_dump(by_alias=True) if ref else {"type": SnapshotRefType.BRANCH}
    return update.SetSnapshotRefUpdate.model_validate(
        {**fields, "ref-name": MAIN, "snapshot-id": snapshot_id}
    )


def commit_update(table: Table, change: update.TableUpdate) -> None:
    """Commit one update, whatever the head is; raise a CommitConflictError if others came first."""
    unchanged = update.AssertTableUUID(uuid=table.metadata.table_uuid)
    with conflicts(f"table {'.'.join(table.name())}"):
        table.catalog.commit_table(table, (unchanged,), (change,))


def require_written(table: Table) -> None:
    """Check that topicberg can commit its own snapshots to a table.

    :raises TableFormatError: the table has another format version
    """
    if (version := table.format_version) not in WRITTEN:
        raise TableFormatError(
            f"table {'.'.join(table.name())}: it is of format version {version} of Iceberg, which "
            f"topicberg does not write; expected {' or '.join(map(str, WRITTEN))}",
            hint="upgrade it in Spark: ALTER TABLE … SET TBLPROPERTIES ('format-version' = '2')",
        )


def lacks_snapshot(table: Table) -> bool:
    """Return whether a table was upgraded to version 3 and has no snapshot since then. Snowflake
    does not refresh it. The specification requires a first row id of every snapshot of version 3,
    and forbids it before."""
    head = table.current_snapshot()
    return table.format_version > 2 and head is not None and head.first_row_id is None


def upgrade_table(table: Table) -> None:
    """Upgrade a table to the newest format version; no snapshot changes.

    :raises CommitConflictError: other writers kept changing the table
    """

    def attempt() -> None:
        table.refresh()
        if table.format_version < NEWEST:
            commit_update(table, update.UpgradeFormatVersionUpdate(format_version=NEWEST))

    retry(attempt, _ATTEMPTS)
    table.refresh()
