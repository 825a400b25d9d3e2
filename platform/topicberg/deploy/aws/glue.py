"""Glue databases: the cluster's, in which Tableflow registers, and those of derived tables."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from topicberg.clients.aws import every
from topicberg.deploy.context import DeployContext
from topicberg.deploy.resource import Live, Resource
from topicberg.topics import TopicSpec


def pipelines(specs: Iterable[TopicSpec]) -> list[str]:
    """The pipelines that may have derived tables: those of topics that have a table."""
    return sorted({spec.pipeline for spec in specs if spec.tableflow.enabled})


@dataclass(frozen=True)
class GlueDatabase(Resource):
    """
    :param database: its name; empty: the topics', the cluster's id unless it has a name of its own
    """

    database: str = ""
    description: str = "Tables of Tableflow"

    kind = "Glue database"

    def find(self, context: DeployContext) -> Live | None:
        glue, name = context.aws("glue"), self.database or context.namespace
        try:
            glue.get_database(Name=name)
        except glue.exceptions.EntityNotFoundException:
            return None
        return Live(name)

    def create(self, context: DeployContext) -> None:
        glue, name = context.aws("glue"), self.database or context.namespace
        with suppress(glue.exceptions.AlreadyExistsException):
            glue.create_database(DatabaseInput={"Name": name, "Description": self.description})

    def contents(self, context: DeployContext) -> list[str]:
        """Tableflow's own tables are resources by themselves."""
        if not self.database:
            return []
        return [f"{self.database}.{table}" for table in tables(context, self.database)]

    def delete(self, context: DeployContext, live: Live) -> None:
        """With the tables in it, which stay when Tableflow stops."""
        glue, names = context.aws("glue"), tables(context, live.id)
        for start in range(0, len(names), 100):
            some = names[start : start + 100]
            glue.batch_delete_table(DatabaseName=live.id, TablesToDelete=some)
        glue.delete_database(Name=live.id)


def tables(context: DeployContext, database: str) -> list[str]:
    """Return the names of the tables in a Glue database."""
    found = every(context.aws("glue"), "get_tables", "TableList", DatabaseName=database)
    return [table["Name"] for table in found]
