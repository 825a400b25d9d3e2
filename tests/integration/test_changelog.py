"""Debezium's changes become the current rows of the source's table, or a log of its changes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import permutations
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from debezium import (
    ENVELOPE,
    UNAVAILABLE,
    Captured,
    Event,
    Replay,
    SourceTopic,
    captured,
    captured_json,
    send_captured,
)
from hostile import zigzag
from kafka_topics import Row, Topic

from topicberg.errors import TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.kafka.consumer import messages
from topicberg.tableflow.service.engine import Ingestor, run_once

pytestmark = pytest.mark.integration


def change_topic(make_topic: Callable[..., Topic], **fields: Any) -> Topic:
    given = {
        "write_mode": "upsert",
        "key": {"format": "avro", "file": "stock_trades.avsc"},
        "changelog": {"format": "debezium"},
        **fields,
    }
    return make_topic(**given)


def rows_of(topic: Topic) -> list[Row]:
    """Return the rows without metadata columns."""
    found = []
    for row in topic.rows():
        found.append({name: value for name, value in row.items() if not name.startswith("$$")})
    return found


ORDERS = [{"region": "ap", "no": 1, "qty": 1, "note": None, "extra": Decimal("6.50")}]


@pytest.mark.parametrize(
    "order",
    [(2, 1, 0), *(pytest.param(one, marks=pytest.mark.slow) for one in permutations((0, 1, 2)))],
)
def test_changelog_orders_partition_by_partition_give_rows(
    make_topic: Callable[..., Topic], order: tuple[int, ...]
) -> None:
    """Columns are added, dropped and retyped; a truncate deletes rows of other partitions."""
    topic, records = change_topic(make_topic), captured("davro.shop.orders")
    replay, ingestor = Replay(topic, records), Ingestor(topic.spec, topic.endpoints, topic.config)
    for partition in order:
        replay.send(one for one in records if one.partition == partition)
        while ingestor.step().records:
            pass
    ingestor.close()
    assert rows_of(topic) == ORDERS


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5, 13])
def test_changelog_orders_in_batches_of_any_size_give_rows(
    make_topic: Callable[..., Topic], size: int
) -> None:
    topic = change_topic(make_topic)
    records = sorted(captured("davro.shop.orders"), key=lambda one: (one.timestamp, one.offset))
    replay, ingestor = Replay(topic, records), Ingestor(topic.spec, topic.endpoints, topic.config)
    for first in range(0, len(records), size):
        replay.send(records[first : first + size])
        ingestor.step()
    ingestor.close()
    assert rows_of(topic) == ORDERS


CUSTOMER: Row = {
    "id": 11,
    "name": "ann2",
    "bio": "x" * 4000,
    "st": "new",
    "n": Decimal("12.3456"),
    "nfree": "1.5",
    "nint": Decimal(12345678901234567890123456789012345678),
    "nbig": "1.0000000001",
    "m": "12.34",
    "ts": datetime(2024, 2, 29, 12, 34, 56, 123456),
    "ts3": datetime(2024, 2, 29, 12, 34, 56, 789000),
    "tstz": datetime(2024, 2, 29, 10, 34, 56, 123456, UTC),
    "d": date(2024, 2, 29),
    "t": 86_399_123_456,
    "t3": 86_399_123,
    "ttz": "10:00:00.5Z",
    "iv": 37_091_106_700_000,
    "u": "123e4567-e89b-12d3-a456-426614174000",
    "j": '{"a": [1, 2], "b": null}',
    "arr": [1, 2, None],
    "tarr": ["x", "y"],
    "b": bytes.fromhex("deadbeef"),
    "bl": True,
    "bv": b"U\x01",
    "r": "[1,5)",
    "vc": "hi",
}
SKIP = {"error_handling": {"mode": "SKIP"}}


def in_order(records: tuple[Captured, ...]) -> list[Captured]:
    return sorted(records, key=lambda one: (one.timestamp, one.partition, one.offset))


def ingest_customers(topic: Topic, ordered: list[Captured], size: int, send: Any) -> None:
    """Send and ingest changes of customers in batches; compare with the source's rows."""
    ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
    for first in range(0, len(ordered), size):
        send(ordered[first : first + size])
        last = ingestor.step()
    ingestor.close()
    rows = {row["id"]: row for row in rows_of(topic)}
    assert set(rows) == {10, 11}
    assert {name: rows[11][name] for name in CUSTOMER} == CUSTOMER
    assert last.rows_skipped == 2


@pytest.mark.parametrize("size", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_changelog_customers_in_batches_give_typed_rows(
    make_topic: Callable[..., Topic], size: int
) -> None:
    """Two changes of the primary key, of a row with unchanged TOAST; two rows out of range."""
    topic, records = change_topic(make_topic, tableflow=SKIP), captured("davro.shop.customers")
    ingest_customers(topic, in_order(records), size, Replay(topic, records).send)


def test_changelog_key_beyond_the_limit_is_malformed(make_topic: Callable[..., Topic]) -> None:
    """The engine's process holds the decoded keys of a batch."""
    topic, records = change_topic(make_topic, tableflow=SKIP), captured("davro.shop.orders")
    replay = Replay(topic, records)
    one = next(record for record in records if record.key and record.value)
    key = one.key or b""
    assert key[5] == 2 * len("ap")
    size = 70_000
    begin = key[:5] + zigzag(size) + b"x" * size
    replay.send([one, replace(one, key=begin + key[8:])])
    assert run_once(topic.spec, topic.endpoints, topic.config).rows_skipped == 1
    assert len(rows_of(topic)) == 1


def test_changelog_iso_times_give_the_same_columns(make_topic: Callable[..., Topic]) -> None:
    topic, records = change_topic(make_topic, tableflow=SKIP), captured("diso.shop.customers")
    Replay(topic, records).send(records)
    topic.ingest()
    row = {row["id"]: row for row in rows_of(topic)}[11]
    same = {"ts", "ts3", "tstz", "d", "t", "bio"}
    assert {name: row[name] for name in same} == {name: CUSTOMER[name] for name in same}


def test_changelog_toast_types_are_taken_from_the_row(make_topic: Callable[..., Topic]) -> None:
    topic = change_topic(make_topic)
    first, second = captured("davro.shop.toast")
    replay = Replay(topic, [first, second])
    replay.send([first])
    topic.ingest()
    (before,) = rows_of(topic)
    replay.send([second])
    topic.ingest()
    (after,) = rows_of(topic)
    assert after == {**before, "n": 2, "nu": None}
    assert len(after["ia"]) == len(after["ta"]) == 800


@pytest.mark.parametrize(
    "order",
    [(2, 1, 0), *(pytest.param(one, marks=pytest.mark.slow) for one in permutations((0, 1, 2)))],
)
def test_changelog_mysql_order_is_file_position_and_row(
    make_topic: Callable[..., Topic], order: tuple[int, ...]
) -> None:
    """All changes have the same second; a truncate deletes rows of other partitions."""
    topic, records = change_topic(make_topic), captured("dmysql.shop.orders")
    replay, ingestor = Replay(topic, records), Ingestor(topic.spec, topic.endpoints, topic.config)
    for partition in order:
        replay.send(one for one in records if one.partition == partition)
        while ingestor.step().records:
            pass
    ingestor.close()
    last = {"region": "jp", "no": 1, "qty": 2, "note": "last", "extra": Decimal("4.50")}
    assert rows_of(topic) == [last]


def test_changelog_mysql_types_become_columns(make_topic: Callable[..., Topic]) -> None:
    topic, records = change_topic(make_topic), captured("dmysql.shop.kinds")
    Replay(topic, records).send(records)
    topic.ingest()
    first, last = rows_of(topic)
    expected = {
        "id": 1,
        "d": Decimal("12.3456"),
        "dd": 2.25,
        "dt": datetime(2024, 2, 29, 12, 34, 56, 123456),
        "ts": datetime(2024, 2, 29, 10, 34, 56, 123456, UTC),
        "da": date(2024, 2, 29),
        "ti": 86_399_123_456,
        "y": 2024,
        "e": "new",
        "s": "a,b",
        "j": '{"a": [1, null]}',
        "b": bytes.fromhex("deadbeef"),
        "bl": 1,
        "bt": b"U\x01",
        "ub": 9_000_000_000_000_000_000,
        "tx": "new",
        "ch": "ab",
    }
    assert first == expected
    assert last == dict.fromkeys(expected) | {"id": 3, "tx": "three"}


MONGODB = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": name, "type": ["null", "string"], "default": None} for name in ("before", "after")
    ]
    + [field for field in ENVELOPE["fields"] if field["name"] not in ("before", "after")],
}
"""Source: Debezium's documentation of its MongoDB connector, "Change event values"."""


def test_changelog_mongodb_envelope_suspends_with_reason(make_topic: Callable[..., Topic]) -> None:
    topic = change_topic(make_topic, write_mode="append", key={"format": "none"})
    row = {"before": None, "after": '{"_id": 1}', "op": "c", "source": {"ts_ms": 1}}
    topic.send(MONGODB, [row])
    with pytest.raises(TableflowError, match=r"field after is of the type string") as raised:
        topic.ingest()
    assert "MongoDB" in (raised.value.hint or "")


def test_changelog_unknown_old_value_goes_to_dead_letters(make_topic: Callable[..., Topic]) -> None:
    target = f"errors_{uuid.uuid4().hex[:8]}"
    handling = {"error_handling": {"mode": "LOG", "target": target}}
    topic = change_topic(make_topic, tableflow=handling)
    writer, lost = SourceTopic(topic), {"id": 1, "v": 1, "big": UNAVAILABLE}
    good = {"id": 2, "v": 2, "big": "b"}
    writer.send([Event(0, 1, "u", 10, lost), Event(0, 2, "c", 11, good)])
    last = run_once(topic.spec, topic.endpoints, topic.config)
    assert rows_of(topic) == [good]
    assert last.rows_skipped == 1
    (letter,) = list(messages(topic.endpoints, target, {0: (0, 1)}))
    assert b"field after.big (string): the connector did not have the value" in (
        letter.value() or b""
    )


def json_topic(make_topic: Callable[..., Topic], **fields: Any) -> Topic:
    topic = make_topic(
        write_mode="upsert",
        schema={"format": "json", "file": "none.json"},
        key={"format": "json", "file": "none.json"},
        changelog={"format": "debezium"},
        **fields,
    )
    registry = topic.endpoints.schema_registry_client()
    for subject in (topic.spec.value_subject, topic.spec.key_subject):
        registry.set_compatibility(subject, "NONE")
    return topic


def register(topic: Topic, value: dict[str, Any], key: dict[str, Any]) -> tuple[int, int]:
    registry = topic.endpoints.schema_registry_client()
    found = [
        registry.register_schema(subject, Schema(json.dumps(schema), "JSON"))
        for subject, schema in ((topic.spec.value_subject, value), (topic.spec.key_subject, key))
    ]
    return found[0], found[1]


@pytest.mark.parametrize(
    "size", [7, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 4))]
)
def test_json_orders_with_schemas_in_any_batches_give_rows(
    make_topic: Callable[..., Topic], size: int
) -> None:
    """Columns are added, dropped and retyped; a truncate deletes rows of other partitions."""
    topic, records = json_topic(make_topic), in_order(captured_json("djsons.shop.orders"))
    ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
    for first in range(0, len(records), size):
        send_captured(topic, records[first : first + size])
        ingestor.step()
    while ingestor.step().records:
        pass
    ingestor.close()
    assert rows_of(topic) == ORDERS


@pytest.mark.parametrize("size", [7, pytest.param(3, marks=pytest.mark.slow)])
def test_json_customers_with_schemas_give_the_rows_of_avro(
    make_topic: Callable[..., Topic], size: int
) -> None:
    topic = json_topic(make_topic, tableflow=SKIP)
    records = in_order(captured_json("djsons.shop.customers"))
    ingest_customers(topic, records, size, partial(send_captured, topic))


def test_json_toast_types_are_taken_from_the_row(make_topic: Callable[..., Topic]) -> None:
    topic = json_topic(make_topic)
    first, second = captured_json("djsons.shop.toast")
    send_captured(topic, [first])
    topic.ingest()
    (before,) = rows_of(topic)
    send_captured(topic, [second])
    topic.ingest()
    (after,) = rows_of(topic)
    assert after == {**before, "n": 2, "nu": None}
    assert len(after["ia"]) == len(after["ta"]) == 800


LONG = {"type": "integer"}
TEXT = {"type": ["string", "null"]}
ROW = {
    "type": "object",
    "properties": {
        "id": LONG,
        "name": TEXT,
        "bio": TEXT,
        "n": TEXT,
        "ts": {"type": ["integer", "null"], "title": "io.debezium.time.Timestamp"},
        "tstz": {"type": ["string", "null"], "title": "io.debezium.time.ZonedTimestamp"},
        "d": {"type": ["integer", "null"], "title": "io.debezium.time.Date"},
        "arr": {"type": ["array", "null"], "items": LONG},
        "b": {"type": ["string", "null"], "connect.type": "bytes"},
        "x": {"type": ["number", "null"]},
    },
}
SOURCE = {"type": "object", "properties": {"ts_us": LONG, "lsn": LONG, "snapshot": TEXT}}
JSON_ENVELOPE = {
    "title": "Envelope",
    "type": "object",
    "properties": {"before": ROW, "after": ROW, "source": SOURCE, "op": {"type": "string"}},
}
KEY = {"type": "object", "properties": {"id": LONG}}


def test_json_without_schemas_is_read_by_the_schema_file(make_topic: Callable[..., Topic]) -> None:
    topic = json_topic(make_topic, tableflow=SKIP)
    register(topic, JSON_ENVELOPE, KEY)
    records = in_order(captured_json("djson.shop.customers"))
    ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
    for first in range(0, len(records), 5):
        send_captured(topic, records[first : first + 5])
        last = ingestor.step()
    ingestor.close()
    rows = {row["id"]: row for row in rows_of(topic)}
    assert set(rows) == {10, 11}
    same = {"bio", "tstz", "d", "arr", "b"}
    assert {name: rows[11][name] for name in same} == {name: CUSTOMER[name] for name in same}
    assert rows[11]["ts"].isoformat() == "2024-02-29T12:34:56.123000"
    assert last.rows_skipped == 2


def test_json_in_wire_format_and_without_share_a_topic(make_topic: Callable[..., Topic]) -> None:
    topic = json_topic(make_topic)
    value_id, key_id = register(topic, JSON_ENVELOPE, KEY)
    source = {"ts_us": 1, "lsn": 1, "snapshot": "false"}

    def change(number: int, *, framed: bool) -> Captured:
        row = {"id": number, "name": "a", "b": "3q2+7w==", "x": [1e300, "-Infinity"][number - 1]}
        value = {"before": None, "after": row, "source": source, "op": "c"}
        parts = [json.dumps(one).encode() for one in ({"id": number}, value)]
        if framed:
            prefixes = wire_prefix(key_id), wire_prefix(value_id)
            parts = [prefix + part for prefix, part in zip(prefixes, parts, strict=True)]
        return Captured("", 0, 0, 0, (), *parts)

    send_captured(topic, [change(1, framed=True), change(2, framed=False), change(2, framed=True)])
    topic.ingest()
    assert [(row["id"], row["b"], row["x"]) for row in rows_of(topic)] == [
        (1, b"\xde\xad\xbe\xef", 1e300),
        (2, b"\xde\xad\xbe\xef", float("-inf")),
    ]
