"""How the records of a topic become data files: programs, columns, and how to log in.

A plan is made in the engine and sent to the process, or to the task of Spark, that reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from topicberg.iceberg.data_files import WriteTarget
from topicberg.kafka.records import READER
from topicberg.tableflow.changelog.changes import ChangePlan
from topicberg.tableflow.layout.event_time import EventTime
from topicberg.tableflow.layout.inline_schemas import InlineSchemas
from topicberg.tableflow.layout.upsert_key import UpsertKey
from topicberg.tableflow.layout.writers import MessageDecoder
from topicberg.tableflow.rejected.rejections import ErrorMode
from topicberg.tableflow.values.forgotten import ForgottenKeys

CONSUMER: dict[str, object] = {
    **READER,
    "isolation.level": "read_committed",
    # What is read ahead beyond the last record is in vain.
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 16 * 1024,
}
"""Properties of librdkafka for reading a batch."""
ONE_BATCH: dict[str, object] = {"fetch.message.max.bytes": 1, "queued.min.messages": 1}
"""Properties for reading one record: Kafka returns its batch, and no other one that may fail."""


@dataclass(frozen=True, repr=False)
class ReadPlan:
    """How records become data files; it is sent to tasks. It holds logins, so it has no repr."""

    topic: str
    target: WriteTarget
    files: Mapping[str, Any]
    """Properties of the table's object store."""
    kafka: Mapping[str, Any]
    """Properties of librdkafka."""
    decoded: Mapping[str, MessageDecoder]
    """For ``key`` and ``value``; absent: it is not decoded."""
    raw: frozenset[str]
    """Of ``key`` and ``value``, those that are columns as they are."""
    text: frozenset[str]
    """Those of ``raw`` that are text in UTF-8."""
    columns: Mapping[str, str]
    """The names of metadata columns."""
    error_mode: ErrorMode
    upserts: UUID | None = None
    """The table, if only the newest record of each key, or the row after its last change, is a
    row."""
    key: UpsertKey | None = None
    """Of an upsert table."""
    changes: ChangePlan | None = None
    """Of a topic with a change log."""
    inline: Mapping[str, InlineSchemas] = field(default_factory=dict)
    """For keys and values that are not in the wire format: what brings them into it."""
    event_time: EventTime | None = None
    """How the event time is read from a field."""
    forgotten: ForgottenKeys | None = None
    """Keys and values of which no row is written."""
    stops_early: bool = False
    """Whether a task stops when it finds new schemas among its first records."""

    @property
    def is_folded(self) -> bool:
        return self.changes is not None and self.changes.is_folded
