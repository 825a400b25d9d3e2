"""How fast the compiled decoder is on records of some kinds, as a share of those of a clean topic.

``python tests/benchmarks/decode.py [RECORDS]``: without a broker, a table or a file. Times are of
the processor, the best of several rounds, which take turns. The share is that of the clean topic of
the same format. Also how long the reference decoder takes for a record, and what a malformed record
takes more than a sound one.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import fastavro
import numpy as np

from topicberg.formats import avro, protobuf
from topicberg.formats import json as json_schema
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.decoding import decode
from topicberg.formats.columnar.program import ProgramCode, Programs, Shape
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.framing import WIRE_BYTES, wire_prefix
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import RegisteredSchema, SchemaType

ROUNDS = 7
Json = Any


def record(*fields: Json) -> Json:
    return {"type": "record", "name": "Trade", "fields": list(fields)}


def field(name: str, kind: Json, **more: Json) -> Json:
    return {"name": name, "type": kind, **more}


SMALL = [
    field("id", "long"),
    field("symbol", "string"),
    field("price", "double"),
    field("quantity", "int"),
    field("side", "string"),
    field("note", ["null", "string"]),
]
ADDED = [field("venue", "string", default="XETR"), field("lots", "int", default=1)]
LOGICAL = [
    field("d", {"type": "int", "logicalType": "date"}),
    field("t", {"type": "long", "logicalType": "timestamp-millis"}),
    field("u", {"type": "string", "logicalType": "uuid"}),
    field("p", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}),
    field("ms", {"type": "int", "logicalType": "time-millis"}),
    field("q", {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 6}),
]
PLAIN = [
    field("d", "int"),
    field("t", "long"),
    field("u", "string"),
    field("p", "long"),
    field("ms", "int"),
    field("q", "bytes"),
]


def small(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "symbol": rng.choice(("AAPL", "GOOG", "MSFT", "SAP")),
        "price": rng.random() * 100,
        "quantity": rng.randrange(1_000),
        "side": rng.choice(("BUY", "SELL")),
        "note": rng.choice((None, "a note")),
    }


def logical(rng: random.Random, number: int) -> dict[str, Any]:
    data = (number * 7919).to_bytes(5, "big", signed=True)
    return {
        "d": 19_000,
        "t": 1_700_000_000_000 + number,
        "u": "x" * 36,
        "p": data,
        "ms": 5,
        "q": data,
    }


def plain(rng: random.Random, number: int) -> dict[str, Any]:
    return {**logical(rng, number), "p": number * 7919}


def mapped(rng: random.Random, number: int) -> dict[str, Any]:
    pairs = {"source": "web", "region": rng.choice(("eu", "us")), "kind": "limit"}
    return {**small(rng, number), "tags": pairs}


def chosen(rng: random.Random, number: int) -> dict[str, Any]:
    return {**small(rng, number), "price": rng.choice((number, float(number), "n/a"))}


def with_union() -> list[Json]:
    return [
        field("price", ["long", "double", "string"]) if f["name"] == "price" else f for f in SMALL
    ]


TRADE = {
    "id": "int64",
    "symbol": "string",
    "price": "double",
    "quantity": "int32",
    "side": "string",
    "note": "optional string",
}
IMPORTS = (
    "confluent/meta.proto",
    "confluent/type/decimal.proto",
    "google/protobuf/timestamp.proto",
    "google/protobuf/wrappers.proto",
    "google/type/date.proto",
)
_SCALE = (
    '[(confluent.field_meta) = {params: [{key: "precision", value: "12"}, '
    '{key: "scale", value: "4"}]}]'
)


def proto(*more: str, **instead: str) -> str:
    """The text of a Protobuf schema.

    :param more: fields without their numbers; options behind a bar
    :param instead: other types of fields
    """
    fields = [f"{kind} {name}" for name, kind in {**TRADE, **instead}.items() if kind] + [*more]
    numbered = []
    for number, one in enumerate(fields, 1):
        name, _, options = one.partition("|")
        numbered.append(f"{name} = {number} {options};")
    imports = " ".join(f'import "{name}";' for name in IMPORTS)
    inside = "message Leg { string venue = 1; int64 lots = 2; }"
    return f'syntax = "proto3"; {imports} message Trade {{ {" ".join(numbered)} {inside} }}'


def to_proto(text: str) -> Callable[[Mapping[str, Any]], bytes]:
    from google.protobuf import message_factory

    from topicberg.formats.protobuf import protoc

    file = protoc.compiled("trade.proto", text)
    make = message_factory.GetMessageClass(file.message_types_by_name["Trade"])

    def encode(values: Mapping[str, Any]) -> bytes:
        given = {name: one for name, one in values.items() if one is not None}
        return b"\0" + bytes(make(**given).SerializeToString())

    return encode


def dated(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        **small(rng, number),
        "price": {"value": (number * 7919).to_bytes(5, "big", signed=True), "scale": 4},
        "day": {"year": 2024, "month": 1 + number % 12, "day": 1 + number % 28},
        "at": {"seconds": 1_700_000_000 + number, "nanos": number % 10**9},
    }


def undated(rng: random.Random, number: int) -> dict[str, Any]:
    return {**small(rng, number), "price": number, "day": 19_000, "at": number}


def wrapped(rng: random.Random, number: int) -> dict[str, Any]:
    values = small(rng, number)
    return {**values, "quantity": {"value": values["quantity"]}, "side": {"value": values["side"]}}


def either(rng: random.Random, number: int) -> dict[str, Any]:
    values = small(rng, number)
    del values[rng.choice(("price", "quantity"))]
    return values


def legs(rng: random.Random, number: int) -> dict[str, Any]:
    both = {name: {"venue": "XETR", "lots": number} for name in ("first", "second")}
    return {**small(rng, number), "legs": both}


KINDS = {"long": "integer", "int": "integer", "double": "number", "string": "string"}
JSON_SCHEMA = {
    "title": "Trade",
    "type": "object",
    "properties": {
        one["name"]: {"type": KINDS[one["type"]] if isinstance(one["type"], str) else "string"}
        for one in SMALL
    },
}


def to_json(values: Mapping[str, Any]) -> bytes:
    return json.dumps({name: one for name, one in values.items() if one is not None}).encode()


Encode = Callable[[Mapping[str, Any]], bytes]
FORMATS: dict[SchemaType, Any] = {"AVRO": avro, "JSON": json_schema, "PROTOBUF": protobuf}


class Workload:
    """Records of some writers of a table; the last writer is the latest."""

    def __init__(
        self,
        language: SchemaType,
        writers: Sequence[tuple[str, Encode]],
        make: Callable[[random.Random, int], Mapping[str, Any]],
        count: int,
        malformed: int = 0,
    ) -> None:
        """:param writers: schemas, and what encodes records of them
        :param malformed: each how many records one is cut; 0: none
        """
        self.language, self.count = language, count
        self.malformed = -(-count // malformed) if malformed else 0
        its_format = FORMATS[language]
        schemas = [
            RegisteredSchema(number, language, text) for number, (text, _) in enumerate(writers)
        ]
        columns = its_format.fields("s", schemas[-1], itertools.count(1))
        code, self.shape = ProgramCode(), Shape(columns)
        places = {place.name: place for place in self.shape.places}
        starts: list[tuple[int, int]] = []
        for schema in schemas:
            starts.append((schema.schema_id, code.at))
            its_format.program(code, places, ResolvedSchema(schema, schemas[-1], columns))
        self.programs = Programs.of(code, starts, language)
        rng, records = random.Random(1), []
        for number in range(count):
            writer = number % len(writers)
            one = wire_prefix(writer) + writers[writer][1](make(rng, number))
            is_cut = malformed and number % malformed == 0
            records.append(one[: -3 if is_cut else None])
        pairing = ResolvedSchema(schemas[-1], schemas[-1], columns)
        self.records, self.reference = records, its_format.record_decoder(pairing)
        self.data = np.frombuffer(b"".join(records) + bytes(8), np.uint8).copy()
        self.offsets = np.cumsum([0, *map(len, records)], dtype=np.int64)
        self.present = np.ones(count, np.uint8)
        self.buffers = Buffers(self.shape, count, len(self.data) * 2 + 65_536)

    def seconds(self) -> float:
        self.buffers.clear()
        begin = time.process_time()
        done = decode(
            self.programs, self.buffers, self.data, self.offsets, self.present, self._refused
        )
        self.buffers.arrays()
        spent = time.process_time() - begin
        if done.reached != self.count or len(done.rejected) != self.malformed:
            raise RuntimeError("the buffers are too small, or the program refuses records")
        return spent

    def of_reference(self) -> float:
        """Seconds of the reference decoder for a record."""
        some = [record[WIRE_BYTES:] for record in self.records[:2_000]]
        begin = time.process_time()
        for payload in some:
            try:
                self.reference(payload)
            except MalformedError as error:
                str(error)
        return (time.process_time() - begin) / len(some)

    def _refused(self, number: int) -> Mapping[str, Any]:
        if not self.malformed:
            raise RuntimeError(f"the program refuses record {number}: {self.records[number]!r}")
        return self.reference(self.records[number][WIRE_BYTES:])


_NEW = {"venue": "NYSE", "lots": 3, "extra": "abc"}


def to_avro(schema: Json) -> tuple[str, Encode]:
    parsed = fastavro.parse_schema(schema)
    names = {one["name"] for one in schema["fields"]}

    def encode(values: Mapping[str, Any]) -> bytes:
        buffer = BytesIO()
        known = {k: v for k, v in {**_NEW, **values}.items() if k in names}
        fastavro.schemaless_writer(buffer, parsed, known)
        return buffer.getvalue()

    return json.dumps(schema), encode


def versions(count: int) -> list[Json]:
    """Versions of a schema, of which each one adds a field that the next one drops."""
    return [
        record(*SMALL, field(f"added{number}", ["null", "string"], default=None))
        for number in range(count - 1)
    ] + [record(*SMALL)]


Make = Callable[[random.Random, int], Mapping[str, Any]]


def of_avro(count: int) -> dict[str, Workload]:
    def of(make: Make, *writers: Json, malformed: int = 0) -> Workload:
        return Workload("AVRO", [to_avro(one) for one in writers], make, count, malformed)

    tags = field("tags", {"type": "map", "values": "string"})
    return {
        "clean": of(small, record(*SMALL)),
        "default added": of(small, record(*SMALL), record(*SMALL, *ADDED)),
        "2 versions alternating": of(small, *versions(2)),
        "100 versions alternating": of(small, *versions(100)),
        "union": of(chosen, record(*with_union())),
        "1 malformed in 1,000": of(small, record(*SMALL), malformed=1_000),
        "1 malformed in 10": of(small, record(*SMALL), malformed=10),
        "map of 3": of(mapped, record(*SMALL, tags)),
        "logical types": of(logical, record(*LOGICAL)),
        "the same without logical types": of(plain, record(*PLAIN)),
    }


def of_json(count: int) -> dict[str, Workload]:
    def of(malformed: int = 0) -> Workload:
        return Workload("JSON", [(json.dumps(JSON_SCHEMA), to_json)], small, count, malformed)

    return {"clean": of(), "1 malformed in 1,000": of(1_000), "1 malformed in 10": of(10)}


def of_protobuf(count: int) -> dict[str, Workload]:
    def of(make: Make, text: str, malformed: int = 0) -> Workload:
        return Workload("PROTOBUF", [(text, to_proto(text))], make, count, malformed)

    wrappers = {"quantity": "google.protobuf.Int32Value", "side": "google.protobuf.StringValue"}
    logical = proto(
        "google.type.Date day",
        "google.protobuf.Timestamp at",
        f"confluent.type.Decimal price|{_SCALE}",
        price="",
    )
    one_of = proto(price="", quantity="").replace(
        " message Leg", "oneof either { double price = 100; int32 quantity = 101; } message Leg"
    )
    return {
        "clean": of(small, proto()),
        "1 malformed in 1,000": of(small, proto(), 1_000),
        "1 malformed in 10": of(small, proto(), 10),
        "map of 3 strings": of(mapped, proto("map<string, string> tags")),
        "map of 2 messages": of(legs, proto("map<string, Leg> legs")),
        "date, timestamp, decimal": of(dated, logical),
        "the same without them": of(undated, proto("int32 day", "int64 at", price="int64")),
        "wrappers": of(wrapped, proto(**wrappers)),
        "oneof": of(either, one_of),
    }


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    for its_format, of in (("Avro", of_avro), ("JSON", of_json), ("Protobuf", of_protobuf)):
        workloads = of(count)
        best = dict.fromkeys(workloads, float("inf"))
        for _ in range(ROUNDS):
            for name, workload in workloads.items():
                best[name] = min(best[name], workload.seconds())
        for name, seconds in best.items():
            workload, clean = workloads[name], best["clean"]
            size = len(workload.data) / count
            more = ""
            if workload.malformed:
                micros = 1e6 * (seconds - clean * (1 - workload.malformed / count))
                more = f" {micros / workload.malformed:6.1f} us a malformed record"
            print(  # noqa: T201
                f"{its_format:9} {name:32} {count / seconds:12,.0f}/s {clean / seconds:6.2f} "
                f"{size:5.0f} bytes {size * count / seconds / 1e6:7.0f} MB/s "
                f"{1e6 * min(workload.of_reference() for _ in range(3)):6.1f} us by the "
                f"reference{more}"
            )


if __name__ == "__main__":
    main()
