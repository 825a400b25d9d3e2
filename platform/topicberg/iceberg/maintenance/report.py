"""What a run of maintenance did to a table."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyiceberg.table import Table

from topicberg.iceberg.summaries import summary


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
        facts = summary(head) if head else {}
        names = ("data-files", "delete-files", "files-size", "records")
        data, deletes, size, rows = (int(facts.get(f"total-{name}", 0)) for name in names)
        return TableSize(data, deletes, size, rows, len(table.metadata.snapshots))


@dataclass(frozen=True)
class MaintenanceReport:
    """Zeros: nothing was due. Ingestion continues meanwhile, which the sizes include."""

    table: str
    before: TableSize
    after: TableSize
    partitions_corrected: int = 0
    """Files whose partition value in the metadata was not that of their rows."""
    rows_expired: int = 0
    files_compacted: int = 0
    delete_files_compacted: int = 0
    manifests_rewritten: int = 0
    snapshots_expired: int = 0
    files_deleted: int = 0
    """Deleted data and metadata files that only expired snapshots had."""
    orphans_removed: int = 0
    postponed: tuple[str, ...] = ()
    """Steps that others' commits prevented; the next run does them."""
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
