"""Tags on snapshots while they are read, so that they and their files do not expire meanwhile.

A reader that is killed leaves its tags. Their names contain the reader and the start, so that
maintenance can remove them after :data:`LIMIT`; the expiry of other tools uses the tag's own age
limit. Tables that topicberg may not change, like those of Confluent's Tableflow, get no tag.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from pyiceberg import exceptions
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetSnapshotRefUpdate, TableUpdate
from tenacity import wait_random_exponential

from topicberg.errors import CommitConflictError
from topicberg.errors.retry import retry
from topicberg.iceberg import clocks, commits

logger = logging.getLogger(__name__)

PREFIX = "topicberg-reading-"
LIMIT = timedelta(days=1)  # An older tag belongs to a reader that was killed.
_ATTEMPTS = 8


@contextmanager
def reading(tables: Iterable[Table], reader: str) -> Iterator[None]:
    """Protect the current snapshots of tables, as they were loaded, from expiry.

    :param reader: the reader's name, for the tags' names
    :raises CommitConflictError: a snapshot is expired already; load the table again
    """
    # It loads PyArrow's file systems and datasets, which definitions of assets do not need.
    from topicberg.clients.catalog import READ_ONLY

    with ExitStack() as stack:
        for table in tables:
            head = table.current_snapshot()
            if head and table.name()[0] != table.catalog.properties.get(READ_ONLY):
                stack.enter_context(_tag(table, head.snapshot_id, head.timestamp_ms, reader))
        yield


def stale_tags(table: Table, now_ms: int) -> list[str]:
    """Return the tags of readers that were killed."""
    oldest = now_ms - LIMIT.total_seconds() * 1000
    tags = [name for name in table.metadata.refs if name.startswith(PREFIX)]
    starts = (name.removeprefix(PREFIX).partition("-")[0] for name in tags)
    return [n for n, ms in zip(tags, starts, strict=True) if not ms.isdigit() or int(ms) < oldest]


@contextmanager
def _tag(table: Table, snapshot: int, committed_ms: int, reader: str) -> Iterator[None]:
    now_ms = int(clocks.current_time(table).timestamp() * 1000)
    name = f"{PREFIX}{now_ms}-{reader}-{uuid.uuid4().hex[:8]}"
    # In Iceberg's specification the limit is the maximum age of the snapshot, not of the tag.
    limit_ms = now_ms - committed_ms + int(LIMIT.total_seconds() * 1000)
    tagged = _create(table, snapshot, commits.set_ref(name, snapshot, max_age_ms=limit_ms))
    try:
        yield
    finally:
        if tagged:
            try:
                _commit(table, RemoveSnapshotRefUpdate(ref_name=name))
            except Exception as error:  # the read is complete; maintenance removes the tag
                label = ".".join(table.name())
                logger.info("table %s: tag %s is not removed: %s", label, name, error)


def _create(table: Table, snapshot: int, tag: SetSnapshotRefUpdate) -> bool:
    """Create the tag; return False if the catalog refuses it; raise if the snapshot is expired."""
    name = ".".join(table.name())
    try:
        _commit(table, tag)
    except (CommitConflictError, exceptions.BadRequestError, ValueError) as error:
        if isinstance(error.__cause__, exceptions.CommitStateUnknownException):
            raise  # the tag may be there
        if table.catalog.load_table(table.name()).snapshot_by_id(snapshot) is None:
            raise CommitConflictError(f"table {name}: its snapshot is expired") from error
        refusal: Exception = error
    except (exceptions.ForbiddenError, exceptions.UnauthorizedError) as error:
        refusal = error
    else:
        return True
    logger.warning("table %s is read without a tag, which the catalog refused: %s", name, refusal)
    return False


def _commit(table: Table, update: TableUpdate) -> None:
    """Commit, and retry if another commit came first."""
    wait = wait_random_exponential(multiplier=0.2, max=5)
    retry(lambda: commits.commit_update(table, update), _ATTEMPTS, wait=wait)
