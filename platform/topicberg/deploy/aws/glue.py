"""The Glue database of the cluster: Tableflow registers its tables in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from topicberg.deploy.resource import Live, Resource

if TYPE_CHECKING:
    from topicberg.deploy.world import World


@dataclass(frozen=True)
class GlueDatabase(Resource):
    """Its name is the cluster's id, as Tableflow calls it."""

    kind = "Glue database"

    def find(self, world: World) -> Live | None:
        glue = world.aws("glue")
        try:
            glue.get_database(Name=world.cluster)
        except glue.exceptions.EntityNotFoundException:
            return None
        return Live(world.cluster)

    def create(self, world: World) -> None:
        glue = world.aws("glue")
        try:
            glue.create_database(
                DatabaseInput={"Name": world.cluster, "Description": "Tables of Tableflow"}
            )
        except glue.exceptions.AlreadyExistsException:
            return

    def delete(self, world: World, live: Live) -> None:
        """With the tables in it, which nobody takes out when Tableflow stops."""
        glue = world.aws("glue")
        pages = glue.get_paginator("get_tables").paginate(DatabaseName=live.id)
        tables = [table["Name"] for page in pages for table in page["TableList"]]
        for start in range(0, len(tables), 100):
            glue.batch_delete_table(
                DatabaseName=live.id, TablesToDelete=tables[start : start + 100]
            )
        glue.delete_database(Name=live.id)
