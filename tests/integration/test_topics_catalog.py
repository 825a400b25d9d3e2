"""The topics' tables in an external catalog of a server like Open Catalog, in which no client may
create a table, and the derived tables in another catalog of it.

Needs: `no.nav.security:mock-oauth2-server`, downloaded once (30 MB).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from gateways import Gateway, polaris_gateway
from pyiceberg.exceptions import BadRequestError, NoSuchNamespaceError
from real_servers import oauth_server

from topicberg.checks.rules import check_unique
from topicberg.clients.catalog import ensure_namespace
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.orchestration.resources.lakehouse import signals_of_confluent
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.spark import new_session
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import write_window
from topicberg.transforms.upsert_view import UpsertView, refresh
from topicberg.transforms.windows import Window

pytestmark = pytest.mark.integration

TOPICS = "lkc-open"
HOUR = Window(datetime(2026, 5, 1, 10, tzinfo=UTC), datetime(2026, 5, 1, 11, tzinfo=UTC))
LARGE = Derivation(
    sources=(Source((TOPICS, "orders"), "at"),),
    target=("airline", "large_orders"),
    transform=lambda orders: orders.filter("amount > 1"),
    target_time="at",
)
NEWEST = UpsertView((TOPICS, "orders"), ("airline", "newest_orders"), ("id",), ("at",))


@pytest.fixture(scope="module")
def server(stack: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Tableflow has written the topic ``orders`` of three records, two of them with one id."""
    catalog = stack.catalog()
    ensure_namespace(catalog, TOPICS)
    rows: list[dict[str, Any]] = [
        {"id": id_, "amount": amount, "at": datetime(2026, 5, 1, 10, minute, tzinfo=UTC)}
        for id_, amount, minute in ((1, 1, 0), (1, 5, 10), (2, 9, 20))
    ]
    data = pa.Table.from_pylist(rows)
    catalog.create_table((TOPICS, "orders"), data.schema).append(data)
    with (
        oauth_server(tmp_path_factory.mktemp("oauth"), 600) as oauth,
        polaris_gateway(stack, oauth, "tableflow", TOPICS) as found,
    ):
        found.token_uri = oauth.token_uri
        yield found
    for identifier in ((TOPICS, "orders"), LARGE.target, NEWEST.target):
        catalog.purge_table(identifier)


@pytest.fixture
def deployment(
    stack: Endpoints, server: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Endpoints]:
    """Confluent's Tableflow publishes to Open Catalog; no client has a setting of another one."""
    local = settings()
    assert stack.s3_access_key
    assert stack.s3_secret_key
    given = {
        "DEPLOYMENT": "cloud",
        "STATE_DIR": str(tmp_path),
        "CLUSTER_ID": TOPICS,
        "AWS_ACCOUNT_ID": local.aws_account_id,
        "BUCKET": local.bucket,
        "DERIVED_BUCKET": local.derived_bucket,
        "SNOWFLAKE_CATALOG": "open_catalog",
        "SNOWFLAKE_VENDED_CREDENTIALS": "false",
        "CATALOG__URI": server.url,
        "CATALOG__NAME": "tableflow",
        "CATALOG__DERIVED_NAME": "derived",
        "CATALOG__CLIENT_ID": "engine",
        "CATALOG__CLIENT_SECRET": "engine-client-secret",
        "CATALOG__TOKEN_URI": str(server.token_uri),
        "CATALOG__SCOPE": "PRINCIPAL_ROLE:ALL",
        "KAFKA_BOOTSTRAP": stack.kafka_bootstrap,
        "KAFKA_API_KEY": "k",
        "KAFKA_API_SECRET": "s",
        "SCHEMA_REGISTRY_URL": stack.schema_registry,
        "SCHEMA_REGISTRY_API_KEY": "k",
        "SCHEMA_REGISTRY_API_SECRET": "s",
        "SPARK_REMOTE": stack.spark_connect,
        "S3_ENDPOINT": str(stack.s3),
        "SNOWFLAKE_ACCOUNT": "a",
        "SNOWFLAKE_USER": "u",
        "SNOWFLAKE_PASSWORD": "p",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"TOPICBERG_{name}", value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", stack.s3_access_key.get_secret_value())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", stack.s3_secret_key.get_secret_value())
    settings.cache_clear()
    yield load_endpoints()
    monkeypatch.undo()
    settings.cache_clear()


def test_graph_reads_topics_and_writes_derived_tables_in_open_catalog(
    deployment: Endpoints,
) -> None:
    catalog = deployment.catalog()
    conf, renew_at = deployment.spark_session(settings())
    assert renew_at is None  # Spark renews its token itself
    spark = new_session(deployment.spark_connect, conf)
    try:
        written = write_window(spark, catalog, LARGE, HOUR)
        refresh(spark, catalog, NEWEST)
        refresh(spark, catalog, NEWEST)  # nothing is new
    finally:
        spark.stop()
    assert written.rows == 2
    assert catalog.load_table(NEWEST.target).scan().to_arrow().num_rows == 2
    namespaces = [one for (one,) in catalog.list_namespaces()]
    assert namespaces.count(TOPICS) == 1
    assert LARGE.target[0] in namespaces
    table = catalog.load_table((TOPICS, "orders"))
    assert not [name for name in table.metadata.refs if name != "main"]  # it cannot be tagged
    for engine in ("duckdb", "spark"):
        joined = run_query("SELECT count(*) FROM orders JOIN large_orders USING (id)", engine)
        assert joined.scalar() == 3, engine
    for identifier in ((TOPICS, "orders"), NEWEST.target):
        unique = check_unique(catalog.load_table(identifier), ("id",), deployment, settings())
        assert unique.passed is (identifier == NEWEST.target), unique.what


def test_topics_catalog_refuses_what_only_tableflow_does(deployment: Endpoints) -> None:
    """The gateway is as strict as Polaris, and the derived tables' catalog has no topic."""
    split: Any = deployment.catalog()
    with pytest.raises(BadRequestError, match="static-facade external"):
        split.topics.create_table((TOPICS, "other"), pa.schema([("id", pa.int64())]))
    with pytest.raises(NoSuchNamespaceError):
        super(type(split), split).list_tables(TOPICS)


def test_sensor_relies_on_no_pointer_in_glue(deployment: Endpoints) -> None:
    """Glue has what Dagster registered last, not what Tableflow committed."""
    assert signals_of_confluent([], deployment, settings()) == {}
