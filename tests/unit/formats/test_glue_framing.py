"""Records in the wire format of AWS Glue Schema Registry: a version, a compression, a payload."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any
from uuid import UUID, uuid4

import pytest
from aws_schema_registry.codec import encode
from glue_records import glue_record
from header_framing import NAMES, fetched
from hypothesis import given
from hypothesis import strategies as st

from topicberg.formats import framing
from topicberg.formats.columnar import framing as columnar
from topicberg.formats.columnar.framing import MAX_DIFFERENT, held_in_wire_format, in_wire_format
from topicberg.formats.framing import (
    RecordFraming,
    UncompressedError,
    decompressed,
    framed_by_glue,
    wire_prefix,
)
from topicberg.kafka.records import Records

KNOWN = {UUID(int=number): number for number in range(1, 4)}
VERSIONS = st.sampled_from([*KNOWN, UUID(int=9)])
SIDES = st.sampled_from(["key", "value"])
PAYLOADS = st.binary(max_size=40)


@given(SIDES, VERSIONS, PAYLOADS, st.booleans())
def test_framing_reads_what_awss_client_writes(
    side: str, version: UUID, payload: bytes, is_compressed: bool
) -> None:
    raw = encode(payload, version, compression=is_compressed)
    assert raw == glue_record(version, payload, is_compressed=is_compressed)
    record = framed_by_glue(side, raw)
    assert not isinstance(record, str)
    assert record.schema == version
    assert record.named == f"schema version {version}"
    assert framing.payload(side, record, "AVRO") == payload


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "the value is empty: it is not in the wire format of AWS Glue"),
        (b'{"id": 1}', "is JSON without a schema version: set `schema.framing: none`"),
        (wire_prefix(7) + b"x", "set `schema.framing: confluent` if all records do"),
        (b"\3\0" + bytes(15), "is not in the wire format of AWS Glue Schema Registry (3, 0 or 5"),
        (b"\4\0" + bytes(20), "is not in the wire format of AWS Glue Schema Registry (3, 0 or 5"),
        (b"\3\1" + bytes(20), "its second byte is neither 0 (not compressed) nor 5 (zlib)"),
    ],
)
def test_other_bytes_have_a_reason_without_numbers_of_the_record(raw: bytes, says: str) -> None:
    reason = framed_by_glue("value", raw)
    assert isinstance(reason, str)
    assert says in reason
    longer = framed_by_glue("value", raw + b"y" if raw[:1] in (b"\0", b"\3", b"\4") else raw)
    assert longer == reason or not isinstance(longer, str)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the payload of the value is only a part of zlib's data"),
        (b"\x00\x01\x02", "the payload of the value is not zlib's data, as its prefix says"),
        (zlib.compress(b"x" * 100)[:-2], "is only a part of zlib's data"),
        (zlib.compress(b"x" * 100) + b"y", "has other bytes after zlib's data"),
        (zlib.compress(b"x" * 100)[:-1] + b"\0", "is not zlib's data"),
    ],
)
def test_corrupt_compression_is_the_reason(body: bytes, says: str) -> None:
    record = framed_by_glue("value", b"\3\5" + uuid4().bytes + body)
    assert not isinstance(record, str)
    reason = framing.payload("value", record, "JSON")
    assert isinstance(reason, str)
    assert says in reason


def test_payload_of_the_limit_is_read_and_a_larger_one_is_not() -> None:
    assert decompressed(zlib.compress(bytes(1_000)), 1_000) == bytes(1_000)
    with pytest.raises(UncompressedError, match="has more than 0 MiB"):
        decompressed(zlib.compress(bytes(1_001)), 1_000)


def test_bomb_takes_no_more_memory_than_the_limit() -> None:
    bomb = zlib.compress(bytes(200_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(UncompressedError, match="has more than 4 MiB when it is decompressed"):
            decompressed(bomb, 4 * 2**20)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def test_confluents_framing_says_what_to_set() -> None:
    record = glue_record(uuid4(), b"x")
    expected = "the key is in the wire format of AWS Glue Schema Registry: set `key.framing: glue`"
    reason = framing.framed("key", record, None)
    assert isinstance(reason, str)
    assert reason.startswith(expected)


def damaged(raw: bytes, at: int, byte: int) -> bytes:
    at %= len(raw)
    return raw[:at] + bytes([byte]) + raw[at + 1 :]


RECORDS = st.one_of(
    st.none(),
    st.binary(max_size=24),
    st.builds(glue_record, VERSIONS, PAYLOADS),
    st.builds(lambda *one: glue_record(*one, is_compressed=True), VERSIONS, PAYLOADS),
    st.builds(
        lambda version, payload, *where: damaged(
            glue_record(version, payload, is_compressed=True), *where
        ),
        VERSIONS,
        PAYLOADS,
        st.integers(0, 60),
        st.integers(0, 255),
    ),
    st.builds(
        lambda version, payload, size: glue_record(version, payload, is_compressed=True)[:size],
        VERSIONS,
        PAYLOADS,
        st.integers(0, 30),
    ),
)


def arrays_of(records: Records) -> tuple[Any, Any, Any]:
    count = records.count
    return records.values, records.value_offsets[: count + 1], records.has_value[:count]


@given(SIDES, st.lists(RECORDS, min_size=1, max_size=12))
def test_arrays_are_framed_like_single_records(side: str, raws: list[bytes | None]) -> None:
    known = RecordFraming(side, "AVRO", KNOWN, "glue")
    records = fetched([(raw, raw) for raw in raws], [[(NAMES[side], wire_prefix(1))]] * len(raws))
    data, offsets = in_wire_format(known, records.header_arrays(), *arrays_of(records))
    held, held_offsets = held_in_wire_format(known, *arrays_of(records))
    for number, raw in enumerate(raws):
        found = data[offsets[number] : offsets[number + 1]].tobytes()
        assert held[held_offsets[number] : held_offsets[number + 1]].tobytes() == found
        record = "" if raw is None else known.framed(raw, wire_prefix(1))
        if isinstance(record, str) or record.schema not in KNOWN:
            assert found == b""
            continue
        payload, expected = framing.payload(side, record, "AVRO"), b""
        if isinstance(payload, bytes):
            assert isinstance(record.schema, UUID)
            expected = wire_prefix(KNOWN[record.schema]) + payload
        assert found == expected


def test_what_is_too_much_together_is_left_to_single_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columnar, "MAX_DECOMPRESSED", 250)
    raws = [glue_record(UUID(int=1), bytes([n]) * 100, is_compressed=True) for n in range(4)]
    raws.append(glue_record(UUID(int=2), bytes(100)))
    records = fetched([(None, raw) for raw in raws])
    known = RecordFraming("value", "AVRO", KNOWN, "glue")
    _, offsets = in_wire_format(known, None, *arrays_of(records))
    assert [*offsets[1:] - offsets[:-1]] == [105, 105, 0, 0, 105]


def test_many_different_versions_do_not_take_long() -> None:
    versions = [uuid4() for _ in range(2 * MAX_DIFFERENT)]
    records = fetched([(None, glue_record(one, b"v")) for one in versions * 50])
    numbers = {one: number for number, one in enumerate(versions)}
    known = RecordFraming("value", "AVRO", numbers, "glue")
    _, offsets = in_wire_format(known, None, *arrays_of(records))
    assert ((offsets[1:] - offsets[:-1]) > 0).sum() == 50 * MAX_DIFFERENT


def test_arrays_of_other_records_are_refused() -> None:
    records = fetched([(None, glue_record(UUID(int=1), b"v"))] * 3)
    known = RecordFraming("value", "AVRO", KNOWN, "glue")
    with pytest.raises(ValueError, match="6 offsets of 1 records"):
        in_wire_format(known, None, records.values, records.value_offsets, records.has_value[:1])
