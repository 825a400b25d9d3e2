"""Changes of a database's table as rows: Debezium's envelope, decoded like any other record.

The envelope of a record is decoded by its writer's schema into the row after the change (and, in
write mode append, before it), with the types of the table's columns. What it says of the change
itself are the :data:`FACTS`; :mod:`.changelog.folding` makes the current rows of both.

Source: Debezium's documentation of its PostgreSQL connector, "Data change events".
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats import metadata
from topicberg.formats.envelope import AFTER, BEFORE, OPERATION, SOURCE
from topicberg.formats.reasons import shown
from topicberg.tableflow.changelog.placeholders import is_placeholder, toastable
from topicberg.tableflow.layout.message_fields import Layout
from topicberg.tableflow.values.arrays import flags
from topicberg.tableflow.values.metadata import FIRST_MS, LAST_MS

READ = "r"
"""A snapshot read the row: the change has the time of the reading."""
LIVE = ("c", "u", READ)
"""Operations after which the row exists."""
OPERATIONS = (*LIVE, "d", "t")
MESSAGE = "m"
"""An operation without a row."""
MAX_KEY_BYTES = 65_536
"""Of a key whose decoded values identify a row: the engine's process holds the keys of a batch."""
TRANSACTION = "transaction"
OLD_KEY, NEW_KEY = "__debezium.oldkey", "__debezium.newkey"
"""Headers of the two halves of a change of the primary key: the other key, as JSON."""
FACTS = ("op", "m", "p", "old_key", "new_key")
"""Of a change: the operation (null: a tombstone), time in microseconds and position in the source,
and the other key, if the change is half of a change of the primary key."""
_KEY = "__topicberg_key_"
_TIMES = ("ts_ms", "ts_us", "ts_ns")
_POSITIONS = ("lsn", "file", "commit_lsn", "scn")
_SOURCE_FIELDS = (
    *(*_TIMES, "snapshot", "txId", "lsn", "file", "pos", "row", "gtid"),
    *("commit_lsn", "change_lsn", "event_serial_no", "scn", "commit_scn"),
)
_WHOLE = (*_TIMES, "lsn")
"""Of these, those that are whole numbers; the others are numbers or text."""
_NUMBERS = (T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DecimalType, T.StringType)
"""Types of columns that can hold a whole number: text is that of a JSON value."""
_DIGITS = 20
"""Of a number in a position."""
_ZERO = "0" * _DIGITS
_BEYOND = 2**63
"""No whole number of 64 bits is so large."""
_FILE_DIGITS = 6
"""At least, of the number of a file of MySQL's log."""


def key_names(layout: Layout) -> list[str]:
    """Return the columns of the primary key; none: the keys have no schema."""
    return [field.name for field in layout.key.fields()] if layout.key.subject else []


def key_columns(keys: Sequence[str]) -> list[str]:
    """Return names of the columns of a key beside facts, whose names a column may have."""
    return [f"{_KEY}{number}" for number in range(len(keys))]


def envelope(layout: Layout, rows: Sequence[T.NestedField]) -> list[T.NestedField]:
    """Return the decoded parts of the envelope as columns, given those of the rows.

    :raises TableflowError: a field of the source has another type than Debezium gives it
    """
    ids = itertools.count(1_000_000)
    own = list(rows)
    if any(field.write_default is not None for field in own):
        versions = [layout.value.fields(), *layout.value.older_fields(itertools.count(1))]
        written = {field.name for version in versions for field in version}
        # No change has the others, whose default new rows have.
        own = [field for field in own if field.write_default is None or field.name in written]
    columns = [field for field in own if field.name in (BEFORE, AFTER)]
    if layout.value.changes == "rows":
        columns = [_optional(ids, AFTER, T.StructType(*own))]
    source = layout.value.source_fields()
    parts = [_optional(ids, name, source[name]) for name in _SOURCE_FIELDS if name in source]
    for part in parts:
        kind, is_whole = part.field_type, part.name in _WHOLE
        if not isinstance(kind, _NUMBERS if is_whole else T.PrimitiveType):
            raise TableflowError(
                f"field source.{part.name} is {kind}; Debezium writes "
                + ("a whole number" if is_whole else "a number or text"),
                hint="`changelog` is for changes as Debezium writes them: remove it for others",
            )
    if layout.value.changes == "rows" and not source.keys() & {*_TIMES, *_POSITIONS}:
        raise TableflowError(
            f"field source has no time ({', '.join(_TIMES)}) or position of the change: which "
            "change of a row is the newest one is not known",
            hint="set `write_mode: append`, or let the connector write the time",
        )
    columns += (
        _optional(ids, SOURCE, T.StructType(*parts)),
        _optional(ids, OPERATION, T.StringType()),
    )
    # Without a schema, JSON does not show the type of a transaction that is null.
    if isinstance(layout.value.envelope().get(TRANSACTION), T.StructType):
        transaction = T.StructType(_optional(ids, "id", T.StringType()))
        columns.append(_optional(ids, TRANSACTION, transaction))
    return columns


def _optional(ids: itertools.count[int], name: str, kind: T.IcebergType) -> T.NestedField:
    return T.NestedField(next(ids), name, kind, required=False)


@dataclass(frozen=True)
class ChangePlan:
    """What becomes of decoded envelopes; small enough to be sent to a task."""

    is_folded: bool
    """Whether the table has the current rows; else every change is a row."""
    rows: tuple[T.NestedField, ...]
    """The table's columns without the metadata columns."""
    keys: tuple[str, ...]
    """Of these, those of the primary key; none: the keys have no schema."""
    source: Mapping[str, T.IcebergType]
    """The fields of the source that are decoded."""
    columns: Mapping[str, str]
    """The metadata columns of a change → their names in the table."""
    placeholder: str
    """What the connector writes instead of a value that it does not have."""

    @classmethod
    def of(
        cls,
        layout: Layout,
        rows: Sequence[T.NestedField],
        columns: Mapping[str, str],
        placeholder: str,
        *,
        is_folded: bool,
    ) -> ChangePlan:
        """Return what becomes of the changes of a layout; the arguments are those of the class."""
        source = {part.name: part.field_type for part in envelope(layout, rows)}[SOURCE]
        assert isinstance(source, T.StructType)  # noqa: S101  see envelope()
        types = {part.name: part.field_type for part in source.fields}
        return cls(is_folded, tuple(rows), tuple(key_names(layout)), types, columns, placeholder)

    @property
    def toast(self) -> list[T.NestedField]:
        """The columns whose values the connector may not have."""
        return toastable(self.rows) if self.is_folded else []


@dataclass(frozen=True)
class Envelopes:
    """Changes as columns, one place for each record."""

    columns: Mapping[str, pa.Array]
    """Of the table, without those of Kafka's metadata and those that no record has."""
    facts: Mapping[str, pa.Array]
    """See :data:`FACTS`."""
    missing: NDArray[np.bool_]
    """For each of :attr:`ChangePlan.toast`: whether the connector did not have the value."""
    wrong: dict[int, str] = field(default_factory=dict)
    """Records that are no changes, and why."""


def read_envelopes(
    plan: ChangePlan,
    keys: Mapping[str, pa.Array],
    values: Mapping[str, pa.Array],
    has_value: NDArray[np.bool_],
    key_sizes: NDArray[np.int64],
) -> Envelopes:
    """Return the changes of records with decoded keys, envelopes and sizes of keys (-1: no key)."""
    count = len(has_value)
    nothing = pa.nulls(count)
    op = values.get(OPERATION, nothing.cast(pa.string()))
    source = _members(values.get(SOURCE))
    micros, out_of_range = _micros(source, count)
    position, without_position = _position(source, plan.source, count)
    columns, after = dict(keys), values.get(AFTER)
    if plan.is_folded:
        for name, column in _members(after).items():
            columns[name] = pc.coalesce(columns[name], column) if name in columns else column
    else:
        columns |= {name: values[name] for name in (BEFORE, AFTER) if name in values}
    missing, inside = np.zeros((len(plan.toast), count), np.bool_), _members(after)
    for place, toast_column in enumerate(plan.toast):
        if toast_column.name in inside:
            missing[place] = is_placeholder(
                inside[toast_column.name], toast_column.field_type, plan.placeholder
            )
    transaction = _members(values.get(TRANSACTION)).get("id", nothing.cast(pa.string()))
    if "txId" in source:
        transaction = pc.coalesce(transaction, source["txId"].cast(pa.string()))
    of_change = {
        metadata.OP: op,
        metadata.SOURCE_TIMESTAMP: micros.cast(pa.timestamp("us", "UTC")),
        metadata.SOURCE_POSITION: position,
        metadata.SOURCE_TRANSACTION: transaction,
        metadata.SOURCE_SNAPSHOT: source.get("snapshot", nothing).cast(pa.string()),
    }
    columns |= {column: of_change[name] for name, column in plan.columns.items()}
    has_after = np.zeros(count, np.bool_) if after is None else flags(after.is_valid())
    wrong = dict.fromkeys(
        _numbers(without_position), "field source (struct): lsn is not a number of 64 bits"
    )
    wrong |= dict.fromkeys(
        _numbers(out_of_range), "field source (struct): its time is not in the years 1 to 9999"
    )
    wrong |= _wrong(plan, op, has_value, has_after, key_sizes)
    return Envelopes(columns, {"op": op, "m": micros, "p": position}, missing, wrong)


def _members(struct: pa.Array | None) -> dict[str, pa.Array]:
    """Return the fields of a struct, null where the struct is."""
    members = () if struct is None else zip(struct.type, struct.flatten(), strict=True)
    return {field.name: column for field, column in members}


def _numbers(mask: NDArray[np.bool_]) -> list[int]:
    return [*map(int, np.flatnonzero(mask))]


def _wrong(
    plan: ChangePlan,
    op: pa.Array,
    has_value: NDArray[np.bool_],
    has_after: NDArray[np.bool_],
    key_sizes: NDArray[np.int64],
) -> dict[int, str]:
    """Return why some records are no changes; of several reasons, the one that is set last."""
    reasons: dict[int, str] = {}
    if plan.is_folded:
        live = has_value & flags(pc.is_in(op, pa.array(LIVE)))
        needs_key = live | (has_value & flags(pc.equal(op, "d")))
        reasons = {
            number: f"the key has {key_sizes[number]} bytes, the limit of keys to upsert by is "
            f"{MAX_KEY_BYTES}"
            for number in _numbers(key_sizes > MAX_KEY_BYTES)
        }
        reasons |= dict.fromkeys(
            _numbers(needs_key & (key_sizes < 0)),
            "the record has no key to upsert by: the source's table has no primary key",
        )
        reasons |= dict.fromkeys(
            _numbers(live & ~has_after), "field after (struct): value null, but the row was written"
        )
    return reasons | {
        number: f"field op (string): value {'null' if given is None else shown(given)} is none of "
        + ", ".join(OPERATIONS)
        for number in _numbers(has_value & ~flags(pc.is_in(op, pa.array([*OPERATIONS, MESSAGE]))))
        for given in [op[number].as_py()]
    }


def _micros(source: Mapping[str, Any], count: int) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return the time of each change in the source, and which of them no timestamp can have."""
    micros, wrong = pa.nulls(count, pa.int64()), np.zeros(count, np.bool_)
    for name, factor in (("ts_us", 1), ("ts_ms", 1_000), ("ts_ns", 1)):
        if name in source:
            given, is_no_number = _whole(source[name])
            if name == "ts_ns":  # CockroachDB has no other
                given = pc.divide(given, 1_000)
            first, last = FIRST_MS * 1_000 // factor, (LAST_MS * 1_000 + 999) // factor
            is_wrong = pc.or_(pc.less(given, first), pc.greater(given, last))
            wrong |= flags(pc.and_(pc.or_kleene(is_wrong, is_no_number), micros.is_null()))
            fits = pc.if_else(is_wrong, pa.scalar(None, pa.int64()), given)
            micros = pc.coalesce(micros, pc.multiply(fits, factor))
    return micros, wrong


def _log_files(files: pa.Array) -> pa.Array:
    """Return names of MySQL's log that sort by their numbers: after 999999 comes 1000000.
    https://dev.mysql.com/doc/refman/8.4/en/binary-log.html"""

    def sortable(name: str) -> str:
        base, _, number = name.rpartition(".")
        longer = len(number) - _FILE_DIGITS
        is_longer = base and number.isdecimal() and longer > 0
        return f"{base}.{'~' * longer}{number}" if is_longer else name

    names = files.cast(pa.string()).dictionary_encode()
    return pa.array(map(sortable, names.dictionary.to_pylist()), pa.string()).take(names.indices)


def _whole(column: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return numbers as whole ones of 64 bits, and which values are none (they are null)."""
    try:
        return column.cast(pa.int64()), np.zeros(len(column), np.bool_)
    except pa.ArrowInvalid:  # a fraction, text, or more bits
        numbers = [_integer(value) for value in column.to_pylist()]
    whole = pa.array(numbers, pa.int64())
    return whole, flags(column.is_valid()) & flags(whole.is_null())


def _integer(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < _BEYOND else None


def _position(
    source: Mapping[str, Any], kinds: Mapping[str, T.IcebergType], count: int
) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return what grows along the source's log, or null, and which places have a wrong one."""
    none, nothing = np.zeros(count, np.bool_), pa.nulls(count)

    def padded(name: str, default: str | None = None) -> pa.Array:
        number = pc.utf8_lpad(source.get(name, nothing).cast(pa.string()), _DIGITS, "0")
        return number if default is None else pc.fill_null(number, default)

    def joined(*parts: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(*parts, ":")

    if "lsn" in kinds:  # PostgreSQL
        return _whole(source["lsn"]) if "lsn" in source else (pa.nulls(count, pa.int64()), none)
    if {"file", "pos"} <= source.keys():  # MySQL: mysql-bin.000003, 154, and the row of the event
        return joined(_log_files(source["file"]), padded("pos", _ZERO), padded("row", _ZERO)), none
    if {"commit_lsn", "change_lsn"} <= source.keys():  # SQL Server, Db2, Informix
        # A snapshot reads all changes of a commit, and has no position of one.
        change, event = padded("change_lsn", "~"), padded("event_serial_no", _ZERO)
        return joined(padded("commit_lsn"), change, event), none
    if "scn" in source:  # Oracle: changes are in the order of their transactions' commits
        scn, commit = padded("scn"), padded("commit_scn")
        return joined(pc.max_element_wise(scn, commit), pc.coalesce(scn, commit)), none
    return pa.nulls(count, pa.string()), none
