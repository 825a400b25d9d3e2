"""Key files: the keys of one data file's rows, sorted by their hashes, with a filter.

A key file has, for each row: 8 + 8 bytes of the key's hash and 4 of the row's position, in three
arrays that are sorted by the first one; then a filter of two bytes a row; then the number of rows
and a checksum. It is mapped into memory, so a lookup reads only what it needs, and the system may
drop it at any time.

The filter is a Bloom filter with two bits for each key, both in one block of 64 bytes. The blocks
are in the order of the hashes. Keys that are looked up are sorted as well, so blocks, and what is
read after them, are read in order. Of the keys that a file does not have, 1.4 % pass.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray
from pyiceberg.io import FileIO

from topicberg.errors import TopicbergError
from topicberg.files import replacing
from topicberg.tableflow.values.key_hash import fill, ordered, pairs, passing

ROW_BYTES = 8 + 8 + 4
FORMAT = 2
"""Increase it with any change of the content of key files."""
_FILTER_BYTES = 2
"""For each row."""
_BLOCK_BYTES = 64
BLOCK_BITS = 8 * _BLOCK_BYTES
_CHECKSUM_BYTES = 16
_TRAILER_BYTES = 8 + _CHECKSUM_BYTES
"""The number of rows, and the checksum. They come last, so a truncated file has others there."""
_COPIED_AT_ONCE = 1 << 20
PARTITION_BITS = 16
"""The highest bits of the second half of a decoded key's hash: the partition of its row."""
_ALL_BITS = np.uint64((1 << 64) - 1)
KEY_BITS = _ALL_BITS >> np.uint64(PARTITION_BITS)
_FEW = 8
"""A file with fewer rows than this share of the keys is looked up in the keys."""


@dataclass(frozen=True)
class Keys:
    """Hashes of keys; ``position``: of the row of each key."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    position: NDArray[np.uint32]

    @staticmethod
    def joined(parts: Iterable[Keys]) -> Keys:
        """Return the keys of all parts, one part after the other."""
        empty = Keys(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))
        columns = zip(*((k.high, k.low, k.position) for k in (empty, *parts)), strict=True)
        return Keys(*map(np.concatenate, columns))

    def chosen(self, which: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Keys:
        """Return some of the keys."""
        return Keys(self.high[which], self.low[which], self.position[which])

    def is_last(self) -> NDArray[np.bool_]:
        """Return which of the sorted keys are not followed by an equal one."""
        differs = (self.high[1:] != self.high[:-1]) | (self.low[1:] != self.low[:-1])
        return np.append(differs, True)[: len(self.high)]

    def is_same(self) -> NDArray[np.bool_]:
        """Return which of the sorted decoded keys an equal one follows, of any partition."""
        is_same = ((self.low[1:] ^ self.low[:-1]) & KEY_BITS) == 0
        return np.asarray((self.high[1:] == self.high[:-1]) & is_same, np.bool_)

    def is_newest(self, times: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the sorted decoded keys is the newest record of its key, by times.

        In a partition, the last one; between partitions, the one with the latest time; if the times
        are equal, that of the highest partition. Those of a partition are in order.
        """
        is_newest, last = np.zeros(len(self.high), np.bool_), np.flatnonzero(self.is_last())
        if not len(last):
            return is_newest
        of_last = self.chosen(last)
        group = np.cumsum(np.append(False, ~of_last.is_same()))
        # Partitions of a key are in ascending order, and lexsort keeps it where times are equal.
        order = np.lexsort((times[of_last.position], group))
        ends = np.append(group[order][1:] != group[order][:-1], True)
        is_newest[last[order[ends]]] = True
        return is_newest

    def text(self, number: int) -> str:
        """Return one hash as 32 hexadecimal digits."""
        return f"{int(self.high[number]):016x}{int(self.low[number]):016x}"


@dataclass(frozen=True)
class HeldKeys(Keys):
    """The keys of a data file, and their filter."""

    filter: NDArray[np.uint8]

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """:param keys: sorted, see :func:`merged`"""
        bits = np.zeros(_filter_bytes(len(keys.high)), np.uint8)
        fill(bits, BLOCK_BITS, keys.high, keys.low)
        return cls(keys.high, keys.low, keys.position, bits)

    def positions_of(self, keys: Keys, *, are_decoded: bool = False) -> NDArray[np.uint32]:
        """Return the positions, ascending, of the rows that have one of these sorted keys."""
        return np.sort(self.position[self.equal(keys, are_decoded=are_decoded)[1]])

    def equal(
        self, keys: Keys, *, are_decoded: bool = False
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the places of all pairs of equal keys, in sorted ``keys`` and here."""
        compared = KEY_BITS if are_decoded else _ALL_BITS
        if len(self.high) <= len(keys.high) // _FEW:
            own, wanted = pairs(self.high, self.low, keys.high, keys.low, compared)
            return wanted, own
        maybe = passing(self.filter, BLOCK_BITS, keys.high, keys.low)
        wanted, own = pairs(keys.high[maybe], keys.low[maybe], self.high, self.low, compared)
        return maybe[wanted], own


def with_partition(low: NDArray[np.uint64], partitions: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return the second halves of decoded keys' hashes, with the partitions of their rows."""
    return (low & KEY_BITS) | (partitions.astype(np.uint64) << np.uint64(64 - PARTITION_BITS))


def merged(parts: Sequence[Keys]) -> Keys:
    """Return all keys of the parts, sorted."""
    keys = Keys.joined(parts)
    return keys.chosen(in_order(keys.high, keys.low).position.astype(np.intp))


def in_order(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> Keys:
    """Return records' keys, sorted; those of one key stay in order. ``position``: of the record."""
    # One compiled function has all arrays: some are read-only, or columns of records.
    return Keys(*ordered(*(np.require(half, requirements=["C", "W"]) for half in (high, low))))


def newest(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the places of the last records of each key, sorted by key."""
    keys = in_order(high, low)
    return keys.position[keys.is_last()].astype(np.intp)


def bits_of(bits: NDArray[np.uint8], numbers: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    """Return the bits of these numbers, of a bitmap that has all of them."""
    byte = bits[numbers >> numbers.dtype.type(3)]
    bit = (numbers & numbers.dtype.type(7)).astype(np.uint8)
    return ((byte >> bit) & np.uint8(1)).astype(np.bool_)


def _filter_bytes(rows: int) -> int:
    return -(-_FILTER_BYTES * rows // _BLOCK_BYTES) * _BLOCK_BYTES


@dataclass(frozen=True)
class Seal:
    """What a checksum covers beside the content: the data file, and what the keys are of."""

    keys: str
    data_file: str

    def begin(self) -> hashlib.blake2b:
        sealed = f"{self.keys} {self.data_file}\n".encode()
        return hashlib.blake2b(sealed, digest_size=_CHECKSUM_BYTES)


def read(path: Path) -> HeldKeys | None:
    """Return the keys of a file, or raise TopicbergError; None: there is none, or a part of one."""
    try:
        # As writable arrays are, so that one compiled lookup has all: the file is not changed.
        content = np.memmap(path, dtype=np.uint8, mode="c")
    except (FileNotFoundError, ValueError):  # ValueError: the file is empty
        return None
    except OSError as error:
        raise unusable(path, error) from error
    if len(content) < _TRAILER_BYTES:
        return None
    rows = int(content[-_TRAILER_BYTES:][:8].view(np.uint64)[0])
    if len(content) != ROW_BYTES * rows + _filter_bytes(rows) + _TRAILER_BYTES:
        return None
    ends = [8 * rows, 16 * rows, ROW_BYTES * rows, len(content) - _TRAILER_BYTES]
    # Views of a plain array: each operation on a memmap costs more.
    high, low, position, bits, _ = np.split(content.view(np.ndarray), ends)
    return HeldKeys(high.view(np.uint64), low.view(np.uint64), position.view(np.uint32), bits)


def write(path: Path, keys: HeldKeys, seal: Seal) -> None:
    """Write a key file in one step, or raise TopicbergError."""
    arrays = (keys.high, keys.low, keys.position, keys.filter)
    digest = seal.begin()
    try:
        with replacing(path) as stream:
            for part in (*arrays, np.uint64(len(keys.high))):
                stream.write(content := part.tobytes())
                digest.update(content)
            stream.write(digest.digest())
            _sync(stream)
    except OSError as error:
        raise unusable(path, error) from error


def upload(io: FileIO, path: Path, shared: str) -> None:
    """Share a key file, in the place of an earlier one, or raise OSError."""
    with path.open("rb") as source, io.new_output(shared).create(overwrite=True) as target:
        while part := source.read(_COPIED_AT_ONCE):
            target.write(part)


def download(io: FileIO, shared: str, path: Path, seal: Seal) -> bool:
    """Copy a shared key file; return False if there is none, or it is not what the seal says."""
    try:
        source = io.new_input(shared).open()
    except FileNotFoundError:
        return False
    digest, tail = seal.begin(), b""
    with source, suppress(_DamagedError), replacing(path) as target:
        while part := source.read(_COPIED_AT_ONCE):
            target.write(part)
            tail += part
            digest.update(tail[:-_CHECKSUM_BYTES])
            tail = tail[-_CHECKSUM_BYTES:]
        if digest.digest() != tail:
            raise _DamagedError
        _sync(target)
        return True
    return False


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


class _DamagedError(Exception):
    """A shared file is not what its checksum says."""


def unusable(path: Path, error: OSError) -> TopicbergError:
    return TopicbergError(
        f"{path} cannot be written or read: {error.strerror}",
        hint="make the folder writable and free some space: an upsert table's keys take "
        f"{ROW_BYTES + _FILTER_BYTES} bytes a row there; nothing of the batch was committed, the "
        "engine writes it again",
    )
