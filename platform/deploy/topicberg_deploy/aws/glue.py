"""Glue databases: the cluster's, in which Tableflow registers, and those of derived tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from topicberg.clients.aws import every
from topicberg.errors import TopicbergError
from topicberg.topics import TopicSpec
from topicberg.wording import count
from topicberg_deploy.resource import DeployContext, HiddenError, Live, Resource


def tableflow_key(spec: TopicSpec) -> str:
    """Return the resource key of Tableflow on a topic."""
    return f"confluent/tableflow/{spec.asset_name}"


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
        glue, name = context.aws.client("glue"), self.database or context.namespace
        try:
            database = glue.get_database(Name=name)["Database"]
        except glue.exceptions.EntityNotFoundException:
            return None
        except glue.exceptions.AccessDeniedException:
            # Under Lake Formation also of a database that does not exist.
            listed = every(glue, "get_databases", "DatabaseList")
            if any(database["Name"] == name for database in listed):
                raise
            return None
        return Live(name, {}, {"table_defaults": database.get("CreateTableDefaultPermissions")})

    def create(self, context: DeployContext) -> None:
        glue, name = context.aws.client("glue"), self.database or context.namespace
        try:
            database = {"Name": name, "Description": self.description}
            glue.create_database(DatabaseInput=database, Tags=context.aws.tags)
        except glue.exceptions.AlreadyExistsException:
            if self.find(context) is not None:
                raise
            raise HiddenError(
                f"{self.title} {name} exists, and AWS Lake Formation does not show it",
                hint="let a data lake administrator grant DESCRIBE on it to who deploys",
            ) from None

    def contents(self, context: DeployContext) -> list[str]:
        """Without the topics' own tables, which are resources by themselves, and without what
        :meth:`delete` leaves."""
        if self._is_shared(context):
            return []
        name, topics = self.database or context.namespace, self._topics(context)
        return [f"{name}.{table}" for table in tables(context, name) if table not in topics]

    def delete(self, context: DeployContext, live: Live) -> None:
        """With the tables in it, which stay when Tableflow stops.

        :raises TopicbergError: a namespace of the user's choice has other tables than the topics'
        """
        glue, names = context.aws.client("glue"), tables(context, live.id)
        others = set(names) - self._topics(context) if self._is_shared(context) else set[str]()
        names = [name for name in names if name not in others]
        for start in range(0, len(names), 100):
            some = names[start : start + 100]
            response = glue.batch_delete_table(DatabaseName=live.id, TablesToDelete=some)
            _check_deleted(live.id, response.get("Errors", []))
        if others:
            raise TopicbergError(
                f"{live.id} has {len(others)} tables that are of no topic here, e.g. {min(others)}",
                hint="drop them if they are not needed, or leave the database as it is",
            )
        glue.delete_database(Name=live.id)

    def _is_shared(self, context: DeployContext) -> bool:
        """Whether its name may be another deployment's: the user's choice, or a given cluster's."""
        config = context.config
        return not self.database and bool(config.tableflow_namespace or config.existing_cluster)

    def _topics(self, context: DeployContext) -> set[str]:
        """The topics' tables, if they are in it, without what Tableflow wrote before ``deploy``."""
        specs = [] if self.database else context.specs
        return {spec.glue_name for spec in specs if tableflow_key(spec) not in context.kept}


def _check_deleted(database: str, errors: list[Any]) -> None:
    """:raises TopicbergError: Glue answers that a table is left, e.g. by AWS Lake Formation"""
    gone = "EntityNotFoundException"
    if left := [error for error in errors if error["ErrorDetail"]["ErrorCode"] != gone]:
        name, reason = left[0]["TableName"], left[0]["ErrorDetail"]
        raise TopicbergError(
            f"{count(len(left), 'table')} of Glue database {database} cannot be deleted, e.g. "
            f"{name}: {reason['ErrorCode']}: {reason.get('ErrorMessage', '')}",
            hint="grant DROP on them in AWS Lake Formation, or delete them as who created them",
        )


def tables(context: DeployContext, database: str) -> list[str]:
    """Return the names of the tables in a Glue database."""
    listed = every(context.aws.client("glue"), "get_tables", "TableList", DatabaseName=database)
    return [table["Name"] for table in listed]
