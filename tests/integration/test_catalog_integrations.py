"""Catalog integrations of every kind, created in the Snowflake emulator and found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from snowflake.connector.errors import ProgrammingError

from topicberg.catalogs.snowflake.names import SnowflakeNames
from topicberg.catalogs.snowflake.statements import create_table
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.settings import Settings, settings
from topicberg_deploy.context import CLUSTER, DeployContext, open_context
from topicberg_deploy.resource import Live, Resource, compare
from topicberg_deploy.snowflake.integrations import (
    INTEGRATOR,
    Integration,
    RestIntegration,
    Volume,
    wait_until_verified,
)

pytestmark = pytest.mark.integration
SECRET = "it's-a-secret"
LOGIN = {
    "catalog": {
        "uri": "https://org-open.snowflakecomputing.com/polaris/api/catalog",
        "name": "lake",
        "client_id": "client",
        "client_secret": SECRET,
        "scope": "PRINCIPAL_ROLE:ALL",
    }
}
MakeContext = Callable[[str], DeployContext]


@pytest.fixture
def make_context(stack: Endpoints) -> Iterator[MakeContext]:
    """``make_context(kind of catalog)``: a deployment of the test's own."""
    made: list[DeployContext] = []

    def make(catalog: str) -> DeployContext:
        update: dict[str, Any] = {"prefix": "kinds", "snowflake_catalog": catalog}
        config = Settings.model_validate(settings().model_dump() | update)
        context = replace(open_context(config, LOGIN), sleep=lambda _: None)
        context.live[CLUSTER] = Live("lkc-kinds")
        made.append(context)
        return context

    yield make
    for context in made:
        names = SnowflakeNames.of(context.config)
        for kind, name in (("integration", names.integration), ("rest", names.rest_integration)):
            Integration(kind, name).delete(context, Live(name))
        Volume("volume", names.volume).delete(context, Live(names.volume))


def created(resource: Resource, context: DeployContext) -> Live:
    """It is there, and not different from what is wanted."""
    resource.create(context)
    live = resource.find(context)
    assert live is not None
    assert compare(live.fields, resource.desired(context)) == {}
    return live


@pytest.mark.parametrize("catalog", ["glue", "glue_rest"])
def test_glue_by_both_of_its_doors(make_context: MakeContext, catalog: str) -> None:
    context = make_context(catalog)
    facts = created(
        Integration("snowflake/integration", SnowflakeNames.of(context.config).integration), context
    ).facts
    assert facts["principal"].startswith("arn:aws:iam::")
    assert facts["external_id"] == ("kinds" if catalog == "glue_rest" else facts["external_id"])


def test_changing_the_door_replaces_the_integration(make_context: MakeContext) -> None:
    created(
        Integration("i", SnowflakeNames.of(make_context("glue").config).integration),
        make_context("glue"),
    )
    context = make_context("glue_rest")
    integration = Integration("i", SnowflakeNames.of(context.config).integration)
    live = integration.find(context)
    assert live is not None
    assert set(compare(live.fields, integration.desired(context))) & integration.replaced_for


def test_glues_rest_api_is_verified(make_context: MakeContext) -> None:
    context = make_context("glue_rest")
    name = SnowflakeNames.of(context.config).integration
    created(Integration("snowflake/integration", name), context)
    with pytest.raises(TopicbergError, match="lkc-kinds"):  # no such database yet
        _verify_at_once(context, name)
    glue = context.aws.client("glue")
    glue.create_database(DatabaseInput={"Name": "lkc-kinds"})
    try:
        _verify_at_once(context, name)
    finally:
        glue.delete_database(Name="lkc-kinds")


def _verify_at_once(context: DeployContext, name: str) -> None:
    with _at_once():
        wait_until_verified(context, name)


@contextmanager
def _at_once() -> Iterator[None]:
    """What Snowflake cannot reach is not tried again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topicberg_deploy.snowflake.integrations.VERIFY_SECONDS", 0.0)
        yield


@pytest.mark.parametrize("catalog", ["open_catalog", "iceberg_rest"])
def test_other_catalogs_are_kept_and_cannot_be_reached(
    make_context: MakeContext, catalog: str
) -> None:
    context = make_context(catalog)
    names = SnowflakeNames.of(context.config)
    integration = RestIntegration("snowflake/rest_integration", names.rest_integration)
    live = created(integration, context)
    with (
        _at_once(),
        pytest.raises(TopicbergError, match="cannot reach a catalog at https://org-open"),
    ):
        integration.settle(context, live)
    Volume("snowflake/volume", names.volume).create(context)
    with pytest.raises(ProgrammingError, match="cannot reach a catalog"):
        _run(context, create_table(names, "T", "ns", "t", integration=names.rest_integration))
    with context.snowflake.session() as session:
        described = session.run(f'DESC CATALOG INTEGRATION "{names.rest_integration}"', INTEGRATOR)
    assert SECRET not in str(described)


def _run(context: DeployContext, statement: str) -> None:
    with context.snowflake.session() as session:
        for each in ("DATABASE", "SCHEMA"):
            name = SnowflakeNames.of(context.config).database + (
                ".KINDS_SCHEMA" if each == "SCHEMA" else ""
            )
            session.run(f"CREATE {each} IF NOT EXISTS {name}", INTEGRATOR)
        try:
            session.run(statement, INTEGRATOR)
        finally:
            session.run(f"DROP DATABASE {SnowflakeNames.of(context.config).database}", INTEGRATOR)
