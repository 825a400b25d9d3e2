"""Compaction by Iceberg's procedures on Spark: of small files, and of delete files.

Files are merged in tiers of size, as in a log-structured merge tree: if every run rewrote every
file that is not full yet, a topic of a few records a minute would write 128 MB each quarter of an
hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from topicberg.endpoints import Endpoints
from topicberg.iceberg.file_facts import Files
from topicberg.iceberg.files import head_manifests
from topicberg.iceberg.maintenance.conflicts import call, literal, spark_sql
from topicberg.iceberg.maintenance.policy import MEBIBYTE, MaintenancePolicy
from topicberg.iceberg.summaries import ancestry, operation_of, summary
from topicberg.spark import quote

DELETE_FILES = 10  # So many delete files of one partition are merged.
DELETED_SHARE = 0.3  # If this share of rows is deleted by position, files are written without them.
SMALL_MANIFESTS = 40
_TOGETHER_BYTES = 1024 * MEBIBYTE  # A larger rewrite is committed in parts.
_IN_PARTS = {"partial-progress.enabled": "true", "partial-progress.max-commits": 10}


@dataclass(frozen=True)
class Tier:
    """Files below ``max_bytes`` are merged when a partition has ``min_files`` of them."""

    max_bytes: int
    min_files: int


def tiers(target: int) -> tuple[Tier, ...]:
    """Return the tiers from the largest to the smallest; ``target`` bytes is a full file. A file of
    less than 1/64 costs very little to write again, so two of them are enough."""
    full = target * 3 // 4
    return Tier(full, 5), Tier(full // 8, 5), Tier(full // 64, 2)


def is_due(table: Table, policy: MaintenancePolicy, now_ms: int) -> bool:
    """Return whether enough time has passed, or data was added, since the last compaction: the last
    rewrite of data files, and not only of manifests or delete files."""
    since = [
        *takewhile(
            lambda snapshot: (
                operation_of(snapshot) != Operation.REPLACE
                or "deleted-data-files" not in summary(snapshot)
            ),
            ancestry(table),
        )
    ]
    if not since:
        return False
    last = table.snapshot_by_id(since[-1].parent_snapshot_id or 0) or since[-1]
    new_bytes = sum(int(summary(snapshot).get("added-files-size", 0)) for snapshot in since)
    return now_ms - last.timestamp_ms >= policy.compact_after / timedelta(milliseconds=1) or (
        new_bytes >= policy.compact_bytes and len(since) > 1
    )


def due_tiers(files: Files, target: int) -> list[Tier]:
    """Return the tiers in which some partition has files to merge."""
    sizes = [(t, *files.by_partition(files.is_data_below(t.max_bytes))) for t in tiers(target)]
    return [
        tier
        for tier, count, size in sizes
        if ((count >= tier.min_files) | ((count > 1) & (size > target))).any()
    ]


def bytes_to_merge(files: Files, tier: Tier) -> int:
    """Return the bytes of the data files of a tier."""
    return int(files["size"][files.is_data_below(tier.max_bytes)].sum())


def deleted_share(files: Files) -> float:
    """Return rows that position deletes name, as a share of all rows that are written."""
    deleted, written = (files["rows"][k].sum() for k in (files.is_position_delete, files.is_data))
    return float(deleted / max(1, written))


def compact(
    endpoints: Endpoints,
    identifier: tuple[str, str],
    tier: Tier,
    target: int,
    sort_by: Sequence[str] = (),
    *,
    has_deletes: bool = False,
    apply_deletes: bool = False,
    bytes_to_write: int = 0,
) -> int:
    """Merge the files of a tier; return the number of files that were rewritten.

    :param sort_by: columns by which the rows of the merged files are sorted
    :param has_deletes: remove delete files that apply to no data file any more
    :param apply_deletes: rewrite every file that has deleted rows, however large it is
    :param bytes_to_write: an estimate; a large rewrite is committed in parts, so that a conflict
        or a failure of Spark costs only a part of it
    :raises CommitConflictError: another commit changed one of the files
    """
    groups = 1
    if bytes_to_write > target or apply_deletes:
        # One task writes a group. It can take a minute, and is not interrupted for a batch of the
        # engine, so half of the cores have none. Spark's default parallelism is its cores.
        partitions = "SELECT DISTINCT spark_partition_id() FROM range(100000)"
        query = f"SELECT count(*) AS cores FROM ({partitions})"  # noqa: S608  nothing is inserted
        (row,) = spark_sql(endpoints, ".".join(identifier), query)
        groups = max(1, int(row["cores"]) // 2)
    options: dict[str, object] = {
        "target-file-size-bytes": target,
        "min-file-size-bytes": tier.max_bytes,
        "max-file-size-bytes": max(target * 9 // 5, tier.max_bytes + 1),
        "min-input-files": tier.min_files,
        "max-file-group-size-bytes": target,
        "max-concurrent-file-group-rewrites": groups,
        **({"remove-dangling-deletes": "true"} if has_deletes else {}),
        **({"delete-file-threshold": 1} if apply_deletes else {}),
        **(_IN_PARTS if bytes_to_write > _TOGETHER_BYTES else {}),
    }
    arguments = {"options": _options(options)}
    if sort_by:
        order = literal(", ".join(map(quote, sort_by)))
        arguments |= {"strategy": literal("sort"), "sort_order": order}
    row = call(endpoints, identifier, "rewrite_data_files", arguments)
    return int(row["rewritten_data_files_count"])


def many_deletes(files: Files) -> bool:
    """Return whether a partition has many delete files; vectors are merged by their writers."""
    count, _ = files.by_partition(files.is_position_delete & ~files["is_vector"])
    return bool((count >= DELETE_FILES).any())


def compact_deletes(endpoints: Endpoints, identifier: tuple[str, str]) -> int:
    """Merge position delete files, without rows of deleted files; return how many there were.

    :raises CommitConflictError: another commit changed one of the files
    """
    options = {"options": _options({"min-input-files": 2})}
    row = call(endpoints, identifier, "rewrite_position_delete_files", options)
    return int(row["rewritten_delete_files_count"])


def many_manifests(table: Table) -> bool:
    """Return whether planning a scan opens many small manifests."""
    sizes = (manifest.manifest_length for manifest in head_manifests(table))
    return sum(size < 4 * MEBIBYTE for size in sizes) >= SMALL_MANIFESTS


def rewrite_manifests(endpoints: Endpoints, identifier: tuple[str, str]) -> int:
    """Merge manifests, each with the files of adjacent partitions; return how many there were.

    :raises CommitConflictError: another commit changed one of them
    """
    row = call(endpoints, identifier, "rewrite_manifests", {"use_caching": "false"})
    return int(row["rewritten_manifests_count"])


def _options(options: Mapping[str, object]) -> str:
    return f"map({', '.join(literal(str(part)) for item in options.items() for part in item)})"
