"""When a topic of the engine has its turn, and what its status says afterwards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from botocore.exceptions import NoCredentialsError
from clocks import Clock
from confluent_kafka import KafkaError
from memory_topic import MemoryTopic, memory_topic

from topicberg.errors import (
    LoginError,
    TableflowError,
    TopicbergError,
    UnreachableError,
    split_hint,
)
from topicberg.kafka.ends import Ends
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import Commit
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.tableflow.service.status import (
    PENDING_SECONDS,
    TopicStatus,
    Unavailable,
    read_status,
    status_file,
)
from topicberg.tableflow.service.status_report import StatusReport
from topicberg.tableflow.service.turn_schedule import LogWatch, TurnSchedule
from topicberg.tableflow.values import compiling
from topicberg.topics import TopicSpec, load_topic, requests

HELD = {0: 3}
UNUSED: Any = None


def ends(*high: int, stable: tuple[int, ...] | None = None, topic_id: str = "memory") -> Ends:
    return Ends(topic_id, dict(enumerate(high)), dict(enumerate(stable or high)))


class Schedule:
    """The schedule of a topic whose table holds three records, after a turn that ended at 1000."""

    def __init__(self, spec: TopicSpec) -> None:
        self.log = LogWatch()
        self.log.ends = ends(3)
        self.schedule = TurnSchedule(spec, self.log)
        self.schedule.committed_at = self.schedule.inspected_at = 1000.0
        self.end_turn(is_exhausted=False)

    def end_turn(self, *, is_exhausted: bool) -> None:
        self.log.note_turn(self.log.ends, is_exhausted=is_exhausted)
        self.schedule.succeed()

    def due(self, found: Ends, *, full: int = 1_000) -> float:
        """Return after how many seconds the next turn is due."""
        self.log.ends = found
        return self.schedule.due_at(60.0, HELD, full) - 1000.0


@pytest.fixture
def spec() -> TopicSpec:
    return load_topic("stock_trades")


@pytest.fixture
def schedule(spec: TopicSpec) -> Schedule:
    return Schedule(spec)


def test_idle_topic_is_due_only_for_inspection(schedule: Schedule) -> None:
    assert schedule.due(ends(3)) == 60.0


def test_records_wait_for_the_interval_or_a_full_batch(schedule: Schedule, spec: TopicSpec) -> None:
    assert 0 < schedule.due(ends(50), full=100) <= spec.tableflow.commit_interval_seconds
    assert schedule.due(ends(103), full=100) == 0.0


def test_records_of_an_open_transaction_are_not_due(schedule: Schedule) -> None:
    assert schedule.due(ends(9, stable=(3,)), full=1) == 60.0
    assert schedule.due(ends(9, stable=(9,)), full=1) == 0.0


def test_turn_that_found_nothing_waits_for_other_ends(schedule: Schedule) -> None:
    """Offsets without records, such as markers of transactions that nothing follows."""
    assert schedule.due(ends(5), full=1) == 0.0
    schedule.end_turn(is_exhausted=True)
    assert (schedule.due(ends(5), full=1), schedule.due(ends(6), full=1)) == (60.0, 0.0)


@pytest.mark.parametrize(
    "found", [ends(2), ends(), ends(3, topic_id="another")], ids=["shorter", "missing", "recreated"]
)
def test_log_that_is_another_one_is_due(schedule: Schedule, found: Ends) -> None:
    assert schedule.due(found) == 0.0
    schedule.schedule.retry_at = 1030.0  # the topic is suspended
    assert schedule.due(found) == 30.0
    schedule.schedule.is_woken = True
    assert schedule.due(found) < 0.0


def test_failure_is_tried_again_after_a_growing_wait(schedule: Schedule, clock: Clock) -> None:
    waits = []
    for _ in range(8):
        schedule.schedule.postpone()
        waits.append(round(schedule.schedule.due_at(0.0, HELD, 1) - clock.now))
    assert waits == [1, 2, 4, 8, 15, 15, 15, 15]
    schedule.schedule.succeed()
    schedule.schedule.postpone()
    assert schedule.schedule.due_at(0.0, HELD, 1) - clock.now == pytest.approx(1.0)


@pytest.mark.parametrize("takes", [0.1, 1.0, 2.0])
def test_commits_move_to_the_phase_of_their_topic(
    schedule: Schedule, spec: TopicSpec, takes: float
) -> None:
    """Or the topics whose records arrived at the same time are due at the same time for ever."""
    interval, reached = spec.tableflow.commit_interval_seconds, []
    schedule.log.ends = ends(4)
    schedule.schedule.inspected_at = 0.0
    for start in range(int(interval)):
        schedule.schedule.committed_at = due = 1000.0 + start
        for _ in range(4):
            due = schedule.schedule.due_at(60.0, HELD, 1_000)
            assert interval / 2 <= due - schedule.schedule.committed_at <= interval
            schedule.schedule.committed_at = due + takes
        reached.append(due)
    assert all(abs((one - reached[0] + 1) % interval - 1) < 0.02 for one in reached)


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    """A topic of text with three records."""
    topic = memory_topic(tmp_path, monkeypatch, schema={"format": "text"})
    for number in range(3):
        topic.produce(0, None, b"%d" % number)
    return topic


def started(topic: MemoryTopic) -> Ingestion:
    """Return the ingestion of a topic after its first turn."""
    one = Ingestion(topic.spec, topic.endpoints, topic.config, UNUSED)
    one.turn()
    return one


def phase(one: Ingestion) -> str:
    return one.report.status.phase


def shown(topic: MemoryTopic) -> TopicStatus:
    return read_status(topic.config, topic.spec.name)


def test_status_that_cannot_be_written_is_written_later(topic: MemoryTopic) -> None:
    place = status_file(topic.config, topic.spec.name)
    one = Ingestion(topic.spec, topic.endpoints, topic.config, UNUSED)
    place.mkdir(parents=True)  # so that no file can be there
    one.turn()
    assert phase(one) == "RUNNING"
    assert place.is_dir()
    place.rmdir()
    one.observe(ends(3))
    assert shown(topic).phase == "RUNNING"


def test_status_says_that_the_first_batch_waits_for_the_decoders(
    topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str | None] = []

    def compile_all() -> None:
        said.append(shown(topic).activity)

    monkeypatch.setattr(compiling, "compile_all", compile_all)
    one = Ingestion(topic.spec, topic.endpoints, topic.config, UNUSED)
    compiling.ready.clear()
    compiling._failure.cache_clear()
    one.turn()
    assert said == ["prepares the decoders: the first time, that takes some minutes"]
    assert shown(topic).activity is None
    assert shown(topic).rows_committed == 3


def test_turn_that_fails_is_tried_again(topic: MemoryTopic, clock: Clock) -> None:
    topic.kafka.failure = KafkaError.TOPIC_AUTHORIZATION_FAILED
    one = started(topic)
    since = one.report.status.failing_since_ms
    assert (phase(one), since) == ("PENDING", clock.now_ms)
    clock.now += PENDING_SECONDS
    one.turn()
    status = one.report.status
    assert (status.phase, status.suspended, status.failures) == ("FAILED", False, 2)
    assert status.failing_since_ms == since
    assert one.due_at(60) < math.inf, "it is tried again"
    topic.kafka.failure = None
    one.turn()
    assert (phase(one), one.report.status.failing_since_ms) == ("RUNNING", None)
    assert one.report.status.rows_committed == 3


def test_paused_topic_is_read_by_no_engine_until_it_is_resumed(
    topic: MemoryTopic, clock: Clock
) -> None:
    """Nor by one that starts meanwhile; each shows how many records wait, and no failure."""
    one, name = started(topic), topic.spec.name
    requests.pause(topic.config, name, "ada@desk")
    topic.produce(0, None, b"3")
    later = Ingestion(topic.spec, topic.endpoints, topic.config, UNUSED, engine="other")
    for engine in (one, later):
        engine.turn()
        engine.observe(ends(4))
        engine.observe(TopicbergError("Kafka does not answer"))
        status = shown(topic)
        assert (status.shown_phase, status.lag, status.error_message) == ("PAUSED", {0: 1}, None)
        assert (status.end_offsets, engine.held, len(topic.rows())) == (HELD, HELD, 3)
        assert clock.now < engine.due_at(60) <= clock.now + 30
    assert shown(topic).engine == "other"
    request = requests.requests_folder(topic.config) / f"{name}.json"
    stored = request.read_bytes()
    request.write_bytes(stored[:9])
    later.turn()
    assert (shown(topic).shown_phase, len(topic.rows())) == ("PAUSED", 3), "it cannot be read"
    request.write_bytes(stored)
    requests.end_pause(topic.config, name)
    later.turn()
    assert (phase(later), later.report.status.paused, len(topic.rows())) == ("RUNNING", None, 4)


@pytest.mark.parametrize(
    ("code", "seconds"), [(KafkaError._TIMED_OUT, 30), (KafkaError.TOPIC_AUTHORIZATION_FAILED, 0)]
)
def test_topic_without_an_answer_fails_since_it_waited(
    topic: MemoryTopic, clock: Clock, code: int, seconds: int
) -> None:
    """A request that is not answered fails after half a minute; one that is refused, at once."""
    one = started(topic)

    def wait() -> None:
        clock.now += 30

    topic.kafka.failure, topic.kafka.on_request = code, wait
    topic.endpoints.boto3 = Mock(side_effect=NoCredentialsError)  # whether its bucket exists
    one.turn()
    failed_ms = one.report.status.failing_since_ms or 0
    assert clock.now_ms - failed_ms == pytest.approx(1000 * seconds, abs=1)


def test_topic_that_was_deleted_says_what_becomes_of_its_table(topic: MemoryTopic) -> None:
    one = started(topic)
    topic.kafka.topics = {}
    one.turn()
    message, hint = split_hint(one.report.status.error_message or "")
    assert message == (
        "topic shop.customers was deleted; its table has the records that were committed"
    )
    assert "`topicberg tableflow disable shop.customers`" in (hint or "")
    assert phase(one) == "PENDING"


def test_topic_that_never_existed_keeps_the_hint_to_check_its_name(topic: MemoryTopic) -> None:
    topic.kafka.topics = {}
    one = started(topic)
    assert "check the name" in (split_hint(one.report.status.error_message or "")[1] or "")


def test_poll_without_an_answer_fails_topics_once(topic: MemoryTopic) -> None:
    one = started(topic)
    for _ in range(3):
        one.observe(UnreachableError("Kafka does not answer"))
    assert (phase(one), one.report.status.failures) == ("PENDING", 1)
    one.turn()
    assert phase(one) == "RUNNING"


def test_turn_that_gets_no_records_shows_why_they_cannot_be_read(topic: MemoryTopic) -> None:
    """A turn whose login is refused waits for a minute, and then says that no record came."""
    one = started(topic)
    one.take()
    refused = LoginError("the login to Kafka at a:1 failed", hint="check the key")
    one.observe(refused)
    assert one.report.shown.error_message is None, "the next poll may succeed"
    one.observe(refused)
    assert split_hint(shown(topic).error_message or "") == (refused.message, "check the key")
    assert shown(topic).failing_since_ms is not None
    one.observe(ends(3))
    assert one.report.shown.error_message is None


def test_lag_is_written_at_most_so_often(topic: MemoryTopic) -> None:
    one = started(topic)
    one.observe(ends(4), write_seconds=600)
    assert shown(topic).lag == {}
    assert one.report.status.lag == {0: 1}
    one.observe(ends(5))
    assert shown(topic).lag == {0: 2}


@pytest.mark.parametrize("suspended", [True, False])
def test_lag_before_the_first_commit_is_all_that_the_log_has(
    topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch, *, suspended: bool
) -> None:
    """Counted from the beginning of the log, which retention moved."""
    topic.beginning = {0: 1}
    refused = (TableflowError if suspended else TopicbergError)("the batch is refused")
    monkeypatch.setattr(Ingestor, "_written", Mock(side_effect=refused))
    one = started(topic)
    assert one.held == {0: 1}
    one.observe(ends(3))
    status = shown(topic)
    assert (status.suspended, status.end_offsets, status.lag) == (suspended, {}, {0: 2})


@pytest.fixture
def report(spec: TopicSpec, tmp_path: Path) -> StatusReport:
    return StatusReport(spec, Settings(state_dir=tmp_path))


def written(report: StatusReport) -> TopicStatus:
    return read_status(report._config, report.status.topic)


def test_rows_are_counted_and_not_offsets(report: StatusReport) -> None:
    """Ends of transactions, gaps and skipped records have offsets, and are no rows."""
    first: dict[str, Any] = {"rows": 136, "bytes": 7, "rows_skipped": 3}
    report.note_commit(Commit(604, 1, {0: 604}, **first), {0: 2})
    report.note_commit(Commit(2, 2, {0: 606}, rows=0, rows_skipped=5), {0: 0})
    report.note_commit(Commit(0, 3, {0: 2}, rows=0, rows_skipped=5), {0: 604})  # rolled back
    status = report.status
    assert (status.rows_committed, status.rows_skipped, status.commits) == (136, 5, 2)
    assert (status.end_offsets, status.lag) == ({0: 2}, {0: 604})


def test_topic_is_failed_while_a_service_does_not_answer(report: StatusReport) -> None:
    """A turn that waits for it, or is not due, reports nothing."""
    missing = Unavailable("s3 does not answer", 5_000)
    report.note_commit(Commit(3, 1, {0: 3}, rows=3), {0: 0})
    report.miss(None, missing)
    assert report.shown.phase == "RUNNING", "Spark is not needed while nothing waits"
    report.miss(missing, None)
    found = written(report)
    assert (found.phase, found.error_message) == ("FAILED", "s3 does not answer")
    assert (found.suspended, found.failing_since_ms) == (False, 5_000)
    report.note_log({0: 1}, {}, 0.0)
    report.miss(None, missing)
    assert written(report).phase == "FAILED", "a record waits"
    report.miss(None, None)
    found = written(report)
    assert (found.phase, found.error_message, found.failing_since_ms) == ("RUNNING", None, None)


def test_topic_that_failed_while_a_service_was_away_has_time_to_commit_again(
    report: StatusReport, clock: Clock
) -> None:
    """Else each topic of an outage has an alert of its own when it has ended."""
    missing = Unavailable("s3 does not answer", 5_000, "s3")
    report.note_failure(TopicbergError("odd"), suspended=False, began_ms=5_000)
    report.miss(missing, None)
    found = written(report)
    assert (found.phase, found.error_message, found.missing) == ("FAILED", missing.message, "s3")
    report.miss(None, None)
    found = written(report)
    assert (found.phase, found.error_message, found.missing) == ("PENDING", "odd", None)
    assert found.failing_since_ms == clock.now_ms


def test_suspended_topic_keeps_its_reason_while_a_service_does_not_answer(
    report: StatusReport,
) -> None:
    report.note_failure(TopicbergError("a malformed record"), suspended=True)
    report.miss(Unavailable("kafka does not answer", 5_000), None)
    found = written(report)
    assert (found.shown_phase, found.error_message) == ("SUSPENDED", "a malformed record")


def test_turn_that_ends_after_its_spec_changed_is_counted(
    report: StatusReport, spec: TopicSpec, tmp_path: Path
) -> None:
    """As of a topic that gets more partitions, which changes its spec."""
    second = StatusReport(spec, Settings(state_dir=tmp_path), report)
    third = StatusReport(spec, Settings(state_dir=tmp_path), second)
    counts: dict[str, Any] = {"rows": 490, "records_read": 500, "records_skipped": 10, "bytes": 7}
    report.note_commit(Commit(500, 1, {0: 500}, **counts), {})
    second.note_failure(ValueError("it ended"), suspended=False)
    status = third.status
    assert (status.records_read, status.rows_committed, status.records_skipped) == (500, 490, 10)
    assert (status.commits, status.failures, status.bytes_committed) == (1, 1, 7)
    assert written(report).records_read == 0, "it is not written yet"
    third.note_commit(Commit(0, 1, {0: 500}), {})
    assert written(report).records_read == 500
