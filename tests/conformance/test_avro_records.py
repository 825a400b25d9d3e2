"""The reference decoder of Avro beside fastavro and the documented rules, without a stack. The
records are of several versions of random schemas, and of the public ones, sound or damaged."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import public_schemas
import pytest
from avro_family import AvroFamily
from judge import Judge, Outcome, Side, wire
from oracle_columns import fields
from seeds import some
from shapes import Refused, Shape, difference
from stored_values import row
from versions import Decoded, Version

from topicberg.errors import TableflowError
from topicberg.formats import avro
from topicberg.formats.contract import RecordDecoder, ResolvedSchema
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import RegisteredSchema

WRITER, LATEST = 1, 2
_KEYS = Shape("struct", {"_key": Shape("binary")})


class Table:
    """A table that follows some versions of a subject, and the decoders of their records."""

    def __init__(self, versions: list[Version]) -> None:
        """:raises Refused: the columns cannot follow the versions"""
        self.versions = versions
        keys = Version("", "AVRO", _KEYS, None, lambda *_: b"", lambda _: Decoded(None))
        self.judge = Judge(Side(), Side(latest=keys), upsert=False)
        for number, version in enumerate(versions):
            self.judge.value.own[number] = version
            self.judge.value.latest = version
            if version.shape is None:
                raise Refused("it has no columns")
            self.judge.follow()
        assert self.judge.columns is not None
        self.columns = [one for one in fields(self.judge.columns) if one.name not in _KEYS.children]
        self._decoders: dict[int, RecordDecoder] = {}

    def decoder(self, number: int) -> RecordDecoder:
        if number not in self._decoders:
            writer, latest = (
                RegisteredSchema(schema_id, "AVRO", version.text)
                for schema_id, version in (
                    (WRITER, self.versions[number]),
                    (LATEST, self.versions[-1]),
                )
            )
            self._decoders[number] = avro.record_decoder(
                ResolvedSchema(writer, latest, self.columns)
            )
        return self._decoders[number]

    def outcome(self, number: int, payload: bytes) -> Outcome:
        return self.judge.outcome(None, wire(number, payload))


def histories(seed: int, count: int) -> list[Table]:
    rng = random.Random(seed)
    found: list[Table] = []
    while len(found) < count:
        family = AvroFamily(rng)
        versions = [family.first()]
        for _ in range(rng.randrange(3)):
            later = family.next(versions[-1], wild=rng.random() < 0.3)
            versions += [later] if later is not None else []
        try:
            table = Table(versions)
        except Refused:
            continue
        if not any(has_numbers(version.source) for version in versions):
            found.append(table)
    return found


def has_numbers(schema: Any) -> bool:
    """Whether a union has two types of numbers: no rule says which one another version's is."""
    if isinstance(schema, dict):
        return any(has_numbers(one) for one in schema.values())
    if not isinstance(schema, list):
        return False
    numbers = [one for one in schema if one in ("int", "long", "float", "double")]
    return len(numbers) > 1 or any(has_numbers(one) for one in schema)


def damaged(rng: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    match rng.randrange(4):
        case 0 if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data) + 1) :]
        case 2:
            data += rng.randbytes(rng.randint(1, 3))
    return bytes(data)


def check(table: Table, number: int, payload: bytes, tally: Counter[str]) -> None:
    """Compare one record with the rules."""
    expected = table.outcome(number, payload)
    values: dict[str, Any] | None = None
    reason = ""
    try:
        values = table.decoder(number)(payload)
    except MalformedError as error:
        reason = str(error)
    if values is None:
        assert expected.row is None or not expected.sure, f"{reason}; expected {expected.row}"
        if expected.row is None and expected.sure and expected.names:
            # The rules name one of several fields that are wrong.
            tally["named" if expected.is_named(reason) else "another"] += 1
        tally["malformed"] += 1
        return
    found = row(values, table.columns)
    if expected.row is None:
        assert not expected.sure, f"expected malformed: {expected.why}; found {found}"
        return
    wanted = {name: one for name, one in expected.row.items() if name not in _KEYS.children}
    if expected.exact:
        why = difference(wanted, found)
        assert why is None, why
    tally["rows"] += 1


@pytest.mark.parametrize("seed", some(range(8)))
def test_record_of_any_version_is_what_the_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    tally: Counter[str] = Counter()
    for table in histories(seed, 25):
        for number, version in enumerate(table.versions):
            for _ in range(12):
                check(table, number, version.encode(rng, 0.1), tally)
                check(table, number, damaged(rng, version.encode(rng, 0.1)), tally)
    assert tally["rows"] > 200
    assert tally["named"] > 20 * tally["another"]


@pytest.mark.parametrize("path", public_schemas.AVRO)
def test_record_of_a_public_schema_is_what_fastavro_reads(path: str) -> None:
    rng, version, tally = random.Random(path), public_schemas.avro(path), Counter[str]()
    writer = RegisteredSchema(WRITER, "AVRO", version.text, version.references)
    if version.shape is None:
        with pytest.raises(TableflowError):
            avro.record_decoder(
                ResolvedSchema(writer, writer, avro.fields("s", writer, iter(range(10**6))))
            )
        return
    table = Table([version])
    table.columns = avro.fields("s", writer, iter(range(10**6)))
    table._decoders[0] = avro.record_decoder(ResolvedSchema(writer, writer, table.columns))
    for _ in range(20):
        check(table, 0, version.encode(rng, 0.05), tally)
        check(table, 0, damaged(rng, version.encode(rng, 0.0)), tally)
    assert tally["rows"]
