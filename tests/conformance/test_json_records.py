"""The reference decoder of JSON against the independent one, without a stack."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
import stored_values
from fuzz_json import random_schema, schema_and_records
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
