"""The ends of many topics' logs, which the engine polls together."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions, NewTopic
from kafka_topics import ORDER, Topic
from waiting import wait_until

from topicberg.kafka import ends
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import first_times, messages
from topicberg.kafka.ends import EndReader, Ends
from topicberg.kafka.topics import NoSuchTopicError

pytestmark = pytest.mark.integration
PATIENCE_SECONDS = 30


def test_ends_follow_topics(make_topic: Callable[..., Topic]) -> None:
    """Records, a transaction, a new partition, and a topic that is deleted and created again."""
    one, other = make_topic(), make_topic()
    admin, name = one.endpoints.kafka_admin(), one.spec.name
    one.send(ORDER, [{"id": 1, "note": "a"}], partition=1)
    reader = EndReader(one.endpoints)
    held = {topic.spec.name: {0: 0, 1: 0, 2: 0} for topic in (one, other)}

    def found(topic: str = name) -> Ends:
        read = reader.read(held)[topic]
        assert isinstance(read, Ends), read
        return read

    first = found()
    assert first == Ends(
        kafka.topic_id(one.endpoints, name), {0: 0, 1: 1, 2: 0}, {0: 0, 1: 1, 2: 0}
    )
    assert found(other.spec.name).high == {0: 0, 1: 0, 2: 0}
    config = {**one.endpoints.kafka_config(), "transactional.id": uuid.uuid4().hex}
    producer = Producer(config)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"not yet", partition=0)
    producer.flush(30)
    assert (found().high[0], found().stable[0]) == (1, 0)
    assert list(messages(one.endpoints, name, {0: (0, 1)}, may_end_early=True)) == []
    producer.commit_transaction(30)
    wait_until(lambda: found().stable[0] == 2, PATIENCE_SECONDS)
    read = list(messages(one.endpoints, name, {0: (0, 2), 1: (0, 1)}))
    assert sorted(message.partition() or 0 for message in read) == [0, 1]
    # Behind the only record of a partition is the end of a transaction, which has no time.
    times = first_times(one.endpoints, name, {0: 1, 1: 0}, is_needed=True)
    assert times.keys() == {1}
    admin.create_partitions([NewPartitions(name, 4)])[name].result(30)
    wait_until(lambda: found().high.get(3) == 0, PATIENCE_SECONDS)
    admin.delete_topics([name])[name].result(30)
    wait_until(lambda: isinstance(reader.read(held)[name], NoSuchTopicError), PATIENCE_SECONDS)
    began = time.monotonic()
    assert found(other.spec.name).high == {0: 0, 1: 0, 2: 0}
    assert time.monotonic() - began < ends.DESCRIBE_SECONDS
    admin.create_topics([NewTopic(name, 1)])[name].result(30)
    wait_until(lambda: isinstance(reader.read(held)[name], Ends), PATIENCE_SECONDS)
    assert found().topic_id != first.topic_id
    assert found().high == {0: 0}
