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
        resume = f"run `topicberg tableflow resume {self.topic}` to continue where the table ends"
        return TopicbergError(f"topic {self.topic} is {self}", hint=resume)


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
    _keep_commands(config, topic, enabled=False, deleted=True)


def topic_created(config: Settings, topic: str) -> None:
    """Let the topic spec decide again whether a topic that was deleted is enabled; keep what
    commands set."""
    request = read_request(config, topic)
    if request and request.deleted and (request.command or request.paused):
        _keep_commands(config, topic, enabled=None)
    elif request and request.deleted:
        _file(config, topic).unlink(missing_ok=True)


def _keep_commands(config: Settings, topic: str, **changes: Any) -> None:
    before = _readable(config, topic)
    kept = before.model_dump(include={"command", "paused"}) if before else {}
    write_request(config, StoredRequest(topic=topic, **kept, **changes))


def pause(config: Settings, topic: str, by: str) -> Pause:
    """Let nothing read the topic into its table until :func:`end_pause`; return since when."""
    request = read_request(config, topic) or StoredRequest(topic=topic, enabled=None)
    if request.paused is None:
        request.paused = Pause(topic=topic, at=datetime.now(UTC), by=by)
        write_request(config, request)
    return request.paused


def end_pause(config: Settings, topic: str) -> Pause | None:
    """Let a paused topic be read again; return the pause, or None if it was not paused."""
    if (request := read_request(config, topic)) is None or request.paused is None:
        return None
    write_request(config, request.model_copy(update={"paused": None}))
    return request.paused


def require_unpaused(config: Settings, topic: str) -> None:
    """:raises TopicbergError: a user paused the topic"""
    if (paused := paused_by(config, topic)) is not None:
        raise paused.error


def read_request(config: Settings, topic: str) -> StoredRequest | None:
    """Return the last request, or None if there is none; raise TopicbergError if the file is
    damaged, or cannot be read."""
    path = _file(config, topic)
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


def read_requests(config: Settings) -> tuple[dict[str, StoredRequest], dict[str, str]]:
    """Return every request by its topic, and the errors of those that cannot be read."""
    by_topic: dict[str, StoredRequest] = {}
    wrong: dict[str, str] = {}
    for topic in requested_topics(config):
        try:
            if (request := read_request(config, topic)) is not None:
                by_topic[request.topic] = request
        except TopicbergError as error:
            wrong[topic] = str(error)
    return by_topic, wrong


def paused_by(config: Settings, topic: str) -> Pause | None:
    """Return since when a topic is paused; None: it is not, or the request is damaged."""
    request = _readable(config, topic)
    return request.paused if request else None


def _readable(config: Settings, topic: str) -> StoredRequest | None:
    with suppress(TopicbergError):
        return read_request(config, topic)
    return None


def requested_topics(config: Settings) -> list[str]:
    """Return the topics that have a request."""
    return [path.stem for path in sorted(requests_folder(config).glob("[!.]*.json"))]


def requests_folder(config: Settings) -> Path:
    """Return the folder of the requests' files."""
    return config.state_dir / "tableflow" / "requests"


def _file(config: Settings, topic: str) -> Path:
    return topic_file(requests_folder(config), topic)


def write_request(config: Settings, request: StoredRequest) -> None:
    replace_file(_file(config, request.topic), request.model_dump_json())
