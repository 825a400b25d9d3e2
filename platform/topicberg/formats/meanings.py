"""What the values of a column mean where its type does not say it.

Times are plain numbers in some columns, of different units; text may be the JSON text of a value,
with quotes. The comments of a schema's columns end with it, that of a list or a map with the
meaning of its items, or of its keys and values. A table's comments only show it: anyone may edit
them, so a property has it (:mod:`topicberg.tableflow.layout.meanings`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

_SECONDS = ("milliseconds", "microseconds", "nanoseconds")
MILLIS, MICROS, NANOS = (f"{unit} since midnight" for unit in _SECONDS)
EPOCH_MILLIS, EPOCH_MICROS, EPOCH_NANOS = (f"{unit} since 1970" for unit in _SECONDS)
LOCAL_NANOS: Final = f"{EPOCH_NANOS} in local time"
JSON_TEXT: Final = "the JSON text of a value"
NULLS: Final = "only nulls"
"""Of a column of text whose schema allows only null. No comment of a table has it."""
CONNECT_UNITS: Final = {
    "org.apache.kafka.connect.data.Time": MILLIS,
    "io.debezium.time.Time": MILLIS,
    "io.debezium.time.MicroTime": MICROS,
    "io.debezium.time.NanoTime": NANOS,
    "io.debezium.time.IsoTime": MICROS,
    "io.debezium.time.Timestamp": EPOCH_MILLIS,
    "io.debezium.time.MicroTimestamp": EPOCH_MICROS,
    "io.debezium.time.NanoTimestamp": EPOCH_NANOS,
}
"""Types of Kafka Connect and Debezium, and the units of those whose column is a plain number.

Source: Debezium's documentation of its PostgreSQL connector, "Temporal types".
"""
_UNITS = (MILLIS, MICROS, NANOS, EPOCH_MILLIS, EPOCH_MICROS, EPOCH_NANOS, LOCAL_NANOS)
_LAST = re.compile(rf"(?:^|; )(keys: )?({'|'.join((*_UNITS, JSON_TEXT, NULLS))})\Z")


class Meaning(NamedTuple):
    """A unit, :data:`JSON_TEXT` or :data:`NULLS`.

    ``values``: of the values, or of the innermost items or values. ``keys``: of the keys of a map.
    """

    values: str | None = None
    keys: str | None = None


def with_meaning(description: str | None, meaning: Meaning) -> str | None:
    """Return the comment of a column: the description of its field, then its meaning. A description
    that ends as a meaning does gets a full stop, so that it is none."""
    if description and _LAST.search(description):
        description += "."
    keys = f"keys: {meaning.keys}" if meaning.keys else None
    return "; ".join(filter(None, (description, keys, meaning.values))) or None


@lru_cache(maxsize=4096)
def parts_of(comment: str | None) -> tuple[str | None, Meaning]:
    """Return the description and the meaning of a comment that :func:`with_meaning` wrote."""
    meaning, rest = Meaning(), comment or ""
    if (last := _LAST.search(rest)) is not None and not last[1]:
        meaning, rest = Meaning(last[2]), rest[: last.start()]
        last = _LAST.search(rest)
    if last is not None and last[1]:
        meaning, rest = meaning._replace(keys=last[2]), rest[: last.start()]
    return rest or None, meaning


def meaning_of(comment: str | None) -> Meaning:
    """Return the meaning of a comment that :func:`with_meaning` wrote."""
    return parts_of(comment)[1]
