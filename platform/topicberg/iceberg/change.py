"""Snapshots that topicberg commits itself: files added to a table and removed from it.

Source: Iceberg spec, "Snapshots", "Manifests" and "Row Lineage"; REST catalog OpenAPI,
``updateTable``.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, compress, count
from operator import attrgetter, not_
from typing import Any, cast

from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, update
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries

from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.iceberg import commits, summaries
from topicberg.iceberg.clocks import clock_error
from topicberg.iceberg.files import (
    discard_paths,
    entries_by_manifest,
    exact_partition,
    partition_of,
)
from topicberg.iceberg.hours import FileHours
from topicberg.iceberg.manifests import (
    ManifestWriter,
    Version,
    identity,
    is_vector,
    read_manifests,
    read_schema,
    set_partition,
    size_of,
    write_manifest_list,
)
from topicberg.version import IN_SUMMARY

_COUNTED = {
    DataFileContent.DATA: ("data-files", "records"),
    DataFileContent.POSITION_DELETES: ("delete-files", "position-deletes"),
    DataFileContent.EQUALITY_DELETES: ("delete-files", "equality-deletes"),
}  # Content of a file → what the summary calls such files, and their rows.


class SnapshotChange:
    """A snapshot to commit to ``main``; without files it only has properties."""

    def __init__(
        self, table: Table, operation: Operation, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """
        :param table: freshly loaded
        :param properties: added to the snapshot's summary
        :raises TableFormatError: the table has a format version that topicberg does not write
        """
        commits.require_written(table)
        self.table, self.parent, self._operation = table, table.current_snapshot(), operation
        self.snapshot_id = table.metadata.new_snapshot_id()
        self._properties = {**(properties or {}), **IN_SUMMARY}
        self._added: list[DataFile] = []
        self._removed: dict[tuple[str, int | None], DataFile] = {}
        self.forgets_removed = False  # Whether it names no file that earlier snapshots removed.
        self._corrected: set[tuple[str, int | None]] = set()
        self.time: str | None = None  # The column by whose hours other tables are derived from it.
        self.deleted_from: list[DataFile] = []  # The data files from which it deletes rows.
        self._version = cast("Version", table.format_version)
        self._uuid, self._numbers = uuid.uuid4(), count()
        codec = table.properties.get("write.avro.compression-codec", "").lower()
        self._compression: Any = codec if codec == "zstd" else "gzip"  # PyIceberg lacks others
        self._entries: dict[str, list[ManifestEntry]] = {}
        self._outputs: list[str] = []
        self.is_refused = False
        """Whether it can never be committed any more: its parent is not the head of ``main``."""

    def files(self, content: ManifestContent) -> list[DataFile]:
        """Return the parent's data files, or its delete files."""
        read = self._read([each for each in self._held if each.content == content])
        return [entry.data_file for entry in chain.from_iterable(read)]

    def add(self, files: Iterable[DataFile]) -> None:
        """Add files, each with the number of its partition spec."""
        self._added += files

    def remove(self, files: Iterable[DataFile]) -> None:
        """Remove files that the parent has."""
        self._removed |= {identity(file): file for file in files}

    def correct_partitions(self) -> int:
        """Give data files the partitions that their bounds say; return how many had others."""
        specs = self.table.specs()
        for file in self.files(ManifestContent.DATA):
            if (partition := exact_partition(file, specs[file.spec_id])) is not None:
                set_partition(file, partition)
                self._corrected.add(identity(file))
        return len(self._corrected)

    def commit(
        self,
        properties: Mapping[str, str] | None = None,
        dropped: Collection[str] = (),
        more: Iterable[update.TableUpdate] = (),
    ) -> Snapshot:
        """Commit it if ``main`` is still where the table says.

        (A transaction of PyIceberg would apply the change to whatever the head is by then.)

        :param properties: table properties that change in the same commit
        :param dropped: table properties that the same commit removes
        :param more: other updates in the same commit
        :raises CommitConflictError: another commit came first; nothing was committed
        """
        table, before = self.table, self.table.metadata
        ref = before.refs.get(summaries.MAIN)
        requirements = (
            update.AssertTableUUID(uuid=before.table_uuid),
            update.AssertRefSnapshotId(
                ref=summaries.MAIN, snapshot_id=ref.snapshot_id if ref else None
            ),
        )
        snapshot = self._snapshot()
        updates = (
            update.AddSnapshotUpdate(snapshot=snapshot),
            commits.move_main(table, self.snapshot_id),
            *commits.property_updates(table, properties, dropped),
            *more,
        )
        try:
            table.catalog.commit_table(table, requirements, updates)
        except (CommitFailedException, RESTError) as error:
            # Not every catalog reports a conflict with the error that the specification requires,
            # and a snapshot on another branch takes the sequence number and the row ids.
            now = table.refresh().metadata
            if any(each.snapshot_id == self.snapshot_id for each in now.snapshots):
                return snapshot  # an earlier request, whose answer was lost
            head = now.refs.get(summaries.MAIN)
            if head is not None and head != ref:
                self.is_refused = True
                discard_paths(table.io, self._outputs)
            ids = now.next_sequence_number(), now.format_version, now.refs
            seen = before.next_sequence_number(), before.format_version, before.refs
            if ids == seen and (clocks := clock_error(table, error)) is not None:
                raise clocks from error
            if isinstance(error, RESTError) and ids == seen:
                raise
            message = f"table {'.'.join(table.name())}: another commit came first"
            raise CommitConflictError(f"{message}: {error}") from error
        return snapshot

    def _snapshot(self) -> Snapshot:
        metadata, manifests = self.table.metadata, self._manifests()
        output = self._output(f"snap-{self.snapshot_id}-0-{self._uuid}.avro")
        first_row_id = getattr(metadata, "next_row_id", None) or 0
        ids: dict[str, Any] = {
            "snapshot_id": self.snapshot_id,
            "parent_snapshot_id": self.parent.snapshot_id if self.parent else None,
            "sequence_number": metadata.next_sequence_number(),
        }
        written = {**ids, "output_file": output, "compression": self._compression}
        assigned = write_manifest_list(self._version, manifests, first_row_id, **written)
        has_row_ids = self._version > 2
        return Snapshot(
            **ids,
            manifest_list=output.location,
            summary=self._summary(),
            schema_id=metadata.current_schema_id,
            first_row_id=first_row_id if has_row_ids else None,
            added_rows=assigned if has_row_ids else None,
        )

    def _manifests(self) -> list[ManifestFile]:
        """Write the manifests that change; return all of the snapshot."""
        changed = self._removed.keys() | self._corrected
        kinds = {_kind(file) for file in self._removed.values()}
        kinds |= {ManifestContent.DATA} if self._corrected else set()
        may_change = [m.content in kinds or self._is_forgotten(m) for m in self._held]
        inspected = [*compress(self._held, may_change)]
        kept, written = [*compress(self._held, map(not_, may_change))], list[ManifestFile]()
        merged: dict[tuple[ManifestContent, int], list[ManifestEntry]] = defaultdict(list)
        for manifest, entries in zip(inspected, self._read(inspected), strict=True):
            key = manifest.content, manifest.partition_spec_id
            has_changed = any(identity(entry.data_file) in changed for entry in entries)
            if not has_changed and not self._is_forgotten(manifest):
                kept.append(manifest)
            elif manifest.content == ManifestContent.DELETES:
                # They become one: each batch replaces some vectors of many earlier batches.
                merged[key] += entries
            else:
                written.append(self._written(*key, entries))
        added: dict[tuple[ManifestContent, int], list[DataFile]] = defaultdict(list)
        for file in self._added:
            added[_kind(file), file.spec_id].append(file)
        for key in sorted(added.keys() | merged.keys()):
            written.append(self._written(*key, merged[key], added[key]))
        return [*written, *kept]

    def _is_forgotten(self, manifest: ManifestFile) -> bool:
        return self.forgets_removed and manifest.deleted_files_count != 0

    @cached_property
    def _held(self) -> list[ManifestFile]:
        """The parent's manifests of live files: all but those that say that theirs are removed.
        Some writers say of live files that there are none (icelake-io/icelake#280)."""
        return [
            each
            for each in (read_manifests(self.table.io, self.parent) if self.parent else ())
            if each.has_added_files() or each.has_existing_files() or not each.deleted_files_count
        ]

    def _read(self, wanted: Sequence[ManifestFile]) -> list[list[ManifestEntry]]:
        """Return the live entries of each manifest, which is read once."""
        new = [each for each in wanted if each.manifest_path not in self._entries]
        self._entries |= dict(entries_by_manifest(self.table.io, new))
        return [self._entries[each.manifest_path] for each in wanted]

    def _written(
        self,
        content: ManifestContent,
        spec_id: int,
        entries: Iterable[ManifestEntry],
        added: Iterable[DataFile] = (),
    ) -> ManifestFile:
        """Write a manifest of added files, and of those that earlier manifests held."""
        spec = self.table.specs()[spec_id]
        output = self._output(f"{self._uuid}-m{next(self._numbers)}.avro")
        with ManifestWriter(
            self._version,
            content,
            spec,
            self._schema_of(spec),
            output,
            self.snapshot_id,
            self._compression,
        ) as writer:
            for file in added:
                writer.add(ManifestEntry.from_args(data_file=file))
            for entry in entries:
                is_removed = identity(entry.data_file) in self._removed
                (writer.delete if is_removed else writer.existing)(entry)
        return writer.to_manifest_file()

    def _schema_of(self, spec: PartitionSpec) -> Schema:
        """Return the newest schema with the columns of a partition spec.

        Without their types no partition can be written, and a former spec may have dropped columns.

        :raises TopicbergError: neither the table nor a manifest has such a schema
        """
        table = self.table
        schemas = sorted(table.schemas().values(), key=attrgetter("schema_id"), reverse=True)
        # Other tools remove schemas of expired snapshots from the table's metadata.
        manifests = (each for each in self._held if each.partition_spec_id == spec.spec_id)
        of_manifests = (read_schema(table.io, each) for each in manifests)
        for schema in chain([table.schema()], schemas, of_manifests):
            if all(schema.find_column_name(field.source_id) for field in spec.fields):
                return schema
        raise TopicbergError(
            f"table {'.'.join(table.name())}: no schema has the columns of its former partition "
            f"spec {spec.spec_id}, {spec}",
            hint="rewrite all files of the table (rewrite_data_files with rewrite-all)",
        )

    def _output(self, name: str) -> OutputFile:
        location = self.table.location_provider().new_metadata_location(name)
        self._outputs.append(location)
        return self.table.io.new_output(location)

    def _summary(self) -> Summary:
        facts, files = Counter[str](), [*self._added, *self._removed.values()]
        for file in self._added:
            facts.update(_counts(file, "added", "added"))
        for file in self._removed.values():
            facts.update(_counts(file, "removed", "deleted"))
        if files:
            facts["changed-partition-count"] = len(set(map(partition_of, files)))
        texts = {name: str(number) for name, number in facts.items()} | self._hours(files)
        # PyIceberg computes totals only for some operations.
        totals = update_snapshot_summaries(
            Summary(operation=Operation.DELETE, **texts, **self._properties),
            summaries.summary(self.parent) if self.parent else None,
        )
        return Summary(operation=self._operation, **totals.additional_properties)

    def _hours(self, files: Sequence[DataFile]) -> dict[str, str]:
        """Return in which hours rows change, if the files themselves say it."""
        data = [file for file in files if file.content == DataFileContent.DATA]
        is_known = len(data) == len(files) or bool(self.deleted_from)
        if is_known and self.time and self.time in self.table.schema().column_names:
            return FileHours(self.table, self.time).summarize([*data, *self.deleted_from])
        return {}


def _kind(file: DataFile) -> ManifestContent:
    return ManifestContent.DATA if file.content == DataFileContent.DATA else ManifestContent.DELETES


def _counts(file: DataFile, verb: str, of_data: str) -> dict[str, int]:
    """Return what a file, ``added`` or ``removed``, adds to a summary; data are ``of_data``."""
    files, rows = _COUNTED[file.content]
    data_verb = of_data if file.content == DataFileContent.DATA else verb
    facts = {f"{data_verb}-{files}": 1, f"{data_verb}-{rows}": file.record_count}
    facts[f"{verb}-files-size"] = size_of(file)
    if is_vector(file):
        facts[f"{verb}-dvs"] = 1
    elif file.content != DataFileContent.DATA:  # position-delete-files, equality-delete-files
        facts[f"{verb}-{rows.removesuffix('s')}-files"] = 1
    return facts
