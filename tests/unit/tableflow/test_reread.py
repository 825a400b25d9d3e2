"""A reread of an upsert topic, and deletes that a table may have missed, without Kafka."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from memory_kafka import MemoryKafka, topic_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from topicberg.errors import TableflowError
from topicberg.formats import metadata as names
from topicberg.iceberg.summaries import COMMITTED_AT_MS, CURRENT_AT_MS, END_OFFSETS
from topicberg.kafka.offsets import dump_offsets
from topicberg.kafka.topics import tombstone_ms
from topicberg.settings import Settings
from topicberg.tableflow.layout.message_fields import KEY, VALUE, Layout, MessageField
from topicberg.tableflow.layout.upsert_key import raw_key
from topicberg.tableflow.table import reread as module
from topicberg.tableflow.upsert.key_hashing import no_decoder
from topicberg.tableflow.upsert.tombstones import MISSED, DeleteWatch, Missed, current
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.offsets import Batch
from topicberg.topics import TopicSpec

SPEC = TopicSpec.model_validate(
    {
        **{"name": "orders", "pipeline": "shop", "partitions": 1},
        **{"schema": {"format": "none"}, "write_mode": "upsert"},
    }
)
RAW_KEY, PARTITION = (SPEC.metadata_column(n) for n in (names.RAW_KEY, names.PARTITION))
COLUMNS = pa.schema([(RAW_KEY, pa.binary()), (PARTITION, pa.int32())])


def test_rows_committed_while_the_topic_is_read_are_kept(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[bytes] = []
    table = catalog.create_table("shop.orders", COLUMNS)

    def commit(*keys: bytes, end: int) -> None:
        rows = [{RAW_KEY: key, PARTITION: 0} for key in keys]
        catalog.load_table("shop.orders").append(
            pa.Table.from_pylist(rows, COLUMNS),
            snapshot_properties={END_OFFSETS: dump_offsets({0: end})},
        )

    def produce(key: bytes) -> None:
        log.append(key)
        topic.produce(0, key, b"")

    def go_on() -> None:
        if len(log) < 4:  # meanwhile, an engine commits what a producer sent
            produce(b"new%d" % len(log))
            commit(log[-1], end=len(log))

    topic = topic_of()
    produce(b"old")
    commit(b"old", b"missed delete", end=1)
    broker = MemoryKafka({"orders": topic}, on_close=go_on).serve(monkeypatch)
    config = Settings(project_root=tmp_path, state_dir=tmp_path / "state")
    done = module.reread(SPEC, table, broker.endpoints, config)
    assert (done.rows, done.records) == (1, 4)
    assert sorted(table.refresh().scan().to_arrow()[RAW_KEY].to_pylist()) == sorted(log)


@pytest.mark.parametrize(
    ("unknown", "named"),
    [
        ({9: "which the registry does not have"}, "schema 9, which the registry does not have; "),
        ({9: "lost", 10: "lost"}, "schema 9, lost, and of 1 other schema; "),
        ({9: "lost", 10: "lost", 11: "lost"}, "schema 9, lost, and of 2 other schemas; "),
    ],
)
def test_reread_keys_of_unknown_schemas_deletes_nothing(
    catalog: SqlCatalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unknown: dict[int, str],
    named: str,
) -> None:
    table = catalog.create_table("shop.orders", COLUMNS)
    table.append(
        pa.Table.from_pylist([{RAW_KEY: b"k", PARTITION: 0}], COLUMNS),
        snapshot_properties={END_OFFSETS: dump_offsets({0: 1})},
    )
    head = table.current_snapshot()
    key = raw_key(SPEC.metadata_column), no_decoder, SimpleNamespace(unknown=unknown)
    monkeypatch.setattr(module, "key_of", lambda *_: key)
    broker = MemoryKafka({"orders": topic_of()}).serve(monkeypatch)
    config = Settings(project_root=tmp_path, state_dir=tmp_path / "state")
    with pytest.raises(TableflowError, match="rows of such keys would be deleted") as error:
        module.reread(SPEC, table, broker.endpoints, config)
    assert named in error.value.message
    assert table.refresh().current_snapshot() == head


def test_reread_keys_of_several_types_are_compared_as_they_were_sent(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No subject says of which type a key is, so none is decoded."""
    spec = SPEC.model_validate(
        {**SPEC.model_dump(by_alias=True), "key": {"format": "avro", "file": "from-the-registry"}}
    )
    table = catalog.create_table("shop.orders", COLUMNS)
    table.append(
        pa.Table.from_pylist([{RAW_KEY: k, PARTITION: 0} for k in (b"kept", b"gone")], COLUMNS),
        snapshot_properties={END_OFFSETS: dump_offsets({0: 2})},
    )
    topic = topic_of()
    topic.produce(0, b"kept", b"")
    broker = MemoryKafka({"orders": topic}).serve(monkeypatch)
    layout = Layout(MessageField(KEY, None), MessageField(VALUE, None))
    monkeypatch.setattr(module, "schema_readers", lambda _: None)
    monkeypatch.setattr(module, "read_layout", lambda *_: layout)
    config = Settings(project_root=tmp_path, state_dir=tmp_path / "state")
    done = module.reread(spec, table, broker.endpoints, config)
    assert (done.rows, done.records) == (1, 1)
    assert table.refresh().scan().to_arrow()[RAW_KEY].to_pylist() == [b"kept"]


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
