"""What is wrong with a malformed Avro record, and which columns a writer fills."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pytest
import reasons
from decoders import Decoders
from growth import ratio
from numpy.typing import NDArray
from pyiceberg.types import NestedField

from topicberg.errors import TableflowError
from topicberg.formats import avro
from topicberg.formats.avro.schema import Type
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.decoding import decode
from topicberg.formats.columnar.program import ProgramCode, Programs, Shape
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.framing import wire_prefix
from topicberg.formats.subjects import RegisteredSchema

Json = dict[str, Any]
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
DAY = {"type": "int", "logicalType": "date"}
MOMENT = {"type": "long", "logicalType": "timestamp-millis"}


def record(*fields: Json, name: str = "shop.Order") -> Json:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> Json:
    return {"name": name, "type": kind, **more}


def registered(schema: Any, number: int = 1) -> RegisteredSchema:
    return RegisteredSchema(number, "AVRO", json.dumps(schema))


def columns(schema: Json) -> list[NestedField]:
    return avro.fields("s", registered(schema), itertools.count(1))


def pairing(writer: Json, newest: Json) -> ResolvedSchema:
    return ResolvedSchema(registered(writer), registered(newest, 2), columns(newest))


def encoded(schema: Json, value: Json) -> bytes:
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return buffer.getvalue()


def explain(payload: bytes, pair: ResolvedSchema) -> str | None:
    """Why a record is malformed; None: it is not. The compiled decoder agrees."""
    found = reasons.reason(avro, payload, pair)
    assert (found is None) == (Decoders(avro, pair).decoded([payload]) != [None])
    return found


def reason(kind: Any, payload: bytes, latest: Any = None) -> str | None:
    """Why a record with the only field f is malformed."""
    writer = record(field("f", kind))
    return explain(payload, pairing(writer, record(field("f", latest)) if latest else writer))


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        (PRICE, b"\x06\x01\xe2\x40", "field f (decimal(4,2)): value 1234.56 exceeds the precision"),
        (PRICE, b"\x00", "field f (decimal(4,2)): a decimal has at least one byte"),
        ("int", b"\x80\x80\x80\x80\x40", "field f (int): value 8589934592 is out of range"),
        ("boolean", b"\x05", "field f (boolean): value 5 is neither 0 nor 1"),
        (DAY, b"\xfe\xff\xff\xff\x0f", "field f (date): value 2147483647 is not a day of"),
        (MOMENT, b"\xfe" + b"\xff" * 8 + b"\x01", "(timestamp-millis) is not of the years 1 to 99"),
        ("string", b"\x04\xc3\x28", "field f (string): value b'\\xc3(' is not UTF-8 at its byte 0"),
        ("string", b"\x0aab", "5 bytes expected at byte 1, but the record ends at byte 3"),
        ("double", b"\x01", "field f (double): 8 bytes expected at byte 0"),
        ("long", b"\xff" * 10, "field f (long): the bytes up to byte 10 are not a number"),
        ("long", b"\x02\x04", "the record ends at byte 1, but there are 2 bytes"),
        (["null", "int"], b"\x06", "field f (union): there is no branch 3, the union has 2"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            b"\x04",
            "field f (string): there is no symbol 2, the enum has 1",
        ),
        (
            {"type": "array", "items": record(field("n", "int"), name="I")},
            b"\x04\x02\x80\x80\x80\x80\x40\x00",
            "field f[1].n (int): value 8589934592",
        ),
        ({"type": "array", "items": "long"}, b"\xfe\x07", "field f (list): 511 items expected"),
        (
            {"type": "map", "values": "string"},
            b"\x02\x02k\x02\xff\x00",
            "field f[k] (string): value b'\\xff' is not UTF-8",
        ),
        (
            {"type": "map", "values": "int"},
            b"\x02\x02\xff\x02\x00",
            "field f (key of a map): value",
        ),
    ],
)
def test_reason_names_field_type_and_value(kind: Any, payload: bytes, expected: str) -> None:
    assert expected in str(reason(kind, payload))


def test_reason_of_a_type_that_does_not_fit_its_column() -> None:
    assert reason("string", b"\x02a", "long") == (
        "field f (long): a value of the type string does not fit"
    )
    union = ["null", "int", "string"]
    assert "a value of the type string does not fit" in str(reason(union, b"\x04\x02a", "long"))
    assert reason(union, b"\x02\x02", "long") is None


def test_reason_of_a_changed_unit_is_that_it_does_not_fit() -> None:
    """The number would be wrong by a factor of a thousand."""
    millis = {"type": "int", "logicalType": "time-millis"}
    micros = {"type": "long", "logicalType": "time-micros"}
    assert "time-millis does not fit" in str(reason(millis, b"\x02", micros))


def test_reason_skips_fields_without_a_column() -> None:
    """They may even be recursive, which no program can be."""
    node = {"type": "record", "name": "N", "fields": [field("next", ["null", "N"])]}
    writer, newest = record(field("old", node), field("id", "int")), record(field("id", "int"))
    payload = encoded(writer, {"old": {"next": {"next": None}}, "id": 1})
    pair = pairing(writer, newest)
    assert avro.record_decoder(pair)(payload) == {"id": 1}
    found = reasons.reason(avro, payload[:-1], pair)
    assert str(found).startswith("field id (int): 1 byte expected at byte 2")


@pytest.mark.parametrize("precision", [28, 35, 38])
def test_the_bound_of_a_decimal_has_all_its_digits(precision: int) -> None:
    """Python's default context has 28 of them."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}
    for sign in (1, -1):
        most = sign * (10**precision - 1)
        assert reason(kind, b"\x20" + most.to_bytes(16, "big", signed=True)) is None
        beyond = (most + sign).to_bytes(16, "big", signed=True)
        assert "exceeds the precision" in str(reason(kind, b"\x20" + beyond))


def test_identity_is_the_full_name_of_a_record() -> None:
    assert avro.identity(registered(record())) == "shop.Order"
    assert avro.identity(registered({**record(name="Order"), "namespace": "shop"})) == "shop.Order"
    assert avro.identity(registered("string")) is None
    assert avro.identity(registered([record()])) is None


def test_written_counts_renamed_fields_under_the_latest_name() -> None:
    writer = record(field("a", "int"), field("b", "int"), field("dropped", "int"))
    latest = record(field("c", "int", aliases=["b"]), field("a", "int"), field("new", "int"))
    assert avro.written(registered(writer), registered(latest)) == {"a", "c", "dropped"}


def test_a_decimal_that_its_fixed_cannot_hold_is_refused() -> None:
    kind = {"type": "fixed", "name": "D", "size": 2, "logicalType": "decimal", "precision": 9}
    with pytest.raises(TableflowError, match="a precision from 1 to 4"):
        columns(record(field("d", kind)))


def test_union_without_a_column_is_read_in_a_time_of_its_length() -> None:
    """Whatever the number of its branches is."""

    def explaining(branches: int) -> Callable[[], None]:
        union = [record(field("a", "int"), name=f"I{number}") for number in range(branches)]
        writer = record(field("x", {"type": "array", "items": union}), field("a", "string"))
        values = {"x": [("shop.I0", {"a": 0})] * 2_000, "a": ""}
        payload = encoded(writer, values)[:-1] + b"\x02\xff"
        pair = pairing(writer, record(field("a", "string")))

        def explained() -> None:
            assert str(reasons.reason(avro, payload, pair)).startswith("field a (string)")

        return explained

    assert ratio(explaining(200), explaining(2)) < 5


def test_long_type_is_shortened_in_the_reason() -> None:
    union = [{"type": "fixed", "name": f"{'F' * 1_000}{number}", "size": 1} for number in range(50)]
    found = reason({"type": "array", "items": union}, b"\x02\x00\x00\x00", latest="int")
    assert str(found).startswith("field f (int): a value of the type array does not fit")
    assert len(str(found)) < 200
    assert len(str(Type("union", branches=tuple(Type("fixed", name="F" * 99) for _ in union)))) < 99


def is_covered(pair: ResolvedSchema, payload: bytes) -> bool:
    """Whether the compiled program accepts a record; the reference decoder reads the others."""
    decoders = Decoders(avro, pair)
    decoders.decoded([payload])
    return decoders.accepted[0]


PROMOTED = ["int", "long", "float", "double", MOMENT, ["null", "double"]]


@pytest.mark.parametrize("latest", PROMOTED)
def test_int_of_more_than_32_bits_has_a_reason(latest: Any) -> None:
    """Whatever its column is now."""
    pair = pairing(record(field("f", "int")), record(field("f", latest)))
    for value in (0, 2**31 - 1, -(2**31)):
        payload = encoded(record(field("f", "long")), {"f": value})
        assert explain(payload, pair) is None
        assert is_covered(pair, payload)
    for value in (2**31, -(2**31) - 1, 2**40):
        payload = encoded(record(field("f", "long")), {"f": value})
        assert "out of range" in str(explain(payload, pair))
        assert not is_covered(pair, payload)


def test_number_without_a_column_is_skipped_whatever_it_is() -> None:
    writer, newest = record(field("old", "int"), field("id", "int")), record(field("id", "int"))
    for value in (0, 2**34, -(2**63)):
        payload = encoded(record(field("f", "long"), field("id", "int")), {"f": value, "id": 1})
        assert avro.record_decoder(pairing(writer, newest))(payload) == {"id": 1}
        assert is_covered(pairing(writer, newest), payload)


@pytest.mark.parametrize("latest", ["string", None])
@pytest.mark.parametrize(
    "kind", [["null", "int"], {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "long", "int"]
)
def test_number_with_needless_bytes_is_read(kind: Any, latest: Any) -> None:
    """Whatever it stands for, and also one without a column; ten bytes are the most."""
    writer = record(field("f", kind), field("g", "int"))
    pair = pairing(writer, writer if latest is None else record(field("g", "int")))
    expected = avro.record_decoder(pair)(b"\x00\x02")
    for size in (2, 5, 6, 10):
        payload = b"\x80" * (size - 1) + b"\x00" + b"\x02"
        assert avro.record_decoder(pair)(payload) == expected
    for number in (b"\x80" * 10 + b"\x00", b"\xff" * 9 + b"\x02"):
        assert "are not a number of 64 bits" in str(explain(number + b"\x02", pair))
        assert not is_covered(pair, number + b"\x02")


def test_rejected_record_keeps_no_frames() -> None:
    """Thousands of them would keep what was decoded, and the garbage collector busy."""
    writer = record(field("f", "string"))
    pair = pairing(writer, writer)
    shape, code = Shape(pair.fields), ProgramCode()
    avro.program(code, {place.name: place for place in shape.places}, pair)
    programs, buffers = Programs.of(code, [(1, 0)], "AVRO"), Buffers(shape, 8, 1024)
    payloads = [b"\x02a", b"\x04a", b"\x02\xff"]
    records = [wire_prefix(1) + payload for payload in payloads]
    data = np.frombuffer(b"".join(records), np.uint8).copy()
    offsets: NDArray[np.int64] = np.cumsum([0, *map(len, records)], dtype=np.int64)
    decoder = avro.record_decoder(pair)
    done = decode(
        programs,
        buffers,
        data,
        offsets,
        np.ones(3, np.uint8),
        lambda number: decoder(payloads[number]),
    )
    assert [one.record for one in done.rejected] == [1, 2]
    for one in done.rejected:
        assert one.reason.__traceback__ is None
        assert one.reason.__context__ is None
