"""JSON Schema: the table's types, and the Spark expression that decodes a record.

:mod:`topicberg.formats.json_nodes` has the mapping of types. How records are read:

- A value of another type than the schema's makes the record malformed, even if Spark would accept
  it: a number for a string, text after the record, invalid UTF-8, half of a surrogate pair, a
  number too large for a double, a decimal with too many digits, a date outside of years 1 to 9999.
  So does a number that its column cannot hold exactly: an integer of a version whose column has
  become a double, if the double is not that integer; a decimal or JSON text with more digits than
  Spark reads exactly (38; 15, in JSON text 17, in scientific notation).
- ``1.0`` and ``1e3`` are integers, as in JSON Schema.
- A missing or null field is null even if it is required, a ``default`` is not filled in, and
  properties that the writer's schema does not declare are ignored, as in Confluent's deserializers,
  which do not validate by default. Of a repeated name, the last value is used.
- Of a union, the first member that the value fits is set. An object fits a member if it has the
  member's required properties and constants; members that declare all of its properties are
  preferred. Its numbers pass through a variant, which has no negative zero. A member keeps its
  column when another version of the schema has other members before it; a value of a member that
  has no column makes the record malformed.

Most records of an append topic are decoded in columns, by a program (:mod:`.json_program`). Spark's
expression is what it must be equal to, and decodes everything else.

In Spark, most records are read fast, with one call of ``from_json``. It refuses ``1.0`` for an
integer and accepts any value as a string; records where that matters are read a second time, with
variants, which distinguish the types of values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from pyiceberg.types import NestedField, StructType

from topicberg.errors import TableflowError
from topicberg.formats import Pairing, json_nodes, json_program, json_reasons, json_sql
from topicberg.formats.columnar.program import Code, Place
from topicberg.formats.json_nodes import read_node
from topicberg.formats.json_plan import Plan, fields_of, fit
from topicberg.formats.reasons import UNEXPLAINED
from topicberg.formats.subjects import RegisteredSchema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def fields(
    subject: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[NestedField]:
    """Return the columns of an object's schema, or of a union; see :class:`..formats.Format`."""
    root = read_node(subject, schema)
    if root.kind not in ("struct", "union"):
        raise TableflowError(
            f"subject {subject}: the schema is not an object with properties",
            hint="register an object with properties: a table needs named columns",
        )
    return fields_of(root.children, ids)


def identity(schema: RegisteredSchema, message: str | None = None) -> str | None:
    """Return the title, else the id; see :class:`..formats.Format`."""
    return json_nodes.identity(schema)


def written(
    writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
) -> frozenset[str]:
    """Return the properties of the writer's schema; see :class:`..formats.Format`."""
    newest = _node(latest)
    return frozenset((newest if newest.kind == "union" else _node(writer)).children)


def decode(records: DataFrame, payload: Column, pairing: Pairing) -> tuple[DataFrame, Column]:
    """Return the record, as its writer's schema describes it; see :class:`..formats.Format`.

    Expressions that are used several times become columns: a lambda would compute them once, too,
    but Spark compiles no code for its body, and takes five times as long.

    The expression is SQL: a tree of columns would be deeper than the hundred nested messages that
    a client of Spark Connect can send.
    """
    from pyspark.sql import functions as F

    plan, wrapped_as = _plan(pairing), pairing.writer.wrapped_as
    text = _column("text")
    records = records.withColumn(text, payload.cast("string"))
    is_one = f"{json_sql.sound(text)} AND ({json_sql.is_inside(text)})"
    records = records.withColumn(text, F.expr(f"if({is_one}, {text}, NULL)"))
    if wrapped_as is not None:  # the wrapped text must be one value
        skipped = len(json_sql.opening(wrapped_as))
        inner = f"substr({text}, {skipped + 1}, length({text}) - {skipped + 1})"
        is_one = f"json_array_length(concat('[', {inner}, ']')) = 1"
        records = records.withColumn(text, F.expr(f"if({is_one}, {text}, NULL)"))
    exact, quick = json_sql.Reader(text, exact=True), json_sql.Reader(text, exact=False)
    record = json_sql.let(
        exact.parsed(text, plan),
        lambda row: json_sql.let(
            exact.value(exact.first(row), plan), lambda value: exact.record(row, value, plan)
        ),
    )
    if plan.kind == "struct":
        row = _column("row")
        records = records.withColumn(row, F.expr(quick.parsed(text, plan)))
        value = quick.first(row)
        if quick.converts(plan):
            value = _column("value")
            records = records.withColumn(value, F.expr(quick.value(quick.first(row), plan)))
        record = f"coalesce({quick.record(row, value, plan)}, {record})"
    return records, F.expr(record)


_columns = itertools.count()


def _column(name: str) -> str:
    return f"__topicberg_{name}_{next(_columns)}"


def program(code: Code, places: Mapping[str, Place], pairing: Pairing) -> None:
    """Append a program that decodes records; see :class:`topicberg.formats.Format`."""
    plan, wrapped_as = _plan(pairing), pairing.writer.wrapped_as
    if wrapped_as is None:
        json_program.emit_record(code, plan, places)
    else:  # the record is the value of the only property
        json_program.emit(code, plan.children[wrapped_as], places[wrapped_as])


def explain(payload: bytes, pairing: Pairing) -> str:
    """Return why a record is malformed; see :class:`..formats.Format`."""
    return json_reasons.reason(payload, _plan(pairing), pairing.writer.wrapped_as) or UNEXPLAINED


@lru_cache(maxsize=64)
def _plan(pairing: Pairing) -> Plan:
    """Return the plan by which a writer's records become rows.

    :raises TableflowError: the writer's schema has another type for a column than the table
    """
    node, newest = _node(pairing.writer), _node(pairing.latest)
    # The table has other columns, too: those of the key and of Kafka.
    names = {*node.children, *newest.children}
    target = StructType(*(field for field in pairing.fields if field.name in names))
    return fit(f"schema {pairing.writer.schema_id}", node, newest, target)


def _node(schema: RegisteredSchema) -> json_nodes.Node:
    return read_node(f"of schema {schema.schema_id}", schema)
