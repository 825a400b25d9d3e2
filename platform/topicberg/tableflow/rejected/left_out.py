"""What becomes of records that are left out, as the topic's error mode says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.kafka.offsets import PartitionOffset
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import BatchPlan
from topicberg.tableflow.rejected.deadletters import DeadLetters
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.topics import TopicSpec
from topicberg.wording import count

logger = logging.getLogger(__name__)


class LeftOut:
    """SUSPEND: the topic stops before the record; SKIP: it is counted; LOG: it is a dead letter."""

    def __init__(
        self, spec: TopicSpec, endpoints: Endpoints, config: Settings, check: Callable[[], None]
    ) -> None:
        """:param check: raises if the batch is not to be committed any more"""
        self._spec, self._check = spec, check
        self._dead_letters: DeadLetters | None = None
        if spec.tableflow.error_handling.mode == "LOG":
            self._dead_letters = DeadLetters(spec, endpoints, config)

    def malformed(self, plan: BatchPlan, table: Table, rejections: Rejections) -> None:
        """Treat malformed records.

        :raises TableflowError: the topic stops before the first of them (SUSPEND)
        """
        if rejections.first is None:
            return
        name, ((partition, offset), reason, _) = self._spec.name, rejections.first
        if rejections.is_final:
            raise TableflowError(
                f"topic {name}, partition {partition}, offset {offset}: {reason}",
                hint=f"fix the producer, or run `topicberg tableflow enable {name} "
                "--error-handling LOG` to send such records to a dead-letter topic (SKIP leaves "
                "them out)",
            )
        self._check()
        if self._dead_letters is not None:
            known = table, plan.topic_id, plan.batch.start
            self._dead_letters.write(*known, rejections.records)
        else:
            logger.warning(
                "topic %s: skipped %s; the first one, partition %d, offset %d: %s",
                *(name, count(rejections.count, "record"), partition, offset, reason),
            )

    def failing(self, plan: BatchPlan, table: Table) -> None:
        """Write dead letters of records that fail by themselves, and are left out now (LOG)."""
        if (letters := self._dead_letters) is None:
            return
        lost = sorted(plan.failing.keys() & plan.batch.skipped)
        if lost:
            records = [
                letters.record(place, skip.reason, is_readable=skip.end is None)
                for place in lost
                for skip in [plan.failing[place]]
            ]
            letters.write(table, plan.topic_id, plan.batch.start, records)

    def refused(
        self, plan: BatchPlan, table: Table, refused: Mapping[PartitionOffset, str]
    ) -> None:
        """Treat changes that cannot be applied like malformed records.

        :raises TableflowError: the topic stops before the first of them (SUSPEND)
        """
        if not refused:
            return
        self._check()
        name = self._spec.name
        (partition, offset), reason = min(refused.items())
        if self._spec.tableflow.error_handling.mode == "SUSPEND":
            raise TableflowError(
                f"topic {name}, partition {partition}, offset {offset}: {reason}",
                hint="set REPLICA IDENTITY FULL in the source and let Debezium read the row again "
                f"with an incremental snapshot; or run `topicberg tableflow skip {name} "
                f"{partition} {offset}`",
            )
        if self._dead_letters is not None:
            lost = [self._dead_letters.record(*each) for each in sorted(refused.items())]
            self._dead_letters.write(table, plan.topic_id, plan.batch.start, lost)
        else:
            first = f"partition {partition}, offset {offset}: {reason}"
            logger.warning(
                "topic %s: skipped %d changes; the first one: %s", name, len(refused), first
            )
