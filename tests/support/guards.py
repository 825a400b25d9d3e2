"""Memory between pages that no code may touch, so that a byte too far ends the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.decoding import READERS, execute
from topicberg.formats.columnar.memory import store_byte
from topicberg.formats.columnar.program import Programs, Store
from topicberg.formats.columnar.records import undo
from topicberg.formats.framing import WIRE_BYTES

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_kept: list[mmap.mmap] = []


def guarded(size: int, dtype: Any = np.uint8) -> NDArray[Any]:
    """Return an array of zeros that ends where a page begins that must not be touched. Before its
    first page is another one of that kind. The memory is never released."""
    width = np.dtype(dtype).itemsize
    pages = -(-size * width // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
    _kept.append(memory)
    whole = np.frombuffer(memory, np.uint8)
    for at in (0, (pages + 1) * mmap.PAGESIZE):
        if _libc.mprotect(whole.ctypes.data + at, mmap.PAGESIZE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    end = (pages + 1) * mmap.PAGESIZE
    return whole[end - size * width : end].view(dtype)


def release() -> None:
    """Release all memory; no array of it may be used afterwards."""
    _kept.clear()


def guard(buffers: Buffers, slack: int = 0) -> Buffers:
    """Move the memory of buffers between guard pages: exactly what they have room for.

    :param slack: bytes behind the values that may be written, as those that write words do
    """
    for place in buffers.shape.all:
        slot, room = place.slot, int(buffers.rooms[1, place.domain])
        # Also the value that is not complete is made invalid by ``undo``.
        valid = guarded(room + 1)
        buffers._valid[slot], buffers.addresses[1, slot] = valid, valid.ctypes.data
        if place.store in (Store.TEXT, Store.ITEMS):
            offsets = guarded(room + 1, np.int32)
            buffers._offsets[slot], buffers.addresses[2, slot] = offsets, offsets.ctypes.data
        width = {Store.NONE: 0, Store.ITEMS: 0, Store.TEXT: int(buffers.rooms[0, slot])}.get(
            place.store, room * int(place.store)
        )
        if width:
            values = guarded(width + slack)
            buffers._values[slot], buffers.addresses[0, slot] = values, values.ctypes.data
    return buffers


def fuzz(
    programs: Programs,
    buffers: Buffers,
    records: Sequence[bytes],
    words: Sequence[bytes],
    count: int,
    seed: int,
) -> int:
    """Decode damaged records between guard pages, and validate the columns; release the pages.

    :param buffers: of :func:`guard`
    :param records: sound ones, with the wire format's five bytes, which stay as they are
    :param words: what is inserted into them
    :returns: how many were accepted
    """
    reader, needed_words = READERS[programs.language]
    room = 2 * max(map(len, records)) + 4 * max(map(len, words)) + 64
    arrays = [_joined(records), _joined(words)]
    starts, ends = buffers.shape.ends()
    accepted: int = _drive(
        execute,
        reader,
        *arrays[0],
        *arrays[1],
        guarded(room),
        np.zeros(room, np.uint8),
        count,
        seed,
        buffers.rows,
        buffers._places,
        np.ones(1, np.uint8),
        programs.instructions,
        programs.targets,
        *programs.texts,
        programs.writers,
        buffers.addresses,
        buffers.used,
        buffers.counts,
        buffers.rooms,
        starts,
        ends,
        guarded(needed_words(len(programs.targets)), np.int64),
    )
    for array in buffers.arrays():
        array.validate(full=True)
    release()
    return accepted


def _joined(parts: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    offsets: NDArray[np.int64] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return np.frombuffer(b"".join(parts) + b"\0", np.uint8).copy(), offsets


@njit
def _damage(record, size, pool, pool_offsets, words, word_offsets):  # type: ignore[no-untyped-def]
    """Damage a record behind its wire format; return its new size."""
    kind, at = np.random.randint(0, 7), WIRE_BYTES + np.random.randint(0, size - WIRE_BYTES + 1)
    if kind == 0 and at < size:
        record[at] ^= np.uint8(1 << np.random.randint(0, 8))
    elif kind == 1 and at < size:
        record[at] = np.random.randint(0, 256)
    elif kind == 2:
        size = at
    elif kind in (3, 4):
        word = np.random.randint(0, len(word_offsets) - 1)
        begin, end = word_offsets[word], word_offsets[word + 1]
        gone = min(size - at, np.int64(kind == 4))
        new = size + end - begin - gone
        if new <= len(record):
            for byte in range(size - 1, at + gone - 1, -1):
                record[byte + new - size] = record[byte]
            record[at : at + end - begin] = words[begin:end]
            size = new
    elif kind == 5:
        for _ in range(np.random.randint(1, 9)):
            if size < len(record):
                record[size] = np.random.randint(0, 256)
                size += 1
    elif kind == 6:
        other = np.random.randint(0, len(pool_offsets) - 1)
        end = pool_offsets[other + 1]
        begin = end - np.random.randint(0, end - pool_offsets[other] - WIRE_BYTES + 1)
        if at + end - begin <= len(record):
            record[at : at + end - begin] = pool[begin:end]
            size = at + end - begin
    return size


@njit
def _clear(places, addresses, used, counts):  # type: ignore[no-untyped-def]
    for number in range(len(places)):
        slot, domain = places[number, 0], places[number, 1]
        for row in range(counts[domain] + 1):
            store_byte(addresses[1, slot] + row, np.uint8(0))
    used[:] = 0
    counts[:] = 0


@njit
def _drive(  # type: ignore[no-untyped-def]
    execute,
    reader,
    pool,
    pool_offsets,
    words,
    word_offsets,
    region,
    record,
    count,
    seed,
    rows,
    places,
    present,
    instructions,
    targets,
    text_offsets,
    texts,
    writers,
    addresses,
    used,
    counts,
    rooms,
    starts,
    ends,
    work,
):
    np.random.seed(seed)
    offsets, accepted = np.full(2, len(region), np.int64), 0
    for _ in range(count):
        one = np.random.randint(0, len(pool_offsets) - 1)
        size = pool_offsets[one + 1] - pool_offsets[one]
        record[:size] = pool[pool_offsets[one] : pool_offsets[one + 1]]
        for _ in range(np.random.randint(0, 3)):
            size = _damage(record, size, pool, pool_offsets, words, word_offsets)
        offsets[0] = len(region) - size
        region[offsets[0] :] = record[:size]
        work[:] = 0
        programs = instructions, targets, text_offsets, texts, writers
        buffers = addresses, used, counts, rooms, starts, ends
        if execute(reader, region, offsets, present, programs, buffers, 0, work) == 1:
            accepted += 1
        else:
            undo(places, addresses, used, counts)
        if counts[0] >= rows or np.random.randint(0, 8) == 0:
            _clear(places, addresses, used, counts)
    return accepted
