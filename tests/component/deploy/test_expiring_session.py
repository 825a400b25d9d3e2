"""A login to AWS that ends in the middle of a run: one error, and the next run completes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from strict_aws import ACCOUNT, Account, strict_aws

from topicberg.settings import Settings
from topicberg_deploy import engine
from topicberg_deploy.aws import iam
from topicberg_deploy.aws.glue import GlueDatabase
from topicberg_deploy.aws.parameters import CONSUMER, Parameters
from topicberg_deploy.context import CLUSTER, DeployContext
from topicberg_deploy.resource import Live, Resource
from topicberg_deploy.settings import DeploySettings
from topicberg_local.emulators.aws.state import backends

USER = f"arn:aws:iam::{ACCOUNT}:role/deployer"
POLICY = iam.Policy("aws/policy/tableflow", "demo_policy", (), grants=iam.tableflow_policy)
ROLE = iam.Role(
    *("aws/role/tableflow", "demo_role", (POLICY.key,)),
    trust=lambda _: iam.document(iam.trusted_by(USER, "ext")),
    policy=POLICY.key,
)
GRAPH: list[Resource] = [
    POLICY,
    ROLE,
    GlueDatabase("aws/glue_database", "of the cluster"),
    GlueDatabase("aws/pipeline_database/p", "demo_p", database="demo_p"),
    Parameters("aws/ssm/consumer", "/c/demo/consumer", values=CONSUMER),
]


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with strict_aws() as account:
        account.session("deployer")
        yield account


def end_sessions() -> None:
    for _, _, sts in backends("sts").iter_backends():
        for role in sts.assumed_roles:
            role.expiration = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=1)


def opened(
    account: Account, folder: Path, monkeypatch: pytest.MonkeyPatch, requests: int | None = None
) -> DeployContext:
    """Return a context with a session of its own.

    :param requests: number of the request before which all sessions end
    """
    session: Any = account.session("deployer")
    sent = 0

    def count(**_: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == requests:
            end_sessions()

    session.events.register("before-sign", count)
    config = Settings(deployment="cloud", prefix="demo", state_dir=folder)
    deploy = DeploySettings(confluent_api_key="K", confluent_api_secret=SecretStr("S"))
    deploy = deploy.model_copy(update={"aws_endpoint_url": account.url})
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    context = DeployContext(config, deploy, [], sleep=lambda _: time.sleep(0.01))
    context.aws.session = session
    context.live[CLUSTER] = Live("lkc-1")
    return context


def left(account: Account) -> set[str]:
    roles = {one["RoleName"] for one in account.client("iam").list_roles()["Roles"]}
    policies = account.client("iam").list_policies(Scope="Local")["Policies"]
    databases = account.client("glue").get_databases()["DatabaseList"]
    parameters = account.client("ssm").describe_parameters()["Parameters"]
    found = {one["Name"] for one in (*databases, *parameters)}
    return (roles - {"deployer"}) | {one["PolicyName"] for one in policies} | found


@pytest.mark.parametrize("requests", [1, 3, 8, 21])
def test_session_that_ends_in_the_middle_is_one_error_and_leaves_nothing_behind(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    context = opened(account, tmp_path, monkeypatch, requests)
    with pytest.raises(Exception) as caught:  # noqa: PT011  the record is read before the graph
        engine.create(GRAPH, context, lambda *_: None)
    assert "expired" in str(caught.value)
    context = opened(account, tmp_path, monkeypatch)
    engine.create(GRAPH, context, lambda *_: None)
    context = opened(account, tmp_path, monkeypatch)
    assert {step.action for step in engine.plan(GRAPH, context)} == {"keep"}
    found = engine.existing(GRAPH, context, lambda *_: None)
    assert len(found) == len(GRAPH)
    assert engine.delete(found, context, lambda *_: None) == {}
    assert left(account) == set()
