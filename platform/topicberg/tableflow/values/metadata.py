"""Kafka's own part of a record as columns: which times and headers a row cannot have."""

from __future__ import annotations

NO_TIMESTAMP = -1
"""Kafka's number for a record that has no timestamp, such as one of an old message format."""
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999, which every query engine supports."""


def out_of_range(column: str, milliseconds: int) -> str:
    """Return why a record with a timestamp, of a metadata column, cannot be a row."""
    return (
        f"field {column} (timestamptz): value {milliseconds} is not between the years 1 and 9999, "
        "in milliseconds since 1970"
    )


def wrong_header(column: str) -> str:
    """Return why a record with a header, of a metadata column, cannot be a row."""
    return f"field {column}: a name is not UTF-8"
