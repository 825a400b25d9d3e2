"""An account that AWS Lake Formation governs: what `deploy` reads there, and what it prints."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import boto3
import pytest
from moto import mock_aws
from werkzeug.serving import make_server

from topicberg.catalogs.glue import get_table
from topicberg.clients.aws import aws_session
from topicberg.deploy import preflight
from topicberg.deploy.aws import lake_formation
from topicberg.deploy.aws.glue import GlueDatabase
from topicberg.deploy.context import DeployContext
from topicberg.deploy.resource import Live
from topicberg.errors import TopicbergError
from topicberg.naming import Names
from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_local.emulators.aws.__main__ import Application

ACCOUNT = "123456789012"
ADMIN = f"arn:aws:iam::{ACCOUNT}:role/lake_admin"
REGION = "us-east-1"
IAM_ONLY = [
    {
        "Principal": {"DataLakePrincipalIdentifier": "IAM_ALLOWED_PRINCIPALS"},
        "Permissions": ["ALL"],
    }
]
GOVERNED = {
    "DataLakeAdmins": [{"DataLakePrincipalIdentifier": ADMIN}],
    "CreateDatabaseDefaultPermissions": [],
    "CreateTableDefaultPermissions": [],
}


class Unsaved:
    """The state of an emulator that is not restarted."""

    def save(self) -> None:
        """Nothing."""


class Account:
    """The emulator's account, and roles that use it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.root = boto3.Session("LOCAL", "local", region_name=REGION)
        self.roles: dict[str, str] = {}

    def session(self, role: str) -> Any:
        """Log in as a role, by a boto3 session that checks answers."""
        iam, sts = (self.client(name) for name in ("iam", "sts"))
        if role not in self.roles:
            trust = json.dumps({"Version": "2012-10-17", "Statement": []})
            made = iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)
            self.roles[role] = made["Role"]["Arn"]
        key = sts.assume_role(RoleArn=self.roles[role], RoleSessionName="one")["Credentials"]
        return aws_session(
            aws_access_key_id=key["AccessKeyId"],
            aws_secret_access_key=key["SecretAccessKey"],
            aws_session_token=key["SessionToken"],
            region_name=REGION,
        )

    def client(self, service: str) -> Any:
        return self.root.client(service, endpoint_url=self.url)

    def govern(self) -> None:
        self.client("lakeformation").put_data_lake_settings(DataLakeSettings=GOVERNED)

    def run(self, command: str) -> None:
        """Run a printed command as the data lake administrator."""
        words = shlex.split(command)
        assert words[:3] == ["aws", "lakeformation", "grant-permissions"]
        at = {name: words.index(name) for name in ("--principal", "--permissions", "--resource")}
        name, _, principal = words[at["--principal"] + 1].partition("=")
        self.client("lakeformation").grant_permissions(
            Principal={name: principal},
            Permissions=words[at["--permissions"] + 1 : at["--resource"]],
            Resource=json.loads(words[at["--resource"] + 1]),
        )

    def context(self, role: str) -> DeployContext:
        """Return the part of a deploy context that reads AWS."""
        session = self.session(role)
        config = Settings.model_validate({"deployment": "cloud", "prefix": "demo"})
        specs = [one for one in load_topics(config) if one.name == "stock_trades"]
        context = SimpleNamespace(
            aws=lambda service: session.client(service, endpoint_url=self.url),
            config=config,
            specs=specs,
            names=Names("demo"),
            tags={"topicberg": "demo"},
            live={},
            namespace="lkc-1",
            bucket="lake",
            derived_bucket="lake-derived",
            role_arn=lambda name: f"arn:aws:iam::{ACCOUNT}:role/{name}",
        )
        return cast(DeployContext, context)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "LOCAL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    monkeypatch.setenv("MOTO_ACCOUNT_ID", ACCOUNT)
    with mock_aws():
        pass  # forgets what other tests made
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    moto = DomainDispatcherApplication(create_backend_app)
    application = Application(moto, cast(Any, Unsaved()))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Account(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        with mock_aws():
            pass


DATABASE = GlueDatabase("aws/glue_database", "of the cluster")


def test_account_that_iam_governs_needs_no_grant(account: Account) -> None:
    context = account.context("deployer")
    lake_formation.check_deployer(context)
    assert lake_formation.manual_steps(context) == []


def test_deployer_without_a_grant_is_told_the_command(account: Account) -> None:
    account.govern()
    context = account.context("deployer")
    preflight.check_aws(context, "plan")  # who plans may only read
    with pytest.raises(TopicbergError, match="role/deployer may not create a database") as caught:
        preflight.check_aws(context, "create")
    account.run(caught.value.message.partition(" runs: ")[2])
    lake_formation.check_deployer(context)
    assert DATABASE.find(context) is None
    DATABASE.create(context)
    assert DATABASE.find(context) == Live("lkc-1")


def test_database_of_others_is_no_missing_one(account: Account) -> None:
    account.client("glue").create_database(DatabaseInput={"Name": "lkc-1"})
    account.govern()
    context = account.context("deployer")
    grant = lake_formation.LakeGrant(
        account.roles["deployer"], ("CREATE_DATABASE",), {"Catalog": {}}
    )
    account.run(grant.command())
    with pytest.raises(TopicbergError, match="exists, and AWS Lake Formation does not show it"):
        DATABASE.create(context)


def test_printed_grants_let_the_roles_work(account: Account) -> None:
    account.client("glue").create_database(DatabaseInput={"Name": "lkc-1"})
    account.govern()
    context = account.context("deployer")
    role = context.names.tableflow_role
    tableflow = account.session(role).client("glue", endpoint_url=account.url)
    table: Any = {"DatabaseName": "lkc-1", "TableInput": {"Name": "stock_trades"}}
    with pytest.raises(tableflow.exceptions.AccessDeniedException):
        tableflow.create_table(**table)
    account.client("lakeformation").register_resource(ResourceArn="arn:aws:s3:::lake/tables")
    context.live |= dict.fromkeys(
        ("aws/role/tableflow", "aws/role/snowflake", "aws/glue_database", "confluent/cluster"),
        Live("x"),
    )
    commands = lake_formation.manual_steps(context)
    assert sum(context.names.snowflake_role in one for one in commands) == 2
    assert [one for one in commands if "DATA_LOCATION_ACCESS" in one and role in one]
    for command in commands:
        account.run(command)
    assert lake_formation.manual_steps(context) == []
    tableflow.create_table(**table)
    snowflake = account.session(context.names.snowflake_role)
    reader = snowflake.client("glue", endpoint_url=account.url)
    found = get_table(reader, "lkc-1", "stock_trades")
    assert found is not None
    assert found["Name"] == "stock_trades"


def test_table_that_is_missing_is_not_denied(account: Account) -> None:
    account.govern()
    context = account.context("deployer")
    grant = lake_formation.LakeGrant(
        account.roles["deployer"], ("CREATE_DATABASE",), {"Catalog": {}}
    )
    account.run(grant.command())
    DATABASE.create(context)
    glue = context.aws("glue")
    with pytest.raises(glue.exceptions.AccessDeniedException):
        glue.get_table(DatabaseName="lkc-1", Name="none")
    assert get_table(glue, "lkc-1", "none") is None


def test_grants_are_compared_as_lake_formation_lists_them() -> None:
    """With the catalog's id; all tables have a name, and SELECT is on all columns."""
    role = f"arn:aws:iam::{ACCOUNT}:role/reader"
    grant = lake_formation.LakeGrant(
        role, ("SELECT", "DESCRIBE"), {"Table": {"DatabaseName": "d", "TableWildcard": {}}}
    )
    principal = {"DataLakePrincipalIdentifier": role}
    table = {"CatalogId": ACCOUNT, "DatabaseName": "d", "Name": "ALL_TABLES"}
    held = [
        {
            "Principal": principal,
            "Resource": {"TableWithColumns": {**table, "ColumnWildcard": {}}},
            "Permissions": ["SELECT"],
        },
        {
            "Principal": principal,
            "Resource": {"Table": {**table, "TableWildcard": {}}},
            "Permissions": ["DESCRIBE"],
        },
    ]
    lake = lake_formation.DataLake(is_governed=True, held=tuple(held))
    assert lake.holds(grant)
    assert not lake_formation.DataLake(is_governed=True, held=tuple(held[:1])).holds(grant)
