"""Columns of schema files of the three formats, and the errors of invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from topicberg.errors import SpecError
from topicberg.topics.schema import read_schema, schema_path

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Trade {
  string side = 1;
  int32 quantity = 2;
  uint64 total = 3;
  google.protobuf.Timestamp at = 4;
  map<string, int64> counts = 5;
  repeated string tags = 6;
  Line line = 7;
  Kind kind = 8;
}
enum Kind { NONE = 0; }
message Line { bytes data = 1; }
"""


def record(*fields: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "a.b.Trade", "fields": fields, **more})


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def columns(tmp_path: Path, kind: str, text: str, message: str | None = None) -> dict[str, str]:
    path = tmp_path / f"schema.{kind}"
    path.write_text(text)
    return read_schema(path, kind, message).columns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON: line 1, column 1"),
        ('{"type": "record",}', "not JSON"),
        ('"string"', "is not a record"),
        ("[]", "is not a record"),
        ('{"type": "record"}', "not an Avro schema"),
        (record(), "has no fields"),
        (record(field("a", "nope")), "not an Avro schema"),
        (record(field("a", "int"), field("a", "int")), "already in use"),
        (record(field("a-b", "int")), "'a-b' is not a field name"),
        (record(field("a", "int", default="x")), "Default value"),
        (record(field("a", ["int", "int"])), "already in Union"),
        (record(field("a", {"type": "bytes", "logicalType": "decimal"})), "precision from 1 to 38"),
        (record(field("a", ["null", "Trade"])), "recursive"),
        (record(field("a", {"type": "array", "items": "a.b.Trade"})), "recursive"),
        (
            record(field("x", {"type": "record", "name": "X", "fields": [field("t", "Trade")]})),
            "a.b.Trade always contains itself",
        ),
    ],
)
def test_invalid_avro_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as raised:
        columns(tmp_path, "avro", text)
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("expected", ["avro", "json", "protobuf"])
def test_file_of_another_format_names_that_format(tmp_path: Path, expected: str) -> None:
    texts = {
        "avro": record(field("a", "int")),
        "json": '{"type": "object", "properties": {"a": {"type": "string"}}}',
        "protobuf": "message Order {\n  string a = 1;\n}",
    }
    for found, text in texts.items():
        if found == expected:
            continue
        with pytest.raises(SpecError, match=f"is this `format: {found}`, not {expected}"):
            columns(tmp_path, expected, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON Schema"),
        ('{"type": "string"}', "is not an object with properties"),
        ('{"properties": {"a": {"$ref": "#"}}}', "field a contains itself"),
        ('{"properties": {"a": {"$ref": "#/definitions/b"}}}', "field a refers to #/definitions/b"),
        ('{"type": "objct"}', "not a JSON Schema"),
        ('{"type": "object", "properties": {}}', "is not an object with properties"),
        ('{"type": "object", "properties": {"a": {"type": "strin"}}}', "not a JSON Schema"),
    ],
)
def test_invalid_json_schema_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        columns(tmp_path, "json", text)


def test_protobuf(tmp_path: Path) -> None:
    assert columns(tmp_path, "protobuf", PROTO) == {
        "side": "string",
        "quantity": "int",
        "total": "decimal(20,0)",
        "at": "timestamptz",
        "counts": "map",
        "tags": "list",
        "line": "struct",
        "kind": "string",
    }
    assert columns(tmp_path, "protobuf", PROTO, "Line") == {"data": "binary"}


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ("syntax = 3", None, "not Protobuf: 1:10"),
        (record(field("a", "int")), None, "`format: avro`, not protobuf"),
        ('syntax = "proto3"; import "other.proto";', None, "other.proto"),
        ('syntax = "proto3"; package x;', None, "defines no message"),
        (PROTO, "Trad", "no message Trad; there are Trade, Line"),
        (PROTO.replace("bytes data", "Trade trade"), None, "recursive"),
    ],
)
def test_invalid_protobuf_is_refused(
    tmp_path: Path, text: str, message: str | None, reason: str
) -> None:
    with pytest.raises(SpecError, match=reason) as raised:
        columns(tmp_path, "protobuf", text, message)
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("file", ["../x", "/etc/hosts", "a/../../x", "a\0b", "folder", "missing"])
def test_files_outside_are_refused(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "schemas"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "x").write_text("{}")
    with pytest.raises(SpecError, match="schemas/"):
        schema_path(folder, file)


def test_files_in_folders_of_the_schema_folder(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "a.avsc").write_text(record(field("a", "int")))
    assert schema_path(tmp_path, "shop/a.avsc") == tmp_path / "shop" / "a.avsc"


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    assert columns(tmp_path, "avro", record(field("a", "int"))) == {"a": "int"}
    assert columns(tmp_path, "avro", record(field("b", "long"))) == {"b": "long"}


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "a.avsc"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="cannot be read"):
        read_schema(path, "avro")


@pytest.mark.parametrize("doc", [5, ["a"], {"a": 1}, None])
def test_avro_doc_that_is_not_text_is_ignored(tmp_path: Path, doc: Any) -> None:
    assert columns(tmp_path, "avro", record(field("a", "int", doc=doc))) == {"a": "int"}
