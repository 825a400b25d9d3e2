"""A forgotten key is in no file of any table: not in history, dead letters, or old snapshots."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from debezium import Replay, captured
from deltalake import DeltaTable
from found_topics import AVRO_TOPIC
from kafka_topics import ORDER, Topic, encode
from pyiceberg.table import Table
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg import delta
from topicberg.iceberg.tables import find_table
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.query import run_query
from topicberg.settings import Settings, settings
from topicberg.tableflow.erasure import catch_up
from topicberg.tableflow.erasure.catch_up import CatchUp
from topicberg.tableflow.erasure.forgetting import Forgetting
from topicberg.tableflow.erasure.records import write_tombstones
from topicberg.tableflow.erasure.rows import KeyRows, topic_targets
from topicberg.tableflow.service import control
from topicberg.tableflow.service.history import history_table, ingest_history
from topicberg.tableflow.values import commit
from topicberg.tableflow.values.forgotten import FORGOTTEN
from topicberg.testing import spark_session
from topicberg.topics.deadletters import dead_letter_spec
from topicberg.transforms.derived import write_window
from topicberg.transforms.upsert_view import UpsertView, refresh
from topicberg.transforms.windows import Window

pytestmark = [pytest.mark.integration]

SECRET = "alice@example.org"
Make = Callable[..., Topic]


def files_with(table: Table, text: str, endpoints: Endpoints) -> list[str]:
    """Return the objects in a table's folder that have a text: in rows, statistics, bounds, JSON.
    Written independently of the command: it lists the object store and decodes every file."""
    bucket, _, prefix = table.location().partition("://")[2].partition("/")
    s3 = endpoints.boto3("s3")
    found = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for each in page.get("Contents", ()):
            body = s3.get_object(Bucket=bucket, Key=each["Key"])["Body"].read()
            content = repr(body)
            if each["Key"].endswith(".parquet") and body:
                file = pq.ParquetFile(io.BytesIO(body))
                content = repr(file.read().to_pylist()) + repr(file.metadata.to_dict())
            elif each["Key"].endswith(".avro"):
                content = repr([*fastavro.reader(io.BytesIO(body))])
            if text in content or text in each["Key"]:
                found.append(each["Key"])
    return found


def forget(topic: Topic, key: str, where: str | None = None) -> Forgetting:
    """Forget a key as the command does, without a running engine."""
    spec, endpoints, config = topic.spec, topic.endpoints, topic.config
    key_rows = KeyRows.parse(spec, key, endpoints, config, where)
    targets = topic_targets(spec, config, key_rows.key, where)
    reader = CatchUp(spec, targets, endpoints, config)
    job = Forgetting(key_rows, targets, endpoints, config, "a letter")
    assert reader.drain(enabled=True, patience=0) == []
    records = job.records()
    for target in targets:
        job.find(target)
    for each in (records, job.dead_letters()):
        if each is not None:
            write_tombstones(endpoints, each)
    assert reader.drain(enabled=True, patience=0) == []
    for target in targets:
        job.erase(target)
    for target in targets:
        assert (proof := job.prove(target)) is None or proof.files >= 0
    return job


def tables(job: Forgetting) -> list[Table]:
    found = (find_table(job.key_rows.catalog, target.identifier) for target in job.targets)
    return [table for table in found if table is not None]


def orders(topic: Topic, *keys: str, note: str = "n") -> None:
    rows = [{"id": n, "note": note} for n in range(len(keys))]
    topic.send(ORDER, rows, key=lambda n: keys[n].encode())


def newest(topic: Topic) -> dict[bytes, bytes | None]:
    ends = kafka.end_offsets(topic.endpoints, topic.spec.name)
    log = {p: (0, end) for p, end in ends.items()}
    return {m.key(): m.value() for m in messages(topic.endpoints, topic.spec.name, log)}  # type: ignore[misc]


def test_forget_upsert_key_with_history_leaves_no_file(make_topic: Make) -> None:
    topic = make_topic(
        {"cleanup.policy": "compact"},
        schema={"format": "avro"},
        external=True,
        write_mode="upsert",
        key={"format": "string"},
        history=True,
    )
    for batch in range(3):  # the row moves, and old ones are deleted by position
        orders(topic, SECRET, f"bob{batch}", note=f"b{batch}")
        topic.ingest()
    ingest_history(topic.spec, topic.endpoints, topic.config)
    history = topic.endpoints.catalog(topic.config).load_table(history_table(topic.spec))
    for table in (topic.table(), history):
        assert files_with(table, SECRET, topic.endpoints)
    orders(topic, SECRET)  # not read yet
    job = forget(topic, SECRET)
    for table in tables(job):
        assert files_with(table, SECRET, topic.endpoints) == []
        assert [key for key in table.properties if key.startswith(FORGOTTEN)]
    assert {row["key"] for row in topic.rows("key")} == {"bob0", "bob1", "bob2"}
    assert newest(topic)[SECRET.encode()] is None
    assert job.records().pending == []
    # The engine continues where it was, and its key index is right.
    orders(topic, "bob0", SECRET, note="later")
    assert topic.ingest() > 0
    rows = {row["key"]: row["note"] for row in topic.rows("key", "note")}
    assert rows == {"bob0": "later", "bob1": "b1", "bob2": "b2", SECRET: "later"}
    assert len(ingest_history(topic.spec, topic.endpoints, topic.config).scan().to_arrow()) == 5
    spark = run_query(
        f"SELECT count(*) FROM lake.`{topic.config.cluster_id}`.{topic.spec.name}",
        "spark",
        topic.endpoints,
        topic.config,
    )
    assert [tuple(row) for row in spark.rows] == [(4,)]


KEY = {
    "type": "record",
    "name": "Key",
    "fields": [
        {"name": "tenant", "type": "string"},
        {"name": "no", "type": "long"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}


def test_forget_composite_avro_key_of_append_topic(make_topic: Make) -> None:
    """Rows, dead letters and a Delta log; the table is partitioned by a column of the key."""
    log = f"dead_{uuid.uuid4().hex[:8]}"
    topic = make_topic(
        key={"format": "avro", "file": "stock_trades.avsc"},
        table={"partitioning": ["tenant"]},
        tableflow={
            "error_handling": {"mode": "LOG", "target": log},
            "table_formats": ["ICEBERG", "DELTA"],
        },
    )
    registry = topic.endpoints.schema_registry_client()
    number = registry.register_schema(topic.spec.key_subject, Schema(json.dumps(KEY), "AVRO"))
    parsed = fastavro.parse_schema(KEY)

    def key(tenant: str, no: int) -> bytes:
        return wire_prefix(number) + encode(parsed, {"tenant": tenant, "no": no, "day": 20_000})

    keys = [key(SECRET, 7), key(SECRET, 8), key("acme", 7)]
    topic.send(ORDER, [{"id": n, "note": f"text of {n}"} for n in range(3)], key=lambda n: keys[n])
    topic.ingest()
    topic.send(ORDER, [{"id": 3, "note": "text of 0, again"}], key=lambda _: keys[0])
    # A malformed record of each of two keys.
    topic.send_raw([b"\1text of 0, malformed", b"\1text of 1"], key=lambda n: keys[n])
    topic.ingest()
    delta.sync(topic.table(), topic.spec)
    dead = Topic(topic.endpoints, dead_letter_spec(topic.spec), topic.config)
    dead.ingest()
    assert files_with(topic.table(), "text of 0", topic.endpoints)
    assert files_with(dead.table(), "text of 0", topic.endpoints)
    forget(topic, json.dumps({"tenant": SECRET, "no": 7, "day": "2024-10-04"}))
    assert files_with(topic.table(), "text of 0", topic.endpoints) == []
    assert files_with(dead.table(), "text of 0", topic.endpoints) == []
    assert [row["id"] for row in topic.rows("id")] == [1, 2]
    assert len(dead.rows()) == 1
    location = topic.table().location()
    options = delta.storage_options(dict(topic.table().io.properties))
    held = DeltaTable(location, storage_options=options).to_pyarrow_table()
    assert sorted(held["id"].to_pylist()) == [1, 2]
    forget(topic, json.dumps({"tenant": SECRET, "no": 8, "day": "2024-10-04"}))
    assert files_with(topic.table(), SECRET, topic.endpoints) == []
    assert files_with(topic.table(), SECRET[:16], topic.endpoints) == []
    assert [row["id"] for row in topic.rows("id")] == [2]


def test_forget_key_of_a_change_log(make_topic: Make) -> None:
    topic = make_topic(
        write_mode="upsert",
        key={"format": "avro", "file": "stock_trades.avsc"},
        changelog={"format": "debezium"},
        tableflow={"error_handling": {"mode": "SKIP"}},
    )
    records = captured("davro.shop.customers")
    Replay(topic, records).send(records)
    topic.ingest()
    (key, *rest) = sorted(row["id"] for row in topic.rows("id"))
    forget(topic, str(key))
    assert sorted(row["id"] for row in topic.rows("id")) == rest
    files = [task.file.file_path for task in topic.table().scan().plan_files()]
    assert all("erased" in path for path in files)


PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [{"name": "person", "type": "string"}, {"name": "amount", "type": "long"}],
}
PERSON_KEY = {**PERSON, "name": "PersonKey", "fields": PERSON["fields"][:1]}


PIPELINE = """
from pyspark.sql import functions as F

from topicberg.orchestration.assets.derived import derived_table


@derived_table(source="{topic}", time_column="at", lineage={{"at": ("$$timestamp",), "payer": ("person",)}})
def payments_{mark}(records):
    "Each payment, under another name of the key's column."
    return records.selectExpr("`$$timestamp` AS at", "person AS payer", "amount")


@derived_table(source="payments_{mark}", time_column="at", lineage={{"name": ("payer",)}})
def large_payments_{mark}(payments):
    "Derived from a derived table, which renames the column again."
    return payments.filter("amount > 1").withColumnRenamed("payer", "name")


@derived_table(source="{topic}", time_column="at")
def refunds_{mark}(records):
    "The key under another name, and in a struct, without lineage."
    who = "named_struct('who', person) AS detail"
    return records.selectExpr("`$$timestamp` AS at", "person AS recipient", who)


@derived_table(source="{topic}", time_column="at")
def totals_{mark}(records):
    "Without the columns of the key."
    hours = records.groupBy(F.date_trunc("hour", "$$timestamp").alias("at"))
    return hours.agg(F.sum("amount").alias("total"))
"""  # noqa: E501


def compute(stack: Endpoints, config: Settings, topic: Topic) -> dict[str, Table]:
    """Refresh the upsert views and the derived tables of a topic, as their assets do."""
    from topicberg.cli.output import load_lake
    from topicberg.orchestration.assets.derived import derivation

    lake, catalog = load_lake(config), stack.catalog(config)
    spec, found = topic.spec, {}
    order = (spec.event_time, *(spec.metadata_column(each) for each in ("partition", "offset")))
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    window = Window(hour - timedelta(hours=2), hour + timedelta(hours=2))
    with spark_session() as spark:
        for name, columns in spec.upsert_views.items():
            (view,) = (table for table in lake.tables if table.name == name)
            asked = UpsertView(spec.table_identifier(config), view.identifier, columns, order)
            found[name] = refresh(spark, catalog, asked)
        for derived in sorted(lake.derived, key=lambda each: each.sources[0] != spec.name):
            write_window(spark, catalog, derivation(derived, lake), window)
            found[derived.name] = catalog.load_table(lake.table(derived).identifier)
    return found


def test_forget_command_erases_views_and_derived_tables(
    stack: Endpoints,
    own_project: Settings,
    make_topic: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also dead letters in a compacted topic; no file of any table has the key afterwards."""
    monkeypatch.setattr(catch_up, "PATIENCE_SECONDS", 0.0)  # no engine runs for the topic
    config, mark = own_project, uuid.uuid4().hex[:8]
    log = f"dead_{mark}"
    topic = make_topic(
        schema={"format": "avro", "file": "person.avsc"},
        key={"format": "avro", "file": "person_key.avsc"},
        upsert_views={f"newest_{mark}": ["person"]},
        tableflow={"error_handling": {"mode": "LOG", "target": log}, "commit_interval_seconds": 1},
        derived_partitions={"granularity": "hourly", "start": "2026-01-01"},
    )
    topic.config = config
    name = topic.spec.name
    document = topic.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    (config.topics_dir / f"{name}.yaml").write_text(json.dumps(document))
    (config.schemas_dir / "person.avsc").write_text(json.dumps(PERSON))
    (config.schemas_dir / "person_key.avsc").write_text(json.dumps(PERSON_KEY))
    (tmp_path / f"pipeline_{mark}.py").write_text(PIPELINE.format(topic=name, mark=mark))
    (tmp_path / "pyproject.toml").write_text(f'[tool.topicberg]\npipelines = ["pipeline_{mark}"]\n')
    admin = stack.kafka_admin()
    admin.create_topics([NewTopic(log, 2, config={"cleanup.policy": "compact"})])[log].result(30)
    number = stack.schema_registry_client().register_schema(
        topic.spec.key_subject, Schema(json.dumps(PERSON_KEY), "AVRO")
    )
    parsed = fastavro.parse_schema(json.loads(json.dumps(PERSON_KEY)))
    people = [SECRET, "bob", SECRET, "carol"]

    def key(n: int) -> bytes:
        return wire_prefix(number) + encode(parsed, {"person": people[n]})

    for _ in range(2):
        rows = [{"person": person, "amount": n} for n, person in enumerate(people)]
        topic.send(PERSON, rows, key=key)
        topic.send_raw([b"\1malformed"] * 2, key=key)
        topic.ingest()
        tables = compute(stack, config, topic)
    dead = Topic(stack, dead_letter_spec(topic.spec), config)
    dead.ingest()
    tables |= {"topic": topic.table(), "dead": dead.table()}
    with_key = {n for n, each in tables.items() if files_with(each, SECRET, stack)}
    assert with_key == tables.keys() - {f"totals_{mark}"}
    code, output = run("forget", name, SECRET, "--yes")
    assert code == 0, output
    assert SECRET not in output
    assert f"totals_{mark} has no columns of the key" in output
    refunds = f"refunds_{mark}"
    for column in ("recipient", "detail.who"):
        assert f"{refunds}.{column} holds the value in" in output
    (uncovered,) = [line for line in output.splitlines() if "not covered by the proof" in line]
    assert refunds in uncovered
    assert f"totals_{mark}" in uncovered
    assert {n for n, each in tables.items() if files_with(each.refresh(), SECRET, stack)} == {
        refunds
    }
    assert output.count("proof: none of") == len(with_key) - 1
    code, output = run("forget", name, SECRET, "--yes", "--column", f"{refunds}.recipient")
    assert code == 0, output
    assert "holds the value" not in output
    assert files_with(tables[refunds].refresh(), SECRET, stack) == []
    view, large = tables[f"newest_{mark}"], tables[f"large_payments_{mark}"]
    assert sorted(view.scan().to_arrow()["person"].to_pylist()) == ["bob", "carol"]
    assert large.scan().to_arrow()["name"].to_pylist() == ["carol"] * 2
    letters = dead.table().scan().to_arrow()["source_record"].to_pylist()
    assert [SECRET.encode() in one["key"] for one in letters if one] == [False] * 2
    ends = kafka.end_offsets(stack, log)
    newest_letters = {
        m.key(): m.value() for m in messages(stack, log, {p: (0, e) for p, e in ends.items()})
    }
    values = list(newest_letters.values())
    assert values.count(None) == 2, "the newest records of its two letters are tombstones"
    assert not any(SECRET.encode() in value for value in values if value)
    compute(stack, config, topic)
    assert run("forget", name, SECRET, "--yes")[0] == 1
    admin.delete_topics([log])[log].result(30)


class Killed(BaseException):
    """What a kill does: nothing after it runs."""


def test_forget_killed_at_any_commit_is_completed(
    make_topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic({"cleanup.policy": "compact"}, write_mode="upsert", key={"format": "string"})
    orders(topic, SECRET, "bob")
    topic.ingest()
    orders(topic, SECRET, "carol", note="second")
    topic.ingest()
    catalog = type(topic.table().catalog)
    commit, left = catalog.commit_table, [0]

    def counted(*given: Any, **more: Any) -> Any:
        done = commit(*given, **more)
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return done

    for step in range(10):
        left[0] = step
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "commit_table", counted)
            try:
                forget(topic, SECRET)
            except Killed:
                continue
        break
    else:
        raise AssertionError("it never ended")
    assert step > 1
    assert files_with(topic.table(), SECRET, topic.endpoints) == []
    assert {row["key"] for row in topic.rows("key")} == {"bob", "carol"}


@pytest.fixture
def running(stack: Endpoints, make_topic: Make) -> Iterator[Topic]:
    """A topic that the service's engine materializes."""
    topic = make_topic()
    topic.register(ORDER)
    often = {"commit_interval_seconds": 1}
    control.enable(settings(), topic.spec.name, often, discovered=AVRO_TOPIC)
    topic.spec = control.find_topic(settings(), topic.spec.name)
    yield topic
    control.disable(settings(), topic.spec.name)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*words])
    assert done.exception is None or isinstance(done.exception, SystemExit | TopicbergError), done
    return done.exit_code, done.output


def test_forget_waits_for_a_batch_that_began_before(
    make_topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the records as well: its files come after the erasure, until it is refused."""
    topic = make_topic()
    orders(topic, SECRET, "bob")
    add, began, proceed = commit.add_files, Event(), Event()

    def later(*given: Any) -> Any:
        began.set()
        assert proceed.wait(60)
        return add(*given)

    monkeypatch.setattr(commit, "add_files", later)
    second = Thread(target=topic.ingest)
    second.start()
    assert began.wait(60)
    monkeypatch.undo()
    monkeypatch.setattr(catch_up, "READERS_SECONDS", 1.0)
    topic.ingest()
    with pytest.raises(TopicbergError, match="an engine has been writing a batch for 1 s"):
        forget(topic, SECRET)
    assert len(topic.rows("id")) == 2
    monkeypatch.undo()
    Timer(1, proceed.set).start()
    forget(topic, SECRET)
    second.join()
    assert files_with(topic.table(), SECRET, topic.endpoints) == []
    assert [row["key"] for row in topic.rows("key")] == [b"bob"]
