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
        # Of the first log, the table has no rows of others, whose offsets do not compare.
        self._is_first_log = into.committed.log == 0
        self._left_out = OffsetSet()  # All that were left out so far.
        self._waiting, self._applied = np.empty((2, 0), RECORD)
        """Those of them that the log has; and the newest ones of their keys that were not."""
        self._reached, self._uncertain = Offsets(), Offsets()
        """``_uncertain``: before these offsets, as a record that was applied cannot be read now."""

    def outcomes(
        self, into: TablePlan, left_out: OffsetSet, records: Sequence[Message], *, are_in_log: bool
    ) -> dict[PartitionOffset, str]:
        """Return which records are not to be inserted, and why.

        :param left_out: records that the table has not applied
        :param are_in_log: whether the log had them
        :raises TableflowError: a record that was applied has a key of a schema that is missing now
        """
        self._read(into.offsets, left_out)
        if not (keyed := list(records_of(records, self._framing))):
            return {}
        rows = described(keyed, self._index)
        mask = int(KEY_BITS) if self._key.is_decoded else (1 << 64) - 1
        # What another replay has applied came later; and so did a delete, applied or not.
        is_left_out = left_out.among(self._waiting["partition"], self._waiting["offset"])
        others = self._waiting[self._waiting["deletes"] | ~is_left_out]
        others = np.concatenate([self._applied, others])
        others_of_key = defaultdict[_Key, list[PartitionOffset]](list)
        for high, low, *place, _, _ in others[np.isin(others["high"], rows["high"])].tolist():
            others_of_key[high, low & mask].append((*place,))
        rows_of_key = self._rows(into, rows, mask)
        # Later records may have been deleted before they were read, with those deleted meanwhile.
        kept = beginning_offsets(self._endpoints, self._name) if are_in_log else {}
        kept = {p: max(offset, self._uncertain.get(p, 0)) for p, offset in kept.items()}
        outcomes = dict[PartitionOffset, str]()
        for high, low, partition, offset, *_ in rows.tolist():
            others, own = (of_key[high, low & mask] for of_key in (others_of_key, rows_of_key))
            comparable = [*others, *own] if self._is_first_log else others
            if any(other != partition for other, _ in (*others, *own)):
                outcomes[partition, offset] = UNCERTAIN  # Times of partitions do not compare.
            elif any(other > offset for _, other in comparable):
                outcomes[partition, offset] = SUPERSEDED
            elif offset < kept.get(partition, sys.maxsize) and not (self._is_first_log and own):
                # It may have been deleted by a record that the log does not have any more.
                outcomes[partition, offset] = UNCERTAIN
        return outcomes

    def _read(self, end: Offsets, left_out: OffsetSet) -> None:
        """Read what was left out, and what the table has applied, since the last time."""
        where = self._endpoints, self._name

        def note_damaged(partition: int, offsets: range, _: str) -> None:
            if any((partition, offset) not in left_out for offset in offsets):
                affected = end if self._key.is_decoded else [partition]
                self._uncertain |= dict.fromkeys(affected, offsets[-1] + 1)

        new = left_out - self._left_out
        self._left_out |= new
        if any(offset < self._reached.get(partition, 0) for partition, offset in new):
            self._reached = Offsets()  # After a rollback of the table.
        unread = readable_messages(*where, spans(new), lambda *_: None)
        read = (message for message in unread if place_of(message) in new)
        for _, _, waiting in described_records(read, self._framing, self._index):
            self._waiting = np.concatenate([self._waiting, waiting])
        if self._framing is not None:
            self._framing.unknown.clear()  # Those of records that were left out do not matter.
        by_partition = np.sort(self._waiting, order=["partition", "offset"])
        partitions, first = np.unique(by_partition["partition"], return_index=True)
        starts = dict(zip(partitions.tolist(), by_partition["offset"][first].tolist(), strict=True))
        if starts and self._key.is_decoded:  # which may have records in all partitions
            starts = beginning_offsets(*where) if len(end) > 1 else starts
        for partition in sorted(starts.keys() & end.keys()):
            start = max(starts[partition], self._reached.get(partition, 0))
            unread = readable_messages(*where, [(partition, start, end[partition])], note_damaged)
            read = (message for message in unread if place_of(message) not in left_out)
            for _, last, of_keys in described_records(read, self._framing, self._index):
                waits = np.isin(of_keys["high"], self._waiting["high"])
                self._applied = newest(self._applied, of_keys[waits])
                self._report(f"partition {partition}: compared the keys up to offset {last:,}")
            self._reached[partition] = end[partition]
        problem = "whether they are later records of the same keys is not known"
        check_schemas(self._name, self._framing, problem)

    def _rows(
        self, into: TablePlan, rows: NDArray[Any], mask: int
    ) -> Mapping[_Key, list[PartitionOffset]]:
        """Return partition and offset of the rows that the table has of some keys."""
        rows_of_key = defaultdict[_Key, list[PartitionOffset]](list)
        if into.head is None:
            return rows_of_key
        masked = np.stack([rows["high"], rows["low"] & np.uint64(mask)], axis=1)
        first = np.unique(masked, axis=0, return_index=True)[1]
        keys = in_order(rows["high"][first], rows["low"][first])
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
