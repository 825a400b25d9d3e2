"""Stored values of records as `topicberg peek` shows them."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from memory_kafka import MemoryKafka, topic_of
from specs import Project, minimal

from topicberg.formats import avro
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.subjects import RegisteredSchema
from topicberg.peek import _decoded, _how_to_find

if TYPE_CHECKING:
    pass

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
FIELDS: dict[str, tuple[Any, Any, Any]] = {
    "i": ("long", 5, 5),
    "p": (DECIMAL, b"\x01\x00", "2.56"),
    "d": ({"type": "int", "logicalType": "date"}, 1, "1970-01-02"),
    "t": (
        {"type": "long", "logicalType": "timestamp-millis"},
        1,
        "1970-01-01T00:00:00.001000+00:00",
    ),
    "l": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        -1,
        "1969-12-31T23:59:59.999999",
    ),
    "n": ("double", float("nan"), "nan"),
    "b": ("bytes", b"\xff", "0xff"),
    "m": ({"type": "map", "values": DECIMAL}, {"k": b"\x05"}, {"k": "0.05"}),
    "a": ({"type": "array", "items": ["null", "string"]}, [None, "x"], [None, "x"]),
    "u": (["int", "string"], "x", {"member0": None, "member1": "x"}),
}


def test_peek_avro_shows_stored_values() -> None:
    fields = [{"name": name, "type": kind} for name, (kind, _, _) in FIELDS.items()]
    schema: Any = {"type": "record", "name": "R", "fields": fields}
    writer, buffer = RegisteredSchema(1, "AVRO", json.dumps(schema)), io.BytesIO()
    plain = json.loads(json.dumps(schema).replace("logicalType", "ignored"))
    values = {name: value for name, (_, value, _) in FIELDS.items()}
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(plain), values)
    pairing = ResolvedSchema(writer, writer, avro.fields("s", writer, itertools.count(1)))
    _, shown = _decoded(pairing, buffer.getvalue())
    assert shown == {name: expected for name, (_, _, expected) in FIELDS.items()}


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("trades", "run `topicberg tableflow enable trades`: the engine then creates it"),
        ("theirs", "create it, or ask its owner: its spec says `external`"),
        ("order", "write orders, if you mean that topic"),
        ("qqqq", "check the name of the topic"),
    ],
)
def test_peek_of_a_missing_topic_says_who_creates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, expected: str
) -> None:
    project = Project(tmp_path)
    project.topic(minimal())
    project.topic(minimal(name="theirs", external=True, schema={"format": "none"}))
    broker = MemoryKafka({"orders": topic_of(), "clicks": topic_of(3)}).serve(monkeypatch)
    found = _how_to_find(topic, broker.endpoints, project.config)
    assert found.startswith(expected)
    assert "datagen" not in found
