"""Read records of a topic into arrays.

librdkafka, which the Python client is built on, hands over batches of messages by its C interface.
Compiled code copies their bytes, without a Python object for each record: reading 1 million small
records so takes 0.5 s of CPU time. An installation without a librdkafka that can be loaded reads
the same arrays by the Python client, in 1.4 s.
"""

from __future__ import annotations

import ctypes
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Self

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from topicberg.errors import TopicbergError, first_line
from topicberg.formats.columnar.program import NotCoveredError
from topicberg.kafka.librdkafka import EVENT, FULL, gather, library
from topicberg.kafka.offsets import Ranges
from topicberg.kafka.records import (
    DAMAGED,
    READ_SECONDS,
    DamagedRecordsError,
    FetchError,
    Records,
    unreadable,
)

logger = logging.getLogger(__name__)
_MESSAGES = 10_000  # Messages that librdkafka returns at most at once.
_WAIT_MS = 10
"""How long librdkafka waits for as many messages as are requested: it returns fewer then."""
_SILENT_SECONDS = 5.0  # After which Kafka is asked what is wrong with the topic.
_GONE = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART)
_CONSUMER = 1
_PARTITION_EOF = -191
_RETRIED = frozenset({-195, -187, -193, -185})
"""Errors after which librdkafka tries again: transport, all brokers down, resolve, timed out."""
_OAUTH = "oauth_cb"
_TOKEN_PAUSE = 10.0  # Seconds after which a token that could not be computed is tried again.


class Fetcher(ABC):
    """Reads exactly some offsets of a topic; a context manager."""

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._source = config, topic

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Close the client."""

    def fill(self, records: Records) -> Iterator[Records]:
        """Yield the records in parts that fit the arrays, in the order of each partition.

        :raises FetchError: Kafka returns an error, or no record in time
        :raises DamagedRecordsError: what Kafka has cannot be read
        """
        since, is_checked = time.monotonic(), False
        records.clear()
        while self._continues():
            before, is_full = records.count, self._copy(records)
            silent = time.monotonic() - since
            if records.count > before:
                since, is_checked = time.monotonic(), False
            elif silent > READ_SECONDS:
                raise FetchError(f"Kafka returned no record for {READ_SECONDS:.0f} s")
            elif silent > _SILENT_SECONDS and not is_checked:
                is_checked = True
                self._require_topic()
            if is_full and not records.count:
                records.grow()
            elif is_full:
                yield records
                records.clear()
                since = time.monotonic()
        if records.count:
            yield records

    def _require_topic(self) -> None:
        """Ask Kafka what is wrong with a silent topic: librdkafka does not report a topic that it
        may not see any more to a consumer with assigned partitions."""
        error = self._topic_error()
        if error is not None and error.code() in _GONE:
            text = f"topic {self._source[1]} cannot be read: {error.str()}"
            raise FetchError(text) from KafkaException(error)

    def _topic_error(self) -> KafkaError | None:
        config, topic = self._source
        with suppress(KafkaException), closing(Consumer(dict(config))) as client:  # no answer
            error: KafkaError | None = (
                client.list_topics(topic, _SILENT_SECONDS).topics[topic].error
            )
            return error
        return None

    @abstractmethod
    def _continues(self) -> bool:
        """Return whether records may be left."""

    @abstractmethod
    def _copy(self, records: Records) -> bool:
        """Add records that have arrived; return whether the next one needs more room."""


def fetcher(config: Mapping[str, Any], topic: str, ranges: Ranges) -> Fetcher:
    """Return what reads some offsets, by librdkafka's configuration, without its functions."""
    ranges = {p: span for p, span in ranges.items() if span[0] < span[1]}
    try:
        return _CompiledFetcher(config, topic, ranges)
    except NotCoveredError as error:
        if str(error) not in _warned:
            _warned.add(str(error))
            logger.warning("records are read by the Python client, more slowly: %s", error)
        return _ClientFetcher(config, topic, ranges)


_warned: set[str] = set()


class _CompiledFetcher(Fetcher):
    """Reads by librdkafka's C interface."""

    def __init__(self, config: Mapping[str, Any], topic: str, ranges: Ranges) -> None:
        """:raises NotCoveredError: librdkafka is missing, or refuses the configuration"""
        super().__init__(config, topic)
        self._library = library()
        self._ends = np.full(max(ranges, default=-1) + 1, -1, np.int64)
        self._reached = np.zeros(len(self._ends), np.int64)
        """For each partition, the offset after the last record that was copied."""
        for partition, (start, end) in ranges.items():
            self._ends[partition], self._reached[partition] = end, start
        self._left = sum(end - start for start, end in ranges.values())
        """The most records that are still to be copied; offsets may have none."""
        self._messages = np.zeros(_MESSAGES, np.int64)
        self._next = self._held = 0
        """Messages that librdkafka returned and that are still to be copied."""
        self._scratch = np.zeros(8, np.int64)
        self._client = self._connect(config)
        try:
            self._token = _Token(self._client, config) if _OAUTH in config else None
            self._assign(topic, {p: start for p, (start, _) in ranges.items()})
        except BaseException:
            self._library.rd_kafka_destroy(self._client)
            raise
        self._queue = self._library.rd_kafka_queue_get_consumer(self._client)

    def _connect(self, config: Mapping[str, Any]) -> int:
        problem = ctypes.create_string_buffer(512)
        properties = self._library.rd_kafka_conf_new()
        texts = {name: str(value) for name, value in config.items() if not callable(value)}
        for name, text in texts.items():
            value = text.lower() if isinstance(config[name], bool) else text
            if self._library.rd_kafka_conf_set(
                properties, name.encode(), value.encode(), problem, len(problem)
            ):
                self._library.rd_kafka_conf_destroy(properties)
                raise NotCoveredError(f"librdkafka does not accept {name}")
        if not (client := self._library.rd_kafka_new(_CONSUMER, properties, problem, len(problem))):
            self._library.rd_kafka_conf_destroy(properties)
            raise NotCoveredError("librdkafka does not start with the configuration of Kafka")
        self._library.rd_kafka_poll_set_consumer(client)
        return int(client)

    def _assign(self, topic: str, starts: Mapping[int, int]) -> None:
        assignment = self._library.rd_kafka_topic_partition_list_new(len(starts))
        for partition, offset in starts.items():
            self._library.rd_kafka_topic_partition_list_add(assignment, topic.encode(), partition)
            self._library.rd_kafka_topic_partition_list_set_offset(
                assignment, topic.encode(), partition, offset
            )
        failed = self._library.rd_kafka_assign(self._client, assignment)
        self._library.rd_kafka_topic_partition_list_destroy(assignment)
        if failed:
            raise FetchError(
                f"partitions cannot be assigned: {self._text(failed)}"
            ) from KafkaException(KafkaError(failed))

    def __exit__(self, *_: object) -> None:
        for message in self._messages[self._next : self._held]:
            self._library.rd_kafka_message_destroy(ctypes.c_void_p(int(message)))
        self._library.rd_kafka_queue_destroy(self._queue)
        self._library.rd_kafka_consumer_close(self._client)
        self._library.rd_kafka_destroy(self._client)

    def _text(self, code: int) -> str:
        return str(self._library.rd_kafka_err2str(code).decode())

    def _continues(self) -> bool:
        return bool((self._ends >= 0).any()) or self._next < self._held

    def _copy(self, records: Records) -> bool:
        if self._next == self._held:
            self._receive()
        before = records.count
        self._next, records.count, why = gather(
            records, self._messages, self._held, self._next, self._ends, self._scratch
        )
        new = slice(before, records.count)
        np.maximum.at(self._reached, records.partitions[new], records.offsets[new] + 1)
        self._left -= records.count - before
        if why == EVENT:
            self._handle()
        return why == FULL

    def _receive(self) -> None:
        """Take what librdkafka has, up to what is still to be copied."""
        if self._token is not None:
            self._token.renew()
        returned = self._library.rd_kafka_consume_batch_queue(
            *(self._queue, _WAIT_MS, self._messages.ctypes.data), min(_MESSAGES, max(1, self._left))
        )
        self._next, self._held = 0, max(0, returned)

    def _handle(self) -> None:
        """Handle an event: the end of a partition, or an error."""
        message = int(self._messages[self._next])
        code = ctypes.c_int32.from_address(message).value
        partition = ctypes.c_int32.from_address(message + 16).value
        offset = ctypes.c_int64.from_address(message + 56).value
        reason = self._library.rd_kafka_message_errstr(ctypes.c_void_p(message)) or b""
        self._next += 1
        self._library.rd_kafka_message_destroy(ctypes.c_void_p(message))
        if code == _PARTITION_EOF:
            if partition < len(self._ends) and 0 <= self._ends[partition] <= offset:
                self._ends[partition] = -2
        elif code not in _RETRIED:
            text = f"{self._text(code)}: {reason.decode(errors='replace')}"
            reached = int(self._reached[partition]) if partition < len(self._reached) else 0
            if 0 <= partition < len(self._ends) and _is_behind(
                code, max(offset, reached), int(self._ends[partition])
            ):
                self._ends[partition] = -2
                return
            raise _failure(code, partition, max(offset, reached), text) from KafkaException(
                KafkaError(code, text)
            )


class _Token:
    """The token of a login that Python computes, of one client. Without one, there is a FetchError.

    Source: ``rd_kafka_oauthbearer_set_token``, and :class:`confluent_kafka.Consumer` for
    ``oauth_cb``: given ``sasl.oauthbearer.config``, it returns the token and when it expires
    (seconds since 1970), and perhaps the principal and the SASL extensions.
    """

    def __init__(self, client: int, config: Mapping[str, Any]) -> None:
        """:raises FetchError: see :meth:`_give`"""
        self._library, self._client = library(), client
        self._compute: Callable[[str], tuple[Any, ...]] = config[_OAUTH]
        self._given = str(config.get("sasl.oauthbearer.config", ""))
        self._until, self._renew_at = self._give()

    def renew(self) -> None:
        """Give the client another token when four fifths of the time of its last one are over."""
        if time.time() < self._renew_at:
            return
        try:
            self._until, self._renew_at = self._give()
        except FetchError as error:
            if time.time() >= self._until:
                raise
            logger.warning("%s; trying again", error)
            self._renew_at = time.time() + _TOKEN_PAUSE

    def _give(self) -> tuple[float, float]:
        """Give the client a token; return when it expires, and when to renew it."""
        now, problem = time.time(), ctypes.create_string_buffer(512)
        try:
            token, until, *more = self._compute(self._given)
        except Exception as error:
            raise FetchError(f"there is no token for Kafka: {first_line(error)}") from error
        principal = more[0] if more else ""
        extensions: Mapping[str, str] = more[1] if len(more) > 1 else {}
        words = [text.encode() for item in extensions.items() for text in item]
        failed = self._library.rd_kafka_oauthbearer_set_token(
            *(self._client, token.encode(), int(until * 1000), (principal or "").encode()),
            *((ctypes.c_char_p * len(words))(*words), len(words), problem, len(problem)),
        )
        if failed:
            reason = problem.value.decode(errors="replace")
            raise FetchError(f"librdkafka does not accept the token of the login: {reason}")
        return until, now + (until - now) * 0.8


def _is_behind(code: int, offset: int, end: int) -> bool:
    """Return whether what Kafka returns is behind ``end``, or the partition is read (negative)."""
    return end < 0 or (code in DAMAGED and offset >= end)


def _failure(code: int, partition: int, offset: int, reason: str) -> TopicbergError:
    """Return the error of a partition, whose next record has this offset."""
    if code in DAMAGED:
        text = f"partition {partition}, offset {offset}: {unreadable(code, reason)}"
        return DamagedRecordsError(text, partition, offset)
    return FetchError(f"partition {partition}: Kafka returns an error: {reason}")


class _ClientFetcher(Fetcher):
    """Reads by the Python client."""

    def __init__(self, config: Mapping[str, Any], topic: str, ranges: Ranges) -> None:
        super().__init__(config, topic)
        self._ends = {partition: end for partition, (_, end) in ranges.items()}
        self._messages: list[Message] = []
        """Records that the client returned and that are still to be copied."""
        self._consumer = Consumer(dict(config))
        self._reached = {partition: start for partition, (start, _) in ranges.items()}
        self._consumer.assign([TopicPartition(topic, p, at) for p, at in self._reached.items()])

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _continues(self) -> bool:
        return bool(self._ends or self._messages)

    def _copy(self, records: Records) -> bool:
        if not self._messages:
            # It waits until it has all of them, so the wait is as short as that of compiled code.
            self._messages = self._wanted(self._consumer.consume(_MESSAGES, _WAIT_MS / 1000))
        self._messages = self._messages[records.append(self._messages) :]
        return bool(self._messages)

    def _wanted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that are records to read; raise what :meth:`fill` raises."""
        wanted = []
        for message in messages:
            partition, offset, error = message.partition(), message.offset(), message.error()
            end = self._ends.get(partition or 0, -1)
            if error is not None and error.code() not in (_PARTITION_EOF, *_RETRIED):
                reached = max(offset or 0, self._reached.get(partition or 0, 0))
                if partition in self._reached and _is_behind(error.code(), reached, end):
                    self._ends.pop(partition or 0, None)
                    continue
                raise _failure(
                    error.code(), partition or 0, reached, error.str()
                ) from KafkaException(error)
            if end < 0 or offset is None or (error and error.code() in _RETRIED):
                continue
            if error is None and offset < end:
                wanted.append(message)
                self._reached[partition or 0] = offset + 1
            if offset + (error is None) >= end:
                del self._ends[partition or 0]
        return wanted
