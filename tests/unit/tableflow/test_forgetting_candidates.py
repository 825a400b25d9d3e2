"""Keys to forget: as users write them, as Kafka has them, and where derived tables have them, whose
lineage may not say it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
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

from topicberg.cli import forget as command
from topicberg.errors import SpecError
from topicberg.formats.framing import wire_prefix
from topicberg.formats.subjects import RegisteredSchema, SchemaType, Subject
from topicberg.settings import Settings
from topicberg.tableflow.erasure import forgetting
from topicberg.tableflow.erasure.candidates import chosen_columns, find_candidates, search
from topicberg.tableflow.erasure.forgetting import Forgetting
from topicberg.tableflow.erasure.key import Key
from topicberg.tableflow.erasure.matching import Rows, fields_in_structs, find_column
from topicberg.tableflow.erasure.records import KafkaKey, KeyRecords, Matching, matching_keys
from topicberg.tableflow.erasure.rows import ErasureTarget, KeyRows
from topicberg.tableflow.erasure.steps import Erasure
from topicberg.tableflow.layout.message_fields import KEY, VALUE, Layout, MessageField
from topicberg.topics import TopicSpec

PERSON = StructType(
    NestedField(11, "id", LongType(), required=False),
    NestedField(12, "name", StringType(), required=False),
)
SCHEMA = Schema(
    NestedField(1, "at", TimestampType(), required=False),
    NestedField(2, "customer", StringType(), required=False),
    NestedField(3, "quantity", IntegerType(), required=False),
    NestedField(4, "price", DecimalType(9, 2), required=False),
    NestedField(5, "person", PERSON, required=False),
    NestedField(6, "tags", ListType(7, StringType(), element_required=False), required=False),
    NestedField(8, "flag", BooleanType(), required=False),
)
ROWS: list[dict[str, Any]] = [
    {
        "customer": "3",
        "quantity": 1,
        "price": None,
        "person": {"id": 9, "name": "3"},
        "tags": ["3"],
    },
    {"customer": "4", "quantity": 3, "price": None, "person": None, "tags": None},
    {"customer": None, "quantity": 3, "price": 3, "person": {"id": 3, "name": None}, "tags": []},
    {"customer": "33", "quantity": 13, "price": 1, "person": {"id": 4, "name": "x3"}, "tags": []},
]


def key_of(text: str, *names: str, kind: IcebergType | None = None) -> Key:
    fields = [
        NestedField(n, name, kind or LongType(), required=False) for n, name in enumerate(names)
    ]
    return Key.parse("orders", fields, text)


def written(catalog: SqlCatalog, name: str, rows: list[dict[str, Any]] = ROWS) -> Table:
    table = catalog.create_table(("shop", name), SCHEMA)
    arrow = schema_to_pyarrow(SCHEMA, include_field_ids=False)
    for some in (rows[:2], rows[2:]):
        table.append(pa.Table.from_pylist(some, schema=arrow))
    return table


def test_candidates_are_all_columns_that_hold_the_value(catalog: SqlCatalog) -> None:
    """As text, as a number of any type, in structs; a null and a list are not compared."""
    table = written(catalog, "totals")
    found = find_candidates("totals", table, key_of("3", "id"), lambda _: True)
    assert {(each.option, each.rows, each.files) for each in found} == {
        ("totals.customer", 1, 1),
        ("totals.quantity", 2, 2),
        ("totals.price", 1, 1),
        ("totals.person.id", 1, 1),
        ("totals.person.name", 1, 1),
    }
    found = find_candidates("totals", table, key_of("3", "id"), lambda name: name == "customer")
    assert [each.column for each in found] == ["customer"]


def test_candidates_of_a_composite_key_have_all_of_its_columns(catalog: SqlCatalog) -> None:
    table, key = written(catalog, "totals"), key_of('{"a": 4, "b": 3}', "a", "b")
    options = {each.option for each in find_candidates("t", table, key, lambda _: True)}
    assert {"t.customer=a", "t.person.id=a", "t.quantity=b", "t.customer=b"} <= options
    key = key_of('{"a": 4, "b": 77}', "a", "b")
    assert find_candidates("t", table, key, lambda _: True) == ()


@given(
    st.lists(st.tuples(st.none() | st.integers(-3, 3), st.none() | st.integers(-3, 3))),
    st.integers(-3, 3),
)
def test_search_counts_as_a_scan_does(
    pairs: list[tuple[int | None, int | None]], wanted: int
) -> None:
    """:func:`search` reads files; here they are compared row by row."""
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType()))
    rows = [{"a": a, "b": None if b is None else str(b)} for a, b in pairs]
    key = key_of(str(wanted), "id")
    values = {path: key.as_found_in("id", kind) for path, kind in fields_in_structs(schema.fields)}
    arrow = pa.Table.from_pylist(rows, schema=schema_to_pyarrow(schema, include_field_ids=False))
    for path, each in values.items():
        held = Rows(schema, ({path: each},)).among(arrow)
        assert [*held] == [str(row[path[0]]) == str(wanted) for row in rows]


@pytest.mark.parametrize(
    ("given_key", "kind", "column", "expected"),
    [
        ("3", LongType(), StringType(), ["3"]),
        ("3", StringType(), LongType(), [3]),
        ("3", StringType(), DoubleType(), [3.0]),
        ("alice", StringType(), LongType(), []),
        ("alice", BinaryType(), StringType(), ["alice"]),
        ('{"id": {"hex": "616c"}}', BinaryType(), BinaryType(), [b"al"]),
        ("true", BooleanType(), BooleanType(), []),
        ('{"id": null}', LongType(), LongType(), []),
        ("4294967296", LongType(), IntegerType(), []),
    ],
)
def test_value_is_compared_in_each_type_that_can_have_it(
    given_key: str, kind: IcebergType, column: IcebergType, expected: list[Any]
) -> None:
    assert key_of(given_key, "id", kind=kind).as_found_in("id", column) == expected


def test_find_column_finds_fields_of_structs_and_names_with_dots() -> None:
    inner = StructType(NestedField(3, "b", LongType()), NestedField(4, "c.d", StringType()))
    tags = ListType(6, StructType(NestedField(7, "x", LongType())))
    schema = Schema(
        NestedField(1, "a", inner), NestedField(2, "a.e", StringType()), NestedField(5, "t", tags)
    )
    assert find_column(schema, "a.e") == (("a.e",), StringType())
    assert find_column(schema, "a.c.d") == (("a", "c.d"), StringType())
    assert find_column(schema, "a") == (("a",), inner)
    assert find_column(schema, "a.x") is None
    assert find_column(schema, "t.x") is None


def test_chosen_columns_of_one_column_are_alternatives() -> None:
    key = key_of("3", "id")
    found = chosen_columns(["sales.seller", "sales.person.id"], ["sales", "other"], key)
    assert found == {"sales": [{"id": "seller"}, {"id": "person.id"}]}


def test_chosen_columns_of_a_composite_key_name_each_of_its_columns() -> None:
    key = key_of('{"a": 4, "b": 3}', "a", "b")
    found = chosen_columns(["sales.x=a", "sales.y=b", "sales.z=b"], ["sales"], key)
    assert found == {"sales": [{"a": "x", "b": "y"}, {"a": "x", "b": "z"}]}
    with pytest.raises(SpecError, match="sales has no column for b of the key"):
        chosen_columns(["sales.x=a"], ["sales"], key)
    with pytest.raises(SpecError, match=r"expected TABLE\.COLUMN=COLUMN_OF_THE_KEY"):
        chosen_columns(["sales.x"], ["sales"], key)


@pytest.mark.parametrize("option", ["sale.x", "x", "", "orders.id"])
def test_chosen_column_of_another_table_is_refused(option: str) -> None:
    with pytest.raises(SpecError, match="derived from the topic") as error:
        chosen_columns([option], ["sales"], key_of("3", "id"))
    assert error.value.hint == "name one of sales"


def derived(
    name: str, *sources: str, lineage: Mapping[str, tuple[str, ...]] | None = None
) -> SimpleNamespace:
    return SimpleNamespace(name=name, sources=sources, reads=sources, lineage=lineage or {})


def rows_of(catalog: SqlCatalog, key: Key) -> KeyRows:
    fields = {"name": "orders", "pipeline": "shop", "schema": {"format": "none"}}
    return KeyRows(TopicSpec.model_validate(fields), key, catalog)


def plan(
    monkeypatch: pytest.MonkeyPatch, key_rows: KeyRows, tables: list[SimpleNamespace], *options: str
) -> command._Derived:
    """Return what the command would do to derived tables of the topic ``orders``."""
    topic = SimpleNamespace(
        root=key_rows.spec, name="orders", source="orders", identifier=("t", "o")
    )
    lake = SimpleNamespace(
        tables=[topic],
        derived=tables,
        derived_by_name={each.name: each for each in tables},
        table=lambda one: SimpleNamespace(identifier=("shop", one.name), time="at"),
    )
    monkeypatch.setattr("topicberg.cli.forget.load_lake", lambda _: lake)
    return command._Derived(key_rows, cast("Settings", None), options)


def test_table_without_lineage_is_a_candidate_and_not_erased(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key 3 is also a quantity of 3: the row of quantity 3 stays, and is named."""
    table, key_rows = written(catalog, "sales"), rows_of(catalog, key_of("3", "id"))
    found = plan(monkeypatch, key_rows, [derived("sales", "orders"), derived("elsewhere", "users")])
    assert found.targets == []
    found.report()
    errors = capsys.readouterr().err
    assert "sales.quantity holds the value in 2 rows of 2 files, and is not erased" in errors
    assert "add `--column sales.customer`" in errors
    (uncovered,) = found.uncovered()
    assert "columns of sales of which no lineage says" in uncovered
    assert table.scan().to_arrow().num_rows == 4


def test_chosen_columns_are_erased_and_proved_and_no_other(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, below = written(catalog, "sales"), written(catalog, "below")
    key_rows = rows_of(catalog, key_of("3", "id"))
    tables = [
        derived("sales", "orders"),
        derived("below", "sales", lineage={"customer": ("person.id",), "quantity": ("quantity",)}),
    ]
    options = ("sales.customer", "sales.person.id")
    found = plan(monkeypatch, key_rows, tables, *options)
    assert [target.name for target in found.targets] == ["shop.sales", "shop.below"]
    nothing: Any = None
    job = Forgetting(key_rows, found.targets, nothing, nothing)
    for target in found.targets:
        table_and_rows = key_rows.of_table(target)
        assert table_and_rows is not None
        Erasure(*table_and_rows).erase()
        assert job.prove(target).holders == 0
    table.refresh()
    assert [row["quantity"] for row in table.scan().to_arrow().to_pylist()] == [13, 3]
    # In the table below, the lineage carries on from what was chosen.
    assert "3" not in below.refresh().scan().to_arrow()["customer"].to_pylist()
    found.report()
    errors = capsys.readouterr().err
    assert "sales.quantity holds" in errors
    assert "below.quantity" not in errors  # the lineage says that it is not the key


def test_lineage_from_other_columns_answers(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is searched where every column is declared to come from others than the key."""
    written(catalog, "sales")
    lineage = {field.name: ("amount",) for field in SCHEMA.fields}
    key_rows = rows_of(catalog, key_of("3", "id"))
    found = plan(monkeypatch, key_rows, [derived("sales", "orders", lineage=lineage)])
    assert (found.targets, [*found.uncovered()]) == ([], [])


def test_chosen_column_of_another_type_is_refused(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(catalog, "sales")
    key_rows = rows_of(catalog, key_of("alice", "id", kind=StringType()))
    for column in ("quantity", "nothing"):
        with pytest.raises(SpecError, match=f"table sales has no column {column} that can hold"):
            plan(monkeypatch, key_rows, [derived("sales", "orders")], f"sales.{column}")


def test_value_of_a_column_is_forgotten_in_structs_too(catalog: SqlCatalog) -> None:
    """As ``--where person.name=x3`` does in the topic's own table."""
    table = written(catalog, "own")
    table_and_rows = rows_of(catalog, key_of("x3", "person.name", kind=StringType())).of_table(
        ErasureTarget(("shop", "own"), "the topic's table", None, {"person.name": "person.name"})
    )
    assert table_and_rows is not None
    Erasure(*table_and_rows).erase()
    assert [row["customer"] for row in table.refresh().scan().to_arrow().to_pylist()][-1] != "33"
    assert search(table, {("person", "name"): ["x3"]}) == {}


@pytest.mark.parametrize(
    ("key", "where", "message"),
    [
        (None, None, "expected either KEY or --where"),
        ("3", "a=3", "expected either KEY or --where"),
        (None, "email", "not of the form COLUMN=VALUE"),
        (None, "=x", "not of the form COLUMN=VALUE"),
    ],
)
def test_key_and_where_are_alternatives(key: str | None, where: str | None, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        command._wanted(key, where)
    assert command._wanted(None, "a=b=c") == ("a", "b=c")
    assert command._wanted("k", None) == (None, "k")


AVRO: dict[str, Any] = {"type": "record", "name": "k", "fields": [{"name": "k", "type": "long"}]}
WIDER = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "int", "default": 0}]}
PROTO = 'syntax = "proto3"; message K {{ int64 k = 1; {} }}'
JSON: dict[str, Any] = {"type": "object", "title": "k", "properties": {"k": {"type": "integer"}}}


def keys_of(kind: SchemaType) -> tuple[str, str, list[bytes], list[bytes]]:
    """Two versions of a schema, payloads of a key with 3, and others."""
    match kind:
        case "AVRO":
            same, others = [b"\x06", b"\x06\x02"], [b"\x08", b"\x06\x02\x00", b""]
            return json.dumps(AVRO), json.dumps(WIDER), same, others
        case "JSON":
            newer = {**JSON, "properties": {**JSON["properties"], "more": {"type": "integer"}}}
            same, others = [b'{"k":3}', b'{ "k": 3, "more": 1 }'], [b'{"k":4}', b"{}", b"x"]
            return json.dumps(JSON), json.dumps(newer), same, others
        case _:
            same = [b"\0\x08\3", b"\0\x10\1\x08\2\x08\3"]
            return PROTO.format(""), PROTO.format("int32 more = 2;"), same, [b"\0\x08\4", b"\0\x08"]


def matching_of(layout: Layout, kind: SchemaType) -> Matching:
    key = {"format": kind.lower(), "file": "k"}
    spec = TopicSpec.model_validate(
        {"name": "t", "pipeline": "p", "key": key, "schema": {"format": "none"}}
    )
    wanted = Key.parse("t", [NestedField(1, "k", LongType(), required=False)], "3")
    endpoints: Any = SimpleNamespace(schema_registry_client=lambda: None)
    return matching_keys(spec, layout, wanted, endpoints)


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_matching_keys_are_those_of_the_same_value(kind: SchemaType) -> None:
    old, new, same, others = keys_of(kind)
    schemas = {
        number: RegisteredSchema(number, kind, text) for number, text in ((1, old), (2, new))
    }
    layout = Layout(
        MessageField(KEY, Subject("t-key", schemas, schemas[2])), MessageField(VALUE, None)
    )
    matching = matching_of(layout, kind)
    good = {KafkaKey(wire_prefix(1) + same[0]), KafkaKey(wire_prefix(2) + same[1])}
    bad = {KafkaKey(wire_prefix(number) + one) for number in (1, 2) for one in others}
    bad |= {KafkaKey(b"no schema"), KafkaKey(b"")}
    assert matching(good | bad) == good
    assert matching(bad) == set()


def test_matching_keys_with_a_header_have_its_schema() -> None:
    schema = RegisteredSchema(1, "AVRO", json.dumps(AVRO))
    layout = Layout(
        MessageField(KEY, Subject("t-key", {1: schema}, schema)), MessageField(VALUE, None)
    )
    header = b"\0" + (1).to_bytes(4, "big")
    same = KafkaKey(b"\x06", header)
    others = {KafkaKey(b"\x08", header), KafkaKey(b"\x06", b"?"), KafkaKey(b"\x06")}
    assert matching_of(layout, "AVRO")({same, *others}) == {same}


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
    assert records.newest == {(b"k", 1): False}
