"""Topics: create them as their spec requires, read a topic's offsets and identity.

Every call has a timeout; it raises :class:`TopicbergError` if Kafka, which the error names, does
not answer or refuses. What reads a topic raises :class:`NoSuchTopicError` if it does not exist.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
    admin,
)
from tenacity import stop_after_delay, wait_fixed

from topicberg.endpoints import Endpoints
from topicberg.errors import (
    CertificateError,
    LoginError,
    TopicbergError,
    UnreachableError,
    first_line,
    see_whether_it_runs,
)
from topicberg.errors.connections import connection_error
from topicberg.errors.retry import retry
from topicberg.kafka.schemas import register_schema
from topicberg.settings import Settings, settings
from topicberg.topics import TopicSpec, requests
from topicberg.topics.spec import CLEANUP_POLICY
from topicberg.wording import count

logger = logging.getLogger(__name__)
TIMEOUT_SECONDS = 15.0
_SOON, _OFTEN = stop_after_delay(10.0), wait_fixed(0.1)
_GRACE_SECONDS = 5.0
FAILING_SECONDS = 4.0
"""After which a request is given up whose client cannot resolve the broker or log in: librdkafka
tries that again for ever."""
_CONFIGS_AT_ONCE = 100
_DELETING = (
    CLEANUP_POLICY,
    "retention.ms",
    "retention.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
)
"""Configurations by which Kafka deletes records and tombstones."""
_NUMBER = re.compile(r"-?\d+")
_DEPLOYED = ", or `topicberg deploy create --irrevocable` if that created the topic,"
_REFUSALS = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED")
_NOT_REACHED = ("_RESOLVE", "_SSL")
_REPEATED_SECONDS = 30.0  # How often librdkafka reports a failure again that stays the same.
_BROKER = re.compile(r"(?:^|/)([\w.-]+):(\d+)/\w+: ")
"""The broker in the text of its failure, as in ``ssl://kafka:9093/bootstrap: SSL handshake …``."""
_REFUSED_BY_SERVER = "Failed to acquire SASL OAUTHBEARER token"
_NO_TOKEN = re.compile(
    r"OAUTHBEARER token: .*(connect|resolve|timed? ?out|empty reply)", re.IGNORECASE
)
_RIGHTS_HINT = (
    "grant the user of this login the right: the engine has to describe and read the topic, and to "
    "read its consumer group"
)
_EARLIEST: admin.OffsetSpec = admin.OffsetSpec.earliest()  # type: ignore[no-untyped-call]
NO_ANSWER = (
    *(KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE),
    KafkaError._TIMED_OUT,
)
_LEADERLESS = (
    *(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE),
    # The client's or the broker's metadata is stale.
    *(KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH),
)
LATEST: admin.OffsetSpec = admin.OffsetSpec.latest()  # type: ignore[no-untyped-call]
K = TypeVar("K")
T = TypeVar("T")


class TopicDeletedError(TopicbergError):
    """A run, but no user, asks for a topic that a user has deleted."""


class NoSuchTopicError(TopicbergError):
    """The topic does not exist."""


class TopicDriftError(TopicbergError):
    """A topic or subject differs from its spec in a way that topicberg must not change."""


class WaitingDriftError(TopicDriftError):
    """A difference that waits until a user asks for the change, as it cannot be undone."""


@dataclass(frozen=True)
class EnsuredTopic:
    """What :func:`ensure_topic` found or created. Schema ids are None without a schema."""

    created: bool
    partitions: int
    value_schema_id: int | None
    key_schema_id: int | None


@dataclass(frozen=True)
class TopicLog:
    """A topic's log, by partition: its first offset, and its end for a read_committed consumer."""

    topic_id: str
    beginning: dict[int, int]
    end: dict[int, int]
    epochs: dict[int, int] = field(default_factory=dict)
    """The epoch of each partition's leader, which the next leader raises; without those of brokers
    that have none."""


def ensure_topic(
    spec: TopicSpec, endpoints: Endpoints, config: Settings | None = None, *, recreate: bool = False
) -> EnsuredTopic:
    """Create the topic and register its schemas (TopicNameStrategy) where they are missing.

    An external topic is left as it is. What cannot be undone waits until a user asks for it: more
    partitions (:func:`grow_topic`), and configurations by which Kafka deletes records
    (:func:`losing_configs`). Safe to call at any time, also concurrently.

    :param recreate: create it also if `topicberg deploy delete` deleted it: a user asks for it
    :raises TopicDeletedError: it was deleted, and `recreate` is not set
    :raises TopicDriftError: a difference that topicberg must not change
    """
    if spec.external:
        return EnsuredTopic(False, partition_count(endpoints, spec.name), None, None)
    config = config or settings()
    created = _create_missing(spec, endpoints, config, recreate=recreate)
    partitions = await_topic(endpoints, spec.name)
    if not created:
        configuration = topic_config(endpoints, spec.name)
        policy = configuration.get(CLEANUP_POLICY) or "delete"
        # First: partitions cannot be removed from a topic that is not what its spec says.
        if spec.changelog is None and is_compacted(policy) != spec.is_compacted:
            raise TopicDriftError(
                f"topic {spec.name} has cleanup.policy {policy}, "
                f"write mode {spec.write_mode} needs {spec.cleanup_policy}",
                hint="fix the spec, or change the topic and recreate its table: the write mode "
                "cannot change while the table exists",
            )
        drifts = partition_drift(spec, partitions, policy), config_drift(spec, configuration)
        for drift in filter(None, drifts):
            if not isinstance(drift, WaitingDriftError):
                raise drift
            logger.warning("%s; %s", drift.message, drift.hint)
        losing = losing_configs(spec.topic_config, configuration)
        changes = spec.topic_config.items() - configuration.items() - losing.items()
        set_configs(spec, endpoints, dict(sorted(changes)))
    ids = {
        id(schema): register_schema(endpoints, subject, schema, path)
        for subject, schema, path in spec.schema_files(config)
    }
    value, key = ids.get(id(spec.value_schema)), ids.get(id(spec.key))
    return EnsuredTopic(created, partitions, value, key)


def create_topic(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> None:
    """Create the topic if it is missing; an external or existing topic is left as it is."""
    if not spec.external:
        _create_missing(spec, endpoints, config)
    await_topic(endpoints, spec.name)


def delete_topic(endpoints: Endpoints, topic: str) -> bool:
    """Delete a topic with its records; return False if it does not exist."""
    client = admin_client(endpoints, writes=True)
    future = client.delete_topics([topic], request_timeout=TIMEOUT_SECONDS)[topic]
    with suppress(NoSuchTopicError):
        result_of(future, endpoints, f"delete topic {topic}")
        return True
    return False


def ensure_internal_topic(topic: str, endpoints: Endpoints, partitions: int = 1) -> None:
    """Create a compacted topic for topicberg's own records, if it is missing."""
    _create(endpoints, topic, partitions, {"cleanup.policy": "compact"})


def beginning_offsets(endpoints: Endpoints, topic: str) -> dict[int, int]:
    """Return partition → first offset that the log still has."""
    return _offsets(_listed(endpoints, topic, _EARLIEST))


def end_offsets(endpoints: Endpoints, topic: str) -> dict[int, int]:
    """Return partition → offset after the last record that a read_committed consumer may read."""
    return _offsets(_listed(endpoints, topic, LATEST))


def high_watermarks(endpoints: Endpoints, topic: str) -> dict[int, int]:
    """Return partition → offset after the last record, including open transactions."""
    return _offsets(_listed(endpoints, topic, LATEST, level=IsolationLevel.READ_UNCOMMITTED))


def offsets_at(
    endpoints: Endpoints, topic: str, timestamp_ms: int | Mapping[int, int]
) -> dict[int, int]:
    """Return partition → first offset of that time or later, or of its own time; -1: none."""
    at = admin.OffsetSpec.for_timestamp
    if isinstance(timestamp_ms, int):
        return _offsets(_listed(endpoints, topic, at(timestamp_ms)))
    times = {p: at(time_ms) for p, time_ms in timestamp_ms.items()}
    return _offsets(_listed(endpoints, topic, times)) if times else {}


def produce(
    producer: Producer,
    topic: str,
    value: bytes | None,
    key: bytes | None,
    delivered: Callable[[Any, Message], None] | None = None,
    timestamp_ms: int = 0,
) -> None:
    """Pass a record to a transactional producer, waiting while its queue is full.

    :param delivered: called with an error or None, and the record
    :param timestamp_ms: 0: now
    :raises KafkaException: why the producer cannot be used any more, such as that it is fenced off
    """
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=delivered, timestamp=timestamp_ms)
        except BufferError:
            producer.poll(0.1)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._FATAL:  # which does not say why; this call does
                producer.abort_transaction(TIMEOUT_SECONDS)
            raise
        else:
            producer.poll(0)
            return


def topic_config(endpoints: Endpoints, topic: str) -> dict[str, str | None]:
    """Return the topic's configuration, with the broker's defaults; uses the writers' account."""
    ((_, found),) = topic_configs(endpoints, [topic])
    if isinstance(found, TopicbergError):
        raise found
    return found


def topic_configs(
    endpoints: Endpoints, topics: Sequence[str]
) -> Iterator[tuple[str, dict[str, str | None] | TopicbergError]]:
    """Yield each topic with what :func:`topic_config` returns of it, or why Kafka refuses that."""
    client = admin_client(endpoints, writes=True)
    resources = [admin.ConfigResource(admin.ResourceType.TOPIC, topic) for topic in topics]
    for start in range(0, len(resources), _CONFIGS_AT_ONCE):
        futures = client.describe_configs(
            resources[start : start + _CONFIGS_AT_ONCE], request_timeout=TIMEOUT_SECONDS
        )
        named = {str(resource.name): future for resource, future in futures.items()}
        for name, entries in results_of(named, endpoints, "describe the configuration of {}"):
            if isinstance(entries, TopicbergError):
                yield name, entries
            else:
                yield name, {entry: config.value for entry, config in entries.items()}


def topic_id(endpoints: Endpoints, topic: str) -> str:
    """Return Kafka's UUID of the topic in base64; a topic that is created again has another one."""
    return str(describe(endpoints, topic).topic_id)


def partition_count(endpoints: Endpoints, topic: str) -> int:
    """Return the number of partitions of a topic."""
    return len(describe(endpoints, topic).partitions)


def topic_log(endpoints: Endpoints, topic: str) -> TopicLog:
    """Return the id of a topic, and where its log begins and ends, in three requests."""
    described = describe(endpoints, topic)
    ends = _listed(endpoints, topic, LATEST, described)
    beginning = _listed(endpoints, topic, _EARLIEST, described)
    epochs = {
        p: listed.leader_epoch for p, listed in ends.items() if listed.leader_epoch is not None
    }
    return TopicLog(str(described.topic_id), _offsets(beginning), _offsets(ends), epochs)


@dataclass
class _Account:
    """A client; why it did not get to a broker or through its login last, and when (monotonic).

    librdkafka tries again for ever, and reports the reason only to a callback.
    """

    client: admin.AdminClient
    error: KafkaError | None = None
    failed_at: float = -math.inf


_answered_at: dict[str, float] = {}
"""Bootstrap addresses → when a broker answered last (monotonic): what failed before is over, or
is of another broker."""


@lru_cache(maxsize=8)
def _account(config: tuple[tuple[str, Any], ...]) -> _Account:
    def note(error: KafkaError) -> None:
        if error.name() in (*_REFUSALS, *_NOT_REACHED):
            account.error, account.failed_at = error, time.monotonic()

    # log_level 2: an unavailable broker is reported by our errors, not by lines on stderr
    quiet: dict[str, Any] = {"log_level": 2, "error_cb": note}
    account = _Account(admin.AdminClient(quiet | dict(config)))
    return account


def _account_of(endpoints: Endpoints, writes: bool) -> _Account:
    """Return the account for reading or for writing, which may be one."""
    return _account(tuple(sorted(endpoints.kafka_config(writes=writes).items())))


def admin_client(endpoints: Endpoints, *, writes: bool = False) -> admin.AdminClient:
    """Return the client of an account: it is thread-safe, and keeps its connection."""
    return _account_of(endpoints, writes).client


def _known_failure(
    endpoints: Endpoints, action: str, since: float | None = None
) -> TopicbergError | None:
    """Return why there is no answer, if a client has said so ``since`` a time; None: recently."""
    recent = time.monotonic() - TIMEOUT_SECONDS - 2 * _GRACE_SECONDS - _REPEATED_SECONDS
    answered_at = _answered_at.get(endpoints.kafka_bootstrap, -math.inf)
    earliest = max(recent if since is None else since, answered_at)
    for writes in (False, True):
        account = _account_of(endpoints, writes)
        account.client.poll(0)  # calls the callback
        if (error := account.error) is not None and account.failed_at >= earliest:
            explained = _not_reached if error.name() in _NOT_REACHED else _login_error
            known = explained(endpoints, error.str(), action)
            known.__cause__ = KafkaException(error)
            return known
    return None


def _login_error(endpoints: Endpoints, text: str, action: str) -> TopicbergError:
    """Return the error of a login that failed."""
    address, login = endpoints.kafka_listener()
    reason = next(iter(text.splitlines()), "")[-300:]
    message = f"the login to Kafka at {address} failed"
    if _NO_TOKEN.search(reason):
        return UnreachableError(
            f"{message} ({login.auth}, {action}): the OAuth server {login.oauth.token_uri} does "
            f"not answer: {reason}",
            hint=login.settings_hint(),
        )
    if _REFUSED_BY_SERVER in reason:
        reason = f"the OAuth server {login.oauth.token_uri}: {reason}"
    return LoginError(f"{message} ({login.auth}, {action}): {reason}", hint=login.settings_hint())


def _not_reached(endpoints: Endpoints, text: str, action: str) -> TopicbergError:
    """Return the error of a broker whose name does not resolve, or whose TLS fails."""
    address, login = endpoints.kafka_listener()
    if broker := _BROKER.search(text):
        address = f"{broker[1]}:{broker[2]}"
    known = connection_error("Kafka", text, where=action, address=address, authority=login.ca_file)
    return known or CertificateError(
        f"Kafka at {address} cannot be reached ({action}): {first_line(Exception(text))[:300]}",
        hint="check that the port in TOPICBERG_KAFKA_BOOTSTRAP is of a listener for "
        "TOPICBERG_KAFKA_SECURITY_PROTOCOL; if it asks for the client's certificate, check "
        "TOPICBERG_KAFKA_CERTIFICATE_FILE as well",
    )


def _await(future: Future[T], endpoints: Endpoints, action: str) -> T:
    """Wait for a response; no longer than a few seconds if a client does not get to the broker.

    :raises TimeoutError: there is none in time
    """
    began = time.monotonic()
    while (left := began + TIMEOUT_SECONDS + _GRACE_SECONDS - time.monotonic()) > FAILING_SECONDS:
        try:
            return future.result(FAILING_SECONDS)
        except TimeoutError:
            if (known := _known_failure(endpoints, action, since=began)) is not None:
                raise known from known.__cause__
    return future.result(max(0.0, left))


def result_of(future: Future[T], endpoints: Endpoints, action: str) -> T:
    """Wait for a response of the broker.

    :raises NoSuchTopicError: the topic does not exist
    :raises LoginError: the broker, or the OAuth server, refuses the login
    """

    def unanswered() -> TopicbergError:
        if (known := _known_failure(endpoints, action)) is not None:
            return known
        # librdkafka repeats requests for a token while the OAuth server fails, and says nothing.
        login = endpoints.kafka_login
        server = login.oauth.token_uri if login.auth == "oidc" else None
        return UnreachableError(
            f"Kafka at {endpoints.kafka_listener()[0]} does not answer ({action})",
            hint=see_whether_it_runs("Kafka")
            + (f", and check that the OAuth server {server} gives out tokens" if server else ""),
        )

    try:
        answer = _await(future, endpoints, action)
        _answered_at[endpoints.kafka_bootstrap] = time.monotonic()
        return answer
    except TimeoutError:
        failure = unanswered()
        raise failure from failure.__cause__
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise NoSuchTopicError(
                f"{action}: the topic does not exist on {endpoints.kafka_bootstrap}",
                hint="check the name; the Tableflow engine creates a topic that has a spec",
            ) from error
        if reason.code() in (*NO_ANSWER, KafkaError.REQUEST_TIMED_OUT):
            failure = unanswered()
            raise failure from failure.__cause__ or error
        if reason.code() in _LEADERLESS:
            raise no_leader(action) from error
        hint = _RIGHTS_HINT if "AUTHORIZATION_FAILED" in str(reason.name()) else None
        raise TopicbergError(f"Kafka refused ({action}): {reason.str()}", hint=hint) from error


def results_of(
    futures: Mapping[K, Future[T]], endpoints: Endpoints, action: str
) -> Iterator[tuple[K, T | TopicbergError]]:
    """Yield what the broker returns for several topics, or why it refuses some of them.

    :param action: with braces for the topic
    """
    for key, future in futures.items():
        topic = key.topic if isinstance(key, TopicPartition) else key
        result: T | TopicbergError
        try:
            result = result_of(future, endpoints, action.format(topic))
        except UnreachableError:
            raise
        except TopicbergError as error:
            result = error
        yield key, result


def _create_missing(
    spec: TopicSpec, endpoints: Endpoints, config: Settings, *, recreate: bool = False
) -> bool:
    """Create the topic; return False if it exists already, also without the right to create it."""
    try:
        describe(endpoints, spec.name)
    except NoSuchTopicError:
        request = None if recreate else requests.read_request(config, spec.name)
        if request and request.deleted:
            raise TopicDeletedError(
                f"topic {spec.name} was deleted by `topicberg deploy delete`",
                hint="run `topicberg deploy create`, which creates it again",
            ) from None
        if _create(endpoints, spec.name, spec.partitions, spec.kafka_config):
            logger.info("created topic %s with %d partitions", spec.name, spec.partitions)
            requests.topic_created(config, spec.name)
            return True
    return False


def _create(endpoints: Endpoints, topic: str, partitions: int, config: dict[str, str]) -> bool:
    """Create the topic, with the broker's default of replicas; return False if it exists."""
    new = admin.NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=config)
    client = admin_client(endpoints, writes=True)
    future = client.create_topics([new], request_timeout=TIMEOUT_SECONDS)[topic]
    try:
        result_of(future, endpoints, f"create topic {topic}")
    except TopicbergError as error:
        cause, exists = error.__cause__, KafkaError.TOPIC_ALREADY_EXISTS
        if isinstance(cause, KafkaException) and cause.args[0].code() == exists:
            return False
        raise
    return True


def await_topic(endpoints: Endpoints, topic: str) -> int:
    """Wait until a topic that was just created can be described; return how many partitions."""
    count_partitions = partial(partition_count, endpoints, topic)
    return retry(count_partitions, _SOON, on=NoSuchTopicError, wait=_OFTEN)


def partition_drift(
    spec: TopicSpec, partitions: int, cleanup_policy: str | None = None
) -> TopicDriftError | None:
    """Return how the number of a topic's partitions differs from its spec; None: it does not."""
    if partitions == spec.partitions:
        return None
    message = (
        f"topic {spec.name} has {count(partitions, 'partition')}, its spec has {spec.partitions}"
    )
    if partitions > spec.partitions:
        hint = f"set `partitions: {partitions}`: Kafka cannot remove partitions"
    elif spec.is_compacted or is_compacted(cleanup_policy):
        hint = (
            f"set `partitions: {partitions}`, or create the topic again: more partitions would "
            "move the keys of a compacted topic to other partitions"
        )
    else:
        hint = (
            f"run `topicberg topics grow {spec.name}`{_DEPLOYED} to add them, which cannot be "
            f"undone and moves keys to other partitions, or set `partitions: {partitions}`"
        )
        return WaitingDriftError(message, hint=hint)
    return TopicDriftError(message, hint=hint)


def losing_configs(
    wanted: Mapping[str, str], configuration: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the wanted configurations by which Kafka deletes records that it keeps now."""

    def loses(name: str, value: str) -> bool:
        before = configuration.get(name) or ""
        if name == CLEANUP_POLICY:
            return not {*value.replace(" ", "").split(",")} <= {*before.split(",")}
        # -1 is unlimited. Kafka refuses what is not a number.
        now, then = (int(v) % 2**64 if _NUMBER.fullmatch(v) else 0 for v in (before, value))
        return then < now

    return {k: v for k, v in wanted.items() if k in _DELETING and loses(k, v)}


def config_drift(
    spec: TopicSpec, configuration: Mapping[str, str | None]
) -> WaitingDriftError | None:
    """Return which configurations of the spec wait for `topics configure`; None: none does."""
    if not (losing := losing_configs(spec.topic_config, configuration)):
        return None
    wants = ", ".join(f"{name}: {value}" for name, value in losing.items())
    has = [f"{name}: {configuration.get(name)}" for name in losing]
    return WaitingDriftError(
        f"topic {spec.name} has {', '.join(has)}, its spec has {wants}, by which Kafka deletes "
        "records",
        hint=f"run `topicberg topics configure {spec.name}`{_DEPLOYED} to delete them, which "
        f"cannot be undone, or set `{'` and `'.join(has)}` in its `topic_config`",
    )


def growth(spec: TopicSpec, endpoints: Endpoints) -> int:
    """Return how many partitions :func:`grow_topic` would add.

    :raises TopicDriftError: it must not grow
    """
    if spec.external:
        raise TopicDriftError(
            f"topic {spec.name} is external: topicberg does not change it",
            hint="ask its owner to add partitions",
        )
    policy = topic_config(endpoints, spec.name).get(CLEANUP_POLICY)
    partitions = partition_count(endpoints, spec.name)
    drift = partition_drift(spec, partitions, policy)
    if drift is not None and not isinstance(drift, WaitingDriftError):
        raise drift
    return spec.partitions - partitions


def grow_topic(spec: TopicSpec, endpoints: Endpoints) -> None:
    """Add the partitions that a topic lacks by its spec, if it may grow. It cannot be undone."""
    if growth(spec, endpoints):
        grow = [admin.NewPartitions(spec.name, spec.partitions)]
        client = admin_client(endpoints, writes=True)
        future = client.create_partitions(grow, request_timeout=TIMEOUT_SECONDS)[spec.name]
        result_of(future, endpoints, f"add partitions to {spec.name}")
        logger.info("topic %s has %d partitions now", spec.name, spec.partitions)


def set_configs(spec: TopicSpec, endpoints: Endpoints, changes: Mapping[str, str]) -> None:
    """Set configurations of the topic, if there are any."""
    if not changes:
        return
    entries = [
        admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
        for name, value in changes.items()
    ]
    resource = admin.ConfigResource(
        admin.ResourceType.TOPIC, spec.name, incremental_configs=entries
    )
    client = admin_client(endpoints, writes=True)
    future = client.incremental_alter_configs([resource], request_timeout=TIMEOUT_SECONDS)[resource]
    result_of(future, endpoints, f"change the configuration of {spec.name}")
    logger.info("topic %s: set %s", spec.name, ", ".join(f"{k}={v}" for k, v in changes.items()))


def is_compacted(cleanup_policy: str | None) -> bool:
    """Return whether Kafka compacts a topic with this policy, as in ``delete,compact``."""
    return "compact" in (cleanup_policy or "").split(",")


def tombstone_ms(endpoints: Endpoints, topic: str) -> int | None:
    """Return how long Kafka keeps a tombstone, or None if it does not compact the topic."""
    config = topic_config(endpoints, topic)
    kept_ms = int(config.get("delete.retention.ms") or 0)
    return kept_ms if is_compacted(config.get(CLEANUP_POLICY)) else None


def describe(endpoints: Endpoints, topic: str) -> admin.TopicDescription:
    """:raises TopicbergError: Kafka has no such topic, or does not show it to this account"""
    client, topics = admin_client(endpoints), TopicCollection([topic])
    future = client.describe_topics(topics, request_timeout=TIMEOUT_SECONDS)[topic]
    description: admin.TopicDescription = result_of(future, endpoints, f"describe topic {topic}")
    return description


class NoLeaderError(TopicbergError):
    """A partition has no leader: it is being created, or its broker has just restarted."""


def no_leader(action: str) -> NoLeaderError:
    """Return the error of an action that needs the leader of a partition."""
    return NoLeaderError(
        f"Kafka has no leader for a partition ({action})", hint="try again in a moment"
    )


def _offsets(listed: Mapping[int, admin.ListOffsetsResultInfo]) -> dict[int, int]:
    return {partition: of_partition.offset for partition, of_partition in listed.items()}


def _listed(
    endpoints: Endpoints,
    topic: str,
    which: admin.OffsetSpec | Mapping[int, admin.OffsetSpec],
    described: admin.TopicDescription | None = None,
    level: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[int, admin.ListOffsetsResultInfo]:
    def attempt() -> dict[int, admin.ListOffsetsResultInfo]:
        numbers = [each.id for each in (described or describe(endpoints, topic)).partitions]
        specs = which if isinstance(which, Mapping) else dict.fromkeys(numbers, which)
        futures = admin_client(endpoints).list_offsets(
            {TopicPartition(topic, p): specs[p] for p in numbers if p in specs},
            isolation_level=level,
            request_timeout=TIMEOUT_SECONDS,
        )
        return {
            place.partition: result_of(future, endpoints, f"list the offsets of {topic}")
            for place, future in sorted(futures.items(), key=lambda item: item[0].partition)
        }

    return retry(attempt, _SOON, on=NoLeaderError, wait=_OFTEN)
