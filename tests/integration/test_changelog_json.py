"""Debezium's changes in JSON: with a schema in each record, with none, and in the wire format."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from debezium import Captured, captured_json, send_captured
from kafka_topics import Topic
from test_changelog import CUSTOMER, ORDERS, rows_of

from topicberg.formats.framing import wire_prefix
from topicberg.formats.json.connect import opening
from topicberg.kafka.consumer import messages
from topicberg.tableflow.service.engine import Ingestor, run_once

pytestmark = pytest.mark.integration
SKIP = {"error_handling": {"mode": "SKIP"}}


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


def in_order(records: tuple[Captured, ...]) -> list[Captured]:
    return sorted(records, key=lambda one: (one.timestamp, one.partition, one.offset))


@pytest.mark.parametrize(
    "size", [7, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 4))]
)
def test_json_orders_with_schemas_in_any_batches_give_rows(
    make_topic: Callable[..., Topic], size: int
) -> None:
    """Columns are added, dropped and retyped; a truncate deletes rows of other partitions."""
    topic = json_topic(make_topic)
    records = in_order(captured_json("djsons.shop.orders"))
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
    ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
    records = in_order(captured_json("djsons.shop.customers"))
    for first in range(0, len(records), size):
        send_captured(topic, records[first : first + size])
        last = ingestor.step()
    ingestor.close()
    rows = {row["id"]: row for row in rows_of(topic)}
    assert set(rows) == {10, 11}
    assert {name: rows[11][name] for name in CUSTOMER} == CUSTOMER
    assert last.rows_skipped == 2


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
ENVELOPE = {
    "title": "Envelope",
    "type": "object",
    "properties": {"before": ROW, "after": ROW, "source": SOURCE, "op": {"type": "string"}},
}
KEY = {"type": "object", "properties": {"id": LONG}}


def test_json_without_schemas_is_read_by_the_schema_file(make_topic: Callable[..., Topic]) -> None:
    topic = json_topic(make_topic, tableflow=SKIP)
    register(topic, ENVELOPE, KEY)
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
    value_id, key_id = register(topic, ENVELOPE, KEY)
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


def test_json_malformed_changes_go_to_dead_letters(make_topic: Callable[..., Topic]) -> None:
    target = f"errors_{uuid.uuid4().hex[:8]}"
    handling = {"error_handling": {"mode": "LOG", "target": target}}
    topic = json_topic(make_topic, tableflow=handling)
    (good,) = [
        one
        for one in captured_json("djsons.shop.customers")
        if b'"op":"r"' in (one.value or b"") and b'"d":19782' in (one.value or b"")
    ]
    assert good.value is not None
    begin = opening(good.value)
    assert begin is not None
    assert begin.schema is not None
    values = [
        good.value.replace(b'"d":19782', b'"d":99999999'),  # a day after the year 9999
        good.value.replace(b'"nbig":"', b'"nbig":"#'),  # not base64
        good.value[:-1],  # no end
        begin.text + b"null}",  # no change
        b'{"schema":{"type":"struct","fields":[{"type":"any","field":"a"}]},"payload":{"a":1}}',
        b'{"schema":{"type":"struct"}}',
        b"not json",
        b"",
        good.value.replace(b'"op":"r"', b'"op":"x"'),
        good.value.replace(b'"f8":2.25', b'"f8":"nan"'),
    ]
    bad = [Captured("", 0, 0, 0, (), good.key, value) for value in values]
    send_captured(topic, [*bad, good])
    last = run_once(topic.spec, topic.endpoints, topic.config)
    assert [row["id"] for row in rows_of(topic)] == [1]
    assert last.rows_skipped == len(bad)
    ranges = {0: (0, 2 * len(bad))}  # with the ends of transactions
    read = messages(topic.endpoints, target, ranges, seconds=3, may_end_early=True)
    letters = list(read)[: len(bad)]
    texts = [bytes(letter.value() or b"").decode(errors="replace") for letter in letters]
    reasons = [
        "field after.d (date): value 99999999 is not between the years 1 and 9999",
        "field after.nbig (string): a number, or base64 of its unscaled bytes expected",
        "the record is not JSON: it ends at",
        "the record",
        "the record is not a change of a row (after, source, op): its fields are a",
        "it begins with a schema, but does not end with its payload",
        "the record is not JSON",
        "the record is not JSON: it is empty",
        'field op (string): value "x" is none of',
        'field after.f8 (double): a number expected, "nan" found',
    ]
    for reason, text in zip(reasons, texts, strict=True):
        assert reason in text
