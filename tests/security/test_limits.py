"""Schemas beyond the limits are refused in no time and no memory, whatever their format is."""

from __future__ import annotations

import itertools
import json
import resource
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from decoders import Decoders
from growth import ratio
from hostile import varint
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyiceberg.types import NestedField, StructType
from reasons import reason

from topicberg.errors import TableflowError
from topicberg.formats import registry as schemas
from topicberg.formats import subjects
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.dispatch import as_record, format_of, is_union
from topicberg.formats.limits import MAX_DEPTH, MAX_FIELDS, MAX_MEMBERS, MAX_NAME, remembered
from topicberg.formats.protobuf import protoc
from topicberg.formats.protobuf.wire import MAX_TEXT_BYTES
from topicberg.formats.registry import SubjectReader
from topicberg.formats.subjects import RegisteredSchema, SchemaType
from topicberg_local import python_daemon

SECONDS, MEGABYTES = 20.0, 200
HEAD = 'syntax = "proto3";'


def registered(kind: SchemaType, text: Any) -> RegisteredSchema:
    return RegisteredSchema(1, kind, text if isinstance(text, str) else json.dumps(text))


def avro_record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def json_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def avro_tree(levels: int, fan: int) -> RegisteredSchema:
    kind = avro_record("R0", "int")
    for level in range(1, levels):
        kind = avro_record(f"R{level}", kind, *[f"R{level - 1}"] * (fan - 1))
    return registered("AVRO", kind)


def json_tree(levels: int, fan: int) -> RegisteredSchema:
    definitions = {"d0": json_object(x={"type": "string"})}
    for level in range(1, levels):
        inner = {"$ref": f"#/definitions/d{level - 1}"}
        definitions[f"d{level}"] = json_object(**{f"p{n}": inner for n in range(fan)})
    root = json_object(x={"$ref": f"#/definitions/d{levels - 1}"})
    return registered("JSON", {**root, "definitions": definitions})


def protobuf_tree(levels: int, fan: int) -> RegisteredSchema:
    messages = [
        f"message M{n} {{ {' '.join(f'M{n + 1} f{k} = {k + 1};' for k in range(fan))} }}"
        for n in range(levels)
    ]
    return registered("PROTOBUF", f"{HEAD} {' '.join(messages)} message M{levels} {{int32 x = 1;}}")


TREES: dict[str, Callable[[int, int], RegisteredSchema]] = {
    "avro": avro_tree,
    "json": json_tree,
    "protobuf": protobuf_tree,
}


def avro_path(kind: Any, levels: int) -> Any:
    """A type inside of records of one field with a long name."""
    for level in range(levels):
        fields = [{"name": "n" * MAX_NAME, "type": kind}]
        kind = {"type": "record", "name": f"P{level}", "fields": fields}
    return kind


def json_path(schema: Any, levels: int) -> Any:
    for _ in range(levels):
        schema = json_object(**{"n" * MAX_NAME: schema})
    return schema


def peak() -> int:
    """The most memory that this process has had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


BOMBS = {
    **{f"{name}, doubled": tree(30, 2) for name, tree in TREES.items()},
    **{f"{name}, tenfold": tree(12, 10) for name, tree in TREES.items()},
    **{f"{name}, deep": tree(MAX_DEPTH + 10, 1) for name, tree in TREES.items()},
    "avro, large": registered("AVRO", " " * 2**21),
    "json, large": registered("JSON", " " * 2**21),
    "avro, very deep": registered("AVRO", '{"type":' * 5_000 + '"int"' + "}" * 5_000),
    "avro, wide": registered("AVRO", avro_record("R", *["int"] * (MAX_FIELDS + 1))),
    "avro, no bytes": registered("AVRO", avro_record("R", {"type": "array", "items": "null"})),
    "avro, empty": registered(
        "AVRO", avro_record("R", {"type": "array", "items": avro_record("E", "null")})
    ),
    "avro, fixed of nothing": registered(
        "AVRO",
        avro_record("R", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
    ),
    "avro, fixed of gigabytes": registered(
        "AVRO", avro_record("R", {"type": "fixed", "name": "F", "size": 2**31 - 1})
    ),
    "avro, endless": registered("AVRO", avro_record("R", "R")),
    "avro, half a character": registered(
        "AVRO",
        {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "doc": "\ud800"}]},
    ),
    "avro, name is an object": registered(
        "AVRO", {"type": "record", "name": "R", "fields": [{"name": {"a": 1}, "type": "int"}]}
    ),
    "json, dependencies of nothing": registered(
        "JSON", {"type": "object", "properties": {"a": {}}, "dependencies": None}
    ),
    "avro, arrays": registered(
        "AVRO",
        '{"type": "record", "name": "R", "fields": [{"name": "f", "type": '
        + '{"type": "array", "items": ' * 9
        + '"int"'
        + "}" * 10
        + "]}",
    ),
    "json, very deep": registered("JSON", '{"properties":{"a":' * 20_000 + "{}" + "}}" * 20_000),
    "json, wide": registered("JSON", json_object(**{f"f{n}": {} for n in range(MAX_FIELDS + 1)})),
    "json, doubled items": registered(
        "JSON",
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "enum": [{"a": n} for n in range(25_000)],
        },
    ),
    "json, branches": registered(
        "JSON",
        {
            "type": "object",
            "allOf": [
                {"oneOf": [json_object(**{f"{side}{n}": {}}) for side in "ab"]}
                for n in range(2_000)
            ],
        },
    ),
    "avro, union of many": registered(
        "AVRO", avro_record("R", [avro_record(f"I{n}", "int") for n in range(MAX_MEMBERS + 1)])
    ),
    "json, union of many": registered(
        "JSON", {"oneOf": [json_object(**{f"a{n}": {}}) for n in range(4_900)]}
    ),
    "json, property of many types": registered(
        "JSON",
        {
            **json_object(x={}),
            "anyOf": [json_object(p=json_object(**{f"a{n}": {}})) for n in range(MAX_MEMBERS + 1)],
        },
    ),
    "avro, long name": registered(
        "AVRO",
        {"type": "record", "name": "R", "fields": [{"name": "n" * (MAX_NAME + 1), "type": "int"}]},
    ),
    "avro, long symbol": registered(
        "AVRO",
        avro_record("R", {"type": "enum", "name": "E", "symbols": ["A", "n" * (MAX_NAME + 1)]}),
    ),
    "json, long name": registered("JSON", json_object(a=json_object(**{"n" * 50_000: {}}))),
    "avro, long paths": registered("AVRO", avro_path(avro_record("I", *["int"] * 5_000), 40)),
    "json, long paths": registered(
        "JSON", json_path(json_object(**{f"f{n}": {"type": "string"} for n in range(5_000)}), 40)
    ),
    "protobuf, long name": registered(
        "PROTOBUF",
        f"{HEAD} message M {{ I i = 1; message I {{ int32 {'n' * (MAX_NAME + 1)} = 1; }} }}",
    ),
    "protobuf, wide": registered(
        "PROTOBUF",
        f"{HEAD} message M {{ {' '.join(f'int32 f{n} = {n};' for n in range(1, 12_000))} }}",
    ),
    "protobuf, too large": registered(
        "PROTOBUF",
        f"{HEAD} message M {{ {' '.join(f'int32 f{n} = {n};' for n in range(1, 18_900))} }}",
    ),
    "protobuf, very deep": registered("PROTOBUF", HEAD + "message M {" * 5_000 + "}" * 5_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_schema_beyond_the_limits_is_refused(name: str) -> None:
    """As a topic's own, and as a foreign one that a record names."""
    schema = BOMBS[name]
    module, began, memory = format_of(schema), time.process_time(), peak()
    with pytest.raises(TableflowError):
        module.fields("s", schema, itertools.count(1))
    with suppress(TableflowError):
        module.identity(schema)
        module.written(schema, schema)
    assert peak() - memory < MEGABYTES
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("name", TREES)
def test_schema_within_the_limits_has_a_table(name: str) -> None:
    for schema in (TREES[name](10, 2), TREES[name](MAX_DEPTH - 5, 1)):
        assert len(format_of(schema).fields("s", schema, itertools.count(1))) >= 1


UNIONS: dict[str, tuple[Callable[[int], RegisteredSchema], int, int]] = {
    "avro, union": (
        lambda size: registered(
            "AVRO", avro_record("R", ["null", *(avro_record(f"I{n}", "int") for n in range(size))])
        ),
        MAX_MEMBERS,
        MAX_MEMBERS,
    ),
    "json, union": (
        lambda size: registered(
            "JSON", json_object(f={"oneOf": [json_object(**{f"a{n}": {}}) for n in range(size)]})
        ),
        MAX_MEMBERS,
        MAX_MEMBERS,
    ),
    "json, constants of branches": (
        lambda size: registered(
            "JSON",
            {
                **json_object(x={}),
                "anyOf": [json_object(p={"const": f"v{n}"}) for n in range(size)],
            },
        ),
        2_000,
        2,
    ),
}
"""A schema of a size, the largest size, and how many columns or fields of a column it then has."""


@pytest.mark.parametrize("name", UNIONS)
def test_union_is_read_in_a_time_of_its_length(name: str) -> None:
    union, most, count = UNIONS[name]

    def reading(size: int) -> Callable[[], list[NestedField]]:
        text, numbers = union(size), itertools.count(1)

        def read() -> list[NestedField]:
            # No text is read twice: nothing of it is remembered.
            schema = replace(text, text=text.text + " " * next(numbers))
            columns = format_of(schema).fields("s", schema, itertools.count(1))
            reason(format_of(schema), b"", ResolvedSchema(schema, schema, columns))
            return columns

        return read

    columns = reading(most)()
    assert count in map(
        len,
        [columns, *(c.field_type.fields for c in columns if isinstance(c.field_type, StructType))],
    )
    assert ratio(reading(most), reading(most // 8)) < 24


@given(st.sampled_from(sorted(TREES)), st.integers(1, 60), st.integers(1, 12))
@hypothesis_settings(max_examples=12)
def test_every_schema_takes_bounded_time(name: str, levels: int, fan: int) -> None:
    schema, began = TREES[name](levels, fan), time.process_time()
    try:
        found = format_of(schema).fields("s", schema, itertools.count(1))
    except TableflowError:
        found = []
    assert len(found) <= MAX_FIELDS
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    "schema",
    [
        registered("JSON", json_object(**{"${env:HOME}": {"type": "string"}})),
        registered("JSON", json_object(a=json_object(**{"x${spark:a}": {"type": "string"}}))),
        registered(
            "JSON",
            json_object(
                a={"oneOf": [json_object(**{"${system:user.name}": {}}), {"type": "null"}]}
            ),
        ),
        registered(
            "AVRO",
            {"type": "record", "name": "R", "fields": [{"name": "${env:HOME}", "type": "int"}]},
        ),
    ],
)
def test_name_with_a_substitution_is_refused(schema: RegisteredSchema) -> None:
    with pytest.raises(TableflowError, match="contains"):
        format_of(schema).fields("s", schema, itertools.count(1))


def test_unreadable_key_schema_is_left_to_its_format() -> None:
    for text in ("[" * 100_000, "{", '{"no": "type"}'):
        found = as_record(registered("AVRO", text), "key")
        with pytest.raises(TableflowError):
            format_of(found).fields("s", found, itertools.count(1))
    with pytest.raises(TableflowError):
        is_union(registered("JSON", "[" * 100_000))


KEY = json_object(id={"type": "integer"})


@pytest.mark.parametrize(
    "schema",
    [
        registered("JSON", {"$ref": "#/definitions/K", "definitions": {"K": KEY}}),
        registered("JSON", {"allOf": [KEY]}),
        registered("AVRO", {"type": avro_record("K", "int")}),
    ],
)
def test_key_that_leads_to_a_record_is_one_column(schema: RegisteredSchema) -> None:
    """Tables have this column; an object itself is one column for each property."""
    (column,) = format_of(schema).fields("s", as_record(schema, "key"), itertools.count(1))
    assert column.name == "key"
    assert isinstance(column.field_type, StructType)


@pytest.mark.parametrize("choice", [5, True, "ab", {"a": {}, "b": {}}])
def test_choice_that_is_not_a_list_is_not_a_union(choice: Any) -> None:
    assert not is_union(registered("JSON", {"oneOf": choice}))
    assert not is_union(registered("JSON", {"anyOf": choice}))


def test_key_schema_of_any_depth_is_a_record_or_left() -> None:
    """Reading a schema and writing it may differ by a few in the depth that they reach."""
    for depth in range(300, 1_100):
        as_record(registered("JSON", '{"not":' * depth + "{}" + "}" * depth), "key")
        as_record(registered("AVRO", '{"type":' * depth + '"int"' + "}" * depth), "key")


def test_protoc_has_limits_of_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = protoc._LIMITED.replace("from grpc_tools", "bytearray(2**31); from grpc_tools")
    monkeypatch.setattr(protoc, "_LIMITED", greedy)
    with pytest.raises(TableflowError):
        protoc.compiled("greedy.proto", f"{HEAD} message M {{}}")
    monkeypatch.setattr(
        protoc, "_LIMITED", greedy.replace("bytearray(2**31)", "exec('while 1: 0')")
    )
    monkeypatch.setattr(protoc, "SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(TableflowError, match="protoc needs more than"):
        protoc.compiled("slow.proto", f"{HEAD} message M {{}}")
    assert time.monotonic() - began < 6 * SECONDS


class Parsed:
    """What a schema was parsed to."""


def test_remembered_error_does_not_keep_the_parsed_schema() -> None:
    parsed: list[weakref.ref[Parsed]] = []

    @remembered
    def refuse(_: str) -> None:
        parsed.append(weakref.ref(Parsed()))
        raise TableflowError("too large", hint="split it")

    for _ in range(2):
        with pytest.raises(TableflowError, match="too large") as refused:
            refuse("a")
        assert refused.value.hint == "split it"
    assert [one() for one in parsed] == [None]


class Registry:
    """A registry's client with any number of versions, each with references to others."""

    def __init__(self, versions: int, size: int, references: int = 0) -> None:
        self.versions, self.text, self.references = versions, " " * size, references
        self.kept = 0

    def get_versions(self, _: str) -> list[int]:
        return list(range(1, self.versions + 1))

    def get_version(self, _: str, version: int) -> Any:
        self.kept += 1
        return Version(version, self.get_schema(version))

    def get_schema(self, number: int, _: str | None = None) -> Any:
        more = [Reference(f"{number}.{n}", "s", number + n + 1) for n in range(self.references)]
        return Text(self.text, more)

    def clear_caches(self) -> None:
        self.kept = 0


class Reference:
    def __init__(self, name: str, subject: str, version: int) -> None:
        self.name, self.subject, self.version = name, subject, version


class Text:
    schema_type = "AVRO"

    def __init__(self, text: str, references: list[Reference]) -> None:
        self.schema_str, self.references = text, references


class Version:
    def __init__(self, number: int, schema: Text) -> None:
        self.schema_id, self.schema, self.guid = number, schema, None


def test_subject_with_many_versions_keeps_the_newest() -> None:
    registry: Any = Registry(versions=schemas.MAX_VERSIONS + 50, size=10)
    found = SubjectReader(registry).read("s")
    assert len(found.schemas) == schemas.MAX_VERSIONS
    assert found.latest.schema_id == registry.versions
    large: Any = Registry(versions=100, size=subjects.MAX_SCHEMA_BYTES)
    reader = SubjectReader(large)
    assert sum(one.size for one in reader.read("s").schemas.values()) <= schemas.MAX_SUBJECT_BYTES
    assert len(reader._versions) <= 10


@pytest.mark.parametrize(
    ("subject", "topic"),
    [("orders-value", "orders"), (":.shop:orders-key", "orders"), ("shop.Order", "TOPIC")],
)
def test_subject_that_does_not_exist_says_how_to_register_it(subject: str, topic: str) -> None:
    registry: Any = Registry(versions=0, size=10)
    with pytest.raises(TableflowError) as raised:
        SubjectReader(registry).read(subject)
    assert f"`topicberg topics register {topic}`" in (raised.value.hint or "")


def test_subject_without_versions_does_not_exist() -> None:
    """Its last version may have been deleted."""
    registry: Any = Registry(versions=0, size=10)
    with pytest.raises(TableflowError, match="subject s does not exist"):
        SubjectReader(registry).read("s")


@pytest.mark.parametrize("size", [10, subjects.MAX_SCHEMA_BYTES + 1])
def test_schema_with_endless_references_is_not_read(size: int) -> None:
    """Each schema refers to two others, which exist whatever their number is."""
    registry: Any = Registry(versions=1, size=size, references=2)
    schema = SubjectReader(registry).by_id(1)
    assert schema is not None
    assert schema.problem is not None
    assert schema.size == 0
    with pytest.raises(TableflowError, match="characters or"):
        format_of(schema).fields("s", schema, itertools.count(1))


# --- records ---


def pairing_of(schema: RegisteredSchema) -> ResolvedSchema:
    return ResolvedSchema(schema, schema, format_of(schema).fields("s", schema, itertools.count(1)))


def test_protobuf_record_that_expands_is_malformed() -> None:
    """Two bytes for each element, of which each one has thousands of columns."""
    names = " ".join(f"optional int64 f{n} = {n};" for n in range(1, 2_000))
    schema = registered(
        "PROTOBUF", f"{HEAD} message M {{ repeated I items = 1; message I {{ {names} }} }}"
    )
    items = [b"\x0a\x00", b"\x0a\x00" * 20_000, b""]
    rows = Decoders(format_of(schema), pairing_of(schema)).decoded([b"\x00" + one for one in items])
    assert [row is not None for row in rows] == [True, False, True]


LONG = "x" * 50_000
TEXTS = {
    "enum": (
        f"{HEAD} message M {{ repeated E e = 1; enum E {{ {LONG} = 0; }} }}",
        b"\x0a\x80\x80\x04" + bytes(65_536),
        "field e (enum)",
    ),
    "enum that is not packed": (
        f"{HEAD} message M {{ repeated E e = 1 [packed = false]; enum E {{ {LONG} = 0; }} }}",
        b"\x08\x00" * 6_000,
        "field e (enum)",
    ),
    "default": (
        'syntax = "proto2"; message M { repeated E e = 1; message E { optional string s = 1 '
        f'[default = "{LONG}"]; }} }}',
        b"\x0a\x00" * 50_000,
        "field e (message)",
    ),
    "defaults": (
        'syntax = "proto2"; message M { repeated E e = 1; message E { '
        + " ".join(f'optional string s{n} = {n} [default = "{LONG}"];' for n in range(1, 11))
        + " } }",
        b"\x0a\x00" * 4_000,
        "field e (message)",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_protobuf_record_of_long_names_or_defaults_is_malformed(name: str) -> None:
    """Two bytes of a record become the text of the schema."""
    text, record, where = TEXTS[name]
    schema, memory = registered("PROTOBUF", text), peak()
    form, pairing = format_of(schema), pairing_of(schema)
    found = reason(form, b"\x00" + record, pairing)
    assert found == f"{where}: its value needs more than {MAX_TEXT_BYTES >> 20} MiB of memory"
    rows = Decoders(form, pairing).decoded([b"\x00", b"\x00" + record, b"\x00"])
    assert [row is not None for row in rows] == [True, False, True]
    assert peak() - memory < 2 * MAX_TEXT_BYTES // 2**20


def test_daemon_limits_the_memory_of_its_workers() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        python_daemon.limit_memory()
        soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
        assert python_daemon.MIN_MEMORY <= soft <= python_daemon.MAX_MEMORY
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


WIDE: dict[SchemaType, Callable[[int], tuple[RegisteredSchema, bytes]]] = {
    "AVRO": lambda size: (registered("AVRO", avro_record("R", *["string"] * size)), b"\x05"),
    "JSON": lambda size: (
        registered("JSON", json_object(**{f"f{n}": {"type": "string"} for n in range(size)})),
        json.dumps({f"f{size - 1}": 1}).encode(),
    ),
    "PROTOBUF": lambda size: (
        registered(
            "PROTOBUF",
            f"{HEAD} message M {{ {' '.join(f'string f{n} = {n};' for n in range(1, size))} }}",
        ),
        b"\x00" + varint((size - 1) << 3 | 2) + b"\x01\xff",
    ),
}


@pytest.mark.parametrize("kind", WIDE)
def test_short_record_is_explained_in_a_time_of_its_own_length(kind: SchemaType) -> None:
    """Whatever the number of fields is: a batch may have millions of such records."""

    def explaining(size: int) -> Callable[[], None]:
        schema, record = WIDE[kind](size)
        form = format_of(schema)
        pairing = ResolvedSchema(schema, schema, form.fields("s", schema, itertools.count(1)))

        def explained() -> None:
            for _ in range(20):
                assert "field f" in str(reason(form, record, pairing))

        return explained

    assert ratio(explaining(2_900), explaining(10)) < 20
