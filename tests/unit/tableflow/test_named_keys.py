"""Keys with a schema are held with the name of it, however many different headers name them."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest
from header_framing import NAMES
from plans import plan_of, readers_of, rows_of
from pyiceberg.catalog.memory import InMemoryCatalog

from topicberg.formats.columnar import framing
from topicberg.formats.framing import wire_prefix
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.tableflow.layout.layout import read_layout, table_schema
from topicberg.topics import TopicSpec

VERSIONS = {
    number: {
        "type": "record",
        "name": "K",
        "fields": [
            {"name": "k", "type": "long"},
            *({"name": f"f{one}", "type": "int", "default": 0} for one in range(number)),
        ],
    }
    for number in range(1, 5)
}


class Registry:
    def read(self, name: str) -> Subject:
        schemas = {
            number: RegisteredSchema(number, "AVRO", json.dumps(text))
            for number, text in VERSIONS.items()
        }
        return Subject(name, schemas, schemas[max(schemas)])


def encoded(number: int, key: int) -> bytes:
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(VERSIONS[number]), {"k": key})
    return buffer.getvalue()


def test_keys_of_many_headers_are_held_with_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_DIFFERENT", 2)
    spec = TopicSpec.model_validate(
        {
            "name": "orders",
            "pipeline": "shop",
            "schema": {"format": "text"},
            "key": {"format": "avro", "file": "k.avsc"},
            "write_mode": "upsert",
        }
    )
    layout = read_layout(spec, readers_of(Registry()))
    catalog = InMemoryCatalog("test")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", table_schema(spec, layout))
    plan, _ = plan_of(spec, layout, table)
    keys = [encoded(number, number) for number in VERSIONS]
    headers: list[Any] = [[(NAMES["key"], wire_prefix(number))] for number in VERSIONS]
    rows, reasons = rows_of(plan, [(key, b"v") for key in keys], headers)
    assert not reasons
    expected = [wire_prefix(number) + key for number, key in zip(VERSIONS, keys, strict=True)]
    assert [row["$$raw-key"] for row in rows] == expected
