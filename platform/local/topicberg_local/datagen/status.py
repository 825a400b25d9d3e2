"""The status of a generator: one small file per topic, which outlives the generator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ValidationError

from topicberg.errors import TopicbergError
from topicberg.files import replace_file, topic_file
from topicberg.processes import running
from topicberg.settings import Settings

State = Literal["starting", "running", "finished", "stopped", "failed", "killed"]
ALIVE: tuple[State, ...] = ("starting", "running")


class DatagenStatus(BaseModel):
    """``finished``: it sent ``count`` records; ``stopped``: by the user; ``killed``: otherwise."""

    topic: str
    kind: str
    rate: float
    count: int | None
    seed: int
    generation: int
    """How many generators of this topic ran before: each produces other records from one seed."""
    first_iteration: int
    """Number of its first record, counted over all generations."""
    state: State = "starting"
    sent: int = 0
    """Records of this run that the broker has acknowledged."""
    error: str | None = None
    pid: int
    pid_started: float
    """The process's creation time, s since the epoch: a later process may have the same pid."""
    started_at: float
    updated_at: float

    @property
    def seconds(self) -> float:
        return max(self.updated_at - self.started_at, 0.0)

    @property
    def achieved_rate(self) -> float:
        """Acknowledged records a second, since the start."""
        return self.sent / self.seconds if self.seconds else 0.0


def status_file(config: Settings, topic: str) -> Path:
    return topic_file(config.state_dir / "datagen", topic)


def write_status(config: Settings, status: DatagenStatus) -> None:
    """Write the status atomically, with the current time; raises TopicbergError: it cannot."""
    path = status_file(config, status.topic)
    status.updated_at = time.time()
    try:
        replace_file(path, status.model_dump_json())
    except OSError as error:
        raise TopicbergError(f"{path} cannot be written: {error.strerror}") from None


def read_status(config: Settings, topic: str) -> DatagenStatus | None:
    """Return the last status; None if no generator of this topic ever ran.

    A status that says "running" of a dead process is returned as killed.

    :raises TopicbergError: the file is damaged
    """
    path = status_file(config, topic)
    try:
        status = DatagenStatus.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise TopicbergError(f"{path} is damaged", hint="delete the file") from None
    if status.state in ALIVE and process_of(status) is None:
        status.state = "killed"
    return status


def all_statuses(config: Settings) -> list[DatagenStatus]:
    """Return the statuses of all topics that ever had a generator; raises TopicbergError."""
    statuses = (read_status(config, topic) for topic in known_topics(config))
    return [status for status in statuses if status]


def known_topics(config: Settings) -> list[str]:
    """Return the topics that ever had a generator."""
    return [path.stem for path in sorted((config.state_dir / "datagen").glob("*.json"))]


def process_of(status: DatagenStatus) -> psutil.Process | None:
    """Return the generator's process if it still runs, and never another one with its pid."""
    return running(status.pid, status.pid_started)
