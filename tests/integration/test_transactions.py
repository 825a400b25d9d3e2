"""Two producers with one transactional id: the earlier one is fenced off, whenever it notices."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka.admin import NewTopic
from waiting import wait_until

from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError
from topicberg.kafka import topics as kafka
from topicberg.kafka.transactions import transaction_errors, transactional_producer

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(stack: Endpoints) -> str:
    name = f"fenced_{uuid.uuid4().hex[:8]}"
    admin = kafka.admin_client(stack)  # which has to live until it has answered
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


@pytest.mark.parametrize("seconds", [0, 2])
def test_fenced_producer_reports_another_one(stack: Endpoints, topic: str, seconds: float) -> None:
    """It may notice while it still produces: librdkafka then says only that an error is fatal."""
    first, second = (transactional_producer(topic, stack, 60) for _ in range(2))

    def send() -> None:
        with transaction_errors("topic", hint="none"):
            first.begin_transaction()
            for number in range(3):
                kafka.produce(first, topic, b"%d" % number, None)
                time.sleep(seconds)
            first.commit_transaction(30)

    with pytest.raises(CommitConflictError, match="another producer took over"):
        send()
    second.begin_transaction()
    kafka.produce(second, topic, b"new", None)
    second.commit_transaction(30)
    # A record, and the marker of its transaction, which the broker writes a moment later.
    wait_until(lambda: kafka.end_offsets(stack, topic) == {0: 2}, 20)
