"""Work that several processes share: each name belongs to one member of a consumer group.

The members of the group share the partitions of an internal topic, and a name belongs to the member
that has the partition of its hash. So Kafka itself finds which members are alive and moves the
names of a lost one. No member reads or commits anything: the partitions are always paused.

Members are static: one that ends without a goodbye and starts again within the session time-out has
its share back at once. The assignment is cooperative: a member that comes or leaves concerns only
the names that move.

Sources: KIP-345 (static members), KIP-429 (cooperative assignment).
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from topicberg.endpoints import Endpoints
from topicberg.errors import LoginError, TopicbergError, UnreachableError
from topicberg.kafka import topics as kafka

logger = logging.getLogger(__name__)
PARTITIONS = 60  # Of the internal topic. Many numbers of members have equal shares of it.
SESSION_SECONDS = 6.0
"""After so long without a heartbeat, the names of a member move to others: the least that brokers
allow by default."""
MAX_REBALANCE_SECONDS = 60.0
"""How long a member may take to give names up; longer than any ``give_up`` takes."""
RETRY_SECONDS = 2.0
_POLL_SECONDS = 0.5
_LEAVE_SECONDS = 5.0
_NOT_ALLOWED = (
    *(KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


def partition_of(name: str, partitions: int) -> int:
    """Return the partition of a name; it is the same in every process and version."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % partitions


class GroupMember(threading.Thread):
    """This process as a member of a group."""

    def __init__(
        self,
        endpoints: Endpoints,
        group: str,
        topic: str,
        name: str,
        instance: Callable[[bool], str],
        give_up: Callable[[bool], None],
        changed: Callable[[], None],
    ) -> None:
        """:param topic: the internal topic, which is created if it is missing
        :param name: of this member, for people
        :param instance: returns the id of this member; True: another one, since another process
            uses the same
        :param give_up: called after names are not held any more; the next member gets them when it
            returns. True: the group did not hear of this member, so others may have them already,
            and it is not known which ones this member has
        :param changed: called when there are other names, or another error
        """
        super().__init__(name="group-member", daemon=True)
        self.lock = threading.RLock()
        """While it is held, names are not given up."""
        self.error: TopicbergError | None = None
        """Why it is not known which names this member has."""
        self._endpoints, self._group, self._topic = endpoints, group, topic
        self._member_name, self._instance = name, instance
        self._give_up, self._changed = give_up, changed
        self._partitions = PARTITIONS
        self._held: frozenset[int] | None = None
        self._is_replaced = self._is_topicless = False
        self._stop_requested = threading.Event()

    @property
    def is_known(self) -> bool:
        """Whether it is known which names this member has."""
        return self._held is not None

    def holds(self, name: str) -> bool:
        """Return whether a name is this member's."""
        return partition_of(name, self._partitions) in (self._held or ())

    def stop(self) -> None:
        """Give up all names and leave the group, so that others have them at once."""
        self._stop_requested.set()
        self.join(MAX_REBALANCE_SECONDS)

    def run(self) -> None:
        while not self._stop_requested.is_set():
            try:
                self._partitions = _partitions(self._endpoints, self._topic)
                self._take_part()
            except (UnreachableError, LoginError, kafka.NoLeaderError) as error:
                self._failed(error)
            except TopicbergError as error:
                self._hold_everything(error)
                return
            except Exception as error:  # of Kafka's client, or of what gives up topics
                self._failed(TopicbergError(f"consumer group {self._group}: {error!r}"))
            self._stop_requested.wait(RETRY_SECONDS)

    def _failed(self, error: TopicbergError) -> None:
        if self.error is None or self.error.message != error.message:
            logger.warning("%s; trying again", error)
            self.error = error
            self._changed()

    def _hold_everything(self, error: TopicbergError) -> None:
        """Work as the only member if Kafka allows no group: others may do the same work at once."""
        logger.error(
            "this engine takes all topics, and does not share them with other engines: %s; grant "
            "the rights to read, describe and create the topic %s and to read the group %s",
            *(error.message, self._topic, self._group),
        )
        self._set(frozenset(range(self._partitions)))

    def _set(self, held: frozenset[int] | None) -> None:
        with self.lock:
            self._held = held
            if held is not None:
                self.error = None
        self._changed()

    def _take_part(self) -> None:
        """Be a member until this process stops or is replaced, or Kafka refuses."""
        self._is_replaced = self._is_topicless = False
        consumer = Consumer(
            {
                "log_level": 2,
                **self._endpoints.kafka_config(),
                "client.id": self._member_name,
                "group.id": self._group,
                "group.instance.id": self._instance(False),
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(SESSION_SECONDS * 1000),
                "heartbeat.interval.ms": int(SESSION_SECONDS * 300),
                "max.poll.interval.ms": int(MAX_REBALANCE_SECONDS * 1000),
                "reconnect.backoff.max.ms": 2000,
                "enable.auto.commit": False,
                "error_cb": self._note_fatal,
            }
        )
        try:
            consumer.subscribe(
                [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            while not (self._stop_requested.is_set() or self._is_replaced or self._is_topicless):
                message = consumer.poll(_POLL_SECONDS)
                if message is not None and (error := message.error()):
                    self._check(error)
            if self._stop_requested.is_set():  # closing a static member's consumer does not leave
                consumer.unsubscribe()
                deadline = time.monotonic() + _LEAVE_SECONDS
                while consumer.assignment() and time.monotonic() < deadline:
                    consumer.poll(0.1)
        finally:
            consumer.close()
        if self._is_replaced:
            logger.error(
                "another engine has the identity of this one, perhaps as its state directory was "
                "copied; this one takes another identity"
            )
            self._instance(True)
            self._lost(consumer, [])

    def _check(self, error: KafkaError) -> None:
        """:raises TopicbergError: Kafka does not allow the group"""
        if error.code() in _NOT_ALLOWED:
            raise TopicbergError(
                f"Kafka refused the consumer group {self._group}: {error.str()}"
            ) from KafkaException(error)
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            self._is_topicless = True  # it was deleted, so create it again
        self._note_fatal(error)
        logger.debug("consumer group %s: %s", self._group, error.str())

    def _note_fatal(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID):
            self._is_replaced = True

    # Kafka's client calls these in this thread, within ``poll``.

    def _assigned(self, consumer: Consumer, new: list[TopicPartition]) -> None:
        starts: Any = [TopicPartition(place.topic, place.partition, 0) for place in new]
        consumer.incremental_assign(starts)
        if starts:
            consumer.pause(starts)
        held = (self._held or frozenset()) | {place.partition for place in new}
        if held != self._held:
            logger.info("this engine has %d of %d shares", len(held), self._partitions)
            self._set(held)

    def _revoked(self, consumer: Consumer, old: list[TopicPartition]) -> None:
        if self._held is not None and old:
            self._set(self._held - {place.partition for place in old})
            logger.info("this engine gives up %d shares", len(old))
            self._call_give_up(is_lost=False)
        consumer.incremental_unassign(old)

    def _lost(self, consumer: Consumer, old: list[TopicPartition]) -> None:
        if self._held is not None:
            logger.warning("this engine lost its topics: Kafka had no heartbeat of it in time")
            self._set(None)
            self._call_give_up(is_lost=True)
        if old:
            consumer.incremental_unassign(old)

    def _call_give_up(self, *, is_lost: bool) -> None:
        try:
            self._give_up(is_lost)
        except Exception:  # the partitions must be given up in any case
            logger.exception("unexpected failure")


def _partitions(endpoints: Endpoints, topic: str) -> int:
    """Return the number of partitions of the internal topic; create the topic if it is missing."""
    try:
        return kafka.partition_count(endpoints, topic)
    except kafka.NoSuchTopicError:
        kafka.ensure_internal_topic(topic, endpoints, PARTITIONS)
        return kafka.await_topic(endpoints, topic)


def holders(endpoints: Endpoints, group: str, names: list[str]) -> dict[str, str]:
    """Return name → the member that has it; a name that no member has is left out."""
    admin = kafka.admin_client(endpoints)
    future = admin.describe_consumer_groups([group], request_timeout=kafka.TIMEOUT_SECONDS)[group]
    described = kafka.result_of(future, endpoints, f"describe the consumer group {group}")
    by_place = {
        (place.topic, place.partition): member.client_id
        for member in described.members
        for place in (member.assignment.topic_partitions if member.assignment else ())
    }
    by_partition = {partition: member for (_, partition), member in by_place.items()}
    counts = [kafka.partition_count(endpoints, topic) for topic in {topic for topic, _ in by_place}]
    partitions = {name: partition_of(name, max(counts)) for name in names if counts}
    return {name: by_partition[p] for name, p in partitions.items() if p in by_partition}
