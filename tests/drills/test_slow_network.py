"""A slow network that loses connections, between the engine and each service.

Not to Kafka: its clients go where the broker says that it is, past any link.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit

import pytest
from kafka_topics import ORDER, Topic

from topicberg.errors import TopicbergError
from topicberg.errors.meaning import explain

pytestmark = [pytest.mark.integration, pytest.mark.slow]


_RESET = struct.pack("ii", 1, 0)
"""Closing sends RST: what is on the way is lost."""


@dataclass
class SlowLink:
    """``with SlowLink(port) as link:`` passes on bytes at ``link.port``.

    :param target: port of the service on loopback
    :param latency_seconds: of each piece of a request or a response
    :param loss: the share of pieces with which their connection is lost
    """

    target: int
    latency_seconds: float = 0.0
    loss: float = 0.0
    seed: int = 1
    passed: int = 0
    """Pieces that were passed on."""
    lost: int = 0
    """Connections that were lost."""
    port: int = 0
    _ready: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> SlowLink:
        self._random = Random(self.seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self.target)
        ways = [
            asyncio.ensure_future(self._pass(reader, there[1])),
            asyncio.ensure_future(self._pass(there[0], writer)),
        ]
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        lost = any(way.exception() is not None for way in done)
        for way in ways:
            way.cancel()
        for end in (writer, there[1]):
            if lost:
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.transport.abort()
            end.close()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """:raises ConnectionResetError: the connection is lost"""
        while piece := await source.read(256 * 1024):
            await asyncio.sleep(self.latency_seconds)
            if self._random.random() < self.loss:
                self.lost += 1
                raise ConnectionResetError
            target.write(piece)
            await target.drain()
            self.passed += 1


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
        slow, fast = urlunsplit(url._replace(netloc=f"127.0.0.1:{link.port}")), topic.endpoints
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
