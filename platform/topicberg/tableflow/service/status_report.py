"""The status of one topic, as its turns and the polls of its log change it, and its file."""

from __future__ import annotations

import logging
import math
import threading
import time

from topicberg.errors import TopicbergError
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import Commit
from topicberg.tableflow.service.status import (
    OpenTransaction,
    TopicStatus,
    Unavailable,
    give_up_status,
    read_status,
    write_status,
)
from topicberg.topics import TopicSpec
from topicberg.topics.requests import Pause

logger = logging.getLogger(__name__)

_STATE = (
    "end_offsets",
    "rows_skipped",
    "rows_replayed",
    "skip_requests",
    "missed_deletes",
    "keys",
    "unproven",
    "logs",
)
"""Fields of a commit that the status repeats, and that may change without new records."""
_OF_TABLE = (*_STATE, "snapshot_id", "data_files")


class StatusReport:
    """Writes the status when it changes, until the topic is stopped. Safe to use from threads."""

    def __init__(
        self,
        spec: TopicSpec,
        config: Settings,
        before: StatusReport | None = None,
        engine: str | None = None,
    ) -> None:
        """:param before: the report that this one replaces, whose counters continue
        :param engine: the name of this engine
        """
        self._config, self.lock = config, threading.RLock()
        """Whoever derives a change from the status holds it until the change is reported."""
        self.is_stopped = False  # Whether the topic is not ingested any more: no status is written.
        self.status = TopicStatus(
            topic=spec.name,
            committed_at_ms=read_status(config, spec.name).committed_at_ms,
            engine=engine,
            write_mode=spec.write_mode.upper(),
            error_handling=spec.tableflow.error_handling.mode,
            counting_since_ms=int(time.time() * 1000),
        )
        self._next: StatusReport | None = None
        """The report that replaced this one, which counts what a step that still runs does."""
        self._unavailable: Unavailable | None = None
        self._unread_since_ms: int | None = None
        self._unreadable: Unavailable | None = None
        """Why the ends of the log cannot be read while a turn waits for records of it."""
        self._written = self.status
        self._written_at = -math.inf
        if before is not None:
            with before.lock:
                self.status = self.status.model_copy(update=before.status.counters())
                before.is_stopped, before._next = True, self

    @property
    def shown(self) -> TopicStatus:
        """The status, as users see it."""
        missing = self._unavailable or self._unreadable
        return self.status if missing is None else self.status.without(missing)

    def miss(self, service: Unavailable | None, spark: Unavailable | None) -> None:
        """Show that a service, or Spark, which a large batch may need, does not answer."""
        with self.lock:
            before, status = self._unavailable, self.status
            self._unavailable = service or (spark if any(status.lag.values()) else None)
            is_back = before is not None and self._unavailable is None
            if is_back and status.failing_since_ms and not status.suspended:
                # What failed meanwhile is tried again: only a failure that stays is another fault.
                changes = {"phase": "PENDING", "failing_since_ms": int(time.time() * 1000)}
                self.status = status.model_copy(update=changes)
            self._write()

    def give_up(self) -> None:
        """Write that this engine does not have the topic any more, unless another one took it."""
        with self.lock:
            self.is_stopped = True
            give_up_status(self._config, self.status)

    def note_unreadable(self, error: TopicbergError) -> None:
        """Show, from the second poll that fails on, why the turn that runs gets no records.

        It waits for a minute before it fails, and then says no more than that none came.
        """
        with self.lock:
            if self._unread_since_ms is None:
                self._unread_since_ms = int(time.time() * 1000)
                return
            self._unreadable = Unavailable(str(error), self._unread_since_ms)
            self._write()

    def note_readable(self) -> None:
        """Note that the ends of the log were read; the next report shows it."""
        with self.lock:
            self._unread_since_ms = self._unreadable = None

    def note_log(
        self, lag: Offsets, transactions: dict[int, OpenTransaction], write_seconds: float
    ) -> None:
        """Report what the log has beyond the table; a changed lag only after ``write_seconds``."""
        with self.lock:
            if (lag, transactions) != (self.status.lag, self.status.open_transactions):
                changes = {"lag": lag, "open_transactions": transactions}
                self.status = self.status.model_copy(update=changes)
            is_due = transactions or time.monotonic() - self._written_at >= write_seconds
            if is_due and self.status is not self._written:
                self._write()

    def differs(self, commit: Commit) -> bool:
        """Return whether the table differs from the status although there are no new records."""
        return any(getattr(commit, name) != getattr(self.status, name) for name in _STATE)

    def note_commit(self, commit: Commit, lag: Offsets) -> None:
        """Report a turn that succeeded, and the lag beyond its commit."""
        now_ms = int(time.time() * 1000)
        with self.lock:
            self._count(
                rows_committed=commit.rows,
                records_read=commit.records_read,
                records_skipped=commit.records_skipped,
                records_dead_lettered=commit.records_dead_lettered,
                bytes_committed=commit.bytes,
                commits=bool(commit.records),
            )
            status = self.status
            self.update(
                phase="RUNNING",
                suspended=False,
                error_message=None,
                failing_since_ms=None,
                activity=None,
                lag=lag,
                reader=commit.reader or status.reader,
                files_of_commit=commit.files if commit.records else status.files_of_commit,
                committed_at_ms=now_ms if commit.records else status.committed_at_ms,
                **{name: getattr(commit, name) for name in _OF_TABLE},
            )

    def note_pause(self, pause: Pause) -> None:
        """Report that the topic is paused; what its table has stays as it was reported last."""
        with self.lock:
            known = self.status
            if not known.end_offsets:  # of an earlier process
                known = read_status(self._config, known.topic)
            state = {name: getattr(known, name) for name in _OF_TABLE}
            self.update(paused=pause, activity=None, **state)

    def note_failure(
        self, error: Exception, *, suspended: bool, began_ms: int | None = None
    ) -> None:
        """Report a turn that failed.

        :param suspended: whether the topic stops until the cause is fixed
        :param began_ms: when the failure began; None: now
        """
        with self.lock:
            self.status = self.status.failing(error, began_ms, suspended=suspended)
            self._count(failures=1)
            self._write()

    def _count(self, **counts: int) -> None:
        with self.lock:
            sums = {name: getattr(self.status, name) + number for name, number in counts.items()}
            self.status = self.status.model_copy(update=sums)
            if self._next is not None:
                self._next._count(**counts)

    def update(self, **changes: object) -> None:
        """Change fields of the status, and write it."""
        with self.lock:
            self.status = self.status.model_copy(update=changes)
            self._write()

    def _write(self) -> None:
        shown = self.shown
        if self.is_stopped or shown == self._written:
            return
        try:
            write_status(self._config, shown)
        except OSError as error:  # e.g. a full disk; the next report writes it
            logger.warning("topic %s: the status cannot be written: %s", shown.topic, error)
        else:
            self._written, self._written_at = shown, time.monotonic()
