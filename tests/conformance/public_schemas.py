"""Schemas of other authors (see data/README.md), and random records of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuzz_protobuf
import jsonschema
from avro_family import version as avro_version
from protobuf_oracle import ProtobufSchema, message_path
from shapes import Malformed, Refused
from versions import Decoded, Version

LARGE = 100_000
DATA = Path(__file__).parent / "data"

AVRO = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("*/*.avsc"))
JSON = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("schemastore/*.json"))
PROTOBUF = (
    ("google/api/distribution.proto", "Distribution"),
    ("google/api/http.proto", "HttpRule"),
    ("google/api/metric.proto", "MetricDescriptor"),
    ("google/api/quota.proto", "Quota"),
    ("google/bigtable/v2/data.proto", "Row"),
    ("google/bigtable/v2/data.proto", "RowSet"),
    ("google/bigtable/v2/data.proto", "StreamContinuationTokens"),
    ("google/bigtable/v2/data.proto", "Value"),
    ("google/devtools/clouderrorreporting/v1beta1/common.proto", "ErrorEvent"),
    ("google/firestore/v1/document.proto", "Document"),
    ("google/iam/v1/policy.proto", "Policy"),
    ("google/iam/v1/policy.proto", "PolicyDelta"),
    ("google/logging/v2/log_entry.proto", "LogEntry"),
    ("google/logging/v2/log_entry.proto", "LogSplit"),
    ("google/longrunning/operations.proto", "Operation"),
    ("google/rpc/context/attribute_context.proto", "AttributeContext"),
    ("google/rpc/error_details.proto", "ErrorInfo"),
    ("google/rpc/error_details.proto", "QuotaFailure"),
    ("google/rpc/error_details.proto", "RetryInfo"),
    ("google/type/color.proto", "Color"),
    ("google/type/datetime.proto", "DateTime"),
    ("google/type/money.proto", "Money"),
    ("google/type/postal_address.proto", "PostalAddress"),
)
REFUSED = {
    "avro/interop.avsc": "recursive",
    "datahub/ApiSignature.avsc": "no fields|without fields",
    "datahub/EntityChangeEvent.avsc": "no fields|without fields",
    "google/api/http.proto HttpRule": "recursive",
    "google/bigtable/v2/data.proto Value": "recursive",
    "google/firestore/v1/document.proto Document": "recursive",
    "google/logging/v2/log_entry.proto LogEntry": "recursive",
    "google/rpc/context/attribute_context.proto AttributeContext": "recursive",
}
"""Schemas without a table, and what the reason says."""


def avro(path: str) -> Version:
    return avro_version(json.loads((DATA / path).read_text()))


def protobuf(path: str, message: str) -> Version:
    text = (DATA / "googleapis" / path).read_text()
    references = tuple(_imports(text, {}).items())
    schema = ProtobufSchema(text, message, references)
    try:
        shape = schema.shape
    except Refused:
        shape = None
    prefix = message_path(schema.descriptor)

    def encode(rng: random.Random, _odd: float) -> bytes:
        while True:
            data: bytes = fuzz_protobuf.fill(rng, schema.message()).SerializeToString()
            if len(data) < LARGE:
                return prefix + data

    def decode(payload: bytes) -> Decoded:
        if not payload.startswith(prefix):
            raise Malformed("another message of the file")
        value, clear = schema.decode(payload[len(prefix) :])
        return Decoded(value, canonical=clear)

    name = schema.descriptor.full_name
    return Version(
        text, "PROTOBUF", shape, name, encode, decode, references=references, message=message
    )


def _imports(text: str, found: dict[str, str]) -> dict[str, str]:
    """The files that a file imports, each after its own imports; not Google's built-in ones."""
    for name in re.findall(r'^import (?:public )?"([^"]+)";', text, re.MULTILINE):
        if name not in found and not name.startswith("google/protobuf/"):
            imported = (DATA / "googleapis" / name).read_text()
            _imports(imported, found)
            found[name] = imported
    return found


class JsonRecords:
    """Records that :mod:`jsonschema` finds valid."""

    def __init__(self, path: str) -> None:
        self.text = (DATA / path).read_text()
        self.schema = json.loads(self.text)
        self._validator = jsonschema.validators.validator_for(self.schema)(self.schema)

    def some(self, rng: random.Random, count: int) -> list[dict[str, Any]]:
        made = (self._value(rng, self.schema, 0) for _ in range(count * 40))
        valid = (one for one in made if isinstance(one, dict) and self._validator.is_valid(one))
        return [one for _, one in zip(range(count), valid, strict=False)]

    def _value(self, rng: random.Random, schema: Any, depth: int) -> Any:
        parts = list(self._parts(rng, schema))
        if constants := [part["const"] for part in parts if "const" in part]:
            return constants[0]
        if enums := [part["enum"] for part in parts if "enum" in part]:
            return rng.choice(enums[0])
        kinds = [part["type"] for part in parts if "type" in part]
        kind = kinds[-1] if kinds else ("object" if _get(parts, "properties") else "string")
        match rng.choice(kind) if isinstance(kind, list) else kind:
            case "object":
                return self._object(rng, parts, depth)
            case "array":
                items, least = _get(parts, "items"), int(_get(parts, "minItems") or 0)
                if not isinstance(items, dict):
                    return []
                count = rng.randint(least, least + (2 if depth < 5 else 0))
                return [self._value(rng, items, depth + 1) for _ in range(count)]
            case "boolean":
                return rng.random() < 0.5
            case "integer" | "number":
                return max(rng.randint(0, 9), int(_get(parts, "minimum") or 0))
            case "null":
                return None
        known = [one for key in ("examples", "default") for one in _texts(_get(parts, key))]
        words = ("a", "latest", "v1.2.3", "main", "https://example.org/x", "ümlaut 漢", "10m")
        return rng.choice((*words, *known))

    def _parts(self, rng: random.Random, schema: Any) -> Iterator[dict[str, Any]]:
        """A schema, what it refers to and merges, and one branch of each choice."""
        if not isinstance(schema, dict):
            return
        yield schema
        if reference := schema.get("$ref"):
            target: Any = self.schema
            for step in reference.removeprefix("#").split("/")[1:]:
                target = target[step]
            yield from self._parts(rng, target)
        for part in schema.get("allOf", ()):
            yield from self._parts(rng, part)
        for choice in ("oneOf", "anyOf"):
            if branches := schema.get(choice):
                yield from self._parts(rng, rng.choice(branches))

    def _object(self, rng: random.Random, parts: list[dict[str, Any]], depth: int) -> Any:
        properties = {k: v for part in parts for k, v in part.get("properties", {}).items()}
        required = {name for part in parts for name in part.get("required", ())}
        chance = 0.5 if depth < 2 else 0.15
        names = [name for name in properties if name in required or rng.random() < chance]
        made = {name: self._value(rng, properties[name], depth + 1) for name in names}
        more = _get(parts, "additionalProperties")
        if isinstance(more, dict) and depth < 6:
            made |= {f"k{n}": self._value(rng, more, depth + 1) for n in range(rng.randint(0, 2))}
        return made


def _get(parts: list[dict[str, Any]], keyword: str) -> Any:
    return next((part[keyword] for part in parts if keyword in part), None)


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, str)]


def kept(value: Any, found: Any, path: str = "") -> str | None:
    """Where a column lost or changed what a JSON value says; None: nowhere. Whatever the schema is:
    a column has the value, its JSON text, or the one member of a union. Properties that no schema
    declares have no column."""
    if value is None:
        return None if found is None else f"{path}: null became {found!r}"
    if found is None:
        return f"{path}: {value!r} became null"
    if isinstance(found, str) and not isinstance(value, str):
        return None if json.loads(found) == value else f"{path}: {value!r} became {found!r}"
    match value:
        case dict() if isinstance(found, dict) and not _is_union(found):
            wrongs = (kept(value.get(name), found[name], f"{path}.{name}") for name in found)
            return next((wrong for wrong in wrongs if wrong), None)
        case dict() if isinstance(found, list):
            entries = dict(found)
            if entries.keys() != value.keys():
                return f"{path}: keys {value.keys()} became {entries.keys()}"
            wrongs = (kept(one, entries[name], f"{path}.{name}") for name, one in value.items())
            return next((wrong for wrong in wrongs if wrong), None)
        case _ if isinstance(found, dict) and _is_union(found):
            members = [one for one in found.values() if one is not None]
            if len(members) != 1:
                return f"{path}: {value!r} became {found!r}"
            return kept(value, members[0], path)
        case list() if isinstance(found, list) and len(found) == len(value):
            wrongs = (kept(*pair, f"{path}[]") for pair in zip(value, found, strict=True))
            return next((wrong for wrong in wrongs if wrong), None)
        case str() if isinstance(found, str):
            return None if found in (value, json.dumps(value, ensure_ascii=False)) else path
    same = type(found) in (int, float, bool) and found == value
    return None if same else f"{path}: {value!r} became {found!r}"


def _is_union(found: dict[str, Any]) -> bool:
    return bool(found) and all(name.startswith("connect_union_field_") for name in found)
