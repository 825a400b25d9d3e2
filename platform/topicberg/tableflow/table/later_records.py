"""What came later of a key than a record that was left out of an upsert table.

The log is read once from the first such record on; of the keys that wait, the newest record that
the table applied is kept. While the log has a record, it has the newest one of its key as well:
retention deletes from the beginning, and Kafka removes a tombstone only after all earlier records
of its key.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from confluent_kafka import Message
from numpy.typing import NDArray

from topicberg.endpoints import Endpoints
from topicberg.iceberg.position_deletes import read_rows
from topicberg.kafka.consumer import readable_messages
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.kafka.records import place_of
from topicberg.kafka.topics import beginning_offsets
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import TablePlan
from topicberg.tableflow.table.reread import (
    RECORD,
    check_schemas,
    described,
    described_records,
    key_of,
    newest,
    records_of,
)
from topicberg.tableflow.upsert.key_files import KEY_BITS, in_order
from topicberg.tableflow.upsert.key_files import newest as last_places
from topicberg.tableflow.upsert.key_hashing import KeyHasher
from topicberg.tableflow.upsert.keys import index_of
from topicberg.tableflow.values.offsets import OffsetSet
from topicberg.topics import TopicSpec

SUPERSEDED = "superseded"
UNCERTAIN = "uncertain"
MOST_UNUSED = 10_000
"""Offsets between two records that are read with them, if these are not far more."""
_Key = tuple[int, int]  # Its hash, without the partition if keys are decoded.


class LaterRecords:
    """Of one log and one table."""

    def __init__(
        self,
        spec: TopicSpec,
        into: TablePlan,
        endpoints: Endpoints,
        config: Settings,
        report: Callable[[str], None],
    ) -> None:
        self._name, self._endpoints, self._report = spec.name, endpoints, report
        self.schemas = into.layout.schema_ids  # Keys of others are not known.
        self._key, decode, self._framing = key_of(spec, into.table, endpoints)
        hasher = KeyHasher.of_upserts(into.table, self._key, decode)
        self._index = index_of(config.state_dir, spec.name, hasher)
        self._left_out = OffsetSet()  # All that were left out so far.
        self._waiting, self._applied = np.empty((2, 0), RECORD)
        """Those of them that the log has; and the newest ones of their keys that were not."""
        self._reached, self._uncertain = Offsets(), Offsets()
        """``_uncertain``: before these offsets, as a record that was applied cannot be read now."""

    def outcomes(
        self, into: TablePlan, left_out: OffsetSet, records: Sequence[Message]
    ) -> dict[PartitionOffset, str]:
        """Return which records are not to be inserted, and why.

        :param left_out: records that the table has not applied
        :raises TableflowError: a record that was applied has a key of a schema that is missing now
        """
        self._read(into.offsets, left_out)
        if not (keyed := list(records_of(records, self._framing))):
            return {}
        rows = described(keyed, self._index)
        mask = int(KEY_BITS) if self._key.is_decoded else (1 << 64) - 1
        log_records = np.concatenate([self._waiting, self._applied])
        log_records = log_records[np.isin(log_records["high"], rows["high"])]
        is_left_out = left_out.among(log_records["partition"], log_records["offset"])
        # What another replay has applied came later; and so did a delete, applied or not.
        is_later = log_records["deletes"] | ~is_left_out
        others = defaultdict[_Key, list[PartitionOffset]](list)
        for high, low, *place, _, _ in log_records[is_later].tolist():
            others[high, low & mask].append((*place,))
        own = self._rows(into, rows, mask)
        # Later records may have been deleted before they were read, with those deleted meanwhile.
        kept = beginning_offsets(self._endpoints, self._name)
        kept = {p: max(offset, self._uncertain.get(p, 0)) for p, offset in kept.items()}
        places = log_records[["partition", "offset"]].tolist()
        in_log = {(p, offset) for p, offset in places if offset >= kept.get(p, sys.maxsize)}
        outcomes = dict[PartitionOffset, str]()
        for high, low, partition, offset, *_ in rows.tolist():
            compared = [*others[high, low & mask], *own[high, low & mask]]
            if (partition, offset) not in in_log and not own[high, low & mask]:
                # It may have been deleted by a record that the log does not have any more.
                outcomes[partition, offset] = UNCERTAIN
            elif any(place > (partition, offset) for place in compared if place[0] == partition):
                outcomes[partition, offset] = SUPERSEDED
            elif any(place[0] != partition for place in compared):
                outcomes[partition, offset] = UNCERTAIN  # Times of partitions do not compare.
        return outcomes

    def _read(self, end: Offsets, left_out: OffsetSet) -> None:
        """Read what was left out, and what the table has applied, since the last time."""
        where, damaged = (self._endpoints, self._name), list[tuple[int, range]]()
        new = left_out - self._left_out
        self._left_out |= new
        if any(offset < self._reached.get(partition, 0) for partition, offset in new):
            self._reached = Offsets()  # After a rollback of the table.
        unread = readable_messages(*where, spans(new), [])
        read = (message for message in unread if place_of(message) in new)
        for _, waiting in described_records(read, self._framing, self._index):
            self._waiting = np.concatenate([self._waiting, waiting])
        if self._framing is not None:
            self._framing.unknown.clear()  # Those of records that were left out do not matter.
        starts = {
            partition: int(self._waiting["offset"][self._waiting["partition"] == partition].min())
            for partition in np.unique(self._waiting["partition"]).tolist()
        }
        if starts and self._key.is_decoded and len(end) > 1:  # It may be in all partitions.
            starts = beginning_offsets(*where)
        ranges = [(p, max(starts[p], self._reached.get(p, 0)), end[p]) for p in starts if p in end]
        unread = readable_messages(*where, ranges, damaged)
        read = (message for message in unread if place_of(message) not in left_out)
        for number, applied in described_records(read, self._framing, self._index):
            waits = np.isin(applied["high"], self._waiting["high"])
            self._applied = newest(self._applied, applied[waits])
            self._report(f"compared the keys of {number:,} records")
        self._reached = {**end}
        for partition, offsets in damaged:
            if any((partition, offset) not in left_out for offset in offsets):
                affected = end if self._key.is_decoded else [partition]
                self._uncertain |= dict.fromkeys(affected, offsets[-1] + 1)
        problem = "whether they are later records of the same keys is not known"
        check_schemas(self._name, self._framing, problem)

    def _rows(
        self, into: TablePlan, rows: NDArray[Any], mask: int
    ) -> Mapping[_Key, list[PartitionOffset]]:
        """Return partition and offset of the rows that the table has of some keys.

        Only of the first log, it has no rows of others, whose offsets do not compare.
        """
        rows_of_key = defaultdict[_Key, list[PartitionOffset]](list)
        if into.head is None or into.committed.log > 0:
            return rows_of_key
        distinct = rows[last_places(rows["high"], rows["low"] & np.uint64(mask))]
        keys = in_order(distinct["high"], distinct["low"])
        for of_file, wanted in self._index.keyed_rows(into.table, into.head, keys):
            columns = read_rows(into.table, of_file, [self._key.partition, self._key.offset])
            places = zip(*(column.to_pylist() for column in columns.columns), strict=True)
            for number, place in zip(wanted, places, strict=True):
                rows_of_key[int(keys.high[number]), int(keys.low[number]) & mask].append(place)
        return rows_of_key


def spans(offsets: OffsetSet) -> Iterator[tuple[int, int, int]]:
    """Yield partition, first offset, and offset after the last one, of what is read at once."""
    places = np.array([*offsets], np.int64).reshape(-1, 2)
    for partition in np.unique(places[:, 0]).tolist():
        of_partition = places[places[:, 0] == partition, 1]
        most = max(MOST_UNUSED, (of_partition[-1] - of_partition[0]) // 100)
        for span in np.split(of_partition, 1 + np.flatnonzero(np.diff(of_partition) > most)):
            yield partition, int(span[0]), int(span[-1]) + 1
