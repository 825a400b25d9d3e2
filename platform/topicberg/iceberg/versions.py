"""Which format versions of Iceberg topicberg writes.

Appending with Spark works with any version that PyIceberg reads. Position deletes, dropped files
and empty snapshots are written by topicberg itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topicberg.errors import TableFormatError

if TYPE_CHECKING:
    from pyiceberg.table import Table

WRITTEN = 2


def require_written(table: Table) -> None:
    """Check that topicberg can commit its own snapshots to a table.

    :raises TableFormatError: the table has another format version
    """
    version = table.format_version
    if version == WRITTEN:
        return
    raise TableFormatError(
        f"table {'.'.join(table.name())}: it is of format version {version} of Iceberg, which "
        f"topicberg does not write; expected {WRITTEN}",
        hint="drop the table and create it again, since no format version can be lowered; for a "
        "topic run `topicberg tableflow disable TOPIC --drop-table`, then `topicberg tableflow "
        "enable TOPIC`",
    )
