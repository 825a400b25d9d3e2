"""Single cases of other people's topics, from outside: raw bytes, and schemas by REST."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import requests
from avro_oracle import AvroSchema
from judge import wire
from kafka_topics import Topic

from topicberg.errors import TableflowError
from topicberg.iceberg import summaries
from topicberg.query import run_query

pytestmark = pytest.mark.integration

LONG, TEXT = "long", "string"


def record(name: str, **fields: Any) -> dict[str, Any]:
    """An Avro record; a tuple is a type and its default."""
    made = [
        {"name": field, "type": kind[0], "default": kind[1]}
        if isinstance(kind, tuple)
        else {"name": field, "type": kind}
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "fields": made}


class Outside:
    """A producer and a registry's client that know nothing of topicberg."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.value_subject = f"{topic.spec.name}-value"
        self._url = topic.endpoints.schema_registry

    def register(self, schema: Any, kind: str = "AVRO", subject: str | None = None) -> int:
        text = schema if kind == "PROTOBUF" else json.dumps(schema)
        answer = requests.post(
            f"{self._url}/subjects/{subject or self.value_subject}/versions",
            json={"schema": text, "schemaType": kind},
            timeout=30,
        )
        answer.raise_for_status()
        return int(answer.json()["id"])

    def foreign(self, schema: Any, kind: str = "AVRO") -> int:
        return self.register(schema, kind, f"other-{uuid.uuid4().hex}")

    def compatibility(self, level: str) -> None:
        answer = requests.put(
            f"{self._url}/config/{self.value_subject}", json={"compatibility": level}, timeout=30
        )
        answer.raise_for_status()

    def send(self, *values: bytes | None, key: bytes = b"k") -> None:
        self.topic.send_raw(list(values), key=lambda _: key, partition=0)

    def rows(self) -> list[dict[str, Any]]:
        """By offset, without the metadata and the key."""
        cluster, name = self.topic.spec.table_identifier(self.topic.config)
        sql = f'SELECT * FROM lake."{cluster}"."{name}" ORDER BY "$$offset"'
        found = run_query(sql, "duckdb", self.topic.endpoints, self.topic.config)
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
        return [
            {name: value for name, value in row.items() if name[0] != "$" and name != "key"}
            for row in rows
        ]

    def skipped(self) -> int:
        return int(self.topic.table().properties.get(summaries.ROWS_SKIPPED, 0))


def avro(schema_id: int, schema: Any, datum: Any) -> bytes:
    return wire(schema_id, AvroSchema(json.dumps(schema)).encode(datum))


@pytest.fixture
def outside(make_topic: Callable[..., Topic], request: pytest.FixtureRequest) -> Outside:
    """A topic that skips malformed records, of the format and with the fields that a test names."""
    fields = {"schema": {"format": "avro", "file": "from-the-registry"}}
    fields |= getattr(request, "param", {})
    handling = fields.pop("error_handling", {"mode": "SKIP"})
    return Outside(make_topic(tableflow={"error_handling": handling}, **fields))


def of(format_: str, **more: Any) -> dict[str, Any]:
    return {"schema": {"format": format_, "file": "from-the-registry"}, **more}


UPSERT = {"write_mode": "upsert", "key": {"format": "string"}}
both_modes = pytest.mark.parametrize(
    "outside", [{}, pytest.param(UPSERT, marks=pytest.mark.slow)], indirect=True
)


@both_modes
@pytest.mark.parametrize("level", ["FORWARD", "NONE"])
def test_avro_field_without_default_is_null(outside: Outside, level: str) -> None:
    old, new = record("Order", id=LONG), record("Order", id=LONG, note=TEXT)
    first = outside.register(old)
    outside.compatibility(level)
    second = outside.register(new)
    for number, value in enumerate(
        (
            avro(first, old, {"id": 1}),
            avro(second, new, {"id": 2, "note": "b"}),
            avro(first, old, {"id": 3}),
        )
    ):
        outside.send(value, key=b"%d" % number)
    outside.topic.ingest()
    assert outside.rows() == [
        {"id": 1, "note": None},
        {"id": 2, "note": "b"},
        {"id": 3, "note": None},
    ]
    assert outside.skipped() == 0


OWN_AND_FOREIGN = {
    "avro": (
        record("Order", id=LONG),
        record("OrderDeleted", id=LONG),
        b"\x02",
        b"\x54",
        {"id": 1},
    ),
    "json": (
        {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}},
        {"title": "Ticket", "type": "object", "properties": {"text": {"type": "string"}}},
        b'{"id": 1}',
        b'{"text": "angry"}',
        {"id": 1},
    ),
    "protobuf": (
        'syntax = "proto3"; package shop; message Order { int32 id = 1; string email = 2; }',
        'syntax = "proto3"; package crm; message Ticket { int32 no = 1; string mood = 2; }',
        b"\x00\x08\x01",
        b"\x00\x08\x2a\x12\x05angry",
        {"id": 1, "email": ""},
    ),
}


@pytest.mark.parametrize(
    ("outside", "kind"),
    [
        ({**of("avro"), **UPSERT}, "avro"),
        *(pytest.param(of(kind), kind) for kind in ("json", "protobuf")),
        pytest.param(of("avro"), "avro", marks=pytest.mark.slow),
        *(
            pytest.param({**of(kind), **UPSERT}, kind, marks=pytest.mark.slow)
            for kind in ("json", "protobuf")
        ),
    ],
    indirect=["outside"],
)
def test_record_of_another_type_is_not_a_row(outside: Outside, kind: str) -> None:
    """Also under a key that has a row: that row stays as it is."""
    own, other, good, strange, row = OWN_AND_FOREIGN[kind]
    first = outside.register(own, kind.upper())
    second = outside.foreign(other, kind.upper())
    outside.send(wire(first, good), wire(second, strange))
    outside.topic.ingest()
    assert outside.rows() == [row]
    assert outside.skipped() == 1


@pytest.mark.parametrize("outside", [{"key": {"format": "avro"}}], indirect=True)
def test_column_of_key_and_value_is_of_each_record(outside: Outside) -> None:
    key = record("Key", user_id=LONG)
    key_id = outside.register(key, subject=f"{outside.topic.spec.name}-key")
    old, new = record("Order", user_id=LONG, a=TEXT), record("Order", a=TEXT)
    first = outside.register(old)
    outside.compatibility("NONE")
    second = outside.register(new)
    foreign = outside.foreign(record("Other", user_id=TEXT))
    key_bytes = avro(key_id, key, {"user_id": 7})
    values = (
        avro(first, old, {"user_id": 1, "a": "old"}),
        avro(second, new, {"a": "new"}),
        None,
        wire(foreign, b"\x02x"),
        avro(second, new, {"a": "last"}),
    )
    outside.send(*values, key=key_bytes)
    outside.topic.ingest()
    assert outside.rows() == [
        {"user_id": 1, "a": "old"},
        {"user_id": 7, "a": "new"},
        {"user_id": 7, "a": None},
        {"user_id": 7, "a": "last"},
    ]
    assert outside.skipped() == 1


@both_modes
def test_schema_that_has_no_rows_stops_no_topic(outside: Outside) -> None:
    again = {"name": "again", "type": ["null", "Order"]}
    own = record("Order", id=LONG)
    first = outside.register(own)
    strange = [
        outside.foreign("string"),
        outside.foreign({"type": "record", "name": "Order", "fields": [again]}),
        outside.foreign(record("Order", id={"type": "map", "values": "boolean"})),
        outside.foreign({"title": "Order", "type": "object", "properties": {}}, "JSON"),
        outside.foreign('syntax = "proto3"; message Order { int64 id = 1; }', "PROTOBUF"),
        2_000_000_000,
    ]
    outside.send(*(wire(schema_id, b"\x00\x00") for schema_id in strange))
    outside.send(avro(first, own, {"id": 5}), key=b"good")
    outside.topic.ingest()
    assert outside.rows() == [{"id": 5}]
    assert outside.skipped() == len(strange)


@both_modes
def test_field_dropped_at_any_depth_keeps_its_value(outside: Outside) -> None:
    def order(*names: str) -> dict[str, Any]:
        address = record("Address", **dict.fromkeys(names, TEXT))
        return record(
            "Order",
            one=address,
            many={"type": "array", "items": "Address"},
            named={"type": "map", "values": "Address"},
            maybe=["null", "Address", LONG],
        )

    old, new = order("city", "zip"), order("city")
    first = outside.register(old)
    outside.compatibility("NONE")
    outside.topic.ingest()
    second = outside.register(new)
    full, short = {"city": "c", "zip": "z"}, {"city": "c"}
    outside.send(
        avro(first, old, {"one": full, "many": [full], "named": {"k": full}, "maybe": (1, full)}),
        key=b"old",
    )
    outside.send(
        avro(second, new, {"one": short, "many": [], "named": {"k": short}, "maybe": (2, 5)}),
        key=b"new",
    )
    outside.topic.ingest()
    kept = {"city": "c", "zip": None}
    rows = outside.rows()
    assert [row | {"named": dict(row["named"])} for row in rows] == [
        {
            "one": full,
            "many": [full],
            "named": {"k": full},
            "maybe": {"member0": full, "member1": None},
        },
        {"one": kept, "many": [], "named": {"k": kept}, "maybe": {"member0": None, "member1": 5}},
    ]


@pytest.mark.parametrize("depth", ["top", "nested"])
def test_new_name_in_other_case_suspends(outside: Outside, depth: str) -> None:
    def order(name: str) -> dict[str, Any]:
        inner = record("Inner", **{name: TEXT})
        return inner | {"name": "Order"} if depth == "top" else record("Order", inner=inner)

    first = outside.register(order("orderID"))
    outside.compatibility("NONE")
    outside.send(wire(first, b"\x02a"))
    outside.topic.ingest()
    outside.register(order("orderId"))
    with pytest.raises(TableflowError, match=r"orderI[dD].*case"):
        outside.topic.ingest()
    fixed = order("orderID")
    fixed["fields"].append({"name": "more", "type": ["null", TEXT], "default": None})
    outside.register(fixed)
    outside.send(wire(first, b"\x02b"))
    outside.topic.ingest()
    assert len(outside.rows()) == 2


DATE = {"type": "int", "logicalType": "date"}
TIME = {"type": "long", "logicalType": "timestamp-millis"}


@pytest.mark.parametrize("union", [[DATE, LONG], ["int", TIME], ["float", "double"], ["int", LONG]])
def test_union_of_numbers_has_rows_or_is_refused(outside: Outside, union: list[Any]) -> None:
    schema = record("Order", a=["null", *union], b={"type": "array", "items": union})
    schema_id = outside.register(schema)
    datum = {"a": (2, 1), "b": [(0, 1), (1, 2)]}
    outside.send(avro(schema_id, schema, datum))
    try:
        outside.topic.ingest()
    except TableflowError as error:
        assert "union" in error.message  # noqa: PT017  either way is right
        return
    (row,) = outside.rows()
    if not isinstance(row["a"], dict):  # the wider one of two numbers
        assert (row["a"], row["b"]) == (1, [1, 2])
        return
    assert row["a"]["member0"] is None
    assert row["a"]["member1"] is not None
    assert [[value is None for value in one.values()] for one in row["b"]] == [
        [False, True],
        [True, False],
    ]


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
REASONS = {
    "a decimal of too many digits": (
        record("Order", price=PRICE),
        "AVRO",
        b"\x04\x30\x39",
        ["price", "decimal(4", "123.45"],
    ),
    "a record that ends too early": (
        record("Order", id=LONG, note=TEXT),
        "AVRO",
        b"\x02\x10ab",
        ["note"],
    ),
    "a text that is not UTF-8": (record("Order", note=TEXT), "AVRO", b"\x04\xc3\x28", ["note"]),
    "a text for a number": (
        {
            "type": "object",
            "properties": {"a": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        },
        "JSON",
        b'{"a": {"n": "five"}}',
        ["a.n", "five"],
    ),
    "a field of another wire type": (
        'syntax = "proto3"; message Order { int32 id = 1; string note = 2; }',
        "PROTOBUF",
        b"\x00\x08\x01\x10\x05",
        ["note"],
    ),
}


@pytest.mark.parametrize(
    ("outside", "name"),
    [
        ({**of(case[1].lower()), "error_handling": {"mode": "SUSPEND"}}, n)
        for n, case in REASONS.items()
    ],
    indirect=["outside"],
)
def test_reason_names_field_and_value(outside: Outside, name: str) -> None:
    schema, kind, payload, words = REASONS[name]
    schema_id = outside.register(schema, kind)
    outside.send(wire(schema_id, payload))
    with pytest.raises(TableflowError) as error:
        outside.topic.ingest()
    assert "partition 0, offset 0" in error.value.message
    assert [word for word in words if word not in error.value.message] == []


def test_text_and_bytes_are_not_one_column(outside: Outside) -> None:
    """Avro calls them compatible; for Iceberg they are not, and readers would fail later."""
    first = outside.register(record("Order", a=TEXT))
    outside.send(wire(first, b"\x02a"))
    outside.topic.ingest()
    outside.register(record("Order", a="bytes"))
    with pytest.raises(TableflowError, match="cannot follow"):
        outside.topic.ingest()


@both_modes
def test_scale_of_a_decimal_does_not_change(outside: Outside) -> None:
    """Iceberg's specification allows more digits only."""

    def price(precision: int, scale: int) -> dict[str, Any]:
        facts = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return record("Order", price={"type": "bytes", **facts})

    old, new = price(10, 2), price(12, 3)
    first = outside.register(old)
    outside.send(avro(first, old, {"price": (1234).to_bytes(2, "big")}))
    outside.topic.ingest()
    outside.compatibility("NONE")
    outside.register(new)
    with pytest.raises(TableflowError, match="scale of a column cannot change"):
        outside.topic.ingest()
    outside.register(price(12, 2))
    outside.topic.ingest()
    assert outside.rows() == [{"price": Decimal("12.34")}]


@pytest.mark.parametrize("outside", [{**of("json"), "key": {"format": "json"}}], indirect=True)
def test_reason_of_a_key_is_not_of_the_value(outside: Outside) -> None:
    """The key's field has another type than the value's, whose column it is."""
    key = {"title": "Key", "type": "object", "properties": {"id": {"type": "integer"}}}
    value = {"title": "Order", "type": "object", "properties": {"id": {"type": "string"}}}
    key_id = outside.register(key, "JSON", f"{outside.topic.spec.name}-key")
    value_id = outside.register(value, "JSON")
    outside.topic.respec(tableflow={"error_handling": {"mode": "SUSPEND"}})
    outside.send(wire(value_id, b'{"id": "a"}'), key=wire(key_id, b'{"id": 1}'))
    outside.send(None, key=wire(key_id, b"{"))
    with pytest.raises(TableflowError, match="offset 1: the key: the record is not JSON"):
        outside.topic.ingest()
