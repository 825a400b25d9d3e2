"""Records that cannot be decoded: suspend, skip, or log to the dead-letter topic, each one once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka_topics import ORDER, Topic, avro

from topicberg.errors import TableflowError
from topicberg.tableflow import commit
from topicberg.tableflow.deadletters import LOGGED_OFFSETS
from topicberg.tableflow.subjects import wire_prefix
from topicberg.topics.deadletters import dead_letter_spec

pytestmark = pytest.mark.integration

DATES = avro(
    {"name": "id", "type": "long"},
    {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        "default": "\x00",
    },
)


def poison(topic: Topic) -> list[bytes]:
    """A record of each kind that has no place in the table."""
    prefix = wire_prefix(topic.register(DATES))
    return [
        b"",
        b"\x01no magic byte",
        b"\x00\x00\x00",
        wire_prefix(2_000_000_000) + b"\x02\x00\x00",
        prefix,
        prefix + b"\x02\x02",  # ends within the date
        prefix + b"\x02\x00\x10\x01",  # eight bytes of decimal promised, one there
        prefix + b"\x02\x02\xfe\xff\xff\xff\x0f\x02\x01",  # a day in the year 5 881 580
        prefix + b"\x02\x00\x10\x7f\xff\xff\xff\xff\xff\xff\xff",  # more digits than 5
    ]


def good(topic: Topic, *numbers: int) -> None:
    topic.send(DATES, [{"id": n, "day": None, "price": b"\x01"} for n in numbers])


@pytest.fixture
def dates(make_topic: Callable[..., Topic], request: pytest.FixtureRequest) -> Topic:
    return make_topic(tableflow={"error_handling": request.param})


@pytest.mark.parametrize("dates", [{"mode": "SKIP"}], indirect=True)
def test_skip_counts_what_it_leaves_out(dates: Topic) -> None:
    good(dates, 1)
    dates.send_raw(poison(dates))
    good(dates, 2)
    dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1, 2]
    dates.send_raw([b"again"])
    dates.ingest()
    table = dates.table()
    assert int(table.properties[commit.ROWS_SKIPPED]) == len(poison(dates)) + 1


@pytest.mark.parametrize("number", range(9))
def test_suspend_names_the_record(make_topic: Callable[..., Topic], number: int) -> None:
    topic = make_topic()
    good(topic, 1)
    topic.send_raw([poison(topic)[number]])
    with pytest.raises(TableflowError, match=rf"topic {topic.spec.name}, partition \d, offset \d+"):
        topic.ingest()
    assert topic.table().current_snapshot() is None


def dead_letters(topic: Topic) -> list[dict[str, Any]]:
    """The rows of the dead-letter topic's own table."""
    errors = Topic(topic.endpoints, dead_letter_spec(topic.spec), topic.config)
    errors.ingest()
    return [
        row
        for row in errors.rows("error_message", "source_record")
        if row["source_record"]["topic"] == topic.spec.name
    ]


@pytest.mark.parametrize("dates", [{"mode": "LOG", "target": "orders_errors"}], indirect=True)
def test_log_keeps_each_broken_record_once(dates: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = poison(dates)
    good(dates, 1)
    dates.send_raw(broken[:4])
    dates.ingest()
    dates.send_raw(broken[4:])
    good(dates, 2)

    class Killed(BaseException):
        """The engine dies between the dead letters and the commit."""

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(commit, "publish", die)
        with pytest.raises(Killed):
            dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1]
    dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1, 2]
    logged = dead_letters(dates)
    assert sorted(row["source_record"]["value"] for row in logged) == sorted(broken)
    assert all(row["error_message"] for row in logged)
    table = dates.table()
    assert int(table.properties[commit.ROWS_SKIPPED]) == len(broken)
    assert LOGGED_OFFSETS in table.properties


@pytest.mark.parametrize("mode", ["SUSPEND", "SKIP"])
def test_a_schema_of_another_subject_is_looked_up(
    make_topic: Callable[..., Topic], mode: str
) -> None:
    """A producer with another subject name strategy writes records of the same shape."""
    topic = make_topic(tableflow={"error_handling": {"mode": mode}})
    other = Topic(topic.endpoints, topic.spec.model_copy(update={"name": f"{topic.spec.name}_x"}))
    topic.send(ORDER, [{"id": 1, "note": "a"}])
    wider = avro(*ORDER["fields"], {"name": "more", "type": "int"})
    foreign = wire_prefix(other.register(wider))
    topic.send_raw([foreign + b"\x04\x02b\x0e"])
    topic.ingest()
    assert topic.rows("id", "note") == [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]
