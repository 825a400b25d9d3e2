"""Glue databases: the cluster's, in which Tableflow registers, and those of derived tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topicberg.deploy.resource import Live, Resource

if TYPE_CHECKING:
    from topicberg.deploy.world import World
    from topicberg.topics import TopicSpec


def pipelines(specs: Iterable[TopicSpec]) -> list[str]:
    """The pipelines that may have derived tables: those of topics that have a table."""
    return sorted({spec.pipeline for spec in specs if spec.tableflow.enabled})


@dataclass(frozen=True)
class GlueDatabase(Resource):
    """
    :param database: its name; empty: the cluster's id, as Tableflow calls it
    """

    database: str = ""
    description: str = "Tables of Tableflow"

    kind = "Glue database"

    def find(self, world: World) -> Live | None:
        glue, name = world.aws("glue"), self.database or world.cluster
        try:
            glue.get_database(Name=name)
        except glue.exceptions.EntityNotFoundException:
            return None
        return Live(name)

    def create(self, world: World) -> None:
        glue, name = world.aws("glue"), self.database or world.cluster
        try:
            glue.create_database(DatabaseInput={"Name": name, "Description": self.description})
        except glue.exceptions.AlreadyExistsException:
            return

    def contents(self, world: World) -> list[str]:
        """Tableflow's own tables are resources by themselves."""
        if not self.database:
            return []
        return [f"{self.database}.{table}" for table in tables(world, self.database)]

    def delete(self, world: World, live: Live) -> None:
        """With the tables in it, which nobody takes out when Tableflow stops."""
        glue, names = world.aws("glue"), tables(world, live.id)
        for start in range(0, len(names), 100):
            some = names[start : start + 100]
            glue.batch_delete_table(DatabaseName=live.id, TablesToDelete=some)
        glue.delete_database(Name=live.id)


def tables(world: World, database: str) -> list[str]:
    """Return the names of the tables in a Glue database."""
    pages = world.aws("glue").get_paginator("get_tables").paginate(DatabaseName=database)
    return [table["Name"] for page in pages for table in page["TableList"]]
