"""One run of maintenance: what is due for a table, in the order in which each step helps the next.

What is due is read only from the table (its snapshots, its files, one property), so any number of
services, schedules and operators may run it: the second finds nothing to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any

from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError
from topicberg.formats.metadata import PARTITION, RAW_KEY
from topicberg.iceberg import clocks, delta, position_deletes, read_tags, summaries
from topicberg.iceberg.data_files import file_bytes
from topicberg.iceberg.file_facts import Files, live
from topicberg.iceberg.files import may_delete
from topicberg.iceberg.maintenance import compaction, conflicts, expiry, orphans, retention, ttl
from topicberg.iceberg.maintenance.policy import MaintenancePolicy
from topicberg.settings import Settings
from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

LISTED_AT_MS = "topicberg.orphans-removed-at-ms"
"""Table property: when the folder was last searched for orphan files."""


@dataclass(frozen=True)
class TableSize:
    """Files of the current snapshot, their bytes, and all snapshots, by the metadata."""

    data_files: int
    delete_files: int
    bytes: int
    rows: int
    snapshots: int

    @staticmethod
    def of(table: Table) -> TableSize:
        head = table.current_snapshot()
        facts = summaries.summary(head) if head else {}
        names = ("data-files", "delete-files", "files-size", "records")
        data, deletes, size, rows = (int(facts.get(f"total-{name}", 0)) for name in names)
        return TableSize(data, deletes, size, rows, len(table.metadata.snapshots))


@dataclass(frozen=True)
class MaintenanceReport:
    """Zeros: nothing was due. Ingestion continues meanwhile, which the sizes include."""

    table: str
    before: TableSize
    after: TableSize
    partitions_corrected: int = 0  # Files whose partition value was not that of their rows.
    rows_expired: int = 0
    files_compacted: int = 0
    delete_files_compacted: int = 0
    manifests_rewritten: int = 0
    snapshots_expired: int = 0
    files_deleted: int = 0  # Deleted data and metadata files that only expired snapshots had.
    orphans_removed: int = 0
    postponed: tuple[str, ...] = ()  # Steps that others' commits prevented; the next run does them.
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of changes, by name."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: number for name, number in numbers.items() if type(number) is int}

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return any(self.counts.values()) or bool(self.postponed)


def topic_policy(spec: TopicSpec, table: Table) -> MaintenancePolicy:
    """Return the rules of a topic's spec for a table; see :mod:`.retention`."""
    kept = timedelta(milliseconds=min(spec.tableflow.retention_ms, retention.EVER))
    return MaintenancePolicy(retention=kept, data_retention=retention.data_retention(table, spec))


def maintain(
    spec: TopicSpec, endpoints: Endpoints, config: Settings, policy: MaintenancePolicy | None = None
) -> MaintenanceReport:
    """Do what is due for a topic's table.

    :param policy: rules that replace those of the spec
    :raises NoSuchTableError: nothing was ever committed
    :raises TopicbergError: Spark failed; everything that was done before stays
    """
    table = endpoints.catalog(config).load_table(spec.table_identifier(config))
    keys = [spec.metadata_column(name) for name in (PARTITION, RAW_KEY)]
    retention.follow_longer(table, spec)
    delta.sync(table, spec)  # a file must leave the Delta log before expiry deletes it
    report = maintain_table(
        table,
        endpoints,
        policy or topic_policy(spec, table),
        # Sort by the primary key, so that a query for one key reads few row groups.
        sort_by=keys if spec.is_compacted else (),
        timestamp=spec.metadata_column("timestamp"),
        time=spec.event_time,
    )
    delta.sync(table, spec)
    return report


def maintain_table(
    table: Table,
    endpoints: Endpoints,
    policy: MaintenancePolicy,
    *,
    sort_by: Sequence[str] = (),
    timestamp: str | None = None,
    time: str | None = None,
) -> MaintenanceReport:
    """Do what is due for any table of the lake.

    :param table: as it was loaded now
    :param sort_by: columns by which merged files are sorted
    :param timestamp: the column to which ``policy.data_retention`` applies
    :param time: the event time, by whose hours other tables are derived from this one
    :raises TopicbergError: Spark failed; everything that was done before stays
    """
    start, now, before = monotonic(), clocks.current_time(table), TableSize.of(table)
    now_ms = int(now.timestamp() * 1000)
    daily = now_ms - _listed_at_ms(table) >= policy.daily / timedelta(milliseconds=1)
    run = _Run(table, endpoints, None if policy.data_retention is None else timestamp)
    corrected = run.correct_partitions()  # Spark would write wrong values into the rows
    rows_expired = 0
    if timestamp is not None and policy.data_retention is not None:
        cutoff = now - policy.data_retention
        rows_expired = run.expire_rows(timestamp, cutoff, policy.data_slack, unknown=daily)
    files, deletes = run.compact(policy, now_ms, sort_by)
    if rows_expired or files:
        deletes += run.trim_deletes()
    merge = partial(compaction.rewrite_manifests, endpoints, run.identifier)
    has_many = compaction.many_manifests(run.current)
    manifests = run.step("rewriting manifests", merge) if has_many else 0
    snapshots, deleted = len(run.current.metadata.snapshots), 0
    deletes_files = may_delete(run.current)
    if deletes_files and expiry.expirable(table, policy, now_ms):
        deleted = run.step("snapshot expiry", lambda: expiry.expire(table, policy, now_ms, time))
    expired = max(0, snapshots - len(run.current.metadata.snapshots))
    orphans_removed = run.remove_orphans(policy, now_ms) if daily and deletes_files else 0
    report = MaintenanceReport(
        table=run.name,
        before=before,
        after=TableSize.of(run.current),
        partitions_corrected=corrected,
        rows_expired=rows_expired,
        files_compacted=files,
        delete_files_compacted=deletes,
        manifests_rewritten=manifests,
        snapshots_expired=expired,
        files_deleted=deleted,
        orphans_removed=orphans_removed,
        postponed=tuple(run.postponed),
        seconds=monotonic() - start,
    )
    if report.changed:
        logger.info("table %s: %s", run.name, report)
    return report


class _Run:
    """The steps on one table, and those of them that others' commits prevented."""

    def __init__(self, table: Table, endpoints: Endpoints, times: str | None) -> None:
        """
        :param table: as it was loaded now
        :param times: the column whose bounds are needed
        """
        self.table, self.endpoints, self._times = table, endpoints, times
        self._may_have_changed = False
        self.identifier = (table.name()[-2], table.name()[-1])
        self.name = ".".join(self.identifier)
        self.postponed: list[str] = []

    @property
    def current(self) -> Table:
        """The table after the last step; without a step, nothing is requested."""
        if self._may_have_changed:
            self.table.refresh()
            self._may_have_changed = False
        return self.table

    def files(self) -> Files:
        times = self._times
        return live(self.current, self.table.schema().find_field(times) if times else None)

    def step(self, task: str, work: Callable[[], int]) -> int:
        """Return a count; 0 and postponed if every attempt conflicted with another commit."""
        self._may_have_changed = True
        try:
            return conflicts.retried(self.name, work)
        except CommitConflictError as conflict:
            logger.warning("%s is postponed: %s", task, conflict.message)
            self.postponed.append(task)
            return 0

    def expire_rows(self, column: str, cutoff: datetime, slack: timedelta, *, unknown: bool) -> int:
        whole, partly = ttl.expired(self.files(), cutoff, slack, unknown=unknown)
        drop = partial(ttl.drop_files, self.table, column, cutoff)
        delete = partial(ttl.delete_rows, self.endpoints, self.table, column, cutoff)
        rows = self.step("data TTL", drop) if whole.any() else 0
        return rows + (self.step("data TTL of mixed files", delete) if partly else 0)

    def compact(
        self, policy: MaintenancePolicy, now_ms: int, sort_by: Sequence[str]
    ) -> tuple[int, int]:
        """Return the numbers of data files and delete files that were merged."""
        if not compaction.is_due(self.current, policy, now_ms):
            return 0, 0
        files, data, deletes = self.files(), 0, 0
        if self.table.format_version > 2 and (files.is_position_delete & ~files["is_vector"]).any():
            # They are of version 2. Beside vectors, their rows count as deleted twice.
            deletes, files = self.trim_deletes(), self.files()
        target, has_deletes = file_bytes(self.table.properties), not files.is_data.all()
        apply_deletes = compaction.deleted_share(files) >= compaction.DELETED_SHARE
        largest = compaction.tiers(target)[:1] if apply_deletes else ()
        for tier in compaction.due_tiers(files, target) or largest:
            merge = partial(
                compaction.compact,
                self.endpoints,
                self.identifier,
                tier,
                target,
                sort_by,
                has_deletes=has_deletes,
                apply_deletes=apply_deletes,
                bytes_to_write=compaction.bytes_to_merge(files, tier),
            )
            # It copies rows: an erasure of some of them waits for the end of the tag.
            with read_tags.reading([self.current], "compaction"):
                data += self.step("compaction", merge)
            apply_deletes = False
        if has_deletes and compaction.many_deletes(self.files()):
            merge = partial(compaction.compact_deletes, self.endpoints, self.identifier)
            deletes += self.step("compaction of delete files", merge)
        return data, deletes

    def correct_partitions(self) -> int:
        """Move files to the partitions that are theirs; return how many were elsewhere."""
        files = position_deletes.misplaced_files(self.current)

        def correct() -> int:
            position_deletes.trim_deletes(self.table.refresh())
            return files

        return self.step("correcting partition values", correct) if files else 0

    def trim_deletes(self) -> int:
        """Remove delete files and vectors of deleted data files."""
        return self.step(
            "trimming delete files", lambda: position_deletes.trim_deletes(self.table.refresh())
        )

    def remove_orphans(self, policy: MaintenancePolicy, now_ms: int) -> int:
        removed = orphans.remove_orphans(self.table, policy.orphan_age, now_ms / 1000)

        def remember() -> int:
            with self.table.refresh().transaction() as transaction:
                transaction.set_properties({LISTED_AT_MS: str(now_ms)})
            return 1

        self.step("recording the search for orphan files", remember)
        return removed


def _listed_at_ms(table: Table) -> int:
    """Return when the folder was last searched for orphan files; a new table counts as searched."""
    if (noted := table.properties.get(LISTED_AT_MS)) is not None:
        return int(noted)
    entries: list[Any] = [*table.metadata.metadata_log, *table.metadata.snapshots]
    return min((entry.timestamp_ms for entry in entries), default=table.metadata.last_updated_ms)
