"""Random JSON Schemas with records that fit them, and the rows that a table should have of them.

Only :mod:`random` and the schema itself say what is expected: nothing here is the code under test.
"""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

CONNECT = "org.apache.kafka.connect.data."
DRAFTS = (
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
    None,
)
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
TEXTS = ("", "true", "5", "-1.5e3", "{}", "[1]", "null", "NaN", "2024-01-31", 'it\'s "so" \\u0041')
CHARACTERS = LETTERS + "0123456789 '\"\\/{}[]:,.$%\t\nåßøπЖ中\u00a0\u2028😀𝄞\U0010ffff"
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, None: 64}
DAYS = (date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days

Schema = dict[str, Any]
Record = dict[str, Any]


def schema_and_records(rng: random.Random) -> tuple[Schema, list[Record]]:
    """An object's schema, and up to eight records that are valid by it. ``json.dumps(record)``,
    with any of its options that keep to JSON, is a payload."""
    definitions: Schema = {}
    schema = random_object(rng, 0, definitions)
    if draft := rng.choice(DRAFTS):
        schema = {"$schema": draft, **schema}
    if definitions:
        schema["definitions"] = definitions
    return schema, [random_value(rng, schema, schema) for _ in range(rng.randint(1, 8))]


def random_object(rng: random.Random, depth: int, definitions: Schema) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {
            name: random_schema(rng, depth + 1, definitions)
            for name in _names(rng, 1 if depth else 2, 7)
        },
    }
    required = [name for name in schema["properties"] if rng.random() < 0.3]
    if required:
        schema["required"] = required
    if rng.random() < 0.2:
        schema["additionalProperties"] = False
    return schema


def _names(rng: random.Random, least: int, most: int) -> list[str]:
    names: dict[str, str] = {}
    for _ in range(rng.randint(least, most)):
        name = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 9)))
        if rng.random() < 0.1:
            name += rng.choice(("é", " x", "-x", "$", "中", "9", "'s"))
        names.setdefault(name.casefold(), name)
    return list(names.values())


def random_schema(rng: random.Random, depth: int, definitions: Schema) -> Schema:
    made = rng.choice(_SCALARS if depth > 3 else _SCALARS + _NESTED)(rng, depth, definitions)
    match rng.randint(0, 9):
        case 0:
            one = "oneOf" if "type" in made or "enum" in made else "anyOf"  # null may fit `made`
            return {one: [{"type": "null"}, made]}
        case 1:
            return {"anyOf": [made, {"type": "null"}], "description": "may be null"}
        case 2 if isinstance(made.get("type"), str) and "enum" not in made:
            return {**made, "type": [made["type"], "null"]}
        case 3:
            name = f"d{len(definitions)}"
            definitions[name] = made
            return {"$ref": f"#/definitions/{name}"}
        case 4 if "type" in made:
            return {"allOf": [made, {"title": "t"}]}
    return made


def _typed(kind: str, **more: Any) -> Callable[..., Schema]:
    return lambda *_: {
        "type": kind,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def _decimal(rng: random.Random, *_: Any) -> Schema:
    precision = rng.randint(1, 38)
    scale = rng.randint(0, precision)
    kind = "number" if precision <= 15 else "string"
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return {
        "type": kind,
        "title": CONNECT + "Decimal",
        "connect.type": "bytes",
        "connect.parameters": parameters,
    }


def _list(rng: random.Random, depth: int, definitions: Schema) -> Schema:
    return {"type": "array", "items": random_schema(rng, depth + 1, definitions)}


def _map(rng: random.Random, depth: int, definitions: Schema) -> Schema:
    # Of `{}` as of `true`: the values have no type, and the object is JSON text.
    values = random_schema(rng, depth + 1, definitions) or {"type": "string"}
    return {"type": "object", "additionalProperties": values}


def _entries(rng: random.Random, depth: int, definitions: Schema) -> Schema:
    key = rng.choice(({"type": "string"}, {"type": "integer"}))
    properties = {"key": key, "value": random_schema(rng, depth + 1, definitions)}
    return {
        "type": "array",
        "connect.type": "map",
        "items": {"type": "object", "properties": properties, "required": ["key", "value"]},
    }


def _union(rng: random.Random, depth: int, definitions: Schema) -> Schema:
    members: list[Schema] = [
        {"type": "string"},
        {"type": "integer"},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "string"}},
    ]
    for name in ("A", "B"):
        member = random_object(rng, depth + 1, definitions)
        member["properties"] = {"Kind'": {"const": name}, **member["properties"]}
        member["required"] = ["Kind'"]
        members.append(member)
    chosen = rng.sample(members, rng.randint(2, 4))
    if rng.random() < 0.5:
        chosen.insert(rng.randint(0, len(chosen)), {"type": "null"})
    return {rng.choice(("oneOf", "anyOf")): chosen}


_SCALARS: list[Callable[..., Schema]] = [
    _typed("string"),
    _typed("string"),
    _typed("string", connect_type="bytes"),
    _typed("integer"),
    _typed("integer"),
    _typed("integer", connect_type="int8"),
    _typed("integer", connect_type="int16"),
    _typed("integer", connect_type="int32"),
    _typed("integer", connect_type="int64"),
    _typed("number"),
    _typed("number", connect_type="float32"),
    _typed("number", connect_type="float64"),
    _typed("boolean"),
    _typed("integer", connect_type="int32", title=CONNECT + "Date"),
    _typed("integer", connect_type="int32", title=CONNECT + "Time"),
    _typed("integer", connect_type="int64", title=CONNECT + "Timestamp"),
    _typed("number", connect_type="int64", flink_type="timestamp"),
    _decimal,
    lambda rng, *_: {"enum": rng.sample(["A", "B", "5", "it's"], 3)},
    lambda rng, *_: {"type": "string", "enum": rng.sample(["A", "B", "5", "it's"], 3)},
    lambda *_: {},
    _typed("object"),
    lambda *_: {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
]
_NESTED: list[Callable[..., Schema]] = [
    random_object,
    random_object,
    _list,
    _list,
    _map,
    _entries,
    _union,
]


def resolve(schema: Schema, root: Schema) -> Schema:
    """Without reference, ``allOf`` and null; ``nullable`` says whether there was one."""
    if "$ref" in schema:
        return resolve(root["definitions"][schema["$ref"].rpartition("/")[2]], root)
    if "allOf" in schema:
        return resolve(schema["allOf"][0], root)
    if isinstance(schema.get("type"), list):
        return {**schema, "type": schema["type"][0], "nullable": True}
    for keyword in ("oneOf", "anyOf"):
        if keyword in schema:
            members = [member for member in schema[keyword] if member != {"type": "null"}]
            nullable = len(members) < len(schema[keyword])
            if len(members) == 1:
                return {**resolve(members[0], root), "nullable": nullable}
            return {"members": members, "nullable": nullable}
    return schema


def _is_decimal(schema: Schema) -> bool:
    return bool(schema.get("title") == CONNECT + "Decimal")


def _parameters(schema: Schema) -> tuple[int, int]:
    parameters = schema["connect.parameters"]
    return int(parameters["connect.decimal.precision"]), int(parameters["scale"])


def random_value(rng: random.Random, schema: Schema, root: Schema) -> Any:
    schema = resolve(schema, root)
    if schema.get("nullable") and rng.random() < 0.3:
        return None
    if "members" in schema:
        return random_value(rng, rng.choice(schema["members"]), root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    title = str(schema.get("title", "")).removeprefix(CONNECT)
    match schema.get("type"):
        case "boolean":
            return rng.random() < 0.5
        case _ if _is_decimal(schema):
            return _decimal_value(rng, schema)
        case "integer" | "number" if title in ("Date", "Time", "Timestamp") or (
            "flink.type" in schema
        ):
            low, high = {"Date": DAYS, "Time": (0, 86_399_999)}.get(
                title, (DAYS[0] * 86_400_000, (DAYS[1] + 1) * 86_400_000 - 1)
            )
            return rng.choice((low, high, 0, -1 if low else 1, rng.randint(low, high)))
        case "integer":
            edge = 2 ** (BITS[schema.get("connect.type")] - 1)
            number = rng.choice((-edge, edge - 1, 0, rng.randint(-edge, edge - 1)))
            return float(number) if abs(number) < 2**31 and rng.random() < 0.1 else number
        case "number":
            if schema.get("connect.type") == "float32":
                return struct.unpack("<f", struct.pack("<f", rng.uniform(-1e6, 1e6)))[0]
            floats = (0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, rng.gauss(0, 1e9))
            return rng.choice((*floats, rng.randint(-(10**9), 10**9)))
        case "string" if schema.get("connect.type") == "bytes":
            return base64.b64encode(rng.randbytes(rng.randint(0, 9))).decode()
        case "string":
            return _text(rng)
        case "array" if "prefixItems" in schema:
            return [rng.randint(-9, 9), _text(rng)]
        case "array" if schema.get("connect.type") == "map":
            entries = [random_value(rng, schema["items"], root) for _ in range(rng.randint(0, 3))]
            return list({entry["key"]: entry for entry in entries}.values())
        case "array":
            return [random_value(rng, schema["items"], root) for _ in range(rng.randint(0, 3))]
        case "object" if "properties" in schema:
            record = {
                name: random_value(rng, inner, root)
                for name, inner in schema["properties"].items()
                if name in schema.get("required", ()) or rng.random() < 0.8
            }
            if "additionalProperties" not in schema and rng.random() < 0.1:
                record["not declared 5"] = _anything(rng, 0)
            return record
        case "object" if "additionalProperties" in schema:
            inner = schema["additionalProperties"]
            return {_text(rng): random_value(rng, inner, root) for _ in range(rng.randint(0, 3))}
        case "object":
            return {_text(rng): _anything(rng, 1)}
    return _anything(rng, 0)


def _decimal_value(rng: random.Random, schema: Schema) -> float | str:
    precision, scale = _parameters(schema)
    unscaled = rng.randint(-(10**precision) + 1, 10**precision - 1)
    if schema["type"] == "number":
        return float(Decimal(unscaled).scaleb(-scale))
    return base64.b64encode(unscaled.to_bytes(16, "big", signed=True)).decode()


def _text(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return rng.choice(TEXTS)
    return "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(0, 12)))


def _anything(rng: random.Random, depth: int) -> Any:
    kind = rng.randint(0, 3 if depth > 2 else 5)
    plain = "".join(rng.choice(LETTERS + "0 é😀") for _ in range(rng.randint(0, 5)))
    return (
        None,
        rng.random() < 0.5,
        rng.randint(-(2**63), 2**63 - 1),
        plain,
        [_anything(rng, depth + 1) for _ in range(2)] if kind == 4 else None,
        {f"{plain}{n}": _anything(rng, depth + 1) for n in range(2)} if kind == 5 else None,
    )[kind]
