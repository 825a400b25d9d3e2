"""Records with a header whose name is not UTF-8: the Python client fails at all of its headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from memory_kafka import Log, MemoryKafka
from specs import Project, minimal

from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.kafka.records import DamagedRecordsError, Records, headers_of
from topicberg.peek import _Decoder
from topicberg.tableflow.decode.raw_keys import KeyFraming
from topicberg.tableflow.erasure import records
from topicberg.tableflow.layout.message_fields import KEY, VALUE, MessageField
from topicberg.tableflow.table import reread
from topicberg.topics import load_topic

KEY_BYTES = b"\0\0\0\0\1\2"


class Message:
    """A record as the client has it."""

    is_gone = False

    def __init__(self, offset: int, value: bytes | None = b"value", *, fails: bool = True) -> None:
        self._offset, self._value, self._fails = offset, value, fails

    def key(self) -> bytes:
        return KEY_BYTES

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        if self._fails:
            raise SystemError("a result with an exception set")
        return [("name", b"1")]

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def error(self) -> None: ...


def test_headers_of_a_name_that_is_not_utf8_are_none() -> None:
    assert headers_of(cast(Any, Message(0))) is None
    assert headers_of(cast(Any, Message(0, fails=False))) == [("name", b"1")]


def test_python_client_names_the_record_that_it_cannot_read() -> None:
    """Else the batch fails as a whole, again and again."""
    some: Any = [Message(7, fails=False), Message(8)]
    with pytest.raises(DamagedRecordsError, match="header is not UTF-8") as raised:
        Records(10, 1_000).append(some)
    assert (raised.value.partition, raised.value.offset) == (3, 8)


def test_key_of_such_a_record_is_found_for_erasure(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log({3: [cast(Any, Message(0))]}, kafka_settings={"cleanup.policy": "compact"})
    broker = MemoryKafka({"orders": log}).serve(monkeypatch)
    assert records.records_of(broker.endpoints, "orders", set).newest == {(KEY_BYTES, 3): False}


def test_key_of_such_a_record_is_read_again() -> None:
    schema = RegisteredSchema(1, "AVRO", '"long"')
    half = MessageField(KEY, Subject("orders-key", {1: schema}, schema))
    framing = KeyFraming(half, cast(Any, None))
    found = reread.records_of([cast(Any, Message(0))], framing)
    assert [(key, partition) for key, partition, *_ in found] == [(KEY_BYTES, 3)]


@pytest.mark.parametrize(
    ("write_mode", "value", "problem"),
    [
        ("append", b"value", "field $$headers: a name is not UTF-8"),
        ("append", None, "field $$headers: a name is not UTF-8"),
        ("upsert", b"value", "field $$headers: a name is not UTF-8"),
        ("upsert", None, None),
    ],
)
def test_peek_says_what_is_wrong_with_such_a_record(
    tmp_path: Path, write_mode: str, value: bytes | None, problem: str | None
) -> None:
    project = Project(tmp_path)
    document = minimal(schema={"format": "none"}, key={"format": "string"}, write_mode=write_mode)
    project.topic(document)
    decoder: Any = object.__new__(_Decoder)
    decoder._spec = load_topic(document["name"], project.config)
    decoder._halves = {"key": MessageField(KEY, None), "value": MessageField(VALUE, None)}
    decoder._texts, decoder._names_schemas = frozenset(), False
    shown = decoder.record(Message(0, value))
    assert (shown.problem, shown.headers) == (problem, {})
