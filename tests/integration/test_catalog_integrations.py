"""Catalog integrations of every kind, created in the Snowflake emulator and found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from snowflake.connector.errors import ProgrammingError

from topicberg.catalogs.snowflake import Names, create_table
from topicberg.deploy.resource import Live, Resource, compare
from topicberg.deploy.snowflake.storage import (
    INTEGRATOR,
    Integration,
    LinkedDatabase,
    RestIntegration,
    Volume,
    wait_until_verified,
)
from topicberg.deploy.world import CLUSTER, World, open_world
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.settings import Settings, settings

pytestmark = pytest.mark.integration
SECRET = "it's-a-secret"
LOGIN = {
    "catalog_uri": "https://org-open.snowflakecomputing.com/polaris/api/catalog",
    "catalog_name": "lake",
    "catalog_client_id": "client",
    "catalog_client_secret": SECRET,
    "catalog_scope": "PRINCIPAL_ROLE:ALL",
}
MakeWorld = Callable[[str], World]


@pytest.fixture
def make_world(stack: Endpoints) -> Iterator[MakeWorld]:
    """``make_world(kind of catalog)``: a deployment of the test's own."""
    made: list[World] = []

    def make(catalog: str) -> World:
        update: dict[str, Any] = {"prefix": "kinds", "snowflake_catalog": catalog}
        config = Settings.model_validate(settings().model_dump() | update)
        world = open_world(config, LOGIN)
        world.sleep = lambda _: None
        world.remember(CLUSTER, Live("lkc-kinds"))
        made.append(world)
        return world

    yield make
    for world in made:
        names = Names.of(world.config)
        for kind, name in (("integration", names.integration), ("rest", names.rest_integration)):
            Integration(kind, name).delete(world, Live(name))
        Volume("volume", names.volume).delete(world, Live(names.volume))


def created(resource: Resource, world: World) -> Live:
    """It is there, and not different from what is wanted."""
    resource.create(world)
    live = resource.find(world)
    assert live is not None
    assert compare(live.fields, resource.desired(world)) == {}
    return live


@pytest.mark.parametrize("catalog", ["glue", "glue_rest"])
def test_glue_by_both_of_its_doors(make_world: MakeWorld, catalog: str) -> None:
    world = make_world(catalog)
    integration = Integration("snowflake/integration", Names.of(world.config).integration)
    facts = created(integration, world).facts
    assert facts["principal"].startswith("arn:aws:iam::")
    assert facts["external_id"] == ("kinds" if catalog == "glue_rest" else facts["external_id"])


def test_changing_the_door_replaces_the_integration(make_world: MakeWorld) -> None:
    created(Integration("i", Names.of(make_world("glue").config).integration), make_world("glue"))
    world = make_world("glue_rest")
    integration = Integration("i", Names.of(world.config).integration)
    live = integration.find(world)
    assert live is not None
    assert set(compare(live.fields, integration.desired(world))) & integration.replaced_for


def test_glues_rest_api_is_verified(make_world: MakeWorld) -> None:
    world = make_world("glue_rest")
    name = Names.of(world.config).integration
    created(Integration("snowflake/integration", name), world)
    with pytest.raises(TopicbergError, match="lkc-kinds"):  # no such database yet
        _verify_at_once(world, name)
    glue = world.aws("glue")
    glue.create_database(DatabaseInput={"Name": "lkc-kinds"})
    try:
        _verify_at_once(world, name)
    finally:
        glue.delete_database(Name="lkc-kinds")


def _verify_at_once(world: World, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topicberg.deploy.snowflake.storage.VERIFY_SECONDS", 0.0)
        wait_until_verified(world, name)


@pytest.mark.parametrize("catalog", ["open_catalog", "iceberg_rest"])
def test_other_catalogs_are_kept_and_cannot_be_reached(make_world: MakeWorld, catalog: str) -> None:
    world = make_world(catalog)
    names = Names.of(world.config)
    integration = RestIntegration("snowflake/rest_integration", names.rest_integration)
    live = created(integration, world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topicberg.deploy.snowflake.storage.VERIFY_SECONDS", 0.0)
        with pytest.raises(TopicbergError, match="cannot reach a catalog at https://org-open"):
            integration.settle(world, live)
    Volume("snowflake/volume", names.volume).create(world)
    with pytest.raises(ProgrammingError, match="cannot reach a catalog"):
        _run(world, create_table(names, "T", "ns", "t", integration=names.rest_integration))
    with world.snowflake() as session:
        described = session.run(f'DESC CATALOG INTEGRATION "{names.rest_integration}"', INTEGRATOR)
    assert SECRET not in str(described)


def _run(world: World, statement: str) -> None:
    with world.snowflake() as session:
        for each in ("DATABASE", "SCHEMA"):
            name = Names.of(world.config).database + (".KINDS_SCHEMA" if each == "SCHEMA" else "")
            session.run(f"CREATE {each} IF NOT EXISTS {name}", INTEGRATOR)
        try:
            session.run(statement, INTEGRATOR)
        finally:
            session.run(f"DROP DATABASE {Names.of(world.config).database}", INTEGRATOR)


def test_linked_database_is_refused_as_unsupported(make_world: MakeWorld) -> None:
    world = make_world("glue_rest")
    with pytest.raises(ProgrammingError, match="LINKED_CATALOG"):
        LinkedDatabase("d", Names.of(world.config).linked_database).create(world)
