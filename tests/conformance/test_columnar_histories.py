"""Random histories of topics in columns, without a stack, judged by the oracle.

The columnar path may refuse any batch, which Spark then decodes. What it accepts must be exactly
what the oracle says, for each version after any evolution, for keys, tombstones and malformed
records. ``TOPICBERG_TEST_SEED`` and ``TOPICBERG_TEST_HISTORIES`` select other histories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from avro_family import AvroFamily
from json_family import JsonFamily
from judge import Judge, Outcome, Side, wire
from protobuf_family import ProtobufFamily
from shapes import Refused, difference, extended
from shapes import Shape as Columns
from versions import Family, Version

from topicberg.errors import TableflowError
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.program import NotCoveredError, Shape
from topicberg.formats.subjects import RegisteredSchema, SchemaType, Subject
from topicberg.kafka.fetch import Records
from topicberg.tableflow import columnar
from topicberg.tableflow.layout import KEY, VALUE, Half, Layout, table_schema
from topicberg.topics import TopicSpec

SEED = int(os.environ.get("TOPICBERG_TEST_SEED", 0))
HISTORIES = int(os.environ.get("TOPICBERG_TEST_HISTORIES", 40))
FAMILIES: dict[str, Any] = {"AVRO": AvroFamily, "JSON": JsonFamily, "PROTOBUF": ProtobufFamily}
RECORDS = 40
TEXT_BYTES = 256 * 1024

Pair = tuple[bytes | None, bytes | None]
"""Key and value."""


@dataclass
class Tally:
    accepted: int = 0
    refused: int = 0
    batches: int = 0
    """Batches of good records of all versions that were accepted as a whole."""
    histories: int = 0
    problems: list[str] = field(default_factory=list)


class Topic:
    """The schemas of a topic, what the oracle expects of its records, and what decodes them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.kind = list(FAMILIES)[seed % 3]
        self.family: Family = FAMILIES[self.kind](rng)
        self.has_key = rng.random() < 0.3
        self.judge = Judge(Side(), Side() if self.has_key else None, upsert=False)
        first = self.family.first()
        self._own(self.judge.value, first)
        if self.judge.key is not None:
            self._own(self.judge.key, self.family.key(first))
        for number, version in enumerate(self.family.foreign(first)):
            self.judge.foreign[900 + number] = version
        for _ in range(rng.randint(0, 4)):
            self._evolve()

    def _own(self, side: Side, version: Version) -> None:
        number = 1 + len(side.own) + (500 if side is self.judge.key else 0)
        side.own[number] = side.latest = version

    def _evolve(self) -> None:
        latest = self.judge.value.latest
        assert latest is not None
        version = self.family.next(latest, wild=self.rng.random() < 0.5)
        if version is not None and version.shape is not None:
            self._own(self.judge.value, version)

    def decoders(self) -> tuple[columnar.Plan, TopicSpec]:
        """:raises NotCoveredError: Spark decodes the topic
        :raises TableflowError: it has no table
        """
        spec = TopicSpec.model_validate(
            {
                "name": "random",
                "pipeline": "conformance",
                "schema": {"format": self.kind.lower(), "file": "from-the-registry"},
                "key": {"format": self.kind.lower() if self.has_key else "string"},
            }
        )
        key = None if self.judge.key is None else _subject("k", self.judge.key)
        layout = Layout(Half(KEY, key), Half(VALUE, _subject("v", self.judge.value)))
        schema = table_schema(spec, layout)
        table = cast("Any", SimpleNamespace(schema=lambda: schema))
        decoded = columnar.programs(spec, layout, table)
        names = {name: spec.metadata_column(name) for name in columnar._METADATA}
        return columnar.Plan(spec.name, cast("Any", None), {}, {}, decoded, names), spec

    def record(self, *, is_good: bool) -> Pair:
        rng = self.rng
        number, version = rng.choice(list(self.judge.value.own.items()))
        value: bytes | None = wire(number, version.encode(rng, 0.0 if is_good else 0.2))
        key: bytes | None = rng.choice((None, b"", b"key"))
        if self.judge.key is not None:
            number, version = rng.choice(list(self.judge.key.own.items()))
            key = wire(number, version.encode(rng, 0.0))
        if is_good:
            return key, None if rng.random() < 0.1 else value
        assert value is not None
        match rng.randrange(7):
            case 0:
                value = value[: rng.randrange(len(value) + 1)]
            case 1:
                changed = bytearray(value)
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
                value = bytes(changed)
            case 2:
                value += rng.randbytes(rng.randint(1, 4))
            case 3:
                number, version = rng.choice(list(self.judge.foreign.items()))
                value = wire(number, version.encode(rng, 0.0))
            case 4:
                number, version = rng.choice(list(self.judge.value.own.items()))
                value = wire(number, value[5:])  # the bytes of another version
            case 5 if key:
                key = key[: rng.randrange(len(key) + 1)]
        return key, value

    def expect(self, found: list[dict[str, Any]], sent: Sequence[Pair]) -> Iterator[str]:
        columns = self.judge.columns
        assert columns is not None
        for row in found:
            key, value = sent[row["$$offset"]]
            outcome = self.judge.outcome(key, value)
            about = f"key {key and key.hex()}, value {value and value.hex()}"
            if outcome.row is None:
                if outcome.sure and not _depends_on_column(outcome, columns):
                    yield f"{about}: malformed, yet it has a row: {row}"
                continue
            for name, one in outcome.row.items():
                wanted = extended(one, columns.children[name])
                if outcome.exact and (wrong := difference(wanted, row.get(name), name)):
                    yield f"{about}: {wrong}"


def _depends_on_column(outcome: Outcome, columns: Columns) -> bool:
    """Whether a writer's text or time may be in the column of a later version: bytes, a number."""
    kinds = set(_kinds(columns))
    if "UnicodeDecodeError" in outcome.why:
        return "binary" in kinds
    return "outside of the years" in outcome.why and bool(kinds & {"long", "int"})


def _kinds(column: Columns) -> Iterator[str]:
    yield column.kind
    for one in column.children.values():
        yield from _kinds(one)


def _subject(name: str, side: Side) -> Subject:
    assert side.latest is not None
    schemas = {
        number: RegisteredSchema(
            number, cast("SchemaType", one.kind), one.text, tuple(one.references)
        )
        for number, one in side.own.items()
    }
    return Subject(name, schemas, list(schemas.values())[-1])


def fetched(pairs: Sequence[Pair]) -> Records:
    """Records as librdkafka's messages become them; the offset is the place in the list."""
    size = sum(len(one or b"") for pair in pairs for one in pair)
    records = Records(len(pairs), max(64 * 1024, size))
    for number, (key, value) in enumerate(pairs):
        for data, offsets, present, one in (
            (records.keys, records.key_offsets, records.has_key, key),
            (records.values, records.value_offsets, records.has_value, value),
        ):
            begin, stop = int(offsets[number]), int(offsets[number]) + len(one or b"")
            data[begin:stop] = np.frombuffer(one or b"", np.uint8)
            offsets[number + 1], present[number] = stop, one is not None
        records.offsets[number] = number
    records.times[:], records.time_types[:] = 1_700_000_000_000, 1
    records.count = len(pairs)
    return records


def rows(plan: columnar.Plan, pairs: Sequence[Pair]) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows of records, and whether all were accepted."""
    shapes = {half: Shape(one.fields) for half, one in plan.decoded.items() if one.programs}
    buffers = {half: Buffers(shape, len(pairs), TEXT_BYTES) for half, shape in shapes.items()}
    found: list[dict[str, Any]] = []
    try:
        for columns, _ in columnar._decoded(plan, fetched(pairs), buffers):
            plain = {
                name: one.cast(pa.string()) if pa.types.is_dictionary(one.type) else one
                for name, one in columns.items()
            }
            found += pa.table(plain).to_pylist()
    except NotCoveredError:
        return found, False
    return found, True


def run(seed: int, tally: Tally) -> None:
    topic = Topic(seed)
    try:
        plan, _ = topic.decoders()
        topic.judge.follow()
    except (NotCoveredError, TableflowError, Refused):
        return
    tally.histories += 1
    title = f"seed {seed}: {topic.kind}"
    good = [topic.record(is_good=True) for _ in range(RECORDS)]
    fine = [pair for pair in good if topic.judge.outcome(*pair).row is not None]
    for batch in (fine, good):
        found, is_whole = rows(plan, batch)
        assert len(found) == len(batch) or not is_whole, title
        tally.batches += is_whole and batch is fine
        tally.problems += [f"{title}: {one}" for one in topic.expect(found, batch)]
    for _ in range(RECORDS):
        batch = [topic.record(is_good=False)]
        found, is_whole = rows(plan, batch)
        tally.accepted, tally.refused = tally.accepted + is_whole, tally.refused + (not is_whole)
        tally.problems += [f"{title}: {one}" for one in topic.expect(found, batch)]


def test_columns_of_random_histories_equal_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "MIN_RUN", 1)
    tally = Tally()
    for seed in range(SEED, SEED + HISTORIES):
        run(seed, tally)
    print(tally.histories, tally.batches, tally.accepted, tally.refused)  # noqa: T201
    assert not tally.problems, "\n".join(tally.problems[:10])
    assert tally.batches > HISTORIES / 5
    assert tally.accepted > HISTORIES
    assert tally.refused > HISTORIES
