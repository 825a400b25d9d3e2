"""Schemas that records begin with are registered once, and tried again when one was refused."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any, cast

import pytest
from clocks import Clock
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError
from header_framing import fetched

from topicberg.errors import TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.formats.reasons import MalformedError
from topicberg.tableflow.layout import framing
from topicberg.tableflow.layout.framing import MAX_OPENINGS, Framing
from topicberg.tableflow.layout.inline_schemas import UnknownInlineError
from topicberg.tableflow.layout.message_fields import VALUE, MessageField
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.topics import TopicSpec


def record(*names: str) -> bytes:
    own = (*names, "after", "source", "op")
    fields = [{"field": name, "type": "int32", "optional": True} for name in own]
    schema = {"type": "struct", "fields": fields, "optional": False, "name": "x.Envelope"}
    return json.dumps({"schema": schema, "payload": dict.fromkeys(names, 1)}).encode()


class Registry:
    def __init__(self) -> None:
        self.known: list[str] = []
        self.refuses = False

    def register_schema(self, _: str, schema: Schema) -> int:
        if self.refuses:
            raise SchemaRegistryError(409, 409, "incompatible")
        text = str(schema.schema_str)
        if text not in self.known:
            self.known.append(text)
        return 10 + self.known.index(text)

    def get_latest_version(self, _: str) -> None:
        if not self.known:
            raise SchemaRegistryError(404, 40401, "not found")


class Message:
    def __init__(self, value: bytes) -> None:
        self.value = lambda: value
        self.key = lambda: None
        self.timestamp = lambda: (1, 0)


class Reader:
    """The schemas of one partition's records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, values: list[bytes]) -> None:
        self.values, self.registry, self.reads = values, Registry(), 0
        spec = TopicSpec.model_validate(
            {
                "name": "changes",
                "pipeline": "test",
                "schema": {"format": "json", "file": "from-the-registry"},
                "changelog": {"format": "debezium"},
            }
        )
        self.framing = Framing(spec, cast("Any", None), cast("Any", self.registry))
        self.half = MessageField(VALUE, cast("Any", None))
        monkeypatch.setattr(framing, "messages", self.messages)
        monkeypatch.setattr(MessageField, "latest", type("Latest", (), {"schema_id": 1}))

    def messages(self, *arguments: Any) -> list[Message]:
        ((begin, end),) = arguments[2].values()
        self.reads += 1
        return [Message(value) for value in self.values[begin:end]]

    def batch(self) -> tuple[list[bytes], Rejections]:
        """Return the records in the wire format, and the others."""
        inline = self.framing.inline(self.half)
        assert inline is not None
        records, found = fetched([(None, value) for value in self.values]), list[bytes]()
        rejections = Rejections("SKIP")
        for at, value in enumerate(self.values):
            try:
                found.append(inline.wire(value))
            except MalformedError as error:
                rejections.add(records, at, error)
        return found, rejections


def test_schemas_are_looked_up_not_records(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [record("a")] * 10 + [record("a", "b")] * (MAX_OPENINGS + 100) + [record("c")]
    reader = Reader(monkeypatch, made)
    reader.framing.begin_batch()
    _, rejections = reader.batch()
    assert len(rejections.inline) == 3
    joined = Rejections.joined("SKIP", [rejections, reader.batch()[1]])
    assert reader.framing.look_up(joined.inline.values())
    assert reader.reads == 3
    found, rejections = reader.batch()
    assert not rejections.count
    assert found[-1] == wire_prefix(12) + b'{"c": 1}'


def test_refused_schema_is_tried_again(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    reader = Reader(monkeypatch, [record("a")])
    reader.registry.refuses = True
    for _ in range(2):
        rejections = reader.batch()[1]
        assert reader.framing.look_up(rejections.inline.values())  # more is known: the reason
        _, rejections = reader.batch()
        assert not rejections.inline
        assert rejections.first is not None
        assert "refuses the schema" in rejections.first[1]
        assert not reader.framing.look_up(rejections.inline.values())
        clock.now += framing.REFUSED_SECONDS + 1
    reader.registry.refuses = False
    with pytest.raises(UnknownInlineError):
        reader.framing.wire(reader.half, reader.values[0])
    assert reader.framing.look_up(reader.batch()[1].inline.values())
    found, rejections = reader.batch()
    assert found == [wire_prefix(10) + b'{"a": 1}']
    assert not rejections.count


SCHEMA_CHANGE = (
    b'{"schema":{"type":"struct","fields":[{"type":"string","field":"ddl"}]},"payload":{"ddl":"x"}}'
)
"""As Debezium and TiCDC write one."""


def test_record_without_a_change_of_a_row_is_malformed_and_registers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its schema is the newest one of the subject, and no record of the topic is read."""
    reader = Reader(monkeypatch, [record("a"), SCHEMA_CHANGE, record("a")])
    reader.framing.begin_batch()
    assert reader.framing.look_up(reader.batch()[1].inline.values())
    found, rejections = reader.batch()
    assert found == [wire_prefix(10) + b'{"a": 1}'] * 2
    assert rejections.first is not None
    assert rejections.first[1].endswith("(after, source, op): its fields are ddl")
    assert not rejections.inline
    assert len(reader.registry.known) == 1


@pytest.mark.parametrize("first", [[], [SCHEMA_CHANGE]])
def test_first_change_of_a_topic_is_learnt_from_after_it_had_none(
    monkeypatch: pytest.MonkeyPatch, first: list[bytes]
) -> None:
    reader = Reader(monkeypatch, first)
    why = pytest.raises(TableflowError, match="changes: the record is not a change of a row")
    with why if first else nullcontext():
        reader.framing.learn_from({0: 0}, {0: len(first)})
    assert not reader.registry.known
    reader.values.append(record("a"))
    reader.framing.learn_from({0: 0}, {0: len(reader.values)})
    assert len(reader.registry.known) == 1
