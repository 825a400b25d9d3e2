"""The keys of an upsert table: read from its data files, and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from topicberg.iceberg.file_columns import missing_column, read_columns
from topicberg.tableflow.layout.upsert_key import UpsertKey
from topicberg.tableflow.upsert import key_files
from topicberg.tableflow.upsert.key_files import HeldKeys, Keys, merged, with_partition
from topicberg.tableflow.values.arrays import whole
from topicberg.tableflow.values.key_hash import hashes
from topicberg.tableflow.values.key_values import key_text

KEYS = "topicberg.keys"
"""Table property: see :class:`KeyState`."""
NO_TIME = np.iinfo(np.int64).min
"""The time of a record without one."""
DecodeKeys = Callable[[Any], Any]
"""Returns the texts of raw keys; null: a key cannot be decoded. Both are Arrow arrays."""
_DECODED_VERSION = 1
"""Increase it with any change of :mod:`topicberg.tableflow.values.key_values`."""
# The partition is multiplied by the golden ratio's 64 bits, which spread small numbers far.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def no_decoder(raw: Any) -> Any:
    """Decode no key: for tables whose index does not need it."""
    raise AssertionError(f"{len(raw)} keys are not decoded")


class KeyHasher:
    """What the keys of a table are, and how they are hashed."""

    def __init__(
        self,
        table: Table,
        key_columns: Sequence[str],
        *,
        is_decoded: bool = False,
        key: UpsertKey | None = None,
        decode: DecodeKeys = no_decoder,
        offset: str = "",
        time: str = "",
    ) -> None:
        """:param key_columns: the raw key and Kafka's partition; or those of a decoded key
        :param is_decoded: whether keys of a change log are compared by value, whatever their bytes
        :param key: of an upsert table whose keys are decoded
        :param decode: decodes the raw keys of such a table, if its columns do not have the keys
        :param offset: the column of the offsets of an upsert table whose keys are not decoded;
            ``time``: of the times
        """
        self.offset = offset if key is None else key.offset
        self.time = time if key is None else key.time
        self.table_uuid = table.metadata.table_uuid
        self.key, self.decode = key, decode
        self.of = (self.table_uuid, tuple(key_columns), key)
        """What the keys are of."""
        schema = table.schema()
        self._key_ids = tuple(
            schema.find_field(name).field_id for name in (() if key else key_columns)
        )
        self._key_types = key_types(schema, key_columns) if is_decoded else None

    @classmethod
    def of_upserts(cls, table: Table, key: UpsertKey, decode: DecodeKeys) -> Self:
        """Return what hashes the keys of an upsert table without a change log."""
        if key.is_decoded:
            return cls(table, key.names, key=key, decode=decode)
        return cls(table, (key.raw, key.partition), offset=key.offset, time=key.time)

    def hashes(self, columns: Sequence[Any], first: int = 0) -> Keys:
        """Return the keys of rows, given their key columns; see :meth:`hashed`."""
        types = self._key_types
        return (
            self.hashed(columns[0], columns[1], first)
            if types is None
            else hash_values(self.table_uuid, columns, types, first)
        )

    def hashed(self, raw: Any, partition: Any, first: int = 0) -> Keys:
        """Return the keys, raw or texts of decoded ones, that are not null; ``first``: position."""
        return hash_keys(self.table_uuid, raw, partition, first, are_decoded=self.key is not None)

    def hashed_raw(self, raw: Any, partition: Any) -> Keys:
        """Return the keys that are not malformed; raw ones without a schema as tables hold them."""
        if self.key is None:
            return self.hashed(raw, partition)
        text = self.decode(raw)
        rows = np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False))
        keys = self.hashed(text.take(rows), partition.take(rows))
        return Keys(keys.high, keys.low, rows[keys.position].astype(np.uint32))

    def of_file(self, table: Table, file: DataFile) -> HeldKeys:
        """Return the keys of a data file, which is read."""
        if self.key is not None:
            parts = [self.hashed(*t) for t in key_texts(table, file, self.key, self.decode)]
        else:
            is_decoded = self._key_types is not None
            columns = _key_columns(table, file, self._key_ids, is_decoded=is_decoded)
            parts = [self.hashes(*of_part) for of_part in columns]
        return HeldKeys.of(merged(parts))

    @cached_property
    def definition(self) -> str:
        """A digest of how keys are compared and hashed: key files of another one are not read."""
        keys = self.hashed(
            pa.array([b"", b"\x00", b"k" * 256], pa.binary()), pa.array([0, 1, 2], pa.int32())
        )
        content = b"".join(part.tobytes() for part in (keys.high, keys.low, keys.position))
        content += repr((key_files.FORMAT, self._key_ids)).encode()
        if self._key_types is not None:
            content += repr(list(map(str, self._key_types))).encode()
            if any(map(pa.types.is_floating, self._key_types)):
                content += b"-0.0 is 0.0"
        if self.key is not None:
            content += repr((_DECODED_VERSION, self.key.definition)).encode()
        return hashlib.blake2b(content, digest_size=8).hexdigest()


def hash_keys(
    table_uuid: UUID, raw: Any, partition: Any, first: int = 0, *, are_decoded: bool = False
) -> Keys:
    """Return the keys of rows, in order, from partitions and raw keys, or texts of decoded ones.

    Those with a null are left out. Positions begin with ``first``.

    :param are_decoded: equal keys have equal hashes in all partitions, but for the bits of these
    """
    has_key = pc.and_(raw.is_valid(), partition.is_valid())
    keys = whole(raw.filter(has_key).cast(pa.binary()))
    partitions = partition.filter(has_key).to_numpy(zero_copy_only=False)
    secret = table_uuid.hex.encode()
    high, low = (hashes(keys, part) for part in (secret[:16], secret[16:]))
    if are_decoded:
        low = with_partition(low, partitions)
    else:
        high ^= partitions.astype(np.uint64) * _SPREAD
    position = np.flatnonzero(has_key.to_numpy(zero_copy_only=False)) + first
    return Keys(high, low, position.astype(np.uint32))


def hash_values(
    table_uuid: UUID, columns: Sequence[Any], types: Sequence[pa.DataType], first: int = 0
) -> Keys:
    """Return the keys of all rows by the values of key columns of :func:`key_types`."""
    text = one_text(columns, types)
    return hash_keys(table_uuid, text, pa.array(np.zeros(len(text), np.int32)), first)


def times_of(times: Any, raw: Any, key: UpsertKey) -> NDArray[np.int64]:
    """Return what orders records of a decoded key in several partitions.

    These are microseconds since 1970. Kafka's times are milliseconds, so the last three digits are
    free: they are the version of the key's schema, which is newer in the newer one of two records
    of one millisecond. A record without a time is older than all others.
    """
    times, raw = whole(times), whole(raw)
    micros: NDArray[np.int64] = times.cast(pa.int64()).fill_null(NO_TIME).to_numpy().copy()
    if len(key.versions) > 1:
        named = pc.fill_null(pc.binary_slice(raw, *key.version_at), b"")
        version = pc.index_in(named, pa.array(key.versions, named.type)).fill_null(-1).to_numpy()
        micros[micros != NO_TIME] += 1 + version[micros != NO_TIME]
    return micros


def key_types(schema: Schema, names: Sequence[str]) -> list[pa.DataType]:
    """Return the types of a table's columns whose values are keys."""
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    return [arrow.field(name).type for name in names]


def one_text(columns: Sequence[Any], types: Sequence[pa.DataType]) -> Any:
    """Return binary values, equal if and only if all columns, cast to their table's types, are."""
    return key_text([pc.cast(one, kind) for one, kind in zip(columns, types, strict=True)])


def _key_columns(
    table: Table, file: DataFile, field_ids: Sequence[int], *, is_decoded: bool
) -> Iterator[tuple[list[Any], int]]:
    """Yield the key columns of some rows, and the position of the first one. Raw keys: yields
    nothing if the file has no such columns. A column of a decoded key that the file lacks is null,
    or its default."""
    schema = table.schema()
    fields = [schema.find_field(number) for number in field_ids]
    names = [field.name for field in fields]
    for columns, rows, first in read_columns(table.io, file.file_path, schema, names):
        if not is_decoded and len(columns) < len(fields):
            return
        arrays = [
            columns[field.name] if field.name in columns else missing_column(field, rows)
            for field in fields
        ]
        yield arrays, first


def key_texts(
    table: Table, file: DataFile, key: UpsertKey, decode: DecodeKeys
) -> Iterator[tuple[Any, Any, int]]:
    """Yield texts of decoded keys, partitions and first position; others' rows have no key."""
    schema = table.schema()
    fields = [schema.find_field(name) for name in key.names]
    names = [*key.names, key.partition, *(() if key.is_in_columns else (key.raw,))]
    for columns, rows, first in read_columns(table.io, file.file_path, schema, names):
        if key.partition not in columns:
            return
        nothing = pa.nulls(rows)  # of no type: it has the text of an absent field
        arrays = [
            columns[field.name]
            if field.name in columns
            else nothing
            if field.initial_default is None
            else missing_column(field, rows)
            for field in fields
        ]
        text = key_text(arrays, key.shapes)
        if key.raw in columns:
            # The columns may have the value's fields. They are for keys that cannot be decoded, as
            # rows of another writer have none.
            text = pc.coalesce(decode(columns[key.raw]), text)
        yield text, columns[key.partition], first


class KeyState(BaseModel):
    """How decoded keys are compared, and since when.

    The summary of each batch says which keys it took as equal. If the newest batch took others, or
    compared bytes, the next one rebuilds the index and deletes the rows whose keys newer rows have.
    """

    columns: list[str]
    """The fields of the newest key schema."""
    rebuilt_at_ms: int | None = None
    """When the index was rebuilt because other keys became equal; None: never."""
    rows_removed: int = 0
    """Rows that were deleted then: a newer row had their key."""

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> KeyState | None:
        """Return it from the properties of a table, or None."""
        try:
            return cls.model_validate_json(properties[KEYS])
        except (KeyError, ValidationError):  # ValidationError: written manually
            return None
