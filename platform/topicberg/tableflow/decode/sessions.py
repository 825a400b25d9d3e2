"""Spark sessions that topics share, one topic at a time, and the batches that their tasks read.

A session costs memory and a second of CPU time, most of it in Spark, whose catalogs it has of its
own. So the engine has as many sessions as batches at once, not as many as topics.
"""

from __future__ import annotations

import logging
import math
import pickle
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from topicberg.errors import TopicbergError, UnreachableError, first_line
from topicberg.errors.meaning import explain, is_of_service
from topicberg.kafka.offsets import Ranges
from topicberg.shipping.workers import code_version, on_worker, ship
from topicberg.spark import check_spark, new_session
from topicberg.tableflow.batch.sizing import FILE_RECORDS
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.decode.processes import Task, WorkerProbe
from topicberg.tableflow.decode.reading import WrittenBatch, joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

Login = Callable[[], tuple[dict[str, str], float | None]]
"""Returns the configuration of a session, and when the login in it ends (monotonic)."""
IDLE_SECONDS = 1200.0
"""Spark drops a session that is not used for half an hour."""
AGAIN_SECONDS = 600.0
"""After so long, workers that cannot read batches are tried again."""
TASK_BYTES = 128 * 1024 * 1024
"""What one task reads, or :data:`.sizing.FILE_RECORDS`; of a partitioned table twice as much, as
each writes its files."""
MAX_TASKS = 256


class _Checked(NamedTuple):
    """What the workers of Spark were found to lack; None: nothing."""

    ends: int
    """How often Spark had ended by then."""
    until: float
    """When they are tried again (monotonic)."""
    lack: TopicbergError | None
    is_shipped: bool
    """Whether they have topicberg by what was sent to a session."""


class Sessions:
    """The sessions of one engine. Safe to use from several threads."""

    def __init__(self, url: str, login: Login, memory: int) -> None:
        """:param memory: bytes that a task may take for its records"""
        self._url, self._login, self._memory = url, login, memory
        self._lock = threading.Lock()
        self._free: list[tuple[SparkSession, float]] = []
        """With the time (monotonic) from which a session is not used any more."""
        self._renewals: dict[int, float] = {}
        """By id of a session: when the login in it ends."""
        self._lent: dict[int, int] = {}
        """By id of a session: how often Spark had ended before the session was lent."""
        self._ends = 0
        self._checked: _Checked | None = None
        self._with_code: set[int] = set()
        """Ids of the sessions whose workers were sent topicberg."""

    def take(self) -> SparkSession:
        """Return a session that is free, or a new one; UnreachableError: Spark does not answer."""
        with self._lock:
            now = time.monotonic()
            outdated = [session for session, until in self._free if until <= now]
            self._free = [free for free in self._free if free[1] > now]
            session = self._free.pop()[0] if self._free else None
        for old_session in outdated:
            self._stop(old_session)
        if session is None:
            conf, renew_at = self._login()
            session = new_session(self._url, conf)
            if renew_at is not None:
                self._renewals[id(session)] = renew_at
        with self._lock:
            self._lent[id(session)] = self._ends
        return session

    def check_workers(self, session: SparkSession) -> TopicbergError | None:
        """Return why tasks of Spark cannot read batches; None: they can.

        They are tried once, again after Spark ended, and now and then if they lack something.
        """
        with self._lock:
            ends, known = self._ends, self._checked
            has_code = id(session) in self._with_code
        is_known = known is not None and known.ends == ends and time.monotonic() < known.until
        if known is not None and is_known and (known.lack or has_code or not known.is_shipped):
            return known.lack
        lack, is_shipped = None, False
        try:
            is_shipped = check_workers(session, self._memory)
        except UnreachableError:
            raise
        except TopicbergError as error:
            logger.warning("%s", error)
            lack = error
        until = time.monotonic() + AGAIN_SECONDS if lack else math.inf
        with self._lock:
            self._checked = _Checked(ends, until, lack, is_shipped)
            if is_shipped:
                self._with_code.add(id(session))
        return lack

    def give_back(self, session: SparkSession) -> None:
        """Let other topics use a session, unless Spark may have ended meanwhile."""
        with self._lock:
            if is_good := self._lent.pop(id(session), None) == self._ends:
                until = time.monotonic() + IDLE_SECONDS
                self._free.append((session, min(until, self._renewals.get(id(session), until))))
        if not is_good:
            self._stop(session)

    def discard(self, session: SparkSession | None, *, others: bool = False) -> None:
        """Stop a session after a failure, and the free ones if Spark may have ended."""
        sessions = [] if session is None else [session]
        with self._lock:
            self._lent.pop(id(session), None)
            if others:
                sessions += [free_session for free_session, _ in self._free]
                self._free, self._ends = [], self._ends + 1
        for discarded in sessions:
            self._stop(discarded)

    def _stop(self, session: SparkSession) -> None:
        self._renewals.pop(id(session), None)
        self._with_code.discard(id(session))
        try:
            check_spark(self._url)  # Spark's client would retry for a minute
            session.stop()
        except Exception as error:  # if the server has ended, so has the session
            logger.debug("closing a Spark session: %s", error)


def check_workers(spark: SparkSession, memory: int) -> bool:
    """Check that tasks of Spark can read batches, by one that does nothing.

    :return: whether topicberg was sent to the workers: those of other sessions lack it as well
    :raises TopicbergError: they cannot read batches, or Spark does not answer
    """
    if not _lack(spark, memory):
        return False
    from pyspark.errors import PySparkException

    try:
        ship(spark)
        lack = _lack(spark, memory)
    except PySparkException as error:
        if is_of_service(error):
            raise explain("Spark", error) from error
        lack = f"they have no topicberg, and Spark does not take it: {first_line(error)[:300]}"
    if lack:
        raise TopicbergError(
            f"the workers of Spark cannot read batches: {lack}",
            hint="see docs/production.md, Spark, for what workers need",
        )
    return True


def _lack(spark: SparkSession, memory: int) -> str:
    from pyspark.errors import PySparkException

    probe = on_worker(WorkerProbe(code_version(), pa.__version__, memory))
    try:
        done = spark.range(0, 1, 1, 1).mapInArrow(probe, "reason string").toArrow()
    except PySparkException as error:
        if is_of_service(error):
            raise explain("Spark", error) from error
        return _reason_of_worker(str(error))
    return str(done.column(0)[0].as_py())


def _reason_of_worker(text: str) -> str:
    """Return what a worker's Python said last, without the stack."""
    of_python = re.findall(r"^\s*((?:[\w.]+Error|[\w.]+Exception): .+)$", text, re.MULTILINE)
    lines = of_python or text.strip().splitlines() or ["it says no reason"]
    return str(lines[0])[:300]


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
        """Return what Spark's workers lack to read batches; discard all sessions if it fails."""
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
        """Discard the session of this step, and the free ones if Spark may have ended."""
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
    """Do :func:`ingest` by tasks of Spark, each in so many bytes, or raise PySparkException."""
    numbers = spark.range(0, len(parts), 1, len(parts))
    done = numbers.mapInArrow(on_worker(Task(plans, parts, memory)), "outcome binary").toArrow()
    return joined(plans, [pickle.loads(text) for text in done.column(0).to_pylist()])  # noqa: S301  our tasks'


def split(ranges: Ranges, size: float | None, tasks: int = 1) -> list[Ranges]:
    """Return parts of about the same number of offsets; so many usual ``tasks`` are one."""
    total = sum(end - start for start, end in ranges.values())
    wanted = max(total / FILE_RECORDS, total * (size or 0) / TASK_BYTES) / tasks
    count = max(1, min(MAX_TASKS, round(wanted)))
    most = -(-total // count)
    parts, read = defaultdict[int, dict[int, tuple[int, int]]](dict), 0
    for partition, (start, end) in ranges.items():
        while start < end:
            till = min(end, start + most - read % most)
            parts[read // most][partition] = start, till
            read, start = read + till - start, till
    return [*parts.values()] or [{}]
