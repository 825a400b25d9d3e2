"""Transactional producers that record their progress in the same transaction, in a state topic.

A new producer fences off all earlier ones of its id, running or not, and then reads the newest
state. So nothing is sent twice, whatever is killed and however many run at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError, TopicbergError, UnreachableError
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages

WAIT_SECONDS = 60.0
_PRODUCER: dict[str, Any] = {
    "log_level": 2,
    "compression.type": "zstd",
    "linger.ms": 20,
    "partitioner": "murmur2_random",  # keys go to the same partitions as with the Java producer
    "delivery.report.only.error": True,
}
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


def transactional_producer(
    transactional_id: str, endpoints: Endpoints, timeout_seconds: int, **more: Any
) -> Producer:
    """Return a producer with this id; no other one of the id can commit any more.

    :param timeout_seconds: after this time the broker aborts a transaction of a dead producer
    """
    producer = Producer(
        {
            **_PRODUCER,
            "transaction.timeout.ms": timeout_seconds * 1000,
            **endpoints.kafka_config(writes=True),
            "transactional.id": transactional_id,
            **more,
        }
    )
    producer.init_transactions(WAIT_SECONDS)
    return producer


@contextmanager
def transaction_errors(
    action: str, hint: str, refused: type[TopicbergError] = TopicbergError
) -> Iterator[None]:
    """Report failures of a transactional producer as errors of the class ``refused``.

    :raises CommitConflictError: a later producer with the same id took over
    """
    try:
        yield
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() in _FENCED:
            raise CommitConflictError(f"{action}: another producer took over") from error
        raise refused(
            f"{action}: Kafka refused a transaction: {reason.str()}", hint=hint
        ) from error


def abort(producer: Producer) -> None:
    """End an open transaction, if there is one, so that consumers do not wait for it."""
    with suppress(KafkaException):  # there is none after a commit
        producer.abort_transaction(WAIT_SECONDS)


def newest_states(endpoints: Endpoints, topic: str, wait_seconds: float) -> dict[str, bytes]:
    """Return the newest value of each key of a state topic of one partition, but no tombstones.

    Open transactions of others hide what was committed after they began, so this waits for them.

    :param wait_seconds: the longest wait; longer than the producers' ``timeout_seconds``
    """
    await_others(endpoints, topic, wait_seconds)
    return committed_states(endpoints, topic)


def await_others(endpoints: Endpoints, topic: str, wait_seconds: float) -> None:
    """Wait until no open transaction hides what the topic has by now."""
    wanted, deadline = kafka.high_watermarks(endpoints, topic), time.monotonic() + wait_seconds
    while any(kafka.end_offsets(endpoints, topic).get(p, 0) < end for p, end in wanted.items()):
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"topic {topic}: an open transaction of another producer hides the newest records",
                hint="wait: the broker ends such a transaction after its timeout",
            )
        time.sleep(0.5)


def committed_states(endpoints: Endpoints, topic: str) -> dict[str, bytes]:
    """Return the same without waiting, of before the oldest open transaction."""
    first, end = kafka.beginning_offsets(endpoints, topic), kafka.end_offsets(endpoints, topic)
    read = messages(endpoints, topic, {0: (first[0], end[0])})
    states = {message.key(): message.value() for message in read}
    return {key.decode(): value for key, value in states.items() if key and value}
