"""An account that AWS Lake Formation governs: what `deploy` reads there, and what it prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strict_aws import ACCOUNT, Account, strict_aws
from test_expiring_session import GRAPH, left, opened

from topicberg.catalogs.glue import get_table
from topicberg.errors import TopicbergError
from topicberg_deploy import engine
from topicberg_deploy.aws import lake_formation
from topicberg_deploy.aws.glue import GlueDatabase
from topicberg_deploy.resource import DeployContext, Live


@pytest.fixture
def account() -> Iterator[Account]:
    with strict_aws() as account:
        yield account


DATABASE = GlueDatabase("aws/glue_database", "of the cluster")


def test_account_that_iam_governs_needs_no_grant(account: Account) -> None:
    context = account.context("deployer")
    account.allow("deployer", {"Effect": "Allow", "Action": "lakeformation:*", "Resource": "*"})
    lake_formation.check_deployer(context)  # which needs no iam:GetRole
    assert lake_formation.manual_steps(context) == []


def warning(context: DeployContext, caplog: pytest.LogCaptureFixture) -> str:
    """Return what is not proved of who deploys; empty: all is."""
    caplog.clear()
    lake_formation.check_deployer(context)
    return "".join(one.getMessage() for one in caplog.records if "topicberg" in one.name)


def grant(account: Account, principal: str, permissions: list[Any], resource: Any) -> None:
    account.client("lakeformation").grant_permissions(
        Principal={"DataLakePrincipalIdentifier": principal},
        Permissions=permissions,
        Resource=resource,
    )


def test_deployer_without_a_grant_is_told_the_command(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    account.govern()
    context = account.context("deployer")
    message = warning(context, caplog)
    assert "does not show whether" in message
    account.run(message.partition(" runs: ")[2])
    assert not warning(context, caplog)
    assert DATABASE.find(context) is None
    DATABASE.create(context)
    assert DATABASE.find(context)


def test_grant_of_a_group_is_not_missed(account: Account, caplog: pytest.LogCaptureFixture) -> None:
    account.govern()
    context = account.context("deployer")
    assert warning(context, caplog)
    grant(account, f"{ACCOUNT}:IAMPrincipals", ["CREATE_DATABASE"], {"Catalog": {"Id": ACCOUNT}})
    assert not warning(context, caplog)
    DATABASE.create(context)


def test_grants_by_tags_are_not_missed(account: Account) -> None:
    account.client("glue").create_database(DatabaseInput={"Name": "lkc-1"})
    account.govern()
    context, lake = account.context("deployer"), account.client("lakeformation")
    tag: Any = {"TagKey": "team", "TagValues": ["lake"]}
    lake.create_lf_tag(**tag)
    lake.add_lf_tags_to_resource(Resource={"Database": {"Name": "lkc-1"}}, LFTags=[tag])
    deployer = account.roles["deployer"]
    of_database = lake_formation.LakeGrant(
        deployer, ("CREATE_TABLE", "DESCRIBE"), {"Database": {"Name": "lkc-1"}}
    )
    assert not lake_formation.is_proved(context, of_database)
    policy = {"ResourceType": "DATABASE", "Expression": [tag]}
    grant(account, deployer, ["CREATE_TABLE", "DESCRIBE"], {"LFTagPolicy": policy})
    assert lake_formation.is_proved(context, of_database)


def test_only_the_callers_own_permissions_are_shown(account: Account) -> None:
    account.govern()
    context = account.context("deployer")
    reader, database = f"arn:aws:iam::{ACCOUNT}:role/reader", {"Database": {"Name": "lkc-1"}}
    of_reader = lake_formation.LakeGrant(reader, ("DESCRIBE",), database)
    account.run(of_reader.command())
    assert not lake_formation.is_proved(context, of_reader)
    grant(account, account.roles["deployer"], ["DESCRIBE"], database)
    assert lake_formation.is_proved(context, of_reader)
    lake = context.aws.client("lakeformation")
    with pytest.raises(lake.exceptions.ClientError, match="UnsupportedOperation"):
        lake.list_permissions(Resource=database)


def test_existing_database_has_defaults_of_its_own(account: Account) -> None:
    """The account leaves new databases to IAM, and this one was created before that."""
    glue, context = account.client("glue"), account.context("deployer")
    own: Any = {"Name": "lkc-1", "CreateTableDefaultPermissions": []}
    glue.create_database(DatabaseInput=own)
    assert DATABASE.find(context) is None  # Lake Formation hides it
    grant(account, account.roles["deployer"], ["DESCRIBE"], {"Database": {"Name": "lkc-1"}})
    found = DATABASE.find(context)
    assert found
    context.live |= {DATABASE.key: found, "confluent/cluster": Live("lkc-1")}
    (command,) = lake_formation.manual_steps(context)
    assert "--permissions DESCRIBE DROP" in command
    account.run(command)
    assert lake_formation.manual_steps(context) == []
    account.govern()
    everyone = {"DataLakePrincipalIdentifier": "IAM_ALLOWED_PRINCIPALS"}
    left_to_iam = {"table_defaults": [{"Principal": everyone, "Permissions": ["ALL"]}]}
    for facts, is_governed in (({}, True), (left_to_iam, False)):
        context.live[DATABASE.key] = Live("lkc-1", {}, facts)
        context.live["aws/role/tableflow"] = Live("x")
        assert bool(lake_formation.manual_steps(context)) == is_governed


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
    assert lake_formation.manual_steps(context)  # what it has not itself is not shown
    admin = account.context("lake_admin")
    admin.live |= context.live
    assert all(":role/lake_admin " in one for one in lake_formation.manual_steps(admin))
    tableflow.create_table(**table)
    snowflake = account.session(context.names.snowflake_role)
    found = get_table(snowflake.client("glue", endpoint_url=account.url), "lkc-1", "stock_trades")
    assert found is not None
    assert found["Name"] == "stock_trades"


def test_part_in_aws_is_created_planned_and_deleted_with_the_grants_alone(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.session("deployer")
    account.govern()
    grant = lake_formation.LakeGrant(
        account.roles["deployer"], ("CREATE_DATABASE",), {"Catalog": {}}
    )
    with pytest.raises(engine.DeployError, match="AccessDenied"):
        engine.create(GRAPH, opened(account, tmp_path, monkeypatch), lambda *_: None)
    account.run(grant.command())
    engine.create(GRAPH, opened(account, tmp_path, monkeypatch), lambda *_: None)
    context = opened(account, tmp_path, monkeypatch)
    assert {step.action for step in engine.plan(GRAPH, context)} == {"keep"}
    found = engine.existing(GRAPH, context, lambda *_: None)
    assert engine.delete(found, context, lambda *_: None) == {}
    assert left(account) == set()


def test_table_that_may_not_be_dropped_is_reported(account: Account) -> None:
    """It is listed for who may see it, and Glue answers 200 with an error in it."""
    account.govern()
    context, root = account.context("deployer"), account.client("glue")
    account.run(
        lake_formation.LakeGrant(
            account.roles["deployer"], ("CREATE_DATABASE",), {"Catalog": {}}
        ).command()
    )
    DATABASE.create(context)
    for name, principal in (("CREATE_TABLE", "root"), ("DROP", "root")):
        arn = f"arn:aws:iam::{ACCOUNT}:{principal}"
        account.run(
            lake_formation.LakeGrant(arn, (name,), {"Database": {"Name": "lkc-1"}}).command()
        )
    root.create_table(DatabaseName="lkc-1", TableInput={"Name": "stock_trades"})
    table = {"Table": {"DatabaseName": "lkc-1", "Name": "stock_trades"}}
    account.run(lake_formation.LakeGrant(account.roles["deployer"], ("DESCRIBE",), table).command())
    with pytest.raises(TopicbergError, match=r"1 table of Glue database lkc-1 .*AccessDenied"):
        DATABASE.delete(context, Live("lkc-1"))
    assert root.get_table(DatabaseName="lkc-1", Name="stock_trades")


def test_table_that_is_missing_is_not_denied(account: Account) -> None:
    account.govern()
    context = account.context("deployer")
    grant = lake_formation.LakeGrant(
        account.roles["deployer"], ("CREATE_DATABASE",), {"Catalog": {}}
    )
    account.run(grant.command())
    DATABASE.create(context)
    glue = context.aws.client("glue")
    with pytest.raises(glue.exceptions.AccessDeniedException):
        glue.get_table(DatabaseName="lkc-1", Name="none")
    assert get_table(glue, "lkc-1", "none") is None
