"""Records of a topic as rows of its table, and the reasons of malformed records.

Good records are processed by Spark expressions only. The reason of a malformed record is found
afterwards, in this process, from its bytes: see :meth:`Decoding.reason`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from topicberg.errors import TableflowError
from topicberg.formats import DECODED, Pairing, as_record, format_of
from topicberg.formats.connect import with_connect_types
from topicberg.formats.subjects import (
    GLUE_BYTES,
    GLUE_HEADERS,
    WIRE_BYTES,
    RegisteredSchema,
    Subject,
    wire_prefix,
)
from topicberg.spark import F
from topicberg.tableflow.foreign import ForeignSchemas
from topicberg.tableflow.framing import Framing
from topicberg.tableflow.layout import KEY, VALUE, Half, Layout, holds_raw_key, twins
from topicberg.tableflow.reading import UNREADABLE
from topicberg.topics.spec import PARTITION, RAW_KEY

if TYPE_CHECKING:
    from pyiceberg.types import NestedField
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from topicberg.topics import TopicSpec

ROW = "__topicberg_row"
"""Struct of the table's columns."""
PROBLEM = "__topicberg_problem"
"""Struct (reason: string, schema_id: long); null for a good record. ``schema_id``: the record's
schema id if it is not known yet."""

HASHED_KEY_BYTES = 256
"""Longer keys are distinguished by their SHA-256: Confluent's "Write Modes with Tableflow"."""
MAX_FOREIGN_WRITERS = 100
"""The most schemas of other subjects by which the records of one batch are decoded."""
UNKNOWN = "which is not looked up: one batch names too many schemas of other subjects"


Types = dict[object, dict[int, frozenset[str]]]
"""Schemas of records, and the columns of a table → the columns that each schema, by id, fills."""

MAX_TYPES = 100


@dataclass(frozen=True)
class Writers:
    """The schemas by which the key, or the value, of a topic's records is decoded."""

    half: Half
    foreign: ForeignSchemas
    fields: Sequence[NestedField]
    """The columns that the half may fill: the table's, those of a key without the fields that it
    shares with the value, or the envelope of a change."""
    accepted: dict[int, RegisteredSchema] = field(default_factory=dict)
    columns: dict[int, frozenset[str]] = field(default_factory=dict)
    """For each accepted schema: the columns that it has a field for."""
    refused: dict[int, str] = field(default_factory=dict)
    """For each refused id: why its records are not decoded."""

    @property
    def subject(self) -> Subject:
        assert self.half.subject is not None  # noqa: S101  a half without one is not decoded
        return self.half.subject

    def filled(self, column: str) -> list[int]:
        """Return the ids of the accepted schemas that have a field for the column."""
        return [number for number, columns in self.columns.items() if column in columns]

    def problem(self, raw: bytes, framing: Framing | None = None) -> str:
        """Return why the bytes are malformed, as Spark found them to be."""
        the = f"the {self.half.column}"
        if framing is not None:
            if why := framing.problem(self.half.column, raw):
                return f"{the}: {why}"
            raw = framing.of(self.half, raw)
        if len(raw) >= GLUE_BYTES and raw[:2] in GLUE_HEADERS:
            return (
                f"{the} is in the wire format of AWS Glue Schema Registry, which is not supported"
            )
        if len(raw) < WIRE_BYTES or raw[0] != 0:
            return f"{the} is not in Confluent's wire format (0, schema id): it is {_shown(raw)}"
        number = int.from_bytes(raw[1:WIRE_BYTES], "big")
        writer = self.accepted.get(number)
        if writer is None:
            why = self.refused.get(number) or self.foreign.missing.get(number, UNKNOWN)
            return f"{the} names schema {number}, {why}"
        payload = _wrapped(writer, raw[WIRE_BYTES:])
        pairing = Pairing(writer, self.subject.latest, self.fields, self.half.message)
        why = format_of(writer).explain(payload, pairing)
        return why if self.half.column == VALUE else f"{the}: {why}"


@dataclass(frozen=True)
class Decoding:
    """A decoded batch. ``frame``: Kafka's columns, :data:`ROW` and :data:`PROBLEM`."""

    frame: DataFrame
    writers: Sequence[Writers]
    framing: Framing | None = None
    """What brought the records into the wire format; ``frame`` has their own bytes."""

    def reason(self, record: Mapping[str, Any]) -> str:
        """Return why a record (Kafka's ``key`` and ``value``, and the problem) is malformed."""
        found: str = record[PROBLEM]["reason"]
        for writers in self.writers:
            if found == generic(writers.half):
                return writers.problem(bytes(record[writers.half.column]), self.framing)
        return found


@dataclass
class Decoder:
    """A batch, what it is decoded with, and what of it is decoded so far."""

    frame: DataFrame
    """Records from :mod:`topicberg.tableflow.reading`."""
    spec: TopicSpec
    layout: Layout
    foreign: ForeignSchemas
    """Schemas of other subjects that records are known to name."""
    fields: Sequence[NestedField]
    """The columns of the table."""
    columns: StructType
    """The same as Spark has them."""
    types: Types
    """What Spark returned for earlier batches; it is not requested again."""
    framing: Framing | None = None
    """What brings changes into the wire format; None: they are."""
    problems: list[Column] = field(default_factory=list)
    writers: list[Writers] = field(default_factory=list)

    def half(
        self, half: Half, fields: Sequence[NestedField], columns: StructType
    ) -> tuple[Column, list[str]]:
        """Return the struct of a decoded half, and the struct's columns.

        :raises TableflowError: the latest schema does not fit the columns
        """
        writers = Writers(half, self.foreign, fields)
        self.frame, decoded, names = decode_half(self.frame, writers, columns, self.types)
        self.writers.append(writers)
        self.problems.append(problem_of(writers, decoded.getField(DECODED)))
        return decoded, names

    def decoding(self, row: Sequence[Column], **more: Column) -> Decoding:
        """Return the batch with its rows, its problems and other columns."""
        nothing = F.lit(None).cast("struct<reason: string, schema_id: bigint>")
        problem = F.coalesce(*self.problems, nothing)
        frame = self.frame.withColumns({ROW: F.struct(*row), PROBLEM: problem, **more})
        if self.framing is not None:
            frame = self.framing.restored(frame)
        return Decoding(frame, self.writers, self.framing)


def decode(batch: Decoder) -> Decoding:
    """Decode a batch.

    :raises TableflowError: the latest schema does not fit the table
    """
    spec, layout, problems = batch.spec, batch.layout, batch.problems
    unreadable = F.col(UNREADABLE)
    if spec.write_mode == "upsert":  # a tombstone deletes a row and does not become one
        unreadable = F.when(F.col(VALUE).isNotNull(), unreadable)
    problems.append(F.when(unreadable.isNotNull(), problem_struct(unreadable)))
    if spec.write_mode == "upsert":
        keyless = problem_struct("the record has no key to upsert by")
        problems.append(F.when(F.col(KEY).isNull(), keyless))
    found: dict[str, Column] = {}
    for half in (layout.key, layout.value):
        if half.subject is None:
            if half.column == VALUE or holds_raw_key(layout, batch.fields):
                found[half.column] = F.col(half.column)
            continue
        own = _columns_of(half, layout, batch.fields)
        decoded, names = batch.half(half, own, batch.columns)
        for name in names:
            value = decoded.getField(name)
            if name in found:  # the key has this field too
                ids = [wire_prefix(number) for number in batch.writers[-1].filled(name)]
                value = F.when(_prefix(half).isin(ids), value).otherwise(found[name])
            found[name] = value
    metadata = metadata_values(spec)
    row = []
    for column in batch.columns:
        if column.name in metadata:
            value = metadata[column.name].cast(column.dataType)
        else:
            value = found.get(column.name, F.lit(None).cast(column.dataType))
        row.append(value.alias(column.name))
    return batch.decoding(row)


def _columns_of(half: Half, layout: Layout, fields: Sequence[NestedField]) -> Sequence[NestedField]:
    """Return the table's columns, without those of the value that a key's field does not fit."""
    value = layout.value.subject
    if half.column == VALUE or value is None:
        return fields
    natural = {field.name: _shape(field) for field in half.fields()}
    unlike = {one.name for one in fields if natural.get(one.name, _shape(one)) != _shape(one)}
    if not unlike:
        return fields
    written = (
        format_of(one).written(one, value.latest, layout.value.message)
        for one in value.schemas.values()
        if one.schema_type == value.latest.schema_type
    )
    shared = unlike & frozenset().union(*written)
    return [one for one in fields if one.name not in shared]


def _shape(field: NestedField) -> str:
    """Return the type without field ids."""
    return re.sub(r"\b\d+: ", "", str(field.field_type))


def problem_struct(reason: str | Column, schema_id: Column | None = None) -> Column:
    number = F.lit(None).cast("long") if schema_id is None else schema_id
    return F.struct(F.lit(reason).alias("reason"), number.alias("schema_id"))


def generic(half: Half) -> str:
    """Return the reason that Spark can give by itself."""
    return f"the {half.column} cannot be decoded"


def _shown(raw: bytes) -> str:
    if not raw:
        return "empty"
    return f"{len(raw)} bytes that begin with {raw[:WIRE_BYTES].hex(' ')}"


def _prefix(half: Half) -> Column:
    return F.substring(F.col(half.column), 1, WIRE_BYTES)


def _wrapped(writer: RegisteredSchema, payload: bytes) -> bytes:
    if writer.wrapped_as is None:
        return payload
    return b"".join(part if isinstance(part, bytes) else payload for part in _around(writer))


def _around(writer: RegisteredSchema) -> tuple[bytes | None, ...]:
    """Return the bytes before and after a JSON value that make it an object; None: the value."""
    return f"{{{json.dumps(writer.wrapped_as)}:".encode(), None, b"}"


def decode_half(
    records: DataFrame, writers: Writers, columns: StructType, types: Types
) -> tuple[DataFrame, Column, list[str]]:
    """Return the records with a decoded half, its struct, and the struct's columns.

    The struct is null if there are no bytes, and if the schema is unknown or not accepted.
    """
    half, fields, latest = writers.half, writers.fields, writers.subject.latest
    prefix = _prefix(half)
    payload = F.substring(F.col(half.column), WIRE_BYTES + 1, 2**31 - 1)
    branches: dict[int, Column] = {}
    for number, writer in _candidates(writers):
        # A CASE around the result does not help: Spark runs Python functions for every row in it.
        of_writer = F.when(prefix == F.lit(wire_prefix(number)), payload)
        if writer.wrapped_as is not None:
            around = (of_writer if part is None else F.lit(part) for part in _around(writer))
            of_writer = F.concat(*around)
        try:
            filled = format_of(writer).written(writer, latest, half.message)
            check_names(writer, filled, fields)
            pairing = Pairing(writer, latest, fields, half.message)
            records, branches[number] = format_of(writer).decode(records, of_writer, pairing)
        except (TableflowError, ValueError, KeyError, TypeError, RecursionError) as error:
            if number == latest.schema_id:
                raise
            writers.refused[number] = f"which does not fit the table: {_why(error)}"
            continue
        writers.accepted[number] = writer
        writers.columns[number] = filled
    key = (half.column, half.message, latest, *writers.accepted.values(), str(fields))
    if (have := types.get(key)) is None:
        found = records.select(*(b.alias(str(number)) for number, b in branches.items())).schema
        have = {number: frozenset(found[str(number)].dataType.names) for number in branches}  # type: ignore[attr-defined]
        if len(types) >= MAX_TYPES:
            types.clear()
        types[key] = have
    names = [column.name for column in columns if column.name in set().union(*have.values())]
    name = f"__topicberg_{half.column}"
    if len(branches) == 1:  # it is null, or has only nulls, for records of other writers
        return records.withColumn(name, *branches.values()), F.col(name), names
    value: Any = F
    for number, branch in branches.items():
        members = [branch.getField(DECODED).alias(DECODED)]
        for column in columns:
            if column.name in names:
                member = F.lit(None).cast(column.dataType)
                if column.name in have[number]:
                    member = branch.getField(column.name)
                members.append(member.alias(column.name))
        value = value.when(prefix == F.lit(wire_prefix(number)), F.struct(*members))
    return records.withColumn(name, value), F.col(name), names


def check_names(
    writer: RegisteredSchema, filled: frozenset[str], fields: Sequence[NestedField]
) -> None:
    """Refuse a schema with a field that would be lost; Protobuf's fields are matched by number.

    :param filled: the columns that the schema has a field for
    :raises TableflowError: a name differs only in case from the name of an existing column
    """
    if writer.schema_type == "PROTOBUF":
        return
    own = [one for one in _natural(writer) if one.name in filled]
    for name, twin in twins(fields, own):
        raise TableflowError(f"its field {name} differs only in case from the column {twin}")


@lru_cache(maxsize=4_096)
def _natural(writer: RegisteredSchema) -> tuple[NestedField, ...]:
    """Return the columns of a table that only this schema defines."""
    return tuple(format_of(writer).fields(f"schema {writer.schema_id}", writer, itertools.count(1)))


def _candidates(writers: Writers) -> list[tuple[int, RegisteredSchema]]:
    """Return the subject's own schemas, and those of other subjects that have the same type."""
    own, latest = writers.subject.schemas, writers.subject.latest
    found: list[tuple[int, RegisteredSchema]] = []
    expected = _identity(latest, writers.half.message)
    for number, schema in writers.foreign.schemas.items():
        if number in own:
            continue
        schema = replace(schema, parses_times=latest.parses_times)
        if writers.half.has_connect_types:
            schema = with_connect_types(schema)
        writer = as_record(schema, KEY) if writers.half.column == KEY else schema
        if why := _unlike(writer, latest, expected, writers.half.message):
            writers.refused[number] = why
        elif len(found) >= MAX_FOREIGN_WRITERS:
            writers.refused[number] = (
                f"which is one of more than {MAX_FOREIGN_WRITERS} schemas of other subjects"
            )
        else:
            found.append((number, writer))
    for number, writer in own.items():
        if writer.schema_type == latest.schema_type:
            found.append((number, writer))
        else:
            writers.refused[number] = _other_type(writer, latest)
    return found


def _other_type(writer: RegisteredSchema, latest: RegisteredSchema) -> str:
    return f"which is of type {writer.schema_type}; the table is of {latest.schema_type}"


def _unlike(
    writer: RegisteredSchema,
    latest: RegisteredSchema,
    expected: str | TableflowError | None,
    message: str | None,
) -> str | None:
    """Return why a schema of another subject is not one for these records; None: it is one."""
    if writer.schema_type != latest.schema_type:
        return _other_type(writer, latest)
    found = _identity(writer, message)
    if isinstance(found, TableflowError):
        return f"which cannot be read: {found.message}"
    if found is None or found != expected:
        named = f"is {found}" if found else "has no name"
        return f"which {named}, of another subject; the records of this topic are {expected}"
    return None


@lru_cache(maxsize=4_096)
def _identity(schema: RegisteredSchema, message: str | None) -> str | TableflowError | None:
    try:
        return format_of(schema).identity(schema, message)
    except (TableflowError, ValueError, KeyError, TypeError, RecursionError) as error:
        return error if isinstance(error, TableflowError) else TableflowError(_why(error))


def _why(error: Exception) -> str:
    return error.message if isinstance(error, TableflowError) else f"{type(error).__name__}"


def problem_of(writers: Writers, is_decoded: Column) -> Column:
    raw, prefix = F.col(writers.half.column), _prefix(writers.half)
    accepted = prefix.isin([wire_prefix(number) for number in writers.accepted])
    known = {*writers.accepted, *writers.refused, *writers.foreign.missing}
    is_framed = (F.length(raw) >= WIRE_BYTES) & (F.substring(raw, 1, 1) == F.lit(b"\x00"))
    is_new = is_framed & ~prefix.isin([wire_prefix(number) for number in known])
    named = F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("long")
    return F.when(
        raw.isNotNull() & ~(accepted & F.coalesce(is_decoded, F.lit(False))),
        problem_struct(generic(writers.half), F.when(is_new, named)),
    )


def held_key(raw: bytes) -> bytes:
    """Return a raw key as upsert tables hold it, like ``$$raw-key`` below."""
    return raw if len(raw) <= HASHED_KEY_BYTES else hashlib.sha256(raw).digest()


def metadata_values(spec: TopicSpec) -> dict[str, Column]:
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
