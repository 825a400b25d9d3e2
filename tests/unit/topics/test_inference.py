"""Schemas that are inferred from plain JSON, and the rows that the sampled records become."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_topics import no_glue
from plans import plan_of, rows_of
from pyiceberg.catalog.memory import InMemoryCatalog
from specs import Project

from topicberg.errors import SpecError
from topicberg.tableflow.layout.layout import read_layout, table_schema
from topicberg.topics import TopicSpec, load_topic
from topicberg.topics.discovery import FoundTopic
from topicberg.topics.inference import infer
from topicberg.topics.new import new_topic_from_kafka

NAMES = st.sampled_from(["a", "b", "c", "größe", "x y"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-9, 9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)
RECORDS = st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=6)


def expected(value: Any, schema: dict[str, Any]) -> Any:
    """Return what a column has of a value, by the schema alone."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if value is None:
        return None
    if kind is None:
        return ("text", value)
    if "object" in kinds and "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return {name: expected(one, inner) for name, one in value.items()}
    if "object" in kinds:
        inner = schema["properties"]
        return {name: expected(value.get(name), inner[name]) for name in inner}
    if "array" in kinds:
        return [expected(one, schema["items"]) for one in value]
    if schema.get("format") == "date-time":
        return datetime.fromisoformat(value.upper())
    return float(value) if "number" in kinds else value


def is_equal(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return isinstance(found, str) and json.loads(found) == wanted[1]
    if isinstance(wanted, dict):
        pairs = dict(found)
        return pairs.keys() == wanted.keys() and all(
            is_equal(pairs[name], one) for name, one in wanted.items()
        )
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(is_equal, found, wanted))
    return bool(type(found) is type(wanted) and found == wanted)


@settings(max_examples=60)
@given(RECORDS)
def test_sampled_records_become_rows_with_their_values(records: list[dict[str, Any]]) -> None:
    if not any(records):
        return
    raws = [json.dumps(one, ensure_ascii=False).encode() for one in records]
    found = infer(raws, "readings")
    with TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.schema("readings.json", found.text)
        own = {"format": "json", "file": "readings.json", "framing": "none"}
        spec = TopicSpec.model_validate(
            {
                "name": "readings",
                "pipeline": "shop",
                "schema": {**own, "date_times": "timestamp"},
                "key": {"format": "bytes"},
            }
        )
        layout = read_layout(spec, cast("Any", None), project.config)
        catalog = InMemoryCatalog("test")
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", table_schema(spec, layout))
        rows, rejected = rows_of(plan_of(spec, layout, table)[0], [(None, raw) for raw in raws])
    assert rejected == {}
    for record, row in zip(records, rows, strict=True):
        for name, schema in found.schema["properties"].items():
            assert is_equal(row[name], expected(record.get(name), schema)), (name, row[name])


@pytest.mark.parametrize(
    ("texts", "schema", "note"),
    [
        (["1", "2.5"], {"type": "number"}, ""),
        (["1", f"{2**63}"], {}, "v (integers of more than 64 bits)"),
        (["0.5", f"{2**53 + 1}"], {}, "v (numbers that a double rounds)"),
        (["0.1234567890123456789"], {}, "v (numbers that a double rounds)"),
        (["90071992547409.93"], {}, "v (numbers that a double rounds)"),
        (["1.5", f"{2**53 + 1}.0"], {}, "v (numbers that a double rounds)"),
        (["1e-400"], {}, "v (numbers that a double rounds)"),
        (["0.10000000000000001", "5e-324", "-0.0"], {"type": "number"}, ""),
        (["1e400"], {}, "v (numbers that no double holds)"),
        (["1", "null"], {"type": ["integer", "null"]}, "missing or null in some of them: v"),
        (["null"], {}, "v (always null)"),
        (['"a"', "1"], {}, "v (integer or string)"),
        (['"2026-01-31T12:00:00Z"'], {"type": "string", "format": "date-time"}, "times, by"),
        (['"2026-01-31T12:00:00Z"', '"soon"'], {"type": "string"}, ""),
        (['"2026-01-31T12:00:00.123456789Z"'], {"type": "string"}, ""),
        (["[]"], {}, "v (arrays without items)"),
        (["[1, null]"], {"type": "array", "items": {"type": ["integer", "null"]}}, ""),
        (["{}"], {}, "v (objects without fields)"),
    ],
)
def test_field_has_the_type_that_all_records_have(
    texts: list[str], schema: dict[str, Any], note: str
) -> None:
    found = infer([f'{{"v": {text}}}'.encode() for text in texts], "t")
    assert found.schema["properties"]["v"] == schema
    assert note in "\n".join(found.notes())


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_number_has_the_type_only_if_its_digits_come_back(value: Decimal) -> None:
    text = f"{value:E}"
    field = infer([f'{{"v": {text}}}'.encode()], "t").schema["properties"]["v"]
    digits = max(1, len(value.as_tuple().digits))
    assert not field or Decimal(f"{float(text):.{digits}g}") == value


def test_object_with_names_of_its_own_in_each_record_is_a_map() -> None:
    found = infer([json.dumps({"v": {f"device-{n}": n}}).encode() for n in range(30)], "t")
    assert found.schema["properties"]["v"] == {
        "type": "object",
        "additionalProperties": {"type": "integer"},
    }
    assert found.maps == ["v"]


@pytest.mark.parametrize(
    ("values", "time"),
    [
        (["2026-01-31 12:00:00+0100"], ("iso", date(2026, 1, 31))),
        (["2026-01-31T12:00:00.123456789Z"], ("iso", date(2026, 1, 31))),
        (["2026-01-31T12:00:00Z", "2013-01-01T00:00:00Z"], ("time", date(2013, 1, 1))),
        (["2026-01-31T12:00:00"], None),
        (["2999-01-31T12:00:00Z"], None),
        ([1_767_225_600.25], ("seconds", date(2026, 1, 1))),
        (["1767225600.000200", "1767225601"], ("seconds", date(2026, 1, 1))),
        ([1_767_225_600_000], ("milliseconds", date(2026, 1, 1))),
        ([1_767_225_600_000_000_000], ("nanoseconds", date(2026, 1, 1))),
        ([1_767_225_600, 1_767_225_600_000], None),
        ([3_000_000_000], None),
        ([True], None),
        ([7], None),
    ],
)
def test_event_time_is_what_every_record_has(values: list[Any], time: Any) -> None:
    found = infer([json.dumps({"ts": one}).encode() for one in values], "t")
    assert [(one.format, one.first) for one in found.times] == ([time] if time else [])


@pytest.mark.parametrize(("first", "unit"), [(date(2013, 5, 1), "day"), (date(1960, 5, 5), "year")])
def test_old_event_times_have_partitions_that_all_readers_read(
    tmp_path: Path, first: date, unit: str
) -> None:
    document, _ = new(Project(tmp_path), [{"at": f"{first}T10:00:00Z"}])
    assert document["table"] == {"partitioning": [f"{unit}($$event-time)"]}
    assert document["derived_partitions"] == {"granularity": "daily", "start": first}


def test_records_that_the_engine_cannot_read_are_not_counted() -> None:
    good = '{"v": 1}'
    raws = [good.encode(), good.encode("utf-16"), b"\xef\xbb\xbf" + good.encode(), b'{"v": NaN}']
    found = infer(raws, "t")
    assert (found.records, found.others) == (1, 3)


def test_names_that_no_column_can_have_are_kept_as_unknown_fields(tmp_path: Path) -> None:
    value = {"id": 1, "ID": 2, "": 3, "_file": "f", "o": {"a": 1, "A": 2, "_file": "f"}}
    document, notes = new(Project(tmp_path), [value])
    assert document["schema"]["unknown_fields"] == "keep"
    assert "as no column can have their names: ID, , _file\n" in notes
    assert "o (objects with names that no columns can have)" in notes
    with pytest.raises(SpecError, match="field that can be a column"):
        new(Project(tmp_path / "other"), [{"": 1}])


def test_field_key_of_the_values_is_told(tmp_path: Path) -> None:
    _, notes = new(Project(tmp_path), [{"key": 1}])
    assert "the values have a field key, so no column has Kafka's keys" in notes


def new(project: Project, values: list[Any], key: bytes | None = b"k", **has: Any) -> Any:
    read = [(key, one if isinstance(one, bytes) else json.dumps(one).encode()) for one in values]
    of_kafka = FoundTopic(partitions=3, **has)
    paths, notes = new_topic_from_kafka(
        "readings", read, "shop", project.config, of_kafka, no_glue, is_enabled=False
    )
    return yaml.safe_load(paths[0].read_text()), "\n".join(notes)


def test_new_topic_of_plain_json_is_a_right_spec(tmp_path: Path) -> None:
    project = Project(tmp_path)
    values = [{"id": n, "createdAt": "2026-02-01T00:00:00Z", "ms": 5} for n in range(3)]
    document, notes = new(project, [*values, b"no"])
    assert document["schema"]["framing"] == "none"
    assert document["key"] == {"format": "string"}
    assert document["event_time"] == {"field": "createdAt", "format": "time"}
    assert document["table"] == {"partitioning": ["hour($$event-time)"]}
    assert document["derived_partitions"]["start"] == date(2026, 2, 1)
    assert document["tableflow"] == {"enabled": False}
    assert "the types of 3 records" in notes
    assert "not JSON objects, and so malformed later: 1 record of the sample" in notes
    spec = load_topic("readings", project.config)
    assert spec.columns(project.config)["createdAt"] == "timestamptz"


@pytest.mark.parametrize(
    ("key", "has", "expected_key", "mode"),
    [
        (None, {}, {"format": "bytes"}, "append"),
        (b"\xff", {}, {"format": "bytes"}, "append"),
        (b"a", {"is_compacted": True}, {"format": "string"}, "upsert"),
        (
            b'{"id": 1}',
            {"is_compacted": True},
            {"format": "json", "framing": "none", "file": "readings-key.json"},
            "upsert",
        ),
    ],
)
def test_new_topic_reads_keys(
    tmp_path: Path, key: bytes | None, has: Any, expected_key: Any, mode: str
) -> None:
    document, _ = new(Project(tmp_path), [{"n": 1, "ts": 1_767_225_600_000}], key, **has)
    assert (document["key"], document["write_mode"]) == (expected_key, mode)
    assert document["event_time"] == {"field": "ts", "format": "milliseconds"}


def test_new_topic_of_other_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nor JSON objects"):
        new(Project(tmp_path), [b"\x01\x02"])


def test_infer_few_records_of_other_types_are_named_as_garbage() -> None:
    records: list[Any] = [
        {"n": number, "at": "2026-01-31T12:00:00Z", "in": {"x": [1.5]}, "ok": True}
        for number in range(2_952)
    ]
    records[100:100] = [
        *({"n": "x", "at": "soon"}, {"n": [1], "at": 5}, {}, {"n": {}, "at": "2026"}),
        {"n": "y", "in": "?", "ok": 1, "at": None},
    ]
    found = infer([json.dumps(one).encode() for one in records], "t")
    properties = found.schema["properties"]
    assert properties["n"] == {"type": ["integer", "null"]}
    assert properties["at"] == {"type": ["string", "null"], "format": "date-time"}
    assert properties["in"]["properties"]["x"]["items"] == {"type": "number"}
    assert not found.untyped
    assert [(one.name, one.format) for one in found.times] == [("at", "time")]
    notes = "\n".join(found.notes())
    assert "n (an integer in 2,952 of 2,956)" in notes
    assert "in (an object in 2,952 of 2,953)" in notes
    assert "error_handling.mode" in notes


def test_infer_types_of_many_records_differ_has_no_type() -> None:
    values = [{"n": 1}] * 90 + [{"n": "x"}] * 10
    assert infer([json.dumps(one).encode() for one in values], "t").schema["properties"]["n"] == {}


def test_infer_object_with_numbers_as_names_is_a_map() -> None:
    found = infer([b'{"m": {"1": 5}}', b'{"m": null}', b'{"m": {"7": 6, "8": 1}}'], "t")
    inner = found.schema["properties"]["m"]
    assert inner == {"type": ["object", "null"], "additionalProperties": {"type": "integer"}}


def test_new_topic_of_several_record_types_lists_them(tmp_path: Path) -> None:
    types = {1: "shop.Placed (subject shop.Placed)", 2: "shop.Paid (subject shop.Paid)"}
    read = [(None, b"\0" + number.to_bytes(4, "big") + b"x") for number in (1, 2, 1)]
    with pytest.raises(SpecError) as refused:
        new_topic_from_kafka(
            "orders",
            read,
            "shop",
            Project(tmp_path).config,
            FoundTopic(partitions=1),
            no_glue,
            is_enabled=True,
            types=types.__getitem__,
        )
    assert (
        "no subject orders-value: shop.Placed (subject shop.Placed) in 2 records, "
        "shop.Paid (subject shop.Paid) in 1 record"
    ) in refused.value.message
    assert "--from-subject" in (refused.value.hint or "")
