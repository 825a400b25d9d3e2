"""What a record says of its schema, in a prefix or in a header."""

from __future__ import annotations

import io
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from confluent_kafka.schema_registry import (
    dual_schema_id_deserializer,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext
from header_framing import NAMES, fetched, guid_of
from hypothesis import given
from hypothesis import strategies as st

from topicberg.formats import framing
from topicberg.formats.columnar.framing import MAX_DIFFERENT, in_wire_format
from topicberg.formats.framing import Framed, RecordFraming, wire_prefix
from topicberg.kafka.records import Records

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
SIDES = st.sampled_from(["key", "value"])
KINDS: Any = st.sampled_from(["AVRO", "JSON", "PROTOBUF"])
INDEXES = st.lists(st.integers(0, 2**20), min_size=1, max_size=5)


def wire_of(side: str, kind: Any, raw: bytes, headers: Any) -> tuple[Any, bytes] | str:
    """The schema, and the payload that formats read."""
    found = framing.framed(side, raw, framing.header_of(side, headers))
    if isinstance(found, str):
        return found
    payload = framing.payload(side, found, kind)
    return payload if isinstance(payload, str) else (found.schema, payload)


@given(SIDES, KINDS, st.binary(max_size=20), INDEXES, st.booleans(), st.integers(0, 2**32 - 1))
def test_framing_of_confluents_serializers_is_what_their_deserializer_reads(
    side: Any, kind: Any, payload: bytes, indexes: list[int], by_header: bool, number: int
) -> None:
    schema = SchemaId(kind, number, str(GUID), indexes if kind == "PROTOBUF" else None)
    context = SerializationContext("t", MessageField(side), [("trace", b"1")])
    serialize = header_schema_id_serializer if by_header else prefix_schema_id_serializer
    raw, read = serialize(payload, context, schema), SchemaId(kind)
    assert dual_schema_id_deserializer(raw, context, read).read() == payload

    written = b"".join(_zigzag(one) for one in (len(indexes), *indexes))
    if kind != "PROTOBUF":
        written = b""
    elif indexes == [0]:
        written = b"\0"
    found = wire_of(side, kind, raw, context.headers)
    assert found == (read.guid if by_header else number, written + payload)


def _zigzag(number: int) -> bytes:
    buffer = io.BytesIO()
    SchemaId._write_varint(buffer, number)
    return buffer.getvalue()


@pytest.mark.parametrize("side", ["key", "value"])
def test_header_with_an_id_names_it_and_leaves_the_payload_whole(side: str) -> None:
    raw, header = bytes.fromhex("00000000af0e0e"), wire_prefix(176)
    assert wire_of(side, "AVRO", raw, [(NAMES[side], header)]) == (176, raw)
    assert wire_of(side, "AVRO", raw, []) == (175, b"\x0e\x0e")
    other = NAMES["key" if side == "value" else "value"]
    assert wire_of(side, "AVRO", raw, [(other, header)]) == (175, b"\x0e\x0e")


def test_last_of_repeated_headers_counts_also_without_a_value() -> None:
    name, raw = NAMES["value"], wire_prefix(7) + b"x"
    assert framing.header_of("value", [(name, b"a"), ("x", b"c"), (name, b"b")]) == b"b"
    assert wire_of("value", "AVRO", raw, [(name, b"a"), (name, None)]) == (7, b"x")


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"", "it is empty"),
        (b"\0\0\0\0", "4 bytes that begin with 00 00 00 00"),
        (b"\x01" + bytes(15), "16 bytes that begin with 01 00 00 00 00"),
        (b"\x02" + bytes(16), "17 bytes that begin with 02 00 00 00 00"),
        (b'{"id": 7}', "9 bytes that begin with 7b 22 69 64 22"),
    ],
)
def test_header_that_names_no_schema_is_the_reason(header: bytes, says: str) -> None:
    for side, name in NAMES.items():
        reason = wire_of(side, "AVRO", wire_prefix(7) + b"x", [(name, header)])
        assert isinstance(reason, str)
        assert reason.startswith(f"the {side}'s header {name} is neither 0 and a schema id")
        assert reason.endswith(says)


@pytest.mark.parametrize(
    ("kind", "rest", "says"),
    [
        ("AVRO", b"\0", "has the bytes 00 after the schema, of type AVRO"),
        ("PROTOBUF", b"", "has nothing after the schema, instead of all message indexes"),
        ("PROTOBUF", b"\x04\x02", "has the bytes 04 02 after the schema, instead of all"),
        ("PROTOBUF", b"\x02\x02\x08", "has the bytes 02 02 08 after the schema"),
        ("PROTOBUF", b"\x02\x82", "has the bytes 02 82 after the schema"),
    ],
)
def test_header_with_other_bytes_after_the_schema_is_the_reason(
    kind: Any, rest: bytes, says: str
) -> None:
    reason = wire_of("value", kind, b"\x02\x02", [(NAMES["value"], wire_prefix(7) + rest)])
    assert isinstance(reason, str)
    assert says in reason


HEADERS = st.one_of(
    st.none(),
    st.binary(max_size=24),
    st.builds(lambda n, rest: wire_prefix(n) + rest, st.integers(0, 3), st.binary(max_size=3)),
    st.builds(
        lambda n, rest: b"\x01" + guid_of(n).bytes + rest,
        st.integers(0, 3),
        st.sampled_from([b"", b"\0", b"\x02\x04", b"\x04\0\x82\x01", b"\x04\0"]),
    ),
)
RECORD = st.tuples(
    st.one_of(st.none(), st.binary(max_size=12)),
    st.lists(
        st.tuples(st.sampled_from([*NAMES.values(), "x" * 17, "y" * 15, "trace"]), HEADERS),
        max_size=4,
    ),
)


def arrays_of(records: Records) -> tuple[Any, Any, Any]:
    count = records.count
    return records.values, records.value_offsets[: count + 1], records.has_value[:count]


@given(SIDES, KINDS, st.lists(RECORD, min_size=1, max_size=8))
def test_arrays_are_framed_like_single_records(side: str, kind: Any, given: Any) -> None:
    known = RecordFraming(side, kind, {guid_of(number): number for number in range(1, 3)})
    raws = [raw for raw, _ in given]
    records = fetched([(raw, raw) for raw in raws], [headers for _, headers in given])
    data, offsets = in_wire_format(known, records.header_arrays(), *arrays_of(records))
    for number, (raw, headers) in enumerate(given):
        found = data[offsets[number] : offsets[number + 1]].tobytes()
        header = framing.header_of(side, headers)
        if raw is None or header is None:
            assert found == (raw or b"")
            continue
        single = wire_of(side, kind, raw, headers)
        if isinstance(single, str):
            assert found == b""
        else:
            schema, payload = single
            ids = {guid_of(number): number for number in range(1, 3)}
            number_of = schema if isinstance(schema, int) else ids.get(schema)
            assert found == (b"" if number_of is None else wire_prefix(number_of) + payload)


def test_arrays_without_such_headers_are_not_copied() -> None:
    records = fetched([(b"k", b"v")] * 3, [[("trace", b"x"), ("z" * 17, b"y")]] * 3)
    known, arrays = RecordFraming("value", "AVRO", {}), arrays_of(records)
    data, offsets = in_wire_format(known, records.header_arrays(), *arrays)
    assert data is records.values
    assert offsets is arrays[1]


def test_arrays_of_other_records_are_refused() -> None:
    records = fetched([(None, b"v" * 1_000)], [[(NAMES["value"], wire_prefix(1))]])
    known = RecordFraming("value", "AVRO", {})
    arrays = records.values, records.value_offsets, records.has_value[:1]
    with pytest.raises(ValueError, match="4 offsets of 1 records"):
        in_wire_format(known, records.header_arrays(), *arrays)


def test_many_different_headers_do_not_take_long() -> None:
    count = 20_000
    headers: Any = [[(NAMES["value"], wire_prefix(number))] for number in range(count)]
    records = fetched([(None, b"v")] * count, headers)
    known, arrays = RecordFraming("value", "AVRO", {}), arrays_of(records)
    _, offsets = in_wire_format(known, records.header_arrays(), *arrays)
    assert np.count_nonzero(np.diff(offsets)) == MAX_DIFFERENT


def test_framed_says_where_protobufs_indexes_are() -> None:
    assert framing.framed("value", b"x", b"\x01" + GUID.bytes + b"\0") == Framed(GUID, b"x", b"\0")
