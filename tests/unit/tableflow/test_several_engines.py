"""An engine that gives up topics: its turns, its statuses, its identity and its metrics."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topicberg.errors import UnreachableError
from topicberg.security.guard import Guard, Request
from topicberg.settings import Settings
from topicberg.tableflow.service import service
from topicberg.tableflow.service.engine import AbandonedError
from topicberg.tableflow.service.ingestion import Ingestion, sync_delta
from topicberg.tableflow.service.metrics import StatusCollector
from topicberg.tableflow.service.pool import Pool, poll_seconds
from topicberg.tableflow.service.status import (
    TopicStatus,
    give_up_status,
    read_status,
    status_file,
    write_status,
)
from topicberg.tableflow.values.identity import Identity
from topicberg.topics import TopicSpec, load_topic

NOTHING = cast("Any", None)


class Endpoints:
    """Endpoints of a deployment that gets no request."""

    spark_connect = "sc://127.0.0.1:1"

    def schema_registry_client(self) -> None: ...


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


@pytest.fixture
def spec(config: Settings) -> TopicSpec:
    return load_topic("stock_trades", config)


class Working(Ingestion):
    """A topic whose turn runs until it is abandoned, or until it may end."""

    began: threading.Event
    may_end: threading.Event

    def turn(self) -> None:
        self.began.set()
        while not (self._abandoned.is_set() or self.may_end.is_set()):
            time.sleep(0.01)
        self.schedule.retry_at, self.schedule.inspected_at = None, time.monotonic()


def working(config: Settings, spec: TopicSpec) -> tuple[Pool, Working]:
    pool = Pool(cast("Any", Endpoints()), config, "one")
    topic = Working(spec, NOTHING, config, NOTHING, engine="one")
    topic.began, topic.may_end = threading.Event(), threading.Event()
    pool.queue._topics[spec.name] = topic
    return pool, topic


def test_topic_is_given_up_after_its_batch_ended(config: Settings, spec: TopicSpec) -> None:
    pool, topic = working(config, spec)
    pool.start()
    try:
        assert topic.began.wait(120)
        topic.report.update(phase="RUNNING", snapshot_id=7)
        threading.Timer(0.3, topic.may_end.set).start()
        pool.give_up([spec.name], 10)
        assert topic.may_end.is_set()
        assert not topic._abandoned.is_set()
        assert pool.queue.topics == {}
        status = read_status(config, spec.name)
        assert (status.engine, status.phase, status.snapshot_id) == (None, "PENDING", 7)
    finally:
        pool.stop(10)


def test_batch_that_takes_too_long_is_abandoned(config: Settings, spec: TopicSpec) -> None:
    pool, topic = working(config, spec)
    pool.start()
    try:
        assert topic.began.wait(120)
        pool.give_up([spec.name], 0.1)
        assert topic._abandoned.is_set()
        assert not topic.is_running
    finally:
        pool.stop(10)


def test_batch_of_a_topic_that_is_paused_is_abandoned(config: Settings, spec: TopicSpec) -> None:
    pool, topic = working(config, spec)
    pool.start()
    try:
        assert topic.began.wait(120)
        topic.began.clear()
        pool.wake(spec.name, abandons=True)
        assert topic.began.wait(120), "the next turn, which finds that it is paused"
    finally:
        pool.stop(0)  # abandons the next turn, too


def test_abandoned_turn_is_not_a_failure(config: Settings, spec: TopicSpec) -> None:
    topic = Ingestion(spec, NOTHING, config, NOTHING, engine="one")

    class Abandoned:
        limits = SimpleNamespace(size=SimpleNamespace(limit=1))

        def step(self) -> None:
            raise AbandonedError("another engine takes the topic")

    topic._ingestor = cast("Any", Abandoned())
    topic.turn()
    assert (topic.report.status.phase, topic.report.status.failures) == ("PENDING", 0)
    assert topic.report.status.error_message is None
    assert topic.due_at(60.0) <= time.monotonic()


def test_status_of_another_engine_is_not_given_up(config: Settings) -> None:
    mine = TopicStatus(topic="orders", engine="one", phase="RUNNING", error_message="x")
    write_status(config, mine.model_copy(update={"engine": "two"}))
    give_up_status(config, mine)
    assert read_status(config, "orders").engine == "two"
    write_status(config, mine)
    give_up_status(config, mine)
    status = read_status(config, "orders")
    assert (status.engine, status.phase, status.error_message) == (None, "PENDING", None)


def test_status_that_cannot_be_read_is_not_given_up(config: Settings, spec: TopicSpec) -> None:
    """Another user wrote it, for example; a folder stands for it here."""
    status_file(config, "orders").mkdir(parents=True)
    share = service._Share(cast("Any", Endpoints()), config)
    share.member.error = UnreachableError("Kafka does not answer")
    orders = spec.model_copy(update={"name": "orders"})
    share.converge({"orders": orders, spec.name: spec})
    assert read_status(config, spec.name).error_message == "Kafka does not answer"
    share.member.holds = lambda name: False  # type: ignore[method-assign]
    share.member._set(frozenset())
    share.converge({"orders": orders})
    assert status_file(config, "orders").is_dir()


def test_engine_without_kafka_reports_it_for_its_topics(config: Settings, spec: TopicSpec) -> None:
    share = service._Share(cast("Any", Endpoints()), config)
    write_status(config, TopicStatus(topic="other", engine="another", phase="RUNNING"))
    share.member.error = UnreachableError("Kafka does not answer")
    share.converge({spec.name: spec, "other": spec.model_copy(update={"name": "other"})})
    assert read_status(config, spec.name).error_message == "Kafka does not answer"
    assert read_status(config, spec.name).failing_since_ms is not None
    assert read_status(config, "other").phase == "RUNNING"
    assert share.pool.queue.topics == {}


def test_engine_takes_only_the_topics_that_it_has(config: Settings, spec: TopicSpec) -> None:
    share = service._Share(cast("Any", Endpoints()), config)
    specs = {name: spec.model_copy(update={"name": name}) for name in ("a", "b", "c")}
    share.member.holds = lambda name: name != "b"  # type: ignore[method-assign]
    share.member._set(frozenset())
    share.converge(specs)
    assert share.pool.queue.topics.keys() == {"a", "c"}
    share.member.holds = lambda name: name != "c"  # type: ignore[method-assign]
    share.converge(specs)
    assert share.pool.queue.topics.keys() == {"a", "b"}
    share._give_up(is_lost=True)
    assert share.pool.queue._next() is None
    share.converge(specs)
    assert share.pool.queue._next() is not None


def test_topic_that_was_given_up_is_not_removed_again(config: Settings, spec: TopicSpec) -> None:
    """A rebalance and `topicberg tableflow disable` at the same time, in two threads."""
    pool = Pool(cast("Any", Endpoints()), config, "one")
    pool.add(spec)
    pool.give_up([spec.name], 0.0)
    pool.remove(spec.name, 0.0)
    assert pool.queue.topics == {}


def test_identity_outlives_a_restart(config: Settings) -> None:
    first, second = Identity(config), Identity(config)
    assert second.name == f"{first.name}-2"
    assert first.id() != second.id()
    known = first.id()
    assert first._file is not None
    first._file.close()  # as when the process ends
    again = Identity(config)
    assert (again.name, again.id()) == (first.name, known)
    other = again.id(another=True)
    assert other != known
    assert again._file is not None
    again._file.close()
    assert Identity(config).id() == other


def test_identity_without_a_state_directory_is_unique(config: Settings) -> None:
    config.state_dir.joinpath("tableflow").write_text("not a folder")
    assert Identity(config).id() != Identity(config).id()


def test_metrics_say_which_engine_has_the_topic() -> None:
    found = StatusCollector(lambda: [TopicStatus(topic="orders", engine="one")], "one").collect()
    samples = {(s.name, tuple(s.labels.items())): s.value for m in found for s in m.samples}
    place = ("topic", "orders"), ("engine", "one")
    assert samples["topicberg_tableflow_engine", place] == 1
    assert samples["topicberg_tableflow_topics", (("engine", "one"),)] == 1


@pytest.mark.parametrize(
    ("host", "is_accepted"),
    [("10.1.2.3:9400", True), ("[fd00::1]:9400", True), ("evil.org", False)],
)
def test_metrics_of_a_pod_are_reached_by_address(host: str, is_accepted: bool) -> None:
    request = Request("GET", {"host": [host]})
    assert (Guard(any_address=True).refusal(request) is None) == is_accepted
    assert Guard().refusal(request) is not None


@pytest.mark.parametrize(("used", "seconds"), [(0.001, 1.0), (0.08, 2.0), (3.0, 5.0)])
def test_poll_of_many_topics_is_less_frequent(used: float, seconds: float) -> None:
    assert poll_seconds(used) == pytest.approx(seconds)


class Slow(Ingestion):
    """A topic whose turns wait until they may end; each is noted."""

    turns: list[str]
    may_end: threading.Event

    def turn(self) -> None:
        self.turns.append(self.spec.name)
        self.may_end.wait(120)
        self.schedule.retry_at, self.schedule.inspected_at = None, time.monotonic()


def pool_of(
    config: Settings, spec: TopicSpec, workers: int, names: list[str]
) -> tuple[Pool, list[str], threading.Event]:
    pool = Pool(cast("Any", Endpoints()), config.model_copy(update={"engine_workers": workers}))
    turns: list[str] = []
    may_end = threading.Event()
    for name in names:
        one = Slow(spec.model_copy(update={"name": name}), NOTHING, config, NOTHING)
        one.turns, one.may_end = turns, may_end
        pool.queue.put(name, lambda _, one=one: one)  # type: ignore[misc]
    return pool, turns, may_end


def test_turns_that_take_long_leave_a_worker(config: Settings, spec: TopicSpec) -> None:
    pool, turns, may_end = pool_of(config, spec, 4, [f"t{number}" for number in range(6)])
    small = pool.queue.topics["t5"]
    small.schedule.retry_at, small.schedule.is_woken = None, True
    cast("Any", small).may_end = threading.Event()
    pool.start()
    try:
        deadline = time.monotonic() + 120
        while len(turns) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        assert sorted(turns) == ["t0", "t1", "t2", "t5"]
    finally:
        may_end.set()
        cast("Any", small).may_end.set()
        pool.stop(10)


def test_longest_due_topic_is_first(config: Settings, spec: TopicSpec) -> None:
    pool, _, _ = pool_of(config, spec, 1, ["new", "old", "running", "later"])
    now = time.monotonic()
    for name, due in (("new", now - 1), ("old", now - 5), ("running", now - 9)):
        pool.queue.topics[name].schedule.retry_at = due
    pool.queue.topics["later"].schedule.retry_at = now + 60
    pool.queue.topics["running"].is_running = True
    taken = pool.queue.take()
    assert taken is not None
    assert taken[0].spec.name == "old"


def sharing_all(config: Settings) -> service._Share:
    """Return the share of an engine that has all topics."""
    share = service._Share(cast("Any", Endpoints()), config)
    share.member.holds = lambda name: True  # type: ignore[method-assign]
    share.member._set(frozenset())
    return share


def test_spec_that_changes_keeps_the_counters(config: Settings, spec: TopicSpec) -> None:
    """`topicberg tableflow enable` of a topic that runs."""
    share = sharing_all(config)
    share.converge({spec.name: spec})
    old = share.pool.queue.topics[spec.name]
    old.report.update(rows_committed=7, commits=2)
    share.converge({spec.name: spec})
    assert share.pool.queue.topics[spec.name] is old
    share.converge({spec.name: spec.model_copy(update={"owners": ()})})
    status = share.pool.queue.topics[spec.name].report.status
    assert (status.rows_committed, status.commits) == (7, 2)
    assert status.error_handling == spec.tableflow.error_handling.mode


def test_disabled_topic_writes_no_status_any_more(config: Settings, spec: TopicSpec) -> None:
    share = sharing_all(config)
    share.converge({spec.name: spec})
    topic = share.pool.queue.topics[spec.name]
    topic.report.update(phase="RUNNING")
    assert read_status(config, spec.name).phase == "RUNNING"
    share.converge({})
    topic.report.update(phase="FAILED")
    assert read_status(config, spec.name).phase == "PENDING"
    write_status(config, topic.report.status)


def test_unexpected_error_of_a_spec_keeps_the_topics(spec: TopicSpec) -> None:
    class Requested:
        def topics(self) -> None:
            raise TypeError("a parser failed")

    known = {spec.name: spec}
    specs, wrong = service._usable(cast("Any", Requested()), known)
    assert (specs, wrong) == (known, {"": "TypeError('a parser failed')"})


def test_unreadable_table_is_not_a_failure_of_delta(spec: TopicSpec) -> None:
    """And a topic without Delta looks at nothing."""

    class Silent:
        def table(self) -> None:
            raise UnreachableError("the schema registry does not answer")

    silent = cast("Any", Silent())
    for formats in (("ICEBERG",), ("ICEBERG", "DELTA")):
        tableflow = spec.tableflow.model_copy(update={"table_formats": formats})
        given = spec.model_copy(update={"tableflow": tableflow})
        if "DELTA" in formats:
            with pytest.raises(UnreachableError):
                sync_delta(given, silent.table)
        else:
            assert sync_delta(given, silent.table) == []


def test_engine_is_healthy_while_its_threads_work(config: Settings) -> None:
    pool = SimpleNamespace(polled_at=time.monotonic())
    engine = service.Engine(config, cast("Any", pool))
    assert engine.is_healthy()
    pool.polled_at -= service.HANGING_SECONDS
    assert not engine.is_healthy()
