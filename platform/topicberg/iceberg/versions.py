"""Which format versions of Iceberg topicberg writes, and the upgrade of a table.

Spark appends to a table of any version that PyIceberg reads. Deletes, dropped files and empty
snapshots are written by topicberg itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.table.update import AssertTableUUID, UpgradeFormatVersionUpdate

from topicberg.errors import TableFormatError
from topicberg.retry import conflicts, retry_conflicts

if TYPE_CHECKING:
    from pyiceberg.table import Table

WRITTEN = (2, 3)
NEWEST = max(WRITTEN)
_ATTEMPTS = 5


def require_written(table: Table) -> None:
    """Check that topicberg can commit its own snapshots to a table.

    :raises TableFormatError: the table has another format version
    """
    version = table.format_version
    if version in WRITTEN:
        return
    raise TableFormatError(
        f"table {'.'.join(table.name())}: it is of format version {version} of Iceberg, which "
        f"topicberg does not write; expected {' or '.join(map(str, WRITTEN))}",
        hint="upgrade it in Spark: ALTER TABLE … SET TBLPROPERTIES ('format-version' = '2')",
    )


def upgrade_table(table: Table) -> None:
    """Upgrade a table to the newest format version; no snapshot changes.

    :raises CommitConflictError: other writers kept changing the table
    """

    def attempt() -> None:
        table.refresh()
        if table.format_version >= NEWEST:
            return
        unchanged = AssertTableUUID(uuid=table.metadata.table_uuid)
        update = UpgradeFormatVersionUpdate.model_validate({"format-version": NEWEST})
        with conflicts(f"table {'.'.join(table.name())}"):
            table.catalog.commit_table(table, (unchanged,), (update,))

    retry_conflicts(attempt, _ATTEMPTS)
    table.refresh()
