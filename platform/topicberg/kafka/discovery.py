"""Find the topics in Kafka for which there is a pattern, and their schemas in the registry."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from pydantic import ValidationError

from topicberg import kafka
from topicberg.clients.registry import registry_errors
from topicberg.errors import SpecError, TopicbergError, UnreachableError
from topicberg.files import replace_file
from topicberg.topics.discovery import (
    Discovery,
    FoundSchema,
    FoundTopic,
    Part,
    read_discovery,
    schema_file,
    write_discovery,
)
from topicberg.topics.loader import check_topics, wanted_topics
from topicberg.topics.new import is_envelope
from topicberg.topics.patterns import TopicPattern

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 60.0
SWEEP = 20
"""Known topics whose configuration and schemas are read again by each look in turn."""
_READERS = 8


def list_topics(endpoints: Endpoints) -> dict[str, int]:
    """Return topic → number of partitions, of all topics that the account may see.

    :raises TopicbergError: Kafka does not answer, or refuses
    """
    try:
        listed = kafka.admin_client(endpoints).list_topics(timeout=kafka.TIMEOUT_SECONDS)
    except KafkaException as error:
        raise UnreachableError(
            f"Kafka at {endpoints.kafka_bootstrap} does not list its topics: {error.args[0].str()}",
            hint="run `topicberg status` to see whether Kafka runs",
        ) from error
    return {name: len(one.partitions) for name, one in listed.topics.items() if one.error is None}


def find_topics(
    match: str, endpoints: Endpoints, config: Settings
) -> tuple[dict[str, FoundTopic], list[str]]:
    """Return the topics of Kafka that match a pattern and have no spec, and those that have one.

    :raises SpecError: the pattern is invalid
    :raises TopicbergError: Kafka does not answer, or refuses
    """
    try:
        pattern = TopicPattern(match=(match,))
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"--from-kafka: {reason}") from None
    there = {n: count for n, count in list_topics(endpoints).items() if pattern.matches(n)}
    specs, problems = check_topics(config)
    known = {spec.name for spec in specs} | {name for one in problems for name in one.names}
    new = sorted(there.keys() - known)
    compacted = _compacted(new, endpoints)
    found = {n: FoundTopic(partitions=there[n], is_compacted=n in compacted) for n in new}
    return found, sorted(there.keys() & known)


def find_topic(name: str, endpoints: Endpoints) -> FoundTopic | None:
    """Return what Kafka has of a topic; None: it does not exist.

    :raises TopicbergError: Kafka does not answer, or refuses
    """
    partitions = list_topics(endpoints).get(name)
    if partitions is None:
        return None
    return FoundTopic(partitions=partitions, is_compacted=bool(_compacted([name], endpoints)))


def discover(
    endpoints: Endpoints, config: Settings, sweep: int | None = None
) -> tuple[list[str], list[str]]:
    """Look for the topics of patterns, and write what is found for the definitions.

    If a service does not answer, the last discovery stays.

    :param sweep: how many known topics are read again; None: all
    :returns: the topics that are new, and those that are not there any more
    :raises TopicbergError: Kafka or the registry does not answer, or refuses
    """
    known = read_discovery(config).topics
    is_wanted = wanted_topics(config, known)
    if is_wanted is None:
        if known:
            write_discovery(config, Discovery())
        return [], sorted(known)
    there = list_topics(endpoints)
    names = sorted(name for name in there if is_wanted(name))
    oldest = sorted((n for n in names if n in known), key=lambda name: known[name].looked_at)
    # A topic without a schema may have been created before its producer registered one.
    hasty = [name for name in names if name in known and known[name].value is None]
    read = {*(n for n in names if n not in known), *hasty, *oldest[:sweep]}
    found = {name: known[name] for name in names if name in known}
    if read:
        found |= _read(sorted(read), there, endpoints, config)
    for name, topic in found.items():
        topic.partitions = there[name]
    write_discovery(config, Discovery(topics=dict(sorted(found.items()))))
    new, gone = sorted(found.keys() - known.keys()), sorted(known.keys() - found.keys())
    for what, some in (("found", new), ("no longer there", gone)):
        if some:
            logger.info("%d topics %s, the first one is %s", len(some), what, some[0])
    return new, gone


def _read(
    names: list[str], partitions: dict[str, int], endpoints: Endpoints, config: Settings
) -> dict[str, FoundTopic]:
    compacted = _compacted(names, endpoints)
    registry = endpoints.schema_registry_client()
    with registry_errors("the subjects"):
        subjects = set(registry.get_subjects())
    now = time.time()

    def of(name: str) -> FoundTopic:
        return FoundTopic(
            partitions=partitions[name],
            is_compacted=name in compacted,
            value=_schema(name, "value", subjects, registry, config),
            key=_schema(name, "key", subjects, registry, config),
            looked_at=now,
        )

    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(of, names), strict=True))


def _schema(
    topic: str,
    part: Part,
    subjects: Collection[str],
    registry: SchemaRegistryClient,
    config: Settings,
) -> FoundSchema | None:
    """Return the newest schema of a subject, and write its file; None: there is none."""
    subject = f"{topic}-{part}"
    if subject not in subjects:
        return None
    with registry_errors(f"the schema of {subject}"):
        newest = registry.get_latest_version(subject)
    schema, kind = newest.schema, (newest.schema.schema_type or "AVRO").lower()
    if kind not in ("avro", "json", "protobuf"):
        return None
    text = schema.schema_str or ""
    path = schema_file(config, topic, part, kind)
    if schema.references:  # columns of other subjects are not known
        path.unlink(missing_ok=True)
    elif not path.exists() or path.read_text() != text:
        replace_file(path, text)
    is_change = kind == "avro" and is_envelope(text)
    return FoundSchema.model_validate(
        {"format": kind, "version": newest.version or 0, "is_envelope": is_change}
    )


def _compacted(names: list[str], endpoints: Endpoints) -> set[str]:
    """Return the topics whose cleanup policy compacts."""
    configs = kafka.topic_configs(endpoints, names)
    return {name for name, found in configs if kafka.is_compacted(found.get("cleanup.policy"))}


class Discoverer(threading.Thread):
    """Looks for topics as long as the engine runs, if there are patterns."""

    def __init__(self, endpoints: Endpoints, config: Settings) -> None:
        super().__init__(name="topic-discovery", daemon=True)
        self._endpoints = endpoints
        self._config = config
        self._stop_requested = threading.Event()

    def stop(self) -> None:
        self._stop_requested.set()

    def run(self) -> None:
        reported = ""
        while True:
            try:
                discover(self._endpoints, self._config, SWEEP)
                reported = ""
            except (TopicbergError, OSError) as error:
                if str(error) != reported:
                    reported = str(error)
                    logger.warning("the last discovery of topics stays in use: %s", error)
            if self._stop_requested.wait(INTERVAL_SECONDS):
                return
