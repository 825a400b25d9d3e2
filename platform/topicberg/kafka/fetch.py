"""Read records of a topic into arrays.

librdkafka, which the Python client is built on, hands over batches of messages by its C interface.
Compiled code (Numba) copies their bytes, without a Python object for each record: reading 1 million
small records so takes 0.5 s of CPU time. An installation without the wheel's librdkafka reads the
same arrays by the Python client, in 1.4 s.

Source: librdkafka's ``rdkafka.h``: ``rd_kafka_message_t`` and "Simple Consumer API (queue)".
"""

from __future__ import annotations

import ctypes
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

import confluent_kafka
import llvmlite.binding
import numpy as np
from confluent_kafka import Consumer, Message, TopicPartition
from numba import types
from numpy.typing import NDArray

from topicberg.errors import TopicbergError, first_line
from topicberg.formats.columnar.framing import HeaderArrays
from topicberg.formats.columnar.memory import compiled, copy, load_int32, load_int64, pointer
from topicberg.formats.columnar.program import NotCoveredError
from topicberg.kafka.consumer import DAMAGED, READ_SECONDS, DamagedRecordsError, FetchError

logger = logging.getLogger(__name__)

_MESSAGES = 10_000
"""Messages that librdkafka returns at most at once."""
_WAIT_MS = 10
"""How long librdkafka waits for as many messages as are requested: it returns fewer then."""
_CONSUMER, _UNKNOWN_OFFSET = 1, -1001
_PARTITION_EOF = -191
_RETRIED = frozenset({-195, -187, -193, -185})
"""Errors after which librdkafka tries again: transport, all brokers down, resolve, timed out."""
_LOADED = "librdkafka.1.dylib" if sys.platform == "darwin" else "librdkafka.so.1"
_OAUTH = "oauth_cb"
_TOKEN_PAUSE = 10.0
"""Seconds after which a token that could not be computed is tried again."""
_NOTHING = f"Kafka returned no record for {READ_SECONDS:.0f} s"


class Records:
    """Records of a topic, as arrays; those of one call are overwritten by the next."""

    def __init__(self, rows: int, size: int) -> None:
        """:param rows: records at most
        :param size: bytes of their values, of their keys and of their headers at most
        """
        self.rows = rows
        self.partitions = np.zeros(rows, np.int32)
        self.offsets = np.zeros(rows, np.int64)
        self.times = np.zeros(rows, np.int64)
        """Milliseconds since 1970, -1: none."""
        self.time_types = np.zeros(rows, np.int8)
        """1: of the producer, 2: of the broker."""
        self.has_value = np.zeros(rows, np.uint8)
        self.has_key = np.zeros(rows, np.uint8)
        self.value_offsets = np.zeros(rows + 1, np.int64)
        self.key_offsets = np.zeros(rows + 1, np.int64)
        self.header_ends = np.zeros(rows + 1, np.int32)
        """How many headers the records up to this one have."""
        self.count = 0
        self._allocate(size)

    def _allocate(self, size: int) -> None:
        self.size = size
        self.values = np.empty(size, np.uint8)
        self.keys = np.empty(size, np.uint8)
        self.headers = np.empty(2 * size, np.uint8)
        """Names in the first half, values in the second."""
        self.header_rooms = size // 4
        self.header_offsets = np.zeros((2, self.header_rooms + 1), np.int32)
        """Where the names and the values of headers begin."""
        self.has_header_value = np.zeros(self.header_rooms, np.uint8)
        self.is_repeated_header = np.zeros(self.header_rooms, np.uint8)
        """1: a later header of the record has the same name."""

    def clear(self) -> None:
        self.count = 0

    def grow(self) -> None:
        """Make room for a record that is larger than the arrays; there is none in them.

        :raises MemoryError: there is none for it
        """
        self._allocate(4 * self.size)

    def append(self, messages: Sequence[Message]) -> int:
        """Add messages of the Python client; return how many of them fit."""
        at, count = self.count, min(len(messages), self.rows - self.count)
        messages = messages[:count]
        keys, values = [one.key() for one in messages], [one.value() for one in messages]
        given: list[Any] = [one.headers() for one in messages]
        headers: list[list[tuple[str, Any]]] = [list(one or ()) for one in given]
        names = [[name.encode(errors="surrogateescape") for name, _ in one] for one in headers]
        used = [
            int(self.key_offsets[at]),
            int(self.value_offsets[at]),
            *(int(part[self.header_ends[at]]) for part in self.header_offsets),
        ]
        sizes = np.zeros((4, count + 1), np.int64)
        for row, parts in enumerate((keys, values)):
            sizes[row, 1:] = [0 if one is None else len(one) for one in parts]
        if any(headers):
            sizes[2, 1:] = [sum(map(len, one)) for one in names]
            sizes[3, 1:] = [sum(len(value or b"") for _, value in one) for one in headers]
        ends = np.cumsum(sizes, axis=1) + np.array(used)[:, None]
        totals = np.cumsum([0, *map(len, names)]) + int(self.header_ends[at])
        fits = (ends <= self.size).all(axis=0) & (totals <= self.header_rooms)
        count = int(np.count_nonzero(fits)) - 1  # sizes only grow
        to = at + count
        for data, offsets, present, parts, row in (
            (self.keys, self.key_offsets, self.has_key, keys, 0),
            (self.values, self.value_offsets, self.has_value, values, 1),
        ):
            whole = b"".join(one or b"" for one in parts[:count])
            data[used[row] : used[row] + len(whole)] = np.frombuffer(whole, np.uint8)
            offsets[at : to + 1] = ends[row, : count + 1]
            present[at:to] = [one is not None for one in parts[:count]]
        self.partitions[at:to] = [one.partition() or 0 for one in messages[:count]]
        self.offsets[at:to] = [one.offset() or 0 for one in messages[:count]]
        times = [one.timestamp() for one in messages[:count]]
        self.times[at:to] = [time_ for _, time_ in times]
        self.time_types[at:to] = [kind for kind, _ in times]
        self.header_ends[at : to + 1] = totals[: count + 1]
        if any(headers):
            self._append_headers(headers[:count], names[:count], int(self.header_ends[at]))
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

    def raw(self, at: int) -> dict[str, Any]:
        """Return one record as it is in Kafka.

        ``headers`` is None if there are none, or if a name is not UTF-8.
        """
        headers = self.raw_headers(at)
        return {
            "key": _slice(self.keys, self.key_offsets, self.has_key, at),
            "value": _slice(self.values, self.value_offsets, self.has_value, at),
            "partition": int(self.partitions[at]),
            "offset": int(self.offsets[at]),
            "timestampType": int(self.time_types[at]) - 1,
            "timestamp_ms": int(self.times[at]),
            "headers": headers and [{"key": name, "value": value} for name, value in headers],
        }

    def raw_headers(self, at: int) -> list[tuple[str, bytes | None]] | None:
        """Return the headers of one record; None: there are none, or a name is not UTF-8."""
        names, values = self.header_offsets
        found: list[tuple[str, bytes | None]] = []
        for number in range(self.header_ends[at], self.header_ends[at + 1]):
            name = self.headers[names[number] : names[number + 1]].tobytes()
            value = self.headers[self.size :][values[number] : values[number + 1]].tobytes()
            try:
                key = name.decode()
            except UnicodeDecodeError:
                return None
            found.append((key, value if self.has_header_value[number] else None))
        return found or None


def _slice(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], present: NDArray[np.uint8], at: int
) -> bytes | None:
    return data[offsets[at] : offsets[at + 1]].tobytes() if present[at] else None


@cache
def _library() -> ctypes.CDLL:
    """:raises NotCoveredError: the client has no librdkafka of its own"""
    package = Path(confluent_kafka.__file__).parent
    folders = (package.with_name("confluent_kafka.libs"), package / ".dylibs")
    found = [str(one) for folder in folders for one in sorted(folder.glob("librdkafka*"))]
    name = next(iter(found), _LOADED)  # which the client has loaded if it has none of its own
    try:
        library = ctypes.CDLL(name)
        llvmlite.binding.load_library_permanently(name)
    except (OSError, RuntimeError):
        raise NotCoveredError("confluent-kafka is installed without librdkafka") from None
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
        "oauthbearer_set_token": (
            *(number, [address, of_text, ctypes.c_int64, of_text, address, size, of_text, size]),
        ),
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
_DONE, _FULL, _EVENT = 0, 1, 2


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
    is_repeated_header,
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
                            is_repeated_header[other] = 1
                copy(header_to + name_begin, name, name_size)
                copy(header_to + room + value_begin, value, value_size)
                header_offsets[0, found + 1] = name_begin + name_size
                header_offsets[1, found + 1] = value_begin + value_size
                has_header_value[found] = 1 if value != 0 else 0
                is_repeated_header[found] = 0
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
    """Compile what copies messages; without librdkafka, the Python client does it."""
    try:
        _library()
    except NotCoveredError:
        return
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
        records.is_repeated_header,
        records.count,
    )
    return found


class Fetcher(Protocol):
    """Reads exactly some offsets of a topic; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def fill(self, records: Records) -> Iterator[Records]:
        """Yield the records in parts that fit the arrays, in the order of each partition.

        :raises FetchError: Kafka returns an error, or no record in time
        :raises DamagedRecordsError: what Kafka has cannot be read
        :raises MemoryError: a record is too large for this process
        """
        ...


def fetcher(
    config: Mapping[str, Any], topic: str, ranges: Mapping[int, tuple[int, int]]
) -> Fetcher:
    """Return what reads some offsets.

    :param config: of librdkafka; of its functions, only ``oauth_cb`` is called
    :param ranges: partition → first offset, and the offset after the last one
    """
    ranges = {p: span for p, span in ranges.items() if span[0] < span[1]}
    try:
        return _CompiledFetcher(config, topic, ranges)
    except NotCoveredError as error:
        if str(error) not in _warned:
            _warned.add(str(error))
            logger.warning("records are read by the Python client, more slowly: %s", error)
        return _ClientFetcher(config, topic, ranges)


_warned: set[str] = set()


class _CompiledFetcher:
    """Reads by librdkafka's C interface."""

    def __init__(
        self, config: Mapping[str, Any], topic: str, ranges: Mapping[int, tuple[int, int]]
    ) -> None:
        """:raises NotCoveredError: librdkafka is missing, or refuses the configuration
        :raises FetchError: the partitions cannot be read
        """
        self._library = _library()
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
            self._token = _Token(self._library, self._client, config) if _OAUTH in config else None
            self._assign(topic, {p: start for p, (start, _) in ranges.items()})
        except BaseException:
            self._library.rd_kafka_destroy(self._client)
            raise
        self._queue = self._library.rd_kafka_queue_get_consumer(self._client)

    def _connect(self, config: Mapping[str, Any]) -> int:
        library, problem = self._library, ctypes.create_string_buffer(512)
        properties = library.rd_kafka_conf_new()
        for name, value in config.items():
            if callable(value):
                continue
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
            raise FetchError(f"partitions cannot be assigned: {self._text(failed)}")

    def __enter__(self) -> Self:
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
        deadline = time.monotonic() + READ_SECONDS
        records.clear()
        while (self._ends >= 0).any() or self._next < self._held:
            if self._next == self._held:
                self._next = 0
                if self._token is not None:
                    self._token.renew()
                self._held = self._library.rd_kafka_consume_batch_queue(
                    *(self._queue, _WAIT_MS, self._messages.ctypes.data),
                    min(_MESSAGES, max(1, self._left)),
                )
                self._held = max(0, self._held)
            if time.monotonic() > deadline:
                raise FetchError(_NOTHING)
            before = records.count
            why = self._gather(records)
            if records.count > before:
                new = slice(before, records.count)
                np.maximum.at(self._reached, records.partitions[new], records.offsets[new] + 1)
                self._left -= records.count - before
                deadline = time.monotonic() + READ_SECONDS
            if why == _FULL and not records.count:
                records.grow()
            elif why == _FULL:
                yield records
                records.clear()
                deadline = time.monotonic() + READ_SECONDS
            elif why == _EVENT:
                self._handle()
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
            what = f"{self._text(code)}: {reason.decode(errors='replace')}"
            reached = int(self._reached[partition]) if partition < len(self._reached) else 0
            if 0 <= partition < len(self._ends) and _is_behind(
                code, max(offset, reached), int(self._ends[partition])
            ):
                self._ends[partition] = -2
                return
            raise _failure(code, partition, max(offset, reached), what)


class _Token:
    """The token of a login that Python computes, of one client.

    Source: ``rd_kafka_oauthbearer_set_token``, and :class:`confluent_kafka.Consumer` for
    ``oauth_cb``: given ``sasl.oauthbearer.config``, it returns the token and when it expires
    (seconds since 1970), and perhaps the principal and the SASL extensions.
    """

    def __init__(self, library: ctypes.CDLL, client: int, config: Mapping[str, Any]) -> None:
        """:raises FetchError: see :meth:`_give`"""
        self._library, self._client = library, client
        self._compute: Callable[[str], tuple[Any, ...]] = config[_OAUTH]
        self._given = str(config.get("sasl.oauthbearer.config", ""))
        self._until, self._renew_at = self._give()

    def renew(self) -> None:
        """Give the client another token when four fifths of the time of its last one have passed.

        :raises FetchError: the last one has expired, and there is no other
        """
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
        """Give the client a token; return when it expires, and when to renew it.

        :raises FetchError: there is none, or librdkafka does not accept it
        """
        now = time.time()
        try:
            token, until, *more = self._compute(self._given)
        except Exception as error:
            raise FetchError(f"there is no token for Kafka: {first_line(error)}") from error
        principal = more[0] if more else ""
        extensions: Mapping[str, str] = more[1] if len(more) > 1 else {}
        words = [text.encode() for item in extensions.items() for text in item]
        problem = ctypes.create_string_buffer(512)
        failed = self._library.rd_kafka_oauthbearer_set_token(
            *(self._client, token.encode(), int(until * 1000), (principal or "").encode()),
            *((ctypes.c_char_p * len(words))(*words), len(words), problem, len(problem)),
        )
        if failed:
            reason = problem.value.decode(errors="replace")
            raise FetchError(f"librdkafka does not accept the token of the login: {reason}")
        return until, now + (until - now) * 0.8


def _is_behind(code: int, offset: int, end: int) -> bool:
    """Return whether what Kafka returns is of records behind those that are read.

    :param end: the offset after the last one to read; negative: the partition is read
    """
    return end < 0 or (code in DAMAGED and offset >= end)


def _failure(code: int, partition: int, offset: int, reason: str) -> TopicbergError:
    """Return the error of a partition.

    :param offset: of the next record
    """
    if code in DAMAGED:
        text = f"partition {partition}, offset {offset}: the records cannot be read: {reason}"
        return DamagedRecordsError(text, partition, offset)
    return FetchError(f"partition {partition}: Kafka returns an error: {reason}")


class _ClientFetcher:
    """Reads by the Python client."""

    def __init__(
        self, config: Mapping[str, Any], topic: str, ranges: Mapping[int, tuple[int, int]]
    ) -> None:
        self._ends = {partition: end for partition, (_, end) in ranges.items()}
        self._consumer = Consumer(dict(config))
        self._reached = {partition: start for partition, (start, _) in ranges.items()}
        self._consumer.assign([TopicPartition(topic, p, at) for p, at in self._reached.items()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def fill(self, records: Records) -> Iterator[Records]:
        deadline = time.monotonic() + READ_SECONDS
        records.clear()
        while self._ends:
            # It waits until it has all of them, so the wait is as short as that of compiled code.
            messages = self._wanted(self._consumer.consume(_MESSAGES, _WAIT_MS / 1000))
            if messages:
                deadline = time.monotonic() + READ_SECONDS
            elif time.monotonic() > deadline:
                raise FetchError(_NOTHING)
            while messages:
                copied = records.append(messages)
                messages = messages[copied:]
                if messages and not records.count:
                    records.grow()
                elif messages:
                    yield records
                    records.clear()
                    deadline = time.monotonic() + READ_SECONDS
        if records.count:
            yield records

    def _wanted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that are records to read.

        :raises FetchError: one is an error
        :raises DamagedRecordsError: what Kafka has cannot be read
        """
        found = []
        for message in messages:
            partition, offset, error = message.partition(), message.offset(), message.error()
            end = self._ends.get(partition or 0, -1)
            if error is not None and error.code() not in (_PARTITION_EOF, *_RETRIED):
                reached = max(offset or 0, self._reached.get(partition or 0, 0))
                if partition in self._reached and _is_behind(error.code(), reached, end):
                    self._ends.pop(partition or 0, None)
                    continue
                raise _failure(error.code(), partition or 0, reached, error.str())
            if end < 0 or offset is None or (error and error.code() in _RETRIED):
                continue
            if error is None and offset < end:
                found.append(message)
                self._reached[partition or 0] = offset + 1
            if offset + (error is None) >= end:
                del self._ends[partition or 0]
        return found
