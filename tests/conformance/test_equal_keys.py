"""Keys of random versions and spellings are equal as the oracle says, without a stack.

In three formats, keys that share a field with the value and keys that do not: the text of a key
when its record is read, that of the raw key of its row, and that of the columns of the row, if they
are said to have it.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from header_framing import fetched
from judge import Judge, Side, wire
from plans import plan_of
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from shapes import Refused
from test_columnar_histories import FAMILIES, HISTORIES, SEED, _subject
from versions import Family, Version, some_keys

from topicberg.errors import TableflowError
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.iceberg.data_files import DataFileWriter, copied
from topicberg.tableflow.decode.columns import absent_columns, buffers_of, chunks
from topicberg.tableflow.decode.raw_keys import RawKeys
from topicberg.tableflow.layout.foreign import ForeignSchemas
from topicberg.tableflow.layout.layout import table_schema
from topicberg.tableflow.layout.message_fields import KEY, VALUE, Layout, MessageField
from topicberg.tableflow.layout.upsert_key import IDENTITY, UpsertKey
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.tableflow.upsert.key_hashing import key_texts
from topicberg.tableflow.values.key_values import key_text
from topicberg.topics import TopicSpec

RECORDS = 60


class Keyed:
    """A topic whose keys have some versions of a schema."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.kind = list(FAMILIES)[seed % 3]
        self.family: Family = FAMILIES[self.kind](rng)
        self.key_side = Side()
        self.judge = Judge(Side(), self.key_side, upsert=True)
        first = self.family.first()
        self._own(self.judge.value, first)
        self._own(self.key_side, self.family.key(first))
        self.values = some_keys(rng, self.key_side.shape)

    def _own(self, side: Side, version: Version) -> None:
        number = 1 + len(side.own) + (500 if side is self.key_side else 0)
        side.own[number] = side.latest = version

    def evolve(self) -> None:
        latest = self.key_side.latest
        assert latest is not None
        self._own(self.key_side, self.family.next_key(latest))

    def spec(self) -> TopicSpec:
        return TopicSpec.model_validate(
            {
                "name": "random",
                "pipeline": "conformance",
                "schema": {"format": self.kind.lower(), "file": "from-the-registry"},
                "key": {"format": self.kind.lower()},
                "write_mode": "upsert",
            }
        )

    def record(self) -> tuple[bytes, bytes | None]:
        rng = self.rng
        number, version = rng.choice(list(self.key_side.own.items()))
        key = wire(number, self.family.spelled(version, rng.choice(self.values)))
        number, version = rng.choice(list(self.judge.value.own.items()))
        return key, None if rng.random() < 0.2 else wire(number, version.encode(rng, 0.0))


def read(
    topic: Keyed, layout: Layout, spec: TopicSpec, table: Table
) -> tuple[UpsertKey, pa.Table, list[bytes], DataFile | None]:
    """Return the key of the table, the rows of some records, their raw keys, and their file."""
    schema = table.schema()
    plan, key = plan_of(spec, layout, table)
    assert key is not None
    records = [topic.record() for _ in range(RECORDS)]
    buffers = buffers_of(plan.decoded, len(records))
    parts = []
    with DataFileWriter(plan.target, table.io) as writer:
        for chunk in chunks(plan, fetched(records), buffers, Rejections("LOG")):
            wanted = {*key.names, IDENTITY, key.raw, key.offset}
            columns = {name: one for name, one in chunk.columns.items() if name in wanted}
            parts.append(copied(pa.table(columns)))
            if key.is_in_columns:
                writer.write(chunk.columns | absent_columns(chunk, schema.fields))
    rows = pa.concat_tables(parts).combine_chunks()
    raws = [records[at][0] for at in rows.column(key.offset).to_pylist()]
    return key, rows, raws, next(iter(writer.files), None)


def no_keys(_: object) -> Any:
    raise AssertionError("the raw keys are not needed")


def run(seed: int, catalog: Catalog) -> tuple[int, int, int]:
    """Return the number of rows, of pairs of equal keys of other bytes, and of keys in columns."""
    topic = Keyed(seed)
    spec, pairs, rows_read, in_columns = topic.spec(), 0, 0, 0
    for number in range(4):
        layout = Layout(
            MessageField(KEY, _subject("k", topic.key_side)),
            MessageField(VALUE, _subject("v", topic.judge.value)),
        )
        try:
            topic.judge.follow()
            table = catalog.create_table(f"n.t{seed}_{number}", table_schema(spec, layout))
            key, rows, raws, file = read(topic, layout, spec, table)
        except (TableflowError, Refused):
            return rows_read, pairs, in_columns
        assert rows.column(key.raw).to_pylist() == raws
        texts = rows.column(IDENTITY).to_pylist()
        expected = [topic.judge.key_text(raw) for raw in raws]
        for one, other in itertools.combinations(range(len(raws)), 2):
            is_equal = expected[one] == expected[other]
            about = f"seed {seed}: {raws[one].hex()}, {raws[other].hex()}"
            assert (texts[one] == texts[other]) == is_equal, about
            pairs += is_equal and raws[one] != raws[other]
        again = RawKeys(layout.key, key, ForeignSchemas(cast("Any", None)))
        assert again.texts(rows.column(key.raw)).to_pylist() == texts, f"seed {seed}"
        if key.is_in_columns:
            columns = [rows.column(name) for name in key.names]
            assert key_text(columns, key.shapes).to_pylist() == texts, f"seed {seed}"
            assert file is not None
            of_file = [text for text, _, _ in key_texts(table, file, key, no_keys)]
            assert pa.chunked_array(of_file).to_pylist() == texts, f"seed {seed}: in the file"
            in_columns += len(raws)
        rows_read += len(raws)
        topic.evolve()
    return rows_read, pairs, in_columns


def test_keys_of_random_versions_are_equal_as_the_oracle_says(tmp_path: Path) -> None:
    catalog = InMemoryCatalog("test", warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    found = [run(seed, catalog) for seed in range(SEED, SEED + HISTORIES)]
    rows, pairs, in_columns = (sum(one) for one in zip(*found, strict=True))
    print(rows, pairs, in_columns)  # noqa: T201
    assert rows > HISTORIES * RECORDS
    assert pairs > HISTORIES * RECORDS
    assert 0 < in_columns < rows


def test_key_of_a_file_has_the_nested_fields_of_any_name(tmp_path: Path) -> None:
    catalog = InMemoryCatalog("test", warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    number = {"type": "integer", "title": "N"}
    nested = {"type": "object", "properties": {"user-id": number, "it's": number}}
    halves = {
        KEY: {"type": "object", "properties": {"id": nested}},
        VALUE: {"type": "object", "properties": {"more": number}},
    }
    layout = Layout(*(MessageField(side, json_subject(side, one)) for side, one in halves.items()))
    spec = TopicSpec.model_validate(
        {
            "name": "nested",
            "pipeline": "conformance",
            "schema": {"format": "json", "file": "from-the-registry"},
            "key": {"format": "json"},
            "write_mode": "upsert",
        }
    )
    keys = [wire(1, json.dumps({"id": {"user-id": n}}).encode()) for n in range(RECORDS)]
    values = iter(keys)
    topic = cast("Any", SimpleNamespace(record=lambda: (next(values), wire(1, b"{}"))))
    table = catalog.create_table("n.t", table_schema(spec, layout))
    key, rows, raws, file = read(topic, layout, spec, table)
    assert raws == keys
    assert key.is_in_columns
    assert file is not None
    (found,) = (text for text, _, _ in key_texts(table, file, key, no_keys))
    assert found.to_pylist() == rows.column(IDENTITY).to_pylist()
    assert len(set(found.to_pylist())) == RECORDS
    raw = RawKeys(layout.key, key, ForeignSchemas(cast("Any", None)))
    of_others = rows.column(key.raw).cast(pa.large_binary())  # as some write it
    assert raw.texts(of_others).to_pylist() == found.to_pylist()


def json_subject(name: str, schema: Any) -> Subject:
    registered = RegisteredSchema(1, "JSON", json.dumps(schema))
    return Subject(name, {1: registered}, registered)
