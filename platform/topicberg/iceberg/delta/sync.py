"""Update a table's Delta log to the table's newest snapshot.

Every step starts from what the log reflects, so a step that failed or was killed at any point is
run again.

Readers skip files by their statistics, so a bound may be wide but never narrow. Iceberg's bounds
of long strings are truncated as Delta's may be: the lower is a prefix, the upper is rounded up.

Source: Delta's PROTOCOL.md, "Per-file Statistics".
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import quote

from pyiceberg import types as T
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from topicberg.errors import CommitConflictError, TableflowError, TopicbergError
from topicberg.errors.retry import retry
from topicberg.iceberg import manifests, snapshots, summaries
from topicberg.iceberg.delta.log import CHECKPOINT_EVERY, DeltaLog, DeltaVersion
from topicberg.iceberg.delta.schema import Action, definition
from topicberg.iceberg.files import entries
from topicberg.iceberg.names import name_in_files
from topicberg.topics.spec import TopicSpec

CATCH_UP = 100  # More new snapshots than this become one version.
CONFLICT_ATTEMPTS = 5
_OPERATIONS = {
    Operation.APPEND: "WRITE",
    Operation.REPLACE: "OPTIMIZE",
    Operation.OVERWRITE: "MERGE",
    Operation.DELETE: "DELETE",
}
_EPOCH = datetime(1970, 1, 1)
_Nested = dict[str, Any]


def sync(table: Table, spec: TopicSpec) -> DeltaVersion | None:
    """Update the Delta log under the table's location to its newest snapshot and schema.

    It writes one Delta version for each new snapshot of ``main``; one for all of them if there are
    more than :data:`CATCH_UP`, or if snapshots were rolled back or expired. If nothing changed, it
    writes nothing. It has to run before snapshots expire, or Delta refers to deleted files.

    :param table: in any state: it is loaded again after the log was read. If another process
        updates the log at the same time, the log must not go back to an older state
    :returns: the newest version; None: the spec does not request Delta
    :raises TopicbergError: the Delta log cannot be updated; the Iceberg table is unchanged
    """
    if "DELTA" not in spec.tableflow.table_formats:
        return None
    try:
        return _sync(table, spec.tableflow.retention_ms)
    except Exception as error:  # from a store's client, deltalake or a damaged file
        if isinstance(error, TopicbergError):
            raise
        raise TableflowError(
            f"table {'.'.join(table.name())}: the Delta log cannot be updated: "
            f"{type(error).__name__}: {error}",
            hint="wait: the next commit tries again; the Iceberg table is not affected",
        ) from error


def rebuild(table: Table, spec: TopicSpec) -> None:
    """Write the Delta log again, from the newest snapshot only.

    The statistics in the log may be values of rows that were erased.

    :raises TopicbergError: the Delta log cannot be written
    """
    if "DELTA" in spec.tableflow.table_formats:
        DeltaLog(table).remove()
        sync(table, spec)


def _sync(table: Table, retention_ms: int) -> DeltaVersion:
    log = DeltaLog(table)
    exhausted = CommitConflictError(
        f"table {'.'.join(table.name())}: {CONFLICT_ATTEMPTS} times in a row another writer wrote "
        "the next version of the Delta log",
        hint="check whether a second engine runs for this topic",
    )

    newest = retry(
        partial(_write, table, log, retention_ms), CONFLICT_ATTEMPTS, exhausted=exhausted
    )
    if newest.version - (log.checkpoint or 0) >= CHECKPOINT_EVERY:
        log.write_checkpoint()
    return newest


def _write(table: Table, log: DeltaLog, retention_ms: int) -> DeltaVersion:
    """Write the versions from what the log holds to the table's head; return the last one."""
    newest, described = log.newest(), definition(table.refresh(), retention_ms)
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    for snapshot, actions in _pending(table, log, newest, digest):
        snapshot_id = snapshot.snapshot_id if snapshot else None
        version = DeltaVersion(newest.version + 1 if newest else 0, snapshot_id, digest)
        changed = described if newest is None or newest.definition != digest else ()
        operation = "CREATE TABLE" if newest is None else "SET TBLPROPERTIES"
        if snapshot and actions:
            operation = _OPERATIONS[summaries.operation_of(snapshot) or Operation.APPEND]
        information = {
            "timestamp": snapshot.timestamp_ms if snapshot else table.metadata.last_updated_ms,
            "operation": operation,
            "operationParameters": {},
            "engineInfo": "topicberg",
        }
        log.write([{"commitInfo": information}, *changed, *actions], version)
        newest = version
    assert newest is not None  # noqa: S101  a log without a version always has one pending
    return newest


def _pending(
    table: Table, log: DeltaLog, newest: DeltaVersion | None, digest: str
) -> Iterator[tuple[Snapshot | None, list[Action]]]:
    """Yield the versions to write: the snapshot of each, and its add and remove actions."""
    head = table.current_snapshot()
    if newest is None or (head and newest.snapshot_id is None):
        yield head, [*_difference(table, head, set())] if head else []
        return
    if head is None or newest.snapshot_id == head.snapshot_id:
        if newest.definition != digest:
            yield head, []
        return
    changes = snapshots.changes_since(table, newest.snapshot_id)
    if changes.gap or changes.rolled_back or len(changes.new) > CATCH_UP:
        yield head, [*_difference(table, head, log.live_paths())]
        return
    for snapshot in changes.new:
        files = snapshots.changed_files(table, snapshot)
        changes_rows = summaries.operation_of(snapshot) != Operation.REPLACE
        yield snapshot, [*_actions(table, snapshot, files, changes_rows)]


def _difference(table: Table, head: Snapshot, held: set[str]) -> Iterator[Action]:
    """Yield the actions from any set of files to the files of a snapshot."""
    files = (entry.data_file for entry in entries(table.io, head.manifests(table.io)))
    live = {_relative(table, file): file for file in files}
    added = ((live[path], True) for path in sorted(live.keys() - held))
    yield from _actions(table, head, added, True)
    for path in sorted(held - live.keys()):
        yield _remove(path, head, True)


def _actions(
    table: Table, snapshot: Snapshot, files: Iterable[tuple[DataFile, bool]], changes_rows: bool
) -> Iterator[Action]:
    struct, files = table.schema().as_struct(), list(files)
    readded = {file.file_path for file, added in files if added}
    for file, added in files:
        if file.content != DataFileContent.DATA:
            raise TableflowError(
                f"table {'.'.join(table.name())}: snapshot {snapshot.snapshot_id} has delete "
                "files, which the Delta log cannot represent",
                hint="write with copy-on-write (write.delete.mode, write.update.mode, "
                "write.merge.mode), then run a compaction that removes the delete files",
            )
        path = _relative(table, file)
        if added:
            add = {
                "path": quote(path),
                "partitionValues": {},
                "size": file.file_size_in_bytes,
                "modificationTime": snapshot.timestamp_ms,
                "dataChange": changes_rows,
                "stats": statistics(file, struct),
            }
            yield {"add": add}
        elif file.file_path not in readded:  # one version cannot do both
            yield _remove(path, snapshot, changes_rows)


def _remove(path: str, snapshot: Snapshot, changes_rows: bool) -> Action:
    at, path = snapshot.timestamp_ms, quote(path)
    return {"remove": {"path": path, "deletionTimestamp": at, "dataChange": changes_rows}}


def _relative(table: Table, file: DataFile) -> str:
    """Return the path below the table's location; a file elsewhere keeps its full address."""
    return file.file_path.removeprefix(table.location().rstrip("/") + "/")


def statistics(file: DataFile, schema: T.StructType) -> str:
    """Return rows, bounds and nulls of the columns by their names in the file; not for lists."""
    names = "minValues", "maxValues", "nullCount"
    columns = dict(zip(names, _columns(file, schema), strict=True))
    return to_json({"numRecords": file.record_count, **columns})


def to_json(value: Any) -> str:
    """Return JSON with decimals as numbers, which the standard library does not write."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{to_json(value[key])}" for key in value) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)


def _columns(file: DataFile, struct: T.StructType) -> tuple[_Nested, _Nested, _Nested]:
    columns: tuple[_Nested, _Nested, _Nested] = ({}, {}, {})
    for field in struct.fields:
        values: Iterable[Any] = ()
        if isinstance(field.field_type, T.StructType):
            values = (nested or None for nested in _columns(file, field.field_type))
        elif isinstance(field.field_type, T.PrimitiveType):
            bounds = _bounds(file, field, field.field_type)
            values = *bounds, (file.null_value_counts or {}).get(field.field_id)
        for column, value in zip(columns, values, strict=False):
            if value is not None:
                column[name_in_files(field.name)] = value
    return columns


def _bounds(file: DataFile, field: T.NestedField, kind: T.PrimitiveType) -> tuple[Any, Any]:
    """Return both bounds or none: some readers treat a file with one bound as damaged."""
    first, last = manifests.bounds_of(file, field.field_id)
    nans = (file.nan_value_counts or {}).get(field.field_id)
    # Spark sorts NaN above all numbers; Iceberg's bounds exclude it.
    has_nans = isinstance(kind, (T.FloatType, T.DoubleType)) and nans != 0
    if first is None or last is None or has_nans:
        return None, None
    try:
        ends = (first, False), (last, True)
        lower, upper = (_bound(kind, from_bytes(kind, raw), up) for raw, up in ends)
    except (OverflowError, ValueError):  # a year before 1 or after 9999; truncated text
        return None, None
    is_bounded = lower is not None and upper is not None and lower <= upper
    return (lower, upper) if is_bounded else (None, None)


def _bound(kind: T.PrimitiveType, value: Any, up: bool) -> Any:
    """:param up: whether a bound between two milliseconds is rounded up to the later one"""
    match kind:
        case T.IntegerType() | T.LongType() | T.StringType() | T.DecimalType():
            return value
        case T.FloatType() | T.DoubleType():
            return float(value) if math.isfinite(value) else None
        case T.DateType():
            return date.fromordinal(_EPOCH.toordinal() + value).isoformat()
        case T.TimestampType() | T.TimestamptzType():
            moment = _EPOCH + timedelta(milliseconds=-(-value // 1000) if up else value // 1000)
            zone = "Z" if isinstance(kind, T.TimestamptzType) else ""
            return f"{moment.isoformat(timespec='milliseconds')}{zone}"
    return None
