"""The keys of one topic's upsert table: how they are compared, and which rows have them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from threading import Thread

import numpy as np
from pyiceberg.table import Table

from topicberg.iceberg import summaries
from topicberg.iceberg.position_deletes import FileRows
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import TablePlan
from topicberg.tableflow.changelog.current_rows import together
from topicberg.tableflow.decode.raw_keys import RawKeys
from topicberg.tableflow.decode.reading import WrittenBatch
from topicberg.tableflow.layout.message_fields import KEY, Layout
from topicberg.tableflow.layout.upsert_key import UpsertKey, upsert_key
from topicberg.tableflow.layout.writers import ForeignSchemas
from topicberg.tableflow.upsert.key_hashing import KEYS, KeyHasher, KeyState
from topicberg.tableflow.upsert.keys import KeyIndex, index_of
from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)


class TopicKeys:
    """Not thread-safe."""

    def __init__(
        self, spec: TopicSpec, config: Settings, foreign: Mapping[str, ForeignSchemas]
    ) -> None:
        """:param foreign: schemas of other subjects that keys and values name"""
        self._spec, self._config, self._foreign = spec, config, foreign
        self._index: KeyIndex | None = None
        self._known: tuple[object, UpsertKey] | None = None
        self._removed = 0
        """Rows that the batch removes because a newer row has their key."""
        self._keeping: Thread | None = None
        """Writes and shares key files after a batch."""

    def upsert_key(self, layout: Layout, table: Table) -> UpsertKey | None:
        """Return the key of an upsert table without a change log."""
        if self._spec.write_mode != "upsert" or self._spec.changelog is not None:
            return None
        known = layout.schema_ids, table.metadata.table_uuid, table.metadata.current_schema_id
        if self._known is None or self._known[0] != known:
            key = upsert_key(self._spec.metadata_column, layout, table.schema().fields)
            self._known = known, key
        return self._known[1]

    def has_decoded(self, layout: Layout, table: Table) -> bool:
        """Return whether keys are compared by their values."""
        key = self.upsert_key(layout, table)
        return key is not None and key.is_decoded

    def of_changes(self, table: Table, decoded: Sequence[str]) -> KeyIndex:
        """Return the index of a change log by the columns of the key."""
        self.wait()
        hasher = KeyHasher(table, decoded, is_decoded=True)
        self._index = index_of(self._config.state_dir, self._spec.name, hasher, self._index)
        return self._index

    def replaced(self, into: TablePlan, written: WrittenBatch) -> list[FileRows]:
        """Return the rows that a batch replaces, of the table and of its own files."""
        if written.keys is None:
            return []
        table, head = into.table, into.table.current_snapshot()
        keys, own = written.keys.newest()
        index = self._of_upserts(into.layout, table)
        rows: list[FileRows] = []
        if head is not None and index.hasher.key is not None:
            times = written.keys.times  # None without records
            rows, stale = index.older_rows(
                table, head, keys, np.empty(0, np.int64) if times is None else times
            )
            rows = together(rows, self._repeated(into))
            for path, positions in written.keys.rows_of(keys.chosen(stale)).items():
                own[path] = np.union1d(own.get(path, positions), positions).astype(np.uint32)
        elif head is not None:
            rows = index.rows_with(table, head, keys)
        return rows + [
            FileRows(file, own[file.file_path]) for file in written.files if file.file_path in own
        ]

    def _repeated(self, into: TablePlan) -> list[FileRows]:
        """Return the rows whose key a newer row has, if other keys are equal than before."""
        table, head = into.table, into.table.current_snapshot()
        index = self._of_upserts(into.layout, table)
        if head is None or into.committed.key_definition == index.hasher.definition:
            return []
        repeated = index.repeated_rows(table, head)
        self._removed = sum(len(rows.positions) for rows in repeated)
        return repeated

    def changed_properties(self, into: TablePlan, now_ms: int) -> dict[str, str]:
        """Return the table property that says how the keys are compared, if it changes."""
        key = self.upsert_key(into.layout, into.table)
        if key is None or not key.is_decoded:
            return {}
        index, removed = self._of_upserts(into.layout, into.table), self._removed
        self._removed = 0
        if into.committed.key_definition == index.hasher.definition:
            return {}
        state = KeyState(columns=list(key.names), rows_removed=removed)
        state.rebuilt_at_ms = now_ms if into.table.current_snapshot() is not None else None
        return {KEYS: state.model_dump_json()}

    def summary(self, into: TablePlan) -> dict[str, str]:
        """Return what the summary of a batch's snapshot says of the keys."""
        if not self.has_decoded(into.layout, into.table):
            return {}
        definition = self._of_upserts(into.layout, into.table).hasher.definition
        return {summaries.KEY_DEFINITION: definition}

    def keep(self, into: TablePlan, written: WrittenBatch, *, is_last: bool) -> None:
        """Keep the keys of new files while the next batch is read; after the last one, share them.

        Sharing takes as long as writing them, which records that wait do not have to wait for.
        """
        self.wait()
        table, keys, index = into.table, written.keys, self._index
        if keys is not None and self._spec.changelog is None:
            index = self._of_upserts(into.layout, table)
        if index is None:
            return
        of_path = {file.file_path: file for file in written.files}

        def keep() -> None:
            try:
                for path, file_keys in keys.of_files() if keys is not None else ():
                    index.store.hold(of_path[path], file_keys)
                if is_last:
                    index.store.share(table)
            except Exception as error:  # they are computed when they are needed
                logger.warning("topic %s: key files are not written: %s", self._spec.name, error)

        self._keeping = Thread(target=keep, name="keys", daemon=True)
        self._keeping.start()

    def wait(self) -> None:
        """Wait until the keys of the last batch are kept."""
        if self._keeping is not None:
            self._keeping.join()

    def _of_upserts(self, layout: Layout, table: Table) -> KeyIndex:
        self.wait()
        key = self.upsert_key(layout, table)
        assert key is not None  # noqa: S101  the table is upserted
        decode = RawKeys(layout.key, key, self._foreign[KEY]).texts
        hasher = KeyHasher.of_upserts(table, key, decode)
        self._index = index_of(self._config.state_dir, self._spec.name, hasher, self._index)
        return self._index
