"""Event times that are read from a field, of arrays and of single values."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import plan_of, rows_of
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.types import DoubleType, IcebergType, LongType, NestedField, StringType, StructType
from specs import Project, minimal

from topicberg.errors import TableflowError
from topicberg.tableflow.layout.event_time import EventTime, event_times
from topicberg.tableflow.layout.layout import event_time, read_layout, table_schema
from topicberg.tableflow.layout.waiting import check_table
from topicberg.tableflow.values.metadata import NO_TIMESTAMP
from topicberg.topics import TopicSpec, check_topics

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KAFKA_MS = 1_700_000_000_000
ISO = (
    r"20[0-9]{2}-0[1-9]-[012][0-9][tT _](0[0-9]|24)(:[0-6][0-9]){0,2}([.,][0-9]*)?"
    r"([zZ]|[+-][01][0-9](:?[0-6][0-9])?)?"
)
UNITS = {"seconds": 10**6, "milliseconds": 10**3, "microseconds": 1, "nanoseconds": None}


def rule(kind: IcebergType, field: str = "at", **more: Any) -> EventTime:
    spec = TopicSpec.model_validate(minimal(event_time={"field": field, **more}))
    found = event_time(spec, [NestedField(1, "at", kind, required=False)])
    assert found is not None
    return found


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def read(event_time: EventTime, values: Any, kind: Any, kafka_ms: int = KAFKA_MS) -> list[Any]:
    """Return the event times of an array in microseconds, or the reasons."""
    array = pa.array(values, kind)
    times, needed = np.full(len(array), kafka_ms), np.ones(len(array), np.bool_)
    found = event_times(event_time, {"at": array}, times, needed)
    read = found.column.cast(pa.int64()).to_pylist()
    return [found.wrong.get(at, read[at]) for at in range(len(array))]


@settings(max_examples=120)
@given(
    st.lists(
        st.one_of(
            st.datetimes(
                min_value=datetime(1, 1, 3),
                max_value=datetime(9999, 12, 29),
                timezones=st.sampled_from(
                    [
                        UTC,
                        *(
                            datetime.fromisoformat(f"2026-01-01T00:00{one}").tzinfo
                            for one in ("+05:30", "-11:00")
                        ),
                    ]
                ),
            ),
            st.text("0123456789-:TZ+. W", max_size=30),
            st.from_regex(ISO, fullmatch=True),
        ),
        max_size=6,
    )
)
def test_iso_of_an_array_is_that_of_each_text(values: list[datetime | str]) -> None:
    texts = [one if isinstance(one, str) else one.isoformat() for one in values]
    event_time = rule(StringType(), format="iso")
    for one, text, at in zip(values, texts, read(event_time, texts, pa.string()), strict=True):
        if isinstance(one, datetime):
            assert at == micros(one)
        assert event_time.micros(text, KAFKA_MS) == at


@given(st.sampled_from(list(UNITS)), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_epochs_are_exact(unit: str, values: list[int]) -> None:
    event_time = rule(LongType(), format=unit)
    for value, at in zip(values, read(event_time, values, pa.int64()), strict=True):
        factor = UNITS[unit]
        expected = value // 1000 if factor is None else value * factor
        if (
            micros(datetime(1, 1, 1, tzinfo=UTC))
            <= expected
            <= micros(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
        ):
            assert at == expected
        else:
            assert "is not between the years 1 and 9999" in at
        assert event_time.micros(value, KAFKA_MS) == at


@given(st.sampled_from(list(UNITS)), st.floats())
def test_fractions_of_epochs_are_rounded_to_microseconds(unit: str, value: float) -> None:
    (at,) = read(rule(DoubleType(), format=unit), [value], pa.float64())
    if isinstance(at, int):
        factor = Fraction(UNITS[unit] or Fraction(1, 1000))
        assert abs(Fraction(repr(value)) * factor - at) <= Fraction(1, 2)
    else:
        assert "finite number" in at or "years 1 and 9999" in at


@pytest.mark.parametrize(
    ("more", "text", "expected"),
    [
        ({"format": "iso", "timezone": "Europe/Berlin"}, "2026-07-01T12:00:00", "2026-07-01T10"),
        ({"format": "iso", "timezone": "Europe/Berlin"}, "2026-07-01T12:00:00Z", "2026-07-01T12"),
        ({"format": "iso"}, "2026-07-01T12:00:00", "with an offset from UTC expected"),
        ({"format": "iso", "timezone": "Europe/Berlin"}, "2026-03-29T02:30:00", "that exists in"),
        ({"format": "%d.%m.%Y %H:%M", "timezone": "UTC"}, "31.01.2026 09:00", "2026-01-31T09"),
        ({"format": "%d.%m.%Y %H:%M %z"}, "31.01.2026 09:00 +0100", "2026-01-31T08"),
        ({"format": "%d.%m.%Y %H:%M", "timezone": "UTC"}, "2026-01-31", "of the format %d.%m.%Y"),
        ({"format": "seconds"}, "1767225600", "2026-01-01T00"),
        ({"format": "seconds"}, "soon", 'a number expected, found "soon"'),
        ({"format": "iso", "earliest": "2000-01-01"}, "1970-01-01T00:00:09Z", "before 2000-01-01"),
        (
            {"format": "iso", "max_ahead_hours": 2},
            "2024-01-01T00:00:00Z",
            "more than 2 hours after Kafka's time",
        ),
        ({"format": "iso"}, None, "the event time is missing"),
    ],
)
def test_text_is_read_or_has_a_reason(more: Any, text: str | None, expected: str) -> None:
    (at,) = read(rule(StringType(), **more), [text], pa.string())
    if isinstance(at, int):
        assert (EPOCH + timedelta(microseconds=at)).isoformat().startswith(expected)
    else:
        assert expected in at
        assert at.startswith("field at (string): ")


def test_reading_of_a_struct(tmp_path: Path) -> None:
    kind = StructType(NestedField(2, "ms", LongType(), required=False))
    event_time = rule(kind, field="at.ms", format="milliseconds")
    found = read(event_time, [{"ms": 5}, None, {"ms": None}], pa.struct([("ms", pa.int64())]))
    missing = "field at.ms (long): the event time is missing"
    assert found == [5_000, missing, missing]


def test_kafkas_time_replaces_and_is_counted() -> None:
    event_time = rule(LongType(), format="seconds", otherwise="kafka", earliest="2000-01-01")
    array = pa.array([1_767_225_600, 7, None, None])
    kafka = np.array([KAFKA_MS, KAFKA_MS, KAFKA_MS, NO_TIMESTAMP])
    found = event_times(event_time, {"at": array}, kafka, np.ones(4, np.bool_))
    assert found.replaced == [1, 2]
    assert list(found.wrong) == [3]
    read = found.column.cast(pa.int64()).to_pylist()
    assert read[:3] == [1_767_225_600_000_000, KAFKA_MS * 1000, KAFKA_MS * 1000]


def test_record_without_a_value_has_kafkas_time_or_none() -> None:
    times, needed = np.array([KAFKA_MS, NO_TIMESTAMP]), np.zeros(2, np.bool_)
    found = event_times(rule(LongType(), format="seconds"), {"at": pa.nulls(2)}, times, needed)
    assert found.column.cast(pa.int64()).to_pylist() == [KAFKA_MS * 1000, None]
    assert (found.wrong, found.replaced) == ({}, [])


# --- in a topic ---


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "at": {"type": "string"}}}


def made(folder: str, **event_time: Any) -> tuple[TopicSpec, Any, Any]:
    project = Project(Path(folder))
    project.schema("s.json", json.dumps(SCHEMA))
    spec = TopicSpec.model_validate(
        {
            "name": "readings",
            "pipeline": "shop",
            "schema": {"format": "json", "file": "s.json", "framing": "none"},
            "key": {"format": "string"},
            "write_mode": "upsert",
            "event_time": {"field": "at", "format": "iso", **event_time},
        }
    )
    layout, catalog = read_layout(spec, cast("Any", None), project.config), InMemoryCatalog("test")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", table_schema(spec, layout))
    return spec, table, plan_of(spec, layout, table)[0]


def test_records_have_the_column_and_tombstones_need_no_time() -> None:
    with TemporaryDirectory() as folder:
        _, _, plan = made(folder)
        value = json.dumps({"n": 1, "at": "2026-01-31T12:00:00+01:00"}).encode()
        found, rejected = rows_of(plan, [(b"a", value), (b"b", None), (b"c", b'{"n": 2}')])
    assert found[0]["$$event-time"] == datetime(2026, 1, 31, 11, tzinfo=UTC)
    assert len(found) == 2
    assert rejected == {2: "field at (string): the event time is missing"}


def test_rule_of_a_table_cannot_change() -> None:
    with TemporaryDirectory() as folder:
        spec, table, _ = made(folder)
        properties = {"topicberg.write-mode": "upsert", "topicberg.event-time": "at, seconds"}
        with table.transaction() as transaction:
            transaction.set_properties(properties)
        with pytest.raises(TableflowError, match="from at, seconds, the spec says at, iso"):
            check_table(table.refresh(), spec)


def test_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TableflowError, match="has no such column"):
        rule(StringType(), field="no.such", format="iso")
    with pytest.raises(TableflowError, match="is a double, which does not have times of format"):
        rule(DoubleType(), format="iso")


@pytest.mark.parametrize(
    ("event_time", "field", "expected"),
    [
        ({"field": "side", "format": "isoo"}, "event_time.format", "is none of iso, seconds"),
        ({"field": "side", "format": "%H:%M"}, "event_time.format", "no year, month and day"),
        (
            {"field": "side", "format": "iso", "timezone": "Berlin"},
            "event_time.timezone",
            "is not a time zone",
        ),
        ({"field": "side", "format": "%d.%m.%Y"}, "event_time", "has no offset (%z)"),
        ({"field": "side", "timezone": "UTC"}, "event_time", "needs a format"),
        ({"field": "tags", "format": "iso"}, "event_time.field", "tags is a list"),
        ({"field": "sidee", "format": "iso"}, "event_time.field", "did you mean side?"),
        ({"field": "side", "format": "iso", "other": 1}, "event_time.other", ""),
    ],
)
def test_wrong_rule_is_refused(tmp_path: Path, event_time: Any, field: str, expected: str) -> None:
    project = Project(tmp_path)
    project.topic(minimal(event_time=event_time))
    assert expected in {one.field: one.reason for one in check_topics(project.config)[1]}[field]


def test_partitions_by_the_event_time(tmp_path: Path) -> None:
    project = Project(tmp_path)
    document = minimal(
        event_time={"field": "quantity", "format": "seconds"},
        table={"partitioning": ["hour($$event-time)"]},
        derived_partitions={"granularity": "hourly", "start": "2026-01-01"},
    )
    project.topic(document)
    specs, problems = check_topics(project.config)
    assert problems == []
    assert specs[0].event_time == "$$event-time"
    assert specs[0].columns(project.config)["$$event-time"] == "timestamptz"
    assert TopicSpec.model_validate(specs[0].model_dump(mode="json", by_alias=True)) == specs[0]
