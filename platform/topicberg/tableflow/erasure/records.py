"""The records of a key in Kafka: which raw keys it has, and the tombstones that delete them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Message, Producer
from pyiceberg.schema import Schema

from topicberg.endpoints import Endpoints
from topicberg.endpoints.schemas import schema_readers
from topicberg.errors import TopicbergError
from topicberg.formats.framing import HEADERS, header_of
from topicberg.formats.reasons import MalformedError
from topicberg.kafka import consumer
from topicberg.kafka import topics as kafka
from topicberg.kafka.records import headers_of
from topicberg.tableflow.decode.columns import decode_raw
from topicberg.tableflow.decode.raw_keys import KeyFraming
from topicberg.tableflow.erasure.key import Key
from topicberg.tableflow.erasure.matching import Condition, Rows
from topicberg.tableflow.layout.framing import framing
from topicberg.tableflow.layout.layout import foreign_schemas
from topicberg.tableflow.layout.message_fields import KEY, Layout
from topicberg.tableflow.layout.writers import Writers, message_decoder
from topicberg.topics import TopicSpec

CHUNK = 200_000  # Records of a topic that are read before their keys are compared.
FOREVER_MS = 2**62


class KafkaKey(NamedTuple):
    """A key as Kafka has it, and the header that names its schema, if there is one."""

    raw: bytes
    header: bytes | None = None


Matching = Callable[[Collection[KafkaKey]], set[KafkaKey]]  # Returns those that are the key.


@dataclass
class KeyRecords:
    """What a topic has of a key."""

    topic: str
    compacted: bool
    newest: dict[tuple[bytes, int], bool] = field(default_factory=dict)
    """Raw key and partition → whether the newest record is a tombstone; of a compacted topic."""
    headers: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    """Raw key and partition → the header that names the key's schema, if it has one."""
    count: int = 0  # Records with a value, of a compacted topic.
    kept_ms: int = FOREVER_MS
    """How long Kafka keeps a record at most, for a topic that is not compacted; or after its
    tombstone."""

    @property
    def pending(self) -> list[tuple[bytes, int]]:
        """The keys without a tombstone, and their partitions."""
        return [place for place, is_tombstone in self.newest.items() if not is_tombstone]

    def until(self) -> float | None:
        """Return until when Kafka may keep records that it has now; None: there is no limit."""
        return None if self.kept_ms >= FOREVER_MS else time.time() + self.kept_ms / 1000


def described_topic(endpoints: Endpoints, topic: str) -> KeyRecords:
    """Return how a topic keeps records, without any record.

    :raises NoSuchTopicError: there is no such topic
    """
    settings = kafka.topic_config(endpoints, topic)
    compacted = kafka.is_compacted(settings.get("cleanup.policy"))

    def limit_of(name: str) -> int:
        number = int(settings.get(name) or -1)
        return FOREVER_MS if number < 0 else number

    limit = limit_of("max.compaction.lag.ms") if compacted else FOREVER_MS
    if "delete" in (settings.get("cleanup.policy") or ""):
        limit = min(limit, limit_of("retention.ms"))
    # Kafka deletes whole segments: a segment is written to for `segment.ms` at most.
    return KeyRecords(topic, compacted, kept_ms=min(FOREVER_MS, limit + limit_of("segment.ms")))


def records_of(endpoints: Endpoints, topic: str, matching: Matching) -> KeyRecords:
    """Return what a topic has of a key; a compacted topic is read from its beginning.

    :raises TopicbergError: there is no such topic, or Kafka does not answer
    """
    records = described_topic(endpoints, topic)
    if not records.compacted:
        return records
    log = kafka.topic_log(endpoints, topic)
    ranges = {p: (log.beginning.get(p, 0), end) for p, end in log.end.items()}
    read = _keyed(consumer.messages(endpoints, topic, ranges))
    while some := list(islice(read, CHUNK)):
        matched = matching({key for key, _, _ in some})
        for key, partition, is_tombstone in some:
            if key in matched:
                records.newest[key.raw, partition] = is_tombstone
                if key.header is not None:
                    records.headers[key.raw, partition] = key.header
                records.count += not is_tombstone
    return records


def _keyed(read: Iterator[Message]) -> Iterator[tuple[KafkaKey, int, bool]]:
    for message in read:
        if (raw := message.key()) is not None:
            key = KafkaKey(raw, header_of(KEY, headers_of(message) or ()))
            yield key, message.partition() or 0, message.value() is None


def write_tombstones(endpoints: Endpoints, records: KeyRecords) -> int:
    """Write a tombstone for each raw key whose newest record is not one; return how many.

    :raises TopicbergError: Kafka does not take them
    """
    if not (pending := records.pending):
        return 0
    refused = list[str]()

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            refused.append(str(error))

    login = endpoints.kafka_config(writes=True)
    producer = Producer({"log_level": 2, "enable.idempotence": True, **login})
    for raw, partition in pending:
        header = records.headers.get((raw, partition))
        named: Any = [] if header is None else [(HEADERS[KEY], header)]
        producer.produce(records.topic, None, raw, partition, on_delivery=delivered, headers=named)
    if producer.flush(60) or refused:
        reason = refused[0] if refused else "no answer within 60 s"
        raise TopicbergError(
            f"topic {records.topic}: Kafka does not take {len(pending)} tombstones: {reason}",
            hint="check the rights to write to the topic, and run the command again",
        )
    records.newest |= dict.fromkeys(pending, True)
    return len(pending)


def matching_keys(spec: TopicSpec, layout: Layout, key: Key, endpoints: Endpoints) -> Matching:
    """Return what finds the raw keys that are a key; it decodes them as the engine does."""
    if layout.key.subject is None:
        wanted = key.raw()
        return lambda keys: {kafka_key for kafka_key in keys if kafka_key.raw == wanted}
    values: Condition = {(f.name,): (key.value(f.name, f.field_type),) for f in key.fields}
    rows = Rows(Schema(*key.fields), (values,))
    registry = endpoints.schema_registry_client()
    foreign = foreign_schemas(spec, schema_readers(endpoints, registry=registry))[KEY]
    if (changes := framing(spec, endpoints, registry)) is not None:
        log = kafka.topic_log(endpoints, spec.name)
        changes.learn_from(log.beginning, log.end)
    key_framing = KeyFraming(layout.key, foreign)

    def as_held(key: KafkaKey) -> bytes | None:
        """Return a key as tables hold it; None: nothing says what its schema is."""
        raw = key.raw
        if changes is not None and key.header is None:
            try:
                raw = changes.wire(layout.key, raw)
            except MalformedError:
                return None
        return key_framing.held(raw, key.header)

    def decoded(keys: Collection[KafkaKey]) -> set[KafkaKey]:
        found_keys = {key: as_held(key) for key in sorted(keys, key=lambda each: each.raw)}
        framed_keys = [(key, raw) for key, raw in found_keys.items() if raw is not None]
        matched = set[KafkaKey]()
        if not framed_keys:
            return matched
        decoder = message_decoder(Writers(layout.key, foreign, key.fields))
        raws = pa.array([raw for _, raw in framed_keys], pa.binary())
        for numbers, columns in decode_raw(decoder, raws):
            sliced = {name: column.slice(0, len(numbers)) for name, column in columns.items()}
            matched |= {framed_keys[n][0] for n in numbers[rows.among(pa.table(sliced))]}
        return matched

    return decoded
