"""Texts of days and times, for compiled code; see :mod:`topicberg.formats.connect`."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from topicberg.formats.bounds import MICROS
from topicberg.formats.columnar.memory import compiled, load_byte


class Moment(IntEnum):
    """What a text is of. ``LOCAL``, ``DAY`` and ``TIME`` may end with ``Z``."""

    ZONED = 0  # A day and a time with a zone, in microseconds since 1970.
    LOCAL = 1  # A day and a time, in microseconds since 1970.
    DAY = 2  # A day, in days since 1970.
    TIME = 3  # A time of the day, in microseconds.
    RFC_3339 = 4  # As ``ZONED``, with letters of any case.


_SMALL = 32  # The bit of a letter that is small.
_FIRST, _LAST = MICROS
_MONTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_DASH, _COLON, _POINT, _PLUS, _T, _Z = (ord(letter) for letter in "-:.+TZ")
_DAY_BYTES, _TIME_BYTES, _ZONE_BYTES, _FRACTION = 10, 8, 6, 9
_MICROS_OF_SECOND, _MICROS_OF_DAY = 1_000_000, 86_400_000_000


@compiled
def digits(position, count):  # type: ignore[no-untyped-def]
    """Return a number of some digits, or a negative one."""
    number = np.int64(0)
    for place in range(position, position + count):
        digit = np.int64(load_byte(place)) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        number = number * 10 + digit
    return number


@compiled
def days_of(year, month, day):  # type: ignore[no-untyped-def]
    """Return the days since 1970 of a day of the years 1 to 9999, and whether there is one."""
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not (1 <= year <= 9999 and 1 <= month <= 12) or not (
        1 <= day <= _MONTHS[month - 1] + (1 if is_leap and month == 2 else 0)
    ):
        return np.int64(0), False
    # The year begins in March, so that a leap day is its last one.
    year -= 1 if month <= 2 else 0
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719_468, True


@compiled
def moment(position, end, kind):  # type: ignore[no-untyped-def]
    """Return what a text of a kind stands for, and the address after it, or -1: there is none."""
    days, any_case = np.int64(0), _SMALL if kind == Moment.RFC_3339 else 0
    if kind != Moment.TIME:
        if end - position < _DAY_BYTES:
            return np.int64(0), -1
        year, month, day = digits(position, 4), digits(position + 5, 2), digits(position + 8, 2)
        days, is_day = days_of(year, month, day)
        if not is_day or load_byte(position + 4) != _DASH or load_byte(position + 7) != _DASH:
            return np.int64(0), -1
        position += _DAY_BYTES
    if kind == Moment.DAY:
        return days, position + 1 if position < end and load_byte(position) == _Z else position
    if kind != Moment.TIME:
        if position == end or load_byte(position) | any_case != _T | any_case:
            return np.int64(0), -1
        position += 1
    if (
        end - position < _TIME_BYTES
        or load_byte(position + 2) != _COLON
        or load_byte(position + 5) != _COLON
    ):
        return np.int64(0), -1
    hour, minute, second = digits(position, 2), digits(position + 3, 2), digits(position + 6, 2)
    if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
        return np.int64(0), -1
    micros = ((hour * 60 + minute) * 60 + second) * _MICROS_OF_SECOND
    position += _TIME_BYTES
    if position < end and load_byte(position) == _POINT:
        begin = position + 1
        position, factor = begin, np.int64(_MICROS_OF_SECOND // 10)
        while position < end and position - begin < _FRACTION and 48 <= load_byte(position) <= 57:
            micros += (np.int64(load_byte(position)) - 48) * factor
            factor //= 10
            position += 1
        if position == begin:
            return np.int64(0), -1
    micros += days * _MICROS_OF_DAY
    if position < end and load_byte(position) | any_case == _Z | any_case:
        position += 1
    elif kind in (Moment.ZONED, Moment.RFC_3339):
        if end - position < _ZONE_BYTES or load_byte(position + 3) != _COLON:
            return np.int64(0), -1
        sign, hours, minutes = load_byte(position), digits(position + 1, 2), digits(position + 4, 2)
        if not (0 <= hours < 24 and 0 <= minutes < 60) or (sign != _PLUS and sign != _DASH):
            return np.int64(0), -1
        offset = (hours * 60 + minutes) * 60 * _MICROS_OF_SECOND
        micros += offset if sign == _DASH else -offset
        position += _ZONE_BYTES
    return micros, position if kind == Moment.TIME or _FIRST <= micros <= _LAST else -1
