"""The compiled decoder of Avro against the reference decoder, value by value. What a program
accepts is the reference's row; what it refuses is malformed, or one of the few records that only
the reference reads."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from avro_oracle import AvroSchema
from compiled import decode_by_programs
from program_runner import NUMBER, ProgramRunner
from pyiceberg import types as T
from seeds import some
from shapes import difference
from stored_values import row
from test_avro_records import Table, damaged, histories

from topicberg.formats import avro
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.memory import forget_stale
from topicberg.formats.columnar.program import ProgramCode, Programs, Shape
from topicberg.formats.contract import Format, ResolvedSchema
from topicberg.formats.framing import wire_prefix
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import RegisteredSchema

Json = Any


class Compiled:
    """The programs of some writers of a table."""

    def __init__(self, writers: Mapping[int, str], columns: Sequence[T.NestedField]) -> None:
        """:param writers: by schema id; the last one is the latest"""
        self.columns = columns
        schemas = [RegisteredSchema(number, "AVRO", text) for number, text in writers.items()]
        pairings = [ResolvedSchema(schema, schemas[-1], columns) for schema in schemas]
        self.references = {
            pairing.writer.schema_id: avro.record_decoder(pairing) for pairing in pairings
        }
        self.shape, code = Shape(columns), ProgramCode()
        places = {place.name: place for place in self.shape.places}
        starts: list[tuple[int, int]] = []
        for pairing in pairings:
            starts.append((pairing.writer.schema_id, code.at))
            avro.program(code, places, pairing)
        self.programs = Programs.of(code, starts, "AVRO")
        self.buffers = Buffers(self.shape, 64, 64 * 1024)

    @classmethod
    def of_one_version(cls, fields: Sequence[Json]) -> Compiled:
        text = schema(*fields)
        columns = avro.fields("s", RegisteredSchema(1, "AVRO", text), itertools.count(1))
        return cls({1: text}, columns)

    def rows(self, records: Sequence[tuple[int, bytes]]) -> list[dict[str, Any]]:
        """The rows up to the first record that is refused."""
        self.buffers.clear()
        decode_by_programs(
            self.programs, self.buffers, [wire_prefix(number) + data for number, data in records]
        )
        columns = [array.to_pylist() for array in self.buffers.arrays()]
        for array in self.buffers.arrays():
            array.validate(full=True)
        names = [column.name for column in self.columns]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def check(self, number: int, payload: bytes) -> bool:
        """Compare a record with the reference; return whether the program accepts it."""
        (found,) = self.rows([(number, payload)]) or (None,)
        if found is None:
            return False
        expected = row(self.references[number](payload), self.columns)
        why = difference(expected, found)
        assert why is None, why
        return True

    def is_row(self, number: int, payload: bytes) -> bool:
        try:
            self.references[number](payload)
        except MalformedError:
            return False
        return True


def compiled(table: Table) -> Compiled:
    texts = {number: version.text for number, version in enumerate(table.versions)}
    return Compiled(texts, table.columns)


@pytest.mark.parametrize("seed", some(range(100, 106)))
def test_record_of_any_version_is_what_the_reference_reads(seed: int) -> None:
    rng = random.Random(seed)
    accepted = 0
    for table in histories(seed, 25):
        it = compiled(table)
        records: list[tuple[int, bytes]] = []
        for number, version in enumerate(table.versions):
            for _ in range(12):
                for payload in (version.encode(rng, 0.1), damaged(rng, version.encode(rng, 0.1))):
                    is_accepted, is_row = it.check(number, payload), it.is_row(number, payload)
                    assert is_accepted == is_row or not version.decode(payload).canonical
                    records += [(number, payload)] if is_accepted else []
        rng.shuffle(records)  # of all versions, alternating
        chosen = records[:64]
        for (number, payload), found in zip(chosen, it.rows(chosen), strict=True):
            why = difference(row(it.references[number](payload), table.columns), found)
            assert why is None, why
        accepted += len(records)
    assert accepted > 300


def schema(*fields: Json) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


def field(name: str, kind: Json, **more: Json) -> Json:
    return {"name": name, "type": kind, **more}


def of_one(kind: Json, latest: Json = None, column: T.IcebergType | None = None) -> Compiled:
    """Of a schema with one field, and perhaps a later one."""
    texts = {1: schema(field("f", kind)), 2: schema(field("f", latest or kind))}
    newest = RegisteredSchema(2, "AVRO", texts[2])
    columns = avro.fields("s", newest, itertools.count(1))
    if column is not None:
        columns = [T.NestedField(1, "f", column, required=False)]
    return Compiled(texts, columns)


def encoded(kind: Json, value: Any) -> bytes:
    buffer = BytesIO()
    parsed = fastavro.parse_schema(json.loads(schema(field("f", kind))))
    fastavro.schemaless_writer(buffer, parsed, {"f": value})
    return buffer.getvalue()


MAP = {"type": "map", "values": "int"}


@pytest.mark.parametrize("count", [0, 1, 2, 16, 17, 1_000])
def test_map_of_any_size_is_read(count: int) -> None:
    it = of_one(MAP)
    keys = {f"key {number}" * (number % 4): number for number in range(count)}
    assert it.check(1, encoded(MAP, keys))


@pytest.mark.parametrize("count", [2, 16, 17, 1_000])
def test_map_with_a_key_twice_is_left_to_the_reference(count: int) -> None:
    """Its last value counts."""
    it = of_one(MAP)
    entries = [(b"k%d" % number, number) for number in range(count - 1)]
    entries.append((entries[(count - 1) // 2][0], 63))
    data = b"".join(bytes([2 * len(key)]) + key + bytes([2 * (n % 64)]) for key, n in entries)
    size = AvroSchema(schema(field("f", "long"))).encode({"f": count})
    payload = size + data + b"\0"
    assert not it.check(1, payload)
    values = dict(it.references[1](payload)["f"])
    assert values[entries[-1][0].decode()] == 63
    assert len(values) == count - 1


def decimal(precision: int, scale: int) -> Json:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize("scale", [0, 1, 2, 3, 20, 38])
@pytest.mark.parametrize(
    "column", [T.DecimalType(38, 2), T.DecimalType(10, 3), T.DecimalType(4, 0)]
)
def test_decimal_of_another_scale_is_read_if_it_is_exact(scale: int, column: T.DecimalType) -> None:
    it = of_one(decimal(38, scale), decimal(column.precision, column.scale), column)
    rng = random.Random(scale)
    seen: set[bool] = set()
    for _ in range(300):
        number = rng.choice((-1, 1)) * rng.randrange(10 ** rng.randint(0, 38))
        number = number // 10 ** (zeros := rng.randint(0, 38)) * 10**zeros
        size = number.bit_length() // 8 + 1
        payload = bytes([2 * size]) + number.to_bytes(size, "big", signed=True)
        assert it.check(1, payload) == it.is_row(1, payload), number
        seen.add(it.is_row(1, payload))
    assert seen == {True, False}


INNER = [field("n", "int"), field("z", "int", default=4)]
ADDED = [
    field("b", "boolean", default=True),
    field("i", "int", default=-7),
    field("l", "long", default=2**62),
    field("d", "double", default=-0.5),
    field("fl", "float", default=0.1),
    field("s", "string", default="é"),
    field("by", "bytes", default="\u00ff"),
    field("p", decimal(38, 2), default="\u00ff\u0000"),
    field("t", {"type": "long", "logicalType": "timestamp-millis"}, default=5),
    field("li", {"type": "array", "items": ["null", "string"]}, default=["a", "b"]),
    field("m", {"type": "map", "values": {"type": "array", "items": "int"}}, default={"x": [1, 2]}),
    field(
        "r",
        {
            "type": "record",
            "name": "I",
            "fields": [field("n", "int"), field("z", "int", default=4)],
        },
        default={"n": 3},
    ),
    field("u", ["int", "string"], default=9),
    field("n", ["null", "int"], default=None),
]


def test_defaults_of_fields_that_were_added_are_constants() -> None:
    inner = {"type": "record", "name": "O", "fields": [field("a", "int")]}
    wider = {"type": "record", "name": "O", "fields": [field("a", "int"), *ADDED]}
    old = schema(field("f", {"type": "array", "items": inner}))
    new = schema(field("f", {"type": "array", "items": wider}), *ADDED)
    new = new.replace('"name": "I"', '"name": "I", "namespace": "x"', 1)
    columns = avro.fields("s", RegisteredSchema(2, "AVRO", new), itertools.count(1))
    it = Compiled({1: old, 2: new}, columns)
    for count in (0, 1, 3):
        payload = bytes([2 * count, *(2 * n for n in range(count)), 0][: count + 2])
        assert it.check(1, payload if count else b"\0")
    (found,) = it.rows([(1, b"\0")])
    assert found["li"] == ["a", "b"]
    assert found["m"] == [("x", [1, 2])]


def test_recursive_field_without_a_column_has_no_program() -> None:
    from topicberg.formats.columnar.program import NotCoveredError

    node = {"type": "record", "name": "N", "fields": [field("next", ["null", "N"])]}
    texts = {1: schema(field("f", node), field("g", "int")), 2: schema(field("g", "int"))}
    columns = [T.NestedField(1, "g", T.IntegerType(), required=False)]
    with pytest.raises(NotCoveredError, match="recursive"):
        Compiled(texts, columns)


ISO_TEXTS = {
    "zoned-timestamp": "2024-02-29T23:59:59.1234567+05:30",
    "iso-timestamp": "1900-02-28T00:00:00.5Z",
    "iso-date": "0001-01-01",
    "iso-time": "23:59:59.999999999Z",
}


def connect_text(rng: random.Random, text: str) -> bytes:
    """A text like one that is given."""
    data = list(text)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if data:
                data[at - 1] = rng.choice("0123456789-+:.TZ é")
            case 1:
                data.insert(at, rng.choice("0123456789Z"))
            case 2:
                del data[at : at + 1]
            case 3:
                digits = [n for n, letter in enumerate(data) if letter.isdigit()]
                for place in digits:
                    data[place] = str(rng.choice((0, 0, 1, 2, 5, 9)))
    return "".join(data).encode()


@pytest.mark.parametrize("name", ISO_TEXTS)
def test_text_of_kafka_connect_is_what_the_reference_reads(name: str) -> None:
    it = of_one({"type": "string", "logicalType": f"topicberg.{name}"})
    rng, seen = random.Random(name), [0, 0]
    for _ in range(1_500):
        text = connect_text(rng, ISO_TEXTS[name])
        payload = bytes([2 * len(text)]) + text
        assert it.check(1, payload) == it.is_row(1, payload), text
        seen[it.is_row(1, payload)] += 1
    assert min(seen) > 200


def test_nanoseconds_of_kafka_connect_are_what_the_reference_reads() -> None:
    it = of_one({"type": "long", "logicalType": "topicberg.nano-timestamp"})
    for number in (0, -1, 999, -1_001, 2**63 - 1, -(2**63), 2**63 - 2, -(2**62)):
        payload = AvroSchema(schema(field("f", "long"))).encode({"f": number})
        assert it.check(1, payload) == (abs(number) < 2**63 - 1)


VARIABLE = [field("scale", "int"), field("value", "bytes")]


@pytest.mark.parametrize(
    "kind",
    [
        *(
            {"type": "bytes", "logicalType": "topicberg.decimal", "scale": n}
            for n in (0, 3, 50, -4)
        ),
        {
            "type": "record",
            "name": "V",
            "logicalType": "topicberg.variable-decimal",
            "fields": VARIABLE,
        },
        {
            "type": "record",
            "name": "V",
            "logicalType": "topicberg.variable-decimal",
            "fields": VARIABLE[::-1],
        },
    ],
)
def test_decimal_of_kafka_connect_is_what_the_reference_reads(kind: Json) -> None:
    it = of_one(kind)
    rng, accepted = random.Random(1), 0
    for _ in range(400):
        number = rng.choice((-1, 1)) * rng.randrange(10 ** rng.choice((0, 1, 5, 19, 38)))
        size = number.bit_length() // 8 + 1 + rng.choice((0, 0, 1))
        value = number.to_bytes(size, "big", signed=True)
        scale = rng.choice((0, 1, 5, 64, -3))
        datum = value if kind["type"] == "bytes" else {"scale": scale, "value": value}
        plain = json.loads(json.dumps(kind).replace("logicalType", "ignored"))
        payload = encoded(plain, datum)
        assert it.is_row(1, payload)
        accepted += it.check(1, payload)
    assert accepted > 350


CONNECT = [
    *(
        field(
            name.replace("-", "_"), ["null", {"type": "string", "logicalType": f"topicberg.{name}"}]
        )
        for name in ISO_TEXTS
    ),
    field("nanos", {"type": "long", "logicalType": "topicberg.nano-timestamp"}),
    field("number", {"type": "bytes", "logicalType": "topicberg.decimal", "scale": 3}),
    field(
        "numbers",
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "V",
                "logicalType": "topicberg.variable-decimal",
                "fields": VARIABLE,
            },
        },
    ),
]


def connect_record(rng: random.Random) -> bytes:
    def number() -> bytes:
        return rng.randrange(-(2**63), 2**63).to_bytes(rng.randint(8, 16), "big", signed=True)

    plain = json.loads(schema(*CONNECT).replace("logicalType", "ignored"))
    values: dict[str, Any] = {
        name.replace("-", "_"): rng.choice((None, text)) for name, text in ISO_TEXTS.items()
    }
    values |= {"nanos": rng.randrange(2**62), "number": number()}
    values["numbers"] = [
        {"scale": rng.randint(-3, 30), "value": number()} for _ in range(rng.randrange(4))
    ]
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(plain), values)
    return buffer.getvalue()


def test_damaged_records_of_kafka_connect_are_what_the_reference_reads() -> None:
    it, rng, accepted = Compiled.of_one_version(CONNECT), random.Random(1), 0
    for _ in range(500):
        payload = damaged(rng, connect_record(rng))
        is_accepted = it.check(1, payload)
        # A decimal of more bytes, zeros or digits is for the reference.
        assert is_accepted <= it.is_row(1, payload)
        accepted += is_accepted
    assert accepted > 100


TIME = {"type": "int", "logicalType": "date"}


class Decoder(ProgramRunner):
    def __init__(self, schema: Any, latest: Any = None) -> None:
        """:param latest: a later version, which the table follows; None: there is none"""
        writer, newest = (
            RegisteredSchema(number, "AVRO", json.dumps(one))
            for number, one in ((NUMBER, schema), (NUMBER + 1, latest or schema))
        )
        super().__init__(cast("Format", avro), writer, newest, 256 * 1024)


@pytest.mark.parametrize(
    ("was", "became", "value"),
    [("double", "float", 1e308), ("long", "int", 2**62), ("float", "int", 1.5)],
)
def test_member_of_a_union_that_was_narrowed_keeps_its_values(
    was: str, became: str, value: float
) -> None:
    """As those of a field that is not a union: the column is still of the wider type."""
    old, new = (
        {"type": "record", "name": "R", "fields": [{"name": "u", "type": [TIME, kind]}]}
        for kind in (was, became)
    )
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(old), {"u": value})
    rows = Decoder(old, new).rows([buffer.getvalue()])
    assert rows == [{"u": {"member0": None, "member1": value}}]


def test_stored_code_is_deleted_if_a_source_is_newer(tmp_path: Path) -> None:
    stored, source = tmp_path / "__pycache__" / "a.nbi", tmp_path / "b.py"
    stored.parent.mkdir()
    for file, time in ((source, 1_000), (stored, 2_000)):
        file.touch()
        os.utime(file, (time, time))
    forget_stale(tmp_path)
    assert stored.exists()
    os.utime(source, (3_000, 3_000))
    forget_stale(tmp_path)
    assert not stored.exists()
