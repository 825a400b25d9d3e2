"""Changes of a database's table as rows: Debezium's envelope, decoded like any other record.

The envelope of a record is decoded by its writer's schema into the row after the change (and, in
write mode append, before it), with the types of the table's columns. What it says of the change
itself is in :data:`CHANGE`; :mod:`topicberg.tableflow.folding` makes the current rows of it.

Source: Debezium's documentation of its PostgreSQL connector, "Data change events".
"""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyiceberg.types import (
    BinaryType,
    DateType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from topicberg.formats.envelope import AFTER, BEFORE, OPERATION, SOURCE
from topicberg.spark import F
from topicberg.tableflow.layout import KEY, VALUE, Layout, inner_fields
from topicberg.tableflow.reading import UNREADABLE
from topicberg.tableflow.rows import Decoder, Decoding, generic, metadata_values, problem_struct
from topicberg.topics.spec import (
    METADATA_TYPES,
    OP,
    RAW_KEY,
    SOURCE_POSITION,
    SOURCE_SNAPSHOT,
    SOURCE_TIMESTAMP,
    SOURCE_TRANSACTION,
)

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType
    from pyspark.sql.types import StructType as SparkStruct

    from topicberg.topics import TopicSpec

CHANGE = "__topicberg_change"
"""Struct of a change: ``op`` (null: a tombstone), ``micros`` and ``position`` of the source,
``missing``: columns whose value the connector did not have, ``old_key`` and ``new_key``: as JSON,
if the change is half of a change of the primary key."""
READ = "r"
"""A snapshot read the row: the change has the time of the reading."""
LIVE = ("c", "u", READ)
"""Operations after which the row exists."""
OPERATIONS = (*LIVE, "d", "t")
MAX_KEY_BYTES = 65_536
"""Of a key whose decoded values identify a row: the engine's process holds the keys of a batch."""
TRANSACTION = "transaction"
_SOURCE_FIELDS = (
    *("ts_ms", "ts_us", "snapshot", "txId", "lsn", "file", "pos", "row", "gtid"),
    *("commit_lsn", "change_lsn", "event_serial_no", "scn", "commit_scn"),
)
_OLD_KEY, _NEW_KEY = "__debezium.oldkey", "__debezium.newkey"


def row_columns(spec: TopicSpec, fields: Sequence[NestedField]) -> list[NestedField]:
    """Return the table's columns without the metadata columns."""
    names = (*METADATA_TYPES, RAW_KEY, *spec.change_columns)
    metadata = {spec.metadata_column(name) for name in names}
    return [field for field in fields if field.name not in metadata]


def key_names(layout: Layout) -> list[str]:
    """Return the columns of the primary key; none: the keys have no schema."""
    if layout.key.subject is None:
        return []
    return [field.name for field in layout.key.fields()]


def envelope(spec: TopicSpec, layout: Layout, fields: Sequence[NestedField]) -> list[NestedField]:
    """Return the parts of the envelope that are decoded, as columns; ``fields``: of the table."""
    ids = itertools.count(1_000_000)
    own = row_columns(spec, fields)
    found = []
    if layout.value.changes == "rows":
        found.append(_optional(ids, AFTER, StructType(*own)))
    else:
        found += [field for field in own if field.name in (BEFORE, AFTER)]
    source = layout.value.source_fields()
    parts = [_optional(ids, name, source[name]) for name in _SOURCE_FIELDS if name in source]
    found.append(_optional(ids, SOURCE, StructType(*parts)))
    found.append(_optional(ids, OPERATION, StringType()))
    if TRANSACTION in layout.value.envelope():
        transaction = StructType(_optional(ids, "id", StringType()))
        found.append(_optional(ids, TRANSACTION, transaction))
    return found


def _optional(ids: itertools.count[int], name: str, kind: IcebergType) -> NestedField:
    return NestedField(next(ids), name, kind, required=False)


def decode_changes(batch: Decoder) -> Decoding:
    """Decode a batch of changes; the frame has :data:`CHANGE` as well.

    :raises TableflowError: the latest schema does not fit the table
    """
    spec, layout, fields, columns = batch.spec, batch.layout, batch.fields, batch.columns
    keys, problems = key_names(layout), batch.problems
    is_upsert = spec.write_mode == "upsert"
    if batch.framing is not None:
        batch.frame = batch.framing.framed(batch.frame, layout)
    unreadable = F.when(F.col(VALUE).isNotNull(), F.col(UNREADABLE))
    problems.append(F.when(unreadable.isNotNull(), problem_struct(unreadable)))
    if batch.framing is not None:
        for half in (layout.key, layout.value):
            if (unknown := batch.framing.unknown(half.column)) is not None:
                problem = problem_struct(generic(half), unknown)
                problems.append(F.when(unknown.isNotNull(), problem))
    found: dict[str, Column] = {KEY: F.col(KEY)}
    if layout.key.subject is not None:
        own = [field for field in fields if field.name in keys]
        key, names = batch.half(layout.key, own, columns)
        found = {name: key.getField(name) for name in names}
    parts = envelope(spec, layout, fields)
    value, _ = batch.half(layout.value, parts, _spark_types(parts, columns))
    after = value.getField(AFTER)
    if is_upsert:
        for name in (field.name for field in row_columns(spec, fields)):
            own_value = after.getField(name)
            found[name] = F.coalesce(found[name], own_value) if name in found else own_value
    else:
        rows = (part.name for part in parts if part.name in (BEFORE, AFTER))
        found |= {name: value.getField(name) for name in rows}
    change = _change(spec, value, parts, fields if is_upsert else ())
    problems += _wrong(change.getField("op"), after, is_upsert)
    metadata = metadata_values(spec) | _metadata(spec, value, change, parts)
    row = []
    for column in columns:
        of_column = metadata.get(column.name, found.get(column.name, F.lit(None)))
        row.append(of_column.cast(column.dataType).alias(column.name))
    return batch.decoding(row, **{CHANGE: change})


def _wrong(op: Column, after: Column, is_upsert: bool) -> list[Column]:
    listed = ", ".join(OPERATIONS)
    text = F.concat(
        F.lit("field op (string): value "),
        F.coalesce(F.concat(F.lit('"'), F.substring(op, 1, 60), F.lit('"')), F.lit("null")),
        F.lit(f" is none of {listed}"),
    )
    is_change = F.col(VALUE).isNotNull()
    unknown = is_change & ~F.coalesce(op.isin(*OPERATIONS, "m"), F.lit(False))
    found = [F.when(unknown, problem_struct(text))]
    if is_upsert:
        without = problem_struct("field after (struct): value null, but the row was written")
        found.append(F.when(is_change & op.isin(*LIVE) & after.isNull(), without))
        keyless = problem_struct(
            "the record has no key to upsert by: the source's table has no primary key"
        )
        found.append(F.when(is_change & op.isin(*LIVE, "d") & F.col(KEY).isNull(), keyless))
        size = F.length(KEY)
        large = F.concat(
            *(F.lit("the key has "), size.cast("string")),
            F.lit(f" bytes, the limit of keys to upsert by is {MAX_KEY_BYTES}"),
        )
        found.append(F.when(size > MAX_KEY_BYTES, problem_struct(large)))
    return found


def _spark_types(parts: Sequence[NestedField], columns: SparkStruct) -> SparkStruct:
    """Return the envelope's columns as Spark has them; ``columns``: of the table."""
    from pyspark.sql import types as T

    known = {column.name: column.dataType for column in columns}

    def convert(part: NestedField) -> DataType:
        if isinstance(part.field_type, StructType):
            inner = part.field_type.fields
            return T.StructType([T.StructField(one.name, convert(one)) for one in inner])
        if isinstance(part.field_type, LongType):
            return T.LongType()
        return T.IntegerType() if isinstance(part.field_type, IntegerType) else T.StringType()

    def of(part: NestedField) -> DataType:
        if part.name == BEFORE or (part.name == AFTER and AFTER in known):
            return known[part.name]
        if part.name == AFTER:
            inner = part.field_type.fields  # type: ignore[attr-defined]
            return T.StructType([T.StructField(one.name, known[one.name]) for one in inner])
        return convert(part)

    return T.StructType([T.StructField(part.name, of(part)) for part in parts])


def _change(
    spec: TopicSpec, value: Column, parts: Sequence[NestedField], fields: Sequence[NestedField]
) -> Column:
    source, names = value.getField(SOURCE), _source_names(parts)
    assert spec.changelog is not None  # noqa: S101
    after = value.getField(AFTER)
    missing = [
        F.when(is_missing, F.lit(field.name))
        for field in row_columns(spec, fields)
        if (is_missing := _is(after.getField(field.name), field, spec.changelog.unavailable_value))
        is not None
    ]
    nothing = F.lit(None).cast("string")
    return F.struct(
        value.getField(OPERATION).alias("op"),
        _micros(source, names).alias("micros"),
        _position(source, names).alias("position"),
        (F.array_compact(F.array(*missing)) if missing else F.array().cast("array<string>")).alias(
            "missing"
        ),
        F.coalesce(_header(_OLD_KEY), nothing).alias("old_key"),
        F.coalesce(_header(_NEW_KEY), nothing).alias("new_key"),
    )


def toastable(field: NestedField) -> bool:
    """Return whether a column's value may be one that the connector did not have."""
    match field.field_type:
        case StringType() | BinaryType():
            return True
        case ListType(element_type=element):
            return isinstance(element, StringType | BinaryType | IntegerType | LongType | DateType)
        case MapType(key_type=StringType(), value_type=StringType()):
            return True
    return False


def _is(value: Column, field: NestedField, placeholder: str) -> Column | None:
    """Return whether a value is the placeholder; None: the column cannot have one.

    Debezium writes it as text, as bytes, as a list of one text, of one bytes, of one UUID, or of
    its bytes (as numbers or days), and as a map (hstore) or its JSON. Source: its class
    ``UnchangedToastedPlaceholder``.
    """
    if not toastable(field):
        return None
    raw = placeholder.encode()
    match field.field_type:
        case StringType():
            pair = json.dumps({placeholder: placeholder}, separators=(",", ":"))
            return value.isin(placeholder, pair)
        case BinaryType():
            return value == F.lit(raw)
        case ListType(element_type=StringType()):
            named = uuid.UUID(bytes=hashlib.md5(raw).digest(), version=3)  # noqa: S324  as Java's
            texts = F.array(F.lit(placeholder)), F.array(F.lit(str(named)))
            return (value == texts[0]) | (value == texts[1])
        case ListType(element_type=BinaryType()):
            return value == F.array(F.lit(raw))
        case ListType(element_type=DateType()):
            return value == F.array(*(F.date_from_unix_date(F.lit(byte)) for byte in raw))
        case ListType(element_type=element):
            kind = "int" if isinstance(element, IntegerType) else "bigint"
            return value == F.array(*(F.lit(byte).cast(kind) for byte in raw))
        case MapType():
            return (F.size(value) == 1) & (value.getItem(placeholder) == placeholder)
    return None


def _header(name: str) -> Column:
    """Return a header's text."""
    return F.expr(f"get(filter(headers, h -> h.key = '{name}'), 0).value").cast("string")


def _micros(source: Column, names: set[str]) -> Column:
    found = [source.getField("ts_us")] if "ts_us" in names else []
    if "ts_ms" in names:
        found.append(source.getField("ts_ms") * 1_000)
    return F.coalesce(*found) if found else F.lit(None).cast("bigint")


def _position(source: Column, names: set[str]) -> Column:
    """Return a number or text that grows along the source's log; null: the connector has none."""
    if "lsn" in names:  # PostgreSQL
        return source.getField("lsn").cast("bigint")
    if {"file", "pos"} <= names:  # MySQL: mysql-bin.000003, 154, and the row of the event
        row = source.getField("row") if "row" in names else F.lit(0)
        padded = (F.lpad(part.cast("string"), 20, "0") for part in (source.getField("pos"), row))
        return F.concat_ws(":", source.getField("file"), *padded)
    if {"commit_lsn", "change_lsn"} <= names:  # SQL Server: both of one length
        serial = source.getField("event_serial_no") if "event_serial_no" in names else F.lit(0)
        padded_serial = F.lpad(F.coalesce(serial, F.lit(0)).cast("string"), 20, "0")
        return F.concat_ws(
            ":", source.getField("commit_lsn"), source.getField("change_lsn"), padded_serial
        )
    if "scn" in names:  # Oracle
        return F.lpad(source.getField("scn").cast("string"), 20, "0")
    return F.lit(None).cast("string")


def _metadata(
    spec: TopicSpec, value: Column, change: Column, parts: Sequence[NestedField]
) -> dict[str, Column]:
    source, names = value.getField(SOURCE), _source_names(parts)
    transactions = [F.lit(None).cast("string")]
    if any(part.name == TRANSACTION for part in parts):
        transactions.append(value.getField(TRANSACTION).getField("id"))
    if "txId" in names:
        transactions.append(source.getField("txId").cast("string"))
    snapshot = source.getField("snapshot") if "snapshot" in names else F.lit(None).cast("string")
    values: dict[str, Column] = {
        OP: change.getField("op"),
        SOURCE_TIMESTAMP: F.timestamp_micros(change.getField("micros")),
        SOURCE_POSITION: change.getField("position"),
        SOURCE_TRANSACTION: F.coalesce(*transactions),
        SOURCE_SNAPSHOT: snapshot,
    }
    return {spec.metadata_column(name): values[name] for name in spec.change_columns}


def _source_names(parts: Sequence[NestedField]) -> set[str]:
    """Return the names of the fields of a change's source."""
    (source,) = (part.field_type for part in parts if part.name == SOURCE)
    return {field.name for field in inner_fields(source)}
