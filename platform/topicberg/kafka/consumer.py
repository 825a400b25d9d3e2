"""Read records of a topic in this process: exactly some offsets, or a sample.

For single records, and for sizes and times that are needed before a batch is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError, UnreachableError, see_whether_it_runs
from topicberg.kafka import topics as kafka
from topicberg.kafka.last_records import LastRecord, LastRecords, checksum
from topicberg.kafka.offsets import Ranges
from topicberg.kafka.records import (
    DAMAGED,
    READ_SECONDS,
    READER,
    DamagedRecordsError,
    epoch_of,
    unreadable,
)

SAMPLE_SECONDS = 3.0
SAMPLE_RECORDS, _SAMPLE_SPOTS = 3_000, 3
"""Offsets of a sample at most, of all partitions together, and its places in each one."""
NEEDED_SECONDS = 15.0
_SAMPLE_WAIT_SECONDS = 0.01
_SMALL_FETCH: dict[str, Any] = {"fetch.message.max.bytes": 64 * 1024}
"""Bytes of each partition that a request for its first records returns, at least one batch."""
SEARCHED_OFFSETS, NEAR_OFFSETS = 1_000, 100
"""Offsets of the first part of a search for a record; and those that are near another one."""
_SPOTS, _SPOTS_OF_A_SMALL_BATCH, _SMALL_BATCH = 5, 2, 4_000
_SAMPLED_RECORDS, _SAMPLED_BYTES, _SAMPLED_PARTITIONS = 50, 1_000_000, 12
_OF_FIRST = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, *DAMAGED)


def messages(
    endpoints: Endpoints,
    topic: str,
    ranges: Ranges,
    seconds: float = READ_SECONDS,
    *,
    may_end_early: bool = False,
) -> Iterator[Message]:
    """Yield the committed records of offset ranges, in the order of each partition.

    A broker that has just become the leader may return an earlier end than the one before. It is
    waited for, because the ranges are before the ends for a read_committed consumer.

    :param ranges: partition → first offset, and the offset after the last one
    :param may_end_early: the ranges may be after these ends, such as that of a record in an open
        transaction; then the end that a broker returns counts
    :raises DamagedRecordsError: the client cannot read what the broker has
    :raises UnreachableError: no record arrives for some ``seconds``
    """
    waiting = {partition: end for partition, (start, end) in ranges.items() if start < end}
    with _consumer(endpoints, topic, {p: ranges[p][0] for p in waiting}) as consumer:
        deadline = time.monotonic() + seconds
        while waiting:
            for message in _arrived(consumer, 0.2):
                partition, offset = message.partition(), message.offset()
                if partition not in waiting:
                    continue
                if error := message.error():
                    if error.code() != KafkaError._PARTITION_EOF:
                        _check_read(error, topic, partition, max(offset or 0, ranges[partition][0]))
                        continue
                    if not may_end_early and (offset or 0) < waiting[partition]:
                        continue
                elif offset is not None and offset < waiting[partition]:
                    yield message
                    deadline = time.monotonic() + seconds
                    if offset < waiting[partition] - 1:
                        continue
                del waiting[partition]
                consumer.incremental_unassign([TopicPartition(topic, partition)])
            if waiting and time.monotonic() > deadline:
                raise _no_record(endpoints, topic, min(waiting), seconds)


def readable_messages(
    endpoints: Endpoints,
    topic: str,
    ranges: Iterable[tuple[int, int, int]],
    damaged: list[tuple[int, range]],
) -> Iterator[Message]:
    """Yield the committed records of ranges that Kafka still has and the client can read.

    :param ranges: partition, first offset, and the offset after the last one
    :param damaged: gets partition and offsets of the batches that the client cannot read
    """
    most, beginning = cast("int", READER["receive.message.max.bytes"]), dict[int, int]()
    for partition, start, end in ranges:
        start = max(start, beginning.get(partition, 0))
        while start < end:
            try:
                for message in messages(endpoints, topic, {partition: (start, end)}):
                    start = (message.offset() or 0) + 1
                    yield message
                break
            except DamagedRecordsError as error:
                first = max(start, error.offset)
                start = batch_end(endpoints, topic, partition, first, end, most)
                damaged.append((partition, range(first, start)))
            except TopicbergError:
                beginning = kafka.beginning_offsets(endpoints, topic)
                if beginning.get(partition, 0) <= start:
                    raise
                start = beginning[partition]  # Kafka has deleted the records before it meanwhile.


def _no_record(endpoints: Endpoints, topic: str, partition: int, seconds: float) -> TopicbergError:
    """Return the error of a silent partition. librdkafka does not report a topic that it may not
    see to a consumer with assigned partitions, so Kafka is asked what is wrong with the topic."""
    try:
        kafka.describe(endpoints, topic)
    except TopicbergError as error:
        return error
    return UnreachableError(
        f"topic {topic}: partition {partition} cannot be read: no record within {seconds:.0f} s",
        hint=f"{see_whether_it_runs('Kafka')}; see whether the partition has a leader",
    )


def batch_end(
    endpoints: Endpoints, topic: str, partition: int, offset: int, end: int, max_bytes: int
) -> int:
    """Return the offset after the batch of records that the client cannot read at an offset.

    At any offset of a batch, Kafka returns all of it, and the client's error has its first offset.

    :param max_bytes: that the client may take for a batch: ``receive.message.max.bytes``
    """
    limits: dict[str, Any] = {"receive.message.max.bytes": max_bytes, **_SMALL_FETCH}
    with _consumer(endpoints, topic, {}, committed=False, **limits) as consumer:

        def first_offset(offset: int) -> int | None:
            consumer.assign([TopicPartition(topic, partition, offset)])
            message = _first(consumer, 1, READ_SECONDS).get(partition)
            return message.offset() if message is not None and _is_damaged(message) else None

        first, last = first_offset(offset), offset
        while first is not None and last + 1 < end:
            middle = (last + end) // 2
            if first_offset(middle) == first:
                last = middle
            else:
                end = middle
    return last + 1


def first_times(
    endpoints: Endpoints, topic: str, offsets: Mapping[int, int], *, is_needed: bool = False
) -> dict[int, int]:
    """Return partition → time (ms) of its record as :func:`first_messages` returns it, if any."""
    first = first_messages(endpoints, topic, offsets, is_needed=is_needed)
    return {p: message.timestamp()[1] for p, message in first.items() if message.error() is None}


def first_messages(
    endpoints: Endpoints,
    topic: str,
    offsets: Mapping[int, int],
    epochs: Mapping[int, int] | None = None,
    *,
    is_needed: bool = False,
    committed: bool = False,
) -> dict[int, Message]:
    """Return partition → the first record at an offset or later, by default committed or not.

    Instead of a record, it may be an error: that the partition ends there, that the record is
    damaged, or that the partition has no such offset.

    :param epochs: partition → leader epoch of the record before the offset. It is an error as well
        if the log has that epoch only up to an earlier offset (KIP-320)
    :param is_needed: wait for longer, and raise an error rather than leave out a partition whose
        record does not arrive in time
    :raises UnreachableError: see ``is_needed``
    """
    seconds = NEEDED_SECONDS if is_needed else SAMPLE_SECONDS
    level: Any = {"committed": committed, **_SMALL_FETCH}
    with _consumer(endpoints, topic, offsets, epochs, **level) as consumer:
        first = _first(consumer, len(offsets), seconds)
    if is_needed and (waiting := offsets.keys() - first.keys()):
        raise _no_record(endpoints, topic, min(waiting), seconds)
    return first


def _first(consumer: Consumer, partitions: int, seconds: float) -> dict[int, Message]:
    """Return the first message of each partition that arrives within some seconds."""
    first: dict[int, Message] = {}
    deadline = time.monotonic() + seconds
    while len(first) < partitions and time.monotonic() < deadline:
        if (message := consumer.poll(0.2)) is None:
            continue
        if (error := message.error()) is None or error.code() in _OF_FIRST:
            first.setdefault(message.partition() or 0, message)
    return first


def record_bytes(endpoints: Endpoints, topic: str, ranges: Ranges) -> list[float]:
    """Return the average size of the records at some spots of offset ranges, from first to last.

    :param ranges: partition → first offset, and the offset after the last one
    :returns: bytes per offset, at five evenly spaced offsets, or at both ends of fewer than 4,000:
        each spot takes a few percent of the time of such a batch; empty: nothing could be read
        within a few seconds
    """
    records = sum(end - start for start, end in ranges.values())
    last = (_SPOTS if records >= _SMALL_BATCH else _SPOTS_OF_A_SMALL_BATCH) - 1
    largest = sorted(ranges, key=lambda p: ranges[p][0] - ranges[p][1])[:_SAMPLED_PARTITIONS]
    averages: list[float | None] = []
    small: dict[str, Any] = {**_SMALL_FETCH, "queued.max.messages.kbytes": 4096}
    with _consumer(endpoints, topic, {}, committed=False, **small) as consumer:
        deadline = time.monotonic() + SAMPLE_SECONDS
        for number in range(last + 1):
            spots = {
                p: max(start, start + (end - start) * number // last - _SAMPLED_RECORDS)
                for p, (start, end) in ranges.items()
                if p in largest
            }
            sizes = _sample(consumer, topic, spots, deadline)
            weights = {p: ranges[p][1] - ranges[p][0] for p in sizes}
            total = sum(weights.values())
            averages.append(sum(sizes[p] * weights[p] for p in sizes) / total if total else None)
    known = [size for size in averages if size is not None]
    return [max(known) if size is None else size for size in averages] if known else []


def _sample(
    consumer: Consumer, topic: str, spots: Mapping[int, int], deadline: float
) -> dict[int, float]:
    """Return partition → bytes per offset, of the first records from these offsets on."""
    consumer.assign([TopicPartition(topic, p, offset) for p, offset in spots.items()])
    read: dict[int, list[int]] = {partition: [0, 0, 0] for partition in spots}
    waiting = set(spots)
    while waiting and time.monotonic() < deadline:
        # Other partitions return many more records meanwhile, so they are taken in groups.
        for message in _arrived(consumer, _SAMPLE_WAIT_SECONDS):
            partition = message.partition()
            if partition not in waiting or message.error():
                waiting.discard(partition or 0)  # its end, or a record that is not readable here
                continue
            assert partition is not None  # noqa: S101  see above
            sample = read[partition]
            sample[0] += len(message.value() or b"") + len(message.key() or b"")
            sample[1] = (message.offset() or 0) + 1 - spots[partition]
            sample[2] += 1
            if sample[0] >= _SAMPLED_BYTES or sample[2] >= _SAMPLED_RECORDS:
                waiting.discard(partition)
    return {p: size / span for p, (size, span, _) in read.items() if span}


def _arrived(consumer: Consumer, seconds: float) -> list[Message]:
    """Return up to 500 records as soon as there is one: ``consume`` alone would wait for all."""
    first = consumer.poll(seconds)
    return [] if first is None else [first, *consumer.consume(499, 0)]


@contextmanager
def _consumer(
    endpoints: Endpoints,
    topic: str,
    offsets: Mapping[int, int],
    epochs: Mapping[int, int] | None = None,
    *,
    committed: bool = True,
    **more: Any,
) -> Iterator[Consumer]:
    """Yield a consumer positioned at these offsets, without a group and without commits."""
    properties = endpoints.kafka_tuning("consumer") | endpoints.kafka_config() | READER
    level = {"isolation.level": "read_committed" if committed else "read_uncommitted"}
    epochs = epochs or {}
    with closing(Consumer(properties | level | more)) as consumer:
        if offsets:
            consumer.assign(
                [
                    TopicPartition(topic, p, offset, leader_epoch=epochs.get(p, -1))
                    for p, offset in offsets.items()
                ]
            )
        yield consumer


def _check_read(error: Any, topic: str, partition: int, offset: int) -> None:
    """Raise a consumer's error, caused by Kafka's, unless the consumer retries by itself."""
    what = f"topic {topic}, partition {partition}, offset {offset}"
    if error.code() in DAMAGED:
        reason = f"{what}: {unreadable(error.code(), error.str())}"
        raise DamagedRecordsError(reason, partition, offset) from KafkaException(error)
    if not error.retriable() and error.code() not in kafka.NO_ANSWER:
        raise TopicbergError(
            f"{what}: Kafka refused to return the records: {error.str()}"
        ) from KafkaException(error)


def record_of(message: Message) -> LastRecord:
    """Return what a record is recognized by."""
    crc = checksum(cast("Any", message.key()), cast("Any", message.value()))
    return LastRecord(message.offset() or 0, message.timestamp()[1], epoch_of(message), crc)


def find_records(
    endpoints: Endpoints,
    topic: str,
    records: LastRecords,
    beginning: Mapping[int, int],
    ends: Mapping[int, int],
    was_left_out: Callable[[tuple[int, int]], bool] = lambda _: False,
) -> dict[int, LastRecord | None]:
    """Return partition → what its log has instead of a record: the same one, another, or nothing.

    Another one is a later one before the partition's end, too. A partition is left out if its
    record was deleted, by compaction or retention, and the log does not tell that it is another.

    :param ends: up to where partitions were read, so that the record was the last one
    :param was_left_out: called with partition and offset of a later record
    :raises UnreachableError: a partition cannot be read now
    """
    wanted = {p: r.offset for p, r in records.items() if r.offset >= beginning[p]}
    first = first_messages(endpoints, topic, wanted, is_needed=True) if wanted else {}
    last_records: dict[int, LastRecord | None] = {
        p: record_of(message)
        for p, message in first.items()
        if message.error() is None and message.offset() == records[p].offset
    }
    others = {p for p, other in last_records.items() if other and not other.is_same(records[p])}
    after = {
        p: max(record.offset + 1, beginning[p])
        for p, record in records.items()
        if (record.offset + 1 < ends.get(p, 0) if p in last_records else record.epoch >= 0)
        and p not in others
        and not _is_damaged(first.get(p))
    }
    if after:
        epochs = {p: records[p].epoch for p in after}
        following = first_messages(endpoints, topic, after, epochs, committed=True)
        # Behind many records of an aborted transaction, only the epochs are compared.
        if hidden := {p: offset for p, offset in after.items() if p not in following}:
            any_next = first_messages(endpoints, topic, hidden, epochs, is_needed=True)
            following |= {p: message for p, message in any_next.items() if message.error()}
        truncated = {
            p
            for p, message in following.items()
            if (error := message.error()) and error.code() == KafkaError._AUTO_OFFSET_RESET
        }
        # Or the records up to there were deleted meanwhile.
        now = kafka.beginning_offsets(endpoints, topic) if truncated else {}
        last_records |= {p: None for p in truncated if now.get(p, 0) <= after[p]}
        later = {p: record_of(message) for p, message in following.items() if not message.error()}
        last_records |= {
            p: record
            for p, record in later.items()
            if record.offset < ends.get(p, 0) and not was_left_out((p, record.offset))
        }
    return last_records


def find_copies(
    endpoints: Endpoints,
    topic: str,
    records: LastRecords,
    log: kafka.TopicLog,
    report: Callable[[int], None],
) -> dict[int, list[int]]:
    """Return partition → the offsets at which its log has a copy of a record, from its time on.

    The search begins at the first record of that time or later, and reads on in larger and larger
    parts until one has a copy, or the log ends.

    :param records: of partitions that the log has
    :param report: called with how many offsets were searched by then
    """
    times = {p: record.time_ms for p, record in records.items() if record.time_ms >= 0}
    first = log.beginning | kafka.offsets_at(endpoints, topic, times)
    left = {p: first[p] for p in records if 0 <= first[p] < log.end[p]}
    copies, size, searched = {p: list[int]() for p in records}, SEARCHED_OFFSETS, 0
    while left:
        ranges = {p: (offset, min(offset + size, log.end[p])) for p, offset in left.items()}
        for message in messages(endpoints, topic, ranges):
            record = record_of(message)
            if record.is_copy(records[p := message.partition() or 0]):
                copies[p].append(record.offset)
        left = {p: e for p, (_, e) in ranges.items() if not copies[p] and e < log.end[p]}
        searched, size = searched + sum(e - s for s, e in ranges.values()), 4 * size
        if left:
            report(searched)
    return copies


def common_ends(
    endpoints: Endpoints,
    topic: str,
    records: LastRecords,
    beginning: Mapping[int, int],
    ends: Mapping[int, int],
) -> dict[int, int]:
    """Return partition → the offset up to which its log is the one that was read up to an end.

    That is where its records of the record's leader epoch end, and of the epochs before it.
    Source: KIP-320, whose validation of a position this searches with.
    """
    low, high = ({p: offsets[p] for p in records} for offsets in (beginning, ends))
    while middle := {p: (low[p] + high[p] + 1) // 2 for p in records if low[p] < high[p]}:
        epochs = {p: records[p].epoch for p in middle}
        for p, message in first_messages(endpoints, topic, middle, epochs, is_needed=True).items():
            if (error := message.error()) and error.code() == KafkaError._AUTO_OFFSET_RESET:
                high[p] = middle[p] - 1
            else:
                low[p] = middle[p]
    return low


def last_before(
    endpoints: Endpoints, topic: str, ends: Mapping[int, int], beginning: Mapping[int, int]
) -> LastRecords:
    """Return the last record of each partition before an offset, if it is not far from it."""
    ranges = {p: (max(beginning[p], end - NEAR_OFFSETS), end) for p, end in ends.items()}
    read = messages(endpoints, topic, ranges)
    return {message.partition() or 0: record_of(message) for message in read}


def _is_damaged(message: Message | None) -> bool:
    error = message.error() if message is not None else None
    return error is not None and error.code() in DAMAGED


def sampled_messages(
    topic: str, endpoints: Endpoints, records: int = SAMPLE_RECORDS
) -> list[Message]:
    """Return records of all partitions by their timestamps, the newest one last.

    :param records: offsets that are read at most, but at least one of each place of each partition
    """
    begin, end = kafka.beginning_offsets(endpoints, topic), kafka.end_offsets(endpoints, topic)
    size = max(1, records // (_SAMPLE_SPOTS * max(1, len(end))))
    sampled: dict[tuple[int, int], Message] = {}
    for spot in range(_SAMPLE_SPOTS):
        # At the beginning of each partition, in its middle, and at its end.
        starts = {
            p: begin.get(p, 0) + max(0, last - begin.get(p, 0) - size) * spot // (_SAMPLE_SPOTS - 1)
            for p, last in end.items()
        }
        ranges = {p: (start, min(end[p], start + size)) for p, start in starts.items()}
        for message in messages(endpoints, topic, ranges):
            sampled[message.partition() or 0, message.offset() or 0] = message
    return sorted(
        sampled.values(), key=lambda record: (record.timestamp()[1], record.offset() or 0)
    )
