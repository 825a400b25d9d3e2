"""Hostile schemas and records hit topics of a running stack; another one keeps committing.

``TOPICBERG_TEST_ATTACKS=1000``: so many random records for each topic instead of 30.
``TOPICBERG_TEST_SEED``: others.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import psutil
import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError
from hostile import SCHEMAS, SUBSTITUTION, VALID, Kind, records, schemas, zigzag
from kafka_topics import ORDER, Topic, avro, encode
from living_files import contents
from typer.testing import CliRunner
from waiting import wait_until

from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.formats.framing import wire_prefix
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.settings import settings
from topicberg.spark import new_session
from topicberg.tableflow.service.status import TopicStatus, read_status
from topicberg.topics.deadletters import dead_letter_spec
from topicberg_local import stack as local_stack

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.integration

ATTACKS = int(os.environ.get("TOPICBERG_TEST_ATTACKS", "30"))
SEED = int(os.environ.get("TOPICBERG_TEST_SEED", "19"))
PATIENCE_SECONDS = 300.0 + ATTACKS
RECOVERY_SECONDS = 30.0
MAX_GROWTH = 1_500 * 2**20
"""Bytes of memory of the engine's process, and of Spark's workers."""
EMPTY = {"type": "record", "name": "Nothing", "fields": []}


def bombs() -> Iterator[tuple[Kind, str]]:
    """Schemas of other subjects, of the name of the topic's own, that expand or end nowhere."""
    kind: Any = avro({"name": "x", "type": "int"}) | {"name": "R0"}
    for level in range(1, 25):
        inner = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{level - 1}"}]
        kind = {"type": "record", "name": f"R{level}", "fields": inner}
    trees = [avro({"name": "id", "type": "long"}, {"name": "tree", "type": kind})]
    for items in ("null", EMPTY, {"type": "fixed", "name": "F", "size": 0}):
        trees.append(avro({"name": "no", "type": {"type": "array", "items": items}}))
    trees.append(avro({"name": "f", "type": {"type": "fixed", "name": "F", "size": 2**31 - 1}}))
    trees.append(avro({"name": "next", "type": ["null", "Order"]}))
    trees.append(avro(*({"name": f"f{n}", "type": "int"} for n in range(10_001))))
    yield from (("AVRO", json.dumps(tree)) for tree in trees)
    refused: list[dict[str, Any]] = [{SUBSTITUTION: {}}, {"a": {"pattern": "a{99999999999999999}"}}]
    for properties in refused:
        yield "JSON", json.dumps({"title": "Order", "type": "object", "properties": properties})
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
def enabled() -> Iterator[Callable[..., None]]:
    names: list[str] = []

    def enable(topic: Topic, mode: str, *more: str) -> None:
        name = topic.spec.name
        done = CliRunner().invoke(
            app, ["tableflow", "enable", name, "--error-handling", mode, *more]
        )
        assert done.exit_code == 0, done.output
        names.append(name)

    yield enable
    for name in dict.fromkeys(names):
        assert CliRunner().invoke(app, ["tableflow", "disable", name]).exit_code == 0


def status(topic: Topic) -> TopicStatus:
    return read_status(settings(), topic.spec.name)


def read(topic: Topic) -> int:
    """Return how many offsets the table has read, those of skipped records included."""
    return sum(status(topic).end_offsets.values())


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
    files = contents(folder, math.inf)
    return [path for path, _, content in files if any(needle in content for needle in needles)]


@dataclass
class Watch:
    """The good topic, the processes, and what the worst moment of each was."""

    good: Topic
    longest: float = 0.0
    """Seconds from a record of the good topic to its commit."""
    down: float = 0.0
    """Seconds without a process of Spark."""
    memory: int = 0
    restarts: int = 0

    def until(self, done: Callable[[], bool]) -> None:
        """Send a record to the good topic now and then."""
        pid, commits = spark_pid(), status(self.good).commits
        since = alive = began = time.monotonic()
        number = 0
        while not done():
            assert time.monotonic() < began + PATIENCE_SECONDS, "the hostile topics do not end"
            number += 1
            self.good.send(ORDER, [{"id": number, "note": "good"}])
            time.sleep(1)
            now = time.monotonic()
            if (count := status(self.good).commits) != commits:
                commits, since = count, now
            self.longest = max(self.longest, now - since)
            found = spark_pid()
            if found is not None:
                alive = now
                self.restarts += found != pid
                pid = found
            self.down = max(self.down, now - alive)
            self.memory = max(self.memory, memory("tableflow"))


def memory(name: str) -> int:
    """Return the memory in bytes of a service and its children; 0: it does not run."""
    found = local_stack.status(settings())
    pid = next((service.pid for service in found if service.name == name), None)
    try:
        process = psutil.Process(pid) if pid else None
        all_ = [process, *process.children(recursive=True)] if process else []
        return sum(one.memory_info().rss for one in all_)
    except psutil.NoSuchProcess:
        return 0


HOSTILE: list[tuple[Kind, str, str]] = [
    ("AVRO", "SKIP", "append"),
    ("AVRO", "LOG", "upsert"),
    ("JSON", "LOG", "append"),
    ("JSON", "SKIP", "upsert"),
    ("PROTOBUF", "SUSPEND", "append"),
    ("PROTOBUF", "LOG", "upsert"),
]
CONFIG = {
    "max.message.bytes": "20000000",
    "retention.ms": "-1",  # else Kafka deletes records by their timestamps, within minutes
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
}
KEYS = [b"", b"k", b"\xff\xfe", b"K" * 256, b"K" * 257, b"L" * 500_000, SUBSTITUTION.encode()]


def attacks(topic: Topic, kind: Kind) -> list[bytes]:
    """Return records of the topic's schema, of hostile ones, of unknown ones, and of none."""
    registry = topic.endpoints.schema_registry_client()
    own = wire_prefix(
        registry.register_schema(topic.spec.value_subject, Schema(SCHEMAS[kind], kind))
    )
    sent = [own + record for record in records(kind, ATTACKS, SEED)]
    foreign = [text for other, text in bombs() if other == kind]
    for text in [*foreign, *schemas(kind, ATTACKS // 5, SEED)]:
        with suppress(SchemaRegistryError, UnicodeError):  # the registry refuses what is not valid
            number = registry.register_schema(f"x{uuid.uuid4().hex}-value", Schema(text, kind))
            sent += [wire_prefix(number) + tail for tail in (VALID[kind], b"\x02" + zigzag(2**31))]
    sent += [wire_prefix(number) + b"\x02" for number in range(900_000_000, 900_000_000 + ATTACKS)]
    sent += [b"", b"\x00", b"\x01" * 100, own + bytes(5_000_000)]  # a thousandth when compressed
    return [own + VALID[kind], *sent, own + VALID[kind]]


def dead_letters(topic: Topic) -> list[bytes]:
    """Return the keys of the dead-letter topic, which all topics share."""
    target = dead_letter_spec(topic.spec).name
    ranges = {p: (0, end) for p, end in kafka.end_offsets(topic.endpoints, target).items()}
    read = messages(topic.endpoints, target, ranges)
    return [each.key() or b"" for each in read]


@pytest.mark.timeout(3600)
def test_hostile_topics_stop_no_other_one(
    stack: Endpoints, make_topic: Callable[..., Topic], enabled: Callable[..., None]
) -> None:
    """In all formats and modes: every record is a row or is counted; nothing of the environment is
    shown; the engine and Spark stay, or come back; another topic keeps its interval."""
    good = make_topic()
    good.send(ORDER, [{"id": 0, "note": "first"}])
    enabled(good, "SKIP")
    wait_until(lambda: status(good).commits, PATIENCE_SECONDS)
    bad = {case: make_topic(topic_config=CONFIG) for case in HOSTILE}
    sent = {case: attacks(topic, case[0]) for case, topic in bad.items()}
    engine = memory("tableflow")
    for number, ((_, mode, write_mode), topic) in enumerate(bad.items()):
        topic.send_raw(
            sent[HOSTILE[number]],
            key=lambda n: KEYS[n % len(KEYS)],
            timestamp=lambda n: (0, 1, 2**62, 253_402_300_800_000)[n % 4],
            compression_type=("zstd", "gzip", "lz4", "snappy")[number % 4],
            message_max_bytes=20_000_000,
            headers=[("h" * 1_000, b"v"), ("${env:HOME}", None), *[("x", b"")] * 200],
        )
        enabled(topic, mode, "--write-mode", write_mode)

    def ended(case: tuple[Kind, str, str]) -> bool:
        if case[1] == "SUSPEND":
            return status(bad[case]).suspended
        return read(bad[case]) >= len(sent[case])

    watch = Watch(good)
    watch.until(lambda: all(map(ended, HOSTILE)))
    for case in HOSTILE:
        if case[1] == "SUSPEND":
            assert re.search(r"partition \d, offset \d+: ", status(bad[case]).error_message or "")
            enabled(bad[case], "SKIP", "--write-mode", case[2])
    watch.until(lambda: all(read(bad[case]) >= len(sent[case]) for case in HOSTILE))
    logger.info("%s, engine before %d", watch, engine)
    assert watch.longest < PATIENCE_SECONDS / 2
    assert watch.down < RECOVERY_SECONDS
    assert watch.memory < engine + MAX_GROWTH
    logged = dead_letters(good)
    for case, topic in bad.items():
        rows, skipped = topic.table().scan().to_arrow().num_rows, status(topic).rows_skipped
        logger.info("%s: sent %d, rows %d, skipped %d", case, len(sent[case]), rows, skipped)
        assert 0 < skipped < len(sent[case])
        if case[2] == "append":
            assert rows + skipped == len(sent[case])
        else:
            # A record with an empty key goes to any partition, which is part of the key.
            assert 0 < rows < len(KEYS) + topic.spec.partitions
        if case[1] == "LOG":
            prefix = f"{topic.spec.name}-".encode()
            assert sum(key.startswith(prefix) for key in logged) == skipped
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


@pytest.mark.timeout(3600)
def test_record_that_exhausts_a_process_is_found(
    stack: Endpoints, make_topic: Callable[..., Topic], enabled: Callable[..., None]
) -> None:
    """One byte for each element, of which each one has hundreds of columns in the table."""
    good, bad = make_topic(), make_topic()
    good.send(ORDER, [{"id": 0, "note": "first"}])
    prefix = wire_prefix(bad.register(items(0)))
    bad.register(items(400))
    small = prefix + encode(fastavro.parse_schema(items(0)), {"id": 1, "items": [{"a": 1}]})
    count = 8_000_000
    killer = prefix + b"\x02" + zigzag(count) + b"\x02" * count + b"\x00"
    bad.send_raw([small] * 5)
    for topic in (good, bad):
        enabled(topic, "SKIP")
    for topic in (good, bad):
        wait_until(lambda t=topic: status(t).commits, PATIENCE_SECONDS)  # type: ignore[misc]
    pid, sent = spark_pid(), [*[small] * 50, killer, *[small] * 50]
    bad.send_raw(sent, partition=0, compression_type="zstd", message_max_bytes=20_000_000)
    wait_until(lambda: read(bad) >= len(sent) + 5, 3 * PATIENCE_SECONDS)
    assert spark_pid() == pid
    assert (status(bad).rows_skipped, status(good).rows_skipped) == (1, 0)
    assert len(bad.rows("id")) == len(sent) + 4
    commits = status(good).commits
    good.send(ORDER, [{"id": 1, "note": "last"}])
    wait_until(lambda: status(good).commits > commits, PATIENCE_SECONDS)
    assert [row["id"] for row in good.rows("id")] == [0, 1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compressed_bombs_are_skipped(
    stack: Endpoints, make_topic: Callable[..., Topic], enabled: Callable[..., None]
) -> None:
    """Records of up to 900 MB, in batches of some kilobytes: ten thousand to one."""
    good, bad = make_topic(), make_topic(topic_config=CONFIG)
    good.send(ORDER, [{"id": 0, "note": "first"}])
    enabled(good, "SKIP")
    wait_until(lambda: status(good).commits, PATIENCE_SECONDS)
    registry, schema = bad.endpoints.schema_registry_client(), Schema(SCHEMAS["AVRO"], "AVRO")
    own = wire_prefix(registry.register_schema(bad.spec.value_subject, schema))
    sizes = [200_000_000, 900_000_000]
    for size in sizes:
        bad.send_raw(
            [own + VALID["AVRO"], own + bytes(size), own + VALID["AVRO"]],
            partition=0,
            compression_type="zstd",
            message_max_bytes=1_000_000_000,
            queue_buffering_max_kbytes=2_000_000,
        )
    engine = memory("tableflow")
    enabled(bad, "SKIP")
    watch = Watch(good)
    watch.until(lambda: read(bad) >= 3 * len(sizes))
    logger.info("%s, engine before %d", watch, engine)
    assert status(bad).rows_skipped == len(sizes)
    assert bad.table().scan().to_arrow().num_rows == 2 * len(sizes)
    assert watch.memory < engine + MAX_GROWTH
    assert watch.down < RECOVERY_SECONDS
