"""Spark sessions that topics share: a session is used by one topic at a time.

A session costs memory and a second of CPU time, most of it in Spark, whose catalogs it has of its
own. So the engine has as many sessions as batches at once, not as many as topics.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from topicberg.errors import TopicbergError, UnreachableError, first_line
from topicberg.errors.meaning import explain, is_of_service
from topicberg.shipping.workers import code_version, on_worker, ship
from topicberg.spark import check_spark, new_session
from topicberg.tableflow.decode.tasks import WorkerProbe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

Login = Callable[[], tuple[dict[str, str], float | None]]
"""Returns the configuration of a session, and when the login in it ends (monotonic)."""
IDLE_SECONDS = 1200.0
"""Spark drops a session that is not used for half an hour."""
AGAIN_SECONDS = 600.0
"""After so long, workers that cannot read batches are tried again."""


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
        """:param url: of Spark Connect
        :param memory: bytes that a task may take for its records
        """
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
        """Return a session that is free, or a new one.

        :raises UnreachableError: Spark does not answer
        """
        with self._lock:
            now = time.monotonic()
            outdated = [old_session for old_session, until in self._free if until <= now]
            self._free = [
                (free_session, until) for free_session, until in self._free if until > now
            ]
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
        lack: TopicbergError | None = None
        is_shipped = False
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
        """Stop a session that was taken, after a failure.

        :param others: Spark may have ended, so the free sessions are discarded as well
        """
        sessions = [] if session is None else [session]
        with self._lock:
            self._lent.pop(id(session), None)
            if others:
                sessions += [free_session for free_session, _ in self._free]
                self._free = []
                self._ends += 1
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

    If the workers lack topicberg, it is sent to them.

    :param memory: bytes that a task may take for its records
    :return: whether it was sent: the workers of other sessions lack it as well
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
    (reason,) = done.column(0).to_pylist()
    return str(reason)


def _reason_of_worker(text: str) -> str:
    """Return what a worker's Python said last, without the stack."""
    of_python = re.findall(r"^\s*((?:[\w.]+Error|[\w.]+Exception): .+)$", text, re.MULTILINE)
    lines = of_python or text.strip().splitlines() or ["it says no reason"]
    return str(lines[0])[:300]
