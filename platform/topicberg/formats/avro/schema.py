"""Avro schemas as types whose names are resolved."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats import limits
from topicberg.formats.meanings import (
    CONNECT_UNITS,
    EPOCH_NANOS,
    LOCAL_NANOS,
    MICROS,
    MILLIS,
    Meaning,
)
from topicberg.formats.reasons import shortened
from topicberg.formats.subjects import RegisteredSchema

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
LOGICAL: dict[tuple[str, str | None], type[T.IcebergType]] = {
    ("int", "date"): T.DateType,
    ("int", "time-millis"): T.IntegerType,
    ("long", "time-micros"): T.LongType,
    ("long", "timestamp-millis"): T.TimestamptzType,
    ("long", "timestamp-micros"): T.TimestamptzType,
    ("long", "timestamp-nanos"): T.LongType,
    ("long", "local-timestamp-millis"): T.TimestampType,
    ("long", "local-timestamp-micros"): T.TimestampType,
    ("long", "local-timestamp-nanos"): T.LongType,
    ("bytes", "decimal"): T.DecimalType,
    ("fixed", "decimal"): T.DecimalType,
    ("long", "topicberg.nano-timestamp"): T.TimestampType,
    ("string", "topicberg.zoned-timestamp"): T.TimestamptzType,
    ("string", "topicberg.iso-timestamp"): T.TimestampType,
    ("string", "topicberg.iso-date"): T.DateType,
    ("string", "topicberg.iso-time"): T.LongType,
    ("bytes", "topicberg.decimal"): T.StringType,
    ("record", "topicberg.variable-decimal"): T.StringType,
}
"""Logical types that change what a value means, and their columns; all others are read as the
underlying type. Those of topicberg are of :mod:`topicberg.formats.connect`."""
NO_DEFAULT: Final = object()
MAX_FIXED_BYTES = 16 * 1024 * 1024
"""Avro's reader reserves the memory of a fixed before it reads the record."""


@dataclass(eq=False)
class Type:
    """A type; the type of a recursive schema contains itself.

    ``kind``: a primitive's name, ``record``, ``enum``, ``fixed``, ``array``, ``map`` or ``union``.
    """

    kind: str
    logical: str | None = None
    precision: Any = None
    scale: Any = 0
    unit: str | None = None  # Of a time that is a plain number in its column.
    name: str = ""  # Full name of a record, an enum or a fixed.
    aliases: frozenset[str] = frozenset()  # Full names.
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    size: int = 0
    inner: Any = None
    """The :class:`Type` of the items of an array, or of the values of a map; None: it is none."""
    branches: tuple[Type, ...] = ()

    @property
    def members(self) -> tuple[Type, ...]:
        """The types of values that are not null: of a union its other branches, else this type."""
        branches = self.branches if self.kind == "union" else (self,)
        return tuple(branch for branch in branches if branch.kind != "null")

    @property
    def has_members(self) -> bool:
        """Whether its column is a struct with a member for each branch. Two numeric types of one
        kind are one column of the wider type."""
        kinds = {(branch.kind, branch.logical) for branch in self.members}
        numbers = ({("int", None), ("long", None)}, {("float", None), ("double", None)})
        return len(self.members) > 1 and kinds not in numbers

    @property
    def is_decimal(self) -> bool:
        """Whether Avro treats it as a decimal: an invalid logical type is ignored."""
        precision, scale = self.precision, self.scale
        is_whole = self.logical == "decimal" and type(precision) is int and type(scale) is int
        return is_whole and 1 <= precision <= self.digits and 0 <= scale <= precision

    @property
    def digits(self) -> int:
        """How many decimal digits its bytes can always hold."""
        if self.kind != "fixed":
            return 2**31 - 1
        return math.floor(math.log10(2) * (8 * self.size - 1)) if self.size else 0

    def __str__(self) -> str:
        if self.logical == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.kind == "union":
            return shortened(f"union of {', '.join(map(str, self.branches))}")
        return " ".join(filter(None, (self.logical or self.kind, shortened(self.name))))


@dataclass(eq=False)
class AvroField:
    """A field of a record. ``default``: as JSON, or :data:`NO_DEFAULT`."""

    name: str
    type: Type
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()
    doc: str | None = None


TIMES: Final = {
    "time-millis": MILLIS,
    "time-micros": MICROS,
    "topicberg.iso-time": MICROS,
    "timestamp-nanos": EPOCH_NANOS,
    "local-timestamp-nanos": LOCAL_NANOS,
}
"""Times that are plain numbers in their columns."""


def meaning(kind: Type) -> Meaning:
    """Return what the values of a type's column mean; members of a union have their own columns."""
    if kind.has_members or not kind.members:
        return Meaning()
    member = kind.members[0]
    return meaning(member.inner) if member.inner is not None else Meaning(member.unit)


def parse(where: str, schema: RegisteredSchema) -> Type:
    """Return the type that a schema defines; its references define names.

    :raises TableflowError: it is not Avro, refers to a name that is not defined, exceeds the
        limits, or lets a few bytes represent any number of values
    """
    limits.check_size(where, schema)
    parser = _Parser(where)
    with limits.refused(where):
        contents = [json.loads(text) for text in (*dict(schema.references).values(), schema.text)]
        limits.check_unicode(where, contents)
        *_, kind = [parser.type(content, "") for content in contents]
        _Measure(where).check(kind)
    return kind


def parse_record(where: str, schema: RegisteredSchema) -> Type:
    """Return the record that a schema defines, or raise what :func:`parse` raises."""
    kind = parse(where, schema)
    if kind.kind == "bytes":
        raise TableflowError(
            f"{where}: Avro's bytes outside a record are not decoded, as serializers write them "
            "with or without their length",
            hint="of a key: `key: {format: bytes}` keeps its bytes as they are",
        )
    if kind.kind != "record":
        raise TableflowError(
            f"{where}: the schema is not a record but {kind}",
            hint="register a record: a table needs named columns",
        )
    return kind


class _Size(NamedTuple):
    """The size of an expanded type. ``has_bytes``: every value of it takes at least one byte."""

    fields: int = 0
    depth: int = 1
    collections: int = 0
    has_bytes: bool = True


class _Measure:
    """Measures types without expanding them: each one once, however often it is used."""

    def __init__(self, where: str) -> None:
        self.where, self.known = where, dict[int, _Size]()
        self.open: dict[int, bool] = {}
        """Types that are being measured, and whether there are bytes since their start."""

    def check(self, kind: Type) -> None:
        """:raises TableflowError: the type exceeds the limits"""
        size = self.of(kind)
        if size.fields > limits.MAX_FIELDS:
            raise limits.too_many(self.where)
        limits.check_depth(self.where, size.depth)
        if size.collections > limits.MAX_COLLECTIONS:
            raise TableflowError(
                f"{self.where}: the schema has more than {limits.MAX_COLLECTIONS} nested arrays "
                "and maps",
                hint="flatten the schema",
            )

    def of(self, kind: Type) -> _Size:
        key = id(kind)
        if key in self.known:
            return self.known[key]
        if key in self.open:  # recursive: only fields that are skipped may be
            if not self.open[key]:
                raise TableflowError(
                    f"{self.where}: {kind.name} always contains itself",
                    hint="break the cycle: recursive schemas cannot become a table",
                )
            return _Size()
        self.open[key] = False
        size = self.known[key] = self.measured(kind)
        del self.open[key]
        return size

    def measured(self, kind: Type) -> _Size:
        if kind.kind == "record":
            return self.record(kind)
        if kind.kind == "union":
            limits.check_members(self.where, len(kind.members))
            inner = [self.after_bytes(branch) for branch in kind.branches]
            return _together(inner, len(kind.members) if kind.has_members else 0)
        if kind.inner is not None:
            fields, depth, collections, has_bytes = self.after_bytes(kind.inner)
            if kind.kind == "array" and not has_bytes:
                raise TableflowError(
                    f"{self.where}: the items of an array are {kind.inner}, which has no bytes: a "
                    "record of six bytes could claim any number of them",
                    hint="give the items a field",
                )
            return _Size(fields + (1 if kind.kind == "array" else 2), depth + 1, collections + 1)
        for symbol in kind.symbols:
            limits.check_length(f"{self.where}: a symbol of {kind}", symbol)
        if kind.kind == "fixed" and not 0 <= kind.size <= MAX_FIXED_BYTES:
            raise TableflowError(
                f"{self.where}: {kind} has {kind.size} bytes, the limit is {MAX_FIXED_BYTES}",
                hint="register it as bytes",
            )
        return _Size(has_bytes=kind.kind != "null" and (kind.kind != "fixed" or kind.size > 0))

    def record(self, kind: Type) -> _Size:
        inner = []
        for member in kind.fields:
            limits.check_name(self.where, member.name)
            inner.append(self.of(member.type))
            if inner[-1].has_bytes:
                self.open[id(kind)] = True
        has_bytes = any(part.has_bytes for part in inner)
        return _together(inner, len(inner))._replace(has_bytes=has_bytes)

    def after_bytes(self, kind: Type) -> _Size:
        """Return the size of a type that follows at least one byte, such as a count or an index."""
        before, self.open = self.open, dict.fromkeys(self.open, True)
        try:
            return self.of(kind)
        finally:
            self.open = before


def _together(parts: list[_Size], members: int) -> _Size:
    return _Size(
        members + sum(part.fields for part in parts),
        1 + max((part.depth for part in parts), default=0),
        max((part.collections for part in parts), default=0),
    )


class _Parser:
    """Resolves names: one without a namespace is of the enclosing namespace, else of none."""

    def __init__(self, where: str) -> None:
        self.where, self.named = where, dict[str, Type]()

    def type(self, schema: Any, namespace: str) -> Type:
        match schema:
            case list():
                return Type("union", branches=tuple(self.type(part, namespace) for part in schema))
            case str():
                return self.by_name(schema, namespace)
        match schema["type"]:
            case dict() | list() as inner:
                return self.type(inner, namespace)
            case "record" | "error" | "enum" | "fixed":
                return self.define(schema, namespace)
            case "array":
                return Type("array", inner=self.type(schema["items"], namespace))
            case "map":
                return Type("map", inner=self.type(schema["values"], namespace))
            case kind if kind in PRIMITIVES:
                return Type(kind, **_logical(kind, schema))
        return self.by_name(schema["type"], namespace)

    def define(self, schema: Mapping[str, Any], namespace: str) -> Type:
        name = _full_name(schema["name"], schema.get("namespace", namespace) or "")
        inside = name.rpartition(".")[0]
        kind = "record" if schema["type"] == "error" else schema["type"]
        named_type = self.named[name] = Type(
            kind,
            name=name,
            aliases=frozenset(_full_name(alias, inside) for alias in schema.get("aliases", ())),
            symbols=tuple(schema["symbols"]) if kind == "enum" else (),
            size=int(schema["size"]) if kind == "fixed" else 0,
            **_logical(kind, schema),
        )
        for member in schema["fields"] if kind == "record" else ():
            named_type.fields.append(
                AvroField(
                    member["name"],
                    self.type(member["type"], inside),
                    member.get("default", NO_DEFAULT),
                    tuple(member.get("aliases", ())),
                    doc if isinstance(doc := member.get("doc"), str) else None,
                )
            )
        return named_type

    def by_name(self, name: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        for full in (_full_name(name, namespace), name):
            if full in self.named:
                return self.named[full]
        raise TableflowError(
            f"{self.where}: the type {name} is not defined",
            hint="define the type in the schema, or add a reference to the subject that defines it",
        )


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _logical(kind: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    logical, precision = schema.get("logicalType"), schema.get("precision")
    if (kind, logical) not in LOGICAL:
        is_whole = kind in ("int", "long")
        return {"unit": CONNECT_UNITS.get(str(schema.get("connect.name"))) if is_whole else None}
    if logical not in ("decimal", "topicberg.decimal"):
        return {"logical": logical, "unit": TIMES.get(str(logical))}
    return {"logical": logical, "precision": precision, "scale": schema.get("scale", 0)}
