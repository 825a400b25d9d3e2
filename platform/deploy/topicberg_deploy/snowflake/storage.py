"""The warehouse, the database, the schema, and the tags of what a deployment creates in Snowflake.

A tag is an object of a schema, which the company that uses it has created; a deployment sets its
value. Schemas and tables inherit the tags of their database, and external volumes cannot have any.

https://docs.snowflake.com/en/user-guide/object-tagging/introduction (Enterprise Edition),
https://docs.snowflake.com/en/user-guide/object-tagging/work and
https://docs.snowflake.com/en/sql-reference/functions/system_get_tag, which lists what can have tags
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from topicberg.catalogs.snowflake.names import quote, text
from topicberg.catalogs.snowflake.session import NOT_THERE
from topicberg.clients.answers import VendorAnswer
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.costs import PRICES, WAREHOUSE_HOURS, Cost
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, Resource
from topicberg_deploy.snowflake.integrations import INTEGRATOR
from topicberg_deploy.snowflake.session import SqlObject, find, run, show

OWNER = "SYSADMIN"
SUSPEND_SECONDS = 60
TAGGER = "ACCOUNTADMIN"
"""It has APPLY TAG."""
_DOMAINS = {
    **{name: name for name in ("WAREHOUSE", "DATABASE", "ROLE", "USER", "NETWORK POLICY")},
    "CATALOG INTEGRATION": "INTEGRATION",
}
"""What SQL calls an object → the domain of its tags."""


@dataclass(frozen=True)
class Warehouse(SqlObject):
    kind = "Snowflake warehouse"
    of = "WAREHOUSE"
    owner = OWNER

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        return Cost(PRICES["credit"] * WAREHOUSE_HOURS, "an hour a day")

    def as_live(self, context: DeployContext, shown: VendorAnswer) -> Live:
        size = str(shown["size"]).upper().replace("-", "")
        return Live(self.name, {"size": size, "auto_suspend": int(shown["auto_suspend"] or 0)})

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


@dataclass(frozen=True)
class ObjectTags(Resource):
    """The tags of one object.

    :param domain: what SQL calls the object, e.g. ``WAREHOUSE``
    :param tags: full name of a tag → value
    """

    domain: str = field(kw_only=True)
    tags: dict[str, str] = field(default_factory=dict, hash=False)

    kind = "tags of Snowflake's"
    is_part = True

    @property
    def title(self) -> str:
        return f"{self.kind} {self.domain.lower()} {self.name}"

    def find(self, context: DeployContext) -> Live | None:
        """None: the object or a tag does not exist, or no tag is set."""
        fields: Fields = {}
        for tag in self.tags:
            arguments = (quote(*tag.split(".")), quote(self.name), self.domain)
            called = ", ".join(map(text, arguments))
            rows = find(context, f"SELECT SYSTEM$GET_TAG({called}) AS VALUE", TAGGER)
            if rows is None:
                return None
            fields[tag] = rows[0]["value"]
        return Live(self.name, fields) if any(fields.values()) else None

    def desired(self, context: DeployContext) -> Fields:
        return dict(self.tags)

    def create(self, context: DeployContext) -> None:
        self._set(context, self.tags)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        self._set(context, changes)

    def _set(self, context: DeployContext, tags: Iterable[str]) -> None:
        """:raises TopicbergError: a tag does not exist, or the role may not use it"""
        from snowflake.connector.errors import ProgrammingError

        values = ", ".join(f"{quote(*tag.split('.'))} = {text(self.tags[tag])}" for tag in tags)
        try:
            run(context, f"ALTER {self.domain} {quote(self.name)} SET TAG {values}", TAGGER)
        except ProgrammingError as error:
            if error.errno not in NOT_THERE:
                raise
            raise TopicbergError(
                f"{self.title}: {' '.join(str(error.msg).split())}",
                hint="create the tags of TOPICBERG_SNOWFLAKE_TAGS, and grant the role that deploys "
                "USAGE on their schema, and APPLY TAG ON ACCOUNT",
            ) from None

    def is_ours(self, context: DeployContext) -> bool:
        """They go with their object."""
        return False


def object_tags(resources: Iterable[Resource], config: Settings) -> Iterator[Resource]:
    """Yield the tags of those of the resources that Snowflake can tag."""
    if not config.snowflake_tags:
        return
    for resource in resources:
        domain = _DOMAINS.get(getattr(resource, "of", ""))
        if domain and resource.key.startswith("snowflake/"):
            key = resource.key.replace("snowflake/", "snowflake/tags/", 1)
            name = resource.path[-1] if isinstance(resource, Container) else resource.name
            needs = (resource.key,)
            yield ObjectTags(
                key, name, needs, needs, resource.wanted, domain=domain, tags=config.snowflake_tags
            )
