"""Spark expressions: records of a topic as rows of its table, and what is wrong with a record."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, cast

from topicberg.tableflow.formats import DECODED, format_of
from topicberg.tableflow.layout import KEY, PARTITION, RAW_KEY, VALUE, Half, Layout
from topicberg.tableflow.reading import UNREADABLE
from topicberg.tableflow.subjects import WIRE_BYTES, RegisteredSchema, wire_prefix

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from topicberg.topics import TopicSpec

ROW = "__topicberg_row"
"""Struct of the table's columns."""
PROBLEM = "__topicberg_problem"
"""Struct (reason: string, schema_id: long); null for a good record. ``schema_id``: the record's,
if its subject does not have it."""

HASHED_KEY_BYTES = 256
"""Longer keys are told apart by their SHA-256: Confluent's "Write Modes with Tableflow"."""
_FIRST_DAY, _LAST_DAY = datetime.date(1, 1, 1), datetime.date(9999, 12, 31)


def decoded(
    records: DataFrame,
    spec: TopicSpec,
    layout: Layout,
    foreign: Mapping[int, RegisteredSchema],
    table: Table,
    columns: StructType,
) -> DataFrame:
    """Kafka's columns, :data:`ROW` and :data:`PROBLEM`.

    :param records: as :mod:`topicberg.tableflow.reading` gives them
    :param foreign: schemas of other subjects that records are known to name
    :param columns: the table's columns as Spark has them
    """
    from pyspark.sql import functions as F

    unreadable = F.col(UNREADABLE)
    if spec.write_mode == "upsert":  # a tombstone deletes a row and becomes none
        unreadable = F.when(F.col(VALUE).isNotNull(), unreadable)
    problems = [F.when(unreadable.isNotNull(), _problem(unreadable))]
    found: dict[str, tuple[Column, DataType]] = {}
    if spec.write_mode == "upsert":
        problems.append(F.when(F.col(KEY).isNull(), _problem("the record has no key to upsert by")))
    for half in (layout.key, layout.value):  # where both have a field, the value's wins
        if half.subject is None:
            found[half.column] = F.col(half.column), records.schema[half.column].dataType
            continue
        name = f"__topicberg_{half.column}"
        records = _decode(records, name, half, foreign, table, columns)
        problems.append(_problem_of(half, F.col(name).getField(DECODED), foreign))
        for field in records.schema[name].dataType.fields:  # type: ignore[attr-defined]
            found[field.name] = F.col(name).getField(field.name), field.dataType
    metadata = _metadata(spec)
    row = []
    for column in columns:
        if column.name in metadata:
            value = metadata[column.name].cast(column.dataType)
        elif column.name in found:
            source, have = found[column.name]
            value = conform(source, have, column.dataType)
            outside = out_of_range(source, have)
            if outside is not None:
                reason = f"{column.name} is not between the years 1 and 9999"
                problems.append(F.when(outside, _problem(reason)))
        else:
            value = F.lit(None).cast(column.dataType)
        row.append(value.alias(column.name))
    nothing = F.lit(None).cast("struct<reason: string, schema_id: bigint>")
    return records.withColumns({ROW: F.struct(*row), PROBLEM: F.coalesce(*problems, nothing)})


def _problem(reason: str | Column, schema_id: Column | None = None) -> Column:
    from pyspark.sql import functions as F

    number = F.lit(None).cast("long") if schema_id is None else schema_id
    return F.struct(F.lit(reason).alias("reason"), number.alias("schema_id"))


def _decode(
    records: DataFrame,
    name: str,
    half: Half,
    foreign: Mapping[int, RegisteredSchema],
    table: Table,
    columns: StructType,
) -> DataFrame:
    """With the decoded half as a struct in column ``name``.

    Null without bytes, and for a schema that is not known.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BooleanType, StructField, StructType

    assert half.subject is not None  # noqa: S101  the caller's condition
    raw = F.col(half.column)
    prefix, payload = F.substring(raw, 1, WIRE_BYTES), F.substring(raw, WIRE_BYTES + 1, 2**31 - 1)
    latest, fields = half.subject.latest, table.schema().fields
    writers = {
        number: writer
        for number, writer in {**foreign, **half.subject.schemas}.items()
        if writer.schema_type == latest.schema_type
    }
    branches = {}
    for number, writer in writers.items():
        # Not around the result: Spark runs Python functions for every row, also inside of a CASE.
        of_writer = F.when(prefix == F.lit(wire_prefix(number)), payload)
        if writer.wrapped_as is not None:
            opening = F.lit(f"{{{json.dumps(writer.wrapped_as)}:".encode())
            of_writer = F.concat(opening, of_writer, F.lit(b"}"))
        records, branches[number] = format_of(writer).decode(
            records, of_writer, writer, latest, fields, half.message
        )
    if len(branches) > 1:
        kinds = records.select(*(b.alias(str(number)) for number, b in branches.items())).schema
        if len({kind.dataType.simpleString() for kind in kinds}) > 1:  # CASE wants one type
            names = {field.name for kind in kinds for field in cast("StructType", kind.dataType)}
            common = StructType(
                [StructField(DECODED, BooleanType()), *(c for c in columns if c.name in names)]
            )
            branches = {
                number: conform(branch, kinds[str(number)].dataType, common)
                for number, branch in branches.items()
            }
    value: Column | None = None
    for number, branch in branches.items():
        is_written_so = prefix == F.lit(wire_prefix(number))
        value = (
            F.when(is_written_so, branch) if value is None else value.when(is_written_so, branch)
        )
    assert value is not None  # noqa: S101  a subject has at least its latest version
    return records.withColumn(name, value)


def _problem_of(half: Half, is_decoded: Column, foreign: Mapping[int, RegisteredSchema]) -> Column:
    from pyspark.sql import functions as F

    assert half.subject is not None  # noqa: S101  the caller's condition
    raw = F.col(half.column)
    ids = [*half.subject.schemas, *foreign]
    known = F.substring(raw, 1, WIRE_BYTES).isin([wire_prefix(number) for number in ids])
    named = F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("long")
    is_framed = (F.length(raw) >= WIRE_BYTES) & (F.substring(raw, 1, 1) == F.lit(b"\x00"))
    what, subject = f"the {half.column}", f"subject {half.subject.name}"
    return (
        F.when(raw.isNull() | (known & F.coalesce(is_decoded, F.lit(False))), None)
        .when(~is_framed, _problem(f"{what} is not in Confluent's wire format (0, schema id)"))
        .when(
            ~known, _problem(f"{what} names a schema that subject {subject} does not have", named)
        )
        .otherwise(_problem(f"{what} does not fit its schema"))
    )


def _metadata(spec: TopicSpec) -> dict[str, Column]:
    from pyspark.sql import functions as F

    columns = {
        "topic": F.lit(spec.name),
        PARTITION: F.col("partition"),
        "headers": F.map_from_entries("headers"),
        "offset": F.col("offset"),
        "timestamp": F.col("timestamp"),
        "timestamp-type": F.when(F.col("timestampType") == 1, "LOG_APPEND_TIME").otherwise(
            "CREATE_TIME"
        ),
        RAW_KEY: F.when(F.length(KEY) <= HASHED_KEY_BYTES, F.col(KEY)).otherwise(
            F.unhex(F.sha2(KEY, 256))
        ),
    }
    return {spec.metadata_column(name): column for name, column in columns.items()}


def conform(value: Column, have: DataType, want: DataType) -> Column:
    """``value`` in another type whose nested fields are matched by name; a missing one is null."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if have.simpleString() == want.simpleString():
        return value
    if isinstance(have, StructType) and isinstance(want, StructType):
        types = {field.name: field.dataType for field in have}
        struct = F.struct(
            *(
                (
                    conform(value.getField(field.name), types[field.name], field.dataType)
                    if field.name in types
                    else F.lit(None).cast(field.dataType)
                ).alias(field.name)
                for field in want
            )
        )
        return F.when(value.isNotNull(), struct)
    if isinstance(have, ArrayType) and isinstance(want, ArrayType):
        inner = have.elementType, want.elementType
        return F.transform(value, lambda element: conform(element, *inner))
    if isinstance(have, MapType) and isinstance(want, MapType):
        inner = have.valueType, want.valueType
        return F.transform_values(value, lambda _, element: conform(element, *inner))
    return value.cast(want)


def out_of_range(value: Column, kind: DataType) -> Column | None:
    """Whether a date or time in ``value`` is none that every engine reads: years 1 to 9999."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import (
        ArrayType,
        DateType,
        MapType,
        StructType,
        TimestampNTZType,
        TimestampType,
    )

    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        day = value.cast("date")
        return F.coalesce(~day.between(F.lit(_FIRST_DAY), F.lit(_LAST_DAY)), F.lit(False))
    if isinstance(kind, StructType):
        parts = [out_of_range(value.getField(field.name), field.dataType) for field in kind]
        outside = [part for part in parts if part is not None]
        return reduce(lambda one, other: one | other, outside) if outside else None
    if isinstance(kind, ArrayType | MapType):
        element = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
        if out_of_range(F.lit(None), element) is None:
            return None
        elements = value if isinstance(kind, ArrayType) else F.map_values(value)
        found = F.exists(elements, lambda e: _is(out_of_range(e, element)))
        return F.coalesce(found, F.lit(False))
    return None


def _is(column: Column | None) -> Column:
    assert column is not None  # noqa: S101  the caller has looked
    return column
