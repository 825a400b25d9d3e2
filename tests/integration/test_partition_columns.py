"""Columns that a table is partitioned by: of any name, of types that widen, of extreme values."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from kafka_topics import Topic, avro
from partition_matrix import CASES, Case, Dialect, Question

from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg.maintenance import compaction, maintain, topic_policy
from topicberg.iceberg.readers import SPARK
from topicberg.query import Engine, run_query
from topicberg.settings import settings
from topicberg.spark import new_session, quote
from topicberg.tableflow.service.engine import Ingestor

pytestmark = pytest.mark.integration

SPACED = "Order Date (local)"


def register_json(topic: Topic, *columns: str) -> int:
    properties = {column: {"type": "string"} for column in columns}
    schema = {"title": "R", "type": "object", "properties": properties}
    text = json.dumps(schema | {"additionalProperties": False})
    registry = topic.endpoints.schema_registry_client()
    return registry.register_schema(topic.spec.value_subject, Schema(text, "JSON"))


def test_partition_columns_of_any_name_are_read_by_each_engine(
    make_topic: Callable[..., Topic],
) -> None:
    """DuckDB ended the process of a query at the name of such a field in a manifest."""
    topic = make_topic(
        schema={"format": "json", "file": "orders.json"},
        table={"partitioning": ["größe", f"`{SPACED}`", "hour($$timestamp)"]},
    )
    columns = ("größe", SPACED, "id")
    prefix = wire_prefix(register_json(topic, *columns))
    rows = [{"größe": f"ü{n % 2}", SPACED: "ж", "id": str(n)} for n in range(4)]
    topic.send_raw([prefix + json.dumps(row).encode() for row in rows])
    topic.ingest()
    names = [field.name for field in topic.table().spec().fields]
    assert names == ["gr_xF6_xDFe", SPACED, "$$timestamp_hour"]
    found = [{name: row[name] for name in columns} for row in topic.rows()]
    assert sorted(found, key=lambda row: row["id"]) == rows

    def query(engine: Engine, name: str) -> list[tuple[Any, ...]]:
        sql = f"SELECT id FROM {topic.spec.name} WHERE {name} = 'ü1' ORDER BY id"
        return run_query(sql, engine, topic.endpoints, topic.config).rows

    assert query("duckdb", '"größe"') == query("spark", "`größe`") == [("1",), ("3",)]
    # Iceberg lets no column have the name of a partition field.
    register_json(topic, *columns, "gr_xF6_xDFe")
    with pytest.raises(TableflowError, match=r"cannot follow the new schema.*: gr_xF6_xDFe"):
        topic.ingest()


def amounts(precision: int) -> dict[str, Any]:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}
    return avro(
        {"name": "id", "type": "long"}, {"name": "amount", "type": ["null", kind], "default": None}
    )


def in_order(topic: Topic) -> list[Decimal | None]:
    return [row["amount"] for row in sorted(topic.rows(), key=lambda row: row["id"])]


def test_decimal_that_partitions_is_widened_while_the_engine_runs(
    make_topic: Callable[..., Topic],
) -> None:
    topic = make_topic(table={"partitioning": ["truncate[2000000000](amount)"]})
    narrow, wide = Decimal("99999999.99"), Decimal("9999999999.99")
    expected = [narrow, None, Decimal(-1), wide, -narrow, Decimal(1), Decimal(2), Decimal(3)]
    ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
    batches = [(10, expected[:3]), (12, expected[3:5]), *((12, [one]) for one in expected[5:])]
    first = 0
    try:
        for precision, values in batches:
            rows = [{"id": first + n, "amount": value} for n, value in enumerate(values)]
            topic.send(amounts(precision), rows)
            ingestor.step()
            first += len(rows)
        # Merging reads the files and manifests of both widths.
        policy = replace(topic_policy(topic.spec), compact_after=timedelta(0))
        assert maintain(topic.spec, topic.endpoints, topic.config, policy).files_compacted
        namespace, name = topic.table().name()[-2:]
        assert compaction.rewrite_manifests(topic.endpoints, (namespace, name))
        assert in_order(topic) == expected
        # What the transform rounds out of the type: Iceberg's library fails at it.
        topic.send(amounts(12), [{"id": 99, "amount": -wide}])
        with pytest.raises(TableflowError) as refused:
            ingestor.step()
    finally:
        ingestor.close()
    assert "truncate[2000000000] of amount, and a value below -9980000000.00" in str(refused.value)
    assert refused.value.message.endswith("no decimal(12, 2) can hold: -9999999999.99")
    topic.respec(tableflow={"error_handling": {"mode": "SKIP"}})
    topic.send(amounts(12), [{"id": 100, "amount": -narrow}])
    topic.ingest()
    assert in_order(topic) == [*expected, -narrow]
    sql = f"SELECT id FROM {quote(topic.spec.name)} WHERE amount < -5 ORDER BY id"
    assert run_query(sql, "spark", topic.endpoints, topic.config).rows == [(4,), (100,)]


@pytest.fixture
def namespace(stack: Endpoints) -> Iterator[str]:
    name, catalog = f"matrix_{uuid.uuid4().hex[:8]}", stack.catalog()
    catalog.create_namespace(name)
    yield name
    for identifier in catalog.list_tables(name):
        catalog.drop_table(identifier)


@pytest.mark.parametrize(
    "cases",
    [
        [case for case in CASES if str(case) in ("day(timestamptz)", "truncate[2](string)")],
        pytest.param(CASES, marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_query_finds_all_rows_of_each_transform(
    cases: list[Case], stack: Endpoints, namespace: str
) -> None:
    """Other readers are in ``tests/unit/iceberg/test_partition_matrix.py``."""
    catalog = stack.catalog()
    conf = {"spark.sql.session.timeZone": "UTC"} | stack.spark_session(settings())[0]
    session = new_session(stack.spark_connect, conf)
    wrong = dict[str, Any]()

    def ask(case: Case, questions: list[Question], dialect: Dialect) -> None:
        name = ".".join(["lake", namespace, case.name])
        selects = (
            f"SELECT {number} AS number, id FROM {name} WHERE {q.sql(case.kind, dialect)}"
            for number, q in enumerate(questions)
        )
        sql = " UNION ALL ".join(selects)
        found = defaultdict[int, set[int]](set)
        in_spark = dialect == "spark"
        rows = session.sql(sql).collect() if in_spark else run_query(sql, "duckdb", stack).rows
        for number, id_ in rows:
            found[number].add(id_)
        for number, question in enumerate(questions):
            if found[number] != question.ids:
                key = f"{dialect} {case}: {question.comparison} {question.value!r}"
                wrong[key] = sorted(question.ids), sorted(found[number])

    try:
        for case in cases:
            table = case.create(catalog, namespace)
            ask(case, list(case.questions()), "duckdb")
            if not SPARK.misses(table):
                ask(case, list(case.questions()), "spark")
    finally:
        session.stop()
    assert not wrong
