"""Maintenance against the real stack, beside a running engine, with three engines as witnesses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from kafka_topics import ORDER, Topic
from pyiceberg.table import Table

from topicberg.errors import TopicbergError
from topicberg.query import run_query
from topicberg.tableflow import commit
from topicberg.tableflow.engine import Ingestor
from topicberg.tableflow.maintenance import Policy, maintain
from topicberg.tableflow.maintenance.orphans import remove_orphans

pytestmark = pytest.mark.integration

NOW = timedelta(0)
EAGER = Policy(
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
    before = topic.table()
    report = maintain(topic.spec, topic.endpoints, topic.config, EAGER)
    assert (report.before.data_files, report.after.data_files) == (8, 1)
    assert report.files_compacted == 8
    assert report.after.rows == counts(topic) == 40
    # The head, and the newest snapshot with offsets, which is its parent.
    table = topic.table()
    assert report.after.snapshots == len(table.metadata.snapshots) == 2
    assert report.snapshots_expired == 7
    tag = table.metadata.refs[commit.CHECKPOINT_TAG].snapshot_id
    assert tag in {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    assert commit.committed(table).offsets == commit.committed(before).offsets
    assert report.files_deleted > 0
    # What is left is what the metadata knows: nothing that nobody would ever delete.
    assert remove_orphans(table, NOW, now=time.time() + 60) == 0
    again = maintain(topic.spec, topic.endpoints, topic.config, EAGER)
    assert not again.changed, again
    commits(topic, 1, first=8)
    assert counts(topic) == 45
