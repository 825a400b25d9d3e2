"""Which format versions of Iceberg topicberg writes, and the upgrade of a table.

Spark appends to a table of any version that PyIceberg reads. Deletes, dropped files and empty
snapshots are written by topicberg itself.
"""

from __future__ import annotations

from pyiceberg.table import Table
from pyiceberg.table.update import UpgradeFormatVersionUpdate

from topicberg.errors import TableFormatError
from topicberg.errors.retry import retry
from topicberg.iceberg.commits import commit_update

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


def lacks_snapshot(table: Table) -> bool:
    """Return whether a table was upgraded to version 3 and has no snapshot since then.

    Snowflake does not refresh it. The specification requires a first row id of every snapshot of
    version 3, and forbids it before.
    """
    head = table.current_snapshot()
    return table.format_version > 2 and head is not None and head.first_row_id is None


def upgrade_table(table: Table) -> None:
    """Upgrade a table to the newest format version; no snapshot changes.

    :raises CommitConflictError: other writers kept changing the table
    """

    def attempt() -> None:
        table.refresh()
        if table.format_version < NEWEST:
            commit_update(table, UpgradeFormatVersionUpdate(format_version=NEWEST))

    retry(attempt, _ATTEMPTS)
    table.refresh()
