"""When maintenance is due, and what it may change.

Source of the defaults: Confluent, "Configure Tableflow" (snapshots past ``retention_ms`` or beyond
the hundredth are removed, a minimum is kept; compaction by size or every 15 minutes; data TTL).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class MaintenancePolicy:
    """The rules for one table; the defaults are those of a topic's table."""

    retention: timedelta = timedelta(days=7)  # Age from which a snapshot may be removed.
    min_snapshots: int = 10  # The newest snapshots that are always kept.
    max_snapshots: int = 100  # Snapshots beyond this are removed before ``retention`` has passed.
    reader_age: timedelta = timedelta(hours=1)
    """A younger snapshot is kept, so that a reader that planned a scan of it can finish."""
    max_young: int = 720
    """Beyond this number, the oldest young ones are removed too: it is an hour's snapshots of an
    upsert table that commits every ten seconds. Every commit writes, and every step reads, a
    kilobyte of metadata for each."""
    metadata_bytes: int = 4 * MEBIBYTE
    """Beyond this size of the table's metadata file, snapshots expire early, down to
    ``min_snapshots``: some catalogs refuse metadata of more than 5 MB (estuary/connectors#3984)."""
    staged_age: timedelta = timedelta(hours=1)  # A batch staged so long ago is never published.
    compact_after: timedelta = timedelta(minutes=15)
    compact_bytes: int = 128 * MEBIBYTE  # So many new bytes make the next one due early.
    orphan_age: timedelta = timedelta(days=3)  # A younger file may be of an uncommitted write.
    daily: timedelta = timedelta(days=1)  # How often the table's folder is listed for orphan files.
    data_retention: timedelta | None = None  # Age from which rows are deleted; None: never.
    data_slack: timedelta = timedelta(days=1)
    """Rows past ``data_retention`` that share a file with younger ones may stay this much longer:
    files are rewritten once a day instead of continuously."""
