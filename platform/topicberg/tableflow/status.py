"""What the engine says of a topic: the status fields of the ``tableflow/v1`` API, in a file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from topicberg.settings import Settings
from topicberg.tableflow.offsets import Offsets

Phase = Literal["PENDING", "RUNNING", "FAILED"]


class TopicStatus(BaseModel):
    """Phase and counters of one topic since its engine started; times are milliseconds, UTC."""

    topic: str
    phase: Phase = "PENDING"
    suspended: bool = False
    error_message: str | None = None
    write_mode: str = "APPEND"
    snapshot_id: int | None = None
    committed_at_ms: int | None = None
    end_offsets: Offsets = Field(default_factory=dict)
    lag: Offsets = Field(default_factory=dict, description="records not yet committed")
    rows_committed: int = 0
    commits: int = 0


def status_file(config: Settings, topic: str) -> Path:
    return config.state_dir / "tableflow" / f"{topic}.json"


def write_status(config: Settings, status: TopicStatus) -> None:
    """Replace the topic's status in one step, so that a reader never sees half of it."""
    path = status_file(config, status.topic)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{status.topic}.")
    with os.fdopen(handle, "w") as stream:
        stream.write(status.model_dump_json())
    Path(temporary).replace(path)


def read_status(config: Settings, topic: str) -> TopicStatus:
    """The last status that an engine wrote; PENDING if none ever did."""
    try:
        return TopicStatus.model_validate_json(status_file(config, topic).read_text())
    except (FileNotFoundError, ValidationError):
        return TopicStatus(topic=topic)
