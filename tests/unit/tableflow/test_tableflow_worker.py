"""When a topic of the engine has its turn, who is first, and what its status says."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topicberg.errors import (
    LoginError,
    TableflowError,
    TopicbergError,
    UnreachableError,
    split_hint,
)
from topicberg.kafka import NoSuchTopicError
from topicberg.kafka.ends import Ends
from topicberg.kafka.group import GroupMember
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings, settings
from topicberg.tableflow import control, service, status, status_report
from topicberg.tableflow.after_commit import sync_delta
from topicberg.tableflow.batch_plan import Commit
from topicberg.tableflow.ingestion import Ingestion
from topicberg.tableflow.pool import Pool
from topicberg.tableflow.status import Unavailable, read_status, write_status
from topicberg.topics import TopicSpec, load_topic

NOTHING = cast("Any", None)


class Endpoints:
    """Endpoints of a deployment that gets no request."""

    spark_connect = "sc://127.0.0.1:1"

    def schema_registry_client(self) -> None: ...


class Steps:
    """The engine of one topic, whose steps are given."""

    def __init__(self, *steps: Commit | Exception, max_records: int = 1_000) -> None:
        self.steps = list(steps)
        self.limits = SimpleNamespace(size=SimpleNamespace(limit=max_records))
        self.loader = SimpleNamespace(location=None, forget=self.forget)
        self.forgot = 0
        self.current_ms: int | None = None
        self.current_offsets: Offsets = {}

    def step(self) -> Commit:
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def table(self) -> None: ...

    def forget(self) -> None:
        self.forgot += 1


def committed(records: int, *offsets: int) -> Commit:
    return Commit(records=records, snapshot_id=1, end_offsets=dict(enumerate(offsets)))


def ends(*high: int, stable: tuple[int, ...] | None = None, topic_id: str = "id") -> Ends:
    return Ends(topic_id, dict(enumerate(high)), dict(enumerate(stable or high)))


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


@pytest.fixture
def spec(config: Settings) -> TopicSpec:
    return load_topic("stock_trades", config)


@pytest.fixture
def topic(config: Settings, spec: TopicSpec) -> Callable[..., Ingestion]:
    """``topic(*steps)``: a topic that has done the first of these steps."""

    def make(*steps: Commit | Exception, **more: Any) -> Ingestion:
        made = Ingestion(spec, NOTHING, config, NOTHING)
        made._ingestor = cast("Any", Steps(*steps, **more))
        made.turn()
        return made

    return make


def is_due(topic: Ingestion, inspection: float = 60.0) -> bool:
    return topic.due_at(inspection) <= time.monotonic()


def test_status_that_cannot_be_written_is_written_later(
    monkeypatch: pytest.MonkeyPatch, config: Settings, topic: Callable[..., Ingestion]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(status_report, "write_status", full)
        one = topic(committed(3, 3))
    assert one.report.status.phase == "RUNNING"
    assert read_status(config, one.spec.name).phase == "PENDING"
    one.observe(ends(3))
    assert read_status(config, one.spec.name).phase == "RUNNING"


def test_idle_topic_is_due_only_for_inspection(topic: Callable[..., Ingestion]) -> None:
    one = topic(committed(3, 3))
    assert not is_due(one)
    one.observe(ends(3))
    assert not is_due(one)
    assert is_due(one, inspection=0.0)


def test_records_wait_for_the_interval_or_a_full_batch(topic: Callable[..., Ingestion]) -> None:
    one = topic(committed(3, 3), max_records=100)
    one.observe(ends(50))
    assert not is_due(one)
    assert one.report.status.lag == {0: 47}
    one.observe(ends(103))
    assert is_due(one)
    one.observe(ends(50))
    one.schedule.committed_at -= one.spec.tableflow.commit_interval_seconds
    assert is_due(one)


def test_records_of_an_open_transaction_are_not_due(topic: Callable[..., Ingestion]) -> None:
    one = topic(committed(3, 3), max_records=1)
    one.observe(ends(9, stable=(3,)))
    assert not is_due(one)
    assert one.report.status.lag == {0: 6}
    one.observe(ends(9, stable=(9,)))
    assert is_due(one)


def test_turn_that_found_nothing_waits_for_other_ends(topic: Callable[..., Ingestion]) -> None:
    """Offsets without records, such as markers of transactions that nothing follows."""
    one = topic(committed(3, 3), committed(0, 3), max_records=1)
    one.observe(ends(5))
    assert is_due(one)
    one.turn()
    one.observe(ends(5))
    assert not is_due(one)
    one.observe(ends(6))
    assert is_due(one)


@pytest.mark.parametrize(
    "found", [ends(2), ends(), ends(3, topic_id="another")], ids=["shorter", "missing", "recreated"]
)
def test_log_that_is_another_one_is_due(topic: Callable[..., Ingestion], found: Ends) -> None:
    one = topic(committed(3, 3), committed(0, 3), TableflowError("recreated"))
    one.observe(ends(3))
    one.turn()
    assert not is_due(one)
    one.observe(found)
    assert is_due(one)
    one.turn()
    assert one.report.status.suspended
    assert not is_due(one)
    one.schedule.is_woken = True
    assert is_due(one)


def test_failure_is_tried_again_after_a_growing_wait(
    monkeypatch: pytest.MonkeyPatch, topic: Callable[..., Ingestion]
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    failures = [TopicbergError("not now")] * 9
    one = topic(*failures, committed(3, 3))
    waits = []
    for _ in failures[1:]:
        assert one.report.status.phase == "PENDING"
        waits.append(round(one.due_at(0.0) - now))
        one.turn()
    assert waits == [1, 2, 4, 8, 15, 15, 15, 15]
    since = one.report.status.failing_since_ms
    assert since is not None
    assert one.report.status.failures == len(failures)
    assert cast("Any", one._ingestor).forgot == len(failures)
    one.turn()
    assert one.report.status.phase == "RUNNING"
    assert one.report.status.failing_since_ms is None
    assert not is_due(one)


@pytest.mark.parametrize(
    ("error", "seconds"), [(UnreachableError("no answer"), 30), (TopicbergError("refused"), 0)]
)
def test_topic_without_an_answer_fails_since_it_waited(
    monkeypatch: pytest.MonkeyPatch,
    topic: Callable[..., Ingestion],
    error: TopicbergError,
    seconds: int,
) -> None:
    """A request that is not answered fails after half a minute; one that is refused, at once."""
    one = topic(committed(3, 3))
    now = time.time()

    def wait() -> Commit:
        monkeypatch.setattr(time, "time", lambda: now + 30)
        raise error

    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(one, "_step", wait)
    one.turn()
    assert one.report.status.failing_since_ms == int((now + 30 - seconds) * 1000)


def test_topic_that_was_deleted_says_what_becomes_of_its_table(
    topic: Callable[..., Ingestion],
) -> None:
    missing = NoSuchTopicError("describe topic: the topic does not exist", hint="check the name")
    one = topic(committed(3, 3), missing)
    one.turn()
    message, hint = split_hint(one.report.status.error_message or "")
    assert (
        message == "topic stock_trades was deleted; its table has the records that were committed"
    )
    assert hint is not None
    assert "`topicberg tableflow disable stock_trades`" in hint
    assert one.report.status.phase == "PENDING"


def test_topic_that_never_existed_keeps_the_hint_to_check_its_name(
    topic: Callable[..., Ingestion],
) -> None:
    one = topic(NoSuchTopicError("describe topic: the topic does not exist", hint="check the name"))
    assert split_hint(one.report.status.error_message or "")[1] == "check the name"


def test_poll_without_an_answer_fails_topics_once(topic: Callable[..., Ingestion]) -> None:
    one = topic(committed(3, 3), committed(0, 3))
    for _ in range(3):
        one.observe(UnreachableError("Kafka does not answer"))
    assert (one.report.status.phase, one.report.status.failures) == ("PENDING", 1)
    one.turn()
    assert one.report.status.phase == "RUNNING"


def test_turn_that_gets_no_records_shows_why_they_cannot_be_read(
    config: Settings, topic: Callable[..., Ingestion]
) -> None:
    """A turn whose login is refused waits for a minute, and then says that no record came."""
    one = topic(committed(3, 3))
    one.take()
    refused = LoginError("the login to Kafka at a:1 failed", hint="check the key")
    one.observe(refused)
    assert one.report.shown.error_message is None, "the next poll may succeed"
    one.observe(refused)
    shown = read_status(config, one.spec.name)
    assert split_hint(shown.error_message or "") == (refused.message, "check the key")
    assert shown.failing_since_ms is not None
    one.observe(ends(3))
    assert one.report.shown.error_message is None


def test_changes_by_others_are_in_the_status(topic: Callable[..., Ingestion]) -> None:
    """A rollback by an operator, and a commit of another engine."""
    one = topic(committed(3, 3), committed(0, 2), committed(0, 9))
    one.observe(ends(9))
    one.turn()
    assert one.report.status.end_offsets == {0: 2}
    assert one.report.status.lag == {0: 7}
    one.turn()
    assert one.report.status.lag == {0: 0}
    assert one.report.status.commits == 1


def test_rows_are_counted_and_not_offsets(topic: Callable[..., Ingestion]) -> None:
    """Ends of transactions, gaps and skipped records have offsets, and are no rows."""
    batch = replace(committed(604, 604), rows=136, bytes=7, rows_skipped=3)
    one = topic(batch, replace(committed(2, 606), rows=0, rows_skipped=5))
    one.observe(ends(606))
    one.turn()
    one.turn()
    status = one.report.status
    assert (status.rows_committed, status.rows_skipped, status.commits) == (136, 5, 2)


def test_topic_is_failed_while_a_service_does_not_answer(
    config: Settings, topic: Callable[..., Ingestion]
) -> None:
    """A turn that waits for it, or is not due, reports nothing."""
    one, missing = topic(committed(3, 3)), Unavailable("s3 does not answer", 5_000)
    one.observe(ends(3))
    one.report.miss(None, missing)
    assert one.report.shown.phase == "RUNNING", "Spark is not needed while nothing waits"
    one.report.miss(missing, None)
    shown = read_status(config, one.spec.name)
    assert (shown.phase, shown.error_message) == ("FAILED", "s3 does not answer")
    assert (shown.suspended, shown.failing_since_ms) == (False, 5_000)
    one.observe(ends(4))
    one.report.miss(None, missing)
    assert read_status(config, one.spec.name).phase == "FAILED", "a record waits"
    one.report.miss(None, None)
    shown = read_status(config, one.spec.name)
    assert (shown.phase, shown.error_message, shown.failing_since_ms) == ("RUNNING", None, None)


def test_topic_that_failed_while_a_service_was_away_has_time_to_commit_again(
    config: Settings, topic: Callable[..., Ingestion]
) -> None:
    """Else each topic of an outage has an alert of its own when it has ended."""
    one, missing = topic(TopicbergError("odd")), Unavailable("s3 does not answer", 5_000, "s3")
    one.report.miss(missing, None)
    old = one.report.status.model_copy(update={"failing_since_ms": 5_000, "phase": "FAILED"})
    one.report.status = old
    one.report.miss(missing, None)
    shown = read_status(config, one.spec.name)
    assert (shown.phase, shown.error_message, shown.missing) == ("FAILED", "odd", "s3")
    one.report.miss(None, None)
    shown = read_status(config, one.spec.name)
    assert (shown.phase, shown.error_message, shown.missing) == ("PENDING", "odd", None)
    assert (shown.failing_since_ms or 0) / 1000 == pytest.approx(time.time(), abs=600)


def test_suspended_topic_keeps_its_reason_while_a_service_does_not_answer(
    config: Settings, topic: Callable[..., Ingestion]
) -> None:
    one = topic(TableflowError("a malformed record"))
    one.report.miss(Unavailable("kafka does not answer", 5_000), None)
    shown = read_status(config, one.spec.name)
    assert (shown.shown_phase, shown.error_message) == ("SUSPENDED", "a malformed record")


def test_topic_that_keeps_failing_is_failed(
    monkeypatch: pytest.MonkeyPatch, topic: Callable[..., Ingestion]
) -> None:
    failure = TopicbergError("Kafka does not answer")
    one = topic(failure, failure, failure, committed(1, 1))
    assert one.report.status.phase == "PENDING"
    one.turn()
    assert one.report.status.phase == "PENDING"
    monkeypatch.setattr(status, "PENDING_SECONDS", 0)
    one.turn()
    assert (one.report.status.phase, one.report.status.suspended) == ("FAILED", False)
    assert one.due_at(60) < math.inf, "it is tried again"
    one.turn()
    assert (one.report.status.phase, one.report.status.failing_since_ms) == ("RUNNING", None)


def test_engine_is_healthy_while_its_threads_work(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = SimpleNamespace(polled_at=time.monotonic())
    engine = service.Engine(config, cast("Any", pool))
    assert engine.is_healthy()
    pool.polled_at -= service.HANGING_SECONDS
    assert not engine.is_healthy()


def test_lag_is_written_at_most_so_often(config: Settings, topic: Callable[..., Ingestion]) -> None:
    one = topic(committed(3, 3))
    one.observe(ends(4), write_seconds=60)
    assert read_status(config, one.spec.name).lag == {}
    assert one.report.status.lag == {0: 1}
    one.observe(ends(5))
    assert read_status(config, one.spec.name).lag == {0: 2}


def test_tombstones_are_current_while_nothing_waits(topic: Callable[..., Ingestion]) -> None:
    one = topic(committed(3, 3))
    engine = cast("Any", one._ingestor)
    one.observe(ends(4))
    assert engine.current_ms is None
    one.observe(ends(3))
    assert engine.current_offsets == {0: 3}
    assert engine.current_ms == pytest.approx(time.time() * 1000, abs=5_000)


class Slow(Ingestion):
    """A topic whose turns wait until they may end; each is noted."""

    turns: list[str]
    may_end: threading.Event

    def turn(self) -> None:
        self.turns.append(self.spec.name)
        self.may_end.wait(10)
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
        pool.queue._topics[name] = one
    return pool, turns, may_end


def test_turns_that_take_long_leave_a_worker(config: Settings, spec: TopicSpec) -> None:
    pool, turns, may_end = pool_of(config, spec, 4, [f"t{number}" for number in range(6)])
    small = pool.queue.topics["t5"]
    small.schedule.retry_at, small.schedule.is_woken = None, True
    cast("Any", small).may_end = threading.Event()
    pool.start()
    try:
        deadline = time.monotonic() + 10
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
    found = pool.queue._next()
    assert found is not None
    assert found.spec.name == "old"


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
    changed = spec.model_copy(update={"owners": ()})
    share.converge({spec.name: changed})
    status = share.pool.queue.topics[spec.name].report.status
    assert (status.rows_committed, status.commits) == (7, 2)
    assert status.error_handling == spec.tableflow.error_handling.mode


def test_turn_that_ends_after_its_spec_changed_is_counted(
    config: Settings, spec: TopicSpec
) -> None:
    """As of a topic that gets more partitions, which changes its spec."""
    share = sharing_all(config)
    share.converge({spec.name: spec})
    topics = [share.pool.queue.topics[spec.name]]
    for owners in (("a",), ("b",)):
        share.converge({spec.name: spec.model_copy(update={"owners": owners})})
        topics.append(share.pool.queue.topics[spec.name])
    counts: dict[str, Any] = {"rows": 490, "records_read": 500, "records_skipped": 10, "bytes": 7}
    done = Commit(500, 1, {0: 500}, **counts)
    topics[0].report.note_commit(done, {})
    topics[1].report.note_failure(ValueError("it ended"), suspended=False)
    status = topics[2].report.status
    assert (status.records_read, status.rows_committed, status.records_skipped) == (500, 490, 10)
    assert (status.commits, status.failures, status.bytes_committed) == (1, 1, 7)
    assert read_status(config, spec.name).records_read == 0, "it is not written yet"
    topics[2].report.note_commit(replace(done, records=0, rows=0, records_read=0), {})
    assert read_status(config, spec.name).records_read == 500


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


def test_unexpected_error_of_a_spec_keeps_the_topics(
    config: Settings, spec: TopicSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Settings) -> None:
        raise TypeError("a parser failed")

    monkeypatch.setattr(control, "usable_topics", fails)
    known = {spec.name: spec}
    specs, wrong = service._usable(control.Requested(config), known)
    assert (specs, wrong) == (known, {"": "TypeError('a parser failed')"})


def test_engine_that_cannot_listen_does_not_join_the_others(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[GroupMember] = []
    monkeypatch.setattr(GroupMember, "start", joined.append)
    monkeypatch.setattr(service, "load_endpoints", lambda _: Endpoints())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TopicbergError, match=f"port {port}: Address already in use"):
            service.serve(config, threading.Event(), port)
    assert joined == []


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


def test_each_session_is_sent_topicberg_if_workers_lack_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from topicberg.tableflow import sessions

    tried: list[Any] = []
    answers: dict[str, Any] = {"is_shipped": True, "lack": None}

    def check(session: Any, _: int) -> bool:
        tried.append(session)
        if answers["lack"] is not None:
            raise answers["lack"]
        return bool(answers["is_shipped"])

    monkeypatch.setattr(sessions, "check_workers", check)
    monkeypatch.setattr(sessions, "check_spark", lambda _: None)
    pool = sessions.Sessions(cast("Any", SimpleNamespace(spark_connect="")), settings())
    first, second, third = (cast("Any", SimpleNamespace(stop=lambda: None)) for _ in range(3))
    for session in (first, first, second, first, second):
        assert pool.check_workers(session) is None
    assert tried == [first, second]
    # After Spark ended, its workers may have it, or no memory.
    pool.discard(None, others=True)
    answers["is_shipped"] = False
    for session in (first, third, second):
        assert pool.check_workers(session) is None
    assert tried[2:] == [first]
    pool.discard(None, others=True)
    answers["lack"] = TopicbergError("they have no memory")
    for session in (third, first, third):
        assert pool.check_workers(session) is answers["lack"]
    assert tried[3:] == [third]


def test_free_session_serves_the_next_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    from topicberg.tableflow import sessions

    made: list[Any] = []
    stopped: list[Any] = []

    def new(_: str, conf: dict[str, str]) -> Any:
        assert conf == {"a login": "of this session"}
        made.append(SimpleNamespace(stop=partial(stopped.append, len(made))))
        return made[-1]

    monkeypatch.setattr(sessions, "new_session", new)
    monkeypatch.setattr(sessions, "check_spark", lambda _: None)
    login: dict[str, Any] = {"renew_at": None}
    endpoints = SimpleNamespace(
        spark_connect="sc://127.0.0.1:1",
        spark_session=lambda _: ({"a login": "of this session"}, login["renew_at"]),
    )
    pool = sessions.Sessions(cast("Any", endpoints), settings())
    first, second = pool.take(), pool.take()
    assert first is not second
    pool.give_back(first)
    assert pool.take() is first
    pool.give_back(first)
    pool.discard(second)
    assert stopped == [1]
    third = pool.take()
    assert third is first
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
    monkeypatch.setattr(sessions, "IDLE_SECONDS", -1.0)
    pool.give_back(made[3])
    login["renew_at"] = time.monotonic() - 1
    assert pool.take() is made[4]
    assert stopped == [1, 2, 0, 3]
    monkeypatch.setattr(sessions, "IDLE_SECONDS", 60.0)
    pool.give_back(made[4])
    login["renew_at"] = time.monotonic() + 60
    assert pool.take() is made[5]
    pool.give_back(made[5])
    assert pool.take() is made[5]


@pytest.mark.parametrize("takes", [0.1, 1.0, 2.0])
def test_commits_move_to_the_phase_of_their_topic(
    topic: Callable[..., Ingestion], takes: float
) -> None:
    """Or the topics whose records arrived at the same time are due at the same time for ever."""
    one = topic(committed(3, 3))
    interval = one.spec.tableflow.commit_interval_seconds
    for start in range(int(interval)):
        one.schedule.committed_at = due = 1000.0 + start
        for _ in range(4):
            due = one.schedule._next_commit()
            assert interval / 2 <= due - one.schedule.committed_at <= interval
            one.schedule.committed_at = due + takes
        assert abs((due - one.schedule._phase + 1) % interval - 1) < 0.01
