"""Which records of an upsert batch are the newest of their keys, and which rows they replace."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from io import BytesIO
from random import Random
from typing import Any

import fastavro
import numpy as np
import pytest
from header_framing import NAMES
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import plan_of, readers_of, rows_of
from pyiceberg.catalog.memory import InMemoryCatalog

from topicberg.formats.columnar import framing
from topicberg.formats.framing import wire_prefix
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.iceberg.data_files import Placed
from topicberg.tableflow.layout.layout import read_layout, table_schema
from topicberg.tableflow.upsert.batch_keys import BatchKeys, WrittenKeys
from topicberg.tableflow.upsert.key_files import Keys, merged, newest
from topicberg.topics import TopicSpec

Record = tuple[int, int, bool]
"""A key's two hashes, and whether the record has a value."""
CHUNKS = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.booleans()), max_size=12),
    max_size=6,
)


def keys_of(chunk: list[Record]) -> Keys:
    high = np.array([one[0] for one in chunk], np.uint64)
    low = np.array([one[1] for one in chunk], np.uint64)
    return Keys(high, low, np.arange(len(chunk), dtype=np.uint32))


@given(st.lists(CHUNKS, max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=120)
def test_newest_record_of_each_key_stays(parts: list[list[list[Record]]], random: Random) -> None:
    """Each part writes its chunks to two files, as of two partitions of a table."""
    offset, written, rows = 0, list[BatchKeys](), dict[tuple[str, int], int]()
    last: dict[tuple[int, int], int | None] = {}
    for number, chunks in enumerate(parts):
        collected, sizes = WrittenKeys(), Counter[str]()
        for chunk in chunks:
            keys, offsets = keys_of(chunk), np.arange(offset, offset + len(chunk))
            offset += len(chunk)
            kept = np.sort(newest(keys.high, keys.low))
            has_value = np.array([one[2] for one in chunk], np.bool_)
            stay = kept[has_value[kept]]
            collected.add_deleted(keys, kept[~has_value[kept]])
            halves = np.array([random.random() < 0.5 for _ in stay], np.bool_)
            placed = []
            for name, of_half in (("a", halves), ("b", ~halves)):
                some, path = np.flatnonzero(of_half), f"{number}{name}"
                if len(some):
                    placed.append(Placed(path, sizes[path], some))
                    for place, row in enumerate(stay[some]):
                        rows[path, sizes[path] + place] = int(offsets[row])
                    sizes[path] += len(some)
            collected.add(keys, stay, placed)
            for at, (high, low, value) in zip(offsets, chunk, strict=True):
                last[high, low] = int(at) if value else None
        written.append(pickle.loads(pickle.dumps(collected.all())))
    batch = BatchKeys.joined(written)
    keys, replaced = batch.newest()
    assert sorted(zip(keys.high.tolist(), keys.low.tolist(), strict=True)) == sorted(last)
    assert (np.diff(keys.high.astype(np.int64)) >= 0).all()
    left = {
        at: offset
        for at, offset in rows.items()
        if at[1] not in replaced.get(at[0], np.empty(0)).tolist()
    }
    assert sorted(left.values()) == sorted(at for at in last.values() if at is not None)
    of_files = dict(batch.of_files())
    assert {path: len(held.high) for path, held in of_files.items()} == Counter(p for p, _ in rows)
    for held in of_files.values():
        assert np.array_equal(np.sort(merged([held]).high), held.high)
        assert sorted(held.position.tolist()) == list(range(len(held.high)))


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
    layout, catalog = read_layout(spec, readers_of(Registry())), InMemoryCatalog("test")
    catalog.create_namespace("n")
    plan, _ = plan_of(spec, layout, catalog.create_table("n.t", table_schema(spec, layout)))
    keys = [encoded(number, number) for number in VERSIONS]
    headers: list[Any] = [[(NAMES["key"], wire_prefix(number))] for number in VERSIONS]
    rows, reasons = rows_of(plan, [(key, b"v") for key in keys], headers)
    assert not reasons
    expected = [wire_prefix(number) + key for number, key in zip(VERSIONS, keys, strict=True)]
    assert [row["$$raw-key"] for row in rows] == expected
