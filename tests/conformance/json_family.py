"""JSON Schema for the random histories: json reads records, the documented mapping follows."""

from __future__ import annotations

import base64
import binascii
import copy
import json
import math
import random
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from fuzz_json import CONNECT, random_object, random_schema, random_value, resolve
from jsonschema import Draft7Validator
from jsonschema.validators import extend
from shapes import JsonText, Malformed, Shape, Value
from versions import Decoded, Version

Schema = dict[str, Any]
_KINDS = {"int8": "int", "int16": "int", "int32": "int", "int64": "long"}
_KINDS |= {"float32": "float", "float64": "double"}
_CONTEXT = Context(prec=80)
_TITLES = {"Date": "date", "Time": "int", "Timestamp": "timestamptz"}


class JsonFamily:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def first(self) -> Version:
        definitions: Schema = {}
        schema = random_object(self.rng, 2, definitions)  # Spark plans deep ones for long
        schema.pop("additionalProperties", None)
        schema["definitions"] = definitions
        name = self.rng.choice(("title", "title", "$id", ""))
        if name:
            schema[name] = {"title": "Order", "$id": "https://shop.example/order.json"}[name]
        return version(schema)

    def next(self, version_: Version, *, wild: bool) -> Version | None:
        schema = copy.deepcopy(version_.source)
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            self._change(schema, self.rng.choice(list(_objects(schema))), wild=wild)
        return None if schema == version_.source else version(schema)

    def repaired(self, version_: Version) -> Version:
        schema = copy.deepcopy(version_.source)
        schema["properties"][f"repair{self.rng.randint(100, 999)}"] = {"type": "string"}
        return version(schema)

    def foreign(self, version_: Version) -> list[Version]:
        wider, other, misfit = (copy.deepcopy(version_.source) for _ in range(3))
        wider["properties"]["foreign_extra"] = {"type": "string"}
        other |= {"title": "OrderDeleted", "$id": "https://shop.example/deleted.json"}
        first = next(iter(misfit["properties"]))
        misfit["properties"][first] = {"type": "array", "items": {"type": "boolean"}}
        disjoint = {"type": "object", "properties": {"unlike": {"type": "string"}}}
        recursive = {"type": "object", "title": "Order", "properties": {"again": {"$ref": "#"}}}
        every = [wider, other, misfit, disjoint, recursive, {"type": "string", "title": "Order"}]
        return [version(one) for one in self.rng.sample(every, 3)]

    def key(self, version_: Version) -> Version:
        properties: Schema = {"key_id": {"type": "integer"}, "key_text": {"type": "string"}}
        name, shared = self.rng.choice(list(version_.source["properties"].items()))
        if shared in ({"type": "string"}, {"type": "integer"}, {"type": "boolean"}):
            properties[name] = shared
        return version({"type": "object", "title": "Key", "properties": properties})

    def next_key(self, version_: Version) -> Version:
        schema, rng = copy.deepcopy(version_.source), self.rng
        properties = schema["properties"]
        match rng.choice(("description", "add", "order")):
            case "description":
                schema["description"] = f"described {rng.random()}"
            case "add":
                properties[f"more{rng.randint(0, 999)}"] = {"type": "string"}
            case "order":
                schema["properties"] = dict(reversed(properties.items()))
                schema["description"] = f"ordered {rng.random()}"
        return version(schema)

    def spelled(self, version_: Version, key: dict[str, Any]) -> bytes:
        rng = self.rng
        members = list(key.items())
        members += [(n, None) for n in version_.source["properties"] if n not in key][:1]
        rng.shuffle(members)
        parts = []
        for name, value in members:
            text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if is_whole and abs(value) < 2**50 and rng.random() < 0.3:
                text = f"{value}.0"
            parts.append(f"{json.dumps(name)}{rng.choice((':', ' : '))}{text}")
        return f"{{{rng.choice((',', ' , ')).join(parts)}{rng.choice(('', ' '))}}}".encode()

    def _change(self, root: Schema, node: Schema, *, wild: bool) -> None:
        rng, properties = self.rng, node["properties"]
        changes = ["add", "add", "drop", "retype", "retype", "required"]
        change = rng.choice(changes + (["replace", "recase"] if wild else []))
        name = rng.choice(list(properties))
        if change == "add":
            fresh = f"p{rng.randint(1, 999)}"
            properties[fresh] = random_schema(rng, 2, root["definitions"])
            if rng.random() < 0.2:
                node.setdefault("required", []).append(fresh)
        elif change == "required":
            node["required"] = [one for one in properties if rng.random() < 0.3]
        elif name == "Kind'":
            return
        elif change == "drop" and len(properties) > 1:
            del properties[name]
        elif change == "replace":
            properties[name] = random_schema(rng, 2, root["definitions"])
        elif change == "recase" and name.upper() != name:
            properties[name.upper()] = properties.pop(name)
        elif change == "retype":
            properties[name] = self._like(properties[name])
        if "required" in node:
            node["required"] = [one for one in node["required"] if one in properties]

    def _like(self, schema: Schema) -> Schema:
        kind, connect = schema.get("type"), schema.get("connect.type")
        if not isinstance(kind, str) or "enum" in schema or "title" in schema:
            return schema
        if self.rng.random() < 0.3:
            return {**schema, "type": [kind, "null"]}
        if connect in ("int8", "int16", "int32"):
            return {**schema, "connect.type": self.rng.choice(("int32", "int64"))}
        if connect == "float32":
            return {**schema, "connect.type": "float64"}
        if kind == "integer" and connect is None:
            return {**schema, "type": "number"}
        if kind == "number" and connect is None:
            return {**schema, "type": "integer"}
        return schema


def _objects(schema: Any) -> Iterator[Schema]:
    """The schemas with properties inside of a schema."""
    if isinstance(schema, list):
        for one in schema:
            yield from _objects(one)
    elif isinstance(schema, dict):
        if "key" in schema.get("properties", ()) and "value" in schema["properties"]:
            schema = schema["properties"]["value"]  # an entry of a map stays one
        elif schema.get("properties"):
            yield schema
        for name, one in schema.items():
            if name == "properties":
                for inner in one.values():
                    yield from _objects(inner)
            elif name != "definitions":
                yield from _objects(one)
        for one in schema.get("definitions", {}).values():
            yield from _objects(one)


def version(schema: Schema) -> Version:
    """A schema, which need not be an object's."""
    schema = {k: v for k, v in schema.items() if v or k != "definitions"}
    root = {"definitions": {}, **schema}
    recursive = schema.get("properties", {}).get("again") == {"$ref": "#"}
    has_rows = schema["type"] == "object" and not recursive

    def encode(rng: random.Random, odd: float) -> bytes:
        made = {"again": {}} if recursive else random_value(rng, root, root)
        if rng.random() < odd and isinstance(made, dict):
            _spoil(rng, made)
        return json.dumps(made, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")

    def decode(payload: bytes) -> Decoded:
        return Decoded(_converted(root, _parsed(payload), root, ""))

    shape = _shape(root, root) if has_rows else None
    identity = schema.get("title") or schema.get("$id")
    return Version(json.dumps(schema), "JSON", shape, identity, encode, decode, root)


def _spoil(rng: random.Random, record: dict[str, Any]) -> None:
    """Give a property a value that hardly any type has."""
    name = rng.choice(list(record) or ["x"])
    record[name] = rng.choice((2**70, "no", [[1]], {"no": {"such": 1}}, True, 1.5, "\ud800"))


def _parsed(payload: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for pair in pairs:  # also of a name that is repeated
            json.dumps(pair, ensure_ascii=False, default=str).encode()  # half of a surrogate pair
        return dict(pairs)

    try:
        text = payload.decode()
        if text.startswith("\ufeff"):
            raise ValueError("a byte order mark")
        value = json.loads(
            text, parse_float=_exact, parse_constant=refuse, object_pairs_hook=checked
        )
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None
    return value


def _exact(text: str) -> Decimal:
    mantissa, _, exponent = text.lower().partition("e")
    return Decimal(f"{mantissa}e{max(-(10**6), min(10**6, int(exponent or 0)))}")


def _title(schema: Schema) -> str:
    return str(schema.get("title", "")).removeprefix(CONNECT)


def _is_decimal(schema: Schema) -> bool:
    return bool(schema.get("title") == CONNECT + "Decimal")


def _shape(schema: Schema, root: Schema) -> Shape:
    schema = resolve(schema, root)
    if "members" in schema:
        members = [_shape(member, root) for member in schema["members"]]
        return Shape("union", {f"connect_union_field_{n}": one for n, one in enumerate(members)})
    if _is_decimal(schema):
        facts = schema["connect.parameters"]
        precision, scale = int(facts["connect.decimal.precision"]), int(facts["scale"])
        return Shape("decimal", precision=precision, scale=scale)
    match schema.get("type"):
        case "boolean":
            return Shape("boolean")
        case "string":
            return Shape("binary" if schema.get("connect.type") == "bytes" else "string")
        case "integer" | "number" as kind:
            if "flink.type" in schema:
                return Shape("timestamp")
            usual = _KINDS.get(schema.get("connect.type", ""))
            plain = "long" if kind == "integer" else "double"
            title = _title(schema)
            unit = "time-millis" if title == "Time" else ""
            return Shape(_TITLES.get(title) or usual or plain, unit=unit)
        case "array" if "prefixItems" not in schema:
            if schema.get("connect.type") == "map":
                inner = schema["items"]["properties"]
                return Shape("map", {name: _shape(inner[name], root) for name in ("key", "value")})
            return Shape("list", {"element": _shape(schema["items"], root)})
        case "object" if schema.get("properties"):
            inner = schema["properties"]
            return Shape("struct", {name: _shape(one, root) for name, one in inner.items()})
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            value = _shape(schema["additionalProperties"], root)
            return Shape("map", {"key": Shape("string"), "value": value})
    return Shape("string", unit="" if "enum" in schema or "const" in schema else "json")


def _converted(schema: Schema, value: Any, root: Schema, path: str) -> Value:
    """The column's value of a JSON value, by the schema that it was written with."""
    if value is None:
        if path == "":
            raise Malformed("null is not an object")
        return None
    schema = resolve(schema, root)
    if "members" in schema:
        return _of_union(schema["members"], value, root, path)
    is_number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    if _is_decimal(schema):
        return _decimal(schema, value, path)
    match schema.get("type"):
        case "boolean" if isinstance(value, bool):
            return value
        case "string" if isinstance(value, str):
            return _bytes(value, path) if schema.get("connect.type") == "bytes" else value
        case "integer" | "number" if is_number:
            return _number(schema, value, root, path)
        case "array" if isinstance(value, list) and "prefixItems" not in schema:
            return _array(schema, value, root, path)
        case "object" if isinstance(value, dict) and schema.get("properties"):
            inner = schema["properties"]
            return {
                name: _converted(one, value.get(name), root, f"{path}.{name}".lstrip("."))
                for name, one in inner.items()
            }
        case "object" if isinstance(value, dict) and isinstance(
            schema.get("additionalProperties"), dict
        ):
            inner = schema["additionalProperties"]
            return {k: _converted(inner, one, root, path or "?") for k, one in value.items()}
        case None if "enum" in schema or "const" in schema:
            if isinstance(value, str):
                return value
            raise Malformed(f"{value!r} is not a text", path)
        case None | "object" | "array" if _shape(schema, root).unit == "json":
            kinds = {"object": dict, "array": list}
            if schema.get("type") is None or isinstance(value, kinds[schema["type"]]):
                return JsonText(_as_doubles(value))
    raise Malformed(f"{value!r} is not of type {schema.get('type')}", path)


def _of_union(members: list[Schema], value: Any, root: Schema, path: str) -> Value:
    """The value as the member that is best by jsonschema, of those that can be converted. That is
    the first one that allows the value and declares all of it; else the one that allows it and
    declares most of it; else the first one whose own properties and constants are as required."""
    ranks: list[tuple[tuple[bool, int], int, Value]] = []
    plain = _as_python(value)
    for number, member in enumerate(members):
        try:
            converted = _converted(member, value, root, path or "?")
        except Malformed:
            continue
        if not _is_allowed(_own(resolve(member, root)), plain):
            continue
        is_allowed = _is_allowed({**member, "definitions": root["definitions"]}, plain)
        undeclared = _undeclared(member, value, root) if is_allowed else 0
        ranks.append(((not is_allowed, undeclared), number, converted))
    if not ranks:
        raise Malformed(f"{value!r} is of no member", path)
    _, best, converted = min(ranks, key=lambda rank: rank[:2])
    row: dict[str, Value] = {f"connect_union_field_{n}": None for n in range(len(members))}
    return {**row, f"connect_union_field_{best}": converted}


def _own(schema: Schema) -> Schema:
    """What a schema says of required properties and of constants of its own properties."""
    constants = {
        name: {key: inner[key] for key in ("const", "enum") if key in inner}
        for name, inner in schema.get("properties", {}).items()
    }
    return {"properties": constants, "required": schema.get("required", [])}


def _is_allowed(schema: Schema, value: Any) -> bool:
    return bool(_NullAllowed(schema).is_valid(value))


def _or_null(check: Any) -> Any:
    """What checks a keyword, and allows null."""

    def checked(validator: Any, argument: Any, value: Any, schema: Any) -> Any:
        return None if value is None else check(validator, argument, value, schema)

    return checked


_NullAllowed: Any = extend(
    Draft7Validator,
    {keyword: _or_null(check) for keyword, check in Draft7Validator.VALIDATORS.items()},
)


def _as_python(value: Any) -> Any:
    """Numbers as :func:`json.loads` returns them, of which 1.0 is an integer."""
    match value:
        case Decimal():
            is_whole = value.adjusted() < 400 and value == value.to_integral_value()
            return int(value) if is_whole else float(value)
        case list():
            return [_as_python(one) for one in value]
        case dict():
            return {name: _as_python(one) for name, one in value.items()}
    return value


def _undeclared(schema: Schema, value: Any, root: Schema) -> int:
    """How many values of one have no place in a schema."""
    schema = resolve(schema, root)
    if "members" in schema:
        allowing = (
            _undeclared(member, value, root)
            for member in schema["members"]
            if _is_allowed({**member, "definitions": root["definitions"]}, _as_python(value))
        )
        return min(allowing, default=0)
    if isinstance(value, list) and "items" in schema and "prefixItems" not in schema:
        return sum(_undeclared(schema["items"], one, root) for one in value)
    if not isinstance(value, dict) or not schema.keys() & {"properties", "additionalProperties"}:
        return 0
    others = schema.get("additionalProperties") or None
    return sum(
        _undeclared(inner, value[name], root) if inner is not None else _count(value[name])
        for name, inner in ((n, schema.get("properties", {}).get(n, others)) for n in value)
    )


def _count(value: Any) -> int:
    """How many values there are in one, and itself."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, inner))


def _as_doubles(value: Any) -> Any:
    match value:
        case Decimal():
            return float(value)
        case list():
            return [_as_doubles(one) for one in value]
        case dict():
            return {name: _as_doubles(one) for name, one in value.items()}
    return value


def _number(schema: Schema, value: int | Decimal, root: Schema, path: str) -> Value:
    kind = _shape(schema, root).kind
    if kind in ("float", "double"):
        number = float(value) if Decimal(value).copy_abs() < 2 * 10**308 else math.inf
        if kind == "float" and math.isfinite(number):
            try:
                (number,) = struct.unpack("<f", struct.pack("<f", number))
            except OverflowError:
                number = math.inf
        if not math.isfinite(number):
            raise Malformed("out of range", path)
        return number
    if isinstance(value, Decimal) and value.adjusted() > 100:
        raise Malformed(f"{value} is out of range", path)
    if isinstance(value, Decimal) and value != value.to_integral_value():
        raise Malformed(f"{value} is not whole", path)
    whole = int(value)
    bits = 31 if kind in ("int", "date") else 63
    if not -(2**bits) <= whole < 2**bits:
        raise Malformed(f"{whole} is out of range", path)
    try:
        match kind:
            case "date":
                return date(1970, 1, 1) + timedelta(days=whole)
            case "timestamptz":
                return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=whole)
            case "timestamp":
                return datetime(1970, 1, 1) + timedelta(milliseconds=whole)
    except OverflowError:
        raise Malformed(f"{whole} is outside of the years 1 to 9999", path) from None
    return whole


def _array(schema: Schema, value: list[Any], root: Schema, path: str) -> Value:
    if schema.get("connect.type") != "map":
        return [_converted(schema["items"], one, root, path or "?") for one in value]
    inner = schema["items"]["properties"]
    entries: dict[Any, Value] = {}
    for entry in value:
        if not isinstance(entry, dict) or entry.get("key") is None:
            raise Malformed("an entry without a key", path)
        key = _converted(inner["key"], entry["key"], root, path)
        entries[key] = _converted(inner["value"], entry.get("value"), root, path)
    return entries


def _bytes(value: str, path: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("not base64", path) from None


def _decimal(schema: Schema, value: Any, path: str) -> Decimal:
    facts = schema["connect.parameters"]
    precision, scale = int(facts["connect.decimal.precision"]), int(facts["scale"])
    if isinstance(value, str):
        if not (unscaled_bytes := _bytes(value, path)):
            raise Malformed("no bytes", path)
        unscaled = int.from_bytes(unscaled_bytes, "big", signed=True)
        number = Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
    elif isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        if Decimal(value).copy_abs() >= 10 ** (precision - scale):
            raise Malformed(f"{value} exceeds the precision", path)
        number = Decimal(value).quantize(Decimal(1).scaleb(-scale), context=_CONTEXT)
        if number != value:
            raise Malformed(f"{value} exceeds the scale", path)
    else:
        raise Malformed(f"{value!r} is not of type {schema['type']}", path)
    if len(number.as_tuple().digits) > precision:
        raise Malformed(f"{number} exceeds the precision", path)
    return number
