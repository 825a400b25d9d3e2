"""The reference decoder of JSON against the independent one, without a stack."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
import stored_values
from fuzz_json import random_object, random_schema, random_value, schema_and_records
from hostile_json import expected, hostile
from json_family import version
from shapes import difference

from topicberg.errors import TableflowError
from topicberg.formats import json as json_format
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import RegisteredSchema


class Reference:
    """The reference decoder of a schema."""

    def __init__(self, schema: Any) -> None:
        writer = RegisteredSchema(1, "JSON", json.dumps(schema))
        self.fields = json_format.fields("test", writer, itertools.count(1))
        self._decode = json_format.record_decoder(ResolvedSchema(writer, writer, self.fields))

    def row(self, payload: bytes) -> dict[str, Any] | None:
        """The row of a record; None: it is malformed."""
        try:
            return stored_values.row(self._decode(payload), self.fields)
        except MalformedError:
            return None


def check(seed: int, oracle: Any, reference: Reference, payload: bytes) -> bool:
    """Whether there is a row, which is the oracle's."""
    found, wanted = reference.row(payload), expected(oracle, payload)
    assert (found is None) == (wanted is None), f"seed {seed}: {payload!r}: {wanted} or {found}"
    if found is None:
        return False
    why = difference(wanted, found)
    assert why is None, f"seed {seed}: {payload!r}: {why}"
    return True


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_records_of_random_schemas_equal_the_oracle(start: int) -> None:
    rows = 0
    for seed in range(start, start + 50):
        rng = random.Random(seed)
        schema, records = schema_and_records(rng)
        oracle, reference = version(schema), Reference(schema)
        for record in records:
            text = json.dumps(record, ensure_ascii=rng.random() < 0.5)
            rows += check(seed, oracle, reference, text.encode())
    assert rows > 100


def choice(rng: random.Random, definitions: dict[str, Any]) -> dict[str, Any]:
    """A choice of members that differ below the first level."""
    members: list[Any] = [random_object(rng, 3, definitions) for _ in range(rng.randint(2, 3))]
    if rng.random() < 0.5:
        for number, member in enumerate(members):
            member["properties"]["Kind'"] = {"const": f"kind {number}"}
    for _ in range(rng.randint(1, 2)):
        match rng.choice(("object", "array", "map", "choice")):
            case "object":
                members = [{"type": "object", "properties": {"in": one}} for one in members]
            case "array":
                members = [{"type": "array", "items": one} for one in members]
            case "map":
                members = [{"type": "object", "additionalProperties": one} for one in members]
            case "choice":
                members = [{"anyOf": [one, {"type": "boolean"}]} for one in members]
                members = [{"type": "object", "properties": {"one": one}} for one in members]
    return {"anyOf": members}


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_records_of_nested_choices_equal_the_oracle(start: int) -> None:
    rows = 0
    for seed in range(start, start + 40):
        rng = random.Random(seed)
        definitions: dict[str, Any] = {}
        properties = {f"p{n}": choice(rng, definitions) for n in range(3)}
        schema = {"type": "object", "properties": properties, "definitions": definitions}
        oracle, reference = version(schema), Reference(schema)
        for _ in range(20):
            record = random_value(rng, schema, schema)
            rows += check(seed, oracle, reference, json.dumps(record).encode())
    assert rows > 500


@pytest.mark.parametrize("start", range(1000, 1120, 30))
def test_hostile_records_equal_the_oracle(start: int) -> None:
    rows = malformed = 0
    for seed in range(start, start + 30):
        rng = random.Random(seed)
        definitions: dict[str, Any] = {}
        properties = {f"p{n}": random_schema(rng, 2, definitions) for n in range(6)}
        schema = {"type": "object", "properties": properties, "definitions": definitions}
        try:
            reference = Reference(schema)
        except TableflowError:
            continue
        oracle = version(schema)
        for payload in itertools.chain(*(hostile(rng, oracle.source) for _ in range(25))):
            if check(seed, oracle, reference, payload):
                rows += 1
            else:
                malformed += 1
    assert min(rows, malformed) > 100
