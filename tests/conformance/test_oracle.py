"""The oracle itself, without a stack: beside what other readers make of the same bytes."""

from __future__ import annotations

import json
import random
import uuid
from io import BytesIO
from typing import Any

import avro.schema
import fastavro
import jsonschema
import public_schemas
import pytest
from avro_family import AvroFamily
from avro_random import AvroSchemas
from json_family import JsonFamily
from protobuf_family import ProtobufFamily
from shapes import Half, Malformed, Placed, Refused, Shape, difference, evolved, extended, placed
from versions import Family, Version

SEEDS = range(40)
FAMILIES: dict[str, Any] = {"avro": AvroFamily, "json": JsonFamily, "protobuf": ProtobufFamily}


def pair(kind: str, seed: int, *, wild: bool) -> tuple[Version, Version, random.Random]:
    rng = random.Random(seed)
    family: Family = FAMILIES[kind](rng)
    first = family.first()
    later = None
    while later is None or later.shape is None:
        later = family.next(first, wild=wild)
    return first, later, rng


def test_changed_avro_union_has_each_type_once() -> None:
    uuid_text = {"type": "string", "logicalType": "uuid"}
    day = {"type": "int", "logicalType": "date"}
    union = ["null", uuid_text, "bytes", day, "long", "float"]
    fields = [
        {"name": "one", "type": union},
        {"name": "two", "type": {"type": "map", "values": union}},
    ]
    schema = {"type": "record", "name": "Order", "fields": fields}
    for seed in SEEDS:
        later = AvroSchemas(random.Random(seed)).changed(schema, wild=False)
        if later is not None:
            avro.schema.parse(json.dumps(later))  # as strict as a registry


def row(version: Version, payload: bytes, latest: Version) -> Placed:
    assert version.shape is not None
    assert latest.shape is not None
    value = version.decode(payload).value
    columns = evolved(None, latest.shape)
    return placed(columns, Half(value, version.shape, latest.shape))


@pytest.mark.parametrize("kind", FAMILIES)
def test_row_of_the_newest_version_is_the_record(kind: str) -> None:
    for seed in SEEDS:
        version, _, rng = pair(kind, seed, wild=False)
        payload = version.encode(rng, 0.0)
        result = row(version, payload, version)
        assert result.sure
        assert difference(result.row, json_texts(result.row)) is None
        decoded = version.decode(payload)
        assert decoded.canonical
        assert difference(decoded.value, json_texts(result.row)) is None


def json_texts(value: Any) -> Any:
    """A row as a reader shows it."""
    from shapes import JsonText

    if isinstance(value, JsonText):
        return json.dumps(value.value)
    if isinstance(value, dict):
        return {key: json_texts(one) for key, one in value.items()}
    return [json_texts(one) for one in value] if isinstance(value, list) else value


def test_avro_row_is_what_fastavro_resolves() -> None:
    """Of two versions that fastavro resolves; it does not convert defaults, and has no members."""
    compared = 0
    for seed in range(200):
        writer, latest, rng = pair("avro", seed, wild=False)
        if "union" in f"{writer.shape} {latest.shape}":
            continue
        schemas: Any = [fastavro.parse_schema(json.loads(one.text)) for one in (writer, latest)]
        for _ in range(3):
            payload = writer.encode(rng, 0.0)
            try:
                resolved: Any = fastavro.schemaless_reader(BytesIO(payload), *schemas)
                result = row(writer, payload, latest)
            except (fastavro.read.SchemaResolutionError, Malformed, EOFError, UnicodeDecodeError):
                continue
            names = writer.shape.children.keys() & latest.shape.children.keys()
            for name in names:
                shape = latest.shape.children[name]
                simple = not shape.children and shape.kind not in ("string", "decimal")
                if result.sure and simple and not shape.unit:
                    compared += 1
                    value = resolved[name]
                    value = value.hex if isinstance(value, uuid.UUID) else value
                    assert difference(result.row[name], value, name) is None
    assert compared > 100


def test_json_records_are_valid_by_their_schema() -> None:
    for seed in SEEDS:
        version, _, rng = pair("json", seed, wild=False)
        jsonschema.validate(json.loads(version.encode(rng, 0.0)), json.loads(version.text))


def test_protobuf_row_is_what_the_newest_version_reads() -> None:
    """Where Google's library reads what the writer set; defaults and numbers of enums differ."""
    compared = 0
    for seed in range(60):
        writer, latest, rng = pair("protobuf", seed, wild=False)
        for _ in range(3):
            payload = writer.encode(rng, 0.0)
            try:
                result, own = row(writer, payload, latest), latest.decode(payload).value
            except Malformed:
                continue
            for name, shape in latest.shape.children.items():
                value = result.row[name], own[name]
                if result.sure and None not in value and shape.kind in ("long", "int", "boolean"):
                    compared += 1
                    assert value[0] == value[1]
    assert compared > 50


@pytest.mark.parametrize("kind", FAMILIES)
def test_broken_bytes_are_malformed_or_a_row(kind: str) -> None:
    rng = random.Random(kind)
    malformed = 0
    for seed in SEEDS:
        version, latest, _ = pair(kind, seed, wild=True)
        for _ in range(5):
            payload = bytearray(version.encode(rng, 0.5))
            if payload and rng.random() < 0.7:
                payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
            try:
                row(version, bytes(payload), latest)
            except Malformed:
                malformed += 1
    assert malformed > 20


def test_columns_follow_by_the_rules_of_iceberg() -> None:
    def columns(**children: str) -> Shape:
        return Shape("struct", {name: Shape(kind) for name, kind in children.items()})

    old = columns(a="int", b="string")
    new = evolved(old, columns(a="long", c="date"))
    assert {name: one.kind for name, one in new.children.items()} == {
        "a": "long",
        "b": "string",
        "c": "date",
    }
    assert evolved(new, columns(a="int")) == new
    for wrong in (columns(a="string"), columns(A="int"), columns(b="binary")):
        with pytest.raises(Refused):
            evolved(new, wrong)
    assert extended({"a": 1}, new) == {"a": 1, "b": None, "c": None}


@pytest.mark.parametrize("path", public_schemas.AVRO)
def test_public_avro_schema_reads_its_own_records(path: str) -> None:
    version, rng = public_schemas.avro(path), random.Random(path)
    assert (version.shape is None) == (path in public_schemas.REFUSED)
    if version.shape is not None:
        payload = version.encode(rng, 0.0)
        assert difference(version.decode(payload).value, row(version, payload, version).row) is None
