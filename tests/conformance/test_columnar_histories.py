"""Random histories of topics in columns, without a stack, judged by the oracle.

Each record must be a row or malformed as the oracle says, for each version after any evolution, for
keys, tombstones and malformed records. ``TOPICBERG_TEST_SEED`` and ``TOPICBERG_TEST_HISTORIES``
select other histories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from avro_family import AvroFamily
from header_framing import NAMES, RecordHeaders, guid_of, moved
from json_family import JsonFamily
from judge import Judge, Outcome, Side, wire
from plans import rows_of
from protobuf_family import ProtobufFamily
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from shapes import Refused, difference, extended
from shapes import Shape as Columns
from versions import Family, Version

from topicberg.errors import TableflowError
from topicberg.formats.metadata import METADATA_TYPES
from topicberg.formats.subjects import RegisteredSchema, SchemaType, Subject
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.layout.layout import table_schema
from topicberg.tableflow.layout.meanings import Noted, property_of
from topicberg.tableflow.layout.message_fields import KEY, VALUE, Layout, MessageField, raw_columns
from topicberg.tableflow.layout.writers import ForeignSchemas
from topicberg.tableflow.service.topic_table import message_decoders
from topicberg.topics import TopicSpec

SEED = int(os.environ.get("TOPICBERG_TEST_SEED", 0))
HISTORIES = int(os.environ.get("TOPICBERG_TEST_HISTORIES", 25))
FAMILIES: dict[str, Any] = {"AVRO": AvroFamily, "JSON": JsonFamily, "PROTOBUF": ProtobufFamily}
RECORDS = 40

Pair = tuple[bytes | None, bytes | None]
"""Key and value."""


@dataclass
class Tally:
    rows: int = 0
    rejected: int = 0
    histories: int = 0
    problems: list[str] = field(default_factory=list)


class Topic:
    """The schemas of a topic, what the oracle expects of its records, and what decodes them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.kind = list(FAMILIES)[seed % 3]
        self.family: Family = FAMILIES[self.kind](rng)
        self.has_key = rng.random() < 0.3
        self.header_share = rng.choice((0.0, 0.0, 0.5, 1.0))
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

    def decoders(self) -> tuple[ReadPlan, TopicSpec]:
        """:raises TableflowError: it has no table"""
        spec = TopicSpec.model_validate(
            {
                "name": "random",
                "pipeline": "conformance",
                "schema": {"format": self.kind.lower(), "file": "from-the-registry"},
                "key": {"format": self.kind.lower() if self.has_key else "bytes"},
            }
        )
        key = None if self.judge.key is None else _subject("k", self.judge.key)
        layout = Layout(
            MessageField(KEY, key), MessageField(VALUE, _subject("v", self.judge.value))
        )
        schema = table_schema(spec, layout)
        noted = property_of(schema, schema.highest_field_id, schema.as_struct(), Noted())
        table = cast("Any", SimpleNamespace(schema=lambda: schema, properties=noted))
        foreign = ForeignSchemas(cast("Any", None))
        for number, version in self.judge.foreign.items():
            foreign.schemas[number] = _registered(number, version)
        decoded = message_decoders(spec, layout, table, {KEY: foreign, VALUE: foreign})
        names = {name: spec.metadata_column(name) for name in METADATA_TYPES}
        raw, texts = raw_columns(layout, schema.fields)
        target = cast("Any", SimpleNamespace(spec=UNPARTITIONED_PARTITION_SPEC, schema=schema))
        return ReadPlan(spec.name, target, {}, {}, decoded, raw, texts, names, "SKIP"), spec

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

    def by_headers(self, pairs: Sequence[Pair]) -> tuple[list[Pair], list[RecordHeaders]]:
        """Return records of which some name their schemas in headers instead."""
        found, headers = list[Pair](), list[RecordHeaders]()
        for pair in pairs:
            own: RecordHeaders = [("trace", b"1")] if self.rng.random() < 0.3 else []
            halves = []
            for side, raw in zip((KEY, VALUE), pair, strict=True):
                moves = raw is not None and self.rng.random() < self.header_share
                if moves and (side == VALUE or self.has_key):
                    own_ids = {*self.judge.value.own, *(self.judge.key or Side()).own}
                    number = int.from_bytes((raw or b"")[1:5], "big")
                    by_guid = self.rng.random() < 0.5 and number in own_ids
                    there = moved(raw or b"", self.kind, guid=guid_of(number) if by_guid else None)
                    if there is not None:
                        raw = there[0]
                        own.append((NAMES[side], there[1]))
                halves.append(raw)
            found.append((halves[0], halves[1]))
            headers.append(own)
        return found, headers

    def expect(
        self, found: list[dict[str, Any]], rejected: Mapping[int, str], sent: Sequence[Pair]
    ) -> Iterator[str]:
        columns = self.judge.columns
        assert columns is not None
        if len(found) + len(rejected) != len(sent):
            yield f"{len(sent)} records: {len(found)} rows, {len(rejected)} rejected"
        for offset, reason in rejected.items():
            key, value = sent[offset]
            outcome = self.judge.outcome(key, value)
            # The oracle of Protobuf returns such a text as bytes, where the schema is of proto2.
            is_text = self.kind == "PROTOBUF" and reason.endswith("is not UTF-8")
            # A version whose fields exchanged names has no table of its own.
            is_misfit = "which does not fit the table" in reason
            if outcome.row is not None and outcome.sure and not is_text and not is_misfit:
                about = f"key {key and key.hex()}, value {value and value.hex()}"
                yield f"{about}: rejected ({reason}), yet it has a row: {outcome.row}"
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


def _registered(number: int, version: Version) -> RegisteredSchema:
    kind = cast("SchemaType", version.kind)
    return RegisteredSchema(number, kind, version.text, tuple(version.references))


def _subject(name: str, side: Side) -> Subject:
    assert side.latest is not None
    schemas = {number: _registered(number, one) for number, one in side.own.items()}
    guids = {guid_of(number): number for number in schemas}
    return Subject(name, schemas, list(schemas.values())[-1], guids)


def run(seed: int, tally: Tally) -> None:
    topic = Topic(seed)
    try:
        plan, _ = topic.decoders()
        topic.judge.follow()
    except (TableflowError, Refused):
        return
    tally.histories += 1
    title = f"seed {seed}: {topic.kind}"
    good = [topic.record(is_good=True) for _ in range(RECORDS)]
    fine = [pair for pair in good if topic.judge.outcome(*pair).row is not None]
    mixed = [topic.record(is_good=topic.rng.random() < 0.7) for _ in range(RECORDS)]
    bad = [topic.record(is_good=False) for _ in range(RECORDS)]
    for batch in (fine, good, mixed, bad):
        found, rejected = rows_of(plan, *topic.by_headers(batch))
        tally.rows += len(found)
        tally.rejected += len(rejected)
        tally.problems += [f"{title}: {one}" for one in topic.expect(found, rejected, batch)]


def test_columns_of_random_histories_equal_the_oracle() -> None:
    tally = Tally()
    for seed in range(SEED, SEED + HISTORIES):
        run(seed, tally)
    print(tally.histories, tally.rows, tally.rejected)  # noqa: T201
    assert not tally.problems, "\n".join(tally.problems[:10])
    assert tally.histories > HISTORIES / 5
    assert tally.rows > HISTORIES
    assert tally.rejected > HISTORIES
