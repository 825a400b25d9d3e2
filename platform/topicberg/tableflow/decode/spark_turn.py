"""The session of Spark that a step of one topic uses."""

from __future__ import annotations

import uuid
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from topicberg.errors import TopicbergError
from topicberg.spark import check_spark
from topicberg.tableflow.decode.sessions import Sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
