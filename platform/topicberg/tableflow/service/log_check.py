"""Whether the log of a topic is still the one whose records its table has.

A log that was put back, or cut by a leader that lacked records, may grow again to any end. So the
last record of each partition that the table has is compared with the log when the engine starts,
after an error, under each new leader, and when another engine has committed it: at other times, no
broker can have another log. That the log differs is recorded in the table, because later nothing
may be left to compare.

Source: KIP-320, "Allow fetchers to detect and handle log truncation".
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from functools import cache, partial

import numpy as np
from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.kafka import consumer
from topicberg.kafka import topics as kafka
from topicberg.kafka.last_records import LastRecord, LastRecords
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.settings import Settings
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.values import skips
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.logs import OTHER_LOG, OtherLog, go_on
from topicberg.tableflow.values.offsets import OffsetSet
from topicberg.topics import TopicSpec, requests
from topicberg.wording import count

logger = logging.getLogger(__name__)


class LogCheck:
    """Compares the log of one topic with its table."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints, config: Settings) -> None:
        self._spec, self._endpoints, self._config = spec, endpoints, config
        self._compared: dict[int, tuple[int, LastRecord]] = {}
        """By partition, the epoch of the leader whose log has a record, -1: it has none, and that
        record, which was compared or committed."""
        self.unproven: Offsets = {}  # Partition → the table's last record, if the log lacks it.

    def forget(self) -> None:
        """Compare all partitions again in the next step."""
        self._compared = {}

    def note_commit(self, last_records: LastRecords) -> None:
        """Note the last records of the table after a batch of the log that was compared."""
        known = last_records.keys() & self._compared.keys()
        self._compared = {p: (self._compared[p][0], last_records[p]) for p in known}

    def check(
        self, table: Table, offsets: Offsets, last_records: LastRecords, log: kafka.TopicLog
    ) -> None:
        """Check that the log is the one whose records the table has.

        :param offsets: the first ones that the table lacks
        :param last_records: those that the table has
        :raises TableflowError: it is not, it was not and nothing shows that it is again, or records
            were deleted before they were read
        :raises UnreachableError: the log cannot be compared now
        """
        recorded, same = OtherLog.load(table), set[int]()
        reasons = {
            p: f"partition {p} ends at {log.end[p]}, but the table holds it up to {offset}"
            if p in log.end
            else f"partition {p} is missing, but the table holds it up to offset {offset}"
            for p, offset in sorted(offsets.items())
            if offset > log.end.get(p, -1)
        }
        last = {p: r for p, r in last_records.items() if p not in reasons}
        last_offsets = {p: record.offset for p, record in last.items()}
        self.unproven = {p: o for p, o in self.unproven.items() if last_offsets.get(p) == o}
        wanted = {
            p: record
            for p, record in last.items()
            if recorded is not None or self._compared.get(p) != (log.epochs.get(p, -1), record)
        }
        if wanted:
            where = self._endpoints, self._spec.name
            current = current_records(table, *where, wanted, log.beginning, offsets)
            for p, record in wanted.items():
                if p not in current:
                    self.unproven[p] = record.offset
                    continue
                self.unproven.pop(p, None)
                if (other := current[p]) is not None and other.is_same(record):
                    same.add(p)
                else:
                    reasons[p] = _differs(p, record, other)
        if reasons:
            raise self._other(table, recorded, reasons)
        if recorded is not None:
            differed = {p for p in recorded.partitions if offsets.get(p)}
            self._check_again(table, recorded, sorted(differed - same))
        _check_deleted(self._spec.name, offsets, log)
        for p in wanted.keys() & self.unproven.keys():
            logger.warning(
                "topic %s: the log of partition %d cannot be compared: the last record that the "
                "table holds, offset %d, was compacted or deleted, or cannot be read",
                *(self._spec.name, p, self.unproven[p]),
            )
        self._compared |= {p: (log.epochs.get(p, -1), record) for p, record in wanted.items()}

    def has_changed(self, log: kafka.TopicLog, partitions: Iterable[int]) -> bool:
        """Return whether partitions may have another log since this one was looked up."""
        now = kafka.topic_log(self._endpoints, self._spec.name)
        return now.topic_id != log.topic_id or any(
            now.epochs.get(p) != log.epochs.get(p) for p in partitions
        )

    def _other(
        self, table: Table, recorded: OtherLog | None, reasons: dict[int, str]
    ) -> TableflowError:
        """Record that partitions have another log; return what to raise."""
        known = {*recorded.partitions} if recorded is not None else set()
        first = min(reasons)
        more = f" (and {count(len(reasons) - 1, 'other partition')})" if len(reasons) > 1 else ""
        reason = f"{reasons[first]}{more}: the log was replaced or lost records"
        # Who resumed the topic before this has not said that it has its former log after this.
        if recorded is None or not reasons.keys() <= known or self._is_resumed(recorded):
            partitions, at_ms = sorted(known | reasons.keys()), int(time.time() * 1000) + 1
            other = OtherLog(at_ms=at_ms, partitions=partitions, reason=reason)
            with table.transaction() as transaction:
                transaction.set_properties({OTHER_LOG: other.model_dump_json()})
        return TableflowError(
            f"topic {self._spec.name}: {reason}",
            hint="put the former log back, after which the topic continues; or "
            f"{go_on(self._spec.name)}",
        )

    def _check_again(self, table: Table, recorded: OtherLog, left: list[int]) -> None:
        """Check that partitions that cannot be compared have their former log, as a user said."""
        name = self._spec.name
        if left and not self._is_resumed(recorded):
            raise TableflowError(
                f"topic {name}: at {shown_time(recorded.at_ms)}, {recorded.reason}; whether "
                f"partition {left[0]} has its former log again cannot be compared",
                hint=f"run `topicberg tableflow resume {name}` if you put the former log back; "
                f"else {go_on(name)}",
            )
        logger.warning("topic %s: it has its former log again", name)
        with table.transaction() as transaction:
            transaction.remove_properties(OTHER_LOG)

    def _is_resumed(self, recorded: OtherLog) -> bool:
        request = requests.read_request(self._config, self._spec.name)
        return request is not None and request.resumed_at * 1000 > recorded.at_ms


def current_records(
    table: Table,
    endpoints: Endpoints,
    topic: str,
    records: LastRecords,
    beginning: Offsets,
    ends: Offsets,
) -> dict[int, LastRecord | None]:
    """Return :func:`.find_records` of a table's last records.

    A later one that was skipped unread does not show that the log is another. In a compacted topic
    none does: each replica is compacted on its own, so another leader may still have it.
    """
    known = cache(partial(_left_out, table, endpoints, topic))

    def was_left_out(place: PartitionOffset) -> bool:
        offsets, unknown = known()
        return place in offsets or place[1] < unknown.get(place[0], 0)

    return consumer.find_records(endpoints, topic, records, beginning, ends, was_left_out)


def _left_out(table: Table, endpoints: Endpoints, topic: str) -> tuple[OffsetSet, Offsets]:
    """Return the records that a table left out, and before which offsets these are not known."""
    policy = kafka.topic_config(endpoints, topic).get("cleanup.policy")
    skipped = skips.places([*skips.requested(table).values(), *skips.failing(table)], {})
    waiting = Waiting.load(table)
    unknown = waiting.start
    if kafka.is_compacted(policy) or (waiting.unrecorded and not unknown):
        unknown = dict.fromkeys(committed(table).offsets, sys.maxsize)
    return waiting.of(waiting.log) | OffsetSet.of(skipped), unknown


def _differs(partition: int, record: LastRecord, other: LastRecord | None) -> str:
    place, expected = f"at offset {record.offset}", f"that the table holds, of {_shown(record)}"
    if other is None:
        return f"partition {partition} never had the record {place} {expected}"
    found = f"another record at offset {other.offset}, of {_shown(other)}"
    return f"partition {partition} has {found}, than the one {expected}"


def _shown(record: LastRecord) -> str:
    epoch = f" (leader epoch {record.epoch})" if record.epoch >= 0 else ""
    return f"{shown_time(record.time_ms)}{epoch}"


def shown_time(milliseconds: int) -> str:
    return f"{np.datetime64(milliseconds, 'ms')}Z"  # producers may send any time


def _check_deleted(topic: str, offsets: Offsets, log: kafka.TopicLog) -> None:
    """:raises TableflowError: Kafka deleted records before they were read"""
    # A partition that was added later has no record in the table.
    added = dict.fromkeys(log.end.keys() - offsets.keys(), 0) if offsets else {}
    for p, offset in sorted((added | offsets).items()):
        if offset < (first := log.beginning[p]):
            raise TableflowError(
                f"topic {topic}: the log of partition {p} was truncated: the next record is "
                f"{offset}, the first one kept is {first}: {count(first - offset, 'record')} were "
                "deleted before they were read",
                hint=f"raise the topic's retention; and {go_on(topic)}",
            )
