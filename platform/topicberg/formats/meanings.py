"""What the values of a column mean where its type does not say it: the end of its comment.

Times are plain numbers in some columns, of different units; text may be the JSON text of a value,
with quotes. Iceberg has comments of fields only: that of a list or a map has the meaning of its
items, or of its keys and values.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

MILLIS: Final = "milliseconds since midnight"
MICROS: Final = "microseconds since midnight"
NANOS: Final = "nanoseconds since midnight"
EPOCH_MILLIS: Final = "milliseconds since 1970"
EPOCH_MICROS: Final = "microseconds since 1970"
EPOCH_NANOS: Final = "nanoseconds since 1970"
LOCAL_NANOS: Final = "nanoseconds since 1970 in local time"
JSON_TEXT: Final = "the JSON text of a value"
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
_MEANINGS = (MILLIS, MICROS, NANOS, EPOCH_MILLIS, EPOCH_MICROS, EPOCH_NANOS, LOCAL_NANOS, JSON_TEXT)
_LAST = re.compile(rf"(?:^|; )(keys: )?({'|'.join(_MEANINGS)})\Z")


class Meaning(NamedTuple):
    """A unit or :data:`JSON_TEXT`. ``values``: of the values, or of the innermost items or values.

    ``keys``: of the keys of a map.
    """

    values: str | None = None
    keys: str | None = None


def with_meaning(doc: str | None, meaning: Meaning) -> str | None:
    """Return the comment of a column: the description of its field, then its meaning."""
    keys = f"keys: {meaning.keys}" if meaning.keys else None
    return "; ".join(filter(None, (doc, keys, meaning.values))) or None


@lru_cache(maxsize=4096)
def meaning_of(doc: str | None) -> Meaning:
    """Return the meaning that the comment of a column ends with."""
    meaning, rest = Meaning(), doc or ""
    if (last := _LAST.search(rest)) is not None and not last[1]:
        meaning, rest = Meaning(last[2]), rest[: last.start()]
        last = _LAST.search(rest)
    if last is not None and last[1]:
        meaning = meaning._replace(keys=last[2])
    return meaning
