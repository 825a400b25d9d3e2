"""The metadata columns that a table has beside those of a record: their names and types."""

from __future__ import annotations

PARTITION, OFFSET, HEADERS, RAW_KEY = "partition", "offset", "headers", "raw-key"
EVENT_TIME, UNKNOWN_FIELDS, OP = "event-time", "unknown-fields", "op"
SOURCE_TIMESTAMP, SOURCE_POSITION = "source-timestamp", "source-position"
SOURCE_TRANSACTION, SOURCE_SNAPSHOT = "source-transaction", "source-snapshot"
METADATA_TYPES = {
    "topic": "string",
    PARTITION: "int",
    HEADERS: "map",
    "leader-epoch": "int",
    "offset": "long",
    "timestamp": "timestamptz",
    "timestamp-type": "string",
}
"""Tableflow's metadata columns without their prefix, and their Iceberg types; see
:attr:`TableSpec.headers` for another one."""
CHANGE_TYPES = {
    OP: "string",
    SOURCE_TIMESTAMP: "timestamptz",
    SOURCE_POSITION: "string",
    SOURCE_TRANSACTION: "string",
    SOURCE_SNAPSHOT: "string",
}
"""The metadata columns of a change log; ``source-position`` is a long where the source's is."""
