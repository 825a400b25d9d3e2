"""What follows from clocks that differ: commits that a catalog refuses, and what is expired.

Each snapshot has the time of the machine that wrote it, and a catalog refuses one that is more than
a minute before the newest of the table.

Source: Iceberg, ``TableMetadata`` ("Expected sorted snapshot log entries", "Invalid update
timestamp").
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from pyiceberg.table import Table

from topicberg.errors import TopicbergError, first_line
from topicberg.errors.table import CLOCKS_DIFFER
from topicberg.logins.oauth import SKEW_SECONDS


def current_time(table: Table) -> datetime:
    """Return the time, by the catalog's clock if it is far from this one: nothing expires early."""
    ahead = _skew(table) or 0
    return datetime.now(UTC) + timedelta(seconds=ahead if abs(ahead) > SKEW_SECONDS else 0)


def clock_error(table: Table, error: Exception) -> TopicbergError | None:
    """Return which clocks differ, and how far, if that is why a commit was refused."""
    if not re.search(CLOCKS_DIFFER, str(error), re.IGNORECASE):
        return None
    metadata, now_ms = table.metadata, time.time() * 1000
    times = [(entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log]
    newest_ms, snapshot_id = max(times, default=(metadata.last_updated_ms, None))
    newest_ms = max(newest_ms, metadata.last_updated_ms)
    newest = f"its newest snapshot {snapshot_id}" if snapshot_id else "its last change"
    apart = round((newest_ms - now_ms) / 1000)
    message = (
        f"table {'.'.join(table.name())}: the catalog refuses the commit because clocks differ: "
        f"{newest} is of {_text(newest_ms)}, this machine's clock says {_text(now_ms)}, "
        f"{timedelta(seconds=abs(apart))} {'earlier' if apart > 0 else 'later'}"
    )
    hint = (
        "correct the clock that is wrong, this machine's or that of who wrote the snapshot, for "
        f"instance with NTP; commits succeed again after {_text(newest_ms)}"
    )
    if (ahead := _skew(table)) is not None:
        catalogs_ms = now_ms + ahead * 1000
        message += f"; the catalog's clock says {_text(catalogs_ms)}"
        if abs(ahead) > SKEW_SECONDS:
            hint = "correct this machine's clock, for instance with NTP"
        elif newest_ms > catalogs_ms:
            hint = (
                "correct the clock of who wrote the snapshot, for instance with NTP; commits "
                f"succeed again after {_text(newest_ms)}, or set `main` to an earlier snapshot"
            )
    return TopicbergError(f"{message}: {first_line(error)}", hint=hint)


def _skew(table: Table) -> float | None:
    """Return how many seconds the catalog's clock is ahead, if it has said so."""
    return getattr(table.catalog, "skew_seconds", None)


def _text(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
