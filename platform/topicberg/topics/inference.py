"""A JSON Schema for records of JSON, inferred from some of them.

Nothing is guessed that could make a value wrong: what differs between records, or what no column
holds exactly, has no type in the schema and becomes a column with the JSON text. What differs in a
few records alone is taken for garbage, which is malformed later.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from math import inf
from typing import Any

from topicberg.errors import TableflowError
from topicberg.formats.json.syntax import Number, parsed, type_of
from topicberg.formats.limits import check_name
from topicberg.formats.reasons import MalformedError
from topicberg.formats.time_text import EPOCHS, date_time_micros, moment
from topicberg.topics.columns import reserved_names
from topicberg.wording import count, listed

_FINER_THAN_MICROSECONDS = re.compile(r"\.[0-9]{7}")
_EPOCH = datetime(1970, 1, 1)
_LONG, _EXACT = 2**63, 2**53
_KINDS = {
    **dict.fromkeys(("integer", "number"), "a number"),
    **{"string": "text", "boolean": "true or false", "object": "an object", "array": "an array"},
}
_DIGITS = 17
"""Significant digits that a double keeps."""
_MAP_NAMES, _MAP_FACTOR = 20, 4
"""From so many different names, of which a record has few, an object is a map."""
_TIME_NAME = re.compile(r"(^|[^a-z])(time|timestamp|ts|at|date|datetime|when|occurred)([^a-z]|$)")
_FIRST_EPOCH = 1_000_000_000
"""Seconds since 1970 in the year 2001: smaller numbers are none."""
_MAX_NAMED = 8
_GARBAGE = 50
"""One record of so many may differ from the others."""


@dataclass(frozen=True)
class TimeField:
    """A field that may be the event time; ``first``: the earliest day that a record has."""

    name: str
    format: str
    first: date


@dataclass
class Inference:
    """What some records show."""

    schema: dict[str, Any]
    records: int
    """JSON objects that were read."""
    others: int
    """Records that are no JSON objects."""
    optional: list[str] = field(default_factory=list)
    """Fields that are missing or null in some records."""
    untyped: list[str] = field(default_factory=list)
    """Fields that become JSON text, with the reason."""
    date_times: list[str] = field(default_factory=list)
    """Fields that have a time in every record."""
    usual: list[str] = field(default_factory=list)
    """Fields of another type in a few records, with the numbers of records."""
    maps: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Fields of the record whose names no column can have beside the others."""
    times: list[TimeField] = field(default_factory=list)
    """The best one first."""

    @property
    def text(self) -> str:
        return json.dumps(self.schema, indent=2, ensure_ascii=False)

    def notes(self) -> list[str]:
        """Return what was guessed, for people."""
        others = [f"{count(self.others, 'record')} of the sample"] if self.others else []
        mode = ["set tableflow.error_handling.mode to LOG or SKIP to go on without it"]
        lines = [f"the schema has the types of {count(self.records, 'record')}: review it"]
        for label, names in (
            ("not JSON objects, and so malformed later", others),
            ("of another type in a few records, which are malformed later", self.usual),
            ("a malformed record suspends the topic", mode if others or self.usual else []),
            ("missing or null in some of them", self.optional),
            ("columns with the JSON text", self.untyped),
            ("times, by their form", self.date_times),
            ("maps, as their names differ between records", self.maps),
            ("in the column of unknown fields, as no column can have their names", self.left_out),
        ):
            if names:
                lines.append(f"{label}: {listed(names, _MAX_NAMED)}")
        if more := ", ".join(time_field.name for time_field in self.times[1:]):
            lines.append(f"event_time is {self.times[0].name}; it could also be {more}")
        return lines


def json_objects(records: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the records that are JSON objects."""
    values = []
    for raw in records:
        with suppress(MalformedError):
            values.append(parsed(raw))
    return [value for value in values if isinstance(value, dict)]


def infer(records: Sequence[bytes], title: str) -> Inference:
    """Return a schema that records fit; raise ValueError if none of them is a JSON object."""
    if not (values := json_objects(records)):
        raise ValueError("none of the records is a JSON object")
    inference = Inference({}, len(values), len(records) - len(values))
    names = dict.fromkeys(name for value in values for name in value)
    inference.left_out = [*unusable_names(names), *reserved_names(names)]
    properties = _properties(values, (), inference)
    inference.schema = {"title": title, "type": "object", "properties": properties}
    inference.times = [*_times(values, properties)]
    return inference


def _properties(
    values: Sequence[dict[str, Any]], path: tuple[str, ...], inference: Inference
) -> dict[str, Any]:
    names = dict.fromkeys(name for value in values for name in value)
    left_out = () if path else inference.left_out
    return {
        name: _schema([record.get(name) for record in values], (*path, name), inference)
        for name in names
        if name not in left_out
    }


def unusable_names(names: Iterable[str]) -> list[str]:
    """Return the names that no column can have, or only without another one of them."""
    unusable, folded = list[str](), set[str]()
    for name in names:
        try:
            check_name("", name)
            unusable += [] if name and name.casefold() not in folded else [name]
            folded.add(name.casefold())
        except TableflowError:
            unusable.append(name)
    return unusable


def _schema(values: Sequence[Any], path: tuple[str, ...], inference: Inference) -> dict[str, Any]:
    """Return the schema of a field, by the values of all records; None: it is missing or null."""
    name = ".".join(path)
    present = [value for value in values if value is not None]
    is_optional = 0 < len(present) < len(values)
    inference.optional += [name] if is_optional else []
    schema = _of_present(present, path, inference) if present else "always null"
    if isinstance(schema, str):
        inference.untyped.append(f"{name} ({schema})")
        return {}
    return {**schema, "type": [schema["type"], "null"]} if is_optional else schema


def _of_present(
    values: Sequence[Any], path: tuple[str, ...], inference: Inference
) -> dict[str, Any] | str:
    """Return the schema of values that are not null, or why no type has them all."""
    values = _usual(values, lambda value: _KINDS.get(type_of(value), ""), path, inference)
    kinds = {type_of(value) for value in values}
    if kinds == {"object"}:
        return _object(values, path, inference)
    if kinds == {"array"}:
        if not (items := [item for value in values for item in value]):
            return "arrays without items"
        return {"type": "array", "items": _schema(items, (*path, "[]"), inference)}
    if kinds == {"string"}:
        times = _usual(values, lambda t: "a time" if _is_date_time(t) else "", path, inference)
        if not all(map(_is_date_time, times)):
            return {"type": "string"}
        inference.date_times.append(".".join(path))
        return {"type": "string", "format": "date-time"}
    if kinds <= {"integer", "number"}:
        return _number(values, kinds)
    return " or ".join(sorted(kinds)) if len(kinds) > 1 else {"type": kinds.pop()}


def _usual(
    values: Sequence[Any],
    kind_of: Callable[[Any], str],
    path: tuple[str, ...],
    inference: Inference,
) -> Sequence[Any]:
    """Return the values without those of a few of another kind, or of none; else all of them."""
    kinds = [kind_of(value) for value in values]
    ((kind, number), *others) = Counter(kinds).most_common()
    if not kind or not others or (len(values) - number) * _GARBAGE > len(values):
        return values
    usual = [value for value, own in zip(values, kinds, strict=True) if own == kind]
    if {type_of(value) for value in usual} == {"integer"}:
        kind = "an integer"
    inference.usual.append(f"{'.'.join(path)} ({kind} in {number:,} of {len(values):,})")
    return usual


def _object(
    values: Sequence[dict[str, Any]], path: tuple[str, ...], inference: Inference
) -> dict[str, Any] | str:
    if not (names := {name for value in values for name in value}):
        return "objects without fields"
    differ = len(names) * len(values) > _MAP_FACTOR * sum(map(len, values))
    if all(name.isdecimal() for name in names) or (len(names) > _MAP_NAMES and differ):
        members = [member for value in values for member in value.values()]
        inner = _schema(members, (*path, "{}"), inference)
        if "type" not in inner:
            return "objects with different names and types"
        inference.maps.append(".".join(path))
        return {"type": "object", "additionalProperties": inner}
    if unusable_names(sorted(names)):
        return "objects with names that no columns can have"
    return {"type": "object", "properties": _properties(values, path, inference)}


def _number(values: Sequence[Any], kinds: set[str]) -> dict[str, Any] | str:
    fractions = [value for value in values if type_of(value) == "number"]
    try:
        whole = [int(value) for value in values if type_of(value) == "integer"]
    except ValueError:  # more digits than Python converts
        whole = [2 * _LONG]
    if kinds == {"integer"}:
        is_long = all(-_LONG <= value < _LONG for value in whole)
        return {"type": "integer"} if is_long else "integers of more than 64 bits"
    if any(abs(float(value)) == inf for value in fractions):
        return "numbers that no double holds"
    if any(abs(value) > _EXACT for value in whole) or any(map(_is_rounded, fractions)):
        return "numbers that a double rounds"
    return {"type": "number"}


def _is_rounded(value: Number) -> bool:
    """Return whether a double does not give back the digits that the record has."""
    digits = len(value.parts()[0])
    return digits > _DIGITS or (
        Number(f"{float(value):.{max(1, digits)}g}").parts() != value.parts()
    )


def _is_date_time(text: str) -> bool:
    return date_time_micros(text) is not None and not _FINER_THAN_MICROSECONDS.search(text)


def _times(values: Sequence[dict[str, Any]], properties: dict[str, Any]) -> Iterator[TimeField]:
    """Yield the fields that may be the event time, the best first: nearly all records have them."""
    today = datetime.now(UTC).date()
    candidates: list[tuple[bool, bool, TimeField]] = []
    for name, schema in properties.items():
        those = [value[name] for value in values if value.get(name) is not None]
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()  # also those of camel case
        is_named = bool(_TIME_NAME.search(words))
        kind = "time" if schema.get("format") == "date-time" else "iso"
        days, is_text = _nearly_all(_day_of_text, those, values), True
        if days is None and is_named and "type" in schema:
            (kind, days), is_text = _days_of_epochs(those, values), False
        if days is not None:
            candidates.append((is_named, is_text, TimeField(name, kind, min(*days, today))))
    candidates.sort(key=lambda candidate: candidate[:2], reverse=True)
    yield from (time_field for *_, time_field in candidates)


def _nearly_all(
    convert: Callable[[Any], date | None], values: Sequence[Any], records: Sequence[Any]
) -> list[date] | None:
    """Return the days, until now, that nearly all records have; None: too many have none."""
    latest = datetime.now(UTC).date() + timedelta(days=1)
    found = [day for day in map(convert, values) if day is not None and day <= latest]
    return found if found and (len(records) - len(found)) * _GARBAGE <= len(records) else None


def _day_of_text(value: Any) -> date | None:
    """Return the day of a time of ISO 8601 with an offset from UTC; None: the value is none."""
    found = moment(value, is_iso=True) if isinstance(value, str) else None
    if found is None or found.offset is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=found.utc_micros)).date()
    except OverflowError:  # an offset beyond the year 1 or 9999
        return None


def _days_of_epochs(values: Sequence[Any], records: Sequence[Any]) -> tuple[str, list[date] | None]:
    """Return the unit of numbers since 1970, and their days; None: too many are none."""
    for unit, micros in EPOCHS.items():
        if (days := _nearly_all(partial(_day_of_epoch, micros), values, records)) is not None:
            return unit, days
    return "", None


def _day_of_epoch(micros: Decimal, value: Any) -> date | None:
    """Return the day of a number of a unit (of so many micros) since 1970; None: it is none."""
    try:
        seconds = Decimal(value) * micros / 1_000_000
        if isinstance(value, bool) or not _FIRST_EPOCH <= seconds < 4 * _FIRST_EPOCH:
            return None
        return datetime.fromtimestamp(int(seconds), UTC).date()
    except (TypeError, ValueError, ArithmeticError):
        return None
