"""A log that is put back, cut and grown under the same topic id: all rows right, or suspended."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replaced_logs import Site, site

from topicberg.errors import TableflowError
from topicberg.iceberg.summaries import LAST_RECORDS, WAITING, summary
from topicberg.kafka import consumer
from topicberg.kafka.consumer import find_records
from topicberg.kafka.last_records import LastRecord, dump_last_records, parse_last_records
from topicberg.kafka.offsets import Offsets
from topicberg.kafka.topics import TopicLog
from topicberg.tableflow.service.log_check import LogCheck
from topicberg.tableflow.values import skips
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.logs import OTHER_LOG

records = st.builds(
    LastRecord,
    offset=st.integers(0, 10**12),
    time_ms=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(-1, 10**6),
    checksum=st.integers(0, 2**32 - 1),
)


@given(st.dictionaries(st.integers(0, 2_000), st.tuples(records, st.integers(1, 9)), max_size=9))
def test_last_records_round_trip(known: dict[int, tuple[LastRecord, int]]) -> None:
    ends = {p: record.offset + more for p, (record, more) in known.items()}
    last = {p: record for p, (record, _) in known.items()}
    assert parse_last_records(dump_last_records(last, ends), {**ends, 2_001: 7}) == last


def test_last_records_of_many_partitions_take_few_bytes() -> None:
    last = {
        p: LastRecord(10**9 + p, 1_700_000_000_000 + p * 97 % 3_000, p % 7, p * 2654435761 % 2**32)
        for p in range(200)
    }
    assert len(dump_last_records(last, {p: r.offset + 1 for p, r in last.items()})) < 200 * 10


@pytest.mark.parametrize(
    ("write_mode", "end", "is_running"),
    [
        *(("append", 60, False), ("append", 100, True), ("append", 140, False)),
        *(("upsert", 100, False), ("upsert", 140, True)),
    ],
)
def test_log_that_was_put_back_suspends_its_topic_until_its_table_goes_on(
    write_mode: str, end: int, is_running: bool
) -> None:
    with site(write_mode) as one:
        one.produce(0, 60)
        one.copy()
        one.produce(0, 40)
        assert one.turn() == "RUNNING"
        before = one.values()
        one.put_back(0)
        if is_running:
            assert one.turn() == "SUSPENDED"
        one.produce(0, end - 60)
        for _ in range(2):
            if not is_running:
                one.restart()
            assert one.turn() == "SUSPENDED"
            one.resume()
        one.compact(0)
        one.produce(0, 40)
        one.restart()
        assert one.turn() == "SUSPENDED", "what differed may be compacted since"
        message = str(one.engine.report.status.error_message)
        assert "partition 0" in message
        assert "tableflow continue shop.customers" in message
        assert one.values() == before
        assert one.go_on().proposed is not None
        assert one.turn() == "RUNNING"
        if write_mode == "append":
            log = [m.value().decode() for m in one.topic.partitions[0][60:] if not m.is_gone]
            assert one.values() == sorted([*before, *log])


@pytest.mark.parametrize(
    ("beginning", "latest", "reason"),
    [
        ({0: 8}, {0: 9}, "truncated"),
        ({0: 0, 1: 3}, {0: 9, 1: 9}, "partition 1 was truncated: the next record is 0"),
        ({0: 0, 1: 3}, {0: 9, 1: 3}, "partition 1 was truncated: the next record is 0"),
        ({0: 0}, {0: 4}, "ends at 4"),
        ({1: 0}, {1: 4}, "is missing"),
    ],
)
def test_log_that_lost_records_is_refused(beginning: Offsets, latest: Offsets, reason: str) -> None:
    with site() as one:
        check = LogCheck(one.topic.spec, one.topic.endpoints, one.topic.config)
        with pytest.raises(TableflowError, match=reason):
            check.check(one.topic.ingestor().table(), {0: 5}, {}, TopicLog("id", beginning, latest))


def test_topic_goes_on_when_its_former_log_is_back() -> None:
    with site() as one:
        one.produce(0, 6)
        one.copy()
        one.produce(0, 4)
        one.turn()
        one.copy()
        one.put_back(0, 1)
        assert one.turn() == "SUSPENDED"
        one.put_back(0, 2)
        one.produce(0, 5)
        assert one.turn() == "RUNNING"
        one.verify()
        assert OTHER_LOG not in one.topic.ingestor().table().properties


def test_record_that_was_sent_again_is_another_one() -> None:
    """Time and content are the same: the producer sent its records again, of which one is new."""
    with site() as one:
        one.produce(0, 9)
        one.copy()
        one.produce(0, 1, "last")
        one.turn()
        one.put_back(0)
        one.cut(0, 1)
        one.produce(0, 2, "last")
        assert one.turn() == "SUSPENDED"


def test_partition_that_cannot_be_compared_stays_suspended_until_someone_resumes() -> None:
    with site() as one:
        one.produce(0, 3)
        one.turn()
        one.copy()
        commit_without(one, LAST_RECORDS)
        one.cut(0, 1)
        assert one.turn() == "SUSPENDED"
        one.resume()
        assert one.turn() == "SUSPENDED"
        one.put_back(0)
        for _ in range(2):
            one.restart()
            assert one.turn() == "SUSPENDED"
        assert "tableflow resume shop.customers" in str(one.engine.report.status.error_message)
        one.resume()
        assert one.turn() == "RUNNING"
        one.verify()


def test_last_record_that_expired_or_was_compacted_is_reported() -> None:
    with site() as one:
        one.produce(0, 4)
        one.produce(1, 8)
        one.turn()
        one.topic.beginning[0] = 4
        one.produce(1, 8)
        one.topic.partitions[1][7].is_gone = True
        one.restart()
        for _ in range(2):
            one.elect(0)
            one.elect(1)
        assert one.turn() == "RUNNING"
        assert one.turn() == "RUNNING"
        assert one.engine.report.status.unproven == {0: 3}
        one.produce(1, 1)
        one.turn()
        assert one.engine.report.status.unproven == {0: 3}, "a batch of another partition"
        one.produce(0, 1)
        one.turn()
        one.turn()
        assert one.engine.report.status.unproven == {}


@pytest.mark.parametrize("is_requested", [True, False])
def test_record_that_was_skipped_unread_does_not_show_another_log(is_requested: bool) -> None:
    with site(tableflow={"error_handling": {"mode": "SKIP"}}) as one:
        one.produce(0, 4)
        one.turn()
        one.produce(0, 2)
        table, name = one.table(), one.topic.spec.name
        for offset in (4, 5):
            if is_requested:
                assert skips.request(table, one.topic.endpoints, name, (0, offset), "bad")
            else:
                skips.note_failing(table, 0, (0, offset), "fails")
        for number in (0, 0, 1):
            one.restart()
            one.elect(0)
            one.produce(0, number)
            assert one.turn() == "RUNNING", one.engine.report.status.error_message
        assert (len(one.values()), skips.failing(one.table())) == (5, [])


@pytest.mark.parametrize("is_rolled_back", [True, False])
def test_skipped_record_that_is_not_noted_does_not_show_another_log(is_rolled_back: bool) -> None:
    """Version 1.0.0 wrote no file of such records, and removed its notes of them."""
    with site(tableflow={"error_handling": {"mode": "SKIP"}}) as one:
        one.produce(0, 4)
        one.turn()
        one.produce(0, 1)
        skips.note_failing(one.table(), 0, (0, 4), "fails")
        one.turn()
        one.produce(0, 1)
        if is_rolled_back:
            one.turn()
            one.roll_back()
        else:
            commit_without(one, WAITING)
            with one.table().transaction() as transaction:
                transaction.remove_properties(f"{skips.FAILING}0.4")
        log = one.topic.partitions[0]
        own, log[3] = log[3], replace(log[3], own=(b"0", b"another record"))
        one.restart()
        assert one.turn() == "SUSPENDED"
        log[3] = own
        assert one.turn() == "RUNNING", one.engine.report.status.error_message
        assert len(one.values()) == 5


def test_record_that_only_another_replica_compacted_does_not_show_another_log() -> None:
    with site("upsert") as one:
        one.topic.kafka_settings["cleanup.policy"] = "compact"
        one.produce(0, 1)
        one.abort(0)
        one.turn()
        one.produce(0, 4)
        one.elect(0)
        one.topic.partitions[0][1].is_gone = False
        assert one.turn() == "RUNNING", one.engine.report.status.error_message


def test_log_that_ends_with_many_aborted_records_is_compared_by_its_epochs() -> None:
    with site() as one, pytest.MonkeyPatch.context() as patch:
        one.produce(0, 4)
        one.abort(0)
        one.turn()
        read = one.topic.events
        patch.setattr(consumer, "SAMPLE_SECONDS", 0.1)
        answers = iter([read, lambda _: iter(()), read])
        patch.setattr(one.topic, "events", lambda place: next(answers)(place))
        assert one.turn() == "RUNNING", one.engine.report.status.error_message


def test_last_record_that_is_deleted_while_it_is_looked_for_proves_nothing() -> None:
    with site() as one:
        one.produce(0, 9)
        one.turn()
        held = {0: committed(one.topic.ingestor().table()).last_records[0]._replace(offset=4)}
        one.topic.beginning[0] = 7
        assert find_records(one.topic.endpoints, one.topic.spec.name, held, {0: 0}, {0: 5}) == {}


def test_idle_topic_is_compared_once_for_each_leader() -> None:
    with site() as one:
        one.produce(0, 4)
        one.turn()
        compared = one.topic.compared
        for _ in range(3):
            one.turn()
        assert one.topic.compared == compared + 1, "by the turn after the first commit"
        one.elect(0)
        for _ in range(3):
            one.turn()
        assert one.topic.compared == compared + 2


@pytest.mark.parametrize("is_created_again", [False, True])
def test_log_that_is_replaced_while_a_batch_is_read_is_noticed_before_its_commit(
    is_created_again: bool,
) -> None:
    with site() as one:
        one.produce(0, 6)
        one.copy()
        one.produce(0, 4)
        one.turn()
        before = one.values()
        one.produce(0, 2)
        ingest = one.topic.processes.ingest

        def put_back_first(*given: Any) -> Any:
            if is_created_again and one.topic.topic_id == "memory":
                one.replace_topic()
                one.produce(0, 9)
            elif not is_created_again and one.topic.epochs.get(0, 0) == 0:
                one.put_back(0)
                one.produce(0, 6)
            return ingest(*given)

        one.topic.processes.ingest = put_back_first
        assert (one.turn(), one.values()) == ("SUSPENDED", before)


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_log_put_back_while_another_engine_commits_suspends_both_engines(write_mode: str) -> None:
    with site(write_mode) as one:
        one.produce(0, 60)
        assert one.turn() == "RUNNING"
        one.copy()
        one.produce(0, 40)

        def put_back() -> None:
            one.put_back(0)
            assert one.turn() == "RUNNING", "its table ends where the log does"

        other = one.topic.interrupted(put_back)
        assert other.step().end_offsets[0] == 100
        before = one.values()
        one.produce(0, 80)
        assert one.turn() == "SUSPENDED", "with the leader that it has compared"
        with pytest.raises(TableflowError, match="another record at offset 99"):
            other.step()
        assert one.values() == before


def test_engine_compares_the_log_after_commits_of_another_engine_only() -> None:
    with site() as one:
        other = one.topic.ingestor()
        for _ in range(2):
            one.produce(0, 3)
            one.turn()
        compared = one.topic.compared
        one.produce(0, 3)
        one.turn()
        assert one.topic.compared == compared
        one.produce(0, 3)
        other.step()
        compared = one.topic.compared
        one.turn()
        one.turn()
        assert one.topic.compared == compared + 1
        one.verify()


def commit_without(one: Site, fact: str) -> None:
    """Commit what the head of the table records, without a fact."""
    table = one.topic.ingestor().table()
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    properties = {k: v for k, v in summary(head).items() if k != fact}
    own = {k: v for k, v in properties.items() if k.startswith("topicberg.")}
    table.append(table.schema().as_arrow().empty_table(), snapshot_properties=own)


HISTORIES = int(os.environ.get("TOPICBERG_TEST_HISTORIES", "6"))
partitions, few = st.sampled_from([0, 1]), st.integers(1, 4)
STEPS = st.one_of(
    st.tuples(st.just("produce"), partitions, few),
    st.tuples(st.just("produce"), partitions, few),
    st.tuples(st.just("turn")),
    st.tuples(st.just("turn")),
    st.tuples(st.just("copy")),
    st.tuples(st.just("put_back"), partitions, st.integers(-3, -1)),
    st.tuples(st.just("cut"), partitions, few),
    st.tuples(st.sampled_from(["elect", "compact", "abort"]), partitions),
    st.tuples(st.just("restart")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("roll_back")),
)


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
@settings(max_examples=HISTORIES)
@given(st.lists(STEPS, min_size=4, max_size=24))
def test_random_history_has_every_row_once_or_suspends_its_topic(
    write_mode: str, steps: list[tuple[Any, ...]]
) -> None:
    with site(write_mode) as one:
        for name, *arguments in [*steps, ("turn",), ("turn",)]:
            if name == "put_back":
                arguments[1] = max(arguments[1], -len(one.copies))
            phase = getattr(one, name)(*arguments)
            if name == "turn" and phase != "SUSPENDED":
                assert phase == "RUNNING", one.engine.report.status.error_message
                assert not one.engine.report.status.unproven
                one.verify()
