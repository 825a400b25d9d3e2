"""The C interface of librdkafka, and compiled code (Numba) that copies its messages into arrays.

Source: librdkafka's ``rdkafka.h``: ``rd_kafka_message_t`` and "Simple Consumer API (queue)".
"""

from __future__ import annotations

import ctypes
import sys
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
from topicberg.formats.columnar.records import same
from topicberg.kafka.records import Records

_LOADED = "librdkafka.1.dylib" if sys.platform == "darwin" else "librdkafka.so.1"


@cache
def library() -> ctypes.CDLL:
    """:raises NotCoveredError: the client has no librdkafka of its own"""
    package = Path(confluent_kafka.__file__).parent
    folders = (package.with_name("confluent_kafka.libs"), package / ".dylibs")
    paths = [str(path) for folder in folders for path in sorted(folder.glob("librdkafka*"))]
    name = next(iter(paths), _LOADED)  # which the client has loaded if it has none of its own
    try:
        loaded = ctypes.CDLL(name)
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
        function = getattr(loaded, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return loaded


_destroy: Any = types.ExternalFunction("rd_kafka_message_destroy", types.void(types.voidptr))
_timestamp: Any = types.ExternalFunction(
    "rd_kafka_message_timestamp", types.int64(types.voidptr, types.voidptr)
)
_epoch: Any = types.ExternalFunction("rd_kafka_message_leader_epoch", types.int32(types.voidptr))
_headers: Any = types.ExternalFunction(
    "rd_kafka_message_headers", types.int32(types.voidptr, types.voidptr)
)
_header: Any = types.ExternalFunction(
    "rd_kafka_header_get_all",
    types.int32(types.voidptr, types.uint64, types.voidptr, types.voidptr, types.voidptr),
)
_length: Any = types.ExternalFunction("strlen", types.uint64(types.voidptr))
DONE, FULL, EVENT = 0, 1, 2


@compiled
def _gather(  # type: ignore[no-untyped-def]
    messages, count, first, ends, scratch, contents, facts, header_arrays, row
):
    """Copy messages into arrays of :func:`gather`, and release them.

    :param ends: for each partition, the offset after its last record; -1: it is not read
    :returns: the message that was not copied, the number of records, and why it was not
    """
    values, keys, value_offsets, key_offsets, has_value, has_key = contents
    partitions, offsets, times, time_types, epochs = facts
    headers, header_ends, header_offsets, has_header_value, is_repeated_header = header_arrays
    rows, room, header_room = len(has_value), len(values), len(has_header_value)
    to, key_to, header_to = values.ctypes.data, keys.ctypes.data, headers.ctypes.data
    here = scratch.ctypes.data
    for number in range(first, count):
        message = messages[number]
        partition = load_int32(message + 16)
        if load_int32(message) != 0:
            return number, row, EVENT
        offset = load_int64(message + 56)
        if partition >= len(ends) or offset >= ends[partition]:
            if partition < len(ends) and ends[partition] >= 0:
                ends[partition] = -2  # a record after the last one: the partition is read
            _destroy(pointer(message))
            continue
        source, size = load_int64(message + 24), load_int64(message + 32)
        key, key_size = load_int64(message + 40), load_int64(message + 48)
        begin, key_begin = value_offsets[row], key_offsets[row]
        if row == rows or begin + size > room or key_begin + key_size > room:
            return number, row, FULL
        header = header_ends[row]
        if _headers(pointer(message), pointer(here + 8)) == 0:
            index, begun = np.uint64(0), header
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
                name_begin, value_begin = header_offsets[0, header], header_offsets[1, header]
                if (
                    header == header_room
                    or name_begin + name_size > room
                    or value_begin + value_size > room
                ):
                    return number, row, FULL
                for other in range(begun, header):
                    start = header_offsets[0, other]
                    if header_offsets[0, other + 1] - start == name_size and same(
                        header_to + start, name, name_size
                    ):
                        is_repeated_header[other] = 1
                copy(header_to + name_begin, name, name_size)
                copy(header_to + room + value_begin, value, value_size)
                header_offsets[0, header + 1] = name_begin + name_size
                header_offsets[1, header + 1] = value_begin + value_size
                has_header_value[header] = 1 if value != 0 else 0
                is_repeated_header[header] = 0
                header += 1
                index += np.uint64(1)
        header_ends[row + 1] = header
        copy(to + begin, source, size)
        value_offsets[row + 1] = begin + size
        has_value[row] = 1 if source != 0 else 0
        copy(key_to + key_begin, key, key_size)
        key_offsets[row + 1] = key_begin + key_size
        has_key[row] = 1 if key != 0 else 0
        partitions[row] = partition
        offsets[row] = offset
        times[row] = _timestamp(pointer(message), pointer(here))
        time_types[row] = scratch[0]
        epochs[row] = _epoch(pointer(message))
        if offset + 1 == ends[partition]:
            ends[partition] = -2
        _destroy(pointer(message))
        row += 1
    return count, row, DONE


def compile_gather() -> None:
    """Compile what copies messages; without librdkafka, the Python client does it."""
    try:
        library()
    except NotCoveredError:
        return
    none, scratch = np.zeros(1, np.int64), np.zeros(8, np.int64)
    gather(Records(1, 64), none, 0, 0, none, scratch)


def gather(
    records: Records,
    messages: NDArray[np.int64],
    count: int,
    first: int,
    ends: NDArray[np.int64],
    scratch: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Add messages to records, and release them; see :func:`_gather`."""
    contents = (
        records.values,
        records.keys,
        records.value_offsets,
        records.key_offsets,
        records.has_value,
        records.has_key,
    )
    facts = (records.partitions, records.offsets, records.times, records.time_types, records.epochs)
    headers = (
        records.headers,
        records.header_ends,
        records.header_offsets,
        records.has_header_value,
        records.is_repeated_header,
    )
    gathered: tuple[int, int, int] = _gather(
        messages, count, first, ends, scratch, contents, facts, headers, records.count
    )
    return gathered
