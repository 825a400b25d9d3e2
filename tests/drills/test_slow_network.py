"""A slow network that loses connections, between the engine and each service.

Not to Kafka: its clients go where the broker says that it is, past any link.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

import pytest
from kafka_topics import ORDER, Topic
from slow_network import SlowLink

from topicberg.errors import TopicbergError
from topicberg.errors.meaning import explain

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
SERVICES = ("schema_registry", "iceberg_rest", "s3")
LATENCY_SECONDS = 0.1
LOSS = 0.05
LIMIT_SECONDS = 240.0
BATCHES = 6


@pytest.mark.parametrize("service", SERVICES)
def test_engine_over_a_slow_network_loses_and_repeats_nothing(
    make_topic: Callable[..., Topic], service: str
) -> None:
    """It continues after each failure, as the service does; failures are errors with a hint."""
    topic: Topic = make_topic()
    topic.send(ORDER, [{"id": 0, "note": "before"}])
    topic.ingest()
    url = urlsplit(str(getattr(topic.endpoints, service)))
    assert url.port
    with SlowLink(url.port, LATENCY_SECONDS, LOSS) as link:
        slow = urlunsplit(url._replace(netloc=f"127.0.0.1:{link.port}"))
        fast = topic.endpoints
        topic.endpoints = fast.model_copy(update={service: slow})
        deadline = time.monotonic() + LIMIT_SECONDS
        failures: list[TopicbergError] = []
        for number in range(1, BATCHES + 1):
            topic.send(ORDER, [{"id": number, "note": "during"}])
            while (error := _failure(topic)) is not None:
                failures.append(error)
                assert error.hint, error
                assert time.monotonic() < deadline, failures
        assert link.passed
    topic.endpoints = fast
    assert [row["id"] for row in topic.rows("id")] == list(range(BATCHES + 1))


def _failure(topic: Topic) -> TopicbergError | None:
    """Return why a batch fails, as the service reports it; None: it does not."""
    try:
        topic.ingest()
    except TopicbergError as error:
        return error
    except Exception as error:
        return explain(f"topic {topic.spec.name}", error)
    return None
