"""How many reasons are searched for the malformed records of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from topicberg.tableflow import deadletters
from topicberg.tableflow.deadletters import logged_records
from topicberg.tableflow.rows import PROBLEM

SPARK_SAYS = "the value cannot be decoded"


class Row:
    def asDict(self) -> dict[str, Any]:
        return {
            "key": None,
            "value": b"x" * 100,
            PROBLEM: {"reason": SPARK_SAYS, "schema_id": 1},
        }


class Batch:
    """A decoding of ten malformed records, without Spark."""

    def __init__(self) -> None:
        self.frame = self

    def filter(self, _: str) -> Batch:
        return self

    def select(self, *_: str) -> Batch:
        return self

    def toLocalIterator(self) -> Iterator[Row]:
        return iter([Row() for _ in range(10)])

    def reason(self, _: dict[str, Any]) -> str:
        return "field a is wrong"


@pytest.mark.parametrize(
    ("limit", "value", "expected"),
    [
        ("EXPLAINED_BYTES", 2**20, 10),
        ("EXPLAINED_BYTES", 350, 3),
        ("EXPLAINED_SECONDS", 0, 0),
        ("EXPLAINED_SECONDS", 1e-9, 1),
    ],
)
def test_reasons_are_found_within_the_limits(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: float, expected: int
) -> None:
    monkeypatch.setattr(deadletters, limit, value)
    batch: Any = Batch()
    reasons = [record[PROBLEM]["reason"] for record in logged_records(batch)]
    assert reasons[:expected] == ["field a is wrong"] * expected
    assert all(
        one.startswith(f"{SPARK_SAYS}; the batch has too many") for one in reasons[expected:]
    )
    assert len(reasons) == 10
