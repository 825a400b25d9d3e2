"""The keys of an upsert table: read from its data files, and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from topicberg.iceberg.file_columns import missing_column, with_names_of
from topicberg.iceberg.files import names_by_id
from topicberg.tableflow import key_files
from topicberg.tableflow.arrays import whole
from topicberg.tableflow.key_files import (
    HeldKeys,
    Keys,
    merged,
    with_partition,
)
from topicberg.tableflow.key_values import key_text
from topicberg.tableflow.upsert_key import UpsertKey

NO_TIME = np.iinfo(np.int64).min
"""The time of a record without one."""
DecodeKeys = Callable[[Any], Any]
"""Returns the texts of raw keys; null: a key cannot be decoded. Both are Arrow arrays."""
_ROWS_AT_ONCE = 200_000
_DECODED_VERSION = 1
"""Increase it with any change of :mod:`topicberg.tableflow.key_values`."""
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
    ) -> None:
        """See :class:`topicberg.tableflow.keys.KeyIndex`."""
        self.table_uuid = table.metadata.table_uuid
        self.key, self.decode = key, decode
        schema = table.schema()
        self._key_ids = tuple(
            schema.find_field(name).field_id for name in (() if key else key_columns)
        )
        self._key_types = key_types(schema, key_columns) if is_decoded else None
        self.definition = self._probe()
        """Differs if other keys are equal, or if they are hashed otherwise."""

    def hashes(self, columns: Sequence[Any], first: int = 0) -> Keys:
        """Return the keys of rows, given their key columns; see :meth:`hashed`."""
        if self._key_types is None:
            return self.hashed(columns[0], columns[1], first)
        return hash_values(self.table_uuid, columns, self._key_types, first)

    def hashed(self, raw: Any, partition: Any, first: int = 0) -> Keys:
        """Return the keys of rows from position ``first`` on, in order, without null keys.

        :param raw: raw keys, or the texts of decoded ones
        """
        hash_rows = hash_keys if self.key is None else hash_decoded
        return hash_rows(self.table_uuid, raw, partition, first)

    def hashed_raw(self, raw: Any, partition: Any) -> Keys:
        """Return the keys of records, given their raw keys; without those that are malformed.

        :param raw: of keys without a schema: as tables hold them
        """
        if self.key is None:
            return self.hashed(raw, partition)
        if not len(raw):
            return merged([])
        text = self.decode(raw)
        rows = np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False))
        keys = self.hashed(text.take(rows), partition.take(rows))
        return Keys(keys.high, keys.low, rows[keys.position].astype(np.uint32))

    def of_file(self, table: Table, file: DataFile) -> HeldKeys:
        """Return the keys of a data file, which is read."""
        if self.key is not None:
            texts = key_texts(table, file, self.key, self.decode)
            return HeldKeys.of(merged([self.hashed(*each) for each in texts]))
        columns = _key_columns(table, file, self._key_ids, is_decoded=self._key_types is not None)
        return HeldKeys.of(merged([self.hashes(*each) for each in columns]))

    def _probe(self) -> str:
        """Return a digest of the key format: key files of another format are not read."""
        keys = self.hashed(
            pa.array([b"", b"\x00", b"k" * 256], pa.binary()), pa.array([0, 1, 2], pa.int32())
        )
        content = b"".join(part.tobytes() for part in (keys.high, keys.low, keys.position))
        content += repr((key_files.FORMAT, self._key_ids)).encode()
        if self._key_types is not None:
            content += repr(list(map(str, self._key_types))).encode()
            if any(map(_is_floating, self._key_types)):
                content += b"-0.0 is 0.0"
        if self.key is not None:
            content += repr((_DECODED_VERSION, self.key.definition)).encode()
        return hashlib.blake2b(content, digest_size=8).hexdigest()


def hash_keys(table_uuid: UUID, raw: Any, partition: Any, first: int = 0) -> Keys:
    """Return the keys of rows, given the Arrow arrays of raw keys and partitions.

    They are in the order of the rows, without those whose key is null.

    :param first: position of the first row
    """
    from topicberg.tableflow.key_hash import hashes

    has_key = pc.and_(raw.is_valid(), partition.is_valid())
    keys = whole(raw.filter(has_key).cast(pa.binary()))
    spread = partition.filter(has_key).to_numpy(zero_copy_only=False).astype(np.uint64) * _SPREAD
    secret = table_uuid.hex.encode()
    high, low = (hashes(keys, part) for part in (secret[:16], secret[16:]))
    high ^= spread
    position = np.flatnonzero(has_key.to_numpy(zero_copy_only=False)) + first
    return Keys(high, low, position.astype(np.uint32))


def hash_values(
    table_uuid: UUID, columns: Sequence[Any], types: Sequence[pa.DataType], first: int = 0
) -> Keys:
    """Return the keys of all rows, given their key columns, whose values are compared.

    :param types: see :func:`key_types`
    """
    text = one_text(columns, types)
    return hash_keys(table_uuid, text, pa.array(np.zeros(len(text), np.int32)), first)


def hash_decoded(table_uuid: UUID, text: Any, partition: Any, first: int = 0) -> Keys:
    """Return the keys of rows, given the texts of decoded keys; see :func:`hash_keys`."""
    text, partition = whole(text), whole(partition)
    is_there = partition.is_valid()
    nowhere = pa.array(np.zeros(len(text), np.int32))
    found = hash_keys(table_uuid, text.filter(is_there), nowhere.filter(is_there))
    rows = np.flatnonzero(is_there.to_numpy(zero_copy_only=False)) + first
    partitions = partition.filter(is_there).to_numpy(zero_copy_only=False)
    low = with_partition(found.low, partitions[found.position])
    return Keys(found.high, low, rows[found.position].astype(np.uint32))


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
        versions = pa.array(key.versions, named.type)
        version = pc.index_in(named, versions).fill_null(-1).to_numpy()
        micros[micros != NO_TIME] += 1 + version[micros != NO_TIME]
    return micros


def _is_floating(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def key_types(schema: Schema, names: Sequence[str]) -> list[pa.DataType]:
    """Return the types of a table's columns whose values are keys."""
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    return [arrow.field(name).type for name in names]


def one_text(columns: Sequence[Any], types: Sequence[pa.DataType]) -> Any:
    """Return one binary value for each row: equal if and only if the values of all columns are.

    :param types: of the columns in the table; files may have narrower ones
    """
    return key_text([pc.cast(one, kind) for one, kind in zip(columns, types, strict=True)])


def _key_columns(
    table: Table,
    file: DataFile,
    field_ids: tuple[int, ...],
    *,
    is_decoded: bool = False,
) -> Iterator[tuple[list[Any], int]]:
    """Yield the key columns of some rows, and the position of the first one.

    Raw keys: yields nothing if the file has no such columns. A column of a decoded key that the
    file does not have is null, or its default.
    """
    with table.io.new_input(file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        schema, arrow = table.schema(), parquet.schema_arrow
        names = names_by_id(arrow)
        if not is_decoded and not names.keys() >= set(field_ids):
            return
        columns = [names[number] for number in field_ids if number in names]
        first = 0
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=columns):
            arrays = [
                with_names_of(schema, batch.column(names[number]), arrow.field(names[number]))
                if number in names
                else missing_column(schema.find_field(number), batch.num_rows)
                for number in field_ids
            ]
            yield arrays, first
            first += batch.num_rows


def key_texts(
    table: Table, file: DataFile, key: UpsertKey, decode: DecodeKeys
) -> Iterator[tuple[Any, Any, int]]:
    """Yield the texts of the decoded keys of some rows, their partitions, and the first position.

    Rows that others wrote, without a partition, have no key.
    """
    schema = table.schema()
    fields = {name: schema.find_field(name).field_id for name in (*key.names, key.partition)}
    raw_id = schema.find_field(key.raw).field_id
    with table.io.new_input(file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        arrow = parquet.schema_arrow
        names = names_by_id(arrow)
        if fields[key.partition] not in names:
            return
        ids = [*fields.values(), *(() if key.is_in_columns else (raw_id,))]
        columns = [names[number] for number in ids if number in names]
        first = 0
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=columns):
            nothing = pa.nulls(batch.num_rows)  # of no type: it has the text of an absent field
            arrays = {
                name: with_names_of(schema, batch.column(names[number]), arrow.field(names[number]))
                if number in names
                else nothing
                if schema.find_field(number).initial_default is None
                else missing_column(schema.find_field(number), batch.num_rows)
                for name, number in fields.items()
            }
            text = key_text([arrays[name] for name in key.names], key.shapes)
            if not key.is_in_columns and raw_id in names:
                # The columns may have the value's fields. They are for keys that cannot be decoded
                # any more: earlier versions of topicberg kept only the SHA-256 of a long key.
                text = pc.coalesce(decode(batch.column(names[raw_id])), text)
            yield text, arrays[key.partition], first
            first += batch.num_rows
