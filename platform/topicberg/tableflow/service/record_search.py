"""The search of one topic for the records at which its batches fail.

:mod:`.batch.isolation` says which part is read next; here is what follows from one
that failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from topicberg.errors import TopicbergError
from topicberg.iceberg.files import discard
from topicberg.kafka.consumer import DamagedRecordsError
from topicberg.kafka.offsets import PartitionOffset, Ranges
from topicberg.tableflow.batch.batch_plan import BatchPlan
from topicberg.tableflow.batch.isolation import Isolation
from topicberg.tableflow.decode.processes import Processes
from topicberg.tableflow.decode.reading import WrittenBatch
from topicberg.tableflow.values import skips
from topicberg.tableflow.values.memory import ExhaustedError
from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

MOST_SEARCHES = 3
"""Searches of an attempt: then the topic gives way to others, and continues."""
CONTROLS = 3
"""Other records that fail as well before it is said that all do."""

Read = Callable[[BatchPlan, Ranges], WrittenBatch]


class RecordSearch:
    """One search after the other."""

    def __init__(self, spec: TopicSpec, processes: Processes) -> None:
        self._spec, self._processes = spec, processes
        self.isolation: Isolation | None = None
        """One that found no record stays until the batch is committed."""
        self._begun = 0
        """Searches of this attempt."""

    def begin_attempt(self) -> None:
        self.isolation, self._begun = None, 0

    @property
    def active(self) -> Isolation | None:
        """The search while it continues."""
        search = self.isolation
        return search if search is not None and search.rest else None

    def failed(
        self, plan: BatchPlan, reason: str, read: Read, *, is_certain: bool
    ) -> Isolation | None:
        """Begin, or go on, to search for the records at which a batch fails.

        :param read: reads other records, to see whether any can be decoded
        :param is_certain: whether it fails at that record at each attempt
        :returns: the search, if it has found a record
        :raises TopicbergError: processes fail whatever they read
        """
        short_reason = reason.removeprefix(f"topic {self._spec.name}: ")
        search = self.active
        if search is None:
            self._begun += 1
            if self._begun > MOST_SEARCHES:  # others have a turn before it continues
                raise TopicbergError(
                    reason, hint="records that fail are still searched; the engine continues"
                )
            of_spark = plan.reader == "spark"
            search = Isolation(plan.batch.start, plan.batch.end, short_reason, of_spark=of_spark)
            self.isolation = search
        if plan.reader == "process":
            search.fail(plan.batch.ranges, is_certain=is_certain)
        if (culprit := search.culprit) is None:
            return None
        self._prove(plan, search, culprit, read)  # else no record is to blame
        logger.warning(
            "topic %s, partition %d, offset %d: the record fails by itself: %s",
            *(self._spec.name, *culprit, short_reason),
        )
        skips.note_failing(plan.table, culprit, short_reason)
        search.blame(culprit)
        if self._spec.tableflow.error_handling.mode == "SUSPEND":  # it stops here anyway
            search.until = search.start
        return search

    def _prove(
        self, plan: BatchPlan, search: Isolation, culprit: PartitionOffset, read: Read
    ) -> None:
        """Check that processes can decode other records than one that fails by itself.

        :raises TopicbergError: they fail whatever they read
        """
        self._processes.check()
        failures = 0
        for partition, offset in search.controls(culprit) if not search.is_proven else ():
            try:
                written = read(plan, {partition: (offset, offset + 1)})
            except (ExhaustedError, DamagedRecordsError):
                failures += 1
                continue
            discard(plan.table.io, written.files)
            search.is_proven = True
            return
        if failures >= CONTROLS:
            raise TopicbergError(
                f"topic {self._spec.name}: the processes of the engine can decode none of its "
                f"records: tried {failures + 1} of them",
                hint="give them more memory, see TOPICBERG_ENGINE_PROCESS_MEMORY_MB; the engine "
                "tries again",
            )
