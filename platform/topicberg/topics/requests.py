"""Requests to Tableflow that override a topic's spec: one file for each topic.

:mod:`topicberg.tableflow.service.control` applies the requests to the specs.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from topicberg.errors import TopicbergError
from topicberg.files import replace_file, topic_file
from topicberg.settings import Settings
from topicberg.topics.discovery import FoundTopic


class Pause(BaseModel):
    """That a user paused a topic; ``by``: user and host."""

    topic: str
    at: datetime
    by: str

    def __str__(self) -> str:
        return f"paused since {self.at:%Y-%m-%d %H:%M:%S} UTC by {self.by}"

    @property
    def error(self) -> TopicbergError:
        """The error of what would read the topic."""
        return TopicbergError(
            f"topic {self.topic} is {self}",
            hint=f"run `topicberg tableflow resume {self.topic}` to continue where the table ends",
        )


class StoredRequest(BaseModel):
    """A request; ``tableflow``: settings that replace those of the spec; ``command``: those chosen
    with `topicberg tableflow enable`, which precede both, also when a deployment enables the topic
    again, or deletes and creates it."""

    topic: str
    enabled: bool | None
    """None: the spec decides."""
    write_mode: Literal["append", "upsert"] | None = None
    tableflow: dict[str, Any] = Field(default_factory=dict)
    command: dict[str, Any] = Field(default_factory=dict)
    found: FoundTopic | None = None
    """Of a topic without a spec: what Kafka and the registry had of it when its table was new."""
    resumed_at: float = 0.0
    """Seconds since 1970."""
    dropped_at: float = 0.0
    """When `topicberg tableflow disable --drop-table` deleted the table, in the same seconds."""
    deleted: bool = False
    """Disabled because the topic was deleted, until it is created again."""
    paused: Pause | None = None
    """Until `topicberg tableflow resume`, whatever enables, disables or deletes the topic."""


def topic_deleted(config: Settings, topic: str) -> None:
    """Stop materializing a deleted topic: the engine would create it from its spec again."""
    before = last_request(config, topic)
    request = StoredRequest(
        topic=topic, enabled=False, deleted=True, command=before.command, paused=before.paused
    )
    write_request(config, request)


def topic_created(config: Settings, topic: str) -> None:
    """Let the topic spec decide again whether a topic that was deleted is enabled; keep what
    commands set."""
    request = read_request(config, topic)
    if request is not None and request.deleted:
        change_request(config, topic, enabled=None, deleted=False)


def change_request(config: Settings, topic: str, **changes: Any) -> None:
    """Change fields of the last request; without one, the spec decides about everything else."""
    request = read_request(config, topic) or StoredRequest(topic=topic, enabled=None)
    write_request(config, request.model_copy(update=changes))


def pause(config: Settings, topic: str, by: str) -> Pause:
    """Let nothing read the topic into its table until :func:`end_pause`; return since when."""
    if (paused := paused_by(config, topic)) is None:
        paused = Pause(topic=topic, at=datetime.now(UTC), by=by)
        change_request(config, topic, paused=paused)
    return paused


def end_pause(config: Settings, topic: str) -> Pause | None:
    """Let a paused topic be read again; return the pause, or None if it was not paused."""
    if (paused := paused_by(config, topic)) is not None:
        change_request(config, topic, paused=None)
    return paused


def require_unpaused(config: Settings, topic: str) -> None:
    """:raises TopicbergError: a user paused the topic, or the request is damaged"""
    request = read_request(config, topic)
    if request is not None and request.paused is not None:
        raise request.paused.error


def read_request(config: Settings, topic: str) -> StoredRequest | None:
    """Return the last request, or None if there is none; raise TopicbergError if the file is
    damaged, or cannot be read."""
    path = topic_file(requests_folder(config), topic)
    try:
        return StoredRequest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise TopicbergError(
            f"{path} is damaged", hint="remove it, so that the topic spec decides"
        ) from error
    except OSError as error:
        raise TopicbergError(
            f"{path} cannot be read: {error.strerror}",
            hint="run the commands and the engine as the same user, or remove the file",
        ) from error


def last_request(config: Settings, topic: str) -> StoredRequest:
    """Return the last request; a new one, by which the spec decides, if there is none or it cannot
    be read: such a one is replaced."""
    with suppress(TopicbergError):
        return read_request(config, topic) or StoredRequest(topic=topic, enabled=None)
    return StoredRequest(topic=topic, enabled=None)


def read_requests(config: Settings) -> tuple[dict[str, StoredRequest], dict[str, str]]:
    """Return every request by its topic, and the errors of those that cannot be read."""
    by_topic: dict[str, StoredRequest] = {}
    wrong: dict[str, str] = {}
    for path in sorted(requests_folder(config).glob("[!.]*.json")):
        try:
            if (request := read_request(config, path.stem)) is not None:
                by_topic[request.topic] = request
        except TopicbergError as error:
            wrong[path.stem] = str(error)
    return by_topic, wrong


def paused_by(config: Settings, topic: str, unreadable: Pause | None = None) -> Pause | None:
    """Return since when a topic is paused, or None.

    :param unreadable: what is returned if the request is damaged: what was known before
    """
    try:
        request = read_request(config, topic)
    except TopicbergError:
        return unreadable
    return request.paused if request is not None else None


def requests_folder(config: Settings) -> Path:
    """Return the folder of the requests' files."""
    return config.state_dir / "tableflow" / "requests"


def write_request(config: Settings, request: StoredRequest) -> None:
    replace_file(topic_file(requests_folder(config), request.topic), request.model_dump_json())
