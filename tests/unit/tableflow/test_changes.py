"""Where a change is in its source's log, and sources that are not as Debezium writes them."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.tableflow.changelog.changes import ChangePlan, Envelopes, envelope, read_envelopes
from topicberg.topics import TopicSpec

SPEC = TopicSpec.model_validate(
    {
        "name": "t",
        "pipeline": "p",
        "schema": {"format": "avro"},
        "key": {"format": "avro"},
        "changelog": {"format": "debezium"},
        "write_mode": "upsert",
        "external": True,
    }
)


def positions(source: list[dict[str, Any]]) -> list[Any]:
    return cast("list[Any]", read(pa.array(source)).facts["p"].to_pylist())


def read(source: pa.Array, kinds: dict[str, Any] | None = None) -> Envelopes:
    plan = ChangePlan(True, (), (), kinds or {}, {}, "")
    values = {
        "source": source,
        "op": pa.array(["c"] * len(source)),
        "after": pa.array([{"id": 1}] * len(source)),
    }
    every = np.ones(len(source), np.int64)
    return read_envelopes(plan, {}, values, every > 0, every)


def test_files_of_mysqls_log_are_ordered_by_their_numbers() -> None:
    rng = random.Random(1)
    numbers = sorted(
        {3, *range(999_998, 1_000_003), *(rng.randrange(1, 2**31) for _ in range(500))}
    )
    events = [
        {"file": f"mysql-bin.{number:06}", "pos": pos, "row": row}
        for number in numbers
        for pos, row in ((4, 0), (99, 0), (99, 1))
    ]
    found = positions(events)
    assert found == sorted(found)
    assert found[0].startswith("mysql-bin.0")
    assert (
        positions([{"file": None, "pos": 4, "row": 0}, {"file": "7", "pos": 4, "row": 0}])[0]
        is None
    )


def layout(**source: T.IcebergType) -> Any:
    value = SimpleNamespace(changes="rows", envelope=dict, source_fields=lambda: source)
    return SimpleNamespace(value=value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"ts_ms": T.TimestamptzType()}, "source.ts_ms is timestamptz; Debezium writes a whole"),
        ({"ts_us": T.BooleanType()}, "source.ts_us is boolean"),
        ({"lsn": T.BinaryType()}, "source.lsn is binary"),
        ({"lsn": T.DateType()}, "source.lsn is date"),
        (
            {"txId": T.ListType(1, T.LongType())},
            "source.txId is list<long>; Debezium writes a number",
        ),
        ({"snapshot": T.StructType()}, "source.snapshot is struct"),
    ],
)
def test_source_of_another_type_is_refused(source: dict[str, T.IcebergType], expected: str) -> None:
    with pytest.raises(TableflowError) as told:
        envelope(layout(**source), [])
    assert expected in told.value.message


def test_source_with_numbers_or_text_is_read() -> None:
    kinds = (T.IntegerType(), T.LongType(), T.StringType())
    for ts_ms, txid in itertools.product(kinds[:2], kinds):
        parts = envelope(layout(ts_ms=ts_ms, txId=txid), [])
        assert [part.name for part in parts] == ["after", "source", "op"]


def test_numbers_of_a_source_may_be_text_or_have_fractions() -> None:
    """As in JSON without types. What is no number makes its record malformed, and no other."""
    times = pa.array([1_700_000_000_000.5, 5.0, float("nan"), None])
    found = read(pa.StructArray.from_arrays([times], ["ts_ms"]))
    assert found.facts["m"].to_pylist() == [1_700_000_000_000_000, 5_000, None, None]
    assert list(found.wrong) == [2]
    for places in (pa.array(["7", "0/16B3748", None]), pa.array([7, 2**63, None], pa.uint64())):
        found = read(pa.StructArray.from_arrays([places], ["lsn"]), {"lsn": None})
        assert found.facts["p"].to_pylist() == [7, None, None]
        assert found.wrong == {1: "field source (struct): lsn is not a number of 64 bits"}


def test_nanoseconds_are_the_time_of_a_source_that_has_no_other() -> None:
    """As those of CockroachDB's changefeeds with the envelope ``enriched``."""
    nanos = pa.array([1_745_527_444_910_044_999, None])
    found = read(pa.StructArray.from_arrays([nanos], ["ts_ns"]))
    assert found.facts["m"].to_pylist() == [1_745_527_444_910_044, None]
    both = [pa.array([7, None]), nanos]
    found = read(pa.StructArray.from_arrays(both, ["ts_ms", "ts_ns"]))
    assert found.facts["m"].to_pylist() == [7_000, None]


def test_source_without_time_and_position_is_refused() -> None:
    """Between partitions, nothing else says which change of a row is the newest one."""
    with pytest.raises(TableflowError, match=r"no time .* or position of the change"):
        envelope(layout(snapshot=T.StringType()), [])
