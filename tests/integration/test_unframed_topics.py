"""Topics whose records name no schema: plain JSON, bare Avro, text."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import fastavro
import pytest
import yaml
from confluent_kafka.schema_registry import Schema
from kafka_topics import Topic
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from topicberg import peek
from topicberg.checks.topic import check_unknown_fields
from topicberg.cli import app
from topicberg.errors import TableflowError
from topicberg.iceberg.snapshots import affected_hours
from topicberg.iceberg.summaries import ancestry
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.settings import Settings
from topicberg.tableflow.layout.drift import compare
from topicberg.tableflow.rejected.deadletters import DeadLetters
from topicberg.testing import spark_session
from topicberg.topics import load_topic
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import write_window
from topicberg.transforms.windows import Window

pytestmark = pytest.mark.integration

Make = Callable[..., Topic]
READING = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "at": {"type": "object", "properties": {"x": {"type": "number"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
KEY = {"type": "object", "properties": {"device": {"type": "integer"}}}
PLAIN = {"format": "json", "file": "reading.json", "framing": "none"}
LOG = {"error_handling": {"mode": "LOG"}}


@pytest.fixture
def make(own_project: Settings, make_topic: Make) -> Make:
    """Topics of a project of their own, with a spec file."""
    (own_project.schemas_dir / "reading.json").write_text(json.dumps(READING))
    (own_project.schemas_dir / "key.json").write_text(json.dumps(KEY))

    def made(**fields: Any) -> Topic:
        # Some records are of years ago: Kafka would delete them at its next look.
        topic = make_topic(**{"topic_config": {"retention.ms": "-1"}, "schema": PLAIN, **fields})
        document = topic.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        path = own_project.topics_dir / f"{topic.spec.name}.yaml"
        path.write_text(yaml.safe_dump(document))
        return topic

    return made


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def reading(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "note": rng.choice((None, "", "ü🙂\n", '"quoted"')),
        "at": rng.choice((None, {"x": rng.uniform(-1e9, 1e9)})),
        "tags": rng.choice(([], ["a", "b"])),
    }


def _dead(topic: Topic, dead: DeadLetters) -> Iterator[str]:
    target = dead.target.name
    begin = kafka.beginning_offsets(topic.endpoints, target)
    end = kafka.end_offsets(topic.endpoints, target)
    for message in messages(topic.endpoints, target, {p: (begin[p], end[p]) for p in end}):
        raw = message.value() or b""
        if topic.spec.name.encode() in raw:
            schema = topic.endpoints.schema_registry_client().get_schema(
                int.from_bytes(raw[1:5], "big")
            )
            parsed = fastavro.parse_schema(json.loads(schema.schema_str or ""))
            record: Any = fastavro.schemaless_reader(BytesIO(raw[5:]), parsed, None)
            yield record["error_message"]


def test_json_without_a_schema_id_says_what_to_set(make: Make) -> None:
    topic = make(schema={"format": "json", "file": "reading.json"})
    registry = topic.endpoints.schema_registry_client()
    registry.register_schema(topic.spec.value_subject, Schema(json.dumps(READING), "JSON"))
    topic.send_raw([text({"id": 1})])
    with pytest.raises(TableflowError) as found:
        topic.ingest()
    assert "the value is JSON without a schema id: set `schema.framing: none`" in str(found.value)


def test_change_log_of_plain_json_needs_no_registry(make: Make, own_project: Settings) -> None:
    columns = {"id": {"type": "integer"}, "n": {"type": "string"}}
    row = {"type": ["object", "null"], "properties": columns}
    envelope = {
        "type": "object",
        "properties": {
            "before": row,
            "after": row,
            "op": {"type": "string"},
            "ts_ms": {"type": "integer"},
            "source": {"type": "object", "properties": {"lsn": {"type": "integer"}}},
        },
    }
    (own_project.schemas_dir / "id.json").write_text(
        json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
    )
    (own_project.schemas_dir / "envelope.json").write_text(json.dumps(envelope))
    topic = make(
        key={"format": "json", "file": "id.json", "framing": "none"},
        schema={"format": "json", "file": "envelope.json", "framing": "none"},
        changelog={"format": "debezium"},
        write_mode="upsert",
    )

    def change(op: str, before: Any, after: Any) -> bytes:
        return text({"op": op, "before": before, "after": after, "ts_ms": 1, "source": {"lsn": 7}})

    a, b = {"id": 1, "n": "a"}, {"id": 1, "n": "b"}
    changes = [change("c", None, a), change("u", a, b), change("c", None, {"id": 2, "n": "c"})]
    changes += [change("d", {"id": 2, "n": "c"}, None)]
    topic.send_raw(changes, key=lambda number: text({"id": 1 if number < 2 else 2}), partition=0)
    topic.ingest()
    assert topic.rows("id", "n") == [b]
    registry = topic.endpoints.schema_registry_client()
    assert not [one for one in registry.get_subjects() if one.startswith(topic.spec.name)]


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_event_time_of_a_field_partitions_the_table(make: Make, engine: str) -> None:
    topic = make(
        event_time={"field": "note", "format": "iso", "otherwise": "kafka"},
        table={"partitioning": ["hour($$event-time)"]},
        tableflow={"engine": engine},
    )
    times = [datetime(2026, 1, 31, hour, 30, tzinfo=UTC) for hour in range(24)]
    values = [{"id": number, "note": at.isoformat()} for number, at in enumerate(times)]
    values += [{"id": 24, "note": "soon"}, {"id": 25}]
    topic.send_raw([text(one) for one in values], timestamp=lambda _: 1_700_000_000_000)
    topic.ingest()
    rows = sorted(topic.rows("id", "$$event-time"), key=lambda row: row["id"])
    expected = [*times, *[datetime.fromtimestamp(1_700_000_000, UTC)] * 2]
    assert [row["$$event-time"] for row in rows] == expected
    table = topic.table()
    assert table.properties["topicberg.event-times-from-kafka"] == "2"
    hour = "`$$event-time` < '2026-01-31T06:00:00+00:00'".replace("`", '"')
    files = [task.file for task in table.scan(row_filter=hour).plan_files()]
    assert sum(file.record_count for file in files) == 8


def counted(readings: DataFrame) -> DataFrame:
    """How many readings each minute has, and their sum."""
    minute = F.date_trunc("minute", "`$$event-time`").alias("at")
    return readings.groupBy(minute).agg(F.count("*").alias("n"), F.sum("id").alias("ids"))


def test_late_records_are_computed_in_the_hours_of_their_own_time(make: Make) -> None:
    """Records arrive days after their time, and in any order; only their hours are computed."""
    topic = make(
        event_time={"field": "note", "format": "iso", "otherwise": "kafka"},
        table={"partitioning": ["hour($$event-time)"]},
        schema={**PLAIN, "unknown_fields": "keep"},
    )
    begin, rng = datetime(2026, 1, 31, tzinfo=UTC), random.Random(6)
    arrived_ms = int((begin + timedelta(days=3)).timestamp() * 1000)
    catalog = topic.endpoints.catalog(topic.config)
    catalog.create_namespace_if_not_exists("late")
    derivation = Derivation(
        sources=(Source(topic.spec.table_identifier(topic.config), topic.spec.event_time),),
        target=("late", f"counted_{uuid.uuid4().hex[:8]}"),
        transform=counted,
        target_time="at",
    )
    minutes: dict[datetime, list[int]] = {}
    seen: int | None = None
    with spark_session() as spark:
        for batch in range(4):
            values: list[dict[str, Any]] = []
            for number in range(20):
                at = begin + timedelta(minutes=rng.randrange(5) * 60 + rng.choice((0, 59)))
                note: str | None = (at + timedelta(seconds=59.9)).isoformat()
                if number == 0:  # without a time: Kafka's
                    at, note = datetime.fromtimestamp(arrived_ms / 1000, UTC), None
                minutes.setdefault(at, []).append(number)
                values.append({"id": number, "note": note, "batch": batch})
            topic.send_raw([text(one) for one in values], timestamp=lambda _: arrived_ms)
            topic.ingest()
            table, hours = topic.table(), set[int]()
            for snapshot in ancestry(table):
                if snapshot.snapshot_id == seen:
                    break
                for some in affected_hours(table, snapshot, topic.spec.event_time):
                    hours |= set(some)
            wanted = {datetime.fromisoformat(one["note"]) for one in values if one["note"]}
            assert len(hours) <= len({one.replace(minute=0, second=0) for one in wanted}) + 1
            for hour in sorted(hours):
                start = datetime.fromtimestamp(hour * 3600, UTC)
                write_window(spark, catalog, derivation, Window(start, start + timedelta(hours=1)))
            seen = table.current_snapshot().snapshot_id
        rows = catalog.load_table(derivation.target).scan().to_arrow().to_pylist()
        found = {row["at"]: (row["n"], row["ids"]) for row in rows}
    assert found == {at: (len(ids), sum(ids)) for at, ids in minutes.items()}


def test_event_time_that_is_missing_is_malformed_as_peek_says(make: Make) -> None:
    topic = make(event_time={"field": "at.x", "format": "seconds"}, tableflow=LOG)
    topic.send_raw([text({"at": {"x": 1.5e9}}), text({"at": {}}), text({"at": {"x": 1e300}})])
    topic.ingest()
    (row,) = topic.rows("$$event-time")
    assert row["$$event-time"] == datetime.fromtimestamp(1.5e9, UTC)
    dead = DeadLetters(topic.spec, topic.endpoints, topic.config)
    shown = peek.newest(topic.spec.name, 10, topic.endpoints, topic.config)
    problems = sorted(one.problem for one in shown if one.problem)
    assert problems == sorted(_dead(topic, dead))
    assert problems[0].startswith("field at.x (double): the event time is ")


def test_new_topic_of_plain_json_becomes_a_table_and_infer_finds_what_changed(
    make_topic: Make, own_project: Settings
) -> None:
    topic, rng = make_topic(schema={"format": "bytes"}), random.Random(1)
    values = [reading(rng, number) | {"ts": 1_767_225_600 + number} for number in range(5_000)]
    topic.send_raw([text(one) for one in values], key=lambda number: f"k{number}".encode())
    shown = run("new", topic.spec.name, "--from-kafka", "--pipeline", "shop", "--enable")
    assert "missing or null in some of them: note, at" in shown
    assert "event_time: the field ts, seconds" in shown
    topic.spec = load_topic(topic.spec.name, own_project)
    topic.ingest()
    rows = sorted(topic.rows("id", "note", "at", "tags", "ts", "key"), key=lambda row: row["id"])
    assert rows == [one | {"key": f"k{number}"} for number, one in enumerate(values)]
    shown = run("infer", topic.spec.name)
    assert "fit " in shown
    assert "lacks" not in shown

    topic.send_raw([text({"id": "x", "ts": 1})], partition=0)
    topic.send_raw([text({"id": 1, "ts": 1, "at": {"y": [1.5]}, "new": True})], partition=1)
    found = json.loads(run("infer", topic.spec.name, "--json"))
    assert [one["count"] for one in found["malformed"]] == [1]
    assert found["malformed"][0]["reason"].startswith("field id (long): ")
    unknown = {one["name"]: (one["records"], one["schema"]) for one in found["unknown"]}
    array = {"type": "array", "items": {"type": "number"}}
    assert unknown == {"new": (1, {"type": "boolean"}), "at.y": (1, array)}
    assert found["unseen"] == []
    drift = compare(topic.spec, topic.endpoints, topic.config)
    finding = check_unknown_fields(topic.spec, drift)
    assert not finding.passed
    assert "at.y (in 1), new (in 1)" in finding.what
    assert finding.since == datetime.fromisoformat(drift.unknown[0].since or "")


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["topics", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout
