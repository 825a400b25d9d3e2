"""Avro for the random histories."""

from __future__ import annotations

import copy
import json
import random
from io import BytesIO
from typing import Any

import fastavro
from avro_oracle import AvroSchema
from avro_random import AvroSchemas, datum
from shapes import Refused
from versions import Decoded, Version


def version(schema: Any) -> Version:
    """A schema, which need not be a record's."""
    text = json.dumps(schema)
    parsed = AvroSchema(text)
    try:
        shape = parsed.shape
    except Refused:
        shape = None

    def encode(rng: random.Random, odd: float) -> bytes:
        if parsed.recursive:
            return b"\x00" * 8
        return parsed.encode(datum(rng, parsed.root, parsed.names, odd=odd))

    def decode(payload: bytes) -> Decoded:
        value = parsed.decode(payload)
        return Decoded(value, canonical=parsed.is_canonical(payload))

    name = schema.get("name", "") if isinstance(schema, dict) else ""
    namespace = schema.get("namespace") if isinstance(schema, dict) else None
    identity = (f"{namespace}.{name}" if namespace else name) or None
    return Version(text, "AVRO", shape, identity, encode, decode, schema)


class AvroFamily:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.schemas = AvroSchemas(rng)

    def first(self) -> Version:
        return version(self.schemas.root())

    def next(self, version_: Version, *, wild: bool) -> Version | None:
        changed = self.schemas.changed(version_.source, wild=wild)
        return None if changed is None else version(changed)

    def repaired(self, version_: Version) -> Version:
        schema = copy.deepcopy(version_.source)
        number = len(schema["fields"]) + self.rng.randint(100, 999)
        more = {"name": f"repair{number}", "type": ["null", "string"], "default": None}
        schema["fields"].append(more)
        return version(schema)

    def foreign(self, version_: Version) -> list[Version]:
        own = version_.source
        wider, other, misfit = (copy.deepcopy(own) for _ in range(3))
        wider["fields"].append({"name": "foreign_extra", "type": "string"})
        other["name"] = "OrderDeleted"
        for one in misfit["fields"][:1]:
            one["type"] = {"type": "map", "values": {"type": "array", "items": "boolean"}}
            one.pop("default", None)
        again = {"name": "again", "type": ["null", "shop.Order"]}
        recursive = {"type": "record", "name": "shop.Order", "fields": [again]}
        every = [wider, other, misfit, recursive, "string", "long"]
        return [version(one) for one in self.rng.sample(every, 3)]

    def key(self, version_: Version) -> Version:
        fields = [{"name": "key_id", "type": "long"}, {"name": "key_text", "type": "string"}]
        shared = self.rng.choice(version_.source["fields"])
        if shared["type"] in ("string", "long", "int", "boolean"):
            fields.append({"name": shared["name"], "type": shared["type"]})
        return version({"type": "record", "name": "shop.Key", "fields": fields})

    def next_key(self, version_: Version) -> Version:
        schema = copy.deepcopy(version_.source)
        fields, rng = schema["fields"], self.rng
        one = rng.choice(fields[:2])
        match rng.choice(("doc", "default", "null", "constant", "rename", "order", "metadata")):
            case "doc":
                one["doc"] = f"doc {rng.random()}"
            case "default":
                one["default"] = 0 if one["type"] == "long" else ""
            case "null":
                more = {"name": f"more{rng.randint(0, 999)}", "type": ["null", "string"]}
                fields.append(more | {"default": None})
            case "constant":
                more = {"name": f"fixed{rng.randint(0, 999)}", "type": "string"}
                fields.append(more | {"default": "eu"})
            case "rename":
                one["aliases"] = [*one.get("aliases", ()), one["name"]]
                one["name"] += "_r"
            case "order":
                fields.reverse()
            case "metadata":
                schema["owner"] = f"team {rng.random()}"
        return version(schema)

    def spelled(self, version_: Version, key: dict[str, Any]) -> bytes:
        row = {}
        for field in version_.source["fields"]:
            known = [name for name in (field["name"], *field.get("aliases", ())) if name in key]
            row[field["name"]] = key[known[0]] if known else field["default"]
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(version_.source), row)
        return buffer.getvalue()
