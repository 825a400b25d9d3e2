"""The event time of a record, from a field of its key or value.

:meth:`EventTime.micros` says what a value means. Arrays are read faster where Arrow and numpy read
the same; every value that they do not read is read by :meth:`EventTime.micros`, which also has the
reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg import types as T

from topicberg.formats.reasons import field_at, shown
from topicberg.formats.time_text import EPOCHS, ISO, TIME, moment
from topicberg.tableflow.values.arrays import flags
from topicberg.tableflow.values.metadata import FIRST_MS, LAST_MS, NO_TIMESTAMP

FIRST_US, LAST_US = FIRST_MS * 1_000, LAST_MS * 1_000 + 999
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_LOCAL_EPOCH = datetime(1970, 1, 1)
_EXACT = Context(prec=80)
_BLOCK = 1_024
"""Texts that the reference reads one by one if Arrow does not read one of them."""


class EventTimes(NamedTuple):
    """Event times, why some rows have none, and the rows that have Kafka's time instead."""

    column: pa.Array
    wrong: dict[int, str]
    replaced: list[int]


@dataclass(frozen=True)
class EventTime:
    """How the event time of a topic's records is read; small enough to be sent to a task."""

    format: str
    """See :class:`topicberg.topics.event_time.EventTimeSpec`, as of the last four."""
    path: tuple[str, ...]
    """A column, and the fields in it."""
    type: T.IcebergType
    """Of the field."""
    timezone: str | None = None
    otherwise: str = "malformed"
    earliest: date | None = None
    max_ahead_hours: float | None = None

    def micros(self, value: Any, kafka_ms: int) -> int | str:
        """Return an event time in microseconds since 1970, or why a value is none.

        :param value: text, a number, or a time in microseconds; None: there is none
        :param kafka_ms: Kafka's time of the record, or :data:`NO_TIMESTAMP`
        """
        where = field_at(".".join(self.path), self.type)
        if value is None:
            return f"{where}: the event time is missing"
        outcome = self._read(value)
        if isinstance(outcome, str):
            return f"{where}: {outcome}, found {shown(value)}"
        if not FIRST_US <= outcome <= LAST_US:
            return (
                f"{where}: the event time is not between the years 1 and 9999, found "
                f"{shown(value)}: is event_time.format {self.format} its unit?"
            )
        if outcome < self.earliest_us:
            return (
                f"{where}: the event time is before {self.earliest} (event_time.earliest), "
                f"found {shown(value)}"
            )
        if kafka_ms != NO_TIMESTAMP and outcome > kafka_ms * 1_000 + self.ahead_us:
            return (
                f"{where}: the event time is more than {self.max_ahead_hours:g} hours after "
                f"Kafka's time (event_time.max_ahead_hours), found {shown(value)}"
            )
        return outcome

    def of_stored(self, value: Any) -> Any:
        """Return a stored value of a reference decoder as :meth:`micros` has it."""
        if value is None or not isinstance(self.type, T.DecimalType):
            return value
        return Decimal(value).scaleb(-self.type.scale, _EXACT)

    @property
    def earliest_us(self) -> int:
        day = self.earliest or date.min
        return (datetime(day.year, day.month, day.day, tzinfo=UTC) - _EPOCH) // _MICROSECOND

    @property
    def ahead_us(self) -> int:
        hours = self.max_ahead_hours
        return LAST_US - FIRST_US if hours is None else int(hours * 3_600_000_000)

    def _read(self, value: Any) -> int | str:
        kind = self.format
        if kind == TIME:
            return int(value)
        if kind in EPOCHS:
            return _of_epoch(value, EPOCHS[kind])
        if kind == ISO:
            parsed = moment(value, is_iso=True)
            if parsed is None:
                return "a time of ISO 8601 expected"
            if parsed.offset is not None:
                return parsed.utc_micros
            local = _LOCAL_EPOCH + timedelta(microseconds=parsed.micros)
        else:
            try:
                local = datetime.strptime(value, kind)
            except ValueError:
                return f"a time of the format {kind} expected"
        if local.tzinfo is None:
            if self.timezone is None:
                return "a time with an offset from UTC expected (or set event_time.timezone)"
            local = local.replace(tzinfo=ZoneInfo(self.timezone))
        try:
            if self.timezone is not None and not _exists(local):
                return f"a time that exists in {self.timezone} expected"
            return (local - _EPOCH) // _MICROSECOND
        except OverflowError:  # an offset beyond the year 1 or 9999
            return FIRST_US - 1


def event_times(
    event_time: EventTime,
    columns: Mapping[str, pa.Array],
    kafka_ms: NDArray[np.int64],
    is_needed: NDArray[np.bool_],
) -> EventTimes:
    """Return the event times of rows, given their decoded columns.

    :param kafka_ms: Kafka's time of each row, or :data:`NO_TIMESTAMP`
    :param is_needed: False: a record without a value, which has Kafka's time
    """
    values = _values(event_time, columns, len(kafka_ms))
    micros, is_read = _read_fast(event_time, values)
    is_read &= (micros >= max(FIRST_US, event_time.earliest_us)) & (micros <= LAST_US)
    has_kafka = (kafka_ms != NO_TIMESTAMP) & (kafka_ms >= FIRST_MS) & (kafka_ms <= LAST_MS)
    kafka_us = np.where(has_kafka, kafka_ms, 0) * 1_000
    if event_time.max_ahead_hours is not None:
        is_read &= ~has_kafka | (micros - kafka_us <= event_time.ahead_us)
    wrong, replaced = dict[int, str](), list[int]()
    has_none = ~is_read & ~is_needed & ~has_kafka
    micros = np.where(is_read, micros, kafka_us)
    for row in np.flatnonzero(~is_read & is_needed):
        number = int(row)
        outcome = event_time.micros(values[number].as_py(), int(kafka_ms[number]))
        if isinstance(outcome, int):
            micros[number] = outcome
        elif event_time.otherwise == "kafka" and has_kafka[number]:
            replaced.append(number)
        else:
            wrong[number] = outcome
    column = pa.array(micros, mask=has_none).cast(pa.timestamp("us", "UTC"))
    return EventTimes(column, wrong, replaced)


def _values(event_time: EventTime, columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Return the values of the field: text, numbers, or times in microseconds."""
    name, *inner = event_time.path
    values = columns.get(name)
    if values is None:  # no record of the batch has it
        return pa.nulls(count, pa.string())
    for part in inner:
        values = pc.struct_field(values, part)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _read_fast(
    event_time: EventTime, values: pa.Array
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return event times, and which of them are read; others may be read by the reference."""
    is_there, kind = flags(values.is_valid()), event_time.format
    none = np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    if kind == ISO:
        micros, is_read = none
        for begin in range(0, len(values), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            with suppress(pa.ArrowInvalid):  # it reads only times with an offset, up to micros
                times = values[block].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
                micros[block] = times.fill_null(0).to_numpy(zero_copy_only=False)
                is_read[block] = is_there[block]
        return micros, is_read
    if (kind not in EPOCHS and kind != TIME) or not pa.types.is_integer(values.type):
        return none
    numbers = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    factor = Decimal(1) if kind == TIME else EPOCHS[kind]
    if factor < 1:
        return numbers // int(1 / factor), is_there
    is_there &= (numbers <= LAST_US // int(factor)) & (numbers >= FIRST_US // int(factor))
    return np.where(is_there, numbers, 0) * int(factor), is_there


def _of_epoch(value: Any, factor: Decimal) -> int | str:
    """Return microseconds since 1970, rounded down, of a number with a factor of microseconds."""
    try:
        # A float is what it is written as: 0.1 is not the binary number closest to it.
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if not number.is_finite():
            return "a finite number expected"
        if abs(number) > 10**19:
            return FIRST_US - 1
        rounding = ROUND_HALF_EVEN if isinstance(value, float) else ROUND_FLOOR
        return int((number * factor).to_integral_value(rounding))
    except (InvalidOperation, ValueError):
        return "a number expected"


def _exists(local: datetime) -> bool:
    """Return whether a local time exists: clocks skip some when summer begins."""
    back = local.astimezone(UTC).astimezone(local.tzinfo)
    return back.replace(tzinfo=None) == local.replace(tzinfo=None)
