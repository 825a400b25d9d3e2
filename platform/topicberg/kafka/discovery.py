"""Find the topics in Kafka for which there is a pattern, and their schemas in the registry.

The functions raise :class:`TopicbergError` if Kafka or a registry does not answer, or refuses.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaException
from confluent_kafka.schema_registry import SchemaRegistryClient
from pydantic import ValidationError

from topicberg.clients.registry import if_found, registry_errors
from topicberg.endpoints import Endpoints
from topicberg.endpoints.schemas import glue_reader
from topicberg.errors import (
    SpecError,
    TableflowError,
    TopicbergError,
    UnreachableError,
    see_whether_it_runs,
)
from topicberg.files import update_file
from topicberg.formats.table import BY_SCHEMA_TYPE, Part
from topicberg.kafka import topics as kafka
from topicberg.settings import Settings
from topicberg.topics import discovery
from topicberg.topics.loader import check_topics, wanted_topics
from topicberg.topics.new import found_in_glue, found_schema
from topicberg.topics.patterns import TopicPattern
from topicberg.topics.schema import PARTS
from topicberg.topics.spec import default_subject

logger = logging.getLogger(__name__)
INTERVAL_SECONDS = 60.0
SWEEP = 20  # Known topics whose configuration and schemas are read again by each look in turn.
_READERS = 8
_NAME_OF_TYPE = re.compile(r'"(?:name|title)"\s*:\s*"([^"]+)"|\bmessage\s+(\w+)')
"""Of a record of Avro, of a JSON Schema, of Protobuf."""


def list_topics(endpoints: Endpoints) -> dict[str, int]:
    """Return topic → number of partitions, of all topics that the account may see."""
    try:
        listed = kafka.admin_client(endpoints).list_topics(timeout=kafka.TIMEOUT_SECONDS)
    except KafkaException as error:
        raise UnreachableError(
            f"Kafka at {endpoints.kafka_bootstrap} does not list its topics: {error.args[0].str()}",
            hint=see_whether_it_runs("Kafka"),
        ) from error
    return {
        name: len(topic.partitions) for name, topic in listed.topics.items() if topic.error is None
    }


def find_topics(
    match: str, endpoints: Endpoints, config: Settings
) -> tuple[dict[str, discovery.FoundTopic], list[str]]:
    """Return the topics of Kafka that match a pattern and have no spec, and those that have one.

    :raises SpecError: the pattern is invalid
    """
    try:
        pattern = TopicPattern(match=(match,))
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"--from-kafka: {reason}") from None
    there = {n: count for n, count in list_topics(endpoints).items() if pattern.matches(n)}
    specs, problems = check_topics(config)
    known = {spec.name for spec in specs} | {name for problem in problems for name in problem.names}
    return _read(sorted(there.keys() - known), there, {}, endpoints), sorted(there.keys() & known)


def find_topic(
    name: str, endpoints: Endpoints, subject: str | None = None
) -> discovery.FoundTopic | None:
    """Return what Kafka and the registry have of a topic; None: it does not exist.

    :param subject: of its values; None: TopicNameStrategy's
    """
    if (partitions := list_topics(endpoints).get(name)) is None:
        return None
    named: dict[Part, discovery.SchemaSource] = {}
    if subject is not None:
        named["value"] = discovery.SchemaSource(subject)
    (topic,) = _read([name], {name: partitions}, {name: named}, endpoints).values()
    if topic.problem is not None:
        raise TopicbergError(topic.problem)
    return topic


def record_type(number: int, endpoints: Endpoints) -> str:
    """Return the type of a schema of the registry, and its subjects."""
    registry = endpoints.schema_registry_client()
    with registry_errors(f"the schema {number}"):
        schema = if_found(registry.get_schema, number)
        subjects = if_found(registry.get_subjects_by_schema_id, number) or []
    if schema is None:
        return f"the unknown schema {number}"
    match = _NAME_OF_TYPE.search(schema.schema_str or "")
    title = match[1] or match[2] if match else f"schema {number}"
    return f"{title} (subject {', '.join(subjects) or 'unknown'})"


def discover(
    endpoints: Endpoints, config: Settings, sweep: int | None = None
) -> tuple[list[str], list[str]]:
    """Look for the topics of patterns, and write what is found for the definitions.

    If a service does not answer, the last discovery stays. So does what is known of a topic that
    cannot be read; a new one has the reason.

    :param sweep: how many known topics are read again; None: all
    :returns: the topics that are new, and those that are not there any more
    """
    known = discovery.read_discovery(config).topics
    if not (wanted := wanted_topics(config, known)):
        if known:
            discovery.write_discovery(config, discovery.Discovery())
        return [], sorted(known)
    there = list_topics(endpoints)
    names = sorted(name for name in there if name in wanted)
    topics = {name: known[name] for name in names if name in known}
    oldest = sorted(topics, key=lambda name: topics[name].looked_at)
    # A topic without a schema may have been created before its producer registered one.
    hasty = [name for name, topic in topics.items() if topic.value is None]
    read = {*(n for n in names if n not in known), *hasty, *oldest[:sweep]}
    if read:
        now, named = time.time(), {name: wanted.sources(name) for name in read}
        for name, topic in _read(sorted(read), there, named, endpoints, config).items():
            if topic.problem is None or name not in known or known[name].problem is not None:
                topics[name] = topic
            else:
                logger.warning(
                    "the last discovery of topic %s stays in use: %s", name, topic.problem
                )
            topics[name].looked_at = now
    for name, topic in topics.items():
        topic.partitions = there[name]
    discovery.write_discovery(config, discovery.Discovery(topics=dict(sorted(topics.items()))))
    new, gone = sorted(topics.keys() - known.keys()), sorted(known.keys() - topics.keys())
    for state, some in (("found", new), ("no longer there", gone)):
        if some:
            logger.info("%d topics %s, the first one is %s", len(some), state, some[0])
    return new, gone


def _read(
    names: list[str],
    partitions: Mapping[str, int],
    named: Mapping[str, Mapping[Part, discovery.SchemaSource]],
    endpoints: Endpoints,
    config: Settings | None = None,
) -> dict[str, discovery.FoundTopic]:
    """Return topics with their configurations and schemas, which are written if there are settings.

    :param named: where schemas are, if not in TopicNameStrategy's subjects, by topic
    """
    topics, subjects = _configured(names, partitions, endpoints), set[str]()
    registry = endpoints.schema_registry_client()

    def source(topic: str, part: Part) -> discovery.SchemaSource:
        return named.get(topic, {}).get(part, discovery.SchemaSource())

    if any(source(name, part).framing != "glue" for name in names for part in PARTS):
        with registry_errors("the subjects"):
            subjects = set(registry.get_subjects())

    def newest(topic: str, part: Part) -> discovery.FoundSchema | None:
        own = source(topic, part)
        if own.framing == "glue":
            return _glue_schema(topic, part, own.subject or topic, endpoints, config)
        candidates = _candidates(topic, part, named.get(topic, {}))
        subject = next(filter(subjects.__contains__, candidates), None)
        return None if subject is None else _schema(topic, part, subject, registry, config)

    def read(name: str) -> None:
        topic = topics[name]
        try:
            topic.value, topic.key = newest(name, "value"), newest(name, "key")
        except UnreachableError:
            raise
        except (TopicbergError, OSError, ValueError) as error:  # e.g. the file's name is too long
            topic.problem = str(error)

    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(read, (name for name in names if topics[name].problem is None)))
    return topics


def _candidates(topic: str, part: Part, named: Mapping[Part, discovery.SchemaSource]) -> list[str]:
    """Return the subjects that a topic's keys or values may have, the first choice first."""
    if part in named and (subject := named[part].subject):
        return [subject]
    own, value = f"{topic}-{part}", named.get("value", discovery.SchemaSource())
    if part == "key" and value.subject and value.framing != "glue":
        # Of TopicNameStrategy with a prefix, say.
        return [own, f"{value.subject.removesuffix('-value')}-key"]
    return [own]


def _glue_schema(
    topic: str, part: Part, name: str, endpoints: Endpoints, config: Settings | None
) -> discovery.FoundSchema | None:
    """Return the newest version of a schema of AWS Glue, and write its file; None: it has none."""
    try:
        newest = glue_reader(endpoints, config).newest(name)
    except TableflowError:
        return None
    schema = found_in_glue(topic, newest)
    if config is not None:
        update_file(discovery.schema_file(config, topic, part, schema.format), newest.schema.text)
    return schema


def _schema(
    topic: str, part: Part, subject: str, registry: SchemaRegistryClient, config: Settings | None
) -> discovery.FoundSchema | None:
    """Return the newest schema of a subject, and write its file; None: no format has it."""
    with registry_errors(f"the schema of {subject}"):
        newest = registry.get_latest_version(subject)
    schema, text = newest.schema, newest.schema.schema_str or ""
    if (entry := BY_SCHEMA_TYPE.get(schema.schema_type or "AVRO")) is None:
        return None
    kind = entry.name
    if config is not None:
        path = discovery.schema_file(config, topic, part, kind)
        if schema.references:  # columns of other subjects are not known
            path.unlink(missing_ok=True)
        else:
            update_file(path, text)
    usual = default_subject(topic, part, "confluent")
    return found_schema(kind, newest.version or 0, text, None if subject == usual else subject)


def _configured(
    names: list[str], partitions: Mapping[str, int], endpoints: Endpoints
) -> dict[str, discovery.FoundTopic]:
    """Return the topics with what their configurations say."""
    topics = {}
    for name, settings in kafka.topic_configs(endpoints, names):
        topic = topics[name] = discovery.FoundTopic(partitions=partitions[name], is_compacted=False)
        if isinstance(settings, TopicbergError):
            topic.problem = settings.message
        else:
            topic.is_compacted = kafka.is_compacted(settings.get("cleanup.policy"))
    return topics


def keep_discovering(endpoints: Endpoints, config: Settings, ended: threading.Event) -> None:
    """Look for topics until the engine has ended, if there are patterns."""
    reported = ""
    while True:
        try:
            discover(endpoints, config, SWEEP)
            reported = ""
        except (TopicbergError, OSError) as error:
            if str(error) != reported:
                reported = str(error)
                logger.warning("the last discovery of topics stays in use: %s", error)
        except Exception:  # the next one may succeed
            logger.exception("the last discovery of topics stays in use")
        if ended.wait(INTERVAL_SECONDS):
            return
