"""A whole deployment in the vendors' emulators: created, used, rotated, upgraded, deleted."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from pydantic import SecretStr
from snowflake.connector import SnowflakeConnection
from snowflake.connector.errors import ProgrammingError
from vendors import Vendors, in_this_process

from assets.platform import asset_key, platform_assets
from topicberg.catalogs import snowflake
from topicberg.clients.confluent import Api
from topicberg.deploy import engine, rsa
from topicberg.deploy.aws.iam import Policy
from topicberg.deploy.context import DeployContext
from topicberg.deploy.preflight import check
from topicberg.deploy.rotate import rotate
from topicberg.deploy.snowflake.session import _connect
from topicberg.endpoints import SnowflakeEndpoint
from topicberg.errors import TopicbergError
from topicberg.query import QueryError, run_query
from topicberg.topics import load_topics

TOPICS = ("stock_trades", "airline.sunset")
KEYS_SEEN = ("cloud", "tableflow", "kafka_app_manager")
TABLE = "snowflake/table/airline_sunset"


@pytest.fixture(scope="module")
def vendors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vendors]:
    with in_this_process(tmp_path_factory.mktemp("vendors")) as vendors:
        yield vendors


@contextmanager
def logged_in(context: DeployContext) -> Iterator[SnowflakeConnection]:
    """As the runtime does: the service user with its own role and warehouse."""
    values = context.need("snowflake/user_keys").facts["values"]
    key = base64.b64encode(rsa.private_key(values)).decode()
    connection = _connect(context, user=context.config.snowflake_name("user"), private_key=key)
    try:
        yield connection
    finally:
        connection.close()


def seen(vendors: Vendors, **changes: Any) -> DeployContext:
    context, graph = vendors.open(*TOPICS, **changes)
    engine.plan(graph, context)
    return context


def test_0_an_admin_without_the_roles_touches_nothing(vendors: Vendors) -> None:
    vendors.sql("REVOKE ROLE ACCOUNTADMIN FROM USER DEPLOYER")
    with pytest.raises(TopicbergError) as caught:
        check(vendors.open(*TOPICS)[0])
    for role in ("ACCOUNTADMIN", "SECURITYADMIN", "SYSADMIN"):
        assert f"role {role}" in caught.value.message
    vendors.sql("GRANT ROLE ACCOUNTADMIN TO USER DEPLOYER")
    check(vendors.open(*TOPICS)[0])
    assert vendors.left() == set()


def test_1_create_leaves_out_only_what_waits(vendors: Vendors) -> None:
    context = vendors.create(*TOPICS)
    name = TABLE.removeprefix("snowflake")
    waits = {TABLE, f"snowflake/grant/reader{name}", f"snowflake/grant/query{name}"}
    assert set(context.waiting) == waits
    plan = vendors.plan(*TOPICS)
    assert {key: step.action.value for key, step in plan.items()} == dict.fromkeys(waits, "wait")
    assert plan[TABLE].reason == "for the first records of topic airline.sunset"


def test_2_in_dagster_what_waits_is_left_out(
    vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = vendors.open(*TOPICS)
    given = context.deploy.model_dump(exclude_none=True)
    given |= {"deployment": "cloud", "prefix": "demo"}
    for name, value in given.items():
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        monkeypatch.setenv(f"TOPICBERG_{name.upper()}", text)
    there = asset_key("confluent/topic/stock_trades")
    assets = platform_assets(context.config, load_topics(context.config))
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([assets], instance=instance, selection=[asset_key(TABLE), there])
    made = [event.asset_key for event in result.get_asset_materialization_events()]
    assert result.success
    assert made == [there]


def test_3_the_first_records_end_the_waiting(vendors: Vendors) -> None:
    vendors.confluent.written.add("airline.sunset")
    vendors.create(*TOPICS)
    assert vendors.plan(*TOPICS) == {}


def test_3_debug_shows_requests_without_secrets(
    vendors: Vendors, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", "topicberg.requests"):
        context = seen(vendors)
    lines = [one.getMessage() for one in caplog.records if one.name == "topicberg.requests"]
    for begin in ("Confluent: GET http", "AWS: IAM GetRole: 200", "Snowflake as SYSADMIN: SHOW"):
        assert any(line.startswith(begin) for line in lines), begin
    values = context.need("snowflake/user_keys").facts["values"]
    secrets = {context.active_key(f"key/{name}").secret.get_secret_value() for name in KEYS_SEEN}
    secrets |= {value for name, value in values.items() if "private_key" in name}
    assert not [line for line in lines for secret in secrets if secret in line]


def test_4_the_service_user_creates_derived_tables(vendors: Vendors) -> None:
    """With its own role: neither the topics' bucket nor an admin is needed."""
    context = seen(vendors)
    name = ("demo_stock_trades", "totals")
    folder = f"s3://{context.derived_bucket}/demo_stock_trades/totals"
    vendors.table(name, folder)
    with logged_in(context) as connection:
        assert snowflake.sync(connection, context.seen, "TOTALS", name, folder).rows == 1
        topics = (context.cluster, "stock_trades")
        of_topics = f"s3://{context.bucket}/10011010/stock_trades"
        table = snowflake.sync(connection, context.seen, "STOCK_TRADES", topics, of_topics)
        assert table.rows == 1
        with pytest.raises(ProgrammingError, match="Insufficient privileges"):
            snowflake.ask(connection, f"DROP ICEBERG TABLE {table.name}")


def test_4_queries_run_with_a_role_that_only_reads(
    vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service user owns derived tables, and by default has the privileges of all its roles."""
    context = seen(vendors)
    values = context.need("snowflake/user_keys").facts["values"]
    deploy, user = context.deploy, context.config.snowflake_name("user")
    endpoints: Any = SimpleNamespace(
        snowflake=SnowflakeEndpoint(
            account=values["snowflake_account_identifier"],
            user=user,
            private_key=SecretStr(base64.b64encode(rsa.private_key(values)).decode()),
            host=deploy.snowflake_host,
            port=deploy.snowflake_port,
            protocol=deploy.snowflake_protocol,
        ),
        catalog=lambda _: None,
    )
    counted = "SELECT count(*) FROM stock_trades UNION ALL SELECT count(*) FROM totals"
    assert run_query(counted, "snowflake", endpoints, context.config).rows == [(1,), (1,)]
    monkeypatch.setattr("topicberg.query.check_reads", lambda *_: None)  # what a guard may miss
    drop = "DROP ICEBERG TABLE totals"
    with pytest.raises(QueryError, match="Insufficient privileges"):
        run_query(drop, "snowflake", endpoints, context.config)
    with logged_in(context) as connection:
        snowflake.ask(connection, f"USE ROLE {context.config.snowflake_name('query_role')}")
        snowflake.ask(connection, "USE SECONDARY ROLES NONE")
        table = snowflake.Names.of(context.config).table("TOTALS")
        with pytest.raises(ProgrammingError, match="Insufficient privileges"):
            snowflake.ask(connection, f"DROP ICEBERG TABLE {table}")
        snowflake.ask(connection, "USE SECONDARY ROLES ALL")
        snowflake.ask(connection, f"ALTER ICEBERG TABLE {table} REFRESH")


def test_5_rotated_keys_are_those_that_are_published(vendors: Vendors) -> None:
    context, graph = vendors.open(*TOPICS)
    assert rotate(graph, context, lambda *_: None, force=True) == 7
    context = seen(vendors)
    cloud = context.active_key("key/cloud")
    Api(context.cloud.url, cloud.id, cloud.secret).get("/org/v2/environments")
    with logged_in(context) as connection:
        assert snowflake.ask(connection, "SELECT 1")[1] == [(1,)]
    assert vendors.plan(*TOPICS) == {}


NEW = {
    "confluent/role_binding/tableflow_subjects",
    "confluent/acl/app_connector",
    "aws/derived_bucket",
    "aws/compute_bucket",
    "aws/athena_workgroup",
    "aws/emr/application",
    "aws/policy/emr",
    "aws/role/emr",
    "snowflake/derived_volume",
    "snowflake/grant/reader/derived_volume",
    "snowflake/role_grant/to_sysadmin",
    "snowflake/role/query",
    "snowflake/role_grant/query",
    *(f"snowflake/grant/query/{on}" for on in ("warehouse", "database", "schema")),
    *(f"snowflake/grant/query/table/{name}" for name in ("stock_trades", "airline_sunset")),
}
"""What a deployment of the version before lacks."""
OLD_TABLE = ("demo_stock_trades", "older")


def test_6_an_upgrade_adds_and_loses_nothing(vendors: Vendors) -> None:
    """Derived tables of the version before are beside the topics', and stay there."""
    older(vendors)
    before = vendors.objects()
    plan = {key: step.action.value for key, step in vendors.plan(*TOPICS).items()}
    changed = ("aws/policy/tableflow", "aws/policy/snowflake", "aws/role/snowflake")
    assert plan == dict.fromkeys(NEW, "create") | dict.fromkeys(changed, "change")
    vendors.create(*TOPICS)
    assert vendors.plan(*TOPICS) == {}
    assert vendors.objects() == before
    context = seen(vendors)
    with logged_in(context) as connection:
        folder = f"s3://{context.bucket}/demo_stock_trades/older"
        assert snowflake.sync(connection, context.seen, "OLDER", OLD_TABLE, folder).rows == 1


def older(vendors: Vendors) -> None:
    """Make the deployment what the version before would have made."""
    context, graph = vendors.open(*TOPICS)
    engine.plan(graph, context)
    folder = f"s3://{context.bucket}/demo_stock_trades/older"
    vendors.table(OLD_TABLE, folder)
    names = snowflake.Names.of(context.config)
    with logged_in(context) as connection:
        snowflake.sync(connection, context.seen, "OLDER", OLD_TABLE, folder)
        snowflake.ask(connection, f"DROP ICEBERG TABLE IF EXISTS {names.table('TOTALS')}")
    for one in reversed(engine.in_order(graph)):
        if one.key in NEW:
            engine.remove(one, context, context.need(one.key))
        elif isinstance(one, Policy):
            document = one.grants(context)
            text = json.dumps(document).replace(context.derived_bucket, "x").replace(":*", ":x")
            context.aws("iam").create_policy_version(
                PolicyArn=context.need(one.key).id, PolicyDocument=text, SetAsDefault=True
            )


LINKED = {"snowflake_linked_database": True}


def test_6_host_without_the_choice_uses_the_created_tables(vendors: Vendors) -> None:
    """E.g. one that has all names in its environment, after an upgrade."""
    context = seen(vendors)
    unaware = context.seen.model_copy(update=LINKED)
    topics, folder = (
        (context.cluster, "stock_trades"),
        f"s3://{context.bucket}/10011010/stock_trades",
    )
    with logged_in(context) as connection:
        table = snowflake.sync(connection, unaware, "STOCK_TRADES", topics, folder)
        assert table.name == snowflake.Names.of(context.config).table("STOCK_TRADES")
        with pytest.raises(TopicbergError, match="no catalog-linked database"):
            snowflake.sync(connection, unaware, "NEW", (context.cluster, "new"), folder)


def test_7_linked_database_is_added_beside_the_tables(vendors: Vendors) -> None:
    """The plan shows it; no data moves, and what was there can be read at any moment."""
    before = vendors.objects()
    plan = {key: step.action.value for key, step in vendors.plan(*TOPICS, **LINKED).items()}
    assert plan.pop("aws/role/snowflake") == "change"
    assert set(plan.values()) == {"create"}
    assert plan.keys() >= {
        *(
            "snowflake/linked_integration",
            "snowflake/linked_database",
            "snowflake/table/stock_trades",
        ),
        "snowflake/grant/reader/table/stock_trades_schema",
    }
    vendors.create(*TOPICS, **LINKED)
    assert vendors.plan(*TOPICS, **LINKED) == {}
    assert vendors.objects() == before
    context = seen(vendors, **LINKED)
    created = snowflake.Names.of(context.config).table("STOCK_TRADES")
    topics = (context.cluster, "stock_trades")
    path = snowflake.table_path(context.seen, "STOCK_TRADES", topics)
    assert path.is_linked
    with logged_in(context) as connection:
        of_topics = f"s3://{context.bucket}/10011010/stock_trades"
        table = snowflake.sync(connection, context.seen, "STOCK_TRADES", topics, of_topics)
        assert (table.name, table.rows) == (path.sql, 1)
        assert snowflake.ask(connection, f"SELECT count(*) FROM {created}")[1] == [(1,)]
        with pytest.raises(ProgrammingError, match="Insufficient privileges"):
            snowflake.ask(connection, f"ALTER DATABASE {path.database} SUSPEND DISCOVERY")
    alter = f"ALTER DATABASE {path.database}"
    for drift in ("SUSPEND DISCOVERY", "UPDATE LINKED_CATALOG SET ALLOWED_WRITE_OPERATIONS = ALL"):
        vendors.sql(f"{alter} {drift}")
        found = vendors.plan(*TOPICS, **LINKED)
        assert set(found) == {"snowflake/linked_database"}, drift
        vendors.create(*TOPICS, **LINKED)
        assert vendors.plan(*TOPICS, **LINKED) == {}, drift


def test_8_without_the_linked_database_tables_are_as_before(vendors: Vendors) -> None:
    plan = {key: step.action.value for key, step in vendors.plan(*TOPICS).items()}
    assert plan.keys() >= {"snowflake/linked_integration", "snowflake/linked_database"}
    vendors.create(*TOPICS)
    assert vendors.plan(*TOPICS) == {}
    vendors.create(*TOPICS, **LINKED)


def test_9_delete_leaves_nothing(vendors: Vendors) -> None:
    assert vendors.left() != set()
    assert vendors.delete(*TOPICS, **LINKED) == {}
    assert vendors.left() == set()
