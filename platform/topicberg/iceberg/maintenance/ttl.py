"""Data TTL: deletes rows whose Kafka timestamp is older than ``tableflow.data_retention_ms``.

A file that holds only old rows is removed from the metadata; one that also holds younger ones is
rewritten by Spark, once its oldest row is a day overdue. Neither commit carries offsets, so the
engine resumes where it was. Iceberg refuses a concurrent compaction of removed files, so no deleted
row returns.

Source: Confluent, "Configure Tableflow", "Data TTL".
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from topicberg.endpoints import CATALOG, Endpoints
from topicberg.iceberg import manifests, snapshots, summaries
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.file_facts import Files, files_by_manifest
from topicberg.iceberg.files import head_manifests
from topicberg.iceberg.maintenance.conflicts import spark_sql
from topicberg.iceberg.position_deletes import Deletes
from topicberg.spark import quote
from topicberg.version import IN_SUMMARY

CUTOFF = "topicberg.data-ttl-cutoff"


def expired(
    files: Files, cutoff: datetime, slack: timedelta, *, unknown: bool
) -> tuple[NDArray[np.bool_], bool]:
    """Return where the rows are whose time is before ``cutoff``, by the bounds of the files.

    :param files: with the bounds of the column of times
    :param unknown: treat a file without bounds as one that has to be rewritten
    :returns: for each file, whether it holds only such rows; whether there are files to rewrite
    """
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    last, overdue = (
        (moment - epoch) // timedelta(microseconds=1) for moment in (cutoff, cutoff - slack)
    )
    whole = files.is_data & files["has_bounds"] & (files["upper"] < last) & (files["nulls"] == 0)
    others = files.is_data & ~whole
    partly = bool((others & files["has_bounds"] & (files["lower"] < overdue)).any())
    if unknown:
        partly |= bool((others & ~files["has_bounds"] & (files["nulls"] != files["rows"])).any())
    return whole, partly


def drop_files(table: Table, column: str, cutoff: datetime) -> int:
    """Remove the files that hold only rows before ``cutoff``; return the number of their rows.

    :raises CommitConflictError: another commit came first
    """
    field = table.refresh().schema().find_field(column)
    whole, deletes = list[DataFile](), list[DataFile]()
    for manifest, known in files_by_manifest(table.io, head_manifests(table), field):
        holds, _ = expired(known, cutoff, timedelta(0), unknown=False)
        if manifest.content == ManifestContent.DELETES or holds.any():
            files = [entry.data_file for entry in manifests.read_entries(table.io, manifest)]
            whole += [file for file, chosen in zip(files, holds, strict=True) if chosen]
            deletes += [file for file in files if file.content != DataFileContent.DATA]
    if not whole:  # another run was faster
        return 0
    paths = {file.file_path for file in whole}
    change = SnapshotChange(table, Operation.DELETE, properties=_note(cutoff))
    change.remove(whole)
    change.remove(v for path, v in Deletes.of(deletes).vectors.items() if path in paths)
    return _deleted_rows(change.commit())


def delete_rows(endpoints: Endpoints, table: Table, column: str, cutoff: datetime) -> int:
    """Delete all rows before ``cutoff``; return their number.

    :raises CommitConflictError: another commit came first
    """
    note, identifier = _note(cutoff), table.name()[-2:]
    spark_sql(
        endpoints,
        ".".join(identifier),
        f"DELETE FROM {CATALOG}.{quote(*identifier)} "  # noqa: S608  names are quoted
        f"WHERE {quote(column)} < TIMESTAMP '{cutoff.isoformat(sep=' ')}'",
        {f"spark.sql.iceberg.snapshot-property.{key}": value for key, value in note.items()},
    )
    return sum(
        _deleted_rows(snapshot)
        for snapshot in summaries.ancestry(table.refresh())
        if summaries.summary(snapshot).get(summaries.DATA_TTL_RUN) == note[summaries.DATA_TTL_RUN]
    )


def _note(cutoff: datetime) -> dict[str, str]:
    """Return the summary properties of a snapshot that expires rows."""
    return {CUTOFF: cutoff.isoformat(), summaries.DATA_TTL_RUN: uuid.uuid4().hex, **IN_SUMMARY}


def _deleted_rows(snapshot: Snapshot) -> int:
    """Return the rows that a snapshot removed, less those that it wrote again."""
    found = snapshots.report(snapshot)
    return found.deleted_records - found.added_records
