"""JSON Schema, draft-04 to 2020-12, as a tree of the types of a table.

The mapping is that of Confluent's JSON Schema converters (Connect's ``JsonSchemaData``, Flink's
"Data Type Mappings"), which "Schemas with Tableflow" follows:

- ``integer`` is a long, ``number`` a double; ``connect.type`` narrows them (int8, int16, int32,
  int64, float32, float64), and makes ``binary`` of a string (``bytes``) and a map of an object or
  of an array of key and value (``map``);
- the titles ``org.apache.kafka.connect.data.Date``, ``Time``, ``Timestamp`` and ``Decimal`` are
  logical types; a ``Time`` is an int (milliseconds of the day), as Spark writes no Iceberg time;
  ``flink.type: timestamp`` is a timestamp without time zone; a Decimal whose schema has no
  ``connect.decimal.precision`` has 38 digits;
- an object with ``properties`` is a struct, sorted by ``connect.index``; one with typed
  ``additionalProperties`` only is a map, if ``patternProperties`` have values of the same type;
- one type and null, in ``type``, ``oneOf`` or ``anyOf``, is that type; several types are a struct
  with one field for each, ``connect_union_field_0`` and so on, null not counted;
- ``allOf`` and the keywords beside a ``$ref`` are merged; what is a number and an integer is an
  integer. The properties that the branches of ``oneOf``, ``anyOf``, ``if`` and ``dependentSchemas``
  add to an object with ``properties`` become its properties; one that several branches declare is a
  choice of their types;
- an ``enum`` or ``const`` of strings is a string;
- a string with ``format: date-time`` is a time, if the spec of the topic says so;
- in topics with a change log, the titles of Debezium's types (:data:`_DEBEZIUM`) are logical types,
  and a Decimal of more than 38 digits, or of unknown precision, is a string of all its digits.

Everything that has no type in a table is a string with the JSON text: a schema without a type
(``{}``, ``true``), an object or an array that does not declare its content, an object without
``properties`` whose values are of several types, a tuple.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from textwrap import shorten
from typing import Any, Literal
from urllib.parse import urljoin

from jsonschema.validators import Draft7Validator, extend, validator_for
from referencing import Registry, Resource, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT3, DRAFT4, DRAFT7, specification_with

from topicberg.errors import TableflowError
from topicberg.formats import limits
from topicberg.formats.connect import LOGICAL_TYPES
from topicberg.formats.json.syntax import type_of
from topicberg.formats.meanings import CONNECT_UNITS, JSON_TEXT, NULLS, Meaning
from topicberg.formats.subjects import RegisteredSchema

UNION_FIELD = "connect_union_field_"
MAX_OBJECTS = 2 * limits.MAX_FIELDS  # The most JSON objects of a schema and its references.
MAX_PATH = 4 * limits.MAX_DEPTH
"""The most schemas that a schema leads to by properties, items, references and branches."""
_Simple = Literal["string", "boolean", "int", "long", "float", "double", "decimal", "binary"]
_Time = Literal["date", "timestamp", "timestamptz", "date-time"]
"""``date-time``: a string with a time of RFC 3339."""
_Number = Literal["any-float", "any-double", "decimal-text", "variable-decimal"]
"""Of Connect and Debezium, see ``connect.py``. ``any-``: NaN and infinity are text."""
_Moment = Literal["timestamp-micros", "timestamp-nanos", "zoned-timestamp"]
_Iso = Literal["iso-timestamp", "iso-date", "iso-time"]
_Nested = Literal["list", "map", "entries", "struct", "union"]
"""Children of a list: element; of a map, a JSON object, and of entries, an array of objects with
key and value: key, value."""
Kind = Literal[_Simple, _Time, _Number, _Moment, _Iso, _Nested, "json"]
"""``json``: anything, as its JSON text."""


@dataclass(frozen=True)
class Node:
    """The type of a value.

    ``children``: of a struct, union, list or map. ``required``: of a struct. ``constants``: the
    only allowed values, none: any. ``name``: the title, or the name in a reference; distinguishes
    the members of a union. ``opening``: the first characters that the text of a ``json`` value may
    have: ``{`` for an object, ``[`` for an array, ``n`` for null; empty: any type.
    ``conversions``: see :mod:`.conversions`. ``is_closed``: an object has no properties but those
    that are declared; the type of its column does not depend on that. ``unit``: of a time that is
    a plain number in its column.
    """

    kind: Kind
    children: dict[str, Node] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    constants: tuple[Any, ...] = ()
    precision: int = 38
    scale: int = 0
    doc: str | None = None
    name: str | None = None
    opening: str = ""
    conversions: tuple[str, ...] = ()
    is_closed: bool = field(default=False, compare=False)
    unit: str | None = None

    @property
    def meaning(self) -> Meaning:
        """What the values of its column mean."""
        match self.kind:
            case "list":
                return self.children["element"].meaning
            case "map" | "entries":
                return self.children["value"].meaning._replace(keys=self.children["key"].unit)
            case "json":
                return Meaning(NULLS if self.opening == "n" else JSON_TEXT)
        return Meaning(self.unit)

    def __hash__(self) -> int:
        # Of constants that Python takes for equal, 1 and 1.0 are one in JSON; 1 and true are not.
        constants = repr([_whole(constant) for constant in self.constants])
        return hash((self.kind, frozenset(self.children), self.required, constants))


def _whole(constant: Any) -> Any:
    """Return a constant of a schema, without a point if it is a whole number."""
    return int(constant) if isinstance(constant, float) and constant.is_integer() else constant


@dataclass(frozen=True)
class _Part:
    """One of several schemas that a value must fit. ``path``: those that led here, for cycles."""

    schema: dict[str, Any]
    resolver: Any
    path: tuple[int, ...]


_CONNECT = "org.apache.kafka.connect.data."
_NUMBERS: dict[Any, Kind] = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
}
ANY: dict[Kind, Kind] = {"float": "any-float", "double": "any-double"}
_TITLES: dict[Any, Kind] = {
    f"{_CONNECT}Date": "date",
    f"{_CONNECT}Time": "int",
    f"{_CONNECT}Timestamp": "timestamptz",
}
_DECIMAL = f"{_CONNECT}Decimal"
_TIME, _DATA = "io.debezium.time.", "io.debezium.data."
_DEBEZIUM: dict[Any, tuple[tuple[str, ...], Kind]] = {
    f"{_TIME}Date": (("integer",), "date"),
    f"{_TIME}Timestamp": (("integer",), "timestamp"),
    f"{_TIME}MicroTimestamp": (("integer",), "timestamp-micros"),
    f"{_TIME}NanoTimestamp": (("integer",), "timestamp-nanos"),
    f"{_TIME}ZonedTimestamp": (("string",), "zoned-timestamp"),
    f"{_TIME}Time": (("integer",), "int"),
    f"{_TIME}IsoDate": (("string",), "iso-date"),
    f"{_TIME}IsoTimestamp": (("string",), "iso-timestamp"),
    f"{_TIME}IsoTime": (("string",), "iso-time"),
    f"{_DATA}VariableScaleDecimal": (("object",), "variable-decimal"),
}
"""Title → the JSON types that it is for, and the kind."""
LOGICAL_KINDS: dict[str, Kind] = {
    logical: kind
    for name, (_, logical) in LOGICAL_TYPES.items()
    if (kind := _TITLES.get(name) or _DEBEZIUM.get(name, ((), None))[1]) is not None
} | {"topicberg.decimal": "decimal-text"}
"""The kinds in JSON of what Avro has as a logical type of Connect or Debezium."""
_CHOICES = ("oneOf", "anyOf")
_NOT_KEYS = ("list", "map", "entries", "struct", "union")
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "object": ("properties", "additionalProperties"),
    "array": ("items", "prefixItems"),
    "string": ("pattern", "minLength", "maxLength", "format", "contentEncoding"),
    "number": ("minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"),
}
"""A schema without ``type`` that has one of these keywords means that type."""
_NUMERIC = {"integer", "number"}


def identity(schema: RegisteredSchema) -> str | None:
    """Return the title of a schema, or of the one that it only refers to, else its id, or None."""
    where = schema.label
    with limits.refused(where):
        contents, resolver, reader = _opened(where, schema)
        parts = reader.expand(contents, resolver, (), "", is_resolved=True)
    for part in parts:
        if name := part.schema.get("title") or reader.id(part.schema):
            return str(name).removesuffix("#")
        if "$ref" not in part.schema:
            break
    return None


@limits.remembered
def read_node(where: str, schema: RegisteredSchema) -> Node:
    """Return the tree of a registered schema.

    :raises TableflowError: it contains itself, refers to a missing schema, is too large, or has
        fields that a table cannot distinguish
    """
    with limits.refused(where):
        contents, resolver, reader = _opened(where, schema, check=True)
        node = reader.node(reader.expand(contents, resolver, (), "", is_resolved=True), "")
        limits.check_depth(where, _depth(node))
    return node


def _depth(node: Node) -> int:
    return 1 + max(map(_depth, node.children.values()), default=0)


def _opened(
    where: str, schema: RegisteredSchema, *, check: bool = False
) -> tuple[Any, Any, _Reader]:
    """Return the parsed schema, the resolver of its references, and its reader.

    :param check: whether to check that it is a JSON Schema, which takes long
    """
    limits.check_size(where, schema)
    try:
        contents = json.loads(schema.text)
        references = [(name, json.loads(text)) for name, text in schema.references]
        limits.check_unicode(where, [contents, references])
    except (ValueError, RecursionError) as error:
        raise TableflowError(f"{where}: the schema is not JSON: {error}") from None
    if check:
        _check(where, [contents, *(text for _, text in references)])
    dialect = _dialect(contents)
    root = dialect.create_resource(contents)
    resources = [(name, _dialect(text).create_resource(text)) for name, text in references]
    bases = [resource.id() or "" for resource in (root, *(resource for _, resource in resources))]
    try:
        registry: Registry[Any] = Registry().with_resources(
            (urljoin(base, name), resource) for name, resource in resources for base in {"", *bases}
        )
        resolver = registry.resolver_with_root(root)
    except ValueError as error:
        raise TableflowError(f"{where}: the schema has an unusable $id: {error}") from None
    return contents, resolver, _Reader(where, dialect, schema)


def _check(where: str, schemas: Sequence[Any]) -> None:
    """Refuse what is not a JSON Schema, and schemas that are too large."""
    if sum(map(_objects, schemas)) > MAX_OBJECTS:
        raise limits.too_many(where)
    for schema in schemas:
        errors = _checker(validator_for(schema, default=Draft7Validator)).iter_errors(schema)
        if (error := next(errors, None)) is not None:
            reason = shorten(error.message, 200, placeholder="…")
            raise TableflowError(f"{where}: the schema is not a JSON Schema: {reason}")


@cache
def _checker(dialect: Any) -> Any:
    """Return the validator of a dialect's schemas, without the search for duplicate items. That
    search takes hours on large schemas. Formats are not checked either: patterns are not used, and
    Python's regular expressions are other ones than those of JSON Schema."""
    meta = dialect.META_SCHEMA
    return extend(validator_for(meta, default=dialect), {"uniqueItems": lambda *_: None})(meta)


def _objects(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_objects, value.values()))
    return sum(map(_objects, value)) if isinstance(value, list) else 0


def _dialect(schema: Any) -> Specification[Any]:
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    return specification_with(str(declared), default=DRAFT7)


class _Reader:
    def __init__(self, subject: str, dialect: Specification[Any], schema: RegisteredSchema) -> None:
        self.subject, self.dialect, self.size = subject, dialect, 0
        self.parses_times = schema.options.parses_times
        self.has_connect_types = schema.has_connect_types

    def fail(self, where: str, problem: str, hint: str) -> TableflowError:
        place = f"field {where}" if where else "the schema"
        return TableflowError(f"{self.subject}: {place} {problem}", hint=hint)

    def id(self, schema: dict[str, Any]) -> Any:
        return schema.get("id" if self.dialect in (DRAFT3, DRAFT4) else "$id")

    def expand(
        self,
        schema: Any,
        resolver: Any,
        path: tuple[int, ...],
        where: str,
        *,
        is_resolved: bool = False,
    ) -> tuple[_Part, ...]:
        """Return a schema with the schemas that it refers to and merges by ``allOf``.

        :param is_resolved: the resolver has the schema's ``$id``, as of the root and of references
        """
        if not isinstance(schema, dict):  # it is true or false
            return ()
        if id(schema) in path:
            raise self.fail(
                where, "contains itself", "break the cycle: recursive schemas cannot become a table"
            )
        self.size += 1
        if self.size > limits.MAX_FIELDS:
            raise limits.too_many(self.subject)
        if len(path) >= MAX_PATH:
            raise limits.too_deep(self.subject)
        path = (*path, id(schema))
        resource = Resource.from_contents(schema, default_specification=self.dialect)
        if not is_resolved and resource.id() is not None:
            resolver = resolver.in_subresource(resource)
        parts: tuple[_Part, ...] = (_Part(schema, resolver, path),)
        if isinstance(reference := schema.get("$ref"), str):
            try:
                target = resolver.lookup(reference)
            except (Unresolvable, ValueError):
                raise self.fail(
                    where,
                    f"refers to {reference}, which does not exist",
                    "define it in the schema, or register the schema with a reference of that name",
                ) from None
            parts += self.expand(target.contents, target.resolver, path, where, is_resolved=True)
        for member in schema.get("allOf", ()):
            parts += self.expand(member, resolver, path, where)
        return parts

    def within(self, part: _Part, schema: Any, where: str) -> tuple[_Part, ...]:
        return self.expand(schema, part.resolver, part.path, where)

    def node(self, parts: Sequence[_Part], where: str, kind: str | None = None) -> Node:
        """:param kind: the type to take if ``type`` allows several"""
        if kind is None:
            rest, branches = self.choice(parts, where)
            if branches:
                return self.union([self.node((*branch, *rest), where) for branch in branches])
            kinds = _types(parts)
            if len(kinds) > 1:
                return self.union([self.node(parts, where, member_kind) for member_kind in kinds])
            kind = next(iter(kinds), None)
        typed, doc = self.of_kind(parts, where, kind), _get(parts, "description")
        has_unit = typed.kind in ("int", "long", "iso-time")
        return replace(
            typed,
            constants=tuple(_constants(parts) or ()),
            doc=doc if isinstance(doc, str) else None,
            name=_name(parts),
            unit=CONNECT_UNITS.get(str(_get(parts, "title"))) if has_unit else None,
        )

    def choice(
        self, parts: Sequence[_Part], where: str
    ) -> tuple[Sequence[_Part], list[tuple[_Part, ...]]]:
        """Return the parts without the first ``oneOf`` or ``anyOf`` that declares types, and these.

        Null is none of them. An object that has properties itself has no choice: :meth:`declared`.
        """
        if any("properties" in part.schema for part in parts):
            return parts, []
        for number, part in enumerate(parts):
            for keyword in _CHOICES:
                branches = [self.within(part, b, where) for b in part.schema.get(keyword, ())]
                typed = [b for b in branches if not b or _types(b) or self.choice(b, where)[1]]
                if typed:
                    # If one branch allows anything, that is the type.
                    open_branches = (b for b in branches if b and all(map(_allows_all, b)))
                    typed = [*islice(open_branches, 1)] or typed
                    others = {k: v for k, v in part.schema.items() if k != keyword}
                    rest = (*parts[:number], replace(part, schema=others), *parts[number + 1 :])
                    return rest, typed
        return parts, []

    def of_kind(self, parts: Sequence[_Part], where: str, kind: str | None) -> Node:
        title, connect = _get(parts, "title"), _get(parts, "connect.type")
        if title == _DECIMAL and kind in ("number", "integer", "string"):
            return self.decimal(parts, where)
        types, typed = _DEBEZIUM.get(title, ((), "json"))
        if self.has_connect_types and kind in types:
            return Node(typed)
        match kind:
            case "boolean":
                return Node("boolean")
            case "string":
                if connect == "bytes":
                    return Node("binary")
                is_time = self.parses_times and _get(parts, "format") == "date-time"
                return Node("date-time" if is_time else "string")
            case "integer" | "number":
                if _get(parts, "flink.type") == "timestamp":
                    return Node("timestamp")
                default: Kind = "long" if kind == "integer" else "double"
                number = _TITLES.get(title) or _NUMBERS.get(connect, default)
                return Node(ANY.get(number, number) if self.has_connect_types else number)
            case "array":
                return self.array(parts, where, connect)
            case "object":
                return self.object(parts, where)
        return Node("json", opening="n" if _get(parts, "type") in ("null", ["null"]) else "")

    def decimal(self, parts: Sequence[_Part], where: str) -> Node:
        declared = _get(parts, "connect.parameters")
        parameters: dict[str, Any] = declared if isinstance(declared, dict) else {}
        digits = parameters.get("connect.decimal.precision", parameters.get("precision", 38))
        try:
            precision, scale = int(digits), int(parameters.get("scale", 0))
        except (TypeError, ValueError):
            precision, scale = 0, 0
        if self.has_connect_types:  # as in formats/connect.py
            precision = max(precision, scale)
        declares = {"connect.decimal.precision", "precision"} & parameters.keys()
        if self.has_connect_types and (precision > 38 or not declares) and abs(scale) <= 20_000:
            return Node("decimal-text", scale=scale)
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise self.fail(
                where,
                f"is a decimal with the connect.parameters {json.dumps(parameters)}",
                "use a precision from 1 to 38 and a scale up to it",
            )
        return Node("decimal", precision=precision, scale=scale)

    def array(self, parts: Sequence[_Part], where: str, connect: Any) -> Node:
        for part in parts:
            items = part.schema.get("items")
            if isinstance(items, dict) and "prefixItems" not in part.schema:
                element = self.node(self.within(part, items, where), f"{where}.element")
                match element.kind, element.children:
                    case "struct", {"key": key, "value": value}:
                        if connect == "map" and key.kind not in _NOT_KEYS:
                            return Node("entries", {"key": key, "value": value})
                return Node("list", {"element": element})
        return Node("json", opening="[")

    def object(self, parts: Sequence[_Part], where: str) -> Node:
        if any("properties" in part.schema for part in parts) and (
            properties := self.declared(parts, where, frozenset())
        ):
            return self.struct(parts, properties, where)
        for part in parts:
            values = part.schema.get("additionalProperties")
            if isinstance(values, dict) and values:
                value = self.node(self.within(part, values, where), f"{where}.value")
                kinds = _different([value, *self.of_patterns(parts, where)])
                if len(kinds) > 1 and (value := _union(kinds)).kind == "union":
                    break
                return Node("map", {"key": Node("string"), "value": value})
        return Node("json", opening="{", is_closed=_is_closed(parts))

    def of_patterns(self, parts: Sequence[_Part], where: str) -> list[Node]:
        """Return the types of values whose names match a pattern: JSON text without a column."""

        def of_pattern(part: _Part, values: Any) -> Node:
            try:
                return self.node(self.within(part, values, where), where)
            except TableflowError:
                return Node("json")

        return [
            of_pattern(part, values)
            for part in parts
            for values in part.schema.get("patternProperties", {}).values()
            if values is not False
        ]

    def declared(
        self, parts: Iterable[_Part], where: str, outer: frozenset[str]
    ) -> dict[str, list[tuple[_Part, ...]]]:
        """Return the properties of the object and its branches, each with its alternatives."""
        inner_parts: dict[str, tuple[_Part, ...]] = {}
        for part in parts:
            for name, schema in part.schema.get("properties", {}).items():
                if schema is not False and name not in outer:
                    inner = self.within(part, schema, join(where, name))
                    inner_parts[name] = (*inner_parts.get(name, ()), *inner)
        added: dict[str, list[tuple[_Part, ...]]] = {}
        for inside in [
            self.within(part, b, where) for part in parts for b in _branches(part.schema)
        ]:
            for name, choices in self.declared(inside, where, outer | inner_parts.keys()).items():
                added.setdefault(name, []).extend(choices)
        return {**added, **{name: [schema] for name, schema in inner_parts.items()}}

    def union(self, members: Sequence[Node]) -> Node:
        union_node = _union(members)
        if union_node.kind == "union":
            limits.check_members(self.subject, len(union_node.children))
        return union_node

    def struct(
        self, parts: Sequence[_Part], properties: dict[str, list[tuple[_Part, ...]]], where: str
    ) -> Node:
        indexes = {name: _get(schema, "connect.index") for name, (schema, *_) in properties.items()}
        position = {
            name: index if isinstance(index, int) else number
            for number, (name, index) in enumerate(indexes.items())
        }
        folded: dict[str, str] = {}
        for name in properties:
            if not name:
                raise self.fail(where, "has a property without a name", "give it a name")
            limits.check_name(self.subject, name)
            if (other := folded.setdefault(name.casefold(), name)) != name:
                raise self.fail(
                    join(where, name),
                    f"differs from {join(where, other)} only in case",
                    "rename one of them: Spark and Snowflake cannot tell such columns apart",
                )
        required = [part.schema.get("required") for part in parts]
        return Node(
            "struct",
            {
                # Several branches may declare it.
                name: self.union(
                    _different(self.node(c, join(where, name)) for c in properties[name])
                )
                for name in sorted(properties, key=position.__getitem__)
            },
            required=frozenset(
                name for names in required if isinstance(names, list) for name in names
            ),
            is_closed=_is_closed(parts),
        )


def _is_closed(parts: Sequence[_Part]) -> bool:
    """Return whether an object may have no other properties than the declared ones."""
    if any("patternProperties" in part.schema for part in parts):
        return False
    closing = ("additionalProperties", "unevaluatedProperties")
    return any(part.schema.get(keyword) is False for part in parts for keyword in closing)


def _branches(schema: dict[str, Any]) -> list[Any]:
    """Return the schemas of the alternatives that add to an object's own."""
    return [
        *(branch for keyword in _CHOICES for branch in schema.get(keyword, ())),
        *(schema[keyword] for keyword in ("then", "else") if keyword in schema),
        *schema.get("dependentSchemas", {}).values(),
        *schema.get("dependencies", {}).values(),
    ]


def plain(node: Node) -> Node:
    """Return a type without what only names or describes it."""
    return replace(node, doc=None, name=None)


def _different(nodes: Iterable[Node]) -> list[Node]:
    """Return the first node of each type."""
    different: dict[Node, Node] = {}
    for node in nodes:
        different.setdefault(plain(node), node)
    return list(different.values())


def _union(members: Sequence[Node]) -> Node:
    """Return the common type of all members, or a struct with one field for each."""
    first = members[0]
    if len(members) == 1:
        return first
    kinds = {(member.kind, member.precision, member.scale, member.unit) for member in members}
    if len(kinds) == 1 and not first.children:
        constants = tuple(value for member in members for value in member.constants)
        openings = [member.opening for member in members]
        return Node(
            first.kind,
            constants=constants if all(member.constants for member in members) else (),
            precision=first.precision,
            scale=first.scale,
            opening="".join(dict.fromkeys(openings)) if all(openings) else "",
            unit=first.unit,
        )
    return Node("union", {f"{UNION_FIELD}{n}": member for n, member in enumerate(members)})


def _name(parts: Sequence[_Part]) -> str | None:
    if isinstance(title := _get(parts, "title"), str):
        return title
    reference = _get(parts, "$ref")
    return reference.rpartition("/")[2] if isinstance(reference, str) else None


def join(where: str, name: str) -> str:
    """Return the path of a value inside of another one, or of the record."""
    return f"{where}.{name}" if where else name


def _get(parts: Iterable[_Part], keyword: str) -> Any:
    return next((part.schema[keyword] for part in parts if keyword in part.schema), None)


def _constants(parts: Iterable[_Part]) -> list[Any] | None:
    for part in parts:
        if "const" in part.schema:
            return [part.schema["const"]]
        if isinstance(values := part.schema.get("enum"), list):
            return values
    return None


def _types(parts: Sequence[_Part]) -> list[str]:
    """Return the JSON types of a value without null, declared or implied; none: any. They are those
    of the first part that declares some. A number is an integer if another part says so; other
    types that no value can have stay, as members of a union that have columns."""
    if (declared := _get(parts, "type")) is None:
        if constants := _constants(parts):
            declared = list(dict.fromkeys(map(type_of, constants)))
            if len({kind for kind in declared if kind != "null"}) > 1 and set(declared) != _NUMERIC:
                return []
        else:
            keywords = {keyword for part in parts for keyword in part.schema}
            declared = [k for k, marks in _KEYWORDS.items() if keywords.intersection(marks)][:1]
    named = [declared] if isinstance(declared, str) else declared
    skipped = {"null", "integer"} if set(named) >= _NUMERIC else {"null"}
    number = "integer" if "number" in named and any(map(_is_whole, parts)) else "number"
    return [number if kind == "number" else kind for kind in named if kind not in skipped]


def _is_whole(part: _Part) -> bool:
    """Return whether a schema allows no number but integers."""
    declared = part.schema.get("type", "number")
    kinds = [declared] if isinstance(declared, str) else declared
    return "integer" in kinds and "number" not in kinds


def _allows_all(part: _Part) -> bool:
    """Return whether a schema does not restrict values: ``{}``, except for comments."""
    return {"$ref", "$comment", "default", "title", "description", "examples"} >= part.schema.keys()
