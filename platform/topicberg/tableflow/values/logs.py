"""The logs that a table was read from, one after the other: offsets compare only within one log.

A topic that was created again, moved to another cluster or truncated has another log, whose offsets
are those of other records. A table goes on with it by a decision of a user (:mod:`.continuing`), an
empty snapshot whose summary begins the next log, so that a rollback of ``main`` is one of the
decision as well. Log 0 is the first one.
"""

from __future__ import annotations

from pydantic import BaseModel, TypeAdapter
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg.summaries import LOG, checkpoint, summary
from topicberg.kafka.offsets import Offsets

LOGS = "topicberg.logs"
"""Table property: the :class:`EndedLog` of each decision, oldest first; none is ever removed."""


class EndedLog(BaseModel):
    """A log that a table does not read any more."""

    log: int
    """Its number. The log that follows it has the place of this in the property, from 1 on."""
    topic_id: str | None
    ends: Offsets
    """Up to where the table holds it."""
    at_ms: int
    by: str
    """User and host."""
    decision: str
    """Where the next log begins, and why."""


_LIST = TypeAdapter(list[EndedLog])


def decisions(table: Table) -> list[EndedLog]:
    """Return all decisions, also those that a rollback of ``main`` has undone."""
    text = table.properties.get(LOGS)
    return _LIST.validate_json(text) if text else []


def dump(logs: list[EndedLog]) -> str:
    """Return the value of the property."""
    return _LIST.dump_json(logs).decode()


def log_number(table: Table, head: Snapshot | None = None) -> int:
    """Return the number of the log that the table's end offsets are of; no two logs have the same.

    :raises TableflowError: the table was rolled back to a state whose offsets are not known
    """
    snapshot = checkpoint(table, head)
    return int(summary(snapshot).get(LOG, 0)) if snapshot else 0


def ended_logs(table: Table, head: Snapshot | None = None) -> list[EndedLog]:
    """Return the logs that the table was read from before the present one, oldest first."""
    known, number, logs = decisions(table), log_number(table, head), list[EndedLog]()
    while number:
        logs.insert(0, known[number - 1])
        number = known[number - 1].log
    return logs
