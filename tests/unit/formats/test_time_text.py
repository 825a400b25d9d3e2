"""Texts of days and times, against the grammar of RFC 3339 written as it stands there."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicberg.formats.time_text import date_time_micros, moment

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def two(last: int) -> st.SearchStrategy[str]:
    return st.integers(0, last).map("{:02}".format)


YEARS = st.integers(0, 9999).map("{:04}".format)
OFFSETS = st.one_of(st.sampled_from("Zz"), st.tuples(st.sampled_from("+-"), two(25), two(61)))
PARTS = st.tuples(
    *(YEARS, st.sampled_from("--_/"), two(13), st.just("-"), two(32), st.sampled_from("TTt_ ")),
    *(two(24), st.just(":"), two(60), st.just(":"), two(61)),
    st.sampled_from(["", ".5", ".123456", ".1234567", ".", ",5"]),
    OFFSETS.map(lambda one: one if isinstance(one, str) else f"{one[0]}{one[1]}:{one[2]}"),
)
LEAP_SECONDS = st.sampled_from(
    [
        *("1990-12-31T23:59:60Z", "1990-12-31T15:59:60-08:00", "2015-06-30T23:59:60.25z"),
        *("2015-07-01T01:59:60+02:00", "2015-07-01T23:59:60Z", "2015-06-30T23:58:60Z"),
        *("2015-06-30T23:59:60+01:00", "2015-12-31T23:59:61Z", "9999-12-31T23:59:60Z"),
    ]
)


def by_the_rfc(text: str) -> datetime | None:
    """Return the time of a text by sections 5.6 and 5.7, read from the left; None: it is none."""

    def number(begin: int, count: int, low: int, high: int) -> int:
        digits = text[begin : begin + count]
        assert len(digits) == count
        assert all(letter in "0123456789" for letter in digits)
        assert low <= int(digits) <= high
        return int(digits)

    try:
        year, month = number(0, 4, 1, 9999), number(5, 2, 1, 12)
        day = number(8, 2, 1, calendar.monthrange(year, month)[1])
        assert (text[4], text[7], text[10].upper(), text[13], text[16]) == ("-", "-", "T", ":", ":")
        hour, minute, second = number(11, 2, 0, 23), number(14, 2, 0, 59), number(17, 2, 0, 60)
        rest, micros = text[19:], 0
        if rest[0] == ".":
            digits = rest[1:].rstrip("Zz+-:").partition("+")[0].partition("-")[0]
            assert digits
            assert all(letter in "0123456789" for letter in digits)
            micros, rest = int(f"{digits}000000"[:6]), rest[1 + len(digits) :]
        offset = timedelta()
        if rest.upper() != "Z":
            assert len(rest) == len("+00:00")
            assert rest[0] in "+-"
            assert rest[3] == ":"
            begin = len(text) - 6
            offset = timedelta(hours=number(begin + 1, 2, 0, 23))
            offset += timedelta(minutes=number(begin + 4, 2, 0, 59))
            offset = -offset if rest[0] == "-" else offset
        found = datetime(year, month, day, hour, minute, min(second, 59), micros, UTC) - offset
        if second == 60:
            assert (found.month, found.day) in ((6, 30), (12, 31))
            assert (found.hour, found.minute, found.second) == (23, 59, 59)
            found += timedelta(seconds=1)
    except (AssertionError, IndexError, OverflowError):
        return None
    return found


@settings(max_examples=500)
@given(st.one_of(PARTS.map("".join), LEAP_SECONDS, st.text("0129-:TZ+. ", max_size=26)))
def test_date_time_micros_any_text_is_what_the_rfc_says(text: str) -> None:
    expected, found = by_the_rfc(text), date_time_micros(text)
    assert found == (None if expected is None else (expected - EPOCH) // timedelta(microseconds=1))
    if found is not None:  # RFC 3339 is a part of what `iso` reads
        assert moment(text, is_iso=True).utc_micros == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-31t03:17:37z", "2026-03-31T03:17:37"),
        ("2026-03-31 03:17:37Z", "2026-03-31T03:17:37"),
        ("2026-03-31T03:17:37+0100", "2026-03-31T02:17:37"),
        ("2026-03-31T03:17:37,5+01", "2026-03-31T02:17:37.500000"),
        ("2026-03-31T03:17Z", "2026-03-31T03:17:00"),
        ("20260331T031737Z", "2026-03-31T03:17:37"),
        ("2026-03-31", "2026-03-31T00:00:00"),
        ("2016-12-31 23:59:60Z", "2017-01-01T00:00:00"),
        ("2026-03-31T03:17:37+01:60", None),
        ("2026-03-31_03:17:37Z", None),
        ("2026-03-31T24:00:00Z", None),
        ("2026-0331T03:17:37Z", None),
        ("2026-03-31T03:1737Z", None),
        ("2026-W14-2T03:17:37Z", None),
        ("2016-12-31 23:59:60", None),
    ],
)
def test_moment_iso_is_read_or_none(text: str, expected: str | None) -> None:
    found = moment(text, is_iso=True)
    read = None if found is None else EPOCH + timedelta(microseconds=found.utc_micros)
    assert (read and read.replace(tzinfo=None).isoformat()) == expected
