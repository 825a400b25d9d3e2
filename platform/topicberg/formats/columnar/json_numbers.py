"""Numbers of JSON text: exactly the value that the text has, or none.

A double is correctly rounded, as Java's ``Double.parseDouble`` rounds it. Small numbers take one
multiplication or division of doubles, which is exact. The others take the algorithm of Eisel and
Lemire. Source: Daniel Lemire, "Number Parsing at a Gigabyte per Second", Software: Practice and
Experience 51(8), 2021, section 5, and his library fast_float, ``decimal_to_binary.h``.
"""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.decimals import negate
from topicberg.formats.columnar.memory import compiled, leading_zeros, load_byte, multiply_high

MAX_DIGITS = 19  # The digits that fit 64 bits, whichever they are.
_MAX_EXPONENT = 999
_LEAST_POWER, _LARGEST_POWER = -342, 308
_EXACT_POWERS = np.array([float(f"1e{n}") for n in range(23)])
"""The powers of ten that a double holds exactly."""
_EXACT = np.uint64(2**53)
_FIELD = 3  # Bits after a double's 53 that decide how it is rounded.
_REST = np.uint64(2**64 - 1) >> np.uint64(52 + _FIELD)
_ONE, _TEN = np.uint64(1), np.uint64(10)
_MOST = np.uint64(2**63 - 1)
_MOST_TENTH = np.uint64((2**63 - 1) // 10)


def _power_of_five(exponent: int) -> tuple[int, int]:
    """Return the upper and lower 64 bits of the 128 first ones of a power of five."""
    power = 5 ** abs(exponent)
    if exponent >= 0:
        bits = power << 128 >> power.bit_length()
    elif exponent >= -27:
        bits = (1 << (power - 1).bit_length() + 127) // power + 1
    else:
        bits = (1 << 2 * (power - 1).bit_length() + 128) // power + 1
        bits >>= bits.bit_length() - 128
    return bits >> 64, bits & (2**64 - 1)


POWERS = np.array(
    [_power_of_five(n) for n in range(_LEAST_POWER, _LARGEST_POWER + 1)], dtype=np.uint64
)


@compiled
def number(position, end):  # type: ignore[no-untyped-def]
    """Read a number at its first character.

    :param position: an address, as is ``end``
    :returns: whether it is negative, its digits, how many of them follow the point, the exponent,
        and the address after it, or -1: it is not a number, or has too many digits
    """
    none = (False, np.uint64(0), 0, 0, -1)
    negative = position < end and load_byte(position) == 45
    begin = position + np.int64(negative)
    position, digits, places, exponent = begin, np.uint64(0), 0, np.int64(0)
    while position < end and _is_digit(load_byte(position)):
        digits = digits * _TEN + np.uint64(load_byte(position) - 48)
        position += 1
    size = position - begin
    if size == 0 or (size > 1 and load_byte(begin) == 48):
        return none
    size = 0 if load_byte(begin) == 48 else size
    if position < end and load_byte(position) == 46:
        position += 1
        begin = position
        while position < end and _is_digit(load_byte(position)):
            digits = digits * _TEN + np.uint64(load_byte(position) - 48)
            size += 1 if size > 0 or load_byte(position) != 48 else 0
            position += 1
        places = position - begin
        if places == 0 or places > _MAX_EXPONENT:
            return none
    if size > MAX_DIGITS:
        return none
    if position < end and (load_byte(position) | 32) == 101:
        sign = load_byte(position + 1) if position + 1 < end else np.uint8(0)
        begin = position + (2 if sign == 45 or sign == 43 else 1)
        position = begin
        while position < end and _is_digit(load_byte(position)) and position - begin <= 4:
            exponent = exponent * 10 + np.int64(load_byte(position) - 48)
            position += 1
        if position == begin or exponent > _MAX_EXPONENT:
            return none
        exponent = -exponent if sign == 45 else exponent
    return negative, digits, places, exponent, position


@compiled
def _is_digit(byte):  # type: ignore[no-untyped-def]
    return 48 <= byte <= 57


@compiled
def whole(position, end, low, high):  # type: ignore[no-untyped-def]
    """Return a whole number, in any notation, and the address after it, or -1."""
    start, negative = position, position < end and load_byte(position) == 45
    begin, value = position + np.int64(negative), np.int64(0)
    position = begin
    while position < end and _is_digit(load_byte(position)):
        value = value * 10 + np.int64(load_byte(position) - 48)
        position += 1
    if position < end and (load_byte(position) == 46 or (load_byte(position) | 32) == 101):
        value, position = _converted(start, end)
        return (value, position) if low <= value <= high else (0, -1)
    size = position - begin
    # A number of 19 digits may be negative now: then it is too large.
    if size == 0 or size > MAX_DIGITS or (size > 1 and load_byte(begin) == 48) or value < 0:
        return 0, -1
    value = -value if negative else value
    return (value, position) if low <= value <= high else (0, -1)


@compiled
def _converted(position, end):  # type: ignore[no-untyped-def]
    """Return a number of any notation as a whole one, and the address after it, or -1."""
    negative, digits, places, exponent, position = number(position, end)
    exponent -= places
    while digits and exponent < 0 and digits % _TEN == 0:
        digits //= _TEN
        exponent += 1
    if position < 0 or (digits and (exponent < 0 or exponent > MAX_DIGITS)):
        return np.int64(0), -1
    for _ in range(exponent if digits else 0):
        if digits > _MOST_TENTH:
            return np.int64(0), -1
        digits *= _TEN
    value = -np.int64(digits) if negative else np.int64(digits)
    return (value, position) if digits <= _MOST else (np.int64(0), -1)


@compiled
def double(position, end):  # type: ignore[no-untyped-def]
    """Return a number as the nearest double, and the address after it, or -1. There is none for a
    negative zero, which a reader may have as zero."""
    negative, digits, places, exponent, position = number(position, end)
    if position < 0 or (negative and digits == 0):
        return 0.0, -1
    value = nearest(digits, exponent - places)
    if value < 0:
        return 0.0, -1
    return (-value if negative else value), position


@compiled
def nearest(digits, exponent):  # type: ignore[no-untyped-def]
    """Return the double that is nearest to ``digits * 10**exponent``; -1.0: it is not known. That
    is so for subnormal numbers and infinity."""
    if digits == 0:
        return 0.0
    if digits <= _EXACT and -22 <= exponent <= 22:
        power_of_ten = _EXACT_POWERS[abs(exponent)]
        return (
            np.float64(digits) / power_of_ten if exponent < 0 else np.float64(digits) * power_of_ten
        )
    if exponent < _LEAST_POWER or exponent > _LARGEST_POWER:
        return -1.0
    zeros, row = leading_zeros(digits), exponent - _LEAST_POWER
    digits <<= np.uint64(zeros)
    high, low = multiply_high(digits, POWERS[row, 0]), digits * POWERS[row, 0]
    if high & _REST == _REST:  # what follows may carry
        more = multiply_high(digits, POWERS[row, 1])
        low += more
        if more > low:
            high += _ONE
    if low == np.uint64(2**64 - 1) and not -27 <= exponent <= 55:
        return -1.0
    upper = high >> np.uint64(63)
    shift = upper + np.uint64(64 - 52 - _FIELD)
    mantissa = high >> shift
    power = ((217706 * exponent) >> 16) + 63 + np.int64(upper) - zeros + 1023
    if power <= 0:
        return -1.0
    may_be_halfway = low <= 1 and -4 <= exponent <= 23 and mantissa << shift == high
    if may_be_halfway and (mantissa & np.uint64(3)) == 1:  # between two doubles: the even one
        mantissa &= ~_ONE
    mantissa = (mantissa + (mantissa & _ONE)) >> _ONE
    if mantissa >= _EXACT:
        mantissa = _EXACT >> _ONE
        power += 1
    if power >= 0x7FF:
        return -1.0
    bits = (np.uint64(power) << np.uint64(52)) | (mantissa & np.uint64(2**52 - 1))
    return np.uint64(bits).view(np.float64)


@compiled
def as_float(wide):  # type: ignore[no-untyped-def]
    """Return the float nearest to a number that was read as a double, and whether that is known. A
    double that is halfway between two floats may have been rounded to be that."""
    in_range = wide == 0 or 1.2e-38 < abs(wide) < 3.4e38
    rest = np.float64(wide).view(np.uint64) & np.uint64(2**29 - 1)
    return np.float32(wide), in_range and rest != np.uint64(2**28)


@compiled
def scaled(position, end, scale):  # type: ignore[no-untyped-def]
    """Return a number times ``10**scale``, of 128 bits, and the address after it.

    :returns: its halves, and the address, or -1: it has more places, or is too large
    """
    negative, digits, places, exponent, position = number(position, end)
    missing = scale - places + exponent if digits else np.int64(0)
    while missing < 0 and digits % _TEN == 0:
        digits //= _TEN
        missing += 1
    if position < 0 or missing < 0 or missing > MAX_DIGITS:
        return np.int64(0), np.uint64(0), -1
    factor = np.uint64(1)
    for _ in range(missing):
        factor *= _TEN
    high, low = np.int64(multiply_high(digits, factor)), digits * factor
    high, low = negate(high, low) if negative else (high, low)
    return high, low, position
