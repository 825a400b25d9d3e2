"""Keys of random versions and spellings are equal as the oracle says, without a stack.

In three formats, keys that share a field with the value and keys that do not: the text of a key
when its record is read, that of the raw key of its row, and that of the columns of the row, if they
are said to have it.
"""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from header_framing import fetched
from judge import Judge, Side, wire
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from shapes import Refused
from test_columnar_histories import FAMILIES, HISTORIES, SEED, _subject
from versions import Family, Version, some_keys

from topicberg.errors import TableflowError
from topicberg.tableflow.columns import buffers_of, chunks
from topicberg.tableflow.foreign import ForeignSchemas
from topicberg.tableflow.key_values import key_text
from topicberg.tableflow.layout import KEY, VALUE, Half, Layout, holds_raw_key, table_schema
from topicberg.tableflow.plan import METADATA, Plan, message_decoders
from topicberg.tableflow.raw_keys import RawKeys
from topicberg.tableflow.rejections import Rejections
from topicberg.tableflow.upsert_key import IDENTITY, UpsertKey, upsert_key
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


def read(topic: Keyed, layout: Layout, spec: TopicSpec) -> tuple[UpsertKey, pa.Table, list[bytes]]:
    """Return the key of the table, the rows of some records, and their raw keys."""
    schema = table_schema(spec, layout)
    table = cast("Any", SimpleNamespace(schema=lambda: schema))
    none = ForeignSchemas(cast("Any", None))
    foreign = {KEY: none, VALUE: none}
    key = upsert_key(spec, layout, schema.fields)
    decoded = message_decoders(spec, layout, table, foreign, key)
    names = {name: spec.metadata_column(name) for name in (*METADATA, "raw-key")}
    raw = frozenset({KEY} if holds_raw_key(layout, schema.fields) else ())
    uuid_ = cast("Any", "a table")
    target = cast("Any", SimpleNamespace(spec=UNPARTITIONED_PARTITION_SPEC))
    plan = Plan(spec.name, target, {}, {}, decoded, raw, names, "SKIP", uuid_, key)
    records = [topic.record() for _ in range(RECORDS)]
    buffers = buffers_of(plan.decoded, len(records))
    parts = []
    for chunk in chunks(plan, fetched(records), buffers, Rejections("LOG")):
        wanted = {*key.names, IDENTITY, key.raw, key.offset}
        columns = {name: one for name, one in chunk.columns.items() if name in wanted}
        parts.append(pa.table({name: pa.concat_arrays([one]) for name, one in columns.items()}))
    rows = pa.concat_tables(parts).combine_chunks()
    return key, rows, [records[at][0] for at in rows.column(key.offset).to_pylist()]


def run(seed: int) -> tuple[int, int, int]:
    """Return the number of rows, of pairs of equal keys of other bytes, and of keys in columns."""
    topic = Keyed(seed)
    spec, pairs, rows_read, in_columns = topic.spec(), 0, 0, 0
    for _ in range(4):
        layout = Layout(
            Half(KEY, _subject("k", topic.key_side)), Half(VALUE, _subject("v", topic.judge.value))
        )
        try:
            topic.judge.follow()
            key, rows, raws = read(topic, layout, spec)
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
            in_columns += len(raws)
        rows_read += len(raws)
        topic.evolve()
    return rows_read, pairs, in_columns


def test_keys_of_random_versions_are_equal_as_the_oracle_says() -> None:
    rows, pairs, in_columns = (
        sum(one) for one in zip(*map(run, range(SEED, SEED + HISTORIES)), strict=True)
    )
    print(rows, pairs, in_columns)  # noqa: T201
    assert rows > HISTORIES * RECORDS
    assert pairs > HISTORIES * RECORDS
    assert 0 < in_columns < rows
