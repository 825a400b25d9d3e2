"""The records of a key in Kafka: which raw keys it has, and the tombstones that delete them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema

from topicberg import kafka
from topicberg.errors import TopicbergError
from topicberg.formats import DECODED
from topicberg.formats.sql import spark_type
from topicberg.formats.subjects import WIRE_BYTES, SubjectReader
from topicberg.iceberg.erasure import Condition, Rows
from topicberg.kafka.consumer import messages
from topicberg.spark import F, quote
from topicberg.tableflow.foreign import ForeignSchemas
from topicberg.tableflow.framing import framing
from topicberg.tableflow.layout import KEY, Layout
from topicberg.tableflow.rows import Writers, decode_half
from topicberg.tableflow.sessions import Sessions

if TYPE_CHECKING:
    from confluent_kafka import Message

    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings
    from topicberg.tableflow.forgetting.key import Key
    from topicberg.topics import TopicSpec

CHUNK = 200_000
"""Records of a topic that are read before their keys are compared."""
FOREVER_MS = 2**62
_RAW = "__topicberg_raw"

Matching = Callable[[Collection[bytes]], set[bytes]]
"""Returns which of some raw keys are the key."""


@dataclass
class Records:
    """What a topic has of a key."""

    topic: str
    compacted: bool
    newest: dict[tuple[bytes, int], bool] = field(default_factory=dict)
    """Raw key and partition → whether the newest record is a tombstone; of a compacted topic."""
    count: int = 0
    """Records with a value, of a compacted topic."""
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


def described_topic(endpoints: Endpoints, topic: str) -> Records:
    """Return how a topic keeps records, without any record.

    :raises NoSuchTopicError: there is no such topic
    """
    settings = kafka.topic_config(endpoints, topic)
    compacted = kafka.is_compacted(settings.get("cleanup.policy"))
    return Records(topic, compacted, kept_ms=_kept_ms(settings, compacted))


def records_of(endpoints: Endpoints, topic: str, matching: Matching) -> Records:
    """Return what a topic has of a key; a compacted topic is read from its beginning.

    :raises TopicbergError: there is no such topic, or Kafka does not answer
    """
    found = described_topic(endpoints, topic)
    if not found.compacted:
        return found
    log = kafka.topic_log(endpoints, topic)
    ranges = {p: (log.beginning.get(p, 0), end) for p, end in log.end.items()}
    read = _keyed(messages(endpoints, topic, ranges))
    while some := list(islice(read, CHUNK)):
        matched = matching({raw for raw, _, _ in some})
        for raw, partition, is_tombstone in some:
            if raw in matched:
                found.newest[raw, partition] = is_tombstone
                found.count += not is_tombstone
    return found


def _keyed(read: Iterator[Message]) -> Iterator[tuple[bytes, int, bool]]:
    for message in read:
        if (key := message.key()) is not None:
            yield key, message.partition() or 0, message.value() is None


def _kept_ms(settings: Mapping[str, str | None], compacted: bool) -> int:
    """Return how long after it is written Kafka keeps a record at most.

    It deletes whole segments: a segment is written to for ``segment.ms`` at most.
    """

    def of(name: str) -> int:
        number = int(settings.get(name) or -1)
        return FOREVER_MS if number < 0 else number

    limit = of("max.compaction.lag.ms") if compacted else FOREVER_MS
    if "delete" in (settings.get("cleanup.policy") or ""):
        limit = min(limit, of("retention.ms"))
    return min(FOREVER_MS, limit + of("segment.ms"))


def write_tombstones(endpoints: Endpoints, found: Records) -> int:
    """Write a tombstone for each raw key whose newest record is not one; return how many.

    :raises TopicbergError: Kafka does not take them
    """
    from confluent_kafka import Producer

    if not (pending := found.pending):
        return 0
    refused: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            refused.append(str(error))

    login = endpoints.kafka_config(writes=True)
    producer = Producer({"log_level": 2, "enable.idempotence": True, **login})
    for raw, partition in pending:
        producer.produce(found.topic, None, raw, partition, on_delivery=delivered)
    if producer.flush(60) or refused:
        reason = refused[0] if refused else "no answer within 60 s"
        raise TopicbergError(
            f"topic {found.topic}: Kafka does not take {len(pending)} tombstones: {reason}",
            hint="check the rights to write to the topic, and run the command again",
        )
    for place in pending:
        found.newest[place] = True
    return len(pending)


def matching_keys(
    spec: TopicSpec, layout: Layout, key: Key, endpoints: Endpoints, config: Settings
) -> Matching:
    """Return what finds the raw keys of a topic that are a key.

    Keys with a schema are decoded as the engine decodes them, by Spark.
    """
    if layout.key.subject is None:
        (name,) = (each.name for each in key.fields)
        wanted = key.value(name, key.fields[0].field_type)
        return lambda raws: {raw for raw in raws if raw == wanted}
    values: Condition = {(f.name,): (key.value(f.name, f.field_type),) for f in key.fields}
    rows = Rows(Schema(*key.fields), (values,))
    types = (f"CAST(NULL AS {spark_type(f.field_type)}) AS {quote(f.name)}" for f in key.fields)
    no_row = f"SELECT {', '.join(types)}"
    registry = endpoints.schema_registry_client()
    foreign, framed = ForeignSchemas(SubjectReader(registry)), framing(spec, endpoints, registry)
    if framed is not None:
        log = kafka.topic_log(endpoints, spec.name)
        framed.learn_from(log.beginning, log.end)
    sessions, known = Sessions(endpoints, config), layout.key.subject.schemas.keys()

    def decoded(raws: Collection[bytes]) -> set[bytes]:
        if not raws:
            return set()
        ids = {int.from_bytes(raw[1:WIRE_BYTES], "big") for raw in raws if raw[:1] == b"\0"}
        foreign.begin_batch()
        foreign.look_up(sorted(ids - known))
        spark = sessions.take()
        try:
            columns = spark.sql(no_row).schema
            given = pa.table({"raw": pa.array(sorted(raws), pa.binary())})
            frame = spark.createDataFrame(given).select(
                "raw", F.col("raw").alias(KEY), F.lit(None).cast("binary").alias("value")
            )
            if framed is not None:
                frame = framed.framed(frame, layout)
            writers = Writers(layout.key, foreign, key.fields)
            frame, struct, names = decode_half(frame, writers, columns, {})
            members = (struct.getField(name).alias(name) for name in names)
            is_decoded = F.coalesce(struct.getField(DECODED), F.lit(False))
            found = frame.filter(is_decoded).select(F.col("raw").alias(_RAW), *members).toArrow()
        finally:
            sessions.discard(spark)
        pairs = zip(found.column(_RAW).to_pylist(), rows.among(found), strict=True)
        return {raw for raw, is_same in pairs if is_same}

    return decoded
