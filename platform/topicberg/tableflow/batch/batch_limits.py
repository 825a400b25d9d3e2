"""How far the next batch of a topic reads: what the log has, and what batches before it allow."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from topicberg.endpoints import Endpoints
from topicberg.kafka import TopicLog
from topicberg.kafka.consumer import record_bytes
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.tableflow.batch.isolation import Isolation
from topicberg.tableflow.batch.sizing import SMALL_RECORDS, BatchSize
from topicberg.tableflow.values.offsets import Batch, plan_batch
from topicberg.topics import TopicSpec

MAX_RECORDS: dict[str, int] = {"append": 5_000_000, "upsert": 3_000_000}
"""The most records of a batch, by write mode: the keys of an upsert are held in memory."""
SAMPLED_RECORDS = 1_000
"""The size of larger batches is sampled before they are read."""
PARTS = 16
"""Parts of a batch that failed."""


class BatchLimits:
    """Where the batches of one topic end."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints) -> None:
        self._spec, self._endpoints = spec, endpoints
        self.size = BatchSize.of(MAX_RECORDS[spec.write_mode], spec.tableflow.commit_max_bytes)
        self._has_learnt = False
        self._ends: dict[int, int] = {}
        """Where batches of an attempt have to end, by partition: see :class:`BatchCutError`; and
        how far a search has read."""

    def begin_attempt(self) -> None:
        """Allow batches up to the end of the log again."""
        self._ends = {}

    def learn(self, learnt: str | None) -> None:
        """Start from what the engine before this one learnt; only the first call does.

        :param learnt: see :meth:`.BatchSize.dump`
        """
        if not self._has_learnt:
            self.size = BatchSize.of(self.size.most, self.size.max_bytes, learnt)
            self._has_learnt = True

    def end_at(self, ends: Mapping[int, int]) -> None:
        """Let the batches of this attempt end earlier; each is smaller than the one before."""
        self._ends |= {p: min(end, self._ends.get(p, end)) for p, end in ends.items()}

    def next_batch(
        self, offsets: Offsets, log: TopicLog, skip: set[PartitionOffset], search: Isolation | None
    ) -> tuple[Batch, float | None]:
        """Return the next batch, and the average size of its records in Kafka, if known.

        :param offsets: the first ones that the table lacks
        :param skip: records to leave out
        :param search: of the records at which a batch failed, of which the next part is read
        """
        beginning, cut = log.beginning, self._ends
        start = {p: offsets.get(p, beginning[p]) for p in log.end}
        latest = {p: min(end, max(start[p], cut.get(p, end))) for p, end in log.end.items()}
        if search is not None:
            first = {**start, **search.start}
            first = {p: min(first[p], latest[p]) for p in latest}
            ends = {p: min(e, latest[p]) for p, e in search.next_ends(SMALL_RECORDS, PARTS).items()}
            return plan_batch(first, beginning, {**first, **ends}, sys.maxsize, skip), None
        batch = plan_batch(offsets, beginning, latest, self.size.limit, skip)
        if batch.records <= SAMPLED_RECORDS:
            return batch, None
        sizes = record_bytes(self._endpoints, self._spec.name, batch.ranges)
        only_files = self._spec.changelog is None  # the keys of changes are read into this process
        fitting, size = self.size.fit(sizes, batch.records, is_compressed=only_files)
        return plan_batch(offsets, beginning, batch.end, fitting, skip), size
