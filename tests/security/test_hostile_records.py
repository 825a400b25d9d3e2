"""Hostile schemas and records hit one topic of a running stack; another one keeps committing.

``TOPICBERG_TEST_ATTACKS=1000``: so many records instead of a hundred.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError
from kafka_topics import ORDER, Topic, avro, encode
from typer.testing import CliRunner
from waiting import wait_until

from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.formats.subjects import wire_prefix
from topicberg.local import stack as local_stack
from topicberg.settings import settings
from topicberg.spark import new_session
from topicberg.tableflow.status import TopicStatus, read_status

pytestmark = pytest.mark.integration

ATTACKS = int(os.environ.get("TOPICBERG_TEST_ATTACKS", "100"))
PATIENCE_SECONDS = 300.0
SUBSTITUTION = "${env:SPARK_CONNECT_AUTHENTICATE_TOKEN}"
TAGS = avro(
    {"name": "id", "type": "long"},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    {"name": "parts", "type": {"type": "map", "values": "bytes"}, "default": {}},
)
VALID = {"id": 7, "tags": ["a", "b"], "parts": {"k": b"v"}}
EMPTY = {"type": "record", "name": "Nothing", "fields": []}


def varint(number: int) -> bytes:
    """A long as Avro writes it."""
    rest, encoded = (number << 1) ^ (number >> 63), bytearray()
    rest &= 2**64 - 1
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


CLAIMS = [2**24, 2**24 + 1, 2**31 - 9, 2**31, 2**40, 2**62, -(2**31), -(2**63)]


def records(count: int) -> Iterator[bytes]:
    """Records that claim what they do not have, and bytes that are changed at random."""
    for claim in CLAIMS:
        yield b"\x02" + varint(claim)  # items of an array
        yield b"\x02\x02" + varint(claim)  # characters of a string
        yield b"\x02\x00" + varint(claim)  # entries of a map
        yield b"\x02\x00\x02\x02k" + varint(claim)  # bytes
        yield b"\x02" + varint(-1) + varint(claim)  # the bytes of a block
    chance, valid = random.Random(19), encode(fastavro.parse_schema(TAGS), VALID)
    for _ in range(count):
        changed = bytearray(valid)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(1, len(changed))] = chance.randrange(128, 256)
        yield bytes(changed[: chance.randint(1, len(changed))])


def schemas() -> Iterator[tuple[str, Any]]:
    """Those of other subjects, of the same name as the topic's own."""
    kind: Any = avro({"name": "x", "type": "int"}) | {"name": "R0"}
    for level in range(1, 25):
        inner = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{level - 1}"}]
        kind = {"type": "record", "name": f"R{level}", "fields": inner}
    yield "AVRO", avro({"name": "id", "type": "long"}, {"name": "tree", "type": kind})
    for items in ("null", EMPTY, {"type": "fixed", "name": "F", "size": 0}):
        yield "AVRO", avro({"name": "no", "type": {"type": "array", "items": items}})
    yield "AVRO", avro({"name": "f", "type": {"type": "fixed", "name": "F", "size": 2**31 - 1}})
    yield "AVRO", avro({"name": "next", "type": ["null", "Order"]})
    yield "AVRO", avro(*({"name": f"f{n}", "type": "int"} for n in range(10_001)))
    yield "JSON", {"title": "Order", "type": "object", "properties": {SUBSTITUTION: {}}}
    yield "PROTOBUF", 'syntax = "proto3"; message Order { Order next = 1; }'


def test_sessions_replace_no_variables(stack: Endpoints) -> None:
    """Neither ours nor one of another client, to which the server's own properties apply."""
    from pyspark.sql import functions as F
    from pyspark.sql.connect.session import SparkSession

    text = f"SELECT '{SUBSTITUTION}' AS a, 1 AS `{SUBSTITUTION}`"
    other = SparkSession.builder.remote(stack.spark_connect).create()
    for session in (new_session(stack.spark_connect), other):
        try:
            assert session.sql(text).collect()[0].asDict() == {"a": SUBSTITUTION, SUBSTITUTION: 1}
            found = session.range(1).select(F.expr(f"'{SUBSTITUTION}'").alias("x")).collect()
            assert found[0]["x"] == SUBSTITUTION
        finally:
            session.stop()


@pytest.fixture
def enabled() -> Iterator[Callable[[Topic, str], None]]:
    names: list[str] = []

    def enable(topic: Topic, mode: str) -> None:
        name = topic.spec.name
        done = CliRunner().invoke(app, ["tableflow", "enable", name, "--error-handling", mode])
        assert done.exit_code == 0, done.output
        names.append(name)

    yield enable
    for name in names:
        assert CliRunner().invoke(app, ["tableflow", "disable", name]).exit_code == 0


def status(topic: Topic) -> TopicStatus:
    return read_status(settings(), topic.spec.name)


def spark_pid() -> int | None:
    found = local_stack.status(settings())
    return next(service.pid for service in found if service.name == "spark")


def secrets() -> list[str]:
    text = (settings().state_dir / "credentials.json").read_text()
    keys = ("secret", "token", "password", "key")
    found = json.loads(text).items()
    return [value for name, value in found if any(k in name for k in keys) and len(value) > 16]


def files_with(texts: list[str], folder: Path) -> list[Path]:
    needles = [text.encode() for text in texts]
    files = (file for file in folder.rglob("*") if file.is_file())
    return [file for file in files if any(needle in file.read_bytes() for needle in needles)]


def keep_sending(topic: Topic, until: Callable[[], bool]) -> float:
    """Send a record to the topic now and then; the longest time without a commit, in seconds."""
    longest, commits, since, number = 0.0, status(topic).commits, time.monotonic(), 0
    deadline = since + PATIENCE_SECONDS
    while not until():
        assert time.monotonic() < deadline, "the hostile topic does not end"
        number += 1
        topic.send(ORDER, [{"id": number, "note": "good"}])
        time.sleep(1)
        if (now := status(topic).commits) != commits:
            commits, since = now, time.monotonic()
        longest = max(longest, time.monotonic() - since)
    return longest


def test_hostile_topic_stops_no_other_one(
    stack: Endpoints,
    make_topic: Callable[..., Topic],
    enabled: Callable[[Topic, str], None],
) -> None:
    """Every record is a row or is counted; Spark lives; nothing of the environment is shown."""
    good, bad = make_topic(), make_topic()
    good.send(ORDER, [{"id": 0, "note": "first"}])
    bad.send(TAGS, [VALID])
    for topic in (good, bad):
        enabled(topic, "SKIP")
    for topic in (good, bad):
        wait_until(lambda t=topic: status(t).commits, PATIENCE_SECONDS)  # type: ignore[misc]
    pid, registry, own = spark_pid(), stack.schema_registry_client(), bad.register(TAGS)
    sent = [wire_prefix(own) + record for record in records(ATTACKS)]
    for kind, schema in schemas():
        text = schema if isinstance(schema, str) else json.dumps(schema)
        with suppress(SchemaRegistryError):  # it refuses what is not valid
            number = registry.register_schema(f"x{uuid.uuid4().hex}-value", Schema(text, kind))
            sent += [wire_prefix(number) + tail for tail in (b"\x02", b"\x02" + varint(2**31))]
    sent += [wire_prefix(number) + b"\x02" for number in range(900_000_000, 900_000_020)]
    sent += [b"", b"\x00", b"\x01" * 100, wire_prefix(own) + bytes(5_000_000)]
    bad.send_raw(sent, compression_type="zstd", message_max_bytes=20_000_000)
    bad.send(TAGS, [VALID])
    total = len(sent) + 2
    longest = keep_sending(good, lambda: status(bad).rows_committed >= total)
    assert longest < PATIENCE_SECONDS / 2
    assert spark_pid() == pid
    rows = bad.table().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
    assert len(rows) + status(bad).rows_skipped == total
    assert rows.count(7) >= 2
    state = settings().state_dir
    for folder in (state / "logs", state / "tableflow"):
        assert not files_with(secrets(), folder)


def items(columns: int) -> dict[str, Any]:
    more = ({"name": f"c{n}", "type": ["null", "long"], "default": None} for n in range(columns))
    item = {"type": "record", "name": "Item", "fields": [{"name": "a", "type": "int"}, *more]}
    return avro(
        {"name": "id", "type": "long"},
        {"name": "items", "type": {"type": "array", "items": item}, "default": []},
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_record_that_ends_spark_is_found(
    stack: Endpoints,
    make_topic: Callable[..., Topic],
    enabled: Callable[[Topic, str], None],
) -> None:
    """One byte for each element, of which each one has hundreds of columns in the table."""
    good, bad = make_topic(), make_topic()
    good.send(ORDER, [{"id": 0, "note": "first"}])
    prefix = wire_prefix(bad.register(items(0)))
    bad.register(items(400))
    small = prefix + encode(fastavro.parse_schema(items(0)), {"id": 1, "items": [{"a": 1}]})
    count = 8_000_000
    killer = prefix + b"\x02" + varint(count) + b"\x02" * count + b"\x00"
    bad.send_raw([small] * 5)
    for topic in (good, bad):
        enabled(topic, "SKIP")
    for topic in (good, bad):
        wait_until(lambda t=topic: status(t).commits, PATIENCE_SECONDS)  # type: ignore[misc]
    pid = spark_pid()
    sent = [*[small] * 50, killer, *[small] * 50]
    bad.send_raw(sent, partition=0, compression_type="zstd", message_max_bytes=20_000_000)
    wait_until(lambda: status(bad).rows_committed >= len(sent) + 5, 3 * PATIENCE_SECONDS)
    assert spark_pid() != pid
    assert status(bad).rows_skipped == 1
    assert status(good).rows_skipped == 0
    assert len(bad.rows("id")) == len(sent) + 4
    commits = status(good).commits
    good.send(ORDER, [{"id": 1, "note": "last"}])
    wait_until(lambda: status(good).commits > commits, PATIENCE_SECONDS)
    assert [row["id"] for row in good.rows("id")] == [0, 1]
