"""Columns of records whose headers are unusual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from header_framing import NAMES, RecordHeaders
from hypothesis import given
from hypothesis import strategies as st
from memory_topic import memory_topic
from plans import plan_of, rows_of
from pyiceberg.catalog.memory import InMemoryCatalog

from topicberg.formats.columnar.framing import MAX_DIFFERENT
from topicberg.formats.framing import wire_prefix
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.iceberg.names import name_in_files
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.layout.layout import table_schema
from topicberg.tableflow.layout.message_fields import KEY, VALUE, Layout, MessageField
from topicberg.topics import TopicSpec

HEADER_VALUES = st.none() | st.binary(max_size=3)
NOT_UTF8 = b"\xff\xfe".decode(errors="surrogateescape")


def plan(
    folder: Path, write_mode: str, kind: str = "map", **versions: dict[int, list[str]]
) -> ReadPlan:
    """Return the plan of a topic whose keys and values are JSON objects of integers.

    :param kind: of the column of headers
    :param versions: the properties of each half's versions, by schema id
    """
    halves = []
    for side in (KEY, VALUE):
        schemas = {
            number: RegisteredSchema(number, "JSON", json.dumps(of_integers(names)))
            for number, names in versions[side].items()
        }
        halves.append(MessageField(side, Subject(side, schemas, list(schemas.values())[-1])))
    layout = Layout(*halves)
    fields = {
        "name": "headers",
        "pipeline": "test",
        "schema": {"format": "json", "file": "from-the-registry"},
        "key": {"format": "json"},
        "write_mode": write_mode,
        "table": {"headers": kind},
    }
    spec = TopicSpec.model_validate(fields)
    catalog = InMemoryCatalog("test", warehouse=folder.as_uri())
    catalog.create_namespace("n")
    return plan_of(spec, layout, catalog.create_table("n.t", table_schema(spec, layout)))[0]


def of_integers(names: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}}


def rows(made: ReadPlan, records: Any, headers: Any) -> list[dict[str, Any]]:
    found, rejected = rows_of(made, records, headers)
    assert not rejected
    return found


def body(**values: int) -> bytes:
    return json.dumps(values).encode()


def test_tombstone_with_a_header_whose_name_is_not_utf8_deletes(tmp_path: Path) -> None:
    made = plan(tmp_path, "upsert", key={1: ["id"]}, value={2: ["n"]})
    key = wire_prefix(1) + body(id=1)
    records = [(key, wire_prefix(2) + body(n=1)), (key, None), (key, wire_prefix(2) + body(n=3))]
    trace = [("trace", b"1")]
    found = rows(made, records, [trace, [*trace, (NOT_UTF8, b"x")], trace])
    assert [one["n"] for one in found] == [1, None, 3]
    assert [one["$$headers"] for one in found] == [[("trace", b"1")], None, [("trace", b"1")]]


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
@given(st.lists(st.lists(st.tuples(st.sampled_from(["a", "ä", ""]), HEADER_VALUES)), max_size=9))
def test_headers_of_a_list_are_all_headers_of_a_record_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    write_mode: str,
    headers: list[list[tuple[str, bytes | None]]],
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    made = plan(folder, write_mode, "list", key={1: ["id"]}, value={2: ["n"]})
    key, value = wire_prefix(1) + body(id=1), wire_prefix(2) + body(n=1)
    records: list[Any] = [(key, value)] * len(headers)
    is_wrong: list[RecordHeaders] = [[("a", b"1"), (NOT_UTF8, b"x")]]
    if write_mode == "upsert":  # a tombstone, which becomes no row
        records, headers = [*records, (key, None)], headers + is_wrong
    found = rows(made, records, headers)
    expected = [[{"key": k, "value": v} for k, v in some] or None for some in headers]
    if write_mode == "upsert":
        expected[-1] = None
    assert [one["$$headers"] for one in found] == expected


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_headers_of_a_list_are_structs_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_mode: str
) -> None:
    table = {"headers": "list"}
    topic = memory_topic(
        tmp_path, monkeypatch, schema={"format": "text"}, write_mode=write_mode, table=table
    )
    topic.produce(0, b"a", b"v0", [("x", b"1"), ("y", None), ("x", b"")])
    topic.produce(0, b"b", b"v1")
    topic.ingestor().step()
    (path,) = tmp_path.rglob("data/**/*.parquet")
    column = name_in_files("$$headers")
    found = duckdb.sql(f"SELECT {column} FROM '{path}' ORDER BY value").fetchall()
    listed = [{"key": "x", "value": b"1"}, {"key": "y", "value": None}, {"key": "x", "value": b""}]
    assert found == [(listed,), (None,)]
    scanned = {row["value"]: row["$$headers"] for row in topic.rows()}
    assert scanned == {"v0": listed, "v1": []}, "PyIceberg reads no null, as documented"


def test_field_of_key_and_value_is_the_values_with_any_number_of_headers(tmp_path: Path) -> None:
    made = plan(tmp_path, "append", key={1: ["id"]}, value={2: ["id", "more"]})
    key, value, count = wire_prefix(1) + body(id=1), body(id=2), MAX_DIFFERENT + 50
    headers: list[RecordHeaders] = [[(NAMES["value"], wire_prefix(2))]] * count
    junk: list[RecordHeaders] = [[(NAMES["value"], b"junk %d" % n)] for n in range(count)]
    values = [wire_prefix(2) + value] * count + [value] * count
    found, rejected = rows_of(made, [(key, one) for one in values], [*junk, *headers])
    assert len(rejected) == count
    assert [one["id"] for one in found] == [2] * count
