"""Decimals of 128 bits at addresses, for compiled code."""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.memory import (
    compiled,
    load_byte,
    load_int64,
    multiply_high,
    store_byte,
    store_int64,
)

MAX_BYTES = 16  # Of a decimal that compiled code reads.
MAX_ZEROS = 64  # The scale, and the zeros after it, of a decimal that compiled code writes as text.
MAX_DIGITS = 40
POWERS_HIGH = np.array([10**power >> 64 for power in range(39)], np.int64)
POWERS_LOW = np.array([10**power % 2**64 for power in range(39)], np.uint64)
"""Halves of the powers of ten."""
_ONE, _TEN = np.uint64(1), np.uint64(10)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@compiled
def negate(high, low):  # type: ignore[no-untyped-def]
    """Return the negative of a number; both are halves."""
    low = ~low + _ONE
    return ~high + (np.int64(1) if low == 0 else np.int64(0)), low


@compiled
def store_decimal(address, high, low):  # type: ignore[no-untyped-def]
    """Write a number at an address."""
    store_int64(address, np.int64(low))
    store_int64(address + 8, high)


@compiled
def _tenth(top, low):  # type: ignore[no-untyped-def]
    """Return a tenth of a number without a sign, and the last digit."""
    if top == 0:
        return top, low // _TEN, low % _TEN
    upper = ((top % _TEN) << _HALF) | (low >> _HALF)
    lower = ((upper % _TEN) << _HALF) | (low & _LOW)
    return top // _TEN, ((upper // _TEN) << _HALF) | (lower // _TEN), lower % _TEN


@compiled
def reaches(high, low, limit_high, limit_low):  # type: ignore[no-untyped-def]
    """Return whether the absolute value of a number is at least a limit; both are halves."""
    high, low = negate(high, low) if high < 0 else (high, low)
    # The absolute value of the least number exceeds 127 bits.
    return high < 0 or high > limit_high or (high == limit_high and low >= limit_low)


@compiled
def rescaled(high, low, zeros):  # type: ignore[no-untyped-def]
    """Append zeros to a number, which do not exceed it, or remove some (negative).

    :returns: its halves, and whether the zeros were there to be removed
    """
    is_negative = high < 0
    high, low = negate(high, low) if is_negative else (high, low)
    top = np.uint64(high)
    for _ in range(zeros):
        top, low = top * _TEN + multiply_high(low, _TEN), low * _TEN
    for _ in range(-zeros):
        top, low, digit = _tenth(top, low)
        if digit:
            return high, low, False
    high, low = negate(np.int64(top), low) if is_negative else (np.int64(top), low)
    return high, low, True


@compiled
def rescale(address, zeros):  # type: ignore[no-untyped-def]
    """Do the same for the number at an address; return whether the zeros were there."""
    high, low, is_exact = rescaled(load_int64(address + 8), np.uint64(load_int64(address)), zeros)
    if is_exact:
        store_decimal(address, high, low)
    return is_exact


@compiled
def unscaled(address, size):  # type: ignore[no-untyped-def]
    """Return a number of 1 to 16 bytes, the first byte first: its high and its low half."""
    high = np.int64(-1) if load_byte(address) >= 0x80 else np.int64(0)
    low = np.uint64(high)
    for place in range(address, address + size):
        high = (high << 8) | np.int64(low >> np.uint64(56))
        low = (low << np.uint64(8)) | np.uint64(load_byte(place))
    return high, low


@compiled
def write_decimal(high, low, scale, target, room, digits):  # type: ignore[no-untyped-def]
    """Write a decimal as text, and return how many bytes it has, or -1 if there is no room.

    :param scale: digits behind the point; negative: zeros before it
    :param digits: the address of memory for :data:`MAX_DIGITS` digits
    """
    is_negative, count = high < 0, 0
    high, low = negate(high, low) if is_negative else (high, low)
    top = np.uint64(high)
    while top > 0 or low > 0:
        top, low, digit = _tenth(top, low)
        store_byte(digits + count, np.uint8(digit))
        count += 1
    zeros, behind = -scale if scale < 0 and count > 0 else 0, max(scale, 0)
    whole = max(count - behind, 1)
    size = np.int64(is_negative) + whole + zeros + (1 + behind if behind else 0)
    if size > room:
        return np.int64(-1)
    store_byte(target, np.uint8(45))  # a digit replaces it, unless the number is negative
    target += np.int64(is_negative)
    for place in range(behind + whole - 1, -1, -1):
        if behind and place == behind - 1:
            store_byte(target, np.uint8(46))
            target += 1
        digit = load_byte(digits + place) if place < count else np.uint8(0)
        store_byte(target, np.uint8(48) + digit)
        target += 1
    for _ in range(zeros):
        store_byte(target, np.uint8(48))
        target += 1
    return size
