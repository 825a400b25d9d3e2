"""The hash of keys, their order, and the lookup of sorted ones among those of a data file.

The hash is SipHash-2-4 of each value of a binary Arrow array. The numbers are those of pandas'
``hash_array``, whose functions need a Python object for each value and take six times as long.

Hashes are spread evenly: their first bits nearly sort them, and the place of one is guessed from
its value and found a few steps away.

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

_INLINE = njit(inline="always")
_HALF = np.uint64(32)
_BUCKET_KEYS = 16


@_INLINE
def _rotated(word, bits):  # type: ignore[no-untyped-def]
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@_INLINE
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
    """Fill ``hashed``, given the address and the begins of values, and two words."""
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
    """Return the hash of each value of a ``binary`` array without nulls; 16 secret bytes key it."""
    hashed = np.empty(len(values), np.uint64)
    if len(values):
        _, offsets, data = values.buffers()
        begins = np.frombuffer(offsets, np.int32)
        address = data.address if data is not None else 0
        words = np.frombuffer(secret, "<u8").astype(np.uint64)
        _hashes(address, begins, values.offset, len(values), words, hashed)
    return hashed


@_INLINE
def _first_bit(high, size):  # type: ignore[no-untyped-def]
    """Return a bit of the filter; those of sorted hashes are sorted."""
    return ((high >> _HALF) * np.uint64(size)) >> _HALF


@_INLINE
def _second_bit(first, low, block):  # type: ignore[no-untyped-def]
    """Return another bit of the same block."""
    return first ^ (low & np.uint64(block - 1))


@compiled
def ordered(high, low):  # type: ignore[no-untyped-def]
    """Return the keys in ascending order, and the place of each; equal keys stay in their order.

    They are put into buckets of a few, by their first bits, and moved within them.
    """
    count, bits = len(high), 1
    while count >> bits > _BUCKET_KEYS:
        bits += 1
    shift, ends = np.uint64(64 - bits), np.zeros((1 << bits) + 1, np.int64)
    for number in range(count):
        ends[(high[number] >> shift) + np.uint64(1)] += 1
    ends = np.cumsum(ends)
    highs, lows, places = np.empty_like(high), np.empty_like(low), np.empty(count, np.uint32)
    for number in range(count):
        bucket = high[number] >> shift
        to = ends[bucket]
        ends[bucket] = to + 1
        highs[to], lows[to], places[to] = high[number], low[number], number
    for number in range(1, count):
        high_half, other, place, to = highs[number], lows[number], places[number], number
        while to > 0 and (
            highs[to - 1] > high_half or (highs[to - 1] == high_half and lows[to - 1] > other)
        ):
            highs[to], lows[to], places[to] = highs[to - 1], lows[to - 1], places[to - 1]
            to -= 1
        highs[to], lows[to], places[to] = high_half, other, place
    return highs, lows, places


@compiled
def fill(bits, block, high, low):  # type: ignore[no-untyped-def]
    """Set the bits of these keys in a filter.

    :param bits: whole blocks
    :param block: bits of a block, a power of two: both bits of a key are in one
    """
    for number in range(len(high)):
        first = _first_bit(high[number], 8 * len(bits))
        for bit in (first, _second_bit(first, low[number], block)):
            bits[bit >> np.uint64(3)] |= np.uint8(1) << np.uint8(bit & np.uint64(7))


@compiled
def passing(bits, block, high, low):  # type: ignore[no-untyped-def]
    """Return the places of the keys whose bits are set. No branch: they cannot be predicted."""
    places = np.empty(len(high), np.int64)
    count: Any = 0
    for number in range(len(high)):
        first = _first_bit(high[number], 8 * len(bits))
        second = _second_bit(first, low[number], block)
        bit = bits[first >> np.uint64(3)] >> np.uint8(first & np.uint64(7))
        other = bits[second >> np.uint64(3)] >> np.uint8(second & np.uint64(7))
        places[count] = number
        count += np.int64(bit & other & np.uint8(1))
    return places[:count]


@_INLINE
def _place(sorted_hashes, wanted):  # type: ignore[no-untyped-def]
    """Return the place of the first hash that is not smaller."""
    size = len(sorted_hashes)
    guess: Any = np.int64(_first_bit(wanted, size))
    step: Any = np.int64(64)
    if guess < size and sorted_hashes[guess] < wanted:
        begin, end = guess + 1, min(guess + step, size)
        while end < size and sorted_hashes[end] < wanted:
            begin, step = end + 1, 2 * step
            end = min(end + step, size)
    else:
        begin, end = max(guess - step, 0), guess
        while begin > 0 and sorted_hashes[begin - 1] >= wanted:
            end, step = begin, 2 * step
            begin = max(begin - step, 0)
    while begin < end:
        middle = (begin + end) // 2
        if sorted_hashes[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin


@compiled
def pairs(few_high, few_low, many_high, many_low, compared):  # type: ignore[no-untyped-def]
    """Return the places of all pairs of equal keys, in both: two arrays.

    :param many_high: sorted
    :param compared: the bits of the second halves that count
    """
    of_few, of_many = np.empty(1024, np.int64), np.empty(1024, np.int64)
    count = 0
    for number in range(len(few_high)):
        place = _place(many_high, few_high[number])
        while place < len(many_high) and many_high[place] == few_high[number]:
            if (many_low[place] ^ few_low[number]) & compared == 0:
                if count == len(of_few):
                    of_few = np.append(of_few, np.empty(3 * count, np.int64))
                    of_many = np.append(of_many, np.empty(3 * count, np.int64))
                of_few[count], of_many[count] = number, place
                count += 1
            place += 1
    return of_few[:count], of_many[:count]


def compile_keys() -> None:
    """Compile the functions of this module, or load them from disk."""
    hashes(pa.array([b"key"], pa.binary()), bytes(16))
    keys, bits = np.arange(4, dtype=np.uint64), np.zeros(1, np.uint8)
    ordered(keys, keys)
    fill(bits, 8, keys, keys)
    passing(bits, 8, keys, keys)
    pairs(keys, keys, keys, keys, keys[0])
