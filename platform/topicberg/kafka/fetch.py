"""Read records of a topic into arrays, without a Python object for each record.

librdkafka, which the Python client is built on, hands over batches of messages by its C interface.
Compiled code (Numba) copies their bytes. Reading 1 million small records so takes 0.5 s of CPU
time, and 1.4 s with message objects.

Source: librdkafka's ``rdkafka.h``: ``rd_kafka_message_t`` and "Simple Consumer API (queue)".
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka
import llvmlite.binding
import numpy as np
from numba import types
from numpy.typing import NDArray

from topicberg.formats.columnar.memory import compiled, copy, load_int32, load_int64, pointer
from topicberg.formats.columnar.program import NotCoveredError
from topicberg.kafka.consumer import READ_SECONDS

_MESSAGES = 10_000
"""Messages that librdkafka returns at most at once."""
_WAIT_MS = 10
"""How long librdkafka waits for as many messages as are requested: it returns fewer then."""
_CONSUMER, _UNKNOWN_OFFSET = 1, -1001
_PARTITION_EOF = -191
_RETRIED = frozenset({-195, -187, -193, -185})
"""Errors after which librdkafka tries again: transport, all brokers down, resolve, timed out."""


class Records:
    """Records of a topic, as arrays; those of one call are overwritten by the next."""

    def __init__(self, rows: int, size: int) -> None:
        """:param rows: records at most
        :param size: bytes of their values, of their keys and of their headers at most
        """
        self.rows, self.size = rows, size
        self.values = np.empty(size, np.uint8)
        self.keys = np.empty(size, np.uint8)
        self.headers = np.empty(2 * size, np.uint8)
        """Names in the first half, values in the second."""
        self.value_offsets = np.zeros(rows + 1, np.int64)
        self.key_offsets = np.zeros(rows + 1, np.int64)
        self.has_value = np.zeros(rows, np.uint8)
        self.has_key = np.zeros(rows, np.uint8)
        self.partitions = np.zeros(rows, np.int32)
        self.offsets = np.zeros(rows, np.int64)
        self.times = np.zeros(rows, np.int64)
        """Milliseconds since 1970, -1: none."""
        self.time_types = np.zeros(rows, np.int8)
        """1: of the producer, 2: of the broker."""
        self.header_ends = np.zeros(rows + 1, np.int32)
        """How many headers the records up to this one have."""
        self.header_rooms = size // 4
        self.header_offsets = np.zeros((2, self.header_rooms + 1), np.int32)
        """Where the names and the values of headers begin."""
        self.has_header_value = np.zeros(self.header_rooms, np.uint8)
        self.count = 0

    def clear(self) -> None:
        self.count = 0


@cache
def _library() -> ctypes.CDLL:
    """:raises NotCoveredError: the client has no librdkafka of its own"""
    package = Path(confluent_kafka.__file__).parent
    folders = (package.with_name("confluent_kafka.libs"), package / ".dylibs")
    found = sorted(one for folder in folders for one in folder.glob("librdkafka*"))
    if not found:
        raise NotCoveredError("confluent-kafka is installed without librdkafka")
    library = ctypes.CDLL(str(found[0]))
    llvmlite.binding.load_library_permanently(str(found[0]))
    size, of_text, address, number = (
        *(ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int),
    )
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "conf_new": (address, []),
        "conf_set": (number, [address, of_text, of_text, of_text, size]),
        "conf_destroy": (None, [address]),
        "new": (address, [number, address, of_text, size]),
        "poll_set_consumer": (number, [address]),
        "topic_partition_list_new": (address, [number]),
        "topic_partition_list_add": (address, [address, of_text, ctypes.c_int32]),
        "topic_partition_list_set_offset": (
            *(number, [address, of_text, ctypes.c_int32, ctypes.c_int64]),
        ),
        "topic_partition_list_destroy": (None, [address]),
        "assign": (number, [address, address]),
        "queue_get_consumer": (address, [address]),
        "queue_destroy": (None, [address]),
        "consume_batch_queue": (ctypes.c_ssize_t, [address, number, address, size]),
        "consumer_close": (number, [address]),
        "destroy": (None, [address]),
        "err2str": (of_text, [number]),
        "message_destroy": (None, [address]),
        "message_errstr": (of_text, [address]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_destroy: Any = types.ExternalFunction("rd_kafka_message_destroy", types.void(types.voidptr))
_timestamp: Any = types.ExternalFunction(
    "rd_kafka_message_timestamp", types.int64(types.voidptr, types.voidptr)
)
_headers: Any = types.ExternalFunction(
    "rd_kafka_message_headers", types.int32(types.voidptr, types.voidptr)
)
_header: Any = types.ExternalFunction(
    "rd_kafka_header_get_all",
    types.int32(types.voidptr, types.uint64, types.voidptr, types.voidptr, types.voidptr),
)
_length: Any = types.ExternalFunction("strlen", types.uint64(types.voidptr))
_DONE, _FULL, _EVENT, _REFUSED = 0, 1, 2, 3


@compiled
def _gather(  # type: ignore[no-untyped-def]
    messages,
    count,
    first,
    ends,
    scratch,
    sizes,
    values,
    keys,
    headers,
    value_offsets,
    key_offsets,
    has_value,
    has_key,
    partitions,
    offsets,
    times,
    time_types,
    header_ends,
    header_offsets,
    has_header_value,
    at,
):
    """Copy messages into arrays, and release them.

    :param ends: for each partition, the offset after its last record; -1: it is not read
    :returns: the message that was not copied, the number of records, and why it was not
    """
    rows, room, header_room = sizes[0], sizes[1], sizes[2]
    to, key_to, header_to = values.ctypes.data, keys.ctypes.data, headers.ctypes.data
    here = scratch.ctypes.data
    for number in range(first, count):
        message = messages[number]
        partition = load_int32(message + 16)
        if load_int32(message) != 0:
            return number, at, _EVENT
        offset = load_int64(message + 56)
        if partition >= len(ends) or offset >= ends[partition]:
            if partition < len(ends) and ends[partition] >= 0:
                ends[partition] = -2  # a record after the last one: the partition is read
            _destroy(pointer(message))
            continue
        source, size = load_int64(message + 24), load_int64(message + 32)
        key, key_size = load_int64(message + 40), load_int64(message + 48)
        begin, key_begin = value_offsets[at], key_offsets[at]
        if at == rows or begin + size > room or key_begin + key_size > room:
            return number, at, _FULL
        found = header_ends[at]
        if _headers(pointer(message), pointer(here + 8)) == 0:
            index = np.uint64(0)
            begun = found
            while (
                _header(
                    pointer(load_int64(here + 8)),
                    index,
                    pointer(here + 16),
                    pointer(here + 24),
                    pointer(here + 32),
                )
                == 0
            ):
                name, value = load_int64(here + 16), load_int64(here + 24)
                value_size = load_int64(here + 32) if value != 0 else np.int64(0)
                name_size = np.int64(_length(pointer(name)))
                name_begin, value_begin = header_offsets[0, found], header_offsets[1, found]
                if (
                    found == header_room
                    or name_begin + name_size > room
                    or value_begin + value_size > room
                ):
                    return number, at, _FULL
                for other in range(begun, found):
                    start = header_offsets[0, other]
                    if header_offsets[0, other + 1] - start == name_size:
                        same = True
                        for byte in range(name_size):
                            letter = load_int32(name + byte) & 0xFF
                            if headers[start + byte] != letter:
                                same = False
                                break
                        if same:
                            return number, at, _REFUSED
                copy(header_to + name_begin, name, name_size)
                copy(header_to + room + value_begin, value, value_size)
                header_offsets[0, found + 1] = name_begin + name_size
                header_offsets[1, found + 1] = value_begin + value_size
                has_header_value[found] = 1 if value != 0 else 0
                found += 1
                index += np.uint64(1)
        header_ends[at + 1] = found
        copy(to + begin, source, size)
        value_offsets[at + 1] = begin + size
        has_value[at] = 1 if source != 0 else 0
        copy(key_to + key_begin, key, key_size)
        key_offsets[at + 1] = key_begin + key_size
        has_key[at] = 1 if key != 0 else 0
        partitions[at] = partition
        offsets[at] = offset
        times[at] = _timestamp(pointer(message), pointer(here))
        time_types[at] = scratch[0]
        if offset + 1 == ends[partition]:
            ends[partition] = -2
        _destroy(pointer(message))
        at += 1
    return count, at, _DONE


def compile_gather() -> None:
    """Compile what copies messages.

    :raises NotCoveredError: there is no librdkafka
    """
    _library()
    none, scratch = np.zeros(1, np.int64), np.zeros(8, np.int64)
    _gather_into(Records(1, 64), none, 0, 0, none, scratch)


def _gather_into(
    records: Records,
    messages: NDArray[np.int64],
    held: int,
    first: int,
    ends: NDArray[np.int64],
    scratch: NDArray[np.int64],
) -> tuple[int, int, int]:
    found: tuple[int, int, int] = _gather(
        messages,
        held,
        first,
        ends,
        scratch,
        np.array([records.rows, records.size, records.header_rooms], np.int64),
        records.values,
        records.keys,
        records.headers,
        records.value_offsets,
        records.key_offsets,
        records.has_value,
        records.has_key,
        records.partitions,
        records.offsets,
        records.times,
        records.time_types,
        records.header_ends,
        records.header_offsets,
        records.has_header_value,
        records.count,
    )
    return found


class Fetcher:
    """Reads exactly some offsets of a topic; a context manager."""

    def __init__(
        self, config: Mapping[str, Any], topic: str, ranges: Mapping[int, tuple[int, int]]
    ) -> None:
        """:param config: of librdkafka
        :param ranges: partition → first offset, and the offset after the last one
        :raises NotCoveredError: the configuration needs Python
        """
        self._library = _library()
        ranges = {p: span for p, span in ranges.items() if span[0] < span[1]}
        self._ends = np.full(max(ranges, default=-1) + 1, -1, np.int64)
        for partition, (_, end) in ranges.items():
            self._ends[partition] = end
        self._left = sum(end - start for start, end in ranges.values())
        """The most records that are still to be copied; offsets may have none."""
        self._messages = np.zeros(_MESSAGES, np.int64)
        self._next = self._held = 0
        """Messages that librdkafka returned and that are still to be copied."""
        self._scratch = np.zeros(8, np.int64)
        self._client = self._connect(config)
        self._queue = self._library.rd_kafka_queue_get_consumer(self._client)
        self._assign(topic, {p: start for p, (start, _) in ranges.items()})

    def _connect(self, config: Mapping[str, Any]) -> int:
        library, problem = self._library, ctypes.create_string_buffer(512)
        if any(callable(value) for value in config.values()):
            raise NotCoveredError("the login to Kafka is computed in Python")
        properties = library.rd_kafka_conf_new()
        for name, value in config.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            given = (properties, name.encode(), text.encode(), problem, len(problem))
            if library.rd_kafka_conf_set(*given):
                library.rd_kafka_conf_destroy(properties)
                raise NotCoveredError(f"librdkafka does not accept {name}")
        client = library.rd_kafka_new(_CONSUMER, properties, problem, len(problem))
        if not client:
            library.rd_kafka_conf_destroy(properties)
            raise NotCoveredError("librdkafka does not start with the configuration of Kafka")
        library.rd_kafka_poll_set_consumer(client)
        return int(client)

    def _assign(self, topic: str, starts: Mapping[int, int]) -> None:
        library = self._library
        found = library.rd_kafka_topic_partition_list_new(len(starts))
        for partition, offset in starts.items():
            library.rd_kafka_topic_partition_list_add(found, topic.encode(), partition)
            library.rd_kafka_topic_partition_list_set_offset(
                found, topic.encode(), partition, offset
            )
        failed = library.rd_kafka_assign(self._client, found)
        library.rd_kafka_topic_partition_list_destroy(found)
        if failed:
            raise NotCoveredError(f"partitions cannot be assigned: {self._text(failed)}")

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        for message in self._messages[self._next : self._held]:
            self._library.rd_kafka_message_destroy(ctypes.c_void_p(int(message)))
        self._library.rd_kafka_queue_destroy(self._queue)
        self._library.rd_kafka_consumer_close(self._client)
        self._library.rd_kafka_destroy(self._client)

    def _text(self, code: int) -> str:
        return str(self._library.rd_kafka_err2str(code).decode())

    def fill(self, records: Records) -> Iterator[Records]:
        """Yield the records in parts that fit the arrays, in the order of each partition.

        :raises NotCoveredError: Kafka returns an error, no record in time, or a record that does
            not fit into the arrays
        """
        deadline = time.monotonic() + READ_SECONDS
        records.clear()
        while (self._ends >= 0).any() or self._next < self._held:
            if self._next == self._held:
                self._next = 0
                self._held = self._library.rd_kafka_consume_batch_queue(
                    *(self._queue, _WAIT_MS, self._messages.ctypes.data),
                    min(_MESSAGES, max(1, self._left)),
                )
                self._held = max(0, self._held)
            if time.monotonic() > deadline:
                raise NotCoveredError(f"Kafka returned no record for {READ_SECONDS:.0f} s")
            before = records.count
            why = self._gather(records)
            if records.count > before:
                self._left -= records.count - before
                deadline = time.monotonic() + READ_SECONDS
            if why == _FULL:
                if not records.count:
                    raise NotCoveredError("a record is too large")
                yield records
                records.clear()
                deadline = time.monotonic() + READ_SECONDS
            elif why == _EVENT:
                self._handle()
            elif why == _REFUSED:
                raise NotCoveredError("a record has two headers of one name")
        if records.count:
            yield records

    def _gather(self, records: Records) -> int:
        self._next, records.count, why = _gather_into(
            records, self._messages, self._held, self._next, self._ends, self._scratch
        )
        return int(why)

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
            what = f"partition {partition}: {self._text(code)}: {reason.decode(errors='replace')}"
            raise NotCoveredError(f"Kafka returns an error: {what}")
