"""Plain JSON that others published: the spec that is written of it, and every value of the table.
``data/plainjson`` has small parts of the sets. ``TOPICBERG_TEST_JSON_LINES=<folder>`` reads the
files ``*.jsonl`` of another folder as well."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from plain_topics import plain_topic
from pyiceberg import types as T

UNKNOWN = "$$unknown-fields"
SETS = sorted((Path(__file__).parent / "data" / "plainjson").glob("*.jsonl"))
if folder := os.environ.get("TOPICBERG_TEST_JSON_LINES"):
    SETS += sorted(Path(folder).glob("*.jsonl"))


def compare(path: str, values: list[Any], found: list[Any], kind: T.IcebergType) -> None:
    """Compare a column with what the records have, by the column's type and the values alone."""
    assert len(values) == len(found), path
    pairs = [(a, b) for a, b in zip(values, found, strict=True) if a is not None]
    assert all(b is None for a, b in zip(values, found, strict=True) if a is None), path
    values, found = [a for a, _ in pairs], [b for _, b in pairs]
    match kind:
        case T.StructType():
            fields = {one.name: one.field_type for one in kind.fields}
            lost = {name for value in values for name in value} - fields.keys()
            assert not lost, f"{path}: no column has {lost}"
            for name, inner in fields.items():
                of_values = [value.get(name) for value in values]
                compare(f"{path}.{name}", of_values, [one[name] for one in found], inner)
        case T.ListType():
            for value, one in pairs:
                compare(f"{path}[]", value, one, kind.element_type)
        case T.MapType():
            for value, one in pairs:
                assert value.keys() == dict(one).keys(), path
                inside = [dict(one)[name] for name in value]
                compare(f"{path}{{}}", [*value.values()], inside, kind.value_type)
        case T.StringType() if all(isinstance(value, str) for value in values):
            # A string, or the JSON text of one.
            same = [value == one or value == _json(one) for value, one in pairs]
            assert all(same), path
        case T.StringType():
            assert [_json(one) for one in found] == values, path
        case T.DoubleType():
            assert [float(value) for value in values] == found, path
            assert all(int(one) == value for value, one in pairs if isinstance(value, int)), path
        case T.TimestamptzType():
            times = [datetime.fromisoformat(value.upper()) for value in values]
            assert [one.astimezone(UTC) for one in times] == found, path
        case _:
            types: dict[type[T.IcebergType], type] = {T.LongType: int, T.BooleanType: bool}
            assert {type(value) for value in values} <= {types[type(kind)]}, path
            assert values == found, path


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError:
        return None


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_topic_of_published_json_has_every_value(tmp_path: Path, path: Path) -> None:
    records = path.read_bytes().splitlines()
    topic = plain_topic(tmp_path, records)
    assert len(topic.rows) + len(topic.rejected) == len(records)
    assert topic.rejected == {}
    values = [json.loads(record, parse_float=Decimal) for record in records]
    for value, row in zip(values, topic.rows, strict=True):
        if (others := row.get(UNKNOWN)) is not None:  # of names that no column can have
            for name, one in _json(others).items():
                assert value.pop(name) == one
    columns = [one for one in topic.fields if one.name != UNKNOWN]
    compare(path.stem, values, topic.rows, T.StructType(*columns))
    names = [one.name for one in topic.fields]
    reference = [row and {name: _plain(row[name]) for name in names} for row in topic.reference]
    assert reference == [{name: _plain(row[name]) for name in names} for row in topic.rows]


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_topic_of_a_sample_has_or_skips_every_other_record(tmp_path: Path, path: Path) -> None:
    """Nothing of a row's record is lost; a record is skipped only if it does not fit the schema."""
    records = path.read_bytes().splitlines()
    topic = plain_topic(tmp_path, records, records[::3])
    assert len(topic.rows) + len(topic.rejected) == len(records)
    schema = json.loads((tmp_path / "schemas" / "readings.json").read_text())
    validator = Draft7Validator(schema)
    kept = []
    for number, record in enumerate(records):
        value = json.loads(record, parse_float=Decimal)
        if number not in topic.rejected:
            kept.append(value)
            continue
        reason = topic.rejected[number]
        if "date-time" not in reason and " exceeds " not in reason:
            assert not validator.is_valid(json.loads(record)), reason
    others = [row.get(UNKNOWN) for row in topic.rows]
    columns = T.StructType(*(one for one in topic.fields if one.name != UNKNOWN))
    known = [
        value if rest is None else without(value, _json(rest), columns)
        for value, rest in zip(kept, others, strict=True)
    ]
    compare(path.stem, known, topic.rows, columns)


def without(value: Any, rest: Any, kind: T.IcebergType) -> Any:
    """Return a value without what no column has.

    :param rest: that, at its place in the value
    """
    match kind:
        case T.StructType():
            columns = {one.name: one.field_type for one in kind.fields}
        case T.MapType():
            columns = dict.fromkeys(value, kind.value_type)
        case T.ListType():
            assert len(rest) == len(value)
            pairs = zip(value, rest, strict=True)
            return [a if b is None else without(a, b, kind.element_type) for a, b in pairs]
        case _:
            raise AssertionError(kind)
    found = {}
    for name, one in value.items():
        if name not in rest:
            found[name] = one
        elif name in columns:
            found[name] = without(one, rest[name], columns[name])
        else:
            assert one == rest[name], name
    assert rest.keys() <= value.keys()
    return found


def _plain(value: Any) -> Any:
    """Return a value with the pairs of maps, which Arrow has as tuples, as dictionaries."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()} or []
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {name: _plain(one) for name, one in value}
        return [_plain(one) for one in value]
    return value
