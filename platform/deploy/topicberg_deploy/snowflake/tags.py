"""Tags of Snowflake on what a deployment creates there.

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
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.context import DeployContext
from topicberg_deploy.resource import Changes, Fields, Live, Resource
from topicberg_deploy.snowflake.session import find, run
from topicberg_deploy.snowflake.storage import Container

ROLE = "ACCOUNTADMIN"
"""It has APPLY TAG."""
_DOMAINS = {
    **{name: name for name in ("WAREHOUSE", "DATABASE", "ROLE", "USER", "NETWORK POLICY")},
    "CATALOG INTEGRATION": "INTEGRATION",
}
"""What SQL calls an object → the domain of its tags."""


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
            called = ", ".join(text(argument) for argument in arguments)
            rows = find(context, f"SELECT SYSTEM$GET_TAG({called}) AS VALUE", ROLE)
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
            run(context, f"ALTER {self.domain} {quote(self.name)} SET TAG {values}", ROLE)
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
