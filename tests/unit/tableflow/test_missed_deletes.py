"""Deletes that a table may have missed are noted, also after a rollback of ``main``."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from memory_kafka import MemoryKafka, topic_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from topicberg.iceberg.summaries import COMMITTED_AT_MS, CURRENT_AT_MS, END_OFFSETS
from topicberg.kafka.offsets import dump_offsets
from topicberg.kafka.topics import tombstone_ms
from topicberg.tableflow.upsert.tombstones import MISSED, DeleteWatch, Missed, current
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.offsets import Batch

DAY = 86_400_000
BROKER = MemoryKafka({"orders": topic_of()})
KEPT_MS = partial(tombstone_ms, BROKER.endpoints, "orders")


@pytest.fixture
def table(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table that held its topic up to offset 2 on day 0, and up to offset 9 on day 5."""
    settings = {"cleanup.policy": "compact", "delete.retention.ms": str(DAY)}
    BROKER.serve(monkeypatch).topics["orders"].kafka_settings |= settings
    return catalog.create_table("shop.orders", pa.schema([("id", pa.int64())]))


def changed(table: Table, now_ms: int, *, records: int) -> dict[str, str]:
    """Return the table properties that change with a batch up to offset 9."""
    held = committed(table)
    watch = DeleteWatch(KEPT_MS, table, held, now_ms)
    return watch.of(Batch(held.offsets, {0: 9}), lambda: records, caught_up=True)


def commit(table: Table, end: int, properties: dict[str, str], **summary_of: str) -> None:
    offsets = {END_OFFSETS: dump_offsets({0: end}), **summary_of}
    table.append(pa.table({"id": [end]}), snapshot_properties=offsets)
    with table.refresh().transaction() as transaction:
        transaction.set_properties(properties)


@pytest.mark.parametrize("noted", [CURRENT_AT_MS, COMMITTED_AT_MS])
def test_gap_after_a_rollback_may_have_had_deletes(table: Table, noted: str) -> None:
    """The property is of a state that ``main`` has left; what the snapshot says counts."""
    commit(table, 2, current({0: 2}, 0), **{noted: "0"})
    first = table.current_snapshot()
    assert first is not None
    commit(table, 9, current({0: 9}, 5 * DAY))
    assert MISSED not in changed(table, 5 * DAY + 1, records=0)
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert MISSED not in changed(table.refresh(), 5 * DAY + 1, records=7)
    properties = changed(table, 5 * DAY + 1, records=6)
    assert Missed.model_validate_json(properties.pop(MISSED)).since_ms == 0
    assert properties == current({0: 9}, 5 * DAY + 1)


def test_snapshot_notes_when_its_table_was_current(table: Table) -> None:
    commit(table, 2, current({0: 2}, 3 * DAY))
    watch = DeleteWatch(KEPT_MS, table, committed(table), 4 * DAY)
    assert watch.noted({}) == {CURRENT_AT_MS: str(3 * DAY)}
    assert watch.noted(current({0: 9}, 4 * DAY)) == {CURRENT_AT_MS: str(4 * DAY)}
