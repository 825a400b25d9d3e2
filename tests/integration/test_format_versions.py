"""Tables of format version 3 of Iceberg, and of versions that topicberg does not support."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema
from found_topics import AVRO_TOPIC
from kafka_topics import ORDER, Topic, avro, encode
from partition_matrix import CASES, Case, Dialect, Question
from pyiceberg.manifest import DataFileContent
from typer.testing import CliRunner

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.tables import sync
from topicberg.checks.catalogs import count_rows
from topicberg.cli import app
from topicberg.endpoints import CATALOG, Endpoints
from topicberg.errors import TableflowError, TableFormatError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg.commits import upgrade_table
from topicberg.iceberg.files import live_files
from topicberg.iceberg.maintenance import MaintenancePolicy, compaction, maintain, topic_policy
from topicberg.iceberg.manifests import is_vector, referenced_file
from topicberg.iceberg.readers import SPARK
from topicberg.iceberg.snapshots import report
from topicberg.orchestration.resources import Snowflake
from topicberg.query import Engine, run_query
from topicberg.settings import settings
from topicberg.spark import new_session, quote
from topicberg.tableflow.service import control
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.table.table import drop

pytestmark = pytest.mark.integration

KEYED = {"write_mode": "upsert", "key": {"format": "string"}}
NOW = timedelta(0)
EAGER = MaintenancePolicy(
    retention=NOW, min_snapshots=1, reader_age=NOW, staged_age=NOW, compact_after=NOW
)

MakeTopic = Callable[..., Topic]
Rows = dict[str, int]
"""Key → ``id`` of its newest record."""


def version(number: int, **fields: Any) -> dict[str, Any]:
    return {"table": {"format_version": number}, **fields}


def send(topic: Topic, rows: dict[str, int | None]) -> None:
    """Send records by key; None: a tombstone."""
    prefix, parsed = wire_prefix(topic.register(ORDER)), fastavro.parse_schema(ORDER)
    values = [
        None if n is None else prefix + encode(parsed, {"id": n, "note": "n"})
        for n in rows.values()
    ]
    topic.send_raw(values, key=[key.encode() for key in rows].__getitem__)


@contextmanager
def spark(topic: Topic) -> Iterator[Callable[[str], list[Any]]]:
    """Yield a function that runs a statement of another writer; ``{}`` is the table."""
    config, endpoints = topic.config, topic.endpoints
    conf, _ = endpoints.spark_session(config)
    session = new_session(endpoints.spark_connect, conf)
    name = quote(CATALOG, *topic.spec.table_identifier(config))
    try:
        yield lambda statement: session.sql(statement.format(name)).collect()
    finally:
        session.stop()


def read(topic: Topic) -> Rows:
    """Return the rows, on which all readers agree."""
    rows = [(row["key"], row["id"]) for row in topic.rows("key", "id")]
    engines: tuple[tuple[Engine, str], ...] = (
        ("duckdb", f'"{topic.spec.name}"'),
        ("spark", f"`{topic.spec.name}`"),
    )
    for engine, name in engines:
        found = run_query(f"SELECT key, id FROM {name}", engine, topic.endpoints, topic.config).rows
        assert sorted(map(tuple, found)) == sorted(rows), engine
    assert len(dict(rows)) == len(rows), "a key has two rows"
    return dict(rows)


def in_snowflake(topic: Topic) -> list[int]:
    """Return what Snowflake reads, by the table in Glue."""
    config, spec = topic.config, topic.spec
    glue_table = config.cluster_id, spec.glue_name
    glue.register(topic.endpoints.boto3("glue"), topic.table(), *glue_table)
    location = topic.table().location()
    with Snowflake().connection() as connection:
        sync(connection, config, spec.snowflake_name, glue_table, location)
    query = f"SELECT id FROM {spec.snowflake_name}"
    return [row[0] for row in run_query(query, "snowflake", topic.endpoints, config).rows]


def vectors(topic: Topic) -> list[str]:
    """Return the data file of each deletion vector."""
    found = [referenced_file(file) for file in live_files(topic.table()) if is_vector(file)]
    assert len(found) == len(set(found)), "a data file has two deletion vectors"
    return found


def delete_files(topic: Topic) -> int:
    """Return the number of position delete files, of version 2."""
    return sum(
        file.content == DataFileContent.POSITION_DELETES and not is_vector(file)
        for file in live_files(topic.table())
    )


def counted(topic: Topic) -> tuple[int, int]:
    """Return the rows by the check's count and by the summary of the head."""
    table = topic.table()
    head = table.current_snapshot()
    assert head is not None
    return count_rows(table), report(head).total_records


@pytest.mark.parametrize(
    ("name", "number"), [("files", 3), pytest.param("snapshots", 2, marks=pytest.mark.slow)]
)
def test_names_of_icebergs_own_tables_and_columns_are_read_by_each_engine(
    make_topic: MakeTopic, name: str, number: int
) -> None:
    topic = make_topic(name=name, **version(number, **KEYED))
    columns = ("pos", "file_path", "row", "partition", "filename", "file_row_number", "rowid")
    schema = avro(*({"name": column, "type": "string"} for column in ("id", *columns)))
    rows = {key: {"id": key} | {c: f"{c} {key}" for c in columns} for key in ("k0", "k1", "k2")}
    topic.send(schema, [*rows.values()], key=lambda n: f"k{n}".encode())
    topic.ingest()
    rows["k1"]["pos"] = "other"
    topic.send(schema, [rows["k1"]], key=lambda _: b"k1")
    topic.send_raw([None], key=lambda _: b"k2")
    topic.ingest()
    expected = [tuple(rows[key].values()) for key in ("k0", "k1")]
    for is_maintained in (False, True):
        if is_maintained:
            maintain(topic.spec, topic.endpoints, topic.config, EAGER)
        assert [tuple(row.values()) for row in topic.rows("id", *columns)] == expected
        for engine, mark in (("duckdb", '"'), ("spark", "`")):
            listed = ", ".join(f"{mark}{column}{mark}" for column in ("id", *columns))
            sql = f"SELECT {listed} FROM {name} WHERE {mark}pos{mark} > '' ORDER BY id"
            assert run_query(sql, engine, topic.endpoints, topic.config).rows == expected  # type: ignore[arg-type]
    topic.endpoints.catalog().drop_table(topic.spec.table_identifier(topic.config))


@pytest.mark.parametrize("fields", [{}, KEYED], ids=["append", "upsert"])
def test_newer_format_version_is_reported(make_topic: MakeTopic, fields: dict[str, Any]) -> None:
    topic = make_topic(**fields)
    topic.send(ORDER, [{"id": 1, "note": "a"}], key=lambda _: b"k")
    topic.ingest()
    with spark(topic) as sql:
        sql("ALTER TABLE {} SET TBLPROPERTIES ('format-version' = '4')")
    topic.send(ORDER, [{"id": 2, "note": "b"}], key=lambda _: b"k")
    for work in (
        topic.ingest,
        lambda: maintain(topic.spec, topic.endpoints, topic.config),
        topic.table,
    ):
        with pytest.raises(TableFormatError, match="format version 4") as raised:
            work()
        assert topic.spec.name in raised.value.message
        assert raised.value.hint
    catalog = topic.endpoints.catalog(topic.config)
    assert drop(catalog, topic.spec.table_identifier(topic.config)), "the hint works"
    assert topic.ingest() == 2


def test_spark_and_engine_write_vectors_in_turns(make_topic: MakeTopic) -> None:
    topic = make_topic(**KEYED)
    for first in (0, 10):
        send(topic, {f"k{n}": n for n in range(first, first + 10)})
        topic.ingest()
    send(topic, {"k1": 101, "k2": None, "k11": 111})
    topic.ingest()
    assert delete_files(topic) == 1
    upgrade_table(topic.table())
    with spark(topic) as sql:
        sql("DELETE FROM {} WHERE id IN (3, 4)")
        assert delete_files(topic) == 1, "Spark keeps delete files of several data files"
        rows = {f"k{n}": n for n in range(20) if n not in (2, 3, 4)} | {"k1": 101, "k11": 111}
        assert read(topic) == rows
        assert count_rows(topic.table()) == len(rows)
        send(topic, {"k5": 105, "k3": 103})
        topic.ingest()
        rows |= {"k5": 105, "k3": 103}
        assert read(topic) == rows
        assert counted(topic) == (len(rows), len(rows))
        assert delete_files(topic) == 0
        sql("DELETE FROM {} WHERE id IN (6, 105)")
        del rows["k5"], rows["k6"]
        send(topic, {"k7": 107, "k5": 205})
        topic.ingest()
        rows |= {"k7": 107, "k5": 205}
        assert read(topic) == rows
        assert counted(topic) == (len(rows), len(rows))
        assert vectors(topic)
    assert sorted(in_snowflake(topic)) == sorted(rows.values())


def test_append_topic_of_version_3(make_topic: MakeTopic) -> None:
    """With row ids; Snowflake and Glue read it as well."""
    topic = make_topic(**version(3))
    for first in (0, 5):
        topic.send(ORDER, [{"id": n, "note": "n"} for n in range(first, first + 5)])
        topic.ingest()
    assert sorted(in_snowflake(topic)) == [row["id"] for row in topic.rows("id")] == [*range(10)]
    assert maintain(topic.spec, topic.endpoints, topic.config, EAGER).files_compacted == 2
    with spark(topic) as sql:
        ids = sorted(row[0] for row in sql("SELECT _row_id FROM {}"))
    assert ids == [*range(10)], "compaction keeps them"


def test_upgrade_command_warns_and_compacts_first(make_topic: MakeTopic) -> None:
    topic = make_topic()
    for n in range(2):
        topic.send(ORDER, [{"id": n, "note": "n"}])
        topic.ingest()
    control.enable(topic.config, topic.spec.name, {}, discovered=AVRO_TOPIC, command=True)
    runner = CliRunner()
    refused = runner.invoke(app, ["tableflow", "upgrade", topic.spec.name], input="n\n")
    assert refused.exit_code == 1
    assert "Athena" in refused.output
    assert "Snowflake cannot refresh" in refused.output
    assert topic.table().format_version == 2
    done = runner.invoke(app, ["tableflow", "upgrade", topic.spec.name, "--yes"])
    assert done.exit_code == 0, done.output
    assert topic.table().format_version == 3
    assert "compacted 2 data files" in done.output
    assert "for Snowflake: " in done.output
    head = topic.table().current_snapshot()
    assert head.first_row_id is not None, "Snowflake needs a snapshot of version 3"
    assert sorted(row["id"] for row in topic.rows("id")) == [0, 1]
    again = runner.invoke(app, ["tableflow", "upgrade", topic.spec.name, "--yes"])
    assert "already" in again.output
    control.disable(topic.config, topic.spec.name)


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
        policy = replace(topic_policy(topic.spec, topic.table()), compact_after=timedelta(0))
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
    session, wrong = new_session(stack.spark_connect, conf), dict[str, Any]()

    def ask(case: Case, questions: list[Question], dialect: Dialect) -> None:
        name = ".".join(["lake", namespace, case.name])
        selects = (
            f"SELECT {number} AS number, id FROM {name} WHERE {q.sql(case.kind, dialect)}"
            for number, q in enumerate(questions)
        )
        sql, found = " UNION ALL ".join(selects), defaultdict[int, set[int]](set)
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
