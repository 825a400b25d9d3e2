"""The records that were left out of a table, until a replay decides what becomes of each.

Batches that leave records out write their offsets, by reason, to a new file in the table's folder;
the summary of each snapshot with end offsets names the newest one. So the file is committed with
the rows, and a rollback of ``main`` is one of these records as well. Maintenance keeps the files
that snapshots name. No file has a value of a record.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg.shared_keys import waiting_file
from topicberg.iceberg.summaries import ROWS_SKIPPED, WAITING, checkpoint, summary
from topicberg.kafka.offsets import Offsets, dump_offsets, parse_offsets
from topicberg.tableflow.rejected.rejections import MOST_REASONS, OTHER_REASONS
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.offsets import OffsetSet

logger = logging.getLogger(__name__)
MOST_CHUNKS = 1_000
"""Of more chunks of offsets, the oldest are not recorded any more: their file would be large."""
SKIPPED = "a user skipped the record"


class Reason(NamedTuple):
    """Why records of a log were left out."""

    log: int
    """See :mod:`topicberg.tableflow.values.logs`."""
    text: str


@dataclass
class Waiting:
    """What is still left out, as of a snapshot."""

    offsets: dict[Reason, OffsetSet] = field(default_factory=dict)
    since_ms: dict[Reason, int] = field(default_factory=dict)
    topic_ids: dict[int, str] = field(default_factory=dict)
    """By log."""
    unrecorded: int = 0
    """How many records were left out whose offsets are not here."""
    start: Offsets = field(default_factory=dict)
    """Of log 0: where offsets began to be recorded. Dead letters of before may wait as well."""

    @classmethod
    def load(cls, table: Table, head: Snapshot | None = None) -> Waiting:
        """Return what waits at a snapshot, by default the head of ``main``.

        :raises TableflowError: the table was rolled back to a state whose offsets are not known
        """
        snapshot = checkpoint(table, head)
        name = summary(snapshot).get(WAITING) if snapshot else None
        if name is None:  # no record was left out, or by an earlier version
            unrecorded = int(table.properties.get(ROWS_SKIPPED, 0))
            start = committed(table, head).offsets if unrecorded else {}
            return cls(unrecorded=unrecorded, start=start)
        path = waiting_file(table.location(), name)
        try:
            with table.io.new_input(path).open() as stream:
                document: dict[str, Any] = json.loads(stream.read())
        except FileNotFoundError:  # which dead letters were replayed is not known either
            logger.warning("table %s: %s does not exist", ".".join(table.name()), path)
            return cls(unrecorded=int(table.properties.get(ROWS_SKIPPED, 0)))
        waiting = cls(unrecorded=document["unrecorded"], start=parse_offsets(document["start"]))
        waiting.topic_ids = {int(log): text for log, text in document["topic_ids"].items()}
        for log, text, since_ms, offsets in document["reasons"]:
            waiting.offsets[Reason(log, text)] = OffsetSet.load(offsets)
            waiting.since_ms[Reason(log, text)] = since_ms
        return waiting

    def write(self, table: Table) -> dict[str, str]:
        """Write a file, and return what the summary of a snapshot has of it."""
        while sum(offsets.chunks for offsets in self.offsets.values()) > MOST_CHUNKS:
            oldest = min(self.offsets, key=lambda reason: (reason.log, self.since_ms[reason]))
            dropped = self.offsets[oldest].first_chunk()
            self.unrecorded += len(dropped)
            self.remove(oldest.log, dropped)
        document = {
            "unrecorded": self.unrecorded,
            "start": dump_offsets(self.start),
            "topic_ids": self.topic_ids,
            "reasons": [
                (*reason, self.since_ms[reason], offsets.dump())
                for reason, offsets in self.offsets.items()
            ],
        }
        name = uuid.uuid4().hex
        path = waiting_file(table.location(), name)
        with table.io.new_output(path).create() as stream:
            stream.write(json.dumps(document, separators=(",", ":")).encode())
        return {WAITING: name}

    def add(
        self,
        log: int,
        topic_id: str,
        left_out: Mapping[str, OffsetSet],
        since_ms: int | None = None,
    ) -> None:
        """Add records by the reasons for which they are left out."""
        self.topic_ids[log] = topic_id
        for text, offsets in left_out.items():
            reason = Reason(log, text)
            if reason not in self.offsets and len(self.offsets) >= MOST_REASONS:
                reason = Reason(log, OTHER_REASONS)
            if offsets:
                self.offsets[reason] = self.offsets.get(reason, OffsetSet()) | offsets
                now_ms = int(time.time() * 1000)
                self.since_ms.setdefault(reason, now_ms if since_ms is None else since_ms)

    def remove(self, log: int, done: OffsetSet) -> None:
        """Remove records of a log."""
        for reason in [reason for reason in self.offsets if reason.log == log]:
            self.offsets[reason] -= done
            if not self.offsets[reason]:
                del self.offsets[reason], self.since_ms[reason]

    def of(self, log: int, text: str = "") -> OffsetSet:
        """Return the records of a log whose reason has a text."""
        offsets = OffsetSet()
        for reason, some in self.offsets.items():
            if reason.log == log and text in reason.text:
                offsets |= some
        return offsets

    @property
    def logs(self) -> list[int]:
        return sorted({reason.log for reason in self.offsets})

    @property
    def count(self) -> int:
        """How many records wait, whose offsets are known or not."""
        return self.unrecorded + sum(map(len, self.offsets.values()))

    def by_reason(self) -> Iterator[tuple[str, int]]:
        """Yield reasons and how many records have each, most first."""
        counts = dict[str, int]()
        for reason, offsets in self.offsets.items():
            counts[reason.text] = counts.get(reason.text, 0) + len(offsets)
        yield from sorted(counts.items(), key=lambda item: -item[1])
