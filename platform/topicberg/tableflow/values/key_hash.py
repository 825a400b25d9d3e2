"""The hash of keys: SipHash-2-4 of each value of a binary Arrow array.

The numbers are those of pandas' ``hash_array``, whose functions need a Python object for each value
and take six times as long.

Source: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF" (2012); pandas,
``core/util/hashing.py``: what spreads a hash over all 64 bits (splitmix64).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from topicberg.formats.columnar.memory import compiled, load_byte, load_word

_ROUND = njit(inline="always")


@_ROUND
def _rotated(word, bits):  # type: ignore[no-untyped-def]
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@_ROUND
def _round(a, b, c, d):  # type: ignore[no-untyped-def]
    a += b
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c += d
    d = _rotated(d, 16) ^ c
    a += d
    d = _rotated(d, 21) ^ a
    c += b
    b = _rotated(b, 17) ^ c
    c = _rotated(c, 32)
    return a, b, c, d


@compiled
def _hashes(data, offsets, first, count, secret, hashed):  # type: ignore[no-untyped-def]
    """Fill ``hashed`` with the hashes of ``count`` values.

    :param data: address of the values' bytes
    :param offsets: where each value begins
    :param secret: two words
    """
    k0, k1 = secret[0], secret[1]
    for number in range(count):
        address = data + np.int64(offsets[first + number])
        size = np.int64(offsets[first + number + 1]) - np.int64(offsets[first + number])
        a = k0 ^ np.uint64(0x736F6D6570736575)
        b = k1 ^ np.uint64(0x646F72616E646F6D)
        c = k0 ^ np.uint64(0x6C7967656E657261)
        d = k1 ^ np.uint64(0x7465646279746573)
        end = address + size - size % 8
        while address < end:
            word = load_word(address)
            d ^= word
            a, b, c, d = _round(a, b, c, d)
            a, b, c, d = _round(a, b, c, d)
            a ^= word
            address += 8
        word = np.uint64(size) << np.uint64(56)
        for place in range(size % 8):
            word |= np.uint64(load_byte(address + place)) << np.uint64(8 * place)
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a, b, c, d = _round(a, b, c, d)
        a ^= word
        c ^= np.uint64(0xFF)
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        value = a ^ b ^ c ^ d
        value ^= value >> np.uint64(30)
        value *= np.uint64(0xBF58476D1CE4E5B9)
        value ^= value >> np.uint64(27)
        value *= np.uint64(0x94D049BB133111EB)
        value ^= value >> np.uint64(31)
        hashed[number] = value


def hashes(values: Any, secret: bytes) -> NDArray[np.uint64]:
    """Return the hash of each value.

    :param values: an Arrow array of ``binary`` without nulls
    :param secret: 16 bytes
    """
    hashed = np.empty(len(values), np.uint64)
    if len(values):
        _, offsets, data = values.buffers()
        begins = np.frombuffer(offsets, np.int32)
        address = data.address if data is not None else 0
        words = np.frombuffer(secret, "<u8").astype(np.uint64)
        _hashes(address, begins, values.offset, len(values), words, hashed)
    return hashed


def compile_hashes() -> None:
    """Compile what hashes keys, or load it from disk."""
    hashes(pa.array([b"key"], pa.binary()), bytes(16))
