"""The logs that a table was read from, one after the other: offsets compare only within one log.

A topic that was created again, moved to another cluster or truncated has another log, whose offsets
are those of other records. A table continues with it by a user's decision (:mod:`.continuing`), an
empty snapshot whose summary begins the next log, so that a rollback of ``main`` is one of the
decision as well. Log 0 is the first one.
"""

from __future__ import annotations

from pydantic import BaseModel, TypeAdapter
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.errors import TableflowError
from topicberg.iceberg.summaries import LOG, TOPIC_ID, checkpoint, summary
from topicberg.kafka.offsets import Offsets

LOGS = "topicberg.logs"
"""Table property: the :class:`EndedLog` of each decision, oldest first; none is ever removed."""


class EndedLog(BaseModel):
    """A log that a table does not read any more; ``by``: user and host."""

    log: int
    next: int  # The number of the log that followed.
    topic_id: str | None
    ends: Offsets  # Up to where the table holds it.
    at_ms: int
    by: str
    decision: str  # Where the next log begins.


OTHER_LOG = "topicberg.other-log"  # Table property: see :class:`OtherLog`.


class OtherLog(BaseModel):
    """Partitions whose log was not the one that the table holds, and since when (milliseconds)."""

    at_ms: int
    partitions: list[int]
    reason: str

    @classmethod
    def load(cls, table: Table) -> OtherLog | None:
        """Return what a table's properties say."""
        text = table.properties.get(OTHER_LOG)
        return cls.model_validate_json(text) if text else None


_LIST = TypeAdapter(list[EndedLog])


def go_on(topic: str) -> str:
    """Return the hint for a table whose log is not the one that it was read from."""
    return (
        f"run `topicberg tableflow continue {topic}` to keep the table: it compares it with the "
        "log that Kafka has now, shows what is lost or would repeat, and asks where to go on"
    )


def check_topic(topic: str, known: str | None, topic_id: str) -> None:
    """:raises TableflowError: the topic is not the one whose records a table has, if it is known"""
    if known is not None and known != topic_id:
        raise TableflowError(
            f"topic {topic} was deleted and recreated: the table holds topic id {known}, the "
            f"broker has {topic_id}",
            hint=go_on(topic),
        )


def check_log(topic: str, table: Table, topic_id: str) -> None:
    """:raises TableflowError: the table was read from another topic, or another log of this one"""
    snapshot, other = checkpoint(table), OtherLog.load(table)
    check_topic(topic, summary(snapshot).get(TOPIC_ID) if snapshot else None, topic_id)
    if other is not None:
        raise TableflowError(f"topic {topic}: {other.reason}", hint=go_on(topic))


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
    before, number = {ended.next: ended for ended in decisions(table)}, log_number(table, head)
    logs = list[EndedLog]()
    while number in before:
        logs.insert(0, before[number])
        number = before[number].log
    return logs
