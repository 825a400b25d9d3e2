"""The types of Kafka Connect and Debezium, which Avro's and JSON's own types do not show.

Connect's Avro converters write the name of such a type beside the type of its bytes, as
``connect.name``. :func:`with_connect_types` replaces it by a logical type: one of Avro's where
there is one, else one of :mod:`.connect_values`. Its JSON Schema converters write the name as
``title``, which :mod:`.json.columns` reads. Only topics with a change log are read this way.

Source: Debezium's documentation of its PostgreSQL connector, "Data type mappings".
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

from topicberg.formats.bounds import MAX_PRECISION
from topicberg.formats.subjects import RegisteredSchema

LOGICAL_TYPES = {
    "io.debezium.time.Date": ("int", "date"),
    "io.debezium.time.Timestamp": ("long", "local-timestamp-millis"),
    "io.debezium.time.MicroTimestamp": ("long", "local-timestamp-micros"),
    "io.debezium.time.NanoTimestamp": ("long", "topicberg.nano-timestamp"),
    "io.debezium.time.ZonedTimestamp": ("string", "topicberg.zoned-timestamp"),
    "io.debezium.time.Time": ("int", "time-millis"),
    "io.debezium.time.MicroTime": ("long", "time-micros"),
    "io.debezium.time.IsoDate": ("string", "topicberg.iso-date"),
    "io.debezium.time.IsoTimestamp": ("string", "topicberg.iso-timestamp"),
    "io.debezium.time.IsoTime": ("string", "topicberg.iso-time"),
    "io.debezium.data.VariableScaleDecimal": ("record", "topicberg.variable-decimal"),
    "org.apache.kafka.connect.data.Date": ("int", "date"),
    "org.apache.kafka.connect.data.Time": ("int", "time-millis"),
    "org.apache.kafka.connect.data.Timestamp": ("long", "timestamp-millis"),
}


def with_connect_types(schema: RegisteredSchema) -> RegisteredSchema:
    """Return a schema whose types of Connect and Debezium are logical types.

    A schema that cannot be read is returned as it is: its format reports why.
    """
    match schema.schema_type:
        case "AVRO":
            return _rewritten(schema)
        case "JSON":
            return replace(schema, has_connect_types=True)
    return schema


@lru_cache(maxsize=256)
def _rewritten(schema: RegisteredSchema) -> RegisteredSchema:
    try:
        text = json.dumps(_typed(json.loads(schema.text)))
        references = tuple(
            (name, json.dumps(_typed(json.loads(reference))))
            for name, reference in schema.references
        )
    except (ValueError, RecursionError):
        return schema
    return replace(schema, text=text, references=references)


def _typed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_typed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    typed = {
        key: _typed(value) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
    }
    kind, logical = LOGICAL_TYPES.get(str(schema.get("connect.name")), (None, None))
    if kind is not None and schema.get("type") == kind:
        typed["logicalType"] = logical
    elif schema.get("logicalType") == "decimal" and schema.get("type") == "bytes":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int):
            # PostgreSQL's numeric(3,5) has three digits, the fifth behind the point is the last.
            typed["precision"] = max(precision, scale)
            if typed["precision"] > MAX_PRECISION:
                typed["logicalType"] = "topicberg.decimal"
    return typed
