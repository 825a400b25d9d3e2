"""Records of a topic, as arrays that compiled code reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, Message
from numpy.typing import NDArray

from topicberg.errors import TopicbergError, UnreachableError
from topicberg.formats.columnar.framing import HeaderArrays

READ_SECONDS = 60.0  # A read that gets no record for this time fails.
READER: dict[str, object] = {
    "log_level": 2,
    "group.id": "topicberg",  # required by the client
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "check.crcs": True,
    "receive.message.max.bytes": 256 * 1024 * 1024,  # also of a batch when decompressed
    "fetch.wait.max.ms": 20,
    # The default, a second, is longer than most batches, and delays records of other offsets.
    "fetch.queue.backoff.ms": 10,
}
"""Properties of librdkafka for reading some offsets."""
DAMAGED = (
    *(KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._UNDERFLOW),
    KafkaError.INVALID_MSG,
)


class Records:
    """Records of a topic, as arrays; those of one call are overwritten by the next."""

    def __init__(self, rows: int, size: int) -> None:
        """:param size: bytes of their values, of their keys and of their headers at most"""
        self.rows, self.count = rows, 0
        self.partitions, self.epochs = np.zeros((2, rows), np.int32)
        """``epochs``: of the leader that got the record, -1: not known."""
        self.offsets, self.times = np.zeros((2, rows), np.int64)
        """``times``: milliseconds since 1970, -1: none."""
        self.time_types = np.zeros(rows, np.int8)
        """1: of the producer, 2: of the broker."""
        self.has_value, self.has_key = np.zeros((2, rows), np.uint8)
        self.value_offsets, self.key_offsets = np.zeros((2, rows + 1), np.int64)
        self.header_ends = np.zeros(rows + 1, np.int32)
        """How many headers the records up to this one have."""
        self._allocate(size)

    def _allocate(self, size: int) -> None:
        self.size, self.header_rooms = size, size // 4
        self.values, self.keys = np.empty(size, np.uint8), np.empty(size, np.uint8)
        self.headers = np.empty(2 * size, np.uint8)
        """Names in the first half, values in the second."""
        self.header_offsets = np.zeros((2, self.header_rooms + 1), np.int32)
        """Where the names and the values of headers begin."""
        self.has_header_value, self.is_repeated_header = np.zeros((2, self.header_rooms), np.uint8)
        """``is_repeated_header``: a later header of the record has the same name."""

    def clear(self) -> None:
        self.count = 0

    def grow(self) -> None:
        """Make room for a record that is larger than the empty arrays, or raise MemoryError."""
        self._allocate(4 * self.size)

    def append(self, messages: Sequence[Message]) -> int:
        """Add messages of the Python client; return how many of them fit."""
        first, count = self.count, min(len(messages), self.rows - self.count)
        messages = messages[:count]
        keys, values = (
            [message.key() for message in messages],
            [message.value() for message in messages],
        )
        headers = [readable_headers(message) for message in messages]
        names = [[name.encode(errors="surrogateescape") for name, _ in pairs] for pairs in headers]
        used = [
            int(self.key_offsets[first]),
            int(self.value_offsets[first]),
            *(int(part[self.header_ends[first]]) for part in self.header_offsets),
        ]
        sizes = np.zeros((4, count + 1), np.int64)
        for row, parts in enumerate((keys, values)):
            sizes[row, 1:] = [0 if part is None else len(part) for part in parts]
        if any(headers):
            sizes[2, 1:] = [sum(map(len, record_names)) for record_names in names]
            sizes[3, 1:] = [sum(len(value or b"") for _, value in pairs) for pairs in headers]
        ends = np.cumsum(sizes, axis=1) + np.array(used)[:, None]
        totals = np.cumsum([0, *map(len, names)]) + int(self.header_ends[first])
        fits = (ends <= self.size).all(axis=0) & (totals <= self.header_rooms)
        count = int(np.count_nonzero(fits)) - 1  # sizes only grow
        to = first + count
        for data, offsets, present, parts, row in (
            (self.keys, self.key_offsets, self.has_key, keys, 0),
            (self.values, self.value_offsets, self.has_value, values, 1),
        ):
            whole = b"".join(part or b"" for part in parts[:count])
            data[used[row] : used[row] + len(whole)] = np.frombuffer(whole, np.uint8)
            offsets[first : to + 1] = ends[row, : count + 1]
            present[first:to] = [part is not None for part in parts[:count]]
        self.partitions[first:to] = [message.partition() or 0 for message in messages[:count]]
        self.offsets[first:to] = [message.offset() or 0 for message in messages[:count]]
        times = [message.timestamp() for message in messages[:count]]
        self.times[first:to] = [time_ for _, time_ in times]
        self.time_types[first:to] = [kind for kind, _ in times]
        self.epochs[first:to] = [epoch_of(message) for message in messages[:count]]
        self.header_ends[first : to + 1] = totals[: count + 1]
        if any(headers):
            self._append_headers(headers[:count], names[:count], int(self.header_ends[first]))
        self.count = to
        return count

    def _append_headers(
        self,
        headers: Sequence[Sequence[tuple[str, bytes | None]]],
        names: Sequence[Sequence[bytes]],
        first: int,
    ) -> None:
        number = first
        for of_record, named in zip(headers, names, strict=True):
            for place, (name, (_, value)) in enumerate(zip(named, of_record, strict=True)):
                for part, text in enumerate((name, value or b"")):
                    begin = int(self.header_offsets[part, number])
                    room = part * self.size + begin
                    self.headers[room : room + len(text)] = np.frombuffer(text, np.uint8)
                    self.header_offsets[part, number + 1] = begin + len(text)
                self.has_header_value[number] = value is not None
                self.is_repeated_header[number] = name in named[place + 1 :]
                number += 1

    def header_arrays(self) -> HeaderArrays:
        """Return the headers of the records."""
        return HeaderArrays(
            self.headers,
            self.headers[self.size :],
            self.header_ends[: self.count + 1],
            self.header_offsets[0],
            self.header_offsets[1],
            self.has_header_value,
        )

    def raw(self, index: int) -> dict[str, Any]:
        """Return one record as in Kafka; ``headers`` as :meth:`raw_headers` returns them."""
        headers = self.raw_headers(index)
        return {
            "key": _slice(self.keys, self.key_offsets, self.has_key, index),
            "value": _slice(self.values, self.value_offsets, self.has_value, index),
            "partition": int(self.partitions[index]),
            "offset": int(self.offsets[index]),
            "timestampType": int(self.time_types[index]) - 1,
            "timestamp_ms": int(self.times[index]),
            "headers": headers and [{"key": name, "value": value} for name, value in headers],
        }

    def raw_headers(self, index: int) -> list[tuple[str, bytes | None]] | None:
        """Return the headers of one record; None: there are none, or a name is not UTF-8."""
        names, values = self.header_offsets
        headers: list[tuple[str, bytes | None]] = []
        for number in range(self.header_ends[index], self.header_ends[index + 1]):
            name = self.headers[names[number] : names[number + 1]].tobytes()
            value = _slice(self.headers[self.size :], values, self.has_header_value, number)
            try:
                headers.append((name.decode(), value))
            except UnicodeDecodeError:
                return None
        return headers or None


def place_of(message: Message) -> tuple[int, int]:
    """Return partition and offset of a message of the Python client."""
    return message.partition() or 0, message.offset() or 0


def epoch_of(message: Message) -> int:
    """Return the epoch of the leader that got a message of the Python client; -1: not known."""
    epoch = message.leader_epoch()
    return -1 if epoch is None else epoch


def headers_of(message: Message) -> list[tuple[str, Any]] | None:
    """Return the headers of a message of the Python client; None: one's name is not UTF-8."""
    try:
        listed: Any = message.headers()
    except (SystemError, UnicodeError):
        return None
    return listed or []


def readable_headers(message: Message) -> list[tuple[str, Any]]:
    """Return the headers, or raise DamagedRecordsError: the name of one is not UTF-8."""
    if (headers := headers_of(message)) is not None:
        return headers
    partition, offset = place_of(message)
    raise DamagedRecordsError(
        f"partition {partition}, offset {offset}: the name of a header is not UTF-8",
        partition,
        offset,
    )


def _slice(data: NDArray[Any], offsets: NDArray[Any], present: Any, at: int) -> bytes | None:
    return data[offsets[at] : offsets[at + 1]].tobytes() if present[at] else None


class FetchError(UnreachableError):
    """Records cannot be read into arrays now; see :mod:`topicberg.kafka.fetch`."""


class DamagedRecordsError(TopicbergError):
    """Records that the client cannot read: damaged, or far too large when decompressed."""

    def __init__(self, message: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.partition, self.offset = partition, offset


def unreadable(code: int, reason: str) -> str:
    """Return why the client cannot read a batch of records: it may be valid."""
    if code == KafkaError._BAD_COMPRESSION:
        return (
            "its batch of records cannot be decompressed: it takes more memory than a client may "
            f"use (see TOPICBERG_ENGINE_PROCESS_MEMORY_MB), or is damaged: {reason}"
        )
    return f"the records cannot be read: {reason}"
