"""The status of a topic in the engine: the status fields of the ``tableflow/v1`` API, in a file."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ValidationError

from topicberg.errors import TopicbergError
from topicberg.files import replace_file, topic_file
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.upsert.key_hashing import KeyState
from topicberg.tableflow.upsert.tombstones import Missed
from topicberg.tableflow.values.logs import EndedLog
from topicberg.tableflow.values.skips import Skip
from topicberg.topics.requests import Pause, paused_by

Phase = Literal["PENDING", "RUNNING", "FAILED"]
"""Of Confluent's API, where a suspended topic is FAILED, with ``suspended``."""
SHOWN_PHASES = (*get_args(Phase), "SUSPENDED", "PAUSED")

_LASTING = (
    "topic",
    "write_mode",
    "error_handling",
    "snapshot_id",
    "committed_at_ms",
    "end_offsets",
    "rows_skipped",
    "skip_requests",
    "logs",
    "missed_deletes",
    "data_files",
    "keys",
    "reader",
    "files_of_commit",
)
COUNTERS = (
    "records_read",
    "rows_committed",
    "records_skipped",
    "records_dead_lettered",
    "bytes_committed",
    "commits",
    "failures",
)  # Since the engine got the topic. Metrics and the check ``tableflow`` have the same names.
PENDING_SECONDS = 30.0  # A topic that fails for longer is FAILED; it is tried again all the same.
OBSERVED_SECONDS = 30.0  # An engine that has not read the ends of logs for longer ended, or hangs.
FLEET = 20_000  # Topics whose snapshots are kept in memory.
_OBSERVED = "tableflow/observed"


class FailingFormat(BaseModel):
    """A table format that could not be written; the other formats are."""

    format: Literal["ICEBERG", "DELTA"]
    error_message: str


class OpenTransaction(BaseModel):
    """A transaction that its producer did not end: consumers cannot read from its start on."""

    offset: int
    since_ms: int  # The time of its first record.


@dataclass(frozen=True)
class Unavailable:
    """A service that the engine needs and that does not answer."""

    message: str
    since_ms: int
    service: str | None = None  # Its name in the keys of alerts, if it has an alert of its own.


class TopicStatus(BaseModel):
    """Phase and counters of one topic; times are milliseconds, UTC.

    Counters are of the engine's process and of the topics that it had, unless they say otherwise.
    """

    topic: str
    engine: str | None = None  # name of the engine that has the topic
    phase: Phase = "PENDING"
    suspended: bool = False
    paused: Pause | None = None
    error_message: str | None = None
    failing_since_ms: int | None = None
    """Time of the first of the consecutive failures; None: the last turn succeeded."""
    missing: str | None = None  # Service that does not answer, without which nothing is committed.
    activity: str | None = None  # what a turn does that takes long
    failing_table_formats: list[FailingFormat] = []
    write_mode: str = "APPEND"
    error_handling: str | None = None  # SUSPEND, SKIP or LOG
    snapshot_id: int | None = None
    committed_at_ms: int | None = None
    end_offsets: Offsets = {}
    lag: Offsets = {}
    """Offsets not yet committed: records, ends of transactions, and gaps; empty: not known."""
    open_transactions: dict[int, OpenTransaction] = {}  # Records after them cannot be read yet.
    rows_committed: int = 0  # rows that commits added to the table
    rows_skipped: int = 0  # Records left out since the table was created, skipped or dead-lettered.
    rows_replayed: int = 0  # How many of them became rows since.
    records_read: int = 0  # records that committed batches read
    records_skipped: int = 0  # records left out without a dead letter
    records_dead_lettered: int = 0  # Records left out, and sent to the dead-letter topic.
    counting_since_ms: int | None = None  # When the counters began: the engine got the topic.
    logs: list[EndedLog] = []  # that the table was read from before
    skip_requests: list[Skip] = []  # records that users requested to leave out
    missed_deletes: Missed | None = None  # Deletes that the table may not have, of an upsert topic.
    unproven: Offsets = {}  # By partition: the table's last record, if the log no longer has it.
    keys: KeyState | None = None  # How keys with a schema are compared, of an upsert topic.
    reader: Literal["process", "spark"] | None = None
    """What read the newest batch: a process of the engine, or tasks of Spark."""
    bytes_committed: int = 0  # of the files that commits added
    files_of_commit: int = 0  # Data files that the newest batch added, one a partition or more.
    data_files: int = 0  # that the table has
    commits: int = 0  # batches committed
    failures: int = 0  # turns that did not commit

    @property
    def shown_phase(self) -> str:
        """The phase, PAUSED or SUSPENDED: the term of every command and check."""
        return "PAUSED" if self.paused else "SUSPENDED" if self.suspended else self.phase

    def without(self, service: Unavailable) -> TopicStatus:
        """Return what the status is while a service does not answer: nothing is committed. A turn
        that waits for it reports nothing, for minutes; an earlier report may be of another one."""
        if self.suspended or self.paused:
            return self
        return self.model_copy(
            update={
                "phase": "FAILED",
                "error_message": (not service.service and self.error_message) or service.message,
                "failing_since_ms": self.failing_since_ms or service.since_ms,
                "missing": service.service,
            }
        )

    def failing(
        self, error: Exception, since_ms: int | None = None, *, suspended: bool = False
    ) -> TopicStatus:
        """Return what the status is after a failure.

        :param since_ms: when the failure began; None: now
        :param suspended: whether the topic stops until the cause is fixed
        """
        now_ms = int(time.time() * 1000)
        since_ms = self.failing_since_ms or since_ms or now_ms
        has_failed = suspended or now_ms - since_ms >= PENDING_SECONDS * 1000
        return self.model_copy(
            update={
                "phase": "FAILED" if has_failed else "PENDING",
                "suspended": suspended,
                "error_message": str(error),
                "failing_since_ms": since_ms,
                "activity": None,
            }
        )

    def given_up(self) -> TopicStatus:
        """Return what stays true when the engine gives up the topic."""
        return TopicStatus(**{name: getattr(self, name) for name in _LASTING})

    def counters(self) -> dict[str, int]:
        """Return the counters that a worker that replaces this one starts from."""
        return {name: getattr(self, name) for name in (*COUNTERS, "counting_since_ms")}


def status_file(config: Settings, topic: str) -> Path:
    return _status_path(config.state_dir, topic)


def write_status(config: Settings, status: TopicStatus) -> None:
    """Replace the topic's status atomically, so that no reader sees half of it."""
    replace_file(status_file(config, status.topic), status.model_dump_json())


def read_status(config: Settings, topic: str) -> TopicStatus:
    """Return the last status that an engine wrote, or PENDING if there is none, or FAILED if it
    cannot be read; a pause is shown also if no engine runs."""
    path = status_file(config, topic)
    try:
        status = TopicStatus.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        status = TopicStatus(topic=topic)
    except OSError as error:  # the engine goes on, and may not be able to write it either
        hint = "remove it; run the commands and the engine as the same user"
        problem = TopicbergError(f"{path} cannot be read: {error.strerror}", hint=hint)
        status = TopicStatus(topic=topic, phase="FAILED", error_message=str(problem))
    status.paused = paused_by(config, topic, status.paused)
    return status


def reported_snapshot(config: Settings, topic: str) -> int | None:
    """Return the snapshot in the last status, if any; a file that did not change is not read."""
    path = _status_path(config.state_dir, topic)
    with suppress(OSError):
        state = path.stat()
        return _snapshot(path, state.st_ino, state.st_mtime_ns)
    return None


@lru_cache(maxsize=FLEET)
def _status_path(state_dir: Path, topic: str) -> Path:
    return topic_file(state_dir / "tableflow", topic)


@lru_cache(maxsize=FLEET)
def _snapshot(path: Path, _inode: int, _changed: int) -> int | None:
    """Return the snapshot in a status; each status is a new file."""
    with suppress(ValidationError):
        return TopicStatus.model_validate_json(path.read_bytes()).snapshot_id
    return None


def note_observation(config: Settings) -> None:
    """Note that the statuses have the ends of the logs as they are now."""
    path = config.state_dir / _OBSERVED
    with suppress(OSError):  # the disk may be full
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def observed_at(config: Settings) -> float | None:
    """Return when an engine of this machine read the ends of the logs last (seconds since 1970)."""
    try:
        return (config.state_dir / _OBSERVED).stat().st_mtime
    except OSError:
        return None


def give_up_status(config: Settings, status: TopicStatus) -> None:
    """Write that the engine of this status does not have the topic any more, unless another engine
    has written its own status already."""
    with suppress(OSError):  # the disk may be full
        if read_status(config, status.topic).engine == status.engine:
            write_status(config, status.given_up())


def remove_status(config: Settings, topic: str) -> None:
    """Remove the status of a topic that is not materialized any more."""
    status_file(config, topic).unlink(missing_ok=True)
