"""A table continues with another log: nothing is lost or doubled that was not said before."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from format_versions import overwrite
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation
from replaced_logs import Site, continue_table, site

from topicberg.checks.topic import lag_of
from topicberg.cli import tableflow as command
from topicberg.errors import SpecError, TableflowError, TopicbergError
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.files import live_files
from topicberg.kafka import consumer
from topicberg.settings import Settings
from topicberg.tableflow.changelog.fold_state import FoldState, Lost, LostChanges
from topicberg.tableflow.erasure.catch_up import CatchUp
from topicberg.tableflow.service import continuing, control
from topicberg.tableflow.service.history import find_history, ingest_history
from topicberg.tableflow.service.wait import noted_offsets, wait_for
from topicberg.tableflow.table.reread import reread
from topicberg.tableflow.values import skips
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.forgotten import FORGOTTEN
from topicberg.tableflow.values.logs import OTHER_LOG, ended_logs, log_number


@contextmanager
def running(first: int, second: int = 0, write_mode: str = "append") -> Iterator[Site]:
    """Yield a topic whose table has so many records of its two partitions."""
    with site(write_mode) as one:
        one.produce(0, first)
        one.produce(1, second)
        assert one.turn() == "RUNNING"
        yield one


def compared(one: Site) -> continuing.Comparison:
    return continuing.compare(one.topic.spec, one.table(), one.topic.endpoints, lambda _: None)


def in_log(one: Site, starts: dict[int, int] | None = None) -> Counter[str]:
    """Return the values of the log, or those from some offsets on."""
    return Counter(
        (m.value() or b"").decode()
        for p, log in one.topic.partitions.items()
        for m in log[max((starts or {}).get(p, 0), one.topic.first(p)) :]
        if not m.is_gone
    )


def continued(one: Site, since: str | None = None) -> continuing.Comparison:
    """Suspend the topic, go on, and check that the table got what the log has from there on."""
    assert one.turn() == "SUSPENDED"
    assert "tableflow continue" in str(one.engine.report.status.error_message)
    before = Counter(one.values())
    said = one.go_on(since)
    assert one.turn() == "RUNNING", one.engine.report.status.error_message
    if one.topic.spec.write_mode == "append":
        assert Counter(one.values()) == before + in_log(one, one.starts)
    return said


CHANGES: dict[str, Any] = {
    "migration": lambda one: one.migrate(),
    "migration with gaps": lambda one: one.migrate(gaps=1),
    "migration of the newest records": lambda one: one.migrate(first=5),
    "fail-over": lambda one: one.fail_over(),
    "cut": lambda one: one.cut(0, 4),
}


@pytest.mark.parametrize("change", CHANGES)
def test_table_goes_on_exactly_once_with_records_that_are_proved(change: str) -> None:
    with running(20, 9) as one:
        CHANGES[change](one)
        one.produce(0, 7)
        said = continued(one)
        assert said.proposed is not None, said.positions
        assert one.values() == sorted(str(n) for n in range(1, 37))
        table = one.table()
        assert (log_number(table), OTHER_LOG in table.properties) == (1, False)
        (ended,) = ended_logs(table)
        assert (ended.topic_id, ended.ends, ended.log) == ("memory", {0: 20, 1: 9}, 0)
        one.restart()
        one.produce(1, 1)
        assert one.turn() == "RUNNING"
        assert log_number(table.refresh()) == 1
        one.cut(1, 2)
        one.produce(1, 3)
        assert one.turn() == "SUSPENDED", "the next log is compared as well"


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_records_that_were_deleted_before_they_were_read_are_counted(partition: int) -> None:
    with running(5) as one:
        one.topic.partitions.setdefault(partition, [])
        end = {0: 5}.get(partition, 0)
        one.produce(partition, 9)
        one.topic.beginning[partition] = end + 3
        said = continued(one)
        assert said.proposed == {0: 5, 1: 0} | {partition: end + 3}
        assert said.positions[partition].why == "3 records after the table's end were deleted"
        assert said.positions[partition].deleted == 3


@pytest.mark.parametrize("beginning", [2, 8])
def test_table_without_records_goes_on_where_its_topic_began(beginning: int) -> None:
    """It begins with the latest records, and Kafka may have deleted some of these."""
    with site(tableflow={"start_position": "latest"}) as one:
        one.produce(0, 5)
        assert one.turn() == "RUNNING"
        one.produce(0, 9)
        one.topic.beginning[0] = beginning
        assert compared(one).is_same == (beginning == 2)
        if beginning == 8:
            assert continued(one).positions[0].deleted == 3
        assert one.turn() == "RUNNING"
        assert one.values() == sorted(map(str, range(max(5, beginning) + 1, 15)))


@pytest.mark.parametrize("partitions", [1, 3])
def test_other_number_of_partitions_goes_on(partitions: int) -> None:
    with running(5, 4) as one:
        logs = {p: list(log) for p, log in one.topic.partitions.items()}
        one.replace_topic({p: logs.get(p, []) for p in range(partitions)})
        one.produce(partitions - 1, 3)
        said = continued(one)
        assert (said.proposed is None) == (partitions == 1), "what it had is lost"
        assert committed(one.table()).offsets.keys() == set(range(partitions))


@pytest.mark.parametrize(
    ("write_mode", "others"),
    [
        *(("append", "newer"), ("append", "older"), ("append", "missing"), ("append", "repeated")),
        *(("upsert", "newer"), ("upsert", "older"), ("upsert", "repeated")),
    ],
)
def test_last_record_among_other_records_proves_nothing(write_mode: str, others: str) -> None:
    """Producers sent some of the records again, with their times, or others with earlier times."""
    with running(19, write_mode=write_mode) as one:
        one.sent += 30
        one.produce(0, 1)
        one.turn()
        sent = list(one.topic.partitions[0])
        if others in ("newer", "older"):
            one.produce(0, 1)
            sent.insert(19, one.topic.partitions[0][-1])
            sent[19].time_ms += 4 if others == "newer" else -4
        elif others == "missing":
            sent = sent[:12] + sent[15:]
        else:
            sent = [*sent, sent[-1]]
        logs = {0: [replace(m, place=(0, n)) for n, m in enumerate(sent)], 1: []}
        one.replace_topic(logs)
        if others == "repeated":
            logs[0].insert(0, replace(sent[0], is_gone=True))
            logs[0][:] = [replace(m, place=(0, n)) for n, m in enumerate(logs[0])]
        assert one.turn() == "SUSPENDED"
        position = one.go_on("end").positions[0]
        assert not position.is_proved, position.why


def test_log_of_other_records_under_the_same_topic_id_is_not_taken_for_a_cut_one() -> None:
    with running(20) as one:
        one.topic.partitions[0].clear()
        one.sent += 100
        one.produce(0, 12)
        one.elect(0)
        one.produce(0, 12)
        said = continued(one)
        assert said.proposed is None, said.positions[0].why
        assert len(one.values()) == 44


@pytest.mark.parametrize("number", [2, 4])
def test_records_that_were_sent_again_after_the_log_was_cut_are_not_read_in_silence(
    number: int,
) -> None:
    with running(20) as one:
        lost = one.topic.partitions[0][-4:]
        one.cut(0, 4)
        for record in lost[:number]:
            one.topic.produce(0, record.key(), record.value(), time_ms=record.time_ms)
        one.produce(0, 4)
        assert continued(one).proposed is None


def test_log_that_was_cut_after_its_last_record_is_noticed() -> None:
    """The marker of a transaction is lost; other records have its offset, and come after it."""
    with running(5) as one:
        for number in (0, 4):
            one.produce(0, 1)
            one.abort(0)
            one.abort(0)
            assert one.turn() == "RUNNING"
            one.cut(0, 1)
            end = len(one.topic.partitions[0])
            one.produce(0, number)
            assert continued(one).proposed == {0: end, 1: 0}
            assert one.values() == sorted(in_log(one).elements())


@pytest.mark.parametrize("text", ["0: 30\n1: 20\n", '{"0": 30, "1": 20}'])
def test_chosen_offsets_lose_and_repeat_what_is_shown(text: str, tmp_path: Path) -> None:
    with running(20, 9) as one:
        one.migrate(gaps=1)
        one.produce(1, 4)
        path = tmp_path / "offsets"
        path.write_text(text)
        shown = compared(one)
        starts, _ = shown.choose(str(path))
        rows = [*shown.described(starts or {})]
        assert [row[4:6] for row in rows] == [("0", "10"), ("2", "0")]
        continued(one, str(path))
        assert len(one.values()) == 29 + 5 + 2


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"0": 1}', '{"0": 99, "1": 0}', '{"0": -1, "1": 0}', "a text", "3: x"]
)
def test_offsets_that_the_log_does_not_have_are_refused(text: str, tmp_path: Path) -> None:
    with running(3) as one:
        path = tmp_path / "offsets.json"
        path.write_text(text)
        for since in (str(path), "soon"):
            with pytest.raises(SpecError):
                compared(one).choose(since)


def test_time_begins_with_the_first_record_of_that_time() -> None:
    with running(9) as one:
        one.replace_topic()
        one.sent = 3_000
        one.produce(0, 12)
        continued(one, "2023-11-14T22:13:21.002")
        assert one.starts == {0: 5, 1: 0}


def test_record_is_searched_beyond_the_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "SEARCHED_OFFSETS", 2)
    with site() as one:
        for number in range(30):  # of one time
            one.topic.produce(0, None, str(number).encode())
        one.turn()
        one.migrate(gaps=1)
        assert continued(one).proposed == {0: 60, 1: 0}


def test_decision_meets_a_commit_of_an_engine() -> None:
    """An engine that runs beside sees all of it: its batch is refused, and planned again."""
    with running(6) as one:
        one.produce(0, 3)
        other = one.topic.interrupted(lambda: one.go_on("beginning"))
        assert other.step().end_offsets == {0: 9, 1: 0}
        assert Counter(one.values()) == Counter({str(n): 1 + (n < 7) for n in range(1, 10)})


@pytest.mark.parametrize("change", [None, "forgotten", "replaced"])
@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_rollback_to_unknown_offsets_goes_on_after_the_rows(
    write_mode: str, change: str | None
) -> None:
    with running(9, 4, write_mode) as one:
        before, table = one.values(), one.table()
        first = table.current_snapshot()
        assert first is not None
        kept = SnapshotChange(table, Operation.REPLACE).commit().snapshot_id
        table.refresh().manage_snapshots().create_tag(kept, "kept").commit()
        one.produce(0, 3)
        assert one.turn() == "RUNNING"
        table.refresh().manage_snapshots().rollback_to_snapshot(kept).commit()
        table.refresh().maintenance.expire_snapshots().by_ids([first.snapshot_id]).commit()
        if change == "forgotten":
            with table.refresh().transaction() as transaction:
                transaction.set_properties({f"{FORGOTTEN}a": "{}"})
        if change == "replaced":
            one.fail_over()
        one.restart()
        assert one.turn() == "SUSPENDED"
        assert "continue shop.customers`" in str(one.engine.report.status.error_message)
        said = one.go_on()
        assert {p: each.at for p, each in said.positions.items()} == {0: 9, 1: 4}
        assert (said.proposed is None) == (change is not None), said.positions
        assert one.turn() == "RUNNING", one.engine.report.status.error_message
        if write_mode == "append":
            assert Counter(one.values()) == Counter(before if change else []) + in_log(one)
        assert [each.log for each in ended_logs(one.table())] == [0]


def test_table_that_was_dropped_begins_again_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, as_settings: Callable[[Settings], None]
) -> None:
    with running(9) as one:
        topic = one.topic
        as_settings(topic.config)
        monkeypatch.setattr(command, "load_endpoints", lambda _: topic.endpoints)
        monkeypatch.setattr(control, "find_topic", lambda *_: topic.spec)
        topic.catalog.drop_table(one.table().name())
        topic.beginning[0] = 5
        one.produce(0, 2)
        one.turn()
        assert one.turn() == "SUSPENDED"
        hint = "topicberg tableflow continue shop.customers --from beginning"
        assert hint in str(one.engine.report.status.error_message)
        with pytest.raises(SpecError, match="has no table"):
            command.continue_("shop.customers", "beginning", dry_run=True)
        command.continue_("shop.customers", "beginning", yes=True)
        assert one.turn() == "RUNNING", one.engine.report.status.error_message
        assert one.values() == sorted(map(str, range(6, 12)))
        assert len(ended_logs(one.table())) == 1


def test_decision_about_a_table_that_has_changed_is_refused() -> None:
    with running(6) as one:
        for change in (one.turn, one.replace_topic):
            one.produce(0, 1)
            before = compared(one)
            change()
            with pytest.raises(TopicbergError, match="has changed"):
                before.go_on({0: 0, 1: 0}, "")
        assert not log_number(one.table())


def test_rollback_of_main_undoes_the_decision() -> None:
    with running(6) as one:
        one.replace_topic()
        one.produce(0, 4)
        continued(one)
        one.roll_back()
        one.roll_back()
        assert (len(one.values()), log_number(one.table())) == (6, 0)
        continued(one)
        table = one.table()
        assert (len(one.values()), log_number(table)) == (10, 2), "no two logs have one number"
        assert [each.log for each in ended_logs(table)] == [0]


def test_request_to_skip_counts_for_its_log_only() -> None:
    with running(3) as one:
        table, name = one.table(), one.topic.spec.name
        one.produce(0, 2)
        assert skips.request(table, one.topic.endpoints, name, (0, 4), "bad")
        skips.note_failing(table, 0, (0, 4), "fails")
        one.replace_topic()
        one.produce(0, 6)
        continued(one)
        assert len(one.values()) == 9, "offset 4 is another record"
        assert not skips.requested(table.refresh())
        one.produce(0, 2)
        assert skips.request(table, one.topic.endpoints, name, (0, 7), "bad")
        assert one.turn() == "RUNNING"
        assert len(one.values()) == 10


def test_history_of_a_topic_goes_on_after_its_own_table() -> None:
    """The command decides about both, one after the other, and may be killed in between."""
    with site("upsert") as one:
        spec = one.topic.spec.model_copy(update={"history": True})
        given = spec, one.topic.endpoints, one.topic.config
        for number in (6, 5):
            one.produce(0, number)
            assert one.turn() == "RUNNING"
            history = ingest_history(*given)
            if number == 6:
                one.migrate(gaps=1)
                continued(one)
                with pytest.raises(TableflowError, match=r"continue shop\.customers"):
                    ingest_history(*given)
                found = find_history(*given)
                assert found is not None
                continue_table(found[1], found[0], one.topic.endpoints)
        assert sorted(history.scan().to_arrow()["value"].to_pylist()) == sorted(
            map(str, range(1, 12))
        )


def test_rows_that_another_writer_lost_are_noticed_though_their_offsets_are_lower() -> None:
    with site() as one:
        one.produce(0, 9)
        one.topic.beginning[0] = 5
        assert one.turn() == "RUNNING"
        one.replace_topic()
        one.produce(0, 2)
        continued(one)
        before = one.table().scan().to_arrow()
        one.produce(0, 2)
        assert one.turn() == "RUNNING"
        overwrite(one.table(), before, live_files(one.table()))
        one.produce(0, 1)
        assert one.turn() == "SUSPENDED"
        assert "lost 2 rows" in str(one.engine.report.status.error_message)


def test_row_of_a_later_log_is_the_newest_though_its_offset_is_lower() -> None:
    with running(9, 0, "upsert") as one:
        former = one.table().scan().to_arrow()
        one.replace_topic()
        one.produce(0, 8)
        continued(one)
        rows = pa.concat_tables([former, one.table().scan().to_arrow()])
        overwrite(one.table(), rows, live_files(one.table()))
        one.produce(0, 1)
        assert one.turn() == "SUSPENDED"
        one.resume()
        assert one.turn() == "RUNNING"
        reread(one.topic.spec, one.table(), one.topic.endpoints, one.topic.config)
        assert one.values() == ["15", "16", "17", "18"]


def test_table_of_another_log_holds_nothing_of_the_topic() -> None:
    """So its lag is all of the topic, nothing waits in vain, and no key is erased too early."""
    with running(9, 0, "upsert") as one:
        one.replace_topic()
        one.produce(0, 4)
        table, spec, endpoints = one.table(), one.topic.spec, one.topic.endpoints
        assert lag_of(table, spec, endpoints) == 4
        assert not wait_for(table, {0: 4}, 0, offsets_of=partial(noted_offsets, topic_id="memory+"))
        target: Any = SimpleNamespace(topic=spec.name, name="", identifier=table.name())
        (uncovered,) = CatchUp(spec, [target], endpoints, one.topic.config).unread()
        assert uncovered.first == {0: 0}
        with pytest.raises(TableflowError, match="deleted and recreated"):
            reread(spec, table, endpoints, one.topic.config)
        continued(one)
        assert lag_of(table.refresh(), spec, endpoints) == 0


@pytest.mark.parametrize("offset", [2, 40])
def test_lost_change_of_a_later_log_is_after_the_rows_of_former_ones(offset: int) -> None:
    """Whether a row is of a former log is not known if its offset may be: it lacks the change."""
    state = FoldState(log=0, offsets={0: 30}, reached={0: (7, 7)}, partitions=1)
    state = state.continued(1, {0: 30}, {0: 0}, is_proved=False)
    assert (state.reached, state.offsets, state.log) == ({}, {0: 0}, 1)
    known = LostChanges([]).after(state.after_rows([Lost(partition=0, offset=offset, key="k")]))
    lost = LostChanges(known)
    assert lost.is_after("k", 0, 29)
    assert lost.is_after("k", 0, 30) == (offset == 40)


HISTORIES = int(os.environ.get("TOPICBERG_TEST_HISTORIES", "3"))
partitions, few = st.sampled_from([0, 1]), st.integers(1, 5)
STEPS = st.one_of(
    *[st.tuples(st.just("produce"), partitions, few)] * 3,
    *[st.tuples(st.just("turn"))] * 2,
    st.tuples(st.just("migrate"), st.integers(0, 2), st.integers(0, 4)),
    st.tuples(st.just("fail_over")),
    st.tuples(st.just("replace_topic")),
    st.tuples(st.just("cut"), partitions, few),
    st.tuples(st.sampled_from(["put_back", "elect", "compact", "abort"]), partitions),
    st.tuples(st.sampled_from(["copy", "restart", "resume", "roll_back"])),
)


@pytest.mark.parametrize("since", [None, "beginning", "end"])
@pytest.mark.parametrize("write_mode", ["append", "upsert"])
@settings(max_examples=HISTORIES)
@given(st.lists(STEPS, min_size=6, max_size=24))
def test_random_replacements_lose_and_repeat_nothing_that_is_not_said(
    write_mode: str, since: str | None, steps: list[tuple[Any, ...]]
) -> None:
    """Whenever the topic is suspended, go on: the rows are what the log has from there on."""
    with site(write_mode) as one:
        for name, *arguments in [*steps, ("turn",), ("turn",)]:
            phase = getattr(one, name)(*arguments)
            if name != "turn":
                continue
            if phase == "SUSPENDED":
                before = Counter(one.values())
                said = one.go_on(since)
                assert one.turn() == "RUNNING", one.engine.report.status.error_message
                rows = Counter(one.values())
                if write_mode == "append":
                    assert rows == before + in_log(one, one.starts)
                if said.proposed is not None and since is None:
                    assert max(rows.values(), default=1) == 1, "nothing repeats that is proved"
                if said.proposed is not None and write_mode == "append":
                    lost = sum(max(0, one.starts[p] - said.positions[p].at) for p in one.starts)
                    assert (in_log(one) - rows).total() <= lost
            if since is None:
                logs = one.topic.partitions.values()
                log = {m.value().decode(): m for each in logs for m in each if not m.is_gone}
                newest = {(m.partition(), m.key()): v for v, m in log.items()}
                needed = in_log(one) if write_mode == "append" else Counter(newest.values())
                for row in one.topic.rows() if write_mode == "upsert" else ():
                    value = newest.get((row["$$partition"], b"%d" % (int(row["value"]) % 4)))
                    if value and log[value].offset() < one.starts.get(row["$$partition"], 0):
                        # The row of a record that was cut stays until its key has a later one.
                        needed[value] *= row["value"] in log
                assert needed <= Counter(one.values())
