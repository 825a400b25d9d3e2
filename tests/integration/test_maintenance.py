"""Maintenance against the real stack, beside a running engine, with three engines as witnesses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from conftest import KillService
from found_topics import AVRO_TOPIC
from kafka_topics import ORDER, Topic
from pyiceberg.table import Table
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.endpoints import CATALOG
from topicberg.errors import TopicbergError
from topicberg.iceberg import summaries
from topicberg.iceberg.maintenance import (
    MaintenancePolicy,
    MaintenanceReport,
    compaction,
    maintain,
    maintain_table,
)
from topicberg.iceberg.maintenance.orphans import remove_orphans
from topicberg.query import run_query
from topicberg.spark import new_session, quote
from topicberg.tableflow.service import control
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.values import commit

pytestmark = pytest.mark.integration

NOW = timedelta(0)
EAGER = MaintenancePolicy(
    retention=NOW,
    min_snapshots=1,
    reader_age=NOW,
    staged_age=NOW,
    compact_after=NOW,
    daily=timedelta(days=1),
)
"""Everything is due, nothing is young enough to stay."""
PATIENT = replace(EAGER, retention=timedelta(days=1), staged_age=timedelta(hours=1))
"""Compacts, but expires nothing."""

MakeTopic = Callable[..., Topic]


def run(topic: Topic, policy: MaintenancePolicy) -> MaintenanceReport:
    return maintain(topic.spec, topic.endpoints, topic.config, policy)


def counts(topic: Topic) -> int:
    """The number of rows, on which Spark, DuckDB and PyIceberg agree, as they do on the ids."""
    ids = [row["id"] for row in topic.rows("id")]
    sql = "SELECT count(*) AS n, sum(id) AS s, count(DISTINCT id) AS d FROM {}"
    expected = (len(ids), sum(ids), len(set(ids)))
    for engine, name in (("duckdb", f'"{topic.spec.name}"'), ("spark", f"`{topic.spec.name}`")):
        result = run_query(sql.format(name), engine, topic.endpoints, topic.config)  # type: ignore[arg-type]
        assert tuple(int(value) for value in result.rows[0]) == expected, engine
    return len(ids)


def commits(topic: Topic, count: int, first: int = 0, rows: int = 5) -> None:
    """Small commits, one after the other."""
    ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
    for number in range(first, first + count):
        topic.send(ORDER, [{"id": number * rows + i, "note": "x" * 20} for i in range(rows)])
        assert ingestor.step().records == rows
    ingestor.close()


def files(table: Table) -> set[str]:
    """Every file in the table's folder."""
    from pyarrow.fs import FileSelector
    from pyiceberg.io.pyarrow import PyArrowFileIO

    assert isinstance(table.io, PyArrowFileIO)
    scheme, netloc, path = PyArrowFileIO.parse_location(table.location())
    found = table.io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, recursive=True))
    return {f"{scheme}://{info.path}" for info in found if info.is_file}


@contextmanager
def ingesting(topic: Topic) -> Iterator[None]:
    """An engine that commits as fast as it can."""
    stop, failures = threading.Event(), []

    def engine() -> None:
        ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
        while not stop.is_set():
            try:
                ingestor.step()
            except Exception as error:  # as the service does; collected for the assertion
                if not isinstance(error, TopicbergError):
                    failures.append(error)
                ingestor.close()
                time.sleep(0.5)
        ingestor.close()

    thread = threading.Thread(target=engine)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures


def test_small_files_become_one_and_old_snapshots_go(make_topic: MakeTopic) -> None:
    topic = make_topic()
    commits(topic, 8)
    before, report = topic.table(), run(topic, EAGER)
    assert (report.before.data_files, report.after.data_files) == (8, 1)
    assert report.files_compacted == 8
    assert report.after.rows == counts(topic) == 40
    # The head, and the newest snapshot with offsets, which is its parent.
    table = topic.table()
    assert report.after.snapshots == len(table.metadata.snapshots) == 2
    assert report.snapshots_expired == 7
    tag = table.metadata.refs[summaries.CHECKPOINT_TAG].snapshot_id
    assert tag in {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    assert commit.committed(table).offsets == commit.committed(before).offsets
    assert report.files_deleted > 0
    # What is left is what the metadata knows: no file that would never be deleted.
    assert remove_orphans(table, NOW, now=time.time() + 60) == 0
    again = run(topic, EAGER)
    assert not again.changed, again
    commits(topic, 1, first=8)
    assert counts(topic) == 45


def append(table: Table, first: int, rows: int = 5, **more: Any) -> None:
    """A small commit as the engine makes them, without Kafka and Spark.

    :param more: ``when``: the rows' timestamps; ``branch``; ``wap_id``
    """
    import pyarrow as pa

    when = more.get("when", datetime.now(UTC))
    times = when if isinstance(when, list) else [when] * rows
    properties = {summaries.END_OFFSETS: f'{{"0": {first + rows}}}', summaries.TOPIC_ID: "t"}
    if wap_id := more.get("wap_id"):
        properties[summaries.WAP_ID] = wap_id
    table.append(
        pa.table(
            {
                "id": pa.array(range(first, first + rows), pa.int64()),
                "note": ["x" * 20] * rows,
                "$$timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            }
        ),
        snapshot_properties=properties,
        branch=more.get("branch", summaries.MAIN),
    )


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    """A topic with an empty table of its own."""
    topic = make_topic()
    topic.register(ORDER)
    Ingestor(topic.spec, topic.endpoints, topic.config).table()
    return topic


def snapshot_ids(table: Table) -> set[int]:
    return {snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots}


def test_expiry_keeps_what_the_engine_and_readers_need(topic: Topic) -> None:
    table = topic.table()
    for number in range(6):
        append(table, number * 5)
    offsets, checkpoint = commit.committed(table), table.refresh().current_snapshot()
    table.manage_snapshots().create_tag(checkpoint.snapshot_id, summaries.CHECKPOINT_TAG).commit()
    for number in range(4):  # commits without offsets, as of maintenance
        table.delete(f"id = {number}")
    table.manage_snapshots().create_tag(
        table.refresh().metadata.snapshots[0].snapshot_id, "mine"
    ).commit()
    tagged = table.metadata.snapshots[0].snapshot_id
    plan = list(table.scan().plan_files())  # a reader, before all of it
    reading, young = table.scan(), replace(EAGER, reader_age=timedelta(hours=1))
    assert run(topic, replace(young, compact_after=timedelta(1))).snapshots_expired == 0
    report = run(topic, young)
    assert report.files_compacted > 1
    assert report.snapshots_expired == 0
    assert {task.file.file_path for task in plan} <= files(table)
    assert reading.to_arrow().num_rows == 26
    report = run(topic, EAGER)
    # The tag of another tool, and all from the head to the newest snapshot with offsets.
    assert report.after.snapshots == 1 + 1 + 4 + 1
    assert {tagged, checkpoint.snapshot_id} <= snapshot_ids(table)
    assert commit.committed(table.refresh()) == offsets
    assert counts(topic) == 26
    assert table.scan(snapshot_id=tagged).to_arrow().num_rows == 5
    # Even if an administrator expires all that Iceberg lets go.
    table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(1)).commit()
    assert len(snapshot_ids(table)) == 3
    assert commit.committed(table) == offsets


def test_orphans_go_only_when_they_are_old(topic: Topic) -> None:
    table = topic.table()
    append(table, 0)
    orphan = f"{table.location()}/data/left-behind.parquet"
    with table.io.new_output(orphan).create() as stream:
        stream.write(b"half a file")
    assert run(topic, PATIENT).orphans_removed == 0
    assert orphan in files(table)
    again = run(topic, replace(PATIENT, orphan_age=NOW))
    assert again.orphans_removed == 0, "the folder is listed once a day"
    assert run(topic, replace(PATIENT, orphan_age=NOW, daily=NOW)).orphans_removed == 1
    assert orphan not in files(table)
    assert counts(topic) == 5


def test_old_rows_go_and_stay_away(topic: Topic) -> None:
    table, now = topic.table(), datetime.now(UTC)
    old, recent = now - timedelta(days=40), now - timedelta(days=30, hours=2)
    append(table, 0, when=old)  # goes as a file
    append(table, 10, when=[recent, now, now, now, now])  # is left for a day
    append(table, 15)
    policy = replace(PATIENT, compact_after=timedelta(1), data_retention=timedelta(days=30))
    assert run(topic, policy).rows_expired == 5
    assert counts(topic) == 10
    append(table, 5, when=[old, old, now, now, now])  # is rewritten, and so is the other one
    offsets = commit.committed(table.refresh())
    assert run(topic, policy).rows_expired == 3
    assert commit.committed(table.refresh()) == offsets
    left = [7, 8, 9, 11, 12, 13, 14, *range(15, 20)]
    assert sorted(row["id"] for row in topic.rows("id")) == left
    assert not run(topic, policy).changed
    run(topic, EAGER)
    assert counts(topic) == 12
    assert commit.committed(table.refresh()) == offsets


def test_shorter_retention_begins_with_the_command_that_asks(topic: Topic) -> None:
    append(topic.table(), 0, when=datetime.now(UTC) - timedelta(days=40))
    append(topic.table(), 5)
    kept, name = {"data_retention_ms": 30 * 86_400_000}, topic.spec.name
    spec = control.enable(topic.config, name, kept, discovered=AVRO_TOPIC, command=True)
    try:
        assert not maintain(spec, topic.endpoints, topic.config).rows_expired
        refused = CliRunner().invoke(app, ["tableflow", "maintain", name], input="n\n")
        assert "Delete rows that are older than 30 days from now on?" in refused.output
        assert not maintain(spec, topic.endpoints, topic.config).rows_expired
        done = CliRunner().invoke(app, ["tableflow", "maintain", name, "--yes"])
        assert "5 rows expired" in done.output
        assert sorted(row["id"] for row in topic.rows("id")) == [*range(5, 10)]
        assert "Delete" not in CliRunner().invoke(app, ["tableflow", "maintain", name]).output
    finally:
        control.disable(topic.config, name)


def test_compaction_beside_ingestion(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.send(ORDER, [{"id": -1, "note": ""}])
    topic.ingest()
    policy, compactions, sent = replace(EAGER, staged_age=timedelta(hours=1)), 0, 0
    deadline = time.monotonic() + 240
    with ingesting(topic):
        while compactions < 3 and time.monotonic() < deadline:
            topic.send(ORDER, [{"id": i, "note": "x"} for i in range(sent, sent + 100)])
            sent += 100
            compactions += run(topic, policy).files_compacted > 0
        while len(topic.rows("id")) < sent + 1 and time.monotonic() < deadline:
            time.sleep(1)
    assert compactions == 3
    assert sorted(row["id"] for row in topic.rows("id")) == list(range(-1, sent))
    assert counts(topic) == sent + 1


@pytest.mark.slow
def test_spark_is_killed_while_it_compacts(topic: Topic, kill_service: KillService) -> None:
    table = topic.table()
    for number in range(40):
        append(table, number * 5)

    failures: list[Exception] = []

    def compact() -> None:
        try:
            run(topic, PATIENT)
        except Exception as error:  # Spark has ended
            failures.append(error)

    thread = threading.Thread(target=compact)
    thread.start()
    time.sleep(3)
    kill_service("spark")
    thread.join()
    assert all(isinstance(error, TopicbergError) for error in failures), failures
    assert counts(topic) == 200
    assert run(topic, PATIENT).after.data_files == 1
    assert counts(topic) == 200
    # Whatever the killed Spark wrote is known as an orphan later.
    run(topic, replace(EAGER, orphan_age=NOW, daily=NOW))
    assert remove_orphans(topic.table(), NOW, now=time.time() + 60) == 0
    assert counts(topic) == 200


def test_any_table_can_be_maintained(topic: Topic) -> None:
    """A derived table: no topic, no offsets."""
    identifier = ("shop", f"derived_{topic.spec.name}")
    catalog, name = topic.endpoints.catalog(topic.config), f"{CATALOG}.{quote(*identifier)}"
    spark = new_session(topic.endpoints.spark_connect)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.shop")
    spark.sql(f"CREATE TABLE {name} USING iceberg AS SELECT id, 'x' AS note FROM range(5)")
    for number in range(1, 5):
        spark.sql(f"INSERT INTO {name} SELECT id + {number} * 5, 'x' FROM range(5)")
    spark.stop()
    table = catalog.load_table(identifier)
    report = maintain_table(table, topic.endpoints, EAGER)
    assert report.before.data_files > report.after.data_files
    assert report.after.snapshots == 1
    assert table.refresh().scan().to_arrow().num_rows == 25
    catalog.drop_table(identifier)


def test_manifests_and_delete_files_are_merged(topic: Topic) -> None:
    table = topic.table()
    for number in range(compaction.SMALL_MANIFESTS):
        append(table, number * 2, rows=2)
    report = run(topic, replace(PATIENT, compact_after=timedelta(1)))
    assert report.manifests_rewritten == compaction.SMALL_MANIFESTS
    properties = {"write.delete.mode": "merge-on-read", "write.delete.granularity": "partition"}
    table.refresh().transaction().set_properties(properties).commit_transaction()
    spark = new_session(topic.endpoints.spark_connect)
    for number in range(3):
        spark.sql(f"DELETE FROM {CATALOG}.{quote(*table.name())} WHERE id = {number * 2}")
    spark.stop()
    assert compaction.compact_deletes(topic.endpoints, (table.name()[0], table.name()[1])) == 3
    assert counts(topic) == 2 * compaction.SMALL_MANIFESTS - 3


def test_the_job_reports_what_it_did(make_topic: MakeTopic) -> None:
    """An observation of a table that changed, with what it was before; none the next time."""
    from topicberg.orchestration.assets import Lake
    from topicberg.orchestration.jobs.table_jobs import maintenance_job
    from topicberg.orchestration.resources import RESOURCES

    month = timedelta(days=30)
    topic = make_topic(tableflow={"data_retention_ms": int(month.total_seconds() * 1000)})
    topic.register(ORDER)
    table = Ingestor(topic.spec, topic.endpoints, topic.config).table()
    append(table, 0, when=datetime.now(UTC) - 2 * month)
    append(table, 5)
    lake = Lake(topic.config, (topic.spec,), ())
    job = maintenance_job(lake)
    observed = []
    for _ in range(2):
        with dg.instance_for_test() as instance:
            result = job.execute_in_process(instance=instance, resources=RESOURCES)
        assert result.success
        observed += [
            event.event_specific_data.asset_observation
            for event in result.all_events
            if event.event_type_value == "ASSET_OBSERVATION"
        ]
    (observation,) = observed
    assert observation.asset_key == lake.origin(topic.spec.name).key("iceberg")
    metadata: dict[str, Any] = {name: v.value for name, v in observation.metadata.items()}
    assert (metadata["data_files_before"], metadata["data_files_after"]) == (2, 1)
    assert metadata["bytes_after"] < metadata["bytes_before"]
    assert metadata["rows_expired"] == 5
    assert counts(topic) == 5
