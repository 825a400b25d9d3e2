"""Steps of the engine before a topic's first record, its sessions of Spark, and its turns."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from clocks import Clock
from memory_topic import MemoryTopic, memory_topic
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, NestedField

from topicberg.errors import TableflowError, TopicbergError
from topicberg.iceberg.summaries import END_OFFSETS, TOPIC_ID
from topicberg.kafka.offsets import Offsets, dump_offsets
from topicberg.kafka.topics import TopicLog
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import adopt_start, first_offsets
from topicberg.tableflow.decode import sessions
from topicberg.tableflow.decode.sessions import IDLE_SECONDS, Sessions
from topicberg.tableflow.service.turns import turn, wait_for_turns
from topicberg.tableflow.values.commit import Committed


def topic_at(
    folder: Path, patch: pytest.MonkeyPatch, position: str | int, records: int
) -> MemoryTopic:
    """Return a topic whose first three records are gone, and whose table begins somewhere."""
    tableflow = {"start_position": position}
    topic = memory_topic(folder, patch, schema={"format": "none"}, tableflow=tableflow)
    for number in range(records):
        topic.produce(0, None, b"%d" % number, time_ms=100 * number)
    topic.beginning = {0: 3}
    return topic


def test_start_at_the_latest_is_that_of_the_first_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_at(tmp_path, monkeypatch, "latest", 7)
    ingestor = topic.ingestor()
    assert ingestor.step().end_offsets == {0: 7}
    topic.produce(0, None, b"7")
    topic.produce(0, None, b"8")
    topic.beginning = {0: 8}
    with pytest.raises(TableflowError, match="the next record is 7, the first one kept is 8"):
        ingestor.step()
    topic.beginning = {0: 3}
    assert ingestor.step().rows == 2


@pytest.mark.parametrize(("position", "rows"), [("latest", 3), (400, 2)])
def test_topic_created_again_before_its_first_commit_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: str | int, rows: int
) -> None:
    topic = topic_at(tmp_path, monkeypatch, position, 4)
    ingestor = topic.ingestor()
    assert ingestor.step().end_offsets == {0: 4}
    topic.topic_id, topic.beginning = "new", {}
    del topic.partitions[0][3:]
    topic.produce(0, None, b"new", time_ms=500)
    topic.produce(0, None, b"new", time_ms=600)
    assert ingestor.step().rows == (5 if position == "latest" else rows)


@pytest.mark.parametrize("began", ["latest", "earliest"])
def test_history_begins_where_the_topics_table_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    topic = topic_at(tmp_path, monkeypatch, "latest", 7)
    own = topic.ingestor().table()
    history = topic.catalog.create_table((own.name()[-2], "history"), own.schema())

    def first(table: Table, beginning: int, end: int) -> Offsets:
        log = TopicLog("memory", {0: beginning}, {0: end})
        return first_offsets(topic.spec, topic.endpoints, table, Committed(), log)

    if began == "latest":
        assert first(own, 3, 7) == {0: 7}
    else:
        own.append(
            own.schema().as_arrow().empty_table(),
            snapshot_properties={END_OFFSETS: dump_offsets({0: 7}), TOPIC_ID: "memory"},
        )
    for _ in range(2):
        adopt_start(history, own)
    assert first(history, 3, 50) == ({0: 7} if began == "latest" else {})
    expected = {0: 9} if began == "latest" else {}
    assert first(history, 9, 50) == expected, "what Kafka still has"


def test_step_beside_another_engine_that_adds_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_at(tmp_path, monkeypatch, "earliest", 0)
    partition = NestedField(1, "$$partition", IntegerType(), required=False)
    identifier = topic.spec.table_identifier(topic.config)
    topic.catalog.create_namespace_if_not_exists(identifier[0])
    topic.catalog.create_table(identifier, Schema(partition))
    one = topic.interrupted(topic.ingestor().table)
    assert one.step().records == 0
    assert "value" in one.table().schema().column_names


URL, LOGIN = "sc://127.0.0.1:1", {"a login": "of this session"}


class Spark:
    """Spark, as far as sessions need it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.stopped, self.tried = list[Any](), list[int](), list[Any]()
        self.renew_at: float | None = None
        self.is_shipped = True
        self.lack: TopicbergError | None = None
        monkeypatch.setattr(sessions, "new_session", self.new)
        monkeypatch.setattr(sessions, "check_spark", lambda _: None)
        monkeypatch.setattr(sessions, "check_workers", self.check)

    def new(self, _: str, conf: dict[str, str]) -> Any:
        assert conf in ({}, LOGIN)
        self.made.append(SimpleNamespace(stop=partial(self.stopped.append, len(self.made))))
        return self.made[-1]

    def login(self) -> tuple[dict[str, str], float | None]:
        return LOGIN, self.renew_at

    def check(self, session: Any, _: int) -> bool:
        self.tried.append(session)
        if self.lack is not None:
            raise self.lack
        return self.is_shipped


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(monkeypatch)


def test_each_session_is_sent_topicberg_if_workers_lack_it(spark: Spark) -> None:
    pool = Sessions(URL, spark.login, 0)
    first, second, third = (spark.new("", {}) for _ in range(3))
    for session in (first, first, second, first, second):
        assert pool.check_workers(session) is None
    assert spark.tried == [first, second]
    # After Spark ended, its workers may have it, or no memory.
    pool.discard(None, others=True)
    spark.is_shipped = False
    for session in (first, third, second):
        assert pool.check_workers(session) is None
    assert spark.tried[2:] == [first]
    pool.discard(None, others=True)
    spark.lack = TopicbergError("they have no memory")
    for session in (third, first, third):
        assert pool.check_workers(session) is spark.lack
    assert spark.tried[3:] == [third]


def test_free_session_serves_the_next_topic(spark: Spark, clock: Clock) -> None:
    made, stopped, pool = spark.made, spark.stopped, Sessions(URL, spark.login, 0)
    first, second = pool.take(), pool.take()
    assert first is not second
    pool.give_back(first)
    assert pool.take() is first
    pool.give_back(first)
    pool.discard(second)
    assert stopped == [1]
    assert pool.take() is first
    pool.give_back(first)
    # Spark ended during a batch of another session: this one is none of Spark's any more.
    lent = pool.take()
    assert lent is first
    pool.give_back(pool.take())
    pool.discard(None, others=True)
    assert stopped == [1, 2]
    pool.give_back(lent)
    assert stopped == [1, 2, 0]
    assert pool.take() is made[3]
    pool.give_back(made[3])
    clock.now += IDLE_SECONDS
    spark.renew_at = clock.now - 1
    assert pool.take() is made[4]
    assert stopped == [1, 2, 0, 3]
    pool.give_back(made[4])
    spark.renew_at = clock.now + 60
    assert pool.take() is made[5]
    pool.give_back(made[5])
    assert pool.take() is made[5]


TABLE = "lkc.orders"


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


def test_nothing_to_wait_for(config: Settings) -> None:
    assert wait_for_turns(config, TABLE, 0)
    with turn(config, TABLE):
        assert wait_for_turns(config, "lkc.payments", 0)
    assert wait_for_turns(config, TABLE, 0)


def test_turns_of_threads_run_beside_each_other(config: Settings) -> None:
    with turn(config, TABLE), turn(config, TABLE):
        assert not wait_for_turns(config, TABLE, 0)
    assert wait_for_turns(config, TABLE, 0)


def test_turn_that_begins_later_is_not_waited_for(config: Settings) -> None:
    waited, begun, end = Event(), Event(), Event()

    def wait() -> None:
        if wait_for_turns(config, TABLE, 30):
            waited.set()

    def later() -> None:
        with turn(config, TABLE):
            begun.set()
            end.wait(30)

    threads = [Thread(target=wait), Thread(target=later)]
    with turn(config, TABLE):
        threads[0].start()
        while (config.state_dir / "tableflow" / "turns" / f"{TABLE}.lock").exists():
            time.sleep(0.01)
        threads[1].start()
        assert begun.wait(30)
        assert not waited.is_set()
    assert waited.wait(30)
    end.set()
    for thread in threads:
        thread.join()


CODE = """
import sys, time
from pathlib import Path
from topicberg.settings import Settings
from topicberg.tableflow.service.turns import turn
with turn(Settings(state_dir=Path(sys.argv[1])), sys.argv[2]):
    print("begun", flush=True)
    time.sleep(60)
"""


def test_turn_of_a_killed_process_has_ended(config: Settings) -> None:
    words = [sys.executable, "-c", CODE, str(config.state_dir), TABLE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        assert not wait_for_turns(config, TABLE, 0)
        process.kill()
        assert wait_for_turns(config, TABLE, 10)


def test_turn_without_a_place_for_its_file_runs(config: Settings) -> None:
    (config.state_dir / "tableflow").write_text("not a folder")
    with turn(config, TABLE):
        pass
