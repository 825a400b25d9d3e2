"""The table that is derived: created, and changed to the columns that its function returns."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import count

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.iceberg import summaries, tables
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.table import check_types, create_table, keep_bounds
from topicberg.topics.columns import check_names
from topicberg.topics.spec import PartitionField
from topicberg.transforms.derivation import TableName

_TRANSFORMS = ("hour", "day", "month", "year")  # Iceberg's transforms of times, the shortest first.
_PROPERTIES = {"write.merge.mode": "merge-on-read"}

COMPUTED = "topicberg.computed"  # Table property, ``true``: its rows are computed, and replaced.
WRITE_ID = "topicberg.write-id"  # Snapshot summary: of the attempt that computed it.


def ensure_table(
    catalog: Catalog,
    name: TableName,
    columns: pa.Schema,
    partition: tuple[str, str] | None = None,
    format_version: int = 2,
    before: Table | None = None,
) -> Table:
    """Create or evolve a table so that it has these columns and at least one snapshot.

    Without rows the snapshot is empty; the first overwrite is validated against it.

    :param partition: column and Iceberg transform
    :param format_version: of a new table
    :param before: the table as it was before its sources were loaded; None: there was none
    :raises CommitConflictError: another run wrote since then, maybe from newer sources
    :raises TopicbergError: a column cannot have its new type, or the partitions are longer; or it
        has rows of others
    """
    check_names(f"table {'.'.join(name)}", columns.names)
    head, table = head_id(before), before or tables.find_table(catalog, name)
    if table is None:
        table = _create(catalog, name, columns, partition, format_version)
    else:
        _adopt(table)
        _evolve(table, columns)
        if partition:
            _check_partition(table, *partition)
            keep_bounds(table, partition[:1])
    if table.current_snapshot() is None:  # new, or the run that created it was killed
        with suppress(CommitConflictError):  # another run was faster
            SnapshotChange(table, Operation.APPEND).commit()
        table.refresh()
    if head_id(table) != head and (head is not None or has_rows(table)):
        raise CommitConflictError(f"table {'.'.join(name)}: another run wrote to it")
    return table


def _adopt(table: Table) -> None:
    """Mark a table as computed, unless it has rows and topicberg did not create it."""
    if COMPUTED in table.properties:
        return
    if has_rows(table):
        raise TopicbergError(
            f"table {'.'.join(table.name())} exists and has rows that topicberg did not compute: "
            "they would be replaced",
            hint="give the function or the view another name, or drop the table; if topicberg may "
            f"replace the rows, set the table property `{COMPUTED}` to `true`",
        )
    with table.transaction() as transaction:
        transaction.set_properties({COMPUTED: "true"})


def _check_partition(table: Table, column: str, transform: str) -> None:
    """Check that windows of a transform can be replaced in the files of a table. A file may have
    the rows of a whole partition. Partitions may be shorter than windows, not longer; another
    partition spec of the table would not change files that exist."""
    fields = [
        (table.schema().find_column_name(each.source_id), str(each.transform))
        for each in table.spec().fields
    ]
    transforms = {name for source, name in fields if source == column}
    others = [source for source, name in fields if name in _TRANSFORMS and source != column]
    if others and not transforms:
        raise TopicbergError(
            f"table {'.'.join(table.name())} is partitioned by its event time {others[0]}, and its "
            f"event time is now {column}: no run would replace the rows that it has",
            hint=f"name the event time {others[0]} again, or drop the table and backfill it",
        )
    if transforms and transforms <= {*_TRANSFORMS[_TRANSFORMS.index(transform) + 1 :]}:
        raise TopicbergError(
            f"table {'.'.join(table.name())} is partitioned by {', '.join(sorted(transforms))} of "
            f"{column}, and cannot be computed by {transform}: a file may have rows of several",
            hint="set the granularity to what it was, or drop the table and backfill it",
        )


def _evolve(table: Table, columns: pa.Schema) -> None:
    new, old = _schema(columns), table.schema()
    # Whatever their ids are: an update of a schema takes time also if it changes nothing.
    if new.as_struct() == assign_fresh_schema_ids(old).as_struct():
        return
    try:
        check_types(old.as_struct(), new.as_struct())
        with table.update_schema() as update:
            update.union_by_name(new)
    except (ValidationError, ValueError, TypeError) as error:
        raise TopicbergError(
            f"table {'.'.join(table.name())} cannot have the columns that are computed for it: "
            f"{error}",
            hint="give the changed column another name, or drop the table and backfill it",
        ) from error


def _schema(columns: pa.Schema) -> Schema:
    """Return Iceberg's columns, with new ids; PyIceberg's public function wants them in Arrow's."""
    from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY, pyarrow_to_schema

    ids = count(1)

    def with_id(field: pa.Field) -> pa.Field:
        kind = field.type
        match kind:
            case pa.StructType():
                kind = pa.struct([with_id(part) for part in kind])
            case pa.ListType(value_field=element):
                kind = pa.list_(with_id(element))
            case pa.MapType(key_field=key, item_field=value):
                kind = pa.map_(with_id(key), with_id(value))
        own = {PYARROW_PARQUET_FIELD_ID_KEY: str(next(ids))}
        return field.with_type(kind).with_metadata((field.metadata or {}) | own)

    with_ids = pa.schema([with_id(field) for field in columns])
    return assign_fresh_schema_ids(pyarrow_to_schema(with_ids))


def _create(
    catalog: Catalog,
    name: TableName,
    columns: pa.Schema,
    partition: tuple[str, str] | None,
    format_version: int,
) -> Table:
    from topicberg.clients.catalog import TABLES

    fields = [PartitionField(column=partition[0], transform=partition[1])] if partition else []
    schema, folder = _schema(columns), catalog.properties[TABLES] + name[0]
    needed = {"format-version": str(format_version), COMPUTED: "true"}
    bounded = [field.column for field in fields]
    return create_table(
        catalog, name, schema, fields, folder, needed=needed, optional=_PROPERTIES, bounded=bounded
    )


def described(frame: DataFrame, descriptions: Iterable[tuple[str, str]] = ()) -> pa.Schema:
    """Return a frame's columns, with descriptions: their own, or those of the sources."""
    from pyiceberg.io.pyarrow import PYARROW_FIELD_DOC_KEY

    columns = frame.schema
    comments = {column.name: (column.metadata or {}).get("comment") for column in columns}
    comments |= dict(descriptions)
    return pa.schema(
        [
            field.with_metadata({PYARROW_FIELD_DOC_KEY: comment})
            if (comment := comments[field.name])
            else field
            for field in to_arrow_schema(columns)
        ]
    )


def optional(columns: pa.Schema) -> pa.Schema:
    """Return the columns, each of which may be null."""
    return pa.schema([field.with_nullable(True) for field in columns])


def head_id(table: Table | None) -> int | None:
    """Return the newest snapshot of ``main``; None: the table has none, or does not exist."""
    head = table.current_snapshot() if table else None
    return head.snapshot_id if head else None


def has_rows(table: Table) -> bool:
    head = table.current_snapshot()
    return head is not None and int(summaries.summary(head).get("total-records", 0)) > 0
