"""Athena: requests and answers as botocore's model of the service has them, and honest errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from format_versions import allow_version_3, upgrade
from own_aws import serving
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from topicberg import query
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.query.athena import AthenaError, ask
from topicberg.settings import Settings

CONFIG = Settings(deployment="cloud", prefix="demo", cluster_id="lkc-1")
QUERY = "0a1b2c3d-0000-4000-8000-000000000001"
STARTED = {
    "QueryString": "SELECT 1",
    "WorkGroup": "demo_athena",
    "QueryExecutionContext": {"Catalog": "AwsDataCatalog", "Database": "lkc-1"},
}


class Aws:
    """The only part of endpoints that Athena needs: a client, whose answers are given."""

    def __init__(self) -> None:
        self.client = boto3.client(
            "athena", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )

    def boto3(self, service: str, config: Settings) -> Any:
        assert service == "athena"
        return self.client


@pytest.fixture
def aws() -> Aws:
    return Aws()


@pytest.fixture
def stub(aws: Aws) -> Iterator[Stubber]:
    """Checks every request and answer against the service's model."""
    with Stubber(aws.client) as stub:
        yield stub
        stub.assert_no_pending_responses()


def asked(aws: Aws, max_rows: int | None = None) -> Any:
    return ask("SELECT 1", cast(Endpoints, aws), CONFIG, max_rows, sleep=lambda _: None)


def started(stub: Stubber, *states: str, **status: Any) -> None:
    stub.add_response("start_query_execution", {"QueryExecutionId": QUERY}, STARTED)
    for state in states:
        answer = {"QueryExecution": {"Status": {"State": state, **status}}}
        stub.add_response("get_query_execution", answer, {"QueryExecutionId": QUERY})


def page(columns: dict[str, str], *rows: list[str | None], more: str = "") -> dict[str, Any]:
    info = [{"Name": name, "Type": kind} for name, kind in columns.items()]
    data = [
        {"Data": [{} if text is None else {"VarCharValue": text} for text in row]} for row in rows
    ]
    found: dict[str, Any] = {"ResultSet": {"Rows": data, "ResultSetMetadata": {"ColumnInfo": info}}}
    return found | ({"NextToken": more} if more else {})


def test_values_have_the_types_of_their_columns(aws: Aws, stub: Stubber) -> None:
    columns = {
        "n": "bigint",
        "price": "decimal",
        "ok": "boolean",
        "day": "date",
        "at": "timestamp with time zone",
        "local": "timestamp",
        "raw": "varbinary",
        "tags": "array",
        "none": "integer",
    }
    row = [
        *("7", "1.50", "true", "2026-01-02", "2026-01-02 03:04:05.123456 UTC"),
        *("2026-01-02 03:04:05.000", "00 ff", "[a, b]", None),
    ]
    started(stub, "QUEUED", "RUNNING", "SUCCEEDED")
    stub.add_response("get_query_results", page(columns, list(columns), row))
    names, rows = asked(aws)
    assert names == tuple(columns)
    assert rows == [
        (
            7,
            Decimal("1.50"),
            True,
            date(2026, 1, 2),
            datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC),
            datetime(2026, 1, 2, 3, 4, 5),
            b"\x00\xff",
            "[a, b]",
            None,
        )
    ]


def test_every_page_is_read_and_only_one_header_dropped(aws: Aws, stub: Stubber) -> None:
    started(stub, "SUCCEEDED")
    stub.add_response("get_query_results", page({"name": "varchar"}, ["name"], ["a"], more="token"))
    stub.add_response("get_query_results", page({"name": "varchar"}, ["name"], ["b"]))
    assert asked(aws) == (("name",), [("a",), ("name",), ("b",)])


def test_no_more_pages_than_rows_are_asked_for(aws: Aws, stub: Stubber) -> None:
    started(stub, "SUCCEEDED")
    rows: list[list[str | None]] = [["n"], ["1"], ["2"], ["3"]]
    stub.add_response("get_query_results", page({"n": "integer"}, *rows, more="token"))
    assert asked(aws, max_rows=1)[1] == [(1,), (2,)]


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_what_fails_says_why(aws: Aws, stub: Stubber, state: str) -> None:
    started(stub, state, StateChangeReason="TABLE_NOT_FOUND: line 1:15: Table 'x' does not exist")
    with pytest.raises(TopicbergError, match=f"is {state}: TABLE_NOT_FOUND"):
        asked(aws)


def test_a_missing_workgroup_names_deploy(aws: Aws, stub: Stubber) -> None:
    stub.add_client_error(
        "start_query_execution", "InvalidRequestException", "WorkGroup demo_athena is not found."
    )
    with pytest.raises(TopicbergError, match="is not found") as caught:
        asked(aws)
    assert "topicberg deploy create" in (caught.value.hint or "")


def test_interrupted_queries_are_stopped(aws: Aws, stub: Stubber) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    started(stub, "RUNNING")
    stub.add_response("stop_query_execution", {}, {"QueryExecutionId": QUERY})
    with pytest.raises(KeyboardInterrupt):
        ask("SELECT 1", cast(Endpoints, aws), CONFIG, None, sleep=interrupt)


def test_the_local_deployment_has_no_athena(aws: Aws) -> None:
    with pytest.raises(TopicbergError, match="runs no queries") as caught:
        ask("SELECT 1", cast(Endpoints, aws), Settings(), None)
    assert "--engine duckdb" in (caught.value.hint or "")


def test_the_emulator_runs_no_queries() -> None:
    with serving() as (_, _, url):
        client = boto3.client(
            "athena",
            region_name="us-east-1",
            endpoint_url=url,
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
        refused = r"(?s)UnsupportedOperation.*runs no queries"
        with pytest.raises(ClientError, match=refused):
            client.start_query_execution(QueryString="SELECT 1")
        for sql in (
            'SELECT "$$offset" FROM "lkc-1"."a.b" LIMIT 1',
            "SHOW TABLES",
            "EXPLAIN SELECT 1",
        ):
            with pytest.raises(ClientError, match=refused):
                client.start_query_execution(QueryString=sql)
        for sql in (
            "SELECT FROM WHERE",
            "SELECT 'a",
            "FROBNICATE t",
            "SELECT 1; SELECT 2",
            "-- none",
        ):
            with pytest.raises(ClientError, match="InvalidRequestException"):
                client.start_query_execution(QueryString=sql)
        with pytest.raises(ClientError, match=refused):
            client.get_query_results(QueryExecutionId=QUERY)
        with pytest.raises(ClientError, match="WorkGroup other is not found"):
            client.get_work_group(WorkGroup="other")
        with pytest.raises(ClientError, match="primary workgroup cannot be deleted"):
            client.delete_work_group(WorkGroup="primary")


def test_query_of_an_unreadable_table_names_other_engines(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Athena refuses tables of format version 3 with a message that does not say so."""
    allow_version_3(monkeypatch)
    schema = Schema(NestedField(1, "id", LongType()))
    for name in ("orders", "air.line"):
        upgrade(catalog, catalog.create_table(("shop", name), schema))
    catalog.create_table(("shop", "plain"), schema)

    def refuse(*_: object) -> NoReturn:
        raise AthenaError("athena: GENERIC_INTERNAL_ERROR", hint="look")

    monkeypatch.setitem(query._ENGINES, "athena", refuse)
    endpoints = cast("Endpoints", SimpleNamespace(catalog=lambda _: catalog))

    def hint(sql: str) -> str | None:
        with pytest.raises(AthenaError, match="GENERIC_INTERNAL_ERROR") as raised:
            query.run_query(sql, "athena", endpoints, Settings())
        return raised.value.hint

    for sql in ("SELECT * FROM orders", "SELECT 1 FROM shop.Orders", 'SELECT * FROM "air_line"'):
        found = hint(sql)
        assert found.startswith("choose another engine (duckdb, snowflake, spark): Athena cannot")
    assert hint("SELECT * FROM plain") == "look"
