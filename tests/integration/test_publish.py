"""Publishing a table sends every change once, whatever is killed in between."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from threading import Timer
from typing import Any, Literal

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from fastavro import parse_schema, schemaless_reader
from pyiceberg.table import Table
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

from topicberg.checks.check import CheckedTable, Probe, evaluate
from topicberg.checks.derived import published_check
from topicberg.checks.finding import Finding
from topicberg.endpoints import Endpoints
from topicberg.iceberg.maintenance.expiry import expire
from topicberg.iceberg.maintenance.policy import MaintenancePolicy
from topicberg.kafka import topics as kafka
from topicberg.kafka.transactions import transactional_producer
from topicberg.orchestration.resources import Lakehouse
from topicberg.settings import Settings, settings
from topicberg.tableflow.service.engine import run_once
from topicberg.topics import TopicSpec, load_topic
from topicberg.topics.spec import KeySpec, TableflowSpec
from topicberg.transforms import publish as publishing
from topicberg.transforms.publish import STATE_TOPIC, Published, PublishError, publish

pytestmark = [pytest.mark.integration]

START = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
"""Not long ago: Kafka deletes records whose own time is past the topic's retention."""
SECOND_HOUR = (START + timedelta(hours=1)).isoformat()
Row = dict[str, Any]
SCHEMAS = {
    "airline.flyer_stats": pa.schema(
        [
            ("email_address", pa.string()),
            ("window_start", pa.timestamp("us", "UTC")),
            ("window_end", pa.timestamp("us", "UTC")),
            ("total_flight_duration", pa.int64()),
            ("number_of_flights", pa.int64()),
        ]
    ),
    "airline.flight": pa.schema(
        [
            ("booked_at", pa.timestamp("us", "UTC")),
            ("email_address", pa.string()),
            *((f"{which}_time", pa.string()) for which in ("departure", "arrival")),
            *((f"{which}_airport_code", pa.string()) for which in ("departure", "arrival")),
            *((name, pa.string()) for name in ("flight_number", "confirmation_code", "airline")),
        ]
    ),
}
TIMES = {"airline.flyer_stats": "window_start", "airline.flight": "booked_at"}


@dataclass
class Published_:
    """A table of its own that is published to a topic of its own, like the one of a spec."""

    like: str
    stack: Endpoints
    name: str
    format: Literal["avro", "json"] = "avro"
    root: Path | None = None
    """Of other schemas than the project's."""
    key_field: str | None = None
    """The only column of the key, as text."""

    @property
    def config(self) -> Settings:
        return settings().model_copy(update={"project_root": self.root} if self.root else {})

    @property
    def spec(self) -> TopicSpec:
        like = load_topic(self.like)
        changed: dict[str, Any] = {"name": f"test.{self.name}", "tableflow": TableflowSpec()}
        if self.format == "json":
            changed |= {
                part: schema.model_copy(
                    update={"format": "json", "file": schema.file.replace(".avsc", ".json")}
                )
                for part, schema in (("value_schema", like.value_schema), ("key", like.key))
                if schema.file
            }
        if self.key_field:
            changed["key"] = KeySpec(format="string", field=self.key_field)
        return like.model_copy(update=changed)

    @property
    def time(self) -> str:
        return TIMES[self.like]

    def table(self) -> Table:
        return self.stack.catalog(settings()).load_table(("published", self.name))

    def create(self) -> None:
        catalog = self.stack.catalog(settings())
        catalog.create_namespace_if_not_exists("published")
        catalog.create_table(("published", self.name), schema=SCHEMAS[self.like])

    def write(self, rows: list[Row], replaced: str = "") -> None:
        """Add rows, in place of those that a filter finds."""
        data = pa.Table.from_pylist(rows, SCHEMAS[self.like])
        if replaced:
            self.table().overwrite(data, replaced)
        else:
            self.table().append(data)

    def publish(self, spark: SparkSession, batch: int = 500) -> Published:
        catalog = self.stack.catalog(settings())
        name = ("published", self.name)
        return publish(
            spark, catalog, self.stack, self.config, self.spec, name, self.time, batch=batch
        )

    def check(self, minutes: int) -> Finding:
        """Return the finding of the check ``published``, so many minutes from now."""
        probe = Probe(
            CheckedTable(self.name, ("published", self.name)),
            Lakehouse(),
            lambda: nullcontext(None),  # type: ignore[arg-type]
            lambda _: None,
            now=datetime.now(UTC) + timedelta(minutes=minutes),
        )
        return evaluate(published_check(self.name, {self.spec.name: self.name}, 30), probe)

    def records(self) -> list[tuple[Any, Row | None, datetime]]:
        """What a read_committed consumer sees: key, value, timestamp."""
        consumer = Consumer(
            {
                **self.stack.kafka_config(),
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        partitions = kafka.end_offsets(self.stack, self.spec.name)
        consumer.assign([TopicPartition(self.spec.name, p, 0) for p in partitions])
        spec, registry = self.spec, self.stack.schema_registry_client()
        texts: dict[bytes, str] = {}

        def read(payload: bytes) -> Row:
            number = payload[1:5]
            if number not in texts:
                texts[number] = registry.get_schema(int.from_bytes(number, "big")).schema_str or ""
            return decoded(payload, texts[number])

        found, ended = [], 0
        while ended < len(partitions):
            message = consumer.poll(10)
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended += 1
                continue
            key: Any = message.key().decode() if self.key_field else message.key()
            value = message.value()
            if spec.schema_path("key"):
                key = tuple(read(key).values())
            at = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
            found.append((key, read(value) if value else None, at))
        consumer.close()
        return found

    def materialized(self) -> list[Row]:
        """The rows of the topic's own table, made by Tableflow, without the metadata columns."""
        run_once(self.spec, self.stack, settings())
        catalog = self.stack.catalog(settings())
        table = catalog.load_table(self.spec.table_identifier()).scan().to_arrow()
        return ordered(table.select(SCHEMAS[self.like].names[self.append :]).to_pylist())

    @property
    def append(self) -> bool:
        return self.spec.write_mode == "append"


def decoded(value: bytes, text: str) -> Row:
    schema = json.loads(text)
    if "properties" not in schema:
        read: Any = schemaless_reader(BytesIO(value[5:]), parse_schema(schema), None)
        return dict(read)
    found = json.loads(value[5:])
    for name, kind in schema["properties"].items():
        if kind.get("title", "").endswith("Timestamp"):
            found[name] = datetime.fromtimestamp(found[name] / 1000, UTC)
    return dict(found)


def ordered(found: list[Row]) -> list[Row]:
    return sorted(found, key=str)


@pytest.fixture
def topic(stack: Endpoints, request: pytest.FixtureRequest) -> Published_:
    like, _, kind = request.param.partition(" ")
    found = Published_(like, stack, f"t{uuid.uuid4().hex[:8]}", kind or "avro")
    found.create()
    return found


def stats(number: int, hour: int = 0, duration: int = 60) -> Row:
    start = START + timedelta(hours=hour)
    return {
        "email_address": f"flyer{number}@email.com",
        "window_start": start,
        "window_end": start + timedelta(minutes=1),
        "total_flight_duration": duration,
        "number_of_flights": 1,
    }


def booked(number: int, hour: int = 0) -> Row:
    names = [n for n in SCHEMAS["airline.flight"].names if n != "booked_at"]
    row: Row = dict.fromkeys(names, f"flight {number}")
    return row | {"booked_at": START + timedelta(hours=hour, milliseconds=number)}


SLOW = pytest.mark.slow
KEYED = [pytest.param("airline.flyer_stats", marks=SLOW), "airline.flyer_stats json"]
APPENDED = ["airline.flight", pytest.param("airline.flight json", marks=SLOW)]


@pytest.mark.parametrize("topic", KEYED, indirect=True)
def test_a_keyed_topic_follows_its_table(topic: Published_, spark: SparkSession) -> None:
    assert topic.publish(spark) == Published(None)
    assert topic.check(60).passed
    topic.write([stats(1), stats(2), stats(3, hour=1)])
    assert topic.check(0).passed
    assert not topic.check(60).passed
    first = topic.publish(spark)
    assert (first.records, first.tombstones) == (3, 0)
    assert topic.check(60).passed
    assert topic.publish(spark).records == 0
    # the first hour is computed again: 1 is unchanged, 2 is deleted, 4 is new; then 3 changes
    topic.write([stats(1), stats(4)], f"window_start < '{SECOND_HOUR}'")
    topic.write([stats(3, hour=1, duration=99)], f"window_start >= '{SECOND_HOUR}'")
    stale = topic.check(60)
    assert f"topic {topic.spec.name} is stale: not read yet: " in stale.what
    assert f"--select 'key:\"kafka/{topic.name}\"'" in (stale.remediation or "")
    second = topic.publish(spark)
    assert (second.records, second.tombstones) == (3, 1)
    records = topic.records()
    state = {key: value for key, value, _ in records}
    rows = topic.table().scan().to_arrow().to_pylist()
    expected = {(row["email_address"], row["window_start"]): row for row in rows}
    assert {key: value for key, value in state.items() if value} == expected
    assert {key[0] for key, value in state.items() if not value} == {"flyer2@email.com"}
    assert all(at == key[1] for key, _, at in records)
    assert topic.materialized() == ordered(rows)


@pytest.mark.parametrize("topic", APPENDED, indirect=True)
def test_tableflow_makes_the_same_rows_of_an_append_topic(
    topic: Published_, spark: SparkSession
) -> None:
    nothing: Row = dict.fromkeys(SCHEMAS["airline.flight"].names) | {"booked_at": START}
    odd = booked(3) | {"flight_number": '"né\u2028\n', "airline": ""}
    topic.write([booked(1), booked(1), nothing, odd])
    topic.publish(spark)
    topic.write([booked(2, hour=1)])
    topic.publish(spark)
    rows = topic.table().scan().to_arrow().drop_columns("booked_at").to_pylist()
    assert topic.materialized() == ordered(rows)
    assert {at for _, _, at in topic.records()} == {
        row["booked_at"] for row in topic.table().scan().to_arrow().to_pylist()
    }


@pytest.mark.parametrize("topic", ["airline.flyer_stats"], indirect=True)
def test_a_key_without_the_event_time_is_looked_up_in_every_hour(
    topic: Published_, spark: SparkSession
) -> None:
    topic.key_field = "email_address"
    hours = [f"window_start < '{SECOND_HOUR}'", f"window_start >= '{SECOND_HOUR}'"]
    topic.write([stats(1), stats(2)])
    topic.publish(spark)
    topic.write([stats(1, hour=1, duration=2)])
    with pytest.raises(PublishError, match="several rows"):
        topic.publish(spark)
    topic.write([stats(2)], hours[0])  # so the key is in the second hour only
    topic.publish(spark)
    topic.write([stats(1, hour=1, duration=2), stats(2, hour=1, duration=3)], hours[1])
    with pytest.raises(PublishError, match="several rows"):  # one of them did not change
        topic.publish(spark)
    topic.write([stats(3)], hours[0])
    assert topic.publish(spark).tombstones == 0
    state = {key: value for key, value, _ in topic.records()}
    rows = topic.table().scan().to_arrow().to_pylist()
    assert state == {row["email_address"]: row for row in rows}
    topic.write([stats(2, hour=1, duration=3)], hours[1])
    assert topic.publish(spark).tombstones == 1


@pytest.mark.parametrize(
    "topic", [pytest.param("airline.flyer_stats", marks=SLOW), "airline.flight"], indirect=True
)
def test_a_renamed_and_a_new_field_are_published(
    topic: Published_, spark: SparkSession, tmp_path: Path
) -> None:
    row = stats if topic.like == "airline.flyer_stats" else booked
    topic.write([row(1), row(2)])
    topic.publish(spark)
    renamed = "number_of_flights" if topic.like == "airline.flyer_stats" else "airline"
    with topic.table().update_schema() as update:
        update.add_column("note", StringType())
        update.rename_column(renamed, "renamed")
    name = topic.spec.value_schema.file or ""
    schema = json.loads((settings().schemas_dir / name).read_text())
    for field in schema["fields"]:
        if field["name"] == renamed:
            field |= {"name": "renamed", "aliases": [renamed]}
    schema["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
    topic.root = tmp_path
    shutil.copytree(settings().schemas_dir, topic.config.schemas_dir)
    (topic.config.schemas_dir / name).write_text(json.dumps(schema))
    new = row(3)
    new = {**{key: value for key, value in new.items() if key != renamed}, "note": "x"}
    new["renamed"] = row(3)[renamed]
    table = topic.table()
    table.append(pa.Table.from_pylist([new], table.schema().as_arrow()))
    published = topic.publish(spark)
    assert (published.records, published.tombstones, published.not_taken_back) == (1, 0, 0)
    values = [value for _, value, _ in topic.records() if value]
    assert [value["note"] for value in values if "note" in value] == ["x"]
    assert len(values) == 3


@pytest.mark.parametrize("topic", ["airline.flyer_stats json"], indirect=True)
def test_what_the_topic_holds_never_expires(topic: Published_, spark: SparkSession) -> None:
    """Also if publishing was killed after its last transaction and before its tags moved."""
    topic.write([stats(1)])
    topic.publish(spark)
    first = topic.table().current_snapshot()
    topic.write([stats(2)])
    topic.publish(spark)
    tag = f"published-{topic.spec.name}"
    topic.table().manage_snapshots().create_tag(first.snapshot_id, tag).commit()
    topic.write([stats(3), stats(3, duration=5)])
    with pytest.raises(PublishError, match="several rows"):
        topic.publish(spark)
    now_ms, none = int(datetime.now(UTC).timestamp() * 1000), timedelta(0)
    eager = MaintenancePolicy(retention=none, min_snapshots=1, max_snapshots=1, reader_age=none)
    expire(topic.table(), eager, now_ms)
    topic.write([stats(1), stats(2), stats(3)], f"window_start >= '{START.isoformat()}'")
    published = topic.publish(spark)
    assert (published.records, published.tombstones) == (1, 0)


@pytest.mark.parametrize("topic", ["airline.flight"], indirect=True)
def test_a_topic_whose_state_is_lost_is_not_sent_again(
    topic: Published_, spark: SparkSession
) -> None:
    def lose() -> None:
        producer = Producer(topic.stack.kafka_config())
        producer.produce(STATE_TOPIC, None, topic.spec.name)
        assert producer.flush(30) == 0

    topic.write([booked(1), booked(2)])
    assert topic.publish(spark).records == 2
    lose()
    topic.write([booked(3, hour=1)])
    assert topic.publish(spark).records == 1
    lose()
    topic.table().manage_snapshots().remove_tag(f"published-{topic.spec.name}").commit()
    with pytest.raises(PublishError, match="no longer says which"):
        topic.publish(spark)
    assert len(topic.records()) == 3


@pytest.mark.parametrize("topic", ["airline.flight"], indirect=True)
def test_an_open_transaction_hides_no_state(
    topic: Published_, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another topic's publisher that is killed leaves a transaction open in the state topic."""
    other = transactional_producer(f"other-{uuid.uuid4()}", topic.stack, 60)

    def send(*given: Any) -> tuple[int, int]:
        other.begin_transaction()
        other.produce(STATE_TOPIC, b"{}", b"other")
        assert other.flush(30) == 0
        monkeypatch.setattr(publishing, "_send", sent)
        return sent(*given)

    sent = publishing._send
    topic.write([booked(1), booked(2)])
    monkeypatch.setattr(publishing, "_send", send)
    assert topic.publish(spark).records == 2
    Timer(5, other.abort_transaction).start()
    assert topic.publish(spark).records == 0
    assert len(topic.records()) == 2


CHILD = """
import sys
sys.path.insert(0, {root!r})
sys.path.insert(0, {root!r} + "/tests/integration")
from test_publish import Published_
from topicberg.endpoints import load_endpoints
from topicberg.testing import spark_session
with spark_session() as spark:
    Published_({like!r}, load_endpoints(), {name!r}).publish(spark, batch=10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["airline.flight"], indirect=True)
def test_an_append_topic_after_kills(
    topic: Published_, spark: SparkSession, tmp_path: Path
) -> None:
    rows = [booked(number % 400, hour=number % 3) for number in range(1200)]
    rows += rows[:50]  # duplicates are records of their own
    topic.write(rows)
    code = CHILD.format(root=str(settings().project_root), like=topic.like, name=topic.name)
    kafka.ensure_topic(topic.spec, topic.stack)
    kills = 0
    for _ in range(3):
        before = sum(kafka.end_offsets(topic.stack, topic.spec.name).values())
        child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
        while child.poll() is None:
            if sum(kafka.end_offsets(topic.stack, topic.spec.name).values()) > before + 30:
                child.kill()
                child.wait()
                kills += 1
        assert child.returncode in (0, -9), child.stderr.read() if child.stderr else ""
        if child.returncode == 0:
            break
        # meanwhile the table changes: the publication that was begun is finished first
        late = booked(1000 + kills)
        topic.write([late])
        rows.append(late)
    assert kills > 0
    # So does the schema: its fields change places, and one goes.
    name = topic.spec.value_schema.file or ""
    schema = json.loads((settings().schemas_dir / name).read_text())
    schema["fields"] = [f for f in schema["fields"][::-1] if f["name"] != "airline"]
    topic.root = tmp_path
    topic.config.schemas_dir.mkdir(parents=True)
    (topic.config.schemas_dir / name).write_text(json.dumps(schema))
    topic.publish(spark)
    assert topic.publish(spark).records == 0
    values = [value for _, value, _ in topic.records() if value]
    assert Counter(value["flight_number"] for value in values) == Counter(
        row["flight_number"] for row in rows
    )
    begun = [value for value in values if "airline" in value]
    assert len(begun) >= 1250, "what was begun is finished with its own schema"
    assert len(begun) < len(values)


@pytest.mark.parametrize("topic", ["airline.flight"], indirect=True)
def test_deleted_rows_stay_in_an_append_topic(topic: Published_, spark: SparkSession) -> None:
    topic.write([booked(1), booked(2)])
    topic.publish(spark)
    topic.write([booked(1), booked(3)], f"booked_at < '{SECOND_HOUR}'")
    published = topic.publish(spark)
    assert (published.records, published.not_taken_back) == (1, 1)


def test_publisher_that_another_overtakes_publishes_what_is_new(
    stack: Endpoints, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one publishes a newer snapshot after the first one has loaded the table."""
    table = Published_("airline.flyer_stats", stack, f"t{uuid.uuid4().hex[:8]}")
    table.create()
    table.write([stats(1)])
    begin, other = publishing._transactions, [True]

    def overtaken(*given: Any) -> Any:
        if other:
            other.clear()
            table.write([stats(2)])
            table.publish(spark)
        return begin(*given)

    monkeypatch.setattr(publishing, "_transactions", overtaken)
    assert table.publish(spark).snapshot == table.table().metadata.current_snapshot_id
    assert len(table.records()) == 2
