"""The old key of a change of the primary key, which Debezium writes into a header as JSON.

Its values are those of the key's schema in the connector, before a converter of keys: Debezium's
``Timestamp`` is a number of milliseconds, its ``MicroTimestamp`` one of microseconds, bytes are
base64. So each is read as the key's schema says. A ``JsonConverter`` of headers writes the schema
beside it.

Source: Debezium's documentation of its PostgreSQL connector, "Primary key updates"; Kafka's
``SimpleHeaderConverter`` and ``JsonConverter``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.types import IcebergType, LongType, NestedField, StructType, TimestamptzType

from topicberg.errors import TableflowError
from topicberg.formats.avro.schema import Type, parse_record
from topicberg.formats.connect import with_connect_types
from topicberg.formats.json import record
from topicberg.formats.json.columns import LOGICAL_KINDS, Node, read_node
from topicberg.formats.json.connect import json_schema
from topicberg.formats.json.conversions import with_conversions
from topicberg.formats.json.plan import fit, scalar_node
from topicberg.formats.json.syntax import parsed as parse
from topicberg.formats.json.syntax import rendered
from topicberg.formats.limits import UNREADABLE
from topicberg.formats.meanings import meaning_of
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import RegisteredSchema
from topicberg.tableflow.layout.message_fields import MessageField

_EXACT = Context(prec=100)


@dataclass(frozen=True)
class OldKeys:
    """What reads the keys in headers. ``fields``: the columns of the key, of the table.

    ``types``: of these columns. ``nodes``: the type of each value; None: versions of the key's
    schema have different types, and a header does not say which one its values are of.
    """

    fields: Sequence[NestedField]
    types: Sequence[pa.DataType]
    nodes: Mapping[str, Node | None]

    @classmethod
    def of(
        cls, key: MessageField, fields: Sequence[NestedField], types: Sequence[pa.DataType]
    ) -> OldKeys:
        """:param key: its subject has the versions of the schema"""
        nodes: dict[str, Node | None] = {}
        for schema in key.subject.schemas.values() if key.subject else ():
            try:
                version = _nodes(schema, fields)
            except (TableflowError, *UNREADABLE, RecursionError):
                continue  # keys of this version are malformed
            for name, node in version.items():
                known = nodes.setdefault(name, node)
                nodes[name] = node if known and _plain(known) == _plain(node) else None
        return cls(fields, types, nodes)

    def read(self, text: str) -> tuple[Any, ...] | None:
        """Return the values of a key; None: it cannot be read, or has a null."""
        try:
            parsed = parse(text.encode())
            nodes = self.nodes
            if parsed.keys() == {"schema", "payload"}:  # by a JsonConverter of headers
                nodes = _own_nodes(parsed["schema"], self.fields) or nodes
                parsed = parsed["payload"]
            values = {field.name: parsed[field.name] for field in self.fields}
            known = {name: node for name in values if (node := nodes.get(name)) is not None}
            if None in values.values() or len(known) < len(values):
                return None
            struct = Node("struct", known)
            plan = fit("the old key in a header", struct, struct, StructType(*self.fields))
            row = record.decoder(plan, None)(rendered(values).encode())
            return tuple(
                _python_value(row[field.name], kind)
                for field, kind in zip(self.fields, self.types, strict=True)
            )
        except (*UNREADABLE, RecursionError, pa.ArrowException, MalformedError, TableflowError):
            return None


def _python_value(stored: Any, kind: pa.DataType) -> Any:
    """Return a decoder's value of a column, as Arrow has values of the column's type in Python."""
    if pa.types.is_decimal(kind):
        return pa.scalar(_EXACT.scaleb(Decimal(stored), -kind.scale), kind).as_py()
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        number = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        return pa.scalar(stored, number).cast(kind).as_py()
    return pa.scalar(stored, kind).as_py()


def _own_nodes(schema: Any, fields: Sequence[NestedField]) -> dict[str, Node] | None:
    """Return the types that the schema beside a key has; None: it has none for these columns.

    :raises TableflowError: its times are in another unit than the columns
    """
    try:
        nodes = _nodes(with_connect_types(RegisteredSchema(0, "JSON", json_schema(schema))), fields)
        for field in fields:
            plain = replace(nodes[field.name], unit=None)
            fit("the old key in a header", plain, plain, field.field_type)
    except (TableflowError, *UNREADABLE):
        return None
    for field in fields:
        unit, node = meaning_of(field.doc).values, nodes[field.name]
        # Without a unit is only a Protobuf column. A TimeOfDay is in microseconds.
        is_time_of_day = node.kind == "int" and isinstance(field.field_type, LongType)
        if node.unit is not None and (is_time_of_day if unit is None else node.unit != unit):
            raise TableflowError(f"the old key in a header is in {node.unit}, its column is not")
    return nodes


def _nodes(schema: RegisteredSchema, fields: Sequence[NestedField]) -> dict[str, Node]:
    """Return the types of a key's values in JSON; TableflowError: its schema cannot be read."""
    match schema.schema_type:
        case "JSON":
            node = read_node(f"schema {schema.schema_id}", schema)
            return with_conversions(node, schema.options.conversions).children
        case "AVRO":
            parsed = parse_record(f"schema {schema.schema_id}", schema)
            types = {field.name: field.type for field in parsed.fields}
            columns = {field.name: field.field_type for field in fields if field.name in types}
            nodes = {name: _avro_node(types[name], kind) for name, kind in columns.items()}
        case _:
            nodes = {field.name: scalar_node(field.field_type) for field in fields}
    return {name: node for name, node in nodes.items() if node is not None}


def _avro_node(kind: Type, column: IcebergType) -> Node | None:
    """Return the type of an Avro value in JSON; None: no connector has it in a key."""
    if len(kind.members) != 1:
        return None
    (member,) = kind.members
    if member.is_decimal:
        return Node("decimal", precision=member.precision, scale=member.scale)
    if (json_kind := LOGICAL_KINDS.get(member.logical or "")) is not None:
        scale = member.scale if json_kind == "decimal-text" else 0
        return Node(json_kind, scale=scale, unit=member.unit)
    if isinstance(column, TimestamptzType):  # in microseconds, which Connect does not have
        return None
    node = scalar_node(column)
    return node and replace(node, unit=member.unit)


def _plain(node: Node) -> Node:
    """Return a type without what does not change the meaning of a value in JSON."""
    return Node("long" if node.kind == "int" else node.kind, scale=node.scale, unit=node.unit)
