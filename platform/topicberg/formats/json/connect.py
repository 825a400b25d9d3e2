"""The schemas that Kafka Connect's JsonConverter writes into each record, as JSON Schemas.

With ``schemas.enable``, a key or value is ``{"schema": …, "payload": …}``. The schema becomes the
JSON Schema that Confluent's JSON Schema converter makes of the same types.

Source: Kafka's ``JsonConverter`` and ``JsonSchema``, Confluent's ``JsonSchemaData``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from topicberg.errors import TableflowError
from topicberg.formats import limits

_NUMBERS = {"float": "float32", "double": "float64"}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_FIRST = re.compile(rb"\s*\{\s*\"(schema|payload)\"\s*:\s*")
_SECOND = re.compile(r"\s*,\s*\"(schema|payload)\"\s*:\s*")
_OPENING = re.compile(rb"\s*\{\s*\"schema\"\s*:\s*(?:\{|null\s*,)")
"""How a record with a schema begins."""


@dataclass(frozen=True)
class Opening:
    """The text of a record around its payload, and Connect's schema; None: only the frame of one.

    ``rest``: what follows the payload: the schema, if the payload is first as in TiCDC's records.
    """

    text: bytes
    schema: dict[str, Any] | None
    rest: bytes = b"}"


def has_schema(raw: bytes) -> bool:
    """Return whether a record begins with a schema of its own."""
    return _OPENING.match(raw[:200]) is not None


def opening(raw: bytes) -> Opening | None:
    """Return what surrounds the payload of a record; None: it has no schema of its own."""
    if (begin := _FIRST.match(raw)) is None:
        return None
    decode = json.JSONDecoder().raw_decode
    try:
        text = raw.decode()
        first, end = decode(text, begin.end())
        if (second := _SECOND.match(text, end)) is None or second[1] == begin[1].decode():
            return None
        if second[1] == "payload":
            before, schema, rest = text[: second.end()], first, "}"
        else:
            schema, last = decode(text, second.end())
            before, rest = text[: begin.end()], text[end:]
            if text[last:].strip() != "}":
                return None
    except (ValueError, RecursionError):
        return None
    if not (schema is None or isinstance(schema, dict)):
        return None
    return Opening(before.encode(), schema, rest.encode())


def json_schema(schema: dict[str, Any]) -> str:
    """Return the JSON Schema of a schema of Connect; TableflowError: it is not one."""
    try:
        converted = _converted(schema)
        return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **converted})
    except RecursionError:
        raise limits.too_deep("the schema of the record") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise TableflowError(
            f"the schema of the record is not one of Kafka Connect: {type(error).__name__} {error}"
        ) from None


def _converted(schema: dict[str, Any]) -> dict[str, Any]:
    kind, name = schema["type"], schema.get("name")
    converted: dict[str, Any] = {} if name is None else {"title": str(name)}
    if isinstance(parameters := schema.get("parameters"), dict):
        converted["connect.parameters"] = parameters
    match kind:
        case "int8" | "int16" | "int32" | "int64":
            return converted | {"type": "integer", "connect.type": kind}
        case "float" | "double":
            return converted | {"type": "number", "connect.type": _NUMBERS[kind]}
        case "boolean" | "string":
            return converted | {"type": kind}
        case "bytes":  # of a decimal, it may be base64, by the converter's decimal.format
            json_type = "number" if name == _DECIMAL else "string"
            return converted | {"type": json_type, "connect.type": "bytes"}
        case "array":
            return converted | {"type": "array", "items": _converted(schema["items"])}
        case "map" if schema["keys"]["type"] == "string" and not schema["keys"].get("optional"):
            values = {"additionalProperties": _converted(schema["values"])}
            return converted | {"type": "object", "connect.type": "map"} | values
        case "map":  # JsonConverter writes an array of pairs, whose items are of several types
            return converted
        case "struct":
            properties = {
                str(field["field"]): _converted(field) | {"connect.index": number}
                for number, field in enumerate(schema["fields"])
            }
            return converted | {"type": "object", "properties": properties}
    raise TableflowError(
        f"the schema of the record has the type {json.dumps(kind)}, which Kafka Connect does not "
        f"have, at {json.dumps(schema.get('field'))}",
        hint="let the connector write a schema of Kafka Connect, or none",
    )
