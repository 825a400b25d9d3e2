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
from growth import ratio
from pyiceberg.types import DecimalType, NestedField

from topicberg.errors import TableflowError
from topicberg.formats import Pairing, avro
from topicberg.formats.avro_schema import Type
from topicberg.formats.avro_values import decimal
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.decoding import decode
from topicberg.formats.columnar.program import Code, Programs, Shape
from topicberg.formats.subjects import RegisteredSchema, wire_prefix

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


def pairing(writer: Json, newest: Json) -> Pairing:
    return Pairing(registered(writer), registered(newest, 2), columns(newest))


def encoded(schema: Json, value: Json) -> bytes:
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return buffer.getvalue()


def reason(kind: Any, payload: bytes, latest: Any = None) -> str:
    writer = record(field("f", kind))
    newest = record(field("f", latest)) if latest else writer
    return avro.explain(
        payload, Pairing(registered(writer), registered(newest, 2), columns(newest))
    )


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
    assert expected in reason(kind, payload)


def test_reason_of_a_type_that_does_not_fit_its_column() -> None:
    assert reason("string", b"\x02a", "long") == (
        "field f (long): a value of the type string does not fit"
    )
    union = ["null", "int", "string"]
    assert "a value of the type string does not fit" in reason(union, b"\x04\x02a", "long")
    assert reason(union, b"\x02\x02", "long") == "the record does not fit schema 1"


def test_reason_of_a_changed_unit_is_that_it_does_not_fit() -> None:
    """The number would be wrong by a factor of a thousand."""
    millis = {"type": "int", "logicalType": "time-millis"}
    micros = {"type": "long", "logicalType": "time-micros"}
    assert "time-millis does not fit" in reason(millis, b"\x02", micros)


def test_reason_skips_fields_without_a_column() -> None:
    """They may even be recursive."""
    node = {"type": "record", "name": "N", "fields": [field("next", ["null", "N"])]}
    writer = record(field("old", node), field("id", "int"))
    newest = record(field("id", "int"))
    payload = encoded(writer, {"old": {"next": {"next": None}}, "id": 1})
    found = avro.explain(
        payload[:-1], Pairing(registered(writer), registered(newest, 2), columns(newest))
    )
    assert found.startswith("field id (int): 1 byte expected at byte 2")


def test_the_bound_of_a_decimal_has_all_its_digits() -> None:
    """Python's default context has 28 of them."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 36, "scale": 2}
    (column,) = columns(record(field("f", kind)))
    assert isinstance(column.field_type, DecimalType)
    writer = Type("bytes", "decimal", 36, 2)
    reading = decimal(writer, "t", 2, DecimalType(35, 2))
    assert reading is not None
    assert f"'{'9' * 33}.99'" in reading.checks[0].sql("x")
    payload = b"\x20" + (10**35).to_bytes(16, "big")
    assert "exceeds the precision" in reason({**kind, "precision": 35}, payload)


def test_identity_is_the_full_name_of_a_record() -> None:
    assert avro.identity(registered(record())) == "shop.Order"
    nested = {**record(name="Order"), "namespace": "shop"}
    assert avro.identity(registered(nested)) == "shop.Order"
    assert avro.identity(registered("string")) is None
    assert avro.identity(registered([record()])) is None


def test_written_counts_renamed_fields_under_the_latest_name() -> None:
    writer = record(field("a", "int"), field("b", "int"), field("dropped", "int"))
    latest = record(field("c", "int", aliases=["b"]), field("a", "int"), field("new", "int"))
    found = avro.written(registered(writer), registered(latest))
    assert found == {"a", "c", "dropped"}


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
            assert avro.explain(payload, pair).startswith("field a (string)")

        return explained

    assert ratio(explaining(200), explaining(2)) < 5


def test_long_type_is_shortened_in_the_reason() -> None:
    union = [{"type": "fixed", "name": f"{'F' * 1_000}{number}", "size": 1} for number in range(50)]
    found = reason({"type": "array", "items": union}, b"\x02\x00\x00\x00", latest="int")
    assert found.startswith("field f (int): a value of the type array does not fit")
    assert len(str(Type("union", branches=tuple(Type("fixed", name="F" * 99) for _ in union)))) < 99


def is_covered(pair: Pairing, payload: bytes) -> bool:
    """Whether the compiled program accepts a record; Spark decodes the others."""
    shape, code = Shape(pair.fields), Code()
    avro.program(code, {place.name: place for place in shape.places}, pair)
    programs, buffers = Programs.of(code, [(1, 0)], "AVRO"), Buffers(shape, 1, 1024)
    data = np.frombuffer(wire_prefix(1) + payload, np.uint8).copy()
    offsets = np.array([0, len(data)], np.int64)
    return decode(programs, buffers, data, offsets, np.ones(1, np.uint8)) == 1


PROMOTED = ["int", "long", "float", "double", MOMENT, ["null", "double"]]


@pytest.mark.parametrize("latest", PROMOTED)
def test_int_of_more_than_32_bits_has_a_reason(latest: Any) -> None:
    """Whatever its column is now."""
    pair = pairing(record(field("f", "int")), record(field("f", latest)))
    for value in (0, 2**31 - 1, -(2**31)):
        payload = encoded(record(field("f", "long")), {"f": value})
        assert avro.explain(payload, pair) == "the record does not fit schema 1"
        assert is_covered(pair, payload)
    for value in (2**31, -(2**31) - 1, 2**40):
        payload = encoded(record(field("f", "long")), {"f": value})
        assert "out of range" in avro.explain(payload, pair)
        assert not is_covered(pair, payload)


def test_int_without_a_column_is_skipped_as_spark_does() -> None:
    """By its bytes: five of them may have more than 32 bits."""
    writer, newest = record(field("old", "int"), field("id", "int")), record(field("id", "int"))
    for value, expected in ((2**34 - 1, ""), (2**34, "field old (int): the number at byte 0 has")):
        payload = encoded(record(field("f", "long"), field("id", "int")), {"f": value, "id": 1})
        found = avro.explain(payload, pairing(writer, newest))
        assert found.startswith(expected or "the record does not fit schema")


@pytest.mark.parametrize("latest", ["string", None])
@pytest.mark.parametrize(
    "kind", [["null", "int"], {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "long"]
)
def test_number_with_needless_bytes_is_left_to_spark(kind: Any, latest: Any) -> None:
    """Avro reads an index of at most five bytes, a long of ten: also one without a column."""
    writer = record(field("f", kind), field("g", "int"))
    pair = pairing(writer, writer if latest is None else record(field("g", "int")))
    for size in (2, 5, 6, 10):
        payload = b"\x80" * (size - 1) + b"\x00" + b"\x02"
        is_read = kind == "long" or size <= 5
        assert ("has more than 5 bytes" in avro.explain(payload, pair)) == (not is_read)
        assert not is_covered(pair, payload)
    assert is_covered(pair, b"\x00\x02")
