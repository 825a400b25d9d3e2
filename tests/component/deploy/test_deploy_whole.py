"""A whole deployment in the vendors' emulators: created, used, rotated, upgraded, deleted.

Each test starts from the state that its fixture names, whatever the test before left. A state that
the last plan found, and that nothing has changed since, is not planned again. The policies of CI
allow every request to AWS of each plan, rotation, creation and deletion: `Deployment.allowed`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from aws_requests import Watch
from botocore.exceptions import ClientError
from pydantic import SecretStr
from repository import PROJECT_ROOT
from snowflake.connector import SnowflakeConnection
from snowflake.connector.errors import ProgrammingError
from vendors import ADMIN_SECRET, REGION, Vendors, in_this_process

from topicberg.catalogs.snowflake.names import SnowflakeNames, table_path
from topicberg.catalogs.snowflake.session import ask
from topicberg.catalogs.snowflake.tables import sync
from topicberg.clients import rsa, trace
from topicberg.clients.confluent import Api
from topicberg.endpoints import SnowflakeEndpoint
from topicberg.errors import TopicbergError
from topicberg.query import QueryError, run_query
from topicberg.topics import load_topics
from topicberg_deploy import engine
from topicberg_deploy.aws.athena import Workgroup
from topicberg_deploy.aws.iam import Policy
from topicberg_deploy.aws.permissions import Deployed, Purpose, policy
from topicberg_deploy.context import DeployContext
from topicberg_deploy.graph.definitions import asset_key, deployed_assets
from topicberg_deploy.preflight import check
from topicberg_deploy.probe import probe, report
from topicberg_deploy.resource import Step
from topicberg_deploy.rotate import rotate
from topicberg_local.emulators.confluent.server import Fault
from topicberg_local.emulators.iam import Policies

TOPICS = ("stock_trades", "airline.sunset")
KEYS_SEEN = ("schema_registry", "tableflow", "kafka_app_manager")
TABLE = "snowflake/table/airline_sunset"


DERIVED = ("demo_stock_trades", "totals")
WAITS = {TABLE, *(f"snowflake/grant/{role}/table/airline_sunset" for role in ("reader", "query"))}
"""What cannot be created before the first records of a topic."""
LINKED = {"snowflake_linked_database": True}


@dataclass
class Deployment:
    """A deployment of the topics, and the state in which the last plan found it.

    :param watch: the requests to AWS
    """

    vendors: Vendors
    watch: Watch
    context: DeployContext | None = None
    found: tuple[dict[str, Any], set[str]] | None = None
    """The settings of the last plan, and what it found to do; None: something changed since."""

    def changed(self) -> None:
        self.found = None

    @contextmanager
    def allowed(self, purpose: Purpose) -> Iterator[None]:
        """Check that the policies of a purpose allow the body's requests; on another deployment's
        resources they allow nothing.
        """
        self.watch.take()
        yield
        context, _ = self.vendors.open(*TOPICS)
        specs, secrets = tuple(context.specs), (ADMIN_SECRET,)
        of = Deployed(context.config, self.watch.account, specs, secrets)
        found = Policies(tuple(policy(purpose, of)["Statement"]))
        requests = [*{(one.action, one.resource): one for one in self.watch.take()}.values()]
        if purpose == "plan":  # what it may not read is left out: `test_printed_policies.py`
            requests = [one for one in requests if one.action != "secretsmanager:GetSecretValue"]
        assert not {f"{purpose}: {one}" for one in requests if found.denial(one)}
        others = [one for one in requests if "demo" in one.resource]
        assert others
        for one in others:
            other = replace(one, resource=one.resource.replace("demo", "other"))
            assert found.denial(other), f"{purpose}: {other}"

    def create(self, **changes: Any) -> DeployContext:
        self.changed()
        with self.allowed("deploy"):
            return self.vendors.create(*TOPICS, **changes)

    def delete(self, **changes: Any) -> dict[str, str]:
        self.changed()
        with self.allowed("deploy"):
            return self.vendors.delete(*TOPICS, **changes)

    def rotate(self) -> int:
        self.changed()
        context, graph = self.vendors.open(*TOPICS)
        with self.allowed("rotate"):
            return rotate(graph, context, lambda *_: None, force=True)

    def plan(self, **changes: Any) -> dict[str, str]:
        """What differs, by key."""
        return {key: step.action.value for key, step in self.steps(**changes).items()}

    def steps(self, **changes: Any) -> dict[str, Step]:
        self.context, graph = self.vendors.open(*TOPICS, **changes)
        with self.allowed("plan"):
            steps = engine.plan(graph, self.context)
        differs = {step.resource.key: step for step in steps if step.action != "keep"}
        self.found = (changes, set(differs))
        return differs

    def ensure(self, waits: set[str], **changes: Any) -> DeployContext:
        """Return the context of a deployment whose plan has only what waits for records."""
        if self.found != (changes, waits):
            self.create(**changes)
            assert self.plan(**changes) == dict.fromkeys(waits, "wait")
        assert self.context
        return self.context


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    watch, traced = Watch("123456789012", REGION), trace.aws

    def watched(client: Any) -> None:
        traced(client)
        watch.client(client)

    with (
        in_this_process(tmp_path_factory.mktemp("vendors")) as vendors,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(trace, "aws", watched)
        yield Deployment(vendors, watch)


@pytest.fixture
def deleted(deployment: Deployment) -> Deployment:
    """Nothing is deployed, and topics have no records."""
    if deployment.vendors.left():
        assert deployment.delete(**LINKED) == {}
        assert deployment.vendors.left() == set()
    deployment.vendors.confluent.written.clear()
    return deployment


@pytest.fixture
def waiting(deployment: Deployment, request: pytest.FixtureRequest) -> Deployment:
    """All is created but the table of a topic without records."""
    if TOPICS[1] in deployment.vendors.confluent.written:
        request.getfixturevalue("deleted")
    deployment.ensure(WAITS)
    return deployment


@pytest.fixture
def complete(deployment: Deployment) -> Deployment:
    """All is created, and all topics have records."""
    deployment.vendors.confluent.written.add(TOPICS[1])
    deployment.ensure(set())
    return deployment


@pytest.fixture
def linked(deployment: Deployment) -> Deployment:
    """As `complete`, with a catalog-linked database beside the tables."""
    deployment.vendors.confluent.written.add(TOPICS[1])
    deployment.ensure(set(), **LINKED)
    return deployment


@pytest.fixture
def deployed(complete: Deployment) -> DeployContext:
    """The context of a complete deployment, which the test only reads."""
    assert complete.context
    return complete.context


@pytest.fixture
def derived(deployed: DeployContext, deployment: Deployment) -> Iterator[str]:
    """The folder of a derived table in Glue, which Snowflake does not have."""
    folder = f"s3://{deployed.aws.derived_bucket}/{'/'.join(DERIVED)}"
    deployment.vendors.table(DERIVED, folder)
    yield folder
    with logged_in(deployed) as connection:
        table = SnowflakeNames.of(deployed.config).table("TOTALS")
        ask(connection, f"DROP ICEBERG TABLE IF EXISTS {table}")
    deployment.vendors.glue.drop_table(DERIVED)


@contextmanager
def logged_in(context: DeployContext) -> Iterator[SnowflakeConnection]:
    """As the runtime does: the service user with its own role and warehouse."""
    values = context.need("snowflake/user_keys").facts["values"]
    key = base64.b64encode(rsa.private_key(values)).decode()
    user = context.config.snowflake_name("user")
    connection = context.snowflake.connect(user=user, private_key=key)
    try:
        yield connection
    finally:
        connection.close()


def stock_trades(context: DeployContext) -> tuple[tuple[str, str], str]:
    """Return the name in Glue and the folder of a topic's table."""
    return (context.cluster, "stock_trades"), f"s3://{context.aws.bucket}/10011010/stock_trades"


def test_admin_without_roles_touches_nothing(deleted: Deployment) -> None:
    vendors = deleted.vendors
    vendors.sql("REVOKE ROLE ACCOUNTADMIN FROM USER DEPLOYER")
    with pytest.raises(TopicbergError) as caught:
        check(vendors.open(*TOPICS)[0])
    for role in ("ACCOUNTADMIN", "SECURITYADMIN", "SYSADMIN"):
        assert f"role {role}" in caught.value.message
    vendors.sql("GRANT ROLE ACCOUNTADMIN TO USER DEPLOYER")
    check(vendors.open(*TOPICS)[0])
    assert vendors.left() == set()


def test_create_leaves_out_only_what_waits(deleted: Deployment) -> None:
    """What is not known everywhere yet is refused in words that no vendor documents."""
    faults = deleted.vendors.confluent.faults
    faults.add(Fault(kind="reworded", percent=100))
    try:
        context = deleted.create()
    finally:
        faults.clear()
    assert set(context.waiting) == WAITS
    steps = deleted.steps()
    assert {key: step.action.value for key, step in steps.items()} == dict.fromkeys(WAITS, "wait")
    assert steps[TABLE].reason == "for the first records of topic airline.sunset"


def unreadable(*_: object) -> None:
    raise ClientError({"Error": {"Code": "AccessDenied"}}, "GetWorkGroup")


def test_dagster_run_leaves_out_what_waits(
    waiting: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = waiting.vendors.open(*TOPICS)
    given = context.deploy.model_dump(exclude_none=True)
    given |= {"deployment": "cloud", "prefix": "demo"}
    for name, value in given.items():
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        monkeypatch.setenv(f"TOPICBERG_{name.upper()}", text)
    monkeypatch.setattr(Workgroup, "find", unreadable)  # neither needs it
    there = asset_key("confluent/topic/stock_trades")
    assets = deployed_assets(context.config, load_topics(context.config))
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([assets], instance=instance, selection=[asset_key(TABLE), there])
    made = [event.asset_key for event in result.get_asset_materialization_events()]
    assert result.success
    assert made == [there]


def test_create_after_the_first_records_completes(waiting: Deployment) -> None:
    waiting.vendors.confluent.written.add("airline.sunset")
    waiting.create()
    assert waiting.plan() == {}


def test_debug_shows_requests_without_secrets(
    complete: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", "topicberg.requests"):
        complete.plan()
    context = complete.context
    assert context
    lines = [one.getMessage() for one in caplog.records if one.name == "topicberg.requests"]
    for begin in ("Confluent: GET http", "AWS: IAM GetRole: 200", "Snowflake as SYSADMIN: SHOW"):
        assert any(line.startswith(begin) for line in lines), begin
    values = context.need("snowflake/user_keys").facts["values"]
    secrets = {
        context.confluent.active_key(f"key/{name}").secret.get_secret_value() for name in KEYS_SEEN
    }
    secrets |= {value for name, value in values.items() if "private_key" in name}
    assert not [line for line in lines for secret in secrets if secret in line]


def test_tables_are_found_as_tableflow_writes_them(deployed: DeployContext) -> None:
    """Glue says where the metadata file is, and columns have names that begin with $$."""
    (database, name), folder = stock_trades(deployed)
    table = deployed.aws.client("glue").get_table(DatabaseName=database, Name=name)["Table"]
    assert table["StorageDescriptor"]["Location"].startswith(f"{folder}/metadata/")
    path = SnowflakeNames.of(deployed.config).table("STOCK_TRADES")
    with logged_in(deployed) as connection:
        ((offset, time),) = ask(connection, f'SELECT "$$offset", "$$timestamp" FROM {path}')[1]
    assert (offset, time.isoformat()) == (7, "2026-01-01T00:00:00+00:00")


def test_service_user_creates_derived_tables(deployed: DeployContext, derived: str) -> None:
    """With its own role: neither the topics' bucket nor an admin is needed."""
    seen = deployed.seen
    with logged_in(deployed) as connection:
        assert sync(connection, seen, "TOTALS", DERIVED, derived).rows == 1
        table = sync(connection, seen, "STOCK_TRADES", *stock_trades(deployed))
        assert table.rows == 1
        with pytest.raises(ProgrammingError, match="Insufficient privileges"):
            ask(connection, f"DROP ICEBERG TABLE {table.name}")
    derived_table = SnowflakeNames.of(deployed.config).table("TOTALS")
    with deployed.snowflake.session() as session:
        session.run(f"DROP ICEBERG TABLE {derived_table}", "SYSADMIN")  # by the role that owns it


def test_queries_run_with_a_role_that_only_reads(
    deployed: DeployContext, derived: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service user owns derived tables, and by default has the privileges of all its roles."""
    context = deployed
    with logged_in(context) as connection:
        sync(connection, context.seen, "TOTALS", DERIVED, derived)
    values = context.need("snowflake/user_keys").facts["values"]
    deploy, user = context.deploy, context.config.snowflake_name("user")
    endpoints: Any = SimpleNamespace(
        snowflake=SnowflakeEndpoint(
            account=values["snowflake_account_identifier"],
            user=user,
            private_key=SecretStr(base64.b64encode(rsa.private_key(values)).decode()),
            **deploy.snowflake_address(),
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
        ask(connection, f"USE ROLE {context.config.snowflake_name('query_role')}")
        ask(connection, "USE SECONDARY ROLES NONE")
        table = SnowflakeNames.of(context.config).table("TOTALS")
        with pytest.raises(ProgrammingError, match="Insufficient privileges"):
            ask(connection, f"DROP ICEBERG TABLE {table}")
        ask(connection, "USE SECONDARY ROLES ALL")
        ask(connection, f"ALTER ICEBERG TABLE {table} REFRESH")


def test_rotate_publishes_the_keys_that_work(complete: Deployment) -> None:
    """Three times: no key is older than a period, so each still works."""
    keys = list[Any]()
    for _ in range(3):
        assert complete.rotate() == 9
        assert complete.plan() == {}
        assert complete.context
        context = complete.context
        keys.append(context.confluent.active_key("key/tableflow"))
    assert len({key.id for key in keys}) == 3
    for key in keys:
        Api(context.confluent.cloud.url, key.id, key.secret).get("/tableflow/v1/regions")
    with logged_in(context) as connection:
        assert ask(connection, "SELECT 1")[1] == [(1,)]


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


def test_upgrade_adds_and_loses_nothing(complete: Deployment) -> None:
    """Derived tables of the version before are beside the topics', and stay there."""
    older(complete)
    before = complete.vendors.objects()
    changed = ("aws/policy/tableflow", "aws/policy/snowflake", "aws/role/snowflake")
    assert complete.plan() == dict.fromkeys(NEW, "create") | dict.fromkeys(changed, "change")
    complete.create()
    assert complete.plan() == {}
    assert complete.vendors.objects() == before
    context = complete.context
    assert context
    with logged_in(context) as connection:
        folder = f"s3://{context.aws.bucket}/demo_stock_trades/older"
        assert sync(connection, context.seen, "OLDER", OLD_TABLE, folder).rows == 1


def older(deployment: Deployment) -> None:
    """Make the deployment what the version before would have made."""
    deployment.changed()
    context, graph = deployment.vendors.open(*TOPICS)
    engine.plan(graph, context)
    folder = f"s3://{context.aws.bucket}/demo_stock_trades/older"
    deployment.vendors.table(OLD_TABLE, folder)
    with logged_in(context) as connection:
        sync(connection, context.seen, "OLDER", OLD_TABLE, folder)
    for one in reversed(engine.in_order(graph)):
        if one.key in NEW:
            engine.remove(one, context, context.need(one.key))
        elif isinstance(one, Policy):
            text = json.dumps(one.grants(context)).replace(context.aws.derived_bucket, "x")
            text = text.replace(":catalog", ":x")
            context.aws.client("iam").create_policy_version(
                PolicyArn=context.need(one.key).id, PolicyDocument=text, SetAsDefault=True
            )


def test_host_without_the_choice_uses_created_tables(deployed: DeployContext) -> None:
    """E.g. one that has all names in its environment, after an upgrade."""
    context = deployed
    unaware = context.seen.model_copy(update=LINKED)
    topics, folder = stock_trades(context)
    with logged_in(context) as connection:
        table = sync(connection, unaware, "STOCK_TRADES", topics, folder)
        assert table.name == SnowflakeNames.of(context.config).table("STOCK_TRADES")
        with pytest.raises(TopicbergError, match="no catalog-linked database"):
            sync(connection, unaware, "NEW", (context.cluster, "new"), folder)


def test_linked_database_is_added_beside_the_tables(complete: Deployment) -> None:
    """The plan shows it; no data moves, and what was there can be read at any moment."""
    vendors = complete.vendors
    before, plan = vendors.objects(), complete.plan(**LINKED)
    assert plan.pop("aws/role/snowflake") == "change"
    assert set(plan.values()) == {"create"}
    assert plan.keys() >= {
        *(
            "snowflake/linked_integration",
            "snowflake/linked_database",
            "snowflake/table/stock_trades",
        ),
        "snowflake/grant/reader/table/stock_trades_schema",
        "snowflake/grant/query/linked_database_future_iceberg_tables",
    }
    complete.create(**LINKED)
    assert complete.plan(**LINKED) == {}
    assert vendors.objects() == before
    context = complete.context
    assert context
    created = SnowflakeNames.of(context.config).table("STOCK_TRADES")
    topics, folder = stock_trades(context)
    path = table_path(context.seen, "STOCK_TRADES", topics)
    assert path.is_linked
    with logged_in(context) as connection:
        table = sync(connection, context.seen, "STOCK_TRADES", topics, folder)
        assert (table.name, table.rows) == (path.sql, 1)
        assert ask(connection, f"SELECT count(*) FROM {created}")[1] == [(1,)]
        with pytest.raises(ProgrammingError, match="Insufficient privileges"):
            ask(connection, f"ALTER DATABASE {path.database} SUSPEND DISCOVERY")


def test_linked_database_that_drifts_is_changed_back(linked: Deployment) -> None:
    assert linked.context
    path = table_path(linked.context.seen, "STOCK_TRADES", stock_trades(linked.context)[0])
    linked.changed()
    for drift in ("SUSPEND DISCOVERY", "UPDATE LINKED_CATALOG SET ALLOWED_WRITE_OPERATIONS = ALL"):
        linked.vendors.sql(f"ALTER DATABASE {path.database} {drift}")
    (step,) = linked.steps(**LINKED).values()
    assert step.resource.key == "snowflake/linked_database"
    assert step.changes.keys() == {"suspended", "write_operations"}
    assert linked.context
    engine.converge(step.resource, linked.context, lambda *_: None)
    assert linked.plan(**LINKED) == {}


def test_integration_without_a_principal_names_what_snowflake_answered(linked: Deployment) -> None:
    expected = "'GLUE_AWS_IAM_USER_ARN' or 'API_AWS_IAM_USER_ARN'; it has ENABLED, .*OTHER_AWS_"
    with (
        linked.vendors.describing(sigv4_properties="OTHER"),
        pytest.raises(TopicbergError, match=expected),
    ):
        linked.plan(**LINKED)


def test_names_of_snowflakes_documents_change_nothing(linked: Deployment) -> None:
    """Documents and accounts differ in the names that DESC has."""
    with linked.vendors.describing(documented_names=True):
        names = SnowflakeNames.of(linked.vendors.open()[0].config)
        shown = {row[1] for row in linked.vendors.sql(f'DESC EXTERNAL VOLUME "{names.volume}"')}
        assert "storage_location_1" in shown
        assert linked.plan(**LINKED) == {}
    with linked.vendors.describing(sigv4_properties="API"):
        shown = {
            r[0]
            for r in linked.vendors.sql(f'DESC CATALOG INTEGRATION "{names.linked_integration}"')
        }
        assert "API_AWS_IAM_USER_ARN" in shown  # GLUE_AWS_…, which the role trusts
        assert linked.plan(**LINKED) == {}


def test_tables_without_the_linked_database_are_as_before(linked: Deployment) -> None:
    assert linked.plan().keys() >= {"snowflake/linked_integration", "snowflake/linked_database"}
    linked.create()
    assert linked.plan() == {}


def test_report_of_a_probe_has_no_text_of_the_accounts(linked: Deployment) -> None:
    """And each answer that docs/cloud.md promises, of a deployment with an upsert table."""
    vendors, upsert = linked.vendors, "sample_data_users"
    context, _ = vendors.open(*TOPICS, upsert, **LINKED)
    table = (vendors.confluent.account.config.cluster_id, upsert)
    vendors.table(table, f"s3://{context.aws.bucket}/{upsert}")
    with vendors.describing(sigv4_properties="arn:aws:iam::123456789012:user/deployer "):
        text = report(context, probe(context, is_reported=True))
    vendors.glue.drop_table(table)
    private = _private(vendors, context)
    assert len(private) > 30
    assert not [word for word in private if word.lower() in text.lower()]
    answers = json.loads(text)["answers"]
    section = (PROJECT_ROOT / "docs/cloud.md").read_text().partition("## What is tested")[2]
    assert {*re.findall(r"^\| `([a-z_.]+)` \|", section, re.M)} == answers.keys()
    not_tried = {key for key, answer in answers.items() if "not tried" in answer}
    assert not_tried == {"emr.job", "emr.merge", "propagation.grants"}
    assert answers["snowflake.refresh"]["errno"] == 3001
    assert "STORAGE_LOCATION_1" in answers["snowflake.volume"]["properties"]
    assert answers["snowflake.integration"]["as expected"] is False
    assert answers["snowflake.dotted_name"]["discovered"] == 1
    assert answers["tableflow.delete_files"]["format_version_2"] == 1


def _private(vendors: Vendors, context: DeployContext) -> set[str]:
    """Return what identifies the accounts, or opens them: secrets, ids, names of resources."""
    secrets = vendors.client("secretsmanager")
    words = {one["Name"] for one in secrets.list_secrets()["SecretList"]}
    for name in {*words}:
        words |= {*json.loads(secrets.get_secret_value(SecretId=name)["SecretString"]).values()}
    for model in (context.config, context.deploy):
        stated = (getattr(model, name) for name in model.model_fields_set)
        words |= {value for value in stated if isinstance(value, str)}
    words |= {context.deploy.confluent_api_secret.get_secret_value(), "arn:", "://", "127.0.0.1"}
    words |= {context.aws.account, context.aws.bucket, *TOPICS}
    words |= {one.rpartition(" ")[2] for one in vendors.left()}
    return {word for word in words if len(word) > 3 and word != "cloud"}


def test_delete_leaves_nothing(complete: Deployment) -> None:
    """Also a table of the service user, which the admin does not own."""
    context = complete.context
    assert context
    folder = f"s3://{context.aws.derived_bucket}/{'/'.join(DERIVED)}"
    complete.vendors.table(DERIVED, folder)
    with logged_in(context) as connection:
        assert sync(connection, context.seen, "TOTALS", DERIVED, folder).rows == 1
    assert complete.vendors.left() != set()
    assert complete.delete() == {}
    assert complete.vendors.left() == set()
