"""Random Avro schemas, later versions of them, and data."""

from __future__ import annotations

import copy
import random
import string
import struct
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

import fastavro

Schema = Any
_DEPTH = 3
_EPOCH = datetime(1970, 1, 1)
_STEPS = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}
_TEXT = string.ascii_letters + " \"'\\\n\t,;äß漢🙂\x00"
_WORDS = (
    "id",
    "key",
    "value",
    "zip",
    "price",
    "note",
    "ts",
    "qty",
    "addr",
    "tags",
    "state",
    "ref",
    "kind",
    "a_b",
)


class AvroSchemas:
    """Makes record schemas; every named type gets a name of its own."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._names = 0

    def root(self) -> dict[str, Any]:
        schema = self.record(0)
        schema["name"], schema["namespace"] = "Order", "shop"
        return schema

    def name(self, kind: str) -> str:
        self._names += 1
        return f"shop.{kind}{self._names}"

    def field_name(self) -> str:
        word = self.rng.choice(_WORDS)
        return word if self.rng.random() < 0.3 else f"{word}{self.rng.randint(1, 99)}"

    def any(self, depth: int) -> Schema:
        makers = [*self._scalars()]
        if depth < _DEPTH:
            makers += 2 * [self.optional, self.array, self.map, self.record, self.union]
        return self.rng.choice(makers)(depth + 1)

    def record(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Schema] = {}
        for _ in range(self.rng.randint(2, 7) if depth == 0 else self.rng.randint(1, 4)):
            name = self.field_name()
            if name.lower() not in {one.lower() for one in fields}:
                fields[name] = {"name": name, "type": self.any(depth)}
        for one in fields.values():
            if self.rng.random() < 0.2:
                one["default"] = default(self.rng, one["type"])
        return {"type": "record", "name": self.name("R"), "fields": list(fields.values())}

    def optional(self, depth: int) -> Schema:
        inner = self.any(depth)
        while isinstance(inner, list):
            inner = self.any(depth)
        return ["null", inner] if self.rng.random() < 0.7 else [inner, "null"]

    def array(self, depth: int) -> Schema:
        return {"type": "array", "items": self.any(depth)}

    def map(self, depth: int) -> Schema:
        return {"type": "map", "values": self.any(depth)}

    def union(self, depth: int) -> Schema:
        """Several branches, of which no two are of one unnamed type."""
        branches: dict[str, Schema] = {}
        for _ in range(self.rng.randint(2, 4)):
            one = self.any(max(depth, 2))
            if isinstance(one, list):
                continue
            branches.setdefault(_branch_type(one), one)
        null = ["null"] if self.rng.random() < 0.5 else []
        return [*null, *branches.values()] if branches else "string"

    def fixed(self, _depth: int) -> Schema:
        return {"type": "fixed", "name": self.name("F"), "size": self.rng.randint(1, 20)}

    def enum(self, _depth: int) -> Schema:
        symbols = [f"S{n}" for n in range(self.rng.randint(1, 5))]
        return {"type": "enum", "name": self.name("E"), "symbols": symbols}

    def decimal(self, _depth: int) -> Schema:
        precision = self.rng.randint(1, 38)
        facts = {
            "logicalType": "decimal",
            "precision": precision,
            "scale": self.rng.randint(0, precision),
        }
        if self.rng.random() < 0.3:
            size = 1
            while 2 ** (8 * size - 1) < 10**precision:
                size += 1
            return {"type": "fixed", "name": self.name("D"), "size": size, **facts}
        return {"type": "bytes", **facts}

    def _scalars(self) -> Iterator[Callable[[int], Schema]]:
        simple: list[Schema] = ["string", "string", "int", "long", "long", "float", "double"]
        simple += ["boolean", "bytes", {"type": "string", "logicalType": "uuid"}]
        simple += [{"type": "int", "logicalType": one} for one in ("date", "time-millis")]
        units = ("millis", "micros")
        longs = [f"{one}timestamp-{unit}" for one in ("", "local-") for unit in units]
        longs.append("time-micros")
        simple += [{"type": "long", "logicalType": one} for one in longs]
        for one in simple:
            yield partial(_copied, one)
        yield from (self.fixed, self.enum, self.decimal)

    def changed(self, schema: dict[str, Any], *, wild: bool) -> dict[str, Any] | None:
        """A later version, with one to three changes at any depth; None: they came to nothing.

        :param wild: also changes that no Avro reader follows
        """
        new = copy.deepcopy(schema)
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            record = self.rng.choice(list(records(new)))
            changes = [self._add, self._add, self._drop, self._rename, self._retype, self._retype]
            changes += [self._retype, self._symbols, self._reorder, self._defaults]
            if wild:
                changes += [self._replace, self._recase, self._rename_type]
            self.rng.choice(changes)(record)
        for record in records(new):
            for one in record["fields"]:
                if "default" in one and not isinstance(one["type"], str):
                    one["default"] = default(self.rng, one["type"])
        try:
            fastavro.parse_schema(copy.deepcopy(new))
        except Exception:  # a name that is used was defined in what was dropped
            return None
        return new if new != schema else None

    def _add(self, record: dict[str, Any]) -> None:
        name = self.field_name()
        if name.lower() in {one["name"].lower() for one in record["fields"]}:
            return
        one = {"name": name, "type": self.any(2)}
        if self.rng.random() < 0.6:
            one["default"] = default(self.rng, one["type"])
        record["fields"].insert(self.rng.randint(0, len(record["fields"])), one)

    def _drop(self, record: dict[str, Any]) -> None:
        if len(record["fields"]) > 1:
            record["fields"].remove(self.rng.choice(record["fields"]))

    def _rename(self, record: dict[str, Any]) -> None:
        one, name = self.rng.choice(record["fields"]), f"{self.field_name()}_r"
        names = {a for f in record["fields"] for a in (f["name"].lower(), *f.get("aliases", ()))}
        if name.lower() in names:
            return
        if self.rng.random() < 0.7:
            one["aliases"] = [*one.get("aliases", ()), one["name"]]
        else:
            one.pop("aliases", None)
        one["name"] = name

    def _retype(self, record: dict[str, Any]) -> None:
        """Another type that Avro, or a table, may take for the same."""
        one = self.rng.choice(record["fields"])
        place: Any = one
        kind = one["type"]
        slot: Any = "type"
        while True:
            if isinstance(kind, list):
                slots = [n for n, branch in enumerate(kind) if branch != "null"]
                place, slot = kind, self.rng.choice(slots)
            elif isinstance(kind, dict) and kind["type"] in ("array", "map"):
                place, slot = kind, "items" if kind["type"] == "array" else "values"
            else:
                break
            kind = place[slot]
        new = self._like(kind)
        if new is not None and (not isinstance(place, list) or _is_branch(new, place, slot)):
            place[slot] = new
            if "default" in one:
                one["default"] = default(self.rng, one["type"])

    def _like(self, kind: Schema) -> Schema | None:
        wider = {"int": ["long", "long", "double", "float"], "long": ["int", "double"]}
        wider |= {
            "float": ["double"],
            "double": ["float"],
            "string": ["bytes"],
            "bytes": ["string"],
        }
        if self.rng.random() < 0.2:
            return ["null", kind]
        if isinstance(kind, str):
            return self.rng.choice(wider.get(kind, [None]))
        if not isinstance(kind, dict):
            return None
        logical = kind.get("logicalType", "")
        if logical == "decimal" and kind["type"] == "bytes":
            scale = min(38, kind["scale"] + (self.rng.random() < 0.2))
            return {**kind, "precision": self.rng.randint(max(1, scale), 38), "scale": scale}
        if "timestamp" in logical:
            other = {"millis": "micros", "micros": "millis"}
            base, _, unit = logical.rpartition("-")
            return {**kind, "logicalType": f"{base}-{other[unit]}"}
        if kind["type"] == "fixed" and not logical:
            return {**kind, "size": kind["size"] + 1}
        return None

    def _symbols(self, record: dict[str, Any]) -> None:
        for one in record["fields"]:
            kind = one["type"]
            if isinstance(kind, dict) and kind["type"] == "enum":
                if self.rng.random() < 0.5:
                    kind["symbols"].append(f"N{self.rng.randint(1, 99)}x{len(kind['symbols'])}")
                elif len(kind["symbols"]) > 1:
                    kind["symbols"].remove(self.rng.choice(kind["symbols"]))
                if self.rng.random() < 0.5:
                    kind["default"] = self.rng.choice(kind["symbols"])
                elif kind.get("default") not in kind["symbols"]:
                    kind.pop("default", None)
                if "default" in one:
                    one["default"] = default(self.rng, kind)

    def _reorder(self, record: dict[str, Any]) -> None:
        self.rng.shuffle(record["fields"])

    def _defaults(self, record: dict[str, Any]) -> None:
        one = self.rng.choice(record["fields"])
        if "default" in one and self.rng.random() < 0.5:
            del one["default"]
        else:
            one["default"] = default(self.rng, one["type"])

    def _replace(self, record: dict[str, Any]) -> None:
        one = self.rng.choice(record["fields"])
        one["type"] = self.any(2)
        one.pop("default", None)

    def _recase(self, record: dict[str, Any]) -> None:
        one = self.rng.choice(record["fields"])
        one["name"] = one["name"].upper()

    def _rename_type(self, record: dict[str, Any]) -> None:
        for one in record["fields"]:
            if isinstance(one["type"], dict) and "name" in one["type"]:
                one["type"]["name"] = self.name("X")
                return


def _branch_type(schema: Schema) -> str:
    """What no two branches of a union may share: the name of a type, or else the type."""
    return schema if isinstance(schema, str) else schema.get("name", schema["type"])


def _is_branch(schema: Schema, union: list[Schema], number: int) -> bool:
    """Whether a union may have a schema instead of one of its branches."""
    others = [_branch_type(one) for place, one in enumerate(union) if place != number]
    return not isinstance(schema, list) and _branch_type(schema) not in others


def _copied(schema: Schema, _depth: int) -> Schema:
    return copy.deepcopy(schema)


def records(schema: Schema) -> Iterator[dict[str, Any]]:
    """The record definitions in a schema."""
    if isinstance(schema, list):
        for branch in schema:
            yield from records(branch)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            yield schema
        for one in schema.get("fields", ()):
            yield from records(one["type"])
        for inner in ("items", "values", "type"):
            if isinstance(schema.get(inner), (dict, list)):
                yield from records(schema[inner])


def datum(rng: random.Random, schema: Schema, names: dict[str, Any], *, odd: float = 0.0) -> Any:
    """Random data as :class:`avro_oracle.AvroSchema` encodes it.

    :param names: named types
    :param odd: how likely a value is one that no column has
    """

    def make(kind: Schema) -> Any:
        if isinstance(kind, str) and kind in names:
            kind = names[kind]
        if isinstance(kind, list):
            number = rng.randrange(len(kind))
            return number, make(kind[number])
        if isinstance(kind, str):
            return _plain(rng, kind)
        logical = kind.get("logicalType", "")
        match kind["type"]:
            case "record":
                return {one["name"]: make(one["type"]) for one in kind["fields"]}
            case "array":
                return [make(kind["items"]) for _ in range(rng.randrange(4))]
            case "map":
                return {_text(rng): make(kind["values"]) for _ in range(rng.randrange(4))}
            case "enum":
                return rng.choice(kind["symbols"])
        is_odd = rng.random() < odd
        if logical == "decimal":
            return _decimal(rng, kind, is_odd)
        if logical == "date":
            low, high = -(date(1970, 1, 1) - date.min).days, (date.max - date(1970, 1, 1)).days
            return rng.choice((2**31 - 1, -(2**31), high + 1) if is_odd else (low, high, 0, 19000))
        if logical in ("time-millis", "time-micros"):
            return rng.randrange(86_400_000)
        if "timestamp" in logical:
            step = _STEPS[logical.rpartition("-")[2]]
            low, high = (datetime.min - _EPOCH) // step, (datetime.max - _EPOCH) // step
            odds = (2**63 - 1, -(2**63), high + 1, low - 1)
            usual = (low, high, -1, rng.randint(low, high))
            return rng.choice(odds if is_odd else usual)
        if logical == "uuid" and kind["type"] == "string":
            return f"{rng.getrandbits(128):032x}"
        if kind["type"] == "fixed":
            return rng.randbytes(kind["size"])
        return _plain(rng, kind["type"])

    return make(schema)


def _plain(rng: random.Random, kind: str) -> Any:
    match kind:
        case "null":
            return None
        case "boolean":
            return rng.random() < 0.5
        case "int" | "long":
            edge = 2 ** (31 if kind == "int" else 63)
            return rng.choice((0, -1, 1, -edge, edge - 1, rng.randint(-edge, edge - 1)))
        case "float":
            value = rng.choice((0.0, float("inf"), float("nan"), rng.uniform(-1e30, 1e30)))
            return struct.unpack("f", struct.pack("f", value))[0]
        case "double":
            return rng.choice((0.0, 1e308, 5e-324, float("-inf"), float("nan"), rng.gauss(0, 1e9)))
        case "bytes":
            return rng.randbytes(rng.randrange(10))
    return _text(rng)


def _text(rng: random.Random) -> str:
    return "".join(rng.choice(_TEXT) for _ in range(rng.randrange(12)))


def _decimal(rng: random.Random, kind: dict[str, Any], is_odd: bool) -> bytes:
    edge = 10 ** kind["precision"]
    if kind["type"] == "fixed":
        return rng.randint(1 - edge, edge - 1).to_bytes(kind["size"], "big", signed=True)
    digits = rng.choice((edge, -edge * 7)) if is_odd else rng.randint(1 - edge, edge - 1)
    return digits.to_bytes(digits.bit_length() // 8 + 1, "big", signed=True)


def default(rng: random.Random, schema: Schema) -> Any:
    """A default in JSON; of types that are defined elsewhere in the schema, an empty one."""
    if isinstance(schema, list):
        return default(rng, schema[0])
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "null":
            return None
        case "record":
            return {one["name"]: default(rng, one["type"]) for one in schema["fields"]}
        case "array":
            return [default(rng, schema["items"]) for _ in range(rng.randrange(2))]
        case "map":
            return {"k": default(rng, schema["values"])} if rng.random() < 0.5 else {}
        case "enum":
            return rng.choice(schema["symbols"])
        case "float" | "double":
            return rng.choice((0.0, 1.5, -2.25))
        case "string":
            return rng.choice(("", "default", "ü"))
    made = datum(rng, schema, {})
    return made.decode("latin-1") if isinstance(made, bytes) else made
