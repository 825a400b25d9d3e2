"""Statements in the admin's session, and the objects that one creates by their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from topicberg.catalogs.snowflake.names import like, quote
from topicberg.catalogs.snowflake.session import NOT_THERE
from topicberg.clients.answers import VendorAnswer
from topicberg_deploy.resource import Changes, DeployContext, Live, Resource


def run(context: DeployContext, statement: str, role: str) -> list[VendorAnswer]:
    """Return the rows of a statement of the admin's session, columns in lower case."""
    with context.snowflake.session() as session:
        return session.run(statement, role)


def find(context: DeployContext, statement: str, role: str) -> list[VendorAnswer] | None:
    """The same; None when what it names does not exist."""
    from snowflake.connector.errors import ProgrammingError

    try:
        return run(context, statement, role)
    except ProgrammingError as error:
        if error.errno in NOT_THERE:
            return None
        raise


def show(
    context: DeployContext, objects: str, name: str, role: str, within: str = ""
) -> VendorAnswer | None:
    """Return the row that SHOW has of the object with this name; None: there is none."""
    rows = find(context, f"SHOW {objects} LIKE {like(name)}{within}", role)
    return next((row for row in rows or [] if row["name"] == name), None)


@dataclass(frozen=True)
class SqlObject(Resource):
    """An object that SQL finds by its name; subclasses say what follows the name."""

    of: ClassVar[str]
    """What SQL calls it, e.g. ``EXTERNAL VOLUME``."""
    owner: ClassVar[str]
    """The role that creates, changes and drops it."""

    def described(self, context: DeployContext) -> VendorAnswer | None:
        """Return what DESC says of the object: property in upper case → value; None: there is none.

        The documents name the properties in lower case, accounts in upper case. Values are in the
        column ``property_value``; of a user, accounts call it ``value``.

        https://docs.snowflake.com/en/sql-reference/sql/desc-user
        https://docs.snowflake.com/en/sql-reference/sql/desc-external-volume
        """
        rows = find(context, f"DESC {self.of} {quote(self.name)}", self.owner)
        if rows is None:
            return None
        values = {
            str(row["property"]).upper(): row.first("property_value", "value") for row in rows
        }
        return VendorAnswer(values, f"Snowflake (DESC {self.of} {self.name})", is_certain=True)

    def shown(self, context: DeployContext) -> VendorAnswer | None:
        return show(context, f"{self.of}S", self.name, self.owner)

    def read(self, context: DeployContext) -> VendorAnswer | None:
        """Return what Snowflake has of the object; None: it does not exist."""
        return self.shown(context)

    def as_live(self, context: DeployContext, shown: VendorAnswer) -> Live:
        raise NotImplementedError

    def find(self, context: DeployContext) -> Live | None:
        found = self.read(context)
        return self.as_live(context, found) if found is not None else None

    def definition(self, context: DeployContext) -> str:
        """Return the properties, as CREATE and ALTER … SET take them."""
        raise NotImplementedError

    def create(self, context: DeployContext) -> None:
        begin = f"CREATE {self.of} {quote(self.name)}"
        run(context, f"{begin} {self.definition(context)}", self.owner)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        begin = f"ALTER {self.of} {quote(self.name)}"
        run(context, f"{begin} SET {self.definition(context)}", self.owner)

    def delete(self, context: DeployContext, live: Live) -> None:
        run(context, f"DROP {self.of} IF EXISTS {quote(self.name)}", self.owner)
