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
- Of a union, the first member that the value fits is set. An object fits a member if it has the
  member's required properties and constants; members that declare all of its properties are
  preferred. A member keeps its column when another version of the schema has other members before
  it; a value of a member that has no column makes the record malformed.

Most records are decoded in columns, by a program (:mod:`.program`); one that it refuses, by the
reference decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from pyiceberg.types import NestedField, StringType, StructType

from topicberg.errors import TableflowError
from topicberg.formats.columnar.program import ProgramCode, Slot
from topicberg.formats.contract import RecordDecoder, ResolvedSchema
from topicberg.formats.json import columns, record
from topicberg.formats.json.columns import Node, read_node
from topicberg.formats.json.conversions import with_conversions
from topicberg.formats.json.plan import JsonPlan, fields_of, fit
from topicberg.formats.json.program import emit, emit_record
from topicberg.formats.subjects import RegisteredSchema


def fields(
    subject: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[NestedField]:
    """Return the columns of an object's schema, or of a union; see :class:`..formats.Format`."""
    root, unknown_as = read_node(subject, schema), schema.options.unknown_as
    if root.kind not in ("struct", "union"):
        raise TableflowError(
            f"subject {subject}: the schema is not an object with properties",
            hint="register an object with properties: a table needs named columns",
        )
    found = fields_of(root.children, ids)
    if unknown_as is not None:
        _check_unknown(subject, root, unknown_as)
        found.append(
            NestedField(next(ids), unknown_as, StringType(), required=False, doc=_UNKNOWN_DOC)
        )
    return found


_UNKNOWN_DOC = "JSON text of what the record has and the schema does not name"


def _check_unknown(subject: str, root: Node, unknown_as: str) -> None:
    """:raises TableflowError: what the schema does not name cannot have a column"""
    if unknown_as in root.children:
        raise TableflowError(
            f"subject {subject}: the schema has a field {unknown_as}, which is the column of "
            "unknown_fields",
            hint="rename the field, or choose the other metadata_column_naming_scheme",
        )
    if (path := _choice_of_objects(root)) is not None:
        place = f"field {path}" if path else "the record"
        raise TableflowError(
            f"subject {subject}: {place} is an object of one of several types, and unknown_fields "
            "keep needs one type of each object",
            hint="set schema.unknown_fields to ignore, or give the field one type",
        )


def _choice_of_objects(node: Node, path: str = "") -> str | None:
    """Return where an object is one of several types; None: nowhere."""
    if node.kind == "union" and any(_has_objects(one) for one in node.children.values()):
        return path
    inner = (_choice_of_objects(one, columns.join(path, n)) for n, one in node.children.items())
    return next((found for found in inner if found is not None), None)


def _has_objects(node: Node) -> bool:
    return node.kind == "struct" or any(_has_objects(one) for one in node.children.values())


def identity(schema: RegisteredSchema, message: str | None = None) -> str | None:
    """Return the title, else the id; see :class:`..formats.Format`."""
    return columns.identity(schema)


def written(
    writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
) -> frozenset[str]:
    """Return the properties of the writer's schema; see :class:`..formats.Format`."""
    newest, unknown_as = _node(latest), writer.options.unknown_as
    own = (newest if newest.kind == "union" else _node(writer)).children
    return frozenset(own if unknown_as is None else (*own, unknown_as))


def filled(pairing: ResolvedSchema) -> frozenset[str]:
    """Return the columns that a writer fills; see :class:`topicberg.formats.Format`."""
    return written(pairing.writer, pairing.latest, pairing.message)


def program(code: ProgramCode, places: Mapping[str, Slot], pairing: ResolvedSchema) -> None:
    """Append a program that decodes records; see :class:`topicberg.formats.Format`."""
    plan, wrapped_as = _plan(pairing), pairing.writer.wrapped_as
    code.unknown = places.get(pairing.writer.options.unknown_as or "")
    if wrapped_as is None:
        emit_record(code, plan, places)
    else:  # the record is the value of the only property
        emit(code, plan.children[wrapped_as], places[wrapped_as])


@lru_cache(maxsize=64)
def record_decoder(pairing: ResolvedSchema) -> RecordDecoder:
    """Return the reference decoder; see :class:`topicberg.formats.Format`."""
    writer = pairing.writer
    return record.decoder(_plan(pairing), writer.wrapped_as, writer.options.unknown_as)


@lru_cache(maxsize=64)
def _plan(pairing: ResolvedSchema) -> JsonPlan:
    """Return the plan by which a writer's records become rows.

    :raises TableflowError: the writer's schema has another type for a column than the table
    """
    node, newest = _node(pairing.writer), _node(pairing.latest)
    # The table has other columns, too: those of the key and of Kafka.
    names = {*node.children, *newest.children}
    target = StructType(*(field for field in pairing.fields if field.name in names))
    return fit(f"schema {pairing.writer.schema_id}", node, newest, target)


def _node(schema: RegisteredSchema) -> Node:
    node = read_node(f"of schema {schema.schema_id}", schema)
    return with_conversions(node, schema.options.conversions)
