"""JSON Schema: the table's types, and what decodes its records.

:mod:`topicberg.formats.json.columns` has the mapping of types, :mod:`.record` is what a record is:

- A value of another type than the schema's makes the record malformed, as do text after the record,
  invalid UTF-8, half of a surrogate pair, a number too large for a double, a decimal with too many
  digits, a date outside of years 1 to 9999. So does a number that its column cannot hold exactly:
  an integer of a version whose column has become a double, if the double is not that integer.
- ``1.0`` and ``1e3`` are integers, as in JSON Schema.
- A missing or null field is null even if it is required, a ``default`` is not filled in, and
  properties that the writer's schema does not declare are ignored, as in Confluent's deserializers,
  which do not validate by default; the spec may keep them, and name conversions of some fields
  (:mod:`.conversions`). Of a repeated name, the last value is used.
- Of a union, the first member is set whose schema allows the value and declares all of it: types,
  required properties, constants and declared properties are compared at every depth
  (:mod:`.matching`). Without such a member, it is the one that loses the least of the value; a
  value that no member allows is the first one that can read it, has its own required properties
  and constants, and preferably declares all of its properties. Null is allowed everywhere. A member
  keeps its column when another version of the schema has other members before it; a value of a
  member that has no column makes the record malformed.

Most records are decoded in columns, by a program (:mod:`.program`); one that it refuses, by the
reference decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from json import dumps

from pyiceberg.types import NestedField, StringType, StructType

from topicberg.errors import TableflowError
from topicberg.formats import limits
from topicberg.formats.columnar.program import ProgramCode, Slots
from topicberg.formats.contract import RecordDecoder, ResolvedSchema
from topicberg.formats.json import columns, record
from topicberg.formats.json.columns import Node, read_node
from topicberg.formats.json.conversions import check_conversions, with_conversions
from topicberg.formats.json.plan import JsonPlan, fields_of, fit
from topicberg.formats.json.program import emit, emit_record
from topicberg.formats.reasons import place_at
from topicberg.formats.subjects import RegisteredSchema


def fields(
    where: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[NestedField]:
    """Return the columns of an object's schema, or of a union; see :class:`..contract.Format`."""
    root, unknown_as = read_node(where, schema), schema.options.unknown_as
    if root.kind not in ("struct", "union"):
        raise TableflowError(
            f"{where}: the schema is not an object with properties",
            hint="register an object with properties: a table needs named columns",
        )
    nested_fields = fields_of(root.children, ids)
    if unknown_as is None:
        return nested_fields
    if unknown_as in root.children:
        raise TableflowError(
            f"{where}: the schema has a field {unknown_as}, which is the column of unknown_fields",
            hint="rename the field, or choose the other metadata_column_naming_scheme",
        )
    if (path := _choice_of_objects(root)) is not None:
        raise TableflowError(
            f"{where}: {place_at(path)} is an object of one of several types, and unknown_fields "
            "keep needs one type of each object",
            hint="set schema.unknown_fields to ignore, or give the field one type",
        )
    doc = "JSON text of what the record has and the schema does not name"
    return [*nested_fields, NestedField(next(ids), unknown_as, StringType(), False, doc=doc)]


def _choice_of_objects(node: Node, path: str = "") -> str | None:
    """Return where an object is one of several types; None: nowhere."""
    if node.kind == "union" and any(_has_objects(child) for child in node.children.values()):
        return path
    inner = (_choice_of_objects(child, columns.join(path, n)) for n, child in node.children.items())
    return next((inside for inside in inner if inside is not None), None)


def _has_objects(node: Node) -> bool:
    return node.kind == "struct" or any(_has_objects(child) for child in node.children.values())


def identity(schema: RegisteredSchema, message: str | None = None) -> str | None:
    """Return the title, else the id; see :class:`..contract.Format`."""
    return columns.identity(schema)


def is_union(schema: RegisteredSchema) -> bool:
    """Return whether it is only oneOf or anyOf of several types; see :class:`..contract.Format`.

    An object whose properties are in an ``allOf`` or a ``$ref`` beside the choice is none, nor is a
    choice of one object and null.
    """
    parsed = limits.parsed_json(schema.label, schema)
    if not isinstance(parsed, dict) or "properties" in parsed:
        return False
    choice = parsed.get("oneOf") or parsed.get("anyOf")
    if not isinstance(choice, list) or sum(branch != {"type": "null"} for branch in choice) < 2:
        return False
    try:
        return read_node(schema.label, schema).kind != "struct"
    except TableflowError:  # as raw bytes, a topic needs no schema that a table can have
        return True


def as_record(schema: RegisteredSchema, name: str) -> RegisteredSchema:
    """Return a key's schema as an object that a value becomes when it is read; see ``Format``."""
    parsed = limits.parsed_json(schema.label, schema)
    if not isinstance(parsed, dict) or "properties" in parsed or parsed.get("type") == "object":
        return schema
    shared = {key: parsed[key] for key in ("$schema", "definitions", "$defs") if key in parsed}
    wrapped = {**shared, "type": "object", "properties": {name: parsed}}
    return replace(schema, text=dumps(wrapped), wrapped_as=name)


def check_file(where: str, schema: RegisteredSchema) -> None:
    """Check the conversions that a spec has of the file; see :class:`..contract.Format`."""
    limits.parsed_json(where, schema)
    if schema.options.conversions:
        check_conversions(where, read_node(where, schema), schema.options.conversions)


def written(
    writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
) -> frozenset[str]:
    """Return the properties of the writer's schema; see :class:`..contract.Format`."""
    newest, unknown_as = _node(latest), writer.options.unknown_as
    children = (newest if newest.kind == "union" else _node(writer)).children
    return frozenset(children if unknown_as is None else (*children, unknown_as))


def filled(resolved_schema: ResolvedSchema) -> frozenset[str]:
    """Return the columns that a writer fills; see :class:`..contract.Format`."""
    return written(resolved_schema.writer, resolved_schema.latest, resolved_schema.message)


def program(code: ProgramCode, slots: Slots, resolved_schema: ResolvedSchema) -> None:
    """Append a program that decodes records; see :class:`..contract.Format`."""
    plan, wrapped_as = _plan(resolved_schema), resolved_schema.writer.wrapped_as
    code.unknown = slots.get(resolved_schema.writer.options.unknown_as or "")
    if wrapped_as is None:
        emit_record(code, plan, slots)
    else:  # the record is the value of the only property
        emit(code, plan.children[wrapped_as], slots[wrapped_as])


@lru_cache(maxsize=64)
def record_decoder(resolved_schema: ResolvedSchema) -> RecordDecoder:
    """Return the reference decoder; see :class:`..contract.Format`."""
    writer = resolved_schema.writer
    return record.decoder(_plan(resolved_schema), writer.wrapped_as, writer.options.unknown_as)


@lru_cache(maxsize=64)
def _plan(resolved_schema: ResolvedSchema) -> JsonPlan:
    """Return the plan by which a writer's records become rows, or raise TableflowError."""
    node, newest = _node(resolved_schema.writer), _node(resolved_schema.latest)
    # The table has other columns, too: those of the key and of Kafka.
    names = {*node.children, *newest.children}
    target = StructType(*(field for field in resolved_schema.fields if field.name in names))
    return fit(resolved_schema.writer.label, node, newest, target)


def _node(schema: RegisteredSchema) -> Node:
    return with_conversions(read_node(schema.label, schema), schema.options.conversions)
