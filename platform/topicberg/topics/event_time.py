"""The rule of a spec for the event time of a record."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from topicberg.formats.time_text import EPOCHS, ISO, TIME

_PROBE = datetime(2026, 11, 27, 15, 4, 5, tzinfo=UTC)


def _format(text: str) -> str:
    if text in (names := (ISO, *EPOCHS, TIME)):
        return text
    if "%" not in text:
        raise ValueError(
            f"{text!r} is none of {', '.join(names)}, and no format of Python's strptime such as "
            "'%d.%m.%Y %H:%M:%S'"
        )
    try:
        parsed = datetime.strptime(_PROBE.strftime(text), text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a format of Python's strptime: {error}") from None
    if parsed.date() != _PROBE.date():
        raise ValueError(f"{text!r} has no year, month and day")
    return text


def _zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{text!r} is not a time zone such as Europe/Berlin or UTC") from None
    return text


class EventTimeSpec(BaseModel):
    """The event time: a column, or a field of the record and how to read it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    field: str
    """A column, or ``column.field`` of a struct."""
    format: Annotated[str, AfterValidator(_format)] | None = None
    """``iso`` (RFC 3339 and other ISO 8601), ``seconds``, ``milliseconds``, ``microseconds`` or
    ``nanoseconds`` since 1970, ``time`` (a column that is a time), or a format of strptime with
    ``%``. Without a format, the column is the event time as it is."""
    timezone: Annotated[str, AfterValidator(_zone)] | None = None
    """Of texts without an offset from UTC, which are malformed otherwise."""
    otherwise: Literal["malformed", "kafka"] = "malformed"
    """Of a time that is missing, cannot be read or is out of range: the record is malformed, or has
    Kafka's time, which is counted."""
    earliest: date | None = None
    """The first day in range, in UTC."""
    max_ahead_hours: float | None = Field(default=None, ge=0, le=1_000_000, allow_inf_nan=False)
    """How long after Kafka's time an event time may be."""

    @model_validator(mode="after")
    def _needs_format(self) -> EventTimeSpec:
        others = self.model_fields_set - {"field", "format"}
        if self.format is None and others:
            raise ValueError(f"{min(others)} needs a format, such as iso or milliseconds")
        if self.timezone is not None and self.format in (TIME, *EPOCHS):
            raise ValueError(f"timezone is not for the format {self.format}, which is in UTC")
        has_zone = self.format is None or "%" not in self.format or "%z" in self.format
        if not has_zone and self.timezone is None:
            raise ValueError(f"format {self.format} has no offset (%z): set timezone")
        return self


def _written(value: EventTimeSpec) -> Any:
    as_dict = value.format is not None
    return value.model_dump(mode="json", exclude_defaults=True) if as_dict else value.field


EventTimeField = Annotated[
    EventTimeSpec,
    BeforeValidator(
        lambda value: {"field": value} if isinstance(value, str) else value,
        json_schema_input_type=str | EventTimeSpec,
    ),
    PlainSerializer(_written),
]
"""``event_time`` of a spec: the name of a column, or a mapping."""
