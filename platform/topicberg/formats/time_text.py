"""Text that is a day and a time: what is one, for columns, event times and inference alike.

Sources: RFC 3339, sections 5.6 and 5.7; ISO 8601, calendar dates.
"""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from topicberg.formats.bounds import MICROS

_RFC_3339 = re.compile(
    r"([0-9]{4})(-)([0-9]{2})-([0-9]{2})[Tt]"
    r"([0-9]{2})(:)([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_ISO_8601 = re.compile(
    r"([0-9]{4})(-?)([0-9]{2})\2([0-9]{2})"
    r"(?:[Tt ]([0-9]{2})(?:(:?)([0-9]{2})(?:\6([0-9]{2})(?:[.,]([0-9]+))?)?)?)?"
    r"([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
TIME, ISO = "time", "iso"
EPOCHS = {
    "seconds": Decimal(1_000_000),
    "milliseconds": Decimal(1_000),
    "microseconds": Decimal(1),
    "nanoseconds": Decimal("0.001"),
}
"""Microseconds of each unit since 1970."""
_EPOCH = date(1970, 1, 1).toordinal()
_SECOND, DAY = 1_000_000, 86_400_000_000  # Microseconds.


class ZonedTime(NamedTuple):
    """``micros``: since 1970, by the clock of its zone. ``offset``: of the zone, in minutes from
    UTC; None: the text has none.
    """

    micros: int
    offset: int | None

    @property
    def utc_micros(self) -> int:
        return self.micros - (self.offset or 0) * 60 * _SECOND


def moment(text: str, *, is_iso: bool) -> ZonedTime | None:
    """Return the time that a text is; None: it is none.

    Digits beyond microseconds are dropped. A leap second is the first second after it, as in POSIX:
    ``23:59:60Z`` on June 30 and December 31, on which there are such.

    :param is_iso: ISO 8601 with calendar dates, of which RFC 3339 is a part: a space for the T,
        without some or all of ``-`` and ``:``, without minutes, seconds, time or offset
    """
    if (match := (_ISO_8601 if is_iso else _RFC_3339).fullmatch(text)) is None:
        return None
    year, _, month, day, hour, _, minute, second, fraction, zone = match.groups()
    if int(hour or 0) > 23 or int(minute or 0) > 59 or int(second or 0) > 60:
        return None
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        return None
    seconds = (24 * days + int(hour or 0)) * 3600 + int(minute or 0) * 60 + int(second or 0)
    micros = _SECOND * seconds + int(f"{fraction or ''}000000"[:6])
    if zone is None:
        return None if second == "60" else ZonedTime(micros, None)
    hours, minutes = (0, 0) if zone in "Zz" else (int(zone[1:3]), int(zone[-2:]) if zone[3:] else 0)
    if hours > 23 or minutes > 59:
        return None
    parsed = ZonedTime(micros, (60 * hours + minutes) * (-1 if zone[0] == "-" else 1))
    return None if second == "60" and not _is_after_leap_second(parsed.utc_micros) else parsed


def date_time_micros(text: str) -> int | None:
    """Return the microseconds since 1970 of a time of RFC 3339; None: it is none."""
    found = moment(text, is_iso=False)
    is_held = found is not None and MICROS[0] <= found.utc_micros <= MICROS[1]
    return found.utc_micros if found is not None and is_held else None


def _is_after_leap_second(micros: int) -> bool:
    days, rest = divmod(micros, DAY)
    if rest >= _SECOND or not MICROS[0] < micros <= MICROS[1]:
        return False
    day = date.fromordinal(days + _EPOCH)
    return (day.month, day.day) in ((1, 1), (7, 1))
