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
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg.shared_keys import waiting_file
from topicberg.iceberg.summaries import (
    END_OFFSETS,
    LOG,
    ROWS_REPLAYED,
    ROWS_SKIPPED,
    WAITING,
    checkpoint,
    summary,
)
from topicberg.kafka.offsets import Offsets, dump_offsets, parse_offsets
from topicberg.tableflow.rejected.rejections import MOST_REASONS, OTHER_REASONS
from topicberg.tableflow.values.logs import ended_logs
from topicberg.tableflow.values.offsets import OffsetSet

logger = logging.getLogger(__name__)
MOST_CHUNKS = 1_000
"""Of more chunks of offsets, the oldest are not recorded any more: their file would be large."""
SKIPPED = "a user skipped the record"


class WaitingReason(NamedTuple):
    """Why records of a log were left out."""

    log: int
    """See :mod:`topicberg.tableflow.values.logs`."""
    text: str


@dataclass
class Waiting:
    """What is still left out, as of a snapshot."""

    log: int = 0  # The number of its log, see :mod:`topicberg.tableflow.values.logs`.
    offsets: dict[WaitingReason, OffsetSet] = field(default_factory=dict)
    since_ms: dict[WaitingReason, int] = field(default_factory=dict)
    topic_ids: dict[int, str] = field(default_factory=dict)  # By log.
    unrecorded: int = 0  # How many records were left out whose offsets are not here.
    start: Offsets = field(default_factory=dict)
    """Where offsets began to be recorded. Dead letters of log 0 before it may wait as well."""

    @classmethod
    def load(cls, table: Table, head: Snapshot | None = None) -> Waiting:
        """Return what waits at a snapshot, by default the head of ``main``.

        :raises TableflowError: the table was rolled back to a state whose offsets are not known
        """
        facts = summary(snapshot) if (snapshot := checkpoint(table, head)) else {}
        unrecorded, log = int(table.properties.get(ROWS_SKIPPED, 0)), int(facts.get(LOG, 0))
        if WAITING not in facts:  # no record was left out, or by an earlier version
            # If there was a replay, an earlier version committed since: dead letters may be rows.
            is_known = facts and unrecorded and ROWS_REPLAYED not in table.properties
            ended = ended_logs(table, snapshot)
            ends = ended[0].ends if ended else parse_offsets(facts.get(END_OFFSETS, "{}"))
            start = ends if is_known else {}
            return cls(log, unrecorded=unrecorded, start=start)
        path = waiting_file(table.location(), facts[WAITING])
        try:
            with table.io.new_input(path).open() as stream:
                document: dict[str, Any] = json.loads(stream.read())
        except FileNotFoundError:  # which dead letters were replayed is not known either
            logger.warning("table %s: %s does not exist", ".".join(table.name()), path)
            return cls(log, unrecorded=unrecorded)
        return cls(
            log,
            {
                WaitingReason(n, text): OffsetSet.load(each)
                for n, text, _, each in document["reasons"]
            },
            {WaitingReason(n, text): since_ms for n, text, since_ms, _ in document["reasons"]},
            {int(n): topic_id for n, topic_id in document["topic_ids"].items()},
            document["unrecorded"],
            parse_offsets(document["start"]),
        )

    def dump(self) -> str:
        """Return the content of the file."""
        known = sorted(self.offsets)
        reasons = [(*why, self.since_ms[why], self.offsets[why].dump()) for why in known]
        document = {"unrecorded": self.unrecorded, "start": dump_offsets(self.start)}
        document |= {"topic_ids": self.topic_ids, "reasons": reasons}
        return json.dumps(document, sort_keys=True)

    def write(self, table: Table) -> dict[str, str]:
        """Write a file, and return what the summary of a snapshot has of it."""
        while sum(offsets.chunks for offsets in self.offsets.values()) > MOST_CHUNKS:
            oldest = min(self.offsets, key=lambda reason: (reason.log, self.since_ms[reason]))
            dropped = self.offsets[oldest].first_chunk()
            self.unrecorded += len(dropped)
            self.remove(oldest.log, dropped)
        name = uuid.uuid4().hex
        with table.io.new_output(waiting_file(table.location(), name)).create() as stream:
            stream.write(self.dump().encode())
        return {WAITING: name}

    def add(
        self,
        topic_id: str,
        left_out: Mapping[str, OffsetSet],
        since_ms: int | None = None,
        log: int | None = None,
    ) -> None:
        """Add records by the reasons for which they are left out; None: now, and of the log."""
        log = self.log if log is None else log
        self.topic_ids[log] = topic_id
        for text, offsets in left_out.items():
            why = WaitingReason(log, text)
            if why not in self.offsets and len(self.offsets) >= MOST_REASONS:
                why = WaitingReason(log, OTHER_REASONS)
            if offsets:
                self.offsets[why] = self.offsets.get(why, OffsetSet()) | offsets
                self.since_ms.setdefault(why, since_ms or int(time.time() * 1000))

    def remove(self, log: int, done: OffsetSet) -> None:
        """Remove records of a log; some of them may be added again."""
        for reason in [reason for reason in self.offsets if reason.log == log]:
            self.offsets[reason] -= done
            if not self.offsets[reason]:
                del self.offsets[reason]  # If they fail again, they wait since the same time.

    def of(self, log: int, text: str = "") -> OffsetSet:
        """Return the records of a log whose reason has a text."""
        some = (each for why, each in self.offsets.items() if why.log == log and text in why.text)
        return reduce(or_, some, OffsetSet())

    @property
    def count(self) -> int:
        """How many records wait, whose offsets are known or not."""
        return self.unrecorded + sum(map(len, self.offsets.values()))
