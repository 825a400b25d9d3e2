"""Keys of records whose schemas the subject of the topic does not have."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.types import LongType, NestedField

from topicberg.formats.framing import wire_prefix
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.tableflow.decode.raw_keys import KeyFraming, RawKeys
from topicberg.tableflow.layout import writers
from topicberg.tableflow.layout.message_fields import KEY, MessageField
from topicberg.tableflow.layout.upsert_key import UpsertKey
from topicberg.tableflow.layout.writers import MAX_LOOKUPS, ForeignSchemas
from topicberg.tableflow.values.key_values import KeyShape

TEXT = json.dumps({"type": "record", "name": "k", "fields": [{"name": "k", "type": "long"}]})
GUID, OTHER = UUID(int=9), UUID(int=10)


class Registry:
    """Has two schemas of other subjects, with ids 9 and 10."""

    name = "the registry"

    def __init__(self) -> None:
        self.known: dict[UUID, int] = {}

    def guids(self, _: str) -> dict[UUID, int]:
        return dict(self.known)

    def id_of(self, guid: UUID, _: str) -> int | None:
        if guid == GUID:
            self.known[guid] = 9
        return self.known.get(guid)

    def by_id(self, number: int, _: str) -> RegisteredSchema | None:
        return RegisteredSchema(number, "AVRO", TEXT) if number in (9, 10) else None


@pytest.mark.parametrize("is_in_header", [True, False])
def test_key_framing_schema_of_another_subject_is_looked_up(*, is_in_header: bool) -> None:
    schema = RegisteredSchema(1, "AVRO", TEXT)
    half = MessageField(KEY, Subject("t-key", {1: schema}, schema))
    registry: Any = Registry()
    foreign = ForeignSchemas(registry)
    fields = (NestedField(1, "k", LongType(), required=False),)
    raw_keys = RawKeys(
        half, UpsertKey("raw", "p", "o", "t", fields=fields, shapes=(KeyShape(),)), foreign
    )
    raw, header = (
        (b"\x06", b"\1" + GUID.bytes) if is_in_header else (wire_prefix(9) + b"\x06", None)
    )
    framing = KeyFraming(half, foreign)
    held = framing.held(raw, header)
    assert held == wire_prefix(9) + b"\x06"
    text, own = raw_keys.texts(pa.array([held, wire_prefix(1) + b"\x06"], pa.binary())).to_pylist()
    assert text == own is not None
    assert framing.held(b"\x06", b"\1" + OTHER.bytes) is None
    assert framing.held(b"", None) is None
    assert framing.unknown == {OTHER: "which the registry does not have"}


def test_key_framing_more_unknown_schemas_than_a_batch_may_look_up_finds_the_next_one() -> None:
    schema = RegisteredSchema(1, "AVRO", TEXT)
    half = MessageField(KEY, Subject("t-key", {1: schema}, schema))
    registry: Any = Registry()
    framing = KeyFraming(half, ForeignSchemas(registry))
    for number in range(100, 100 + MAX_LOOKUPS):
        framing.held(wire_prefix(number), None)
    framing.held(wire_prefix(9), None)
    assert len(framing.unknown) == MAX_LOOKUPS
    assert 9 not in framing.unknown


@pytest.mark.parametrize("header", [None, b"\1" + GUID.bytes])
def test_key_framing_schema_that_others_displaced_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch, header: bytes | None
) -> None:
    monkeypatch.setattr(writers, "MAX_SCHEMAS", 1)
    schema = RegisteredSchema(1, "AVRO", TEXT)
    half = MessageField(KEY, Subject("t-key", {1: schema}, schema))
    registry: Any = Registry()
    foreign = ForeignSchemas(registry)
    framing = KeyFraming(half, foreign)
    raw = b"\x06" if header else wire_prefix(9) + b"\x06"
    for _ in range(2):
        framing.held(wire_prefix(10) + b"\x06", None)
        assert [*foreign.schemas] == [10]
        assert framing.held(raw, header) == wire_prefix(9) + b"\x06"
        assert [*foreign.schemas] == [9]
    assert not framing.unknown


@pytest.mark.parametrize("header", [None, b"\1" + GUID.bytes])
def test_raw_keys_schema_that_a_framing_looked_up_in_the_meantime_is_used(
    header: bytes | None,
) -> None:
    schema = RegisteredSchema(1, "AVRO", TEXT)
    half = MessageField(KEY, Subject("t-key", {1: schema}, schema))
    registry: Any = Registry()
    foreign = ForeignSchemas(registry)
    fields = (NestedField(1, "k", LongType(), required=False),)
    key = UpsertKey("raw", "p", "o", "t", fields=fields, shapes=(KeyShape(),))
    framing, raw_keys = KeyFraming(half, foreign), RawKeys(half, key, foreign)
    (own,) = raw_keys.texts(pa.array([wire_prefix(1) + b"\x06"], pa.binary())).to_pylist()
    held = framing.held(b"\x06" if header else wire_prefix(9) + b"\x06", header)
    assert raw_keys.texts(pa.array([held], pa.binary())).to_pylist() == [own]
