"""Enable, disable, pause and resume Tableflow for a topic: one file of requests for each topic.

The engine's service reads these files every few seconds. Without a file, the topic spec decides
(``tableflow.enabled``). A topic without a spec can be enabled too: what it is follows from what
Kafka and the registry had of it (:func:`topicberg.topics.discovery.found_document`).
"""

from __future__ import annotations

import time
from collections.abc import Container
from contextlib import suppress
from typing import Any, Literal

from pydantic import ValidationError

from topicberg.errors import SpecError
from topicberg.files import replace_file, topic_file
from topicberg.settings import Settings
from topicberg.topics import TopicSpec, check_topics, deadletters
from topicberg.topics.discovery import FoundTopic, found_document
from topicberg.topics.kept import Files, spec_files
from topicberg.topics.requests import (
    StoredRequest,
    change_request,
    last_request,
    read_request,
    read_requests,
    requests_folder,
    write_request,
)
from topicberg.wording import suggestion

PIPELINE = "tableflow"  # Group of topics that have no spec.
_AWAITED = "tableflow/awaited"


def enable(
    config: Settings,
    topic: str,
    tableflow: dict[str, Any] | None = None,
    write_mode: Literal["append", "upsert"] | None = None,
    *,
    discovered: FoundTopic | None = None,
    command: bool = False,
    as_in_spec: bool = False,
) -> TopicSpec:
    """Materialize the topic from now on.

    :param tableflow: fields of ``tableflow:`` in a topic spec that replace the spec's
    :param write_mode: of a topic without a spec; default: what Kafka and the registry say
    :param discovered: what they have of a topic without a spec; None: as when it was enabled before
    :param command: the settings come from a command: they stay, with those of earlier commands
    :param as_in_spec: the settings of earlier commands and deployments end
    :returns: the spec that the engine uses from now on
    :raises SpecError: a setting is invalid
    """
    request, given = last_request(config, topic), dict(tableflow or {})
    if discovered is not None:
        request.found, request.write_mode = discovered, None
    request.write_mode = write_mode or request.write_mode
    request.enabled, request.deleted = True, False
    if as_in_spec:
        request.tableflow, request.command = {}, {}
    if command:
        request.command = _merged(request.command, given)
    else:
        request.tableflow = given
    spec = _applied(request, _specs(config, topic).get(topic))
    write_request(config, request)
    return spec


def table_dropped(config: Settings, topic: str) -> None:
    """Let a disabled topic begin again with what Kafka and the registry have then."""
    change_request(config, topic, found=None, write_mode=None, dropped_at=time.time())


def disable(config: Settings, topic: str) -> None:
    """Stop materializing the topic; its table stays as it is."""
    change_request(config, topic, enabled=False, deleted=False)


def resume(config: Settings, topic: str) -> None:
    """Let a suspended topic try again now instead of at its next retry; a paused one stays so.

    :raises SpecError: Tableflow is not enabled for the topic
    """
    require_enabled(config, topic)
    change_request(config, topic, resumed_at=time.time())


def require_enabled(config: Settings, topic: str) -> None:
    """:raises TopicbergError: Tableflow is not enabled for the topic, or its spec is invalid, or
    its request damaged"""
    read_request(config, topic)
    _specs(config, topic)
    if topic not in enabled_topics(config):
        raise SpecError(
            f"Tableflow is not enabled for topic {topic}",
            hint=f"run `topicberg tableflow enable {topic}`",
        )


def commit_soon(config: Settings, topic: str) -> None:
    """Let the engine commit what the topic has before its commit interval has passed.

    The topic's spec applies if no engine on this machine has the topic.
    """
    with suppress(OSError):
        replace_file(topic_file(config.state_dir / _AWAITED, topic), "{}")


def awaited(config: Settings, topics: Container[str]) -> list[str]:
    """Return those of an engine's topics that are to commit soon, once."""
    names = list[str]()
    for path in (config.state_dir / _AWAITED).glob("[!.]*.json"):
        with suppress(OSError):  # the interval applies
            if path.stem in topics:
                path.unlink(missing_ok=True)
                names.append(path.stem)
    return names


def enabled_topics(config: Settings) -> dict[str, TopicSpec]:
    """Return the topics to materialize, by their specs and the requests.

    A topic in error mode LOG brings its dead-letter topic with it. A topic whose spec is invalid,
    or whose request cannot be read, is left out and does not affect the others.
    """
    return usable_topics(config)[0]


class Requested:
    """The topics to materialize, read again only when a file of specs or requests has changed."""

    def __init__(self, config: Settings) -> None:
        self._config = config
        self._files: Files | None = None
        self._found: tuple[dict[str, TopicSpec], dict[str, str]] = {}, {}
        self._requests = read_requests(config)[0]
        self._changed = dict[str, StoredRequest]()

    def topics(self) -> tuple[dict[str, TopicSpec], dict[str, str]]:
        """Return what :func:`usable_topics` does.

        :raises SpecError: there is no folder of topic specs
        """
        if (files := spec_files(self._config, requests_folder(self._config))) != self._files:
            self._found, before = usable_topics(self._config), self._requests
            self._files, self._requests = files, read_requests(self._config)[0]
            self._changed |= {
                name: request
                for name, request in self._requests.items()
                if request != before.get(name)
            }
        return self._found

    def changed(self) -> dict[str, StoredRequest]:
        """Return the requests that have changed since the last call, by topic."""
        changed, self._changed = self._changed, {}
        return changed


def usable_topics(config: Settings) -> tuple[dict[str, TopicSpec], dict[str, str]]:
    """Return the topics to materialize that are valid, and the errors of the others.

    :raises SpecError: there is no folder of topic specs
    """
    good, problems = check_topics(config)
    wrong = {name: str(problem) for problem in reversed(problems) for name in problem.names}
    requests, unreadable = read_requests(config)
    wrong |= unreadable
    enabled = _enabled({spec.name: spec for spec in good}, requests, wrong)
    return {name: spec for name, spec in enabled.items() if name not in wrong}, wrong


def _enabled(
    specs: dict[str, TopicSpec], requests: dict[str, StoredRequest], wrong: dict[str, str]
) -> dict[str, TopicSpec]:
    """:param wrong: topic → what is wrong with its request; this adds to it"""
    enabled = {name: spec for name, spec in specs.items() if spec.tableflow.enabled}
    for name, request in requests.items():
        if not _is_enabled(request, specs.get(name)):
            enabled.pop(name, None)
            continue
        try:
            enabled[name] = _applied(request, specs.get(name))
        except SpecError as error:
            wrong.setdefault(name, str(error))
    # A topic of dead letters may have a request of its own, as it was paused.
    decided = (name for name, request in requests.items() if request.enabled is not None)
    logs = deadletters.dead_letter_specs(enabled.values(), {*enabled, *specs, *decided})
    return enabled | {spec.name: spec for spec in logs}


def _specs(config: Settings, topic: str | None = None) -> dict[str, TopicSpec]:
    """Return the valid specs; raise a SpecError if the spec of this topic is invalid."""
    specs, problems = check_topics(config)
    if texts := [str(problem) for problem in problems if topic in problem.names]:
        raise SpecError("\n".join(["the topic spec is invalid:", *texts]))
    return {spec.name: spec for spec in specs}


def _described(config: Settings) -> set[str]:
    """Return the topics that have a spec, valid or not."""
    specs, problems = check_topics(config)
    return {spec.name for spec in specs}.union(*(problem.names for problem in problems))


def known_topics(config: Settings) -> set[str]:
    """Return the topics that have a spec, or that are dead-letter topics of enabled ones."""
    return _described(config) | enabled_topics(config).keys()


def needs_look(config: Settings, topic: str) -> bool:
    """Return whether what a topic is follows from Kafka and the registry: it has no spec."""
    was_found = last_request(config, topic).found is not None
    return (was_found or topic not in enabled_topics(config)) and topic not in _described(config)


def find_topic(config: Settings, topic: str) -> TopicSpec:
    """Return the spec of a topic with a spec file, enabled without one, or for dead letters.

    :raises SpecError: none of these, or its spec is invalid
    """
    request, spec = read_request(config, topic), _specs(config, topic).get(topic)
    if request is not None and (spec is not None or request.enabled is not None):
        return _applied(request, spec)
    if spec is None and (spec := enabled_topics(config).get(topic)) is None:  # of dead letters
        raise SpecError(
            f"no topic {topic!r}{suggestion(topic, known_topics(config))}",
            hint="run `topicberg topics list` to see those with specs",
        )
    return spec


def as_requested(config: Settings, spec: TopicSpec) -> TopicSpec:
    """Return the spec with the settings of later requests, as the engine uses it."""
    request = read_request(config, spec.name)
    return _applied(request, spec) if request and _is_enabled(request, spec) else spec


def _without_spec(request: StoredRequest) -> dict[str, Any]:
    """:raises SpecError: the registry has no schema of the topic's values"""
    given = {} if request.write_mode is None else {"write_mode": request.write_mode}
    if request.found is None:
        raise SpecError(
            f"topic {request.topic} has no spec: it had one when it was enabled",
            hint=f"restore the spec, or run `topicberg tableflow enable {request.topic}` to read "
            "the topic as Kafka and the registry describe it",
        )
    document = found_document(request.topic, request.found, PIPELINE, given, own_engine=True)
    if document is None:
        raise SpecError(
            f"topic {request.topic} has no spec, and the registry has no subject "
            f"{request.topic}-value",
            hint="register a schema of its values, or write a spec with `schema: {format: none}`",
        )
    return document


def _is_enabled(request: StoredRequest, spec: TopicSpec | None) -> bool:
    is_in_spec = spec is not None and spec.tableflow.enabled
    return is_in_spec if request.enabled is None else request.enabled


def _merged(settings: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Return settings of Tableflow with later ones: a mode that is set keeps the dead-letter
    topic."""
    handling = {**settings.get("error_handling", {}), **later.get("error_handling", {})}
    return {**settings, **later} | ({"error_handling": handling} if handling else {})


def _applied(request: StoredRequest, spec: TopicSpec | None) -> TopicSpec:
    fields = _without_spec(request) if spec is None else spec.model_dump(by_alias=True)
    settings = _merged(fields.get("tableflow", {}), request.tableflow)
    settings = {**_merged(settings, request.command), "enabled": True}
    try:
        applied = TopicSpec.model_validate({**fields, "tableflow": settings})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise SpecError(f"topic {request.topic}: {field}: {first['msg']}") from None
    is_logged = applied.tableflow.error_handling.mode == "LOG"
    if is_logged and deadletters.dead_letter_spec(applied).name == request.topic:
        raise SpecError(
            f"topic {request.topic}: it cannot be its own dead-letter topic",
            hint="choose another topic with --log-target TOPIC",
        )
    return applied
