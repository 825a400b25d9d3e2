"""The session of Spark that a step of one topic uses, and the batches that its tasks read."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from topicberg.errors import TopicbergError
from topicberg.kafka.offsets import Ranges
from topicberg.shipping.workers import on_worker
from topicberg.spark import check_spark
from topicberg.tableflow.batch.sizing import FILE_RECORDS
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.decode.reading import WrittenBatch, joined
from topicberg.tableflow.decode.sessions import Sessions
from topicberg.tableflow.decode.tasks import Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 128 * 1024 * 1024
"""What one task reads, or :data:`.sizing.FILE_RECORDS`; of a partitioned table twice as much, as
each writes its files."""
MAX_TASKS = 256


class SparkTurn:
    """It is taken when it is needed, and given back at the end of the step."""

    def __init__(self, sessions: Sessions, url: str) -> None:
        """:param url: of Spark Connect"""
        self._sessions, self._url = sessions, url
        self._session: SparkSession | None = None
        self._tag = f"topicberg-{uuid.uuid4().hex}"
        """Of this topic's jobs in Spark."""

    def session(self) -> SparkSession:
        if self._session is None:
            self._session = self._sessions.take()
            self._session.addTag(self._tag)
        return self._session

    def workers_lack(self) -> TopicbergError | None:
        """Return what Spark's workers lack to read batches.

        :raises TopicbergError: Spark does not answer; all sessions are discarded
        """
        try:
            return self._sessions.check_workers(self.session())
        except TopicbergError:
            self.discard(others=True)
            raise

    def give_back(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.clearTags()
            self._sessions.give_back(session)

    def discard(self, *, others: bool) -> None:
        """Discard the session of this step.

        :param others: Spark may have ended, so the free sessions are discarded as well
        """
        session, self._session = self._session, None
        self._sessions.discard(session, others=others)

    def interrupt(self) -> None:
        """End the jobs of the running step; may be called by another thread."""
        if (session := self._session) is not None:
            Thread(target=self._interrupt, args=(session,), daemon=True).start()

    def _interrupt(self, session: SparkSession) -> None:
        with suppress(Exception):  # the jobs end by themselves
            check_spark(self._url)  # Spark's client would retry for a minute
            session.interruptTag(self._tag)


def ingest_by_spark(
    spark: SparkSession, plans: Sequence[ReadPlan], parts: Sequence[Ranges], memory: int
) -> list[WrittenBatch]:
    """Do :func:`ingest` by tasks of Spark.

    :param memory: bytes that a task may take for its records
    :raises PySparkException: a task ended without an outcome
    """
    numbers = spark.range(0, len(parts), 1, len(parts))
    done = numbers.mapInArrow(on_worker(Task(plans, parts, memory)), "outcome binary").toArrow()
    outcomes = [pickle.loads(text) for text in done.column(0).to_pylist()]  # noqa: S301  our tasks'
    return joined(plans, outcomes)


def split(ranges: Ranges, size: float | None, tasks: int = 1) -> list[Ranges]:
    """Return parts of about the same number of offsets.

    :param tasks: so many usual tasks are one
    """
    total = sum(end - start for start, end in ranges.values())
    wanted = max(total / FILE_RECORDS, total * (size or 0) / TASK_BYTES) / tasks
    count = max(1, min(MAX_TASKS, round(wanted)))
    most = -(-total // count)
    parts: list[dict[int, tuple[int, int]]] = [{}]
    room = most
    for partition, (start, end) in ranges.items():
        while start < end:
            if not room:
                parts.append({})
                room = most
            till = min(end, start + room)
            parts[-1][partition] = start, till
            room -= till - start
            start = till
    return list(parts)
