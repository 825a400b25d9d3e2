"""What came later of a key than a record that was left out of an upsert table.

The log is read once from the first such record on; of each key, the newest record that the table
applied is kept. While the log has a record, it has the newest one of its key as well: retention
deletes from the beginning, and Kafka removes a tombstone only after all earlier records of its key.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from confluent_kafka import Message
from numpy.typing import NDArray
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.endpoints import Endpoints
from topicberg.iceberg.position_deletes import read_rows
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.kafka.topics import beginning_offsets
from topicberg.settings import Settings
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

SUPERSEDED, DELETED, UNCERTAIN = "superseded", "deleted later", "uncertain"
_Key = tuple[int, int]  # Its hash, without the partition if keys are decoded.


class LaterRecords:
    """Of one log and one table."""

    def __init__(
        self,
        spec: TopicSpec,
        table: Table,
        endpoints: Endpoints,
        config: Settings,
        log: int,
        first: Offsets,
        report: Callable[[str], None],
    ) -> None:
        """:param log: its number: of the first one, the table has no rows of others
        :param first: the first offset of each partition that was left out
        """
        self._name, self._endpoints, self._report = spec.name, endpoints, report
        self._key, decode, self._framing = key_of(spec, table, endpoints)
        hasher = KeyHasher.of_upserts(table, self._key, decode)
        self._index = index_of(config.state_dir, spec.name, hasher)
        self._is_first_log = log == 0
        self._keys, self._first, self._reached = np.empty(0, RECORD), first, Offsets()

    def read(self, end: Offsets, left_out: OffsetSet) -> None:
        """Read what the table has applied since the last time.

        :param left_out: records that it has not applied
        """
        beginning = beginning_offsets(self._endpoints, self._name)
        # A decoded key may have records in all partitions.
        starts = beginning if self._key.is_decoded and len(end) > 1 else self._first
        for p in sorted(starts.keys() & end.keys()):
            start = max(starts[p], beginning.get(p, 0), self._reached.get(p, 0))
            if start >= end[p]:
                continue
            where = self._endpoints, self._name, {p: (start, end[p])}
            for _, last, of_keys in described_records(*where, self._framing, self._index):
                applied = of_keys[~left_out.among(of_keys["partition"], of_keys["offset"])]
                self._keys = newest(self._keys, applied)
                self._report(f"partition {p}: compared the keys up to offset {last:,}")
            self._reached[p] = end[p]
        problem = "whether they are later records of the same keys is not known"
        check_schemas(self._name, self._framing, problem)

    def outcomes(
        self, table: Table, head: Snapshot | None, records: Sequence[Message], *, are_in_log: bool
    ) -> dict[PartitionOffset, str]:
        """Return which records are not to be inserted, and why.

        :param are_in_log: whether the log had them
        """
        if not (keyed := list(records_of(records, self._framing))):
            return {}
        rows = described(keyed, self._index)
        mask = int(KEY_BITS) if self._key.is_decoded else (1 << 64) - 1
        later = defaultdict[_Key, list[tuple[int, int, bool]]](list)
        equal = self._keys[np.isin(self._keys["high"], rows["high"])]
        for high, low, *place, deletes, _ in equal.tolist():
            later[high, low & mask].append((*place, deletes))
        rows_of_key = {} if head is None else self._rows(table, head, rows, mask)
        # Later records may have been deleted before they were read, with those deleted meanwhile.
        kept = beginning_offsets(self._endpoints, self._name) if are_in_log else {}
        outcomes = dict[PartitionOffset, str]()
        for high, low, partition, offset, *_ in rows.tolist():
            newer, own = later[high, low & mask], rows_of_key.get((high, low & mask), [])
            after = [deletes for _, other, deletes in newer if other > offset]
            if any(other != partition for other, *_ in (*newer, *own)):
                outcomes[partition, offset] = UNCERTAIN  # Times of partitions do not compare.
            elif after:
                outcomes[partition, offset] = DELETED if after[0] else SUPERSEDED
            elif self._is_first_log and any(other > offset for _, other in own):
                outcomes[partition, offset] = SUPERSEDED
            elif offset < kept.get(partition, sys.maxsize) and not (self._is_first_log and own):
                # It may have been deleted by a record that the log does not have any more.
                outcomes[partition, offset] = UNCERTAIN
        return outcomes

    def _rows(
        self, table: Table, head: Snapshot, rows: NDArray[Any], mask: int
    ) -> Mapping[_Key, list[tuple[int, int]]]:
        """Return partition and offset of the rows that the table has of some keys."""
        masked = np.stack([rows["high"], rows["low"] & np.uint64(mask)], axis=1)
        first = np.unique(masked, axis=0, return_index=True)[1]
        keys = in_order(rows["high"][first], rows["low"][first])
        rows_of_key = defaultdict[_Key, list[tuple[int, int]]](list)
        for of_file, wanted in self._index.keyed_rows(table, head, keys):
            columns = read_rows(table, of_file, [self._key.partition, self._key.offset]).columns
            for number, *place in zip(wanted, *(c.to_pylist() for c in columns), strict=True):
                rows_of_key[int(keys.high[number]), int(keys.low[number]) & mask].append((*place,))
        return rows_of_key
