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
from topicberg.formats.subjects import WIRE_BYTES, SubjectReader
from topicberg.iceberg.erasure import Condition, Rows
from topicberg.kafka.consumer import messages
from topicberg.spark import F
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
    schema = Schema(*key.fields)
    values: Condition = {(f.name,): (key.value(f.name, f.field_type),) for f in key.fields}
    decoder = _Decoder(spec, layout, Rows(schema, (values,)), endpoints, config)
    return decoder.matching


class _Decoder:
    def __init__(
        self, spec: TopicSpec, layout: Layout, rows: Rows, endpoints: Endpoints, config: Settings
    ) -> None:
        self._layout, self._rows = layout, rows
        registry = endpoints.schema_registry_client()
        self._foreign = ForeignSchemas(SubjectReader(registry))
        self._framing = framing(spec, endpoints, registry)
        if self._framing is not None:
            log = kafka.topic_log(endpoints, spec.name)
            self._framing.learn_from(log.beginning, log.end)
        self._sessions = Sessions(endpoints, config)

    def matching(self, raws: Collection[bytes]) -> set[bytes]:
        from topicberg.formats.sql import spark_type
        from topicberg.spark import quote

        if not raws:
            return set()
        half, fields = self._layout.key, self._rows.schema.fields
        assert half.subject is not None  # noqa: S101  see matching_keys()
        ids = {int.from_bytes(raw[1:WIRE_BYTES], "big") for raw in raws if raw[:1] == b"\0"}
        self._foreign.begin_batch()
        self._foreign.look_up(sorted(ids - half.subject.schemas.keys()))
        listed = sorted(raws)
        spark = self._sessions.take()
        try:
            types = (f"CAST(NULL AS {spark_type(f.field_type)}) AS {quote(f.name)}" for f in fields)
            columns = spark.sql(f"SELECT {', '.join(types)}").schema
            given = pa.table({"raw": pa.array(listed, pa.binary())})
            frame = spark.createDataFrame(given).select(
                "raw", F.col("raw").alias(KEY), F.lit(None).cast("binary").alias("value")
            )
            if self._framing is not None:
                frame = self._framing.framed(frame, self._layout)
            writers = Writers(half, self._foreign, fields)
            frame, decoded, names = decode_half(frame, writers, fields, columns, {})
            values = (decoded.getField(name).alias(name) for name in names)
            is_decoded = F.coalesce(decoded.getField(DECODED), F.lit(False))
            found = frame.filter(is_decoded).select(F.col("raw").alias(_RAW), *values).toArrow()
        finally:
            self._sessions.discard(spark)
        same = self._rows.among(found)
        decoded_raws = found.column(_RAW).to_pylist()
        return {raw for raw, is_same in zip(decoded_raws, same, strict=True) if is_same}
