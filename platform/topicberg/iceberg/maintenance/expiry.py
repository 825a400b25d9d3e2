"""Expiry of snapshots that are not needed any more, and of the files that only they had.

The commit asserts the heads of all branches and tags that it was planned on: an engine that
publishes a batch at the same moment either comes first, and the catalog refuses the expiry, or
finds its staged snapshot expired, and plans the batch again. The same commit records which hours
the expired snapshots changed (:mod:`topicberg.iceberg.changes`).

Sources: Iceberg spec, "Snapshot Retention Policy"; REST catalog OpenAPI, ``remove-snapshots``,
``assert-ref-snapshot-id``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from operator import attrgetter

from pydantic import BaseModel
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table, update
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg import changes, commits, shared_keys, summaries
from topicberg.iceberg import read_tags as reading
from topicberg.iceberg.files import delete_files, entries, manifests
from topicberg.iceberg.maintenance.policy import MaintenancePolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Expirable:
    """What may be removed; refs: staging branches of killed engines, tags of killed readers."""

    snapshots: frozenset[int]
    refs: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.snapshots or self.refs)


def expirable(table: Table, policy: MaintenancePolicy, now_ms: int) -> Expirable:
    """Return what the policy allows to remove.

    Of ``main``, everything is kept from its head to the newest snapshot with offsets, where the
    engine resumes, and to the newest that was computed, which records what is unread. Of a tag, the
    same is kept for the engine, so that ``main`` can be set to it.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}

    def older(time_ms: float, age: timedelta) -> bool:
        return now_ms - time_ms > age.total_seconds() * 1000

    stale = {
        name: ref.snapshot_id
        for name, ref in table.metadata.refs.items()
        if name.startswith(summaries.STAGING_PREFIX)
        and older(_last_use_ms(table, ref), policy.staged_age)
    }
    unused = {*stale, *reading.stale_tags(table, now_ms)}
    fitting = _fitting(table, policy.metadata_bytes)
    keep, lines = set[int](), set[int]()  # lines: what the remaining branches and tags lead to
    for name, ref in table.metadata.refs.items():
        if name in unused:
            continue
        line = list(summaries.ancestry(table, known[ref.snapshot_id]))
        lines |= {snapshot.snapshot_id for snapshot in line}
        keep.add(ref.snapshot_id)
        if ref.snapshot_ref_type == SnapshotRefType.TAG:
            if not name.startswith(reading.PREFIX):  # users may roll back to it
                keep |= {s.snapshot_id for s in line[: _through(line, summaries.END_OFFSETS)]}
            continue
        if name.startswith(summaries.STAGING_PREFIX):  # can be published only on the head of main
            keep |= {snapshot.snapshot_id for snapshot in line[: summaries.SNAPSHOTS_PER_BATCH]}
            continue
        resumed, computed = (
            _through(line, key) for key in (summaries.END_OFFSETS, summaries.SOURCE_SNAPSHOTS)
        )
        minimum = max(policy.min_snapshots, resumed, computed, ref.min_snapshots_to_keep or 0)
        for place, snapshot in enumerate(line):
            timestamp_ms = snapshot.timestamp_ms
            retained = place < policy.max_snapshots and not older(timestamp_ms, policy.retention)
            read = place < policy.max_young and not older(timestamp_ms, policy.reader_age)
            fits = snapshot.snapshot_id in fitting
            # A user may retain the snapshots of a branch for longer.
            wanted = now_ms - timestamp_ms <= (ref.max_snapshot_age_ms or -1)
            if place < minimum or wanted or ((retained or read) and fits):
                keep.add(snapshot.snapshot_id)
    abandoned = {
        s.snapshot_id for head in stale.values() for s in summaries.ancestry(table, known[head])
    }
    for number in known.keys() - lines:
        # Users stage snapshots too, and may publish them much later.
        is_batch = summaries.summary(known[number]).keys() >= {
            summaries.WAP_ID,
            summaries.END_OFFSETS,
        }
        age = policy.staged_age if is_batch or number in abandoned else policy.retention
        if not older(known[number].timestamp_ms, age):
            keep.add(number)
    return Expirable(frozenset(known.keys() - keep), frozenset(unused))


def _fitting(table: Table, most: int) -> set[int]:
    """Return the newest snapshots with which a table has at most ``most`` bytes of metadata."""
    snapshots = sorted(table.metadata.snapshots, key=attrgetter("timestamp_ms"), reverse=True)
    sizes = accumulate(len(snapshot.model_dump_json()) for snapshot in snapshots)
    rest = table.metadata.model_copy(update={"snapshots": []})
    # PyIceberg does not serialize metadata of format version 3.
    left = most - len(BaseModel.model_dump_json(rest))
    return {s.snapshot_id for s, size in zip(snapshots, sizes, strict=True) if size <= left}


def _through(line: Sequence[Snapshot], key: str) -> int:
    """Return how many snapshots a line has to the newest with a key in its summary; 0: none has."""
    return next((place for place, each in enumerate(line, 1) if key in summaries.summary(each)), 0)


def _last_use_ms(table: Table, ref: SnapshotRef) -> float:
    """Return when a staging branch was last needed. A branch without commits of its own may be new,
    on a head of any age; it is not needed any more once ``main`` has moved on."""
    later_ms = math.inf
    for snapshot in summaries.ancestry(table):
        if snapshot.snapshot_id == ref.snapshot_id:
            return later_ms
        later_ms = snapshot.timestamp_ms
    written = table.snapshot_by_id(ref.snapshot_id)
    return written.timestamp_ms if written else -math.inf


def expire(table: Table, policy: MaintenancePolicy, now_ms: int, time: str | None = None) -> int:
    """Expire what is due; return the number of files that were deleted.

    :param time: the column by whose hours other tables are derived from this one
    :raises CommitFailedException: another commit came first; nothing was done
    """
    table.refresh()
    expired = expirable(table, policy, now_ms)
    return remove(table, expired, time) if expired else 0


def remove(
    table: Table,
    expired: Expirable,
    time: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> int:
    """Remove snapshots and refs, then the files that only they had; return how many files.

    :param table: freshly loaded: no other writer may have moved its branches and tags since
    :param time: the column by whose hours other tables are derived from this one
    :param properties: table properties that change in the same commit
    :raises CommitFailedException: another commit came first; nothing was done
    """
    before = table.metadata
    requirements: tuple[update.TableRequirement, ...] = (
        update.AssertTableUUID(uuid=before.table_uuid),
        *(
            update.AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id)
            for name, ref in before.refs.items()
            if not name.startswith(reading.PREFIX)  # readers' tags may change meanwhile
        ),
    )
    updates: list[update.TableUpdate] = [
        update.RemoveSnapshotRefUpdate(ref_name=n) for n in sorted(expired.refs)
    ]
    changed = dict(properties or {})
    if expired.snapshots:
        on_main = table.current_snapshot() is not None  # a killed first batch is only staged
        if on_main and time is not None and time in table.schema().column_names:
            changed[changes.LEDGER] = changes.noted(table, time, expired.snapshots)
        updates.append(update.RemoveSnapshotsUpdate(snapshot_ids=sorted(expired.snapshots)))
    # In one update: Nessie refuses a commit with two of a kind (projectnessie/nessie#9999).
    updates += commits.property_updates(table, changed, ())
    table.catalog.commit_table(table, requirements, tuple(updates))
    table.refresh()
    removed = [s for s in before.snapshots if s.snapshot_id in expired.snapshots]
    in_both = {s.snapshot_id: s for s in before.snapshots}  # some catalogs drop expired parents
    kept = [in_both.get(s.snapshot_id, s) for s in table.metadata.snapshots]
    _remove_unused(table)
    files = _only_of(removed, kept, table.io) | {
        statistics.statistics_path
        for statistics in (*before.statistics, *before.partition_statistics)
        if statistics.snapshot_id in expired.snapshots
    }
    of_removed, of_kept = (shared_keys.waiting_files(table.location(), s) for s in (removed, kept))
    delete_files(table.io, of_removed - of_kept)
    # Data files last: what a killed run leaves is then found by what it holds.
    metadata = {path for path in files if path.endswith(".avro")}
    deleted = delete_files(table.io, metadata) + delete_files(table.io, files - metadata)
    shared_keys.delete_shared(table, files - metadata)
    return deleted


def _remove_unused(table: Table) -> None:
    """Remove schemas and partition specs that no snapshot has, unless the catalog keeps them."""
    metadata = table.metadata
    schemas = {metadata.current_schema_id, *(s.schema_id for s in metadata.snapshots)}
    updates = list[update.TableUpdate]()
    if unused := sorted({schema.schema_id for schema in metadata.schemas} - schemas):
        updates.append(update.RemoveSchemasUpdate(schema_ids=unused))
    if len(metadata.partition_specs) > 1:
        used = {m.partition_spec_id for m in manifests(table.io, metadata.snapshots).values()}
        used.add(metadata.default_spec_id)
        if unused := sorted({spec.spec_id for spec in metadata.partition_specs} - used):
            updates.append(update.RemovePartitionSpecsUpdate(spec_ids=unused))
    # A writer that adds a snapshot of such a schema or spec meanwhile moves a branch.
    requirements: tuple[update.TableRequirement, ...] = (
        update.AssertTableUUID(uuid=metadata.table_uuid),
        update.AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        update.AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        *(
            update.AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id)
            for name, ref in metadata.refs.items()
            if ref.snapshot_ref_type == SnapshotRefType.BRANCH
        ),
    )
    try:
        if updates:
            table.catalog.commit_table(table, requirements, tuple(updates))
            table.refresh()
    except (CommitFailedException, RESTError) as error:
        logger.info("table %s: unused schemas stay for now: %s", ".".join(table.name()), error)


def _only_of(removed: Sequence[Snapshot], kept: Sequence[Snapshot], io: FileIO) -> set[str]:
    """Return files of removed snapshots that no kept one has; these have their former parents."""
    is_on_lines = {s.snapshot_id for s in removed} <= _lines([*removed, *kept], kept)
    kept_manifests = manifests(io, _beside(removed, kept) if is_on_lines else kept)
    dropped = {p: m for p, m in manifests(io, removed).items() if p not in kept_manifests}
    paths, numbers, adders = set[str](), set[int](), set[int | None]()
    for entry in entries(io, dropped.values()):
        paths.add(entry.data_file.file_path)
        numbers.add(entry.sequence_number or 0)
        adders.add(entry.snapshot_id)
    files = {snapshot.manifest_list for snapshot in removed} | dropped.keys()
    if not paths:
        return files
    related: Iterable[ManifestFile] = kept_manifests.values()
    if is_on_lines and all(_source(s) is None for s in (*removed, *kept)):
        known = {snapshot.snapshot_id: summaries.is_own(snapshot) for snapshot in (*removed, *kept)}
        # Others may add a file again, which an earlier snapshot or another branch has, too.
        is_line = _follow(kept, removed)
        is_known = all(known.get(adder or 0, is_line) for adder in adders)
        first, last = min(numbers) if is_known else 0, max(numbers)
        # The others were written before all of these files, or hold only files that topicberg
        # added later.
        related = (
            manifest
            for manifest in related
            if manifest.sequence_number >= first
            and (
                manifest.min_sequence_number <= last
                or manifest.existing_files_count != 0
                or not known.get(manifest.added_snapshot_id or 0)
            )
        )
    return files | paths.difference(entry.data_file.file_path for entry in entries(io, related))


def _lines(known: Iterable[Snapshot], heads: Iterable[Snapshot]) -> set[int]:
    """Return what snapshots lead to by their parents, themselves included."""
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in known}
    found = set[int]()
    for head in heads:
        number: int | None = head.snapshot_id
        while number in parents and number not in found:
            found.add(number)
            number = parents[number]
    return found


def _follow(kept: Sequence[Snapshot], removed: Sequence[Snapshot]) -> bool:
    """Return whether each kept snapshot comes from the same one, and that from all removed ones."""
    known = {snapshot.snapshot_id for snapshot in kept}
    first = [snapshot for snapshot in kept if snapshot.parent_snapshot_id not in known]
    return len(first) == 1 and {s.snapshot_id for s in removed} <= _lines([*removed, *first], first)


def _source(snapshot: Snapshot) -> int | None:
    """Return the snapshot whose files another tool published again, as files of this one."""
    number = summaries.summary(snapshot).get(summaries.PICKED_FROM)
    return int(number) if number is not None and number.isdecimal() else None


def _beside(removed: Sequence[Snapshot], kept: Sequence[Snapshot]) -> list[Snapshot]:
    """Return kept snapshots that together have whatever kept and removed ones share. A snapshot has
    manifests and files from its parent, or files from the snapshot that it was picked from, and
    what it leaves out does not return. So what a removed snapshot shares with any kept one, it
    shares with a kept one next to the removed ones, or with the first one of a kept line. Files of
    a snapshot on no line may have been added again in any way, and so may those that other writers
    added (apache/iceberg#17304)."""
    known = {snapshot.snapshot_id for snapshot in kept}
    origins = {origin for snapshot in removed for origin in _origins(snapshot)}
    return [
        snapshot
        for snapshot in kept
        if snapshot.snapshot_id in origins
        or not known.issuperset(_origins(snapshot))
        or not summaries.is_own(snapshot)
    ]


def _origins(snapshot: Snapshot) -> list[int | None]:
    """Return the snapshots from which one has manifests or files; None: it has no parent."""
    source = _source(snapshot)
    return [snapshot.parent_snapshot_id, *([] if source is None else [source])]
