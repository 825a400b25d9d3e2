"""The warehouse, the database and the schema."""

from __future__ import annotations

from dataclasses import dataclass

from topicberg.catalogs.snowflake.names import quote, text
from topicberg.settings import Settings
from topicberg_deploy.context import DeployContext
from topicberg_deploy.costs import PRICES, WAREHOUSE_HOURS, Cost
from topicberg_deploy.resource import Fields, Live, Resource
from topicberg_deploy.snowflake.integrations import INTEGRATOR
from topicberg_deploy.snowflake.session import SqlObject, run, show

OWNER = "SYSADMIN"
SUSPEND_SECONDS = 60


@dataclass(frozen=True)
class Warehouse(SqlObject):
    kind = "Snowflake warehouse"
    of = "WAREHOUSE"
    owner = OWNER

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        return Cost(self, PRICES["credit"].usd * WAREHOUSE_HOURS, "an hour a day")

    def find(self, context: DeployContext) -> Live | None:
        found = self.shown(context)
        if found is None:
            return None
        size = str(found["size"]).upper().replace("-", "")
        return Live(self.name, {"size": size, "auto_suspend": int(found["auto_suspend"] or 0)})

    def desired(self, context: DeployContext) -> Fields:
        return {"size": "XSMALL", "auto_suspend": SUSPEND_SECONDS}

    def definition(self, context: DeployContext) -> str:
        return f"WAREHOUSE_SIZE = 'XSMALL' AUTO_SUSPEND = {SUSPEND_SECONDS}"


@dataclass(frozen=True)
class Container(Resource):
    """A database or a schema.

    :param of: ``DATABASE`` or ``SCHEMA``
    :param path: its name, in parts
    """

    of: str = "DATABASE"
    path: tuple[str, ...] = ()
    comment: str = ""

    kind = "Snowflake"
    is_part = True

    def find(self, context: DeployContext) -> Live | None:
        within = f" IN DATABASE {quote(self.path[0])}" if self.of == "SCHEMA" else ""
        found = show(context, f"{self.of}S", self.path[-1], OWNER, within)
        return Live(".".join(self.path)) if found else None

    def create(self, context: DeployContext) -> None:
        comment = f"COMMENT = {text(self.comment)}"
        run(context, f"CREATE {self.of} {quote(*self.path)} {comment}", OWNER)

    def delete(self, context: DeployContext, live: Live) -> None:
        """With the tables in it, whoever created them."""
        run(context, f"DROP {self.of} IF EXISTS {quote(*self.path)}", INTEGRATOR)
