"""Produce generated records to a topic, in the Confluent wire format."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from io import BytesIO
from itertools import count as count_from
from itertools import islice
from random import Random
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from topicberg.datagen import record_generator
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.errors import TopicbergError
from topicberg.formats.framing import wire_prefix
from topicberg.kafka import topics as kafka
from topicberg.settings import Settings
from topicberg.topics import TopicSpec
from topicberg.topics.schema import read_schema
from topicberg.wording import count

TICK_SECONDS = 0.01
MAX_BACKLOG_SECONDS = 0.1
BATCH = 1000
"""Records allowed at once when there is no limit."""


class Pace:
    """Allows ``rate`` records a second, evenly; 0: as many as possible.

    At most a tenth of a second of lost time (a busy machine, a full queue) is made up for: a stall
    is never followed by a burst.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._last = clock()
        self._allowance = 0.0

    def allowed(self) -> int:
        """Return how many records are due now; they count as sent."""
        if not self.rate:
            return BATCH
        now = self._clock()
        backlog = self.rate * MAX_BACKLOG_SECONDS
        self._allowance += (now - self._last) * self.rate
        self._last = now
        if self._allowance >= backlog + 1:  # a stall; below it, no fraction of a record is lost
            self._allowance = max(1, int(backlog))
        due = int(self._allowance)
        self._allowance -= due
        return due

    def pause(self) -> float:
        """Return the seconds to wait before the next call."""
        if not self.rate:
            return 0.0
        return max(TICK_SECONDS, (1 - self._allowance) / self.rate)


logger = logging.getLogger(__name__)
REPORT_SECONDS = 1.0
LOGIN_SECONDS = 300.0
STOP_FLUSH_SECONDS = 10.0
PRODUCER_CONFIG: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 20,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 200_000,
    "partitioner": "murmur2_random",  # keys go to the same partitions as with the Java producer
    "delivery.report.only.error": True,  # no Python call for each delivered record
}

Encoder = Callable[[dict[str, Any]], bytes]


class DeliveryError(TopicbergError):
    """Kafka refused a record."""


def avro_encoder(schema_text: str, schema_id: int) -> Encoder:
    """Return an encoder: record → magic byte 0, schema id (big-endian), Avro binary.

    The bytes are those of the client library's AvroSerializer, in a fifth of its time.

    :raises TopicbergError: (on encoding) the record does not fit the schema
    """
    from fastavro import parse_schema, schemaless_writer

    schema = parse_schema(json.loads(schema_text))
    prefix = wire_prefix(schema_id)

    def encode(record: dict[str, Any]) -> bytes:
        buffer = BytesIO()
        try:
            schemaless_writer(buffer, schema, record)
        except (ValueError, TypeError, KeyError) as error:
            raise TopicbergError(f"a record does not fit its schema: {error}") from error
        return prefix + buffer.getvalue()

    return encode


def json_encoder(schema_id: int) -> Encoder:
    """Return an encoder: record → magic byte 0, schema id (big-endian), JSON in UTF-8.

    A decimal becomes a number, as exact as a double is. The schema is not checked, because
    Confluent's serializers do not validate by default either.
    """
    prefix = wire_prefix(schema_id)
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_number).encode
    return lambda record: prefix + encode(record).encode()


def _number(value: Any) -> float:
    if not isinstance(value, Decimal):
        raise TopicbergError(f"a record has a {type(value).__name__}, which JSON cannot represent")
    return float(value)


def random_of(seed: int, generation: int) -> Random:
    """Return the random numbers of one run: by the seed, and different in each later run."""
    return Random(f"{seed}/{generation}")


class GeneratorRun:
    """One run of a topic's generator.

    :param count: stop after so many records; None: run until :meth:`stop`
    :param first_iteration: number of the first record, for its header ``current.iteration``
    """

    def __init__(
        self,
        spec: TopicSpec,
        endpoints: Endpoints,
        config: Settings,
        *,
        rate: float,
        count: int | None,
        seed: int,
        generation: int = 0,
        first_iteration: int = 0,
    ) -> None:
        if spec.generator is None:
            hint = "add `generator: {kind: …}` to its spec"
            raise TopicbergError(f"topic {spec.name} has no generator", hint=hint)
        self.spec, self._endpoints, self._config = spec, endpoints, config
        self._rate, self._count = rate, count
        generate = record_generator(spec.generator.kind, config)
        self._records = generate(random_of(seed, generation), seed)
        self._generation = str(generation).encode()
        self._iterations = count_from(first_iteration)
        self._stop = threading.Event()
        self._failure: DeliveryError | None = None

    def stop(self) -> None:
        """Send nothing more; records in flight are still delivered. Safe in a signal handler."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def run(self, report: Callable[[int], None]) -> None:
        """Produce until done: the broker has then acknowledged every record.

        :param report: called about every second, and at the end, with the number of records
            acknowledged
        :raises DeliveryError: Kafka refused a record
        """
        encode = self._encoder()
        tuning = self._endpoints.kafka_tuning("producer")
        login = self._endpoints.kafka_config(writes=True)
        producer = Producer({"log_level": 2, **PRODUCER_CONFIG, **tuning, **login})
        report(0)
        pace = Pace(self._rate)
        produced = 0
        reported_at = login_at = time.monotonic()
        while not self._stop.is_set() and self._failure is None:
            due = pace.allowed()
            if self._count is not None:
                due = min(due, self._count - produced)
            produced += self._produce(producer, encode, islice(self._records, due))
            producer.poll(0)
            if self._count is not None and produced >= self._count:
                break
            if time.monotonic() - reported_at >= REPORT_SECONDS:
                report(produced - len(producer))
                reported_at = time.monotonic()
            if time.monotonic() - login_at >= LOGIN_SECONDS:
                self._renew_login(producer)
                login_at = time.monotonic()
            self._stop.wait(pace.pause())
        self._flush(producer, produced, report)

    def _renew_login(self, producer: Producer) -> None:
        """Let later connections use the deployment's newest key: earlier ones are revoked."""
        if not self._endpoints.kafka_deployed:
            return
        try:
            login = load_endpoints(self._config).kafka_config(writes=True)
        except TopicbergError as error:
            logger.warning("the key of the deployment cannot be read again: %s", error)
        else:
            producer.set_sasl_credentials(login["sasl.username"], login["sasl.password"])

    def _encoder(self) -> Encoder:
        ensured = kafka.ensure_topic(self.spec, self._endpoints, self._config, recreate=True)
        path = self.spec.schema_path("value", self._config)
        kind, schema_id = self.spec.value_schema.format, ensured.value_schema_id
        if path is None or schema_id is None or kind not in ("avro", "json"):
            text = f"the generator writes Avro or JSON, the schema's format is {kind}"
            raise TopicbergError(f"topic {self.spec.name}: {text}")
        if kind == "json":
            return json_encoder(schema_id)
        return avro_encoder(read_schema(path, kind).text, schema_id)

    def _produce(
        self, producer: Producer, encode: Encoder, records: Iterator[dict[str, Any]]
    ) -> int:
        """Queue the records, waiting while the queue is full; return how many were queued."""
        topic, key_field = self.spec.name, self.spec.key.field
        generation, produced = self._generation, 0
        for record, iteration in zip(records, self._iterations, strict=False):
            value = encode(record)
            key = str(record[key_field]).encode() if key_field else None
            headers: list[tuple[str, str | bytes | None]] = [
                ("task.generation", generation),
                ("task.id", b"0"),
                ("current.iteration", str(iteration).encode()),
            ]
            while True:
                try:
                    failed = self._on_failure
                    producer.produce(topic, value, key, headers=headers, on_delivery=failed)
                except BufferError:
                    producer.poll(0.1)
                    if self._stop.is_set() or self._failure:
                        return produced
                except KafkaException as error:
                    self._on_failure(error.args[0], None)
                    return produced
                else:
                    break
            produced += 1
        return produced

    def _on_failure(self, error: KafkaError | None, _: Message | None) -> None:
        if error is not None and self._failure is None:
            text = f"topic {self.spec.name}: Kafka refused a record: {error.str()}"
            self._failure = DeliveryError(text)
            self._failure.__cause__ = KafkaException(error)

    def _flush(self, producer: Producer, produced: int, report: Callable[[int], None]) -> None:
        """Wait for every acknowledgement."""
        waited = 0.0
        while (waiting := producer.flush(REPORT_SECONDS)) and self._failure is None:
            report(produced - waiting)
            waited += REPORT_SECONDS
            if self._stop.is_set() and waited >= STOP_FLUSH_SECONDS:
                self._failure = DeliveryError(
                    f"topic {self.spec.name}: {count(waiting, 'record')} not acknowledged "
                    f"within {STOP_FLUSH_SECONDS:.0f} s after the stop"
                )
        if self._failure is not None:
            raise self._failure
        report(produced)
