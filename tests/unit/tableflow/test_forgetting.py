"""Keys as users write them, for columns of every type."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from topicberg.errors import SpecError
from topicberg.tableflow.erasure import forgetting
from topicberg.tableflow.erasure.forgetting import Forgetting
from topicberg.tableflow.erasure.key import Key
from topicberg.tableflow.erasure.matching import Rows
from topicberg.tableflow.erasure.records import KeyRecords
from topicberg.tableflow.erasure.rows import ErasureTarget

INSIDE = StructType(NestedField(9, "a", IntegerType()), NestedField(10, "b", StringType()))


def parsed(text: str, *types: IcebergType, names: str = "abcdef") -> Any:
    fields = [NestedField(n, names[n], kind, required=False) for n, kind in enumerate(types)]
    key = Key.parse("orders", fields, text)
    values = [key.value(field.name, field.field_type) for field in fields]
    return values[0] if len(types) == 1 else values


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", LongType(), 7),
        ("-7", IntegerType(), -7),
        ("alice@example.org", StringType(), "alice@example.org"),
        ("7", StringType(), "7"),
        ("9" * 38, DecimalType(38, 0), Decimal("9" * 38)),
        ("ålice", BinaryType(), "ålice".encode()),
        ('{"a": {"hex": "00ff"}}', BinaryType(), b"\x00\xff"),
        ('{"id": 7}', BinaryType(), b'{"id": 7}'),
        ('{"a": "x"}', StringType(), "x"),
        ('{"a": null}', StringType(), None),
        ("true", BooleanType(), True),
        ('{"a": false}', BooleanType(), False),
        ("1.5", DoubleType(), 1.5),
        ("1.50", DecimalType(4, 2), Decimal("1.50")),
        ('{"a": 1.10}', DecimalType(4, 2), Decimal("1.10")),
        ("2026-01-31", DateType(), date(2026, 1, 31)),
        ("2026-01-31T12:00:00Z", TimestamptzType(), datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00", TimestamptzType(), datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00", TimestampType(), datetime(2026, 1, 31, 12)),
        ('{"a": {"a": 1, "b": "x"}}', INSIDE, {"a": 1, "b": "x"}),
        ('{"a": ["x"]}', ListType(9, StringType()), ["x"]),
        ('{"a": {"x": 1}}', MapType(9, StringType(), 10, LongType()), [("x", 1)]),
    ],
)
def test_key_of_one_column_is_text_or_json(text: str, kind: IcebergType, value: Any) -> None:
    assert parsed(text, kind) == value


def test_key_of_several_columns_is_a_json_object() -> None:
    assert parsed('{"b": 7, "a": "eu"}', StringType(), LongType()) == ["eu", 7]


@pytest.mark.parametrize(
    "text", ["eu", '{"a": "eu"}', '{"a": "eu", "b": 7, "c": 1}', "[1, 2]", "{eu"]
)
def test_key_without_all_columns_names_them(text: str) -> None:
    with pytest.raises(SpecError, match=r"a \(string\), b \(long\)") as error:
        parsed(text, StringType(), LongType())
    assert text not in str(error.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("secret", LongType()),
        ("2147483648", IntegerType()),
        ("1.555", DecimalType(4, 2)),
        ("123.45", DecimalType(4, 2)),
        (f"{'1' * 35}.555", DecimalType(38, 2)),
        ("1e999999", DecimalType(38, 9)),
        ('{"a": {}}', BinaryType()),
        ("secret", BooleanType()),
        ('{"a": true}', LongType()),
        ('{"a": 1}', BooleanType()),
        ('{"a": 71}', StringType()),
        ('{"a": {"hex": "secret"}}', BinaryType()),
        ("secret", DateType()),
        ("2026-01-31T12:00:00Z", TimestampType()),
        ('{"a": {"secret": 1}}', INSIDE),
        ("secret", INSIDE),
    ],
)
def test_key_of_another_type_is_refused_without_its_value(text: str, kind: IcebergType) -> None:
    with pytest.raises(SpecError, match=r"column a is not of type .*") as error:
        parsed(text, kind)
    assert "secret" not in str(error.value)
    assert "71" not in str(error.value)


@given(st.text(min_size=1))
def test_digest_differs_by_table_and_not_by_spelling(text: str) -> None:
    field = NestedField(1, "n", LongType(), required=False)
    one, other = Key.parse("t", [field], "7"), Key.parse("t", [field], '{"n": 7}')
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    assert one.digest(first) == other.digest(first) != one.digest(second)
    named = Key.parse("t", [NestedField(1, "key", BinaryType(), required=False)], text)
    assert text not in named.digest(first) or len(text) < 8


def test_records_pending_are_those_without_a_tombstone() -> None:
    found = KeyRecords("t", True, {(b"a", 0): True, (b"a", 1): False})
    assert found.pending == [(b"a", 1)]
    assert found.until() is None


def test_dead_letters_in_deleted_files_are_skipped(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests name replaced files, also after the snapshots that had them are expired."""
    columns = NestedField(1, "key", BinaryType()), NestedField(2, "partition", IntegerType())
    table = catalog.create_table("shop.dead", Schema(*columns))
    table.append(pa.table({"key": [b"old"], "partition": pa.array([0], pa.int32())}))
    (replaced,) = table.inspect.files()["file_path"].to_pylist()
    table.overwrite(pa.table({"key": [b"k"], "partition": pa.array([1], pa.int32())}))
    table.io.delete(replaced)
    monkeypatch.setattr(
        forgetting,
        "dead_letter_spec",
        lambda spec: SimpleNamespace(name="dead", metadata_column=lambda name: name),
    )
    monkeypatch.setattr(
        forgetting, "described_topic", lambda *_: KeyRecords("dead", compacted=True)
    )

    target = ErasureTarget(("shop", "dead"), "dead letters", None, is_dead_letters=True)
    rows = Rows(table.schema(), ({("partition",): [0, 1]},))
    key_rows: Any = SimpleNamespace(spec=None, of_table=lambda _: (table, rows))
    nothing: Any = None
    records = Forgetting(key_rows, [target], nothing, nothing).dead_letters()
    assert records is not None
    assert records.newest == {(b"k", 1): False}
