"""JSON Schema: the table's types, and the Spark expression that decodes a record.

:mod:`topicberg.tableflow.formats.json_nodes` has the mapping of types. How a record is read:

- A value of another type than the schema says makes the record bad, also if Spark would let it
  pass: a number for a string, text after the record, invalid UTF-8, half of a surrogate pair, a
  number too large for a double, a decimal with too many digits, a date outside of years 1 to 9999.
- As for JSON Schema, ``1.0`` and ``1e3`` are integers.
- As for Confluent's deserializers, which do not validate by default, a field that is missing or
  null is null even if it is required, a ``default`` is not filled in, and properties that the
  writer's schema does not declare are ignored. Of a repeated name the last value counts.
- Of a union, the first member that the value fits is set; an object fits a member if it has the
  properties that are required there, and the constants. Its numbers pass through a variant, which
  has no negative zero.

Speed comes from reading most records with one call of ``from_json``. It refuses ``1.0`` for an
integer and takes any value as a string; records where that matters are read a second time, with
variants, which tell the types of values.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from topicberg.errors import TableflowError
from topicberg.spark import quote
from topicberg.tableflow.formats import DECODED
from topicberg.tableflow.formats.json_nodes import Kind, Node, read_node
from topicberg.tableflow.subjects import RegisteredSchema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TYPES: dict[Kind, Callable[[], IcebergType]] = {
    "string": StringType,
    "json": StringType,
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamptz": TimestamptzType,
}
_RAW: dict[Kind, str] = {
    "string": "string",
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "binary": "binary",
    "date": "int",
    "timestamp": "bigint",
    "timestamptz": "bigint",
}
"""What ``from_json`` reads; a variant for all others."""
_INEXACT: tuple[Kind, ...] = ("string", "int", "long", "date", "timestamp", "timestamptz")
"""Kinds that take a variant when a record is read for the second time."""
_RANGES: dict[Kind, tuple[int, int]] = {
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "date": (-719_162, 2_932_896),  # days: 0001-01-01 to 9999-12-31
    "timestamp": (-62_135_596_800_000, 253_402_300_799_999),  # milliseconds of the same
    "timestamptz": (-62_135_596_800_000, 253_402_300_799_999),
}
_CORRUPT = "c"
_OPTIONS = {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "columnNameOfCorruptRecord": _CORRUPT,
    "mode": "PERMISSIVE",
}
_NUMBER = r"^-?[0-9][0-9.eE+-]*$"
_SURROGATE = r"\\u[dD][89a-fA-F]"
_PAIRED = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"


def fields(
    subject: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[NestedField]:
    """The columns of an object's schema, or of a union; see :class:`..formats.Format`."""
    root = read_node(subject, schema)
    if root.kind not in ("struct", "union"):
        raise TableflowError(
            f"subject {subject}: the schema is no object with properties",
            hint="a table needs named columns",
        )
    return _fields(root.children, ids)


def _fields(children: Mapping[str, Node], ids: Iterator[int]) -> list[NestedField]:
    return [
        NestedField(
            field_id=next(ids),
            name=name,
            field_type=_iceberg(child, ids),
            required=False,
            doc=child.doc,
        )
        for name, child in children.items()
    ]


def _iceberg(node: Node, ids: Iterator[int]) -> IcebergType:
    match node.kind:
        case "decimal":
            return DecimalType(node.precision, node.scale)
        case "struct" | "union":
            return StructType(*_fields(node.children, ids))
        case "list":
            return ListType(
                element_id=next(ids),
                element_type=_iceberg(node.children["element"], ids),
                element_required=False,
            )
        case "map" | "entries":
            return MapType(
                key_id=next(ids),
                key_type=_iceberg(node.children["key"], ids),
                value_id=next(ids),
                value_type=_iceberg(node.children["value"], ids),
                value_required=False,
            )
    return _TYPES[node.kind]()


def decode(
    records: DataFrame,
    payload: Column,
    writer: RegisteredSchema,
    latest: RegisteredSchema,
    fields: Sequence[NestedField],
    message: str | None = None,
) -> tuple[DataFrame, Column]:
    """The record, as its writer's schema describes it; see :class:`..formats.Format`.

    What is needed several times becomes a column: a lambda would compute it once, too, but Spark
    compiles no code for what is inside of one, and takes five times as long.

    The expression is SQL: as a tree of columns, it would be deeper than the hundred messages
    inside of each other that a client of Spark Connect can send.

    :raises TableflowError: the writer's schema has another type for a column than the table
    """
    from pyspark.sql import functions as F

    subject = f"of schema {writer.schema_id}"
    node = read_node(subject, writer)
    names = {*node.children, *read_node(f"of schema {latest.schema_id}", latest).children}
    # The table has other columns, too: of the key, and of Kafka.
    target = StructType(*(field for field in fields if field.name in names))
    text = f"__topicberg_text{_variable()}"
    sound = f"is_valid_utf8({text}) AND NOT {_unpaired_surrogate(text)}"
    records = records.withColumn(text, payload.cast("string"))
    records = records.withColumn(text, F.expr(f"if({sound}, {text}, NULL)"))
    exact, quick = _Reader(subject, exact=True), _Reader(subject, exact=False)
    record = _let(exact.parsed(text, node), lambda row: exact.record(row, node, target))
    if node.kind == "struct":
        row = f"__topicberg_row{_variable()}"
        records = records.withColumn(row, F.expr(quick.parsed(text, node)))
        record = f"coalesce({quick.record(row, node, target)}, {record})"
    return records, F.expr(record)


class _Reader:
    """SQL that reads JSON text as a value for a column of the table.

    :param exact: with variants, which tell apart what ``from_json`` does not
    """

    def __init__(self, subject: str, *, exact: bool) -> None:
        self.subject = subject
        self.exact = exact

    def read(self, text: str, node: Node, target: IcebergType) -> str:
        """The value; null: the text does not fit."""

        def value(row: str) -> str:
            fits = self.fits(row, node, target)
            return f"if({fits}, {self.value(_first(row), node, target)}, NULL)"

        return _let(self.parsed(text, node), value)

    def parsed(self, text: str, node: Node) -> str:
        """What ``from_json`` reads.

        The text becomes the one element of an array, as Spark does not look at what follows a
        value.
        """
        options = ", ".join(f"'{key}', '{value}'" for key, value in _OPTIONS.items())
        schema = f"r array<{self.raw(node)}>, ok boolean, {_CORRUPT} string"
        wrapped = f"""concat('{{"r":[', {text}, '],"ok":true}}')"""
        return f"from_json({wrapped}, {_string(schema)}, map({options}))"

    def fits(self, row: str, node: Node, target: IcebergType) -> str:
        """Whether there is a value, and of the right type.

        :param row: what was parsed
        """
        first = _first(row)
        whole = f"{row}.{_CORRUPT} IS NULL AND {row}.ok IS NOT NULL AND size({row}.r) = 1"
        present, misfit = self.present(first, node), self.misfit(first, node, target)
        return f"{whole} AND {present} AND NOT {misfit}"

    def record(self, row: str, node: Node, target: StructType) -> str:
        """The table's row and :data:`DECODED`; null: the text does not fit.

        :param row: what was parsed
        """
        first = _first(row)
        if node.kind == "struct":
            marked = _named(target, self.members(first, node, target), marked=True)
        else:
            marked = _let(
                self.value(first, node, target),
                lambda value: (
                    f"if({value} IS NOT NULL, "
                    f"{_named(target, _members(value, target), marked=True)}, NULL)"
                ),
            )
        return f"if({self.fits(row, node, target)}, {marked}, NULL)"

    def is_variant(self, node: Node) -> bool:
        return node.kind in ("json", "decimal", "union") or (self.exact and node.kind in _INEXACT)

    def raw(self, node: Node) -> str:
        """The type that ``from_json`` reads."""
        if self.is_variant(node):
            return "variant"
        children = {name: self.raw(child) for name, child in node.children.items()}
        match node.kind:
            case "list":
                return f"array<{children['element']}>"
            case "map":
                return f"map<string,{children['value']}>"
            case "entries":
                return f"array<{_struct(children)}>"
            case "struct":
                return _struct(children)
        return _RAW[node.kind]

    def present(self, raw: str, node: Node) -> str:
        """Whether there is a value: a variant may be the null of JSON."""
        there = f"{raw} IS NOT NULL"
        return f"({there} AND NOT is_variant_null({raw}))" if self.is_variant(node) else there

    def converts(self, node: Node, target: IcebergType) -> bool:
        """Whether the table's value is another one than what ``from_json`` reads."""
        match node.kind, target:
            case "struct", StructType():
                columns = dict(_columns(target))
                return list(columns) != list(node.children) or any(
                    self.converts(child, columns[name]) for name, child in node.children.items()
                )
            case "list", ListType():
                return self.converts(node.children["element"], target.element_type)
            case "map", MapType():
                return self.converts(node.children["value"], target.value_type)
        return self.raw(node) != _spark(target)

    def value(self, raw: str, node: Node, target: IcebergType) -> str:
        """The table's value; null if the raw one does not fit."""
        if not self.converts(node, target):
            return raw
        match node.kind, target:
            case "struct", StructType():
                members = self.members(raw, node, target)
                return f"if({raw} IS NOT NULL, {_named(target, members)}, NULL)"
            case "union", StructType():
                tried = [
                    self.member(raw, name, child, target) for name, child in node.children.items()
                ]
                return f"if({self.present(raw, node)}, coalesce({', '.join(tried)}), NULL)"
            case "list", ListType():
                element = node.children["element"]
                return _each(raw, lambda x: self.value(x, element, target.element_type))
            case "map", MapType():
                value = node.children["value"]
                key, x = _variable(), _variable()
                body = self.value(x, value, target.value_type)
                return f"transform_values({raw}, ({key}, {x}) -> {body})"
            case "entries", MapType():
                return self.entries(raw, node, target)
        return self.scalar(raw, node, target)

    def members(self, raw: str, node: Node, target: StructType) -> dict[str, str]:
        """The values of a struct's fields that the table has."""
        return {
            name: self.value(f"{raw}.{quote(name)}", node.children[name], column)
            for name, column in _columns(target)
            if name in node.children
        }

    def unlike(self, node: Node, target: IcebergType) -> TableflowError:
        return TableflowError(
            f"the schema {self.subject} has a {node.kind} where the table has {target}",
            hint="disable Tableflow for the topic and enable it again, which makes a new table",
        )

    def scalar(self, raw: str, node: Node, target: IcebergType) -> str:
        kind, column = node.kind, _spark(target)
        if column.partition("(")[0] not in _TARGETS.get(kind, ()):
            raise self.unlike(node, target)
        match kind:
            case "json":
                return f"if(is_variant_null({raw}), NULL, to_json({raw}))"
            case "decimal":
                return f"CAST({_decimal(raw, node)} AS {column})"
            case "string" if self.exact:
                return f"if({_is_string(raw)}, CAST({raw} AS string), NULL)"
        if kind not in _RANGES:
            return f"CAST({raw} AS {column})"
        if self.exact:
            low, high = _RANGES[kind]
            number = _let(
                _number(raw, "decimal(38,18)"),
                lambda n: f"if({n} = floor({n}) AND {n} >= {low} AND {n} <= {high}, {n}, NULL)",
            )
            number = f"CAST({number} AS bigint)"
        else:
            number = raw
        match kind:
            case "date":
                return f"date_from_unix_date(CAST({number} AS int))"
            case "timestamptz":
                return f"timestamp_millis({number})"
            case "timestamp":
                seconds = f"CAST({number} / CAST(1000 AS decimal(4,0)) AS decimal(18,6))"
                return f"TIMESTAMP_NTZ'1970-01-01' + make_dt_interval(0, 0, 0, {seconds})"
        return f"CAST({number} AS {column})"

    def entries(self, raw: str, node: Node, target: MapType) -> str:
        """An array of keys and values as a map; null if a key is missing."""
        key, value = node.children["key"], node.children["value"]
        pairs = _each(
            raw,
            lambda x: (
                f"struct({self.value(f'{x}.key', key, target.key_type)} AS key, "
                f"{self.value(f'{x}.value', value, target.value_type)} AS value)"
            ),
        )
        return _let(
            pairs,
            lambda ps: (
                f"if({_exists(ps, lambda x: f'{x}.key IS NULL')}, NULL, map_from_entries({ps}))"
            ),
        )

    def member(self, raw: str, name: str, node: Node, target: StructType) -> str:
        """A union with this member alone, if the value fits it; else null."""
        columns = dict(_columns(target))
        if name not in columns:
            raise self.unlike(node, target)
        read = _Reader(self.subject, exact=True).read(f"to_json({raw})", node, columns[name])
        tried = f"if({_discriminated(raw, node)}, {read}, NULL)"
        return _let(tried, lambda x: f"if({x} IS NOT NULL, {_named(target, {name: x})}, NULL)")

    def misfit(self, raw: str, node: Node, target: IcebergType) -> str:
        """Whether there is a value of the wrong type; never null."""
        found: list[str] = []
        match node.kind, target:
            case "struct", StructType():
                for name, column in _columns(target):
                    child = node.children.get(name)
                    if child is not None and self.can_misfit(child):
                        found.append(self.misfit(f"{raw}.{quote(name)}", child, column))
            case "list", ListType() if self.can_misfit(element := node.children["element"]):
                found.append(_exists(raw, lambda x: self.misfit(x, element, target.element_type)))
            case "map", MapType() if self.can_misfit(value := node.children["value"]):
                values = f"map_values({raw})"
                found.append(_exists(values, lambda x: self.misfit(x, value, target.value_type)))
            case "entries", MapType():
                found.append(f"{raw} IS NOT NULL AND {self.value(raw, node, target)} IS NULL")
                for name, column in (("key", target.key_type), ("value", target.value_type)):
                    child = node.children[name]
                    if self.can_misfit(child):
                        found.append(
                            _exists(
                                raw,
                                lambda x, name=name, child=child, column=column: self.misfit(  # type: ignore[misc]
                                    f"{x}.{name}", child, column
                                ),
                            )
                        )
            case "string", _ if not self.exact:
                found.append(_like_another_type(raw))
            case kind, _ if kind in _RANGES and not self.exact:
                if self.can_misfit(node):
                    low, high = _RANGES[kind]
                    found.append(f"{raw} < {low} OR {raw} > {high}")
            case "float" | "double", _:
                found.append(f"abs({raw}) = double('infinity')")
            case _ if self.can_misfit(node):
                found.append(
                    f"{self.present(raw, node)} AND {self.value(raw, node, target)} IS NULL"
                )
        return _any(found)

    def can_misfit(self, node: Node) -> bool:
        """Whether ``from_json`` alone does not tell if a value fits."""
        match node.kind:
            case "struct" | "list" | "map":
                return any(map(self.can_misfit, node.children.values()))
            case "json" | "boolean" | "binary":
                return False
            case "int" | "long":
                return self.exact
        return True


_TARGETS: dict[Kind, tuple[str, ...]] = {
    "string": ("string",),
    "json": ("string",),
    "boolean": ("boolean",),
    "int": ("int", "bigint", "float", "double", "decimal"),
    "long": ("bigint", "double", "decimal"),
    "float": ("float", "double"),
    "double": ("double",),
    "decimal": ("decimal",),
    "binary": ("binary",),
    "date": ("date",),
    "timestamp": ("timestamp_ntz",),
    "timestamptz": ("timestamp",),
}
"""The types of columns that a value may go to, in Spark's words."""


def _columns(target: StructType) -> list[tuple[str, IcebergType]]:
    return [(field.name, field.field_type) for field in target.fields]


def _members(struct: str, target: StructType) -> dict[str, str]:
    return {name: f"{struct}.{quote(name)}" for name, _ in _columns(target)}


def _named(target: StructType, values: Mapping[str, str], *, marked: bool = False) -> str:
    """A struct of the target's columns; those without a value are null.

    :param marked: with :data:`DECODED`
    """
    members = [
        f"{_string(name)}, {values.get(name) or f'CAST(NULL AS {_spark(column)})'}"
        for name, column in _columns(target)
    ]
    if marked:
        members.append(f"{_string(DECODED)}, true")
    return f"named_struct({', '.join(members)})"


def _first(row: str) -> str:
    """The record in what was parsed."""
    return f"{row}.r[0]"


def _struct(fields: Mapping[str, str]) -> str:
    return f"struct<{','.join(f'{quote(name)}:{kind}' for name, kind in fields.items())}>"


def _spark(kind: IcebergType) -> str:
    """The type in Spark's words."""
    match kind:
        case StructType():
            return _struct({name: _spark(column) for name, column in _columns(kind)})
        case ListType():
            return f"array<{_spark(kind.element_type)}>"
        case MapType():
            return f"map<{_spark(kind.key_type)},{_spark(kind.value_type)}>"
        case TimestamptzType():
            return "timestamp"
        case TimestampType():
            return "timestamp_ntz"
        case LongType():
            return "bigint"
    return str(kind)


_numbers = itertools.count()


def _variable() -> str:
    """A name that no other lambda's variable has."""
    return f"_{next(_numbers)}"


def _each(array: str, body: Callable[[str], str]) -> str:
    name = _variable()
    return f"transform({array}, {name} -> {body(name)})"


def _exists(array: str, body: Callable[[str], str]) -> str:
    name = _variable()
    return f"exists({array}, {name} -> {body(name)})"


def _let(value: str, body: Callable[[str], str]) -> str:
    """``body`` of a value that is computed once: SQL has no other way inside of an expression."""
    return f"{_each(f'array({value})', body)}[0]"


def _string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _any(conditions: Sequence[str]) -> str:
    """Whether one is true; never null."""
    if not conditions:
        return "false"
    return f"coalesce({' OR '.join(f'({one})' for one in conditions)}, false)"


def _unpaired_surrogate(text: str) -> str:
    """Half of a surrogate pair, as an escape: no character; Spark would make a ``?`` of it."""
    unpaired = f"regexp_replace({text}, {_string(_PAIRED)}, ' ') RLIKE {_string(_SURROGATE)}"
    some = " OR ".join(f"contains({text}, {_string(escape)})" for escape in (r"\ud", r"\uD"))
    return f"(({some}) AND {unpaired})"


def _like_another_type(text: str) -> str:
    """Whether what ``from_json`` read as a string may have been no string."""
    return _any(
        [
            f"{text} >= '-' AND {text} < ':' AND {text} RLIKE {_string(_NUMBER)}",
            f"startswith({text}, '{{') OR startswith({text}, '[')",
            f"{text} IN ('true', 'false')",
        ]
    )


def _is_string(variant: str) -> str:
    return f"schema_of_variant({variant}) = 'STRING'"


def _number(variant: str, kind: str) -> str:
    """A number as a decimal; null for other types, and if it is too large."""
    is_number = f"schema_of_variant({variant}) RLIKE '^(BIGINT|DOUBLE|DECIMAL)'"
    return f"if({is_number}, try_variant_get({variant}, '$', '{kind}'), NULL)"


def _decimal(variant: str, node: Node) -> str:
    """A number, or Connect's bytes: base64 of the unscaled value, big-endian; null: no such."""
    precision, scale = node.precision, node.scale
    number = _number(variant, f"decimal({precision},{scale})")
    finer = _number(variant, f"decimal(38,{max(38 - (precision - scale), min(38, scale + 6))})")
    avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}

    def unscaled(raw: str) -> str:
        # Avro's bytes are the length, doubled for a short one, and Connect's bytes.
        framed = f"concat(unhex(lpad(hex(length({raw}) * 2), 2, '0')), {raw})"
        framed = f"if(length({raw}) BETWEEN 1 AND 16, {framed}, NULL)"
        return f"from_avro({framed}, {_string(json.dumps(avro))}, map('mode', 'PERMISSIVE'))"

    base64 = f"if({_is_string(variant)}, try_to_binary(CAST({variant} AS string), 'base64'), NULL)"
    exact = f"if({finer} = {number} OR {finer} IS NULL, {number}, NULL)"
    return f"coalesce({exact}, {_let(base64, unscaled)})"


def _discriminated(variant: str, node: Node) -> str:
    """Whether a value has what a member of a union requires beyond types."""

    def at(name: str) -> str:
        path = f"$[{json.dumps(name, ensure_ascii=False)}]"
        return f"try_variant_get({variant}, {_string(path)}, 'variant')"

    def one_of(value: str, constants: Sequence[object]) -> str:
        texts = (_string(json.dumps(constant, ensure_ascii=False)) for constant in constants)
        return f"to_json({value}) IN ({', '.join(texts)})"

    found = ["true"]
    if node.constants and node.kind in _COMPARED:
        found.append(one_of(variant, node.constants))
    if node.kind == "struct":
        found += [f"{at(name)} IS NOT NULL" for name in sorted(node.required)]
        found += [
            # As everywhere, null is let pass: the schema may allow it beside the constants.
            f"coalesce({one_of(at(name), [None, *child.constants])}, true)"
            for name, child in node.children.items()
            if child.constants and child.kind in _COMPARED
        ]
    return f"({' AND '.join(found)})"


_COMPARED: tuple[Kind, ...] = ("string", "boolean", "int", "long")
"""Kinds whose JSON text is the same for the same value."""
