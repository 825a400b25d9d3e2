"""What a table shows of an Avro record, by fastavro and the documented mapping. fastavro reads the
bytes, with a schema that has no logical types and in which every branch of a union is a record of
one field: the same bytes, and the branch of each value is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from io import BytesIO
from typing import Any

import fastavro
from shapes import Malformed, Refused, Shape, Value

PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "fixed": "binary",
    "enum": "string",
}
LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamptz",
    ("long", "timestamp-micros"): "timestamptz",
    ("long", "local-timestamp-millis"): "timestamp",
    ("long", "local-timestamp-micros"): "timestamp",
}
UNITS = ("time-millis", "time-micros")
EPOCH = datetime(1970, 1, 1)
MAX_PRECISION = 38
_CONTEXT = Context(prec=80)


class AvroSchema:
    """A record schema: its shape, and its records as values of that shape.

    A datum is what Avro encodes, without logical types; that of a union is (branch, datum).
    """

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        self.names: dict[str, Any] = {}
        self._branches: dict[int, list[str]] = {}
        for reference in references:
            self._named(json.loads(reference), "")
        self.root = self._named(json.loads(text), "")
        self._wire = fastavro.parse_schema(self._wired(self.root, set()))
        self.recursive = _is_recursive(self.root, self.names, ())

    @property
    def shape(self) -> Shape:
        """The shape of the record.

        :raises Refused: it has no table
        """
        kind = self._resolve(self.root)
        if not isinstance(kind, dict) or kind["type"] != "record":
            raise Refused("the schema is not a record")
        return self._shape(kind, "", ())

    def encode(self, datum: Any) -> bytes:
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, self._wire, self._to_wire(self.root, datum))
        return buffer.getvalue()

    def decode(self, payload: bytes) -> Value:
        """The record as a value of :attr:`shape`.

        :raises Malformed: the bytes are not a record of the schema, or a value has no column
        """
        try:
            wire = fastavro.schemaless_reader(
                BytesIO(payload), self._wire, None, return_record_name=True
            )
        except Exception as error:  # fastavro raises what happens to go wrong
            raise Malformed(f"{type(error).__name__}: {error}") from None
        return self._value(self.root, wire, "")

    def is_canonical(self, payload: bytes) -> bool:
        """Whether a producer would write these bytes: nothing follows, no key is there twice."""
        wire = fastavro.schemaless_reader(
            BytesIO(payload), self._wire, None, return_record_name=True
        )
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, self._wire, wire)
        return buffer.getvalue() == payload

    def _named(self, schema: Any, namespace: str) -> Any:
        """The schema with full names; fills :attr:`names` with what it defines."""
        if isinstance(schema, list):
            return [self._named(branch, namespace) for branch in schema]
        if isinstance(schema, str):
            if schema in PRIMITIVES or schema == "null" or "." in schema:
                return schema
            full = f"{namespace}.{schema}" if namespace else schema
            return full if full in self.names else schema
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self._named(kind, namespace)
        if kind in ("record", "error", "enum", "fixed"):
            name = str(schema["name"])
            outer = schema.get("namespace", namespace)
            full = name if "." in name or not outer else f"{outer}.{name}"
            made = {**schema, "name": full}
            made.pop("namespace", None)
            self.names[full] = made
            if kind in ("record", "error"):
                inside = full.rpartition(".")[0]
                made["type"] = "record"
                made["fields"] = [
                    {**one, "type": self._named(one["type"], inside)} for one in schema["fields"]
                ]
            return made
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            return {**schema, inner: self._named(schema[inner], namespace)}
        if kind in PRIMITIVES or kind == "null":
            return dict(schema)
        return self._named(kind, namespace)

    def _resolve(self, schema: Any) -> Any:
        if isinstance(schema, str) and schema not in PRIMITIVES and schema != "null":
            return self.names[schema]
        return schema

    def _wired(self, schema: Any, defined: set[str]) -> Any:
        """For fastavro: no logical types, no defaults, each branch of a union a record."""
        if isinstance(schema, list):
            names = [f"wire_branch{len(self._branches)}_{n}" for n in range(len(schema))]
            self._branches[id(schema)] = names
            return [
                {
                    "type": "record",
                    "name": name,
                    "namespace": "",
                    "fields": [{"name": "v", "type": self._wired(branch, defined)}],
                }
                for name, branch in zip(names, schema, strict=True)
            ]
        if isinstance(schema, str):
            if schema in PRIMITIVES or schema == "null":
                return schema
            # Of another schema's file, and so not yet defined for fastavro.
            return schema if schema in defined else self._wired(self.names[schema], defined)
        kind = schema["type"]
        if kind == "array":
            return {"type": kind, "items": self._wired(schema["items"], defined)}
        if kind == "map":
            return {"type": kind, "values": self._wired(schema["values"], defined)}
        if "name" not in schema:
            return kind
        defined.add(schema["name"])
        made = {k: schema[k] for k in ("type", "name", "size", "symbols") if k in schema}
        if "." not in schema["name"]:
            made["namespace"] = ""
        if kind == "record":
            made["fields"] = [
                {"name": one["name"], "type": self._wired(one["type"], defined)}
                for one in schema["fields"]
            ]
        return made

    def _to_wire(self, schema: Any, datum: Any) -> Any:
        schema = self._resolve(schema)
        if isinstance(schema, list):
            number, inner = datum
            return self._branches[id(schema)][number], {"v": self._to_wire(schema[number], inner)}
        match schema if isinstance(schema, str) else schema["type"]:
            case "record":
                fields = schema["fields"]
                return {f["name"]: self._to_wire(f["type"], datum[f["name"]]) for f in fields}
            case "array":
                return [self._to_wire(schema["items"], one) for one in datum]
            case "map":
                return {key: self._to_wire(schema["values"], one) for key, one in datum.items()}
        return datum

    def _shape(self, schema: Any, path: str, above: tuple[str, ...]) -> Shape:
        schema = self._resolve(schema)
        if isinstance(schema, list):
            branches = [branch for branch in schema if not _is_null(branch)]
            members = [self._shape(branch, path, above) for branch in branches]
            if len(members) == 1:
                return members[0]
            if self._is_one_number(branches):
                return Shape("long" if members[0].kind in ("int", "long") else "double")
            return Shape("union", {f"member{n}": shape for n, shape in enumerate(members)})
        if isinstance(schema, str):
            return Shape(PRIMITIVES[schema], name=schema)
        kind, logical = schema["type"], schema.get("logicalType")
        name = schema.get("name", kind)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            precision, scale = schema["precision"], schema.get("scale", 0)
            if not (1 <= precision <= 38 and 0 <= scale <= precision):
                raise Refused(f"{path}: decimal({precision}, {scale})")
            return Shape("decimal", precision=precision, scale=scale, name=name)
        if (kind, logical) in LOGICAL:
            return Shape(LOGICAL[kind, logical], name=name)
        if kind == "array":
            return Shape("list", {"element": self._shape(schema["items"], path, above)}, name=kind)
        if kind == "map":
            value = self._shape(schema["values"], path, above)
            return Shape("map", {"key": Shape("string"), "value": value}, name=kind)
        if kind != "record":
            return Shape(PRIMITIVES[kind], name=name, unit=logical if logical in UNITS else "")
        if name in above:
            raise Refused(f"{path}: {name} is recursive")
        fields = [one for one in schema["fields"] if not _is_null(one["type"])]
        if not fields:
            raise Refused(f"{path}: {name} has no fields")
        shapes: dict[str, Shape] = {}
        seen: set[str] = set()
        for one in fields:
            where = f"{path}.{one['name']}" if path else one["name"]
            if one["name"].lower() in seen:
                raise Refused(f"{where}: differs from another field only in case")
            seen.add(one["name"].lower())
            shapes[one["name"]] = self._shape(one["type"], where, (*above, name))
        return Shape(
            "struct",
            shapes,
            name=name,
            aliases={one["name"]: tuple(one.get("aliases", ())) for one in fields},
            defaults={
                one["name"]: self._default(one["type"], one["default"])
                for one in fields
                if "default" in one
            },
        )

    def _value(self, schema: Any, wire: Any, path: str) -> Value:
        """fastavro's value as the column's."""
        schema = self._resolve(schema)
        if isinstance(schema, list):
            name, inner = wire
            return self._of_branch(schema, self._branches[id(schema)].index(name), inner["v"], path)
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "record":
                return {
                    one["name"]: self._value(
                        one["type"], wire[one["name"]], f"{path}.{one['name']}".lstrip(".")
                    )
                    for one in schema["fields"]
                    if not _is_null(one["type"])
                }
            case "array":
                return [self._value(schema["items"], one, path) for one in wire]
            case "map":
                return {key: self._value(schema["values"], one, path) for key, one in wire.items()}
        return _scalar(kind, schema if isinstance(schema, dict) else {}, wire, path)

    def _is_one_number(self, branches: list[Any]) -> bool:
        """Whether all values of the branches are in one column: int and long, float and double."""
        kinds = {one if isinstance(one, str) else None for one in map(self._resolve, branches)}
        return kinds in ({"int", "long"}, {"float", "double"})

    def _of_branch(self, union: list[Any], number: int, inner: Any, path: str) -> Value:
        if _is_null(union[number]):
            return None
        value = self._value(union[number], inner, path)
        places = [n for n, branch in enumerate(union) if not _is_null(branch)]
        if len(places) == 1 or self._is_one_number([union[place] for place in places]):
            return value
        return {f"member{n}": value if p == number else None for n, p in enumerate(places)}

    def _default(self, schema: Any, default: Any) -> Value:
        """The JSON of a default as the column's value."""
        return self._value(schema, self._default_wire(schema, default), "")

    def _default_wire(self, schema: Any, default: Any) -> Any:
        schema = self._resolve(schema)
        if isinstance(schema, list):  # the default is the first branch's
            return self._branches[id(schema)][0], {"v": self._default_wire(schema[0], default)}
        match schema if isinstance(schema, str) else schema["type"]:
            case "record":
                return {
                    one["name"]: self._default_wire(
                        one["type"], default.get(one["name"], one.get("default"))
                    )
                    for one in schema["fields"]
                }
            case "array":
                return [self._default_wire(schema["items"], one) for one in default]
            case "map":
                return {k: self._default_wire(schema["values"], one) for k, one in default.items()}
            case "bytes" | "fixed":
                return default.encode("latin-1")
            case "float" | "double":
                return float(default)
        return default


def _is_recursive(schema: Any, names: Mapping[str, Any], above: tuple[str, ...]) -> bool:
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        return any(_is_recursive(branch, names, above) for branch in schema)
    if not isinstance(schema, dict):
        return False
    if schema["type"] == "record":
        name = schema["name"]
        return name in above or any(
            _is_recursive(one["type"], names, (*above, name)) for one in schema["fields"]
        )
    return any(_is_recursive(schema[k], names, above) for k in ("items", "values") if k in schema)


def _is_null(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, dict) and schema["type"] == "null")


def _scalar(kind: str, schema: Mapping[str, Any], wire: Any, path: str) -> Value:
    logical = schema.get("logicalType")
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        if not -(2**bits) <= wire < 2**bits:
            raise Malformed(f"{wire} is not of {bits + 1} bits", path)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits = int.from_bytes(wire, "big", signed=True)
        if len(str(abs(digits))) > MAX_PRECISION:  # the column's precision is checked later
            raise Malformed(f"{digits} exceeds the precision", path)
        return Decimal(digits).scaleb(-schema.get("scale", 0), _CONTEXT)
    match LOGICAL.get((kind, str(logical))):
        case "date":
            return _moment(wire, timedelta(days=1), path).date()
        case "timestamptz":
            return _moment(wire, _STEPS[str(logical)], path).replace(tzinfo=UTC)
        case "timestamp":
            return _moment(wire, _STEPS[str(logical)], path)
    return wire


_STEPS = {
    f"{local}timestamp-{name}": step
    for local in ("", "local-")
    for name, step in {
        "millis": timedelta(milliseconds=1),
        "micros": timedelta(microseconds=1),
    }.items()
}


def _moment(number: int, step: timedelta, path: str) -> datetime:
    try:
        return EPOCH + number * step
    except OverflowError:
        raise Malformed(f"{number} is outside of the years 1 to 9999", path) from None
