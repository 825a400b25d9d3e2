"""A JSON Schema for records of JSON, inferred from some of them.

Nothing is guessed that could make a value wrong: what differs between records, or what no column
holds exactly, has no type in the schema and becomes a column with the JSON text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from topicberg.formats.json.syntax import type_of
from topicberg.wording import count

_DATE_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)
"""RFC 3339, with no more digits than a timestamp has."""
_LONG, _EXACT = 2**63, 2**53
_DIGITS = 17
"""Significant digits that a double keeps."""
_MAP_NAMES, _MAP_FACTOR = 20, 4
"""From so many different names, of which a record has few, an object is a map."""
_TIME_NAME = re.compile(r"(^|[^a-z])(time|timestamp|ts|at|date|datetime|when|occurred)([^a-z]|$)")
_UNITS = (
    ("seconds", 1_000_000_000, 4_000_000_000),
    ("milliseconds", 10**12, 4 * 10**12),
    ("microseconds", 10**15, 4 * 10**15),
    ("nanoseconds", 10**18, 4 * 10**18),
)
"""Units of an epoch, and what numbers of the years 2001 to 2096 are."""
_MAX_NAMED = 8


class _Number(float):
    """A number with a fraction or an exponent, and its text."""

    text: str

    def __new__(cls, text: str) -> _Number:
        made = super().__new__(cls, text)
        made.text = text
        return made


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
    maps: list[str] = field(default_factory=list)
    times: list[TimeField] = field(default_factory=list)
    """The best one first."""

    @property
    def text(self) -> str:
        return json.dumps(self.schema, indent=2, ensure_ascii=False)

    def notes(self) -> list[str]:
        """Return what was guessed, for people."""
        found = [f"the schema has the types of {count(self.records, 'record')}: review it"]
        if self.others:
            others = count(self.others, "record")
            found.append(f"not JSON objects, and so malformed later: {others} of the sample")
        for what, names in (
            ("missing or null in some of them", self.optional),
            ("columns with the JSON text", self.untyped),
            ("times, by their form", self.date_times),
            ("maps, as their names differ between records", self.maps),
        ):
            if names:
                more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
                found.append(f"{what}: {', '.join(names[:_MAX_NAMED])}{more}")
        if len(self.times) > 1:
            others = ", ".join(one.name for one in self.times[1:])
            found.append(f"event_time is {self.times[0].name}; it could also be {others}")
        return found


def parsed(raw: bytes) -> Any:
    """Return the value of JSON; numbers keep their text.

    :raises ValueError: it is no JSON
    :raises RecursionError: it is nested too deeply
    """
    return json.loads(raw, parse_float=_Number, parse_constant=_refuse)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def infer(records: Sequence[bytes], title: str) -> Inference:
    """Return a schema that records fit.

    :raises ValueError: none of them is a JSON object
    """
    values = []
    for raw in records:
        try:
            value = parsed(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            values.append(value)
    if not values:
        raise ValueError("none of the records is a JSON object")
    found = Inference({}, len(values), len(records) - len(values))
    properties = _properties(values, (), found)
    found.schema = {"title": title, "type": "object", "properties": properties}
    always = [name for name in properties if all(one.get(name) is not None for one in values)]
    found.times = [*_times(values, properties, always)]
    return found


def _properties(
    values: Sequence[dict[str, Any]], path: tuple[str, ...], found: Inference
) -> dict[str, Any]:
    names = dict.fromkeys(name for value in values for name in value)
    return {
        name: _schema([one.get(name) for one in values], (*path, name), found) for name in names
    }


def _schema(values: Sequence[Any], path: tuple[str, ...], found: Inference) -> dict[str, Any]:
    """Return the schema of a field.

    :param values: of the records that may have it; None: it is missing or null
    """
    name = ".".join(path)
    present = [value for value in values if value is not None]
    if not present:
        found.untyped.append(f"{name} (always null)")
        return {}
    if len(present) < len(values):
        found.optional.append(name)
    schema = _of_present(present, path, found)
    if isinstance(schema, str):
        found.untyped.append(f"{name} ({schema})")
        return {}
    if len(present) < len(values):
        return {**schema, "type": [schema["type"], "null"]}
    return schema


def _of_present(
    values: Sequence[Any], path: tuple[str, ...], found: Inference
) -> dict[str, Any] | str:
    """Return the schema of values that are not null, or why no type has them all."""
    kinds = {type_of(value) for value in values}
    if kinds == {"object"}:
        return _object(values, path, found)
    if kinds == {"array"}:
        items = [item for value in values for item in value]
        if not items:
            return "arrays without items"
        return {"type": "array", "items": _schema(items, (*path, "[]"), found)}
    if kinds == {"string"}:
        if all(_is_date_time(value) for value in values):
            found.date_times.append(".".join(path))
            return {"type": "string", "format": "date-time"}
        return {"type": "string"}
    if kinds <= {"integer", "number"}:
        return _number(values, kinds)
    if len(kinds) > 1:
        return f"{' or '.join(sorted(kinds))}"
    return {"type": kinds.pop()}


def _object(
    values: Sequence[dict[str, Any]], path: tuple[str, ...], found: Inference
) -> dict[str, Any] | str:
    names = {name for value in values for name in value}
    if not names:
        return "objects without fields"
    if len(names) > _MAP_NAMES and len(names) * len(values) > _MAP_FACTOR * sum(map(len, values)):
        inner = _schema([one for value in values for one in value.values()], (*path, "{}"), found)
        if "type" not in inner:
            return "objects with different names and types"
        found.maps.append(".".join(path))
        return {"type": "object", "additionalProperties": inner}
    return {"type": "object", "properties": _properties(values, path, found)}


def _number(values: Sequence[Any], kinds: set[str]) -> dict[str, Any] | str:
    whole = [value for value in values if isinstance(value, int)]
    if kinds == {"integer"}:
        if all(-_LONG <= value < _LONG for value in whole):
            return {"type": "integer"}
        return "integers of more than 64 bits"
    if any(abs(value) > _EXACT for value in whole):
        return "numbers that a double rounds"
    texts = (value.text for value in values if isinstance(value, _Number))
    if any(_significant(text) > _DIGITS for text in texts):
        return "numbers that a double rounds"
    return {"type": "number"}


def _significant(text: str) -> int:
    digits = re.split("[eE]", text)[0].replace(".", "").lstrip("-0")
    return len(digits)


def _is_date_time(text: str) -> bool:
    if not _DATE_TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text.upper())
    except ValueError:
        return False
    return True


def _times(
    values: Sequence[dict[str, Any]], properties: dict[str, Any], always: Sequence[str]
) -> Iterator[TimeField]:
    """Yield the fields that may be the event time: those that every record has, the best first."""
    found: list[tuple[bool, bool, TimeField]] = []
    for name in always:
        schema, those = properties[name], [value[name] for value in values]
        is_named = bool(_TIME_NAME.search(_words(name)))
        if schema.get("format") == "date-time":
            moments = [datetime.fromisoformat(one.upper()) for one in those]
            try:
                first = min(moments).astimezone(UTC).date()
            except OverflowError:
                continue
            found.append((is_named, True, TimeField(name, "time", first)))
        elif schema.get("type") == "integer" and is_named:
            for unit, low, high in _UNITS:
                if all(low <= one < high for one in those):
                    first = datetime.fromtimestamp(min(those) // (low // 10**9), UTC).date()
                    found.append((True, False, TimeField(name, unit, first)))
    found.sort(key=lambda one: one[:2], reverse=True)
    yield from (one for _, _, one in found)


def _words(name: str) -> str:
    """Return a name in lower case with the words of camel case apart."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
